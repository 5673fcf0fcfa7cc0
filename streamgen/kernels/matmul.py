"""One column of a matmul: activations in groups of 32 times 4- or 8-bit weights, in exact integers.

    dot[t,n,g]  = sum of code[t,k] * weight[n,k]           k in group g of 32
    sum[t,g]    = sum of code[t,k]
    term[t,n,g] = (scale[n,h] * dot + minimum[n,h] * sum) * 2^(15 - d[t,g])      h: the weights' group of g
    y[t,n]      = f24(f24(sum over g of term) * r[n]) * 2^(E[t] - 15)

A shift d of 16 marks a group of zeros, whose term is 0. Without group scales `scale` is 1 and there is no
minimum. A matmul of C columns gives column c the output rows n with n % C == c; a column knows only its own.

Order, outermost first (n_lanes rows by t_lanes tokens make a tile, a k step is 32):

    i_x (t_lanes, 32)     n-tile*, t-tile, k                i_e (1,)  n-tile*, t-tile, t-lane, n-lane*
    i_w (n_lanes, 32)     n-tile, t-tile*, k                i_r (1,)  n-tile, t-tile*, t-lane*, n-lane
    i_s (n_lanes, 1, S)   n-tile, t-tile*, group, k-in-group*         (* sends the same again; S = 1 or 2)
    o_y (1, 1)            n-tile, t-tile, t-lane, n-lane

A column built for both weight formats has i_w as wide as 4-bit weights need, and takes 8-bit ones as tokens
(n_lanes, 16), two a k step. Ungrouped weights use no i_s.

Time. A tile takes max(cycles of its k steps, t_lanes * n_lanes) cycles, the second being the pace of o_y.
Lanes (`dot`) and accumulators never wait; `issue` takes operands when their results will have room.

Width of an accumulator. With weights |w| <= 8 or 128, |scale| and |minimum| <= 2^(scale_bits-1) and codes
|c| <= 127, a term is at most 32 * 127 * (|w| + 1) * 2^(scale_bits-1) * 2^15 (32 * 127 * |w| * 2^15
without group scales) and a sum at most K / 32 times that, in any order and at any time. `accumulator_bits` is
48 where that bound is below 2^47, else 64, and a ValueError where 64 is too little. So 48 bits are
enough for 8-bit scales up to K = 29344 (W4) or 2048 (W8); 64 bits for 16-bit scales up to K = 7 million (W4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen import formats
from streamgen.arith import F24, ScaleAccumulatorParams
from streamgen.contract import Bounds, Field
from streamgen.cost import Cost, Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.itensor import ITensor
from streamgen.kernels.dot import K_LANES, SUM_BITS, DotParams, delayed, pack_weights, registered
from streamgen.kernels.issue import IssueParams
from streamgen.rtl import Shared
from streamgen.stream import RegisterSliceParams, descriptor_signature, signature

__all__ = ["Column", "ColumnParams", "accumulate"]

WEIGHT_BITS = {"w4": 4, "w8": 8}
GROUPS = (32, 64, 128)
EXPONENT_BITS = 16


@dataclass(frozen=True, kw_only=True)
class ColumnParams:
    """What is built.

    t_lanes, n_lanes: tokens and output rows of a tile; even n_lanes share multipliers in pairs.
    formats: ("w4",), ("w8",) or ("w4", "w8"); the descriptor chooses among two.
    group: weights that share a scale, 32, 64 or 128. scale_bits: 8 to 16, or 0 for a column without group
    scales. minimum: a minimum beside each scale. max_k, max_n, max_t: the largest bounds.

    Bounds: {"t", "k", "n": extents, padded to whole tiles and groups, "format": "w4" or "w8",
    "grouped": whether the weights have group scales}.
    """

    t_lanes: int
    n_lanes: int
    formats: tuple[str, ...]
    group: int
    scale_bits: int
    minimum: bool
    max_k: int
    max_n: int
    max_t: int

    def __post_init__(self) -> None:
        for name in ("t_lanes", "n_lanes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a column must be at least 1, not {getattr(self, name)}")
        if self.formats not in (("w4",), ("w8",), ("w4", "w8")):
            raise ValueError(f"formats of a column must be w4, w8 or both in this order, not {self.formats}")
        if self.group not in GROUPS:
            raise ValueError(f"group of a column must be 32, 64 or 128, not {self.group}")
        if self.scale_bits != 0 and not 8 <= self.scale_bits <= 16:
            raise ValueError(f"scale_bits of a column must be 0 or 8 to 16, not {self.scale_bits}")
        if self.minimum and not self.scale_bits:
            raise ValueError("minimum of a column needs group scales; scale_bits is 0")
        k_unit = self.group if self.scale_bits else K_LANES
        for name, unit in (("max_k", k_unit), ("max_n", self.n_lanes), ("max_t", self.t_lanes)):
            if (value := getattr(self, name)) < 1 or value % unit:
                raise ValueError(f"{name} of a column must be a positive multiple of {unit}, not {value}")
        if self.largest_sum >= 1 << 63:
            raise ValueError(f"max_k of a column is {self.max_k}: 64-bit accumulators could overflow")

    @property
    def weight_bits(self) -> int:
        """Width of a weight in the multipliers."""
        return max(WEIGHT_BITS[name] for name in self.formats)

    @property
    def largest_sum(self) -> int:
        """Bound of an accumulator's magnitude; see the module's docstring."""
        weight = 1 << self.weight_bits - 1
        if self.scale_bits:
            weight = weight + self.minimum << self.scale_bits - 1
        return self.max_k * 127 * weight << 15

    @property
    def accumulator_bits(self) -> int:
        return 48 if self.largest_sum < 1 << 47 else 64

    @property
    def tile_results(self) -> int:
        return self.t_lanes * self.n_lanes

    def lane(self, rows: int) -> DotParams:
        """The lane of one token by one or two rows."""
        return DotParams(
            weight_bits=self.weight_bits,
            rows=rows,
            scale_bits=self.scale_bits,
            minimum=self.minimum,
            accumulator_bits=self.accumulator_bits,
        )

    @property
    def scaler(self) -> ScaleAccumulatorParams:
        return ScaleAccumulatorParams(width=self.accumulator_bits, form=F24, exponent_bits=EXPONENT_BITS)

    @property
    def issue(self) -> IssueParams:
        # A credit comes back this long after a tile's last step when nothing stalls.
        needed = self.results_after + self.queue(2).latency + 2 + self.tile_results
        return IssueParams(
            max_n_tiles=self.max_n // self.n_lanes,
            max_t_tiles=self.max_t // self.t_lanes,
            max_k_steps=self.max_k // K_LANES,
            tile_results=self.tile_results,
            depth=max(32, 1 << (needed - 1).bit_length()),
            two_widths=len(self.formats) == 2,
            scaled=self.scale_bits > 0,
        )

    def queue(self, depth: int) -> QueueParams:
        return QueueParams(bits=self.accumulator_bits, depth=depth, memory="lutram")

    @property
    def output(self) -> RegisterSliceParams:
        return RegisterSliceParams(bits=F24.bits)

    @property
    def results_after(self) -> int:
        """Cycles from a tile's last step taken to its first result offered to the queue."""
        return 1 + self.lane(1).latency + 1

    @property
    def output_after(self) -> int:
        """Cycles from a result leaving the queue to y offered."""
        return self.scaler.latency + self.output.latency

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t_tiles, n_tiles, steps = self._tiles(bounds)
        T, N = self.t_lanes, self.n_lanes
        tiles, each = (n_tiles, t_tiles), (n_tiles, t_tiles, T, N)
        halves = 2 if self._wide(bounds) else 1
        weight = f"i{WEIGHT_BITS[bounds['format']]}"
        k = K_LANES // halves
        ports = {
            "i_x": ITensor((T, K_LANES), "mxi8s", (*tiles, steps), (1, T, K_LANES), ((1,), (2,))),
            "i_e": ITensor((1,), f"i{EXPONENT_BITS}", each, (1, T, 1, 1), ((1, 2),)),
            "i_w": ITensor((N, k), weight, (*tiles, steps * halves), (N, 1, k), ((0,), (2,))),
            "i_r": ITensor((1,), "f24", each, (N, 1, 1, 1), ((0, 3),)),
        }
        if bounds["grouped"]:
            again = self.group // K_LANES
            trips = (*tiles, steps // again, again)
            shape = (N, 1, 1 + self.minimum)
            ports["i_s"] = ITensor(shape, f"i{self.scale_bits}", trips, (N, 1, 1, 1), ((0,), (2,), ()))
        return ports

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t_tiles, n_tiles, _ = self._tiles(bounds)
        T, N = self.t_lanes, self.n_lanes
        return {"o_y": ITensor((1, 1), "f24", (n_tiles, t_tiles, T, N), (N, T, 1, 1), ((1, 2), (0, 3)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.issue.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t_tiles, n_tiles, steps = self._tiles(bounds)
        values = {"n_tiles": n_tiles, "t_tiles": t_tiles, "k_steps": steps}
        if len(self.formats) == 2:
            values["wide"] = int(bounds["format"] == "w8")
        if self.scale_bits:
            values["grouped"] = int(bounds["grouped"])
        return values

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        sums = accumulate(inputs["i_x"], inputs["i_w"], inputs["i_s"] if bounds["grouped"] else None)
        y = self.scaler.golden(sums, inputs["i_r"][None, :], inputs["i_e"][:, None])
        return {"o_y": y.astype(np.float32)}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        first, last = (int(curves["o_y"].cycles()[end]) for end in (0, -1))
        return Cost(
            resources=self.resources,
            ii=1.0,
            latency=first - int(curves["i_w"].cycles()[0]),
            cycles=last + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        t_tiles, n_tiles, steps = self._tiles(bounds)
        tiles = t_tiles * n_tiles
        halves = 2 if self._wide(bounds) else 1
        busy = steps * halves
        period = max(busy, self.tile_results)
        start = 1 + period - busy
        result = start + busy - 1 + self.results_after + self.queue(2).latency
        operand = Curve.nest(start + halves - 1, (tiles, period), (steps, halves))
        factor = Curve.nest(result, (tiles, period), (self.tile_results, 1))
        curves = {
            "i_x": operand,
            "i_w": Curve.nest(start, (tiles, period), (busy, 1)),
            "i_e": factor,
            "i_r": factor,
            "o_y": Curve.nest(result + self.output_after, (tiles, period), (self.tile_results, 1)),
        }
        return {**curves, "i_s": operand} if bounds["grouped"] else curves

    @cached_property
    def resources(self) -> Resources:
        return Resources(lut=0, ff=0)

    def build(self) -> "Column":
        return Column(self)

    def _wide(self, bounds: Bounds) -> bool:
        return bounds["format"] == "w8" and "w4" in self.formats

    def _tiles(self, bounds: Bounds) -> tuple[int, int, int]:
        """t tiles, n tiles, k steps; ValueError when the column cannot run these bounds."""
        if bounds["format"] not in self.formats:
            raise ValueError(f"format is {bounds['format']!r}; the column has {', '.join(self.formats)}")
        if bounds["grouped"] and not self.scale_bits:
            raise ValueError("grouped is True; the column is built without group scales")
        k_unit = self.group if bounds["grouped"] else K_LANES
        tiles = []
        for name, unit, most in (
            ("t", self.t_lanes, self.max_t),
            ("n", self.n_lanes, self.max_n),
            ("k", k_unit, self.max_k),
        ):
            if not 1 <= bounds[name] <= most or bounds[name] % unit:
                raise ValueError(
                    f"{name} is {bounds[name]}; the column takes multiples of {unit} up to {most}"
                )
            tiles.append(bounds[name] // unit)
        return tiles[0], tiles[1], bounds["k"] // K_LANES


def accumulate(x: ndarray, weights: ndarray, scales: ndarray | None) -> ndarray:
    """The exact sums [T, N] (int64) of activations [T, K] (formats.MX) and integer weights [N, K].

    scales: [N, K / group, 1 or 2] integers, the second ones minimums; None for weights without them.
    Raises ValueError for a code of -128, a shift above 16 or codes other than 0 at a shift of 16.
    """
    (T, K), (N, _) = x.shape, weights.shape
    groups = K // K_LANES
    codes = x["code"].reshape(T, groups, K_LANES)
    shifts = x["shift"].reshape(T, groups, K_LANES)[:, :, 0].astype(np.int64)
    if (codes == -128).any():
        raise ValueError("a code of the activations is -128; -127 to 127 are allowed")
    if (shifts > formats.MX_MAX_SHIFT).any():
        raise ValueError(f"a shift of the activations is {shifts.max()}; 0 to 16 are allowed")
    if codes[shifts == formats.MX_MAX_SHIFT].any():
        raise ValueError("codes of the activations are not all 0 in a group whose shift is 16")
    total = np.zeros((T, N), np.int64)
    for g in range(groups):
        part = codes[:, g].astype(np.float32)
        # at most 32 * 127 * 128 < 2^24: exact in float32
        dots = (part @ weights[:, g * K_LANES : (g + 1) * K_LANES].T.astype(np.float32)).astype(np.int64)
        if scales is not None:
            group = scales[:, g * scales.shape[1] // groups].astype(np.int64)
            dots *= group[:, 0]
            if group.shape[1] == 2:
                dots += codes[:, g].sum(1, dtype=np.int64)[:, None] * group[:, 1]
        total += dots << np.maximum(15 - shifts[:, g], 0)[:, None]
    return total


class Column(wiring.Component):
    """i_x, i_e, i_w, i_r[, i_s] -> o_y."""

    def __init__(self, params: ColumnParams) -> None:
        self.params = p = params
        bounds = {"t": p.max_t, "k": p.max_k, "n": p.max_n, "format": p.formats[0]}
        bounds["grouped"] = p.scale_bits > 0
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(p.descriptor_fields())),
                **{port: In(signature(itensor)) for port, itensor in p.inputs(bounds).items()},
                **{port: Out(signature(itensor)) for port, itensor in p.outputs(bounds).items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        m.submodules.issue = issue = Shared(p.issue)
        wiring.connect(m, wiring.flipped(self.i_descriptor), issue.i_descriptor)
        for port in "xws":
            if hasattr(self, f"i_{port}"):
                operand = getattr(self, f"i_{port}")
                m.d.comb += getattr(issue, f"{port}_valid").eq(operand.valid)
                m.d.comb += operand.ready.eq(getattr(issue, f"{port}_ready"))
        accumulators, done = self._lanes(m, issue)

        results = Signal(len(accumulators), reset_less=True)
        left = Signal(range(p.tile_results + 1))
        m.submodules.queue = queue = Shared(p.queue(p.issue.depth))
        m.d.comb += [queue.i.payload.eq(results[: p.accumulator_bits]), queue.i.valid.eq(left != 0)]
        with m.If(done):
            m.d.sync += [results.eq(accumulators), left.eq(p.tile_results)]
        with m.Elif(left != 0):
            m.d.sync += [results.eq(results >> p.accumulator_bits), left.eq(left - 1)]

        m.submodules.scaler = scaler = Shared(p.scaler)
        m.submodules.output = output = Shared(p.output)
        wiring.connect(m, output.o, wiring.flipped(self.o_y))
        valid = Signal(p.scaler.latency)
        move = Signal()
        m.d.comb += [
            scaler.enable.eq(output.i.ready | ~valid[-1]),
            move.eq(scaler.enable & queue.o.valid & self.i_r.valid & self.i_e.valid),
            *(operand.ready.eq(move) for operand in (queue.o, self.i_r, self.i_e)),
            issue.returned.eq(move),
            scaler.acc.eq(queue.o.payload.as_signed()),
            scaler.scale.eq(self.i_r.payload),
            scaler.exponent.eq(self.i_e.payload.as_signed()),
            output.i.payload.eq(scaler.o),
            output.i.valid.eq(valid[-1]),
        ]
        with m.If(scaler.enable):
            m.d.sync += valid.eq(Cat(move, valid))
        return m

    def _lanes(self, m: Module, issue: Any) -> tuple[Any, Any]:
        """Accumulators of a tile, token by token, and the cycle in which they are final."""
        p = self.params
        lane = p.lane(1)
        marks = Signal(1 + lane.latency)  # the last step of a tile on its way
        m.d.sync += marks.eq(Cat(issue.issue & issue.last, marks))
        valid = delayed(m, issue.issue, 1 + lane.shift_delay)
        first = delayed(m, issue.first, 1 + lane.shift_delay)
        weights = self._weights(m, issue)
        pairs = [range(n, min(n + 2, p.n_lanes)) for n in range(0, p.n_lanes, 2)]
        packed = [self._packed(m, [weights[n] for n in rows]) for rows in pairs]
        scales = [delayed(m, part, 1 + lane.scale_delay) for part in self._scales(issue)]
        accumulators = []
        for t in range(p.t_lanes):
            row = self.i_x.payload.word_select(t, formats.token_bits("mxi8s", (K_LANES,)))
            codes = registered(m, row[: 8 * K_LANES])
            shift = delayed(m, row[8 * K_LANES :][:4], 1 + lane.shift_delay)
            total = delayed(m, row[8 * K_LANES + 8 :][:SUM_BITS], 1 + lane.scale_delay)
            for rows, (low, high) in zip(pairs, packed, strict=True):
                dot = Shared(p.lane(len(rows)))
                m.submodules[f"lane_{t}_{rows.start}"] = dot
                m.d.comb += [
                    dot.codes.eq(codes),
                    dot.low.eq(low),
                    dot.shift.eq(~shift),  # 15 - d
                    dot.valid.eq(valid),
                    dot.first.eq(first),
                ]
                if high is not None:
                    m.d.comb += dot.high.eq(high)
                if p.scale_bits:
                    m.d.comb += dot.scales.eq(Cat(scales[n][: p.scale_bits] for n in rows))
                if p.minimum:
                    m.d.comb += dot.minimums.eq(Cat(scales[n][p.scale_bits :] for n in rows))
                    m.d.comb += dot.sum.eq(total)
                accumulators.append(dot.accumulators)
        return Cat(accumulators), marks[-1]

    def _weights(self, m: Module, issue: Any) -> list[list[Value]]:
        """The 32 weights of each row, in the cycle of issue."""
        p = self.params
        payload = self.i_w.payload
        rows = [range(n * K_LANES, (n + 1) * K_LANES) for n in range(p.n_lanes)]
        if len(p.formats) == 1:
            return [[payload.word_select(j, p.weight_bits).as_signed() for j in row] for row in rows]
        before = Signal(len(payload), reset_less=True)  # the first token of a wide step
        with m.If(~issue.half):
            m.d.sync += before.eq(payload)
        half = K_LANES // 2
        weights = []
        for n, row in enumerate(rows):
            wide = [source.word_select(n * half + j, 8) for source in (before, payload) for j in range(half)]
            narrow = [payload.word_select(j, 4) for j in row]
            weights.append(
                [
                    Mux(issue.wide, w, Cat(v, v[-1].replicate(4))).as_signed()
                    for w, v in zip(wide, narrow, strict=True)
                ]
            )
        return weights

    def _scales(self, issue: Any) -> list[Value]:
        """Scale and, above it, minimum of each row, in the cycle of issue."""
        p = self.params
        if not p.scale_bits:
            return []
        bits = p.scale_bits * (1 + p.minimum)
        return [Mux(issue.grouped, self.i_s.payload.word_select(n, bits), 1) for n in range(p.n_lanes)]

    def _packed(self, m: Module, rows: list[list[Value]]) -> tuple[Value, Value | None]:
        """One or two rows of weights as a lane takes them, a cycle after issue."""
        low = registered(m, Cat(rows[0]))
        if len(rows) == 1:
            return low, None
        return low, registered(m, Cat(pack_weights(a, b) for a, b in zip(*rows, strict=True)))
