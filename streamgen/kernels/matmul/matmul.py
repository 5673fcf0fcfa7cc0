"""One column of a matmul: activations in groups of 32 times 4- or 8-bit weights, in exact integers.

    dot[t,n,g]  = sum of code[t,k] * weight[n,k]           k in group g of 32, weight: `WeightFormat.integers`
    sum[t,g]    = sum of code[t,k]
    term[t,n,g] = (scale[n,h] * dot + minimum[n,h] * sum) * f[t,g] * 2^(15 - d[t,g])
    y[t,n]      = f24(f24(sum over g of term) * r[n]) * 2^(E[t] - 15) [+ b[n]]

h is the weights' group of g. A shift d of 16 marks a group of zeros, whose term is 0. Without group scales
`scale` is 1 and there is no minimum. A column with `bias` adds one to each row, rounded once more; -0
changes no value. A matmul of C columns gives column c the output rows n with n % C == c; a column knows only
its own.

Order, outermost first (n_lanes rows by t_lanes tokens make a tile, a k step is 32):

    i_x (t_lanes, 32)     n-tile*, t-tile, k                i_e (1,)  n-tile*, t-tile, t-lane, n-lane*
    i_w (n_lanes, 32)     n-tile, t-tile*, k                i_r (1,)  n-tile, t-tile*, t-lane*, n-lane
    i_s (n_lanes, 1, S)   n-tile, t-tile*, group, k-in-group*         (* sends the same again; S = 1 or 2)
    o_y (1, 1)            n-tile, t-tile, t-lane, n-lane    i_r (1, 2), r and b, of a column with bias

A column built for both weight formats has i_w as wide as 4-bit weights need, and takes 8-bit ones as tokens
(n_lanes, 16), two a k step, the first of them with x. 8-bit weights are never grouped; weights that are not
use no i_s.

Time. A tile takes max(cycles of its k steps, t_lanes * n_lanes) cycles, the second being the pace of o_y.
Lanes (`dot`) and accumulators never wait; `issue` takes operands when their results will have room.

Width of an accumulator. With codes |c| <= 127, f <= 8, 8-bit weights |w| <= 128, narrow ones |w| <= G (8 in
w4, `WeightFormat.greatest`) and their |scale| and |minimum| <= 2^(scale_bits-1), a term is at most
32 * 127 * 8 * 2^15 times 128 or (G + 1) * 2^(scale_bits-1), and a sum at most K / 32 times that, in any order
and at any time. `accumulator_bits` holds that bound; a ValueError says where more than 64 are needed. 48 bits
are enough for 8-bit scales up to K = 3,667. Weights are known when hardware is built, and rows reach a third
of the bound: a column is told what a row of its weights sums up to, where that saves the second DSP of long
sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.arith.pipeline import delayed
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.dot import CHAIN, DSP_SUM, K_LANES, LONGEST, DecodedDotParams, DotParams
from streamgen.kernels.matmul.issue import IssueParams
from streamgen.kernels.matmul.operands import OperandsParams
from streamgen.kernels.matmul.results import EXPONENT_BITS, ResultsParams
from streamgen.numbers import formats
from streamgen.numbers.quantisation import IntegerWeight, row_sum
from streamgen.numbers.weights import BYTES, FORMATS

GROUPS = sorted({group for form in FORMATS.values() for group in form.groups})
LARGEST_ACTIVATION = 127 * formats.MX_MAX_FACTOR << 15


@dataclass(frozen=True, kw_only=True)
class ColumnParams:
    """The parameters of a column.

    t_lanes, n_lanes: tokens and output rows of a tile; even n_lanes share multipliers in pairs. formats: of
    weights: one, or one of narrow codes and "w8"; with two, the descriptor chooses. group: weights that share
    a scale, 32, 64 or 128. scale_bits: 8 to 16, or 0 for a column without group scales. minimum: a minimum
    beside each scale. bias: a bias beside each row scale. max_k, max_n, max_t: the largest bounds. max_k_w8:
    the largest k of 8-bit weights in a column of both formats; None: max_k. row_sum: the largest sum of
    magnitudes of a row's integer weights, with scales and minimums; None: not known.

    Bounds: {"t", "k", "n": extents, padded to whole tiles and groups, "format": of the weights, "grouped":
    whether the weights have group scales}.
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
    max_k_w8: int | None = None
    row_sum: int | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("t_lanes", "n_lanes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a column must be at least 1, not {getattr(self, name)}")
        narrow, wide = self.formats[:1], self.formats[1:]
        if (
            not {*self.formats} <= FORMATS.keys()
            or not narrow
            or (wide and (wide != (BYTES.name,) or not FORMATS[narrow[0]].is_narrow))
        ):
            raise ValueError(
                f"formats of a column must be one of {', '.join(FORMATS)}, or a narrow one and {BYTES.name} "
                f"in this order, not {self.formats}"
            )
        if self.group not in GROUPS:
            raise ValueError(f"group of a column must be 32, 64 or 128, not {self.group}")
        if self.scale_bits != 0 and not 8 <= self.scale_bits <= 16:
            raise ValueError(f"scale_bits of a column must be 0 or 8 to 16, not {self.scale_bits}")
        groups = FORMATS[self.formats[0]].groups
        if self.scale_bits and not groups:
            raise ValueError(
                f"scale_bits of a column is {self.scale_bits}; 8-bit weights have no group scales"
            )
        if self.scale_bits and self.group not in groups:
            raise ValueError(
                f"group of a column of {self.formats[0]} must be {', '.join(map(str, groups))}, "
                f"not {self.group}"
            )
        if self.minimum and not self.scale_bits:
            raise ValueError("minimum of a column needs group scales; scale_bits is 0")
        if self.minimum and not FORMATS[self.formats[0]].minimums:
            raise ValueError(f"minimum of a column is True; {self.formats[0]} has no minimums")
        k_unit = self.group if self.scale_bits else K_LANES
        for name, unit in (("max_k", k_unit), ("max_n", self.n_lanes), ("max_t", self.t_lanes)):
            if (value := getattr(self, name)) < 1 or value % unit:
                raise ValueError(f"{name} of a column must be a positive multiple of {unit}, not {value}")
        if self.max_k_w8 is not None:
            if not self.two_widths:
                raise ValueError("max_k_w8 of a column needs both formats")
            if not 1 <= self.max_k_w8 <= self.max_k or self.max_k_w8 % K_LANES:
                raise ValueError(
                    f"max_k_w8 of a column must be a multiple of {K_LANES} up to max_k, {self.max_k}, "
                    f"not {self.max_k_w8}"
                )
        if self.largest_sum >= 1 << 63:
            raise ValueError(f"max_k of a column is {self.max_k}: 64-bit accumulators could overflow")
        if self.max_k > LONGEST:
            raise ValueError(f"max_k of a column must be at most {LONGEST}, not {self.max_k}")

    @property
    def two_widths(self) -> bool:
        """Whether 8-bit weights come in halves, to multipliers of 4 bits."""
        return len(self.formats) == 2

    def longest(self, form: str) -> int:
        """The largest k of weights of a format."""
        return self.max_k_w8 or self.max_k if form == BYTES.name else self.max_k

    @property
    def largest_sum(self) -> int:
        """Bound of an accumulator's magnitude; see the module's docstring."""
        greatest = [FORMATS[name].greatest for name in self.formats]
        grouped = greatest[0] + self.minimum << max(self.scale_bits - 1, 0)
        weight = max(grouped, *greatest)
        row = self.max_k * weight
        return (row if self.row_sum is None else min(row, self.row_sum)) * LARGEST_ACTIVATION

    @property
    def accumulator_bits(self) -> int:
        return self.largest_sum.bit_length() + 1

    def told(self, weights: Sequence[IntegerWeight]) -> "ColumnParams":
        """The column for these weights and all with smaller sums: sums have 48 bits, if that is enough."""
        most = ((1 << DSP_SUM - 1) - 1) // LARGEST_ACTIVATION
        if self.accumulator_bits <= DSP_SUM:
            return self
        return replace(self, row_sum=max(most, row_sum(weights)))

    @property
    def tile_results(self) -> int:
        return self.t_lanes * self.n_lanes

    @property
    def multipliers(self) -> int:
        return self.tile_results * K_LANES

    def products(self, bounds: Bounds) -> int:
        """The cost; padded extents count."""
        return int(bounds["t"] * bounds["n"] * bounds["k"])

    def lane(self, rows: int) -> DotParams:
        """The lane of one token by one or two rows."""
        form = FORMATS[self.formats[0]]
        parts: dict[str, Any] = {
            "weight_bits": form.code_bits,
            "halves": self.two_widths,
            "rows": rows,
            "scale_bits": self.scale_bits,
            "minimum": self.minimum,
            "accumulator_bits": self.accumulator_bits,
        }
        if not form.multiplicands:
            return DotParams(**parts)
        return DecodedDotParams(**parts, table=form.multiplicands)

    @property
    def operands(self) -> OperandsParams:
        return OperandsParams(
            t_lanes=self.t_lanes, n_lanes=self.n_lanes, formats=self.formats, lane=self.lane(2)
        )

    @property
    def results(self) -> ResultsParams:
        return ResultsParams(
            tile_results=self.tile_results,
            accumulator_bits=self.accumulator_bits,
            ahead=self.lane(2).latency,
            bias=self.bias,
        )

    @property
    def issue(self) -> IssueParams:
        return IssueParams(
            max_n_tiles=self.max_n // self.n_lanes,
            max_t_tiles=self.max_t // self.t_lanes,
            max_k_steps=self.max_k // K_LANES,
            tile_results=self.tile_results,
            depth=self.results.depth,
            two_widths=self.two_widths,
            scaled=self.scale_bits > 0,
        )

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t_tiles, n_tiles, steps = self._tiles(bounds)
        T, N = self.t_lanes, self.n_lanes
        tiles, each = (n_tiles, t_tiles), (n_tiles, t_tiles, T, N)
        halves = 2 if self._wide(bounds) else 1
        weight = f"i{FORMATS[bounds['format']].code_bits}"
        k = K_LANES // halves
        ports = {
            "i_x": ITensor((T, K_LANES), "mxi8s", (*tiles, steps), (1, T, K_LANES), ((1,), (2,))),
            "i_e": ITensor((1,), f"i{EXPONENT_BITS}", each, (1, T, 1, 1), ((1, 2),)),
            "i_w": ITensor((N, k), weight, (*tiles, steps * halves), (N, 1, k), ((0,), (2,))),
            "i_r": ITensor((1,), "f24", each, (N, 1, 1, 1), ((0, 3),)),
        }
        if self.bias:
            ports["i_r"] = ITensor((1, 2), "f24", each, (N, 1, 1, 1), ((0, 3), ()))
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
        if self.two_widths:
            values["wide"] = int(bounds["format"] == BYTES.name)
        if self.scale_bits:
            values["grouped"] = int(bounds["grouped"])
        return values

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        weights = FORMATS[bounds["format"]].integers(inputs["i_w"])
        sums = accumulate(inputs["i_x"], weights, inputs["i_s"] if bounds["grouped"] else None)
        if np.abs(sums).max(initial=0) > self.largest_sum:
            raise ValueError(f"a sum is {np.abs(sums).max()}; the column was told of {self.largest_sum}")
        rows = inputs["i_r"].reshape(len(inputs["i_w"]), -1)
        y = self.results.scaler.golden(sums, rows[None, :, 0], inputs["i_e"][:, None])
        if self.bias:
            y = self.results.adder.golden(y, rows[None, :, 1])
        return {"o_y": y.astype(np.float32)}

    def cost(self, bounds: Bounds) -> Cost:
        t_tiles, n_tiles, _ = self._tiles(bounds)
        start, busy, period = self._pace(bounds)
        first = start + busy - 1 + self._delay + self.results.latency
        return Cost(
            resources=self.resources,
            ii=1.0,
            latency=first - start,
            cycles=first + (t_tiles * n_tiles - 1) * period + self.tile_results,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        t_tiles, n_tiles, steps = self._tiles(bounds)
        start, busy, period = self._pace(bounds)
        halves = busy // steps
        tiles = (t_tiles * n_tiles, period)
        result = start + busy - 1 + self._delay
        operand = Curve.nest(start, tiles, (steps, halves))
        factor = Curve.nest(result, tiles, (self.tile_results, 1))
        curves = {
            "i_x": operand,
            "i_w": Curve.nest(start, tiles, (busy, 1)),
            "i_e": factor,
            "i_r": factor,
            "o_y": Curve.nest(result + self.results.latency, tiles, (self.tile_results, 1)),
        }
        return {**curves, "i_s": operand} if bounds["grouped"] else curves

    def clocks(self, bounds: Bounds) -> Clocks:
        """Steps are issued when their operands are there and their results will have room; results follow."""
        t_tiles, n_tiles, steps = self._tiles(bounds)
        _, busy, _ = self._pace(bounds)
        halves, each, count = busy // steps, self.tile_results, t_tiles * n_tiles
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        issue, scale = KernelSide("issue", curves["i_w"], None), KernelSide("scale", curves["i_r"])
        send = KernelSide("send", curves["o_y"])
        weights, results, tiles = np.arange(count * busy), np.arange(count * each), np.arange(count)
        operands = weights[::halves]
        ends, free = (tiles + 1) * busy - 1, (tiles + 1) * each - 1 - self.results.depth
        stages = self.results.latency + 1
        ports = {"i_w": (issue, weights), "i_x": (issue, operands), "i_r": (scale, results)}
        ports |= {"i_e": (scale, results), "o_y": (send, results)}
        return Clocks(
            (issue, scale, send),
            ports | ({"i_s": (issue, operands)} if bounds["grouped"] else {}),
            (
                issue.to(scale, ends, tiles * each, latency=self._delay),
                scale.to(issue, free[free >= 0], ends[free >= 0]),
                scale.to(send, results, results, latency=self.results.latency),
                send.to(scale, results[:-stages], results[stages:]),
            ),
        )

    @property
    def resources(self) -> Resources:
        pairs, odd = divmod(self.n_lanes, 2)
        parts = self.issue.resources + self.operands.resources + self.results.resources
        lanes = self.lane(2).resources * pairs + self.lane(1).resources * odd
        return parts + lanes * self.t_lanes + Resources(lut=2, ff=self.lane(2).latency + 4)

    def build(self) -> "Column":
        return Column(self)

    def _wide(self, bounds: Bounds) -> bool:
        return bounds["format"] == BYTES.name and self.two_widths

    @property
    def _delay(self) -> int:
        """Cycles from the last step of a tile to its first result."""
        return self.results.ahead + self.results.taken_after

    def _pace(self, bounds: Bounds) -> tuple[int, int, int]:
        """The cycle of the first token, the cycles of a tile's steps, and the cycles from tile to tile."""
        busy = self._tiles(bounds)[2] * (2 if self._wide(bounds) else 1)
        period = max(busy, self.tile_results)
        return 1 + period - busy, busy, period

    def _tiles(self, bounds: Bounds) -> tuple[int, int, int]:
        """The number of t tiles, n tiles and k steps; ValueError if the column cannot run these bounds."""
        if bounds["format"] not in self.formats:
            raise ValueError(f"format is {bounds['format']!r}; the column has {', '.join(self.formats)}")
        if bounds["grouped"] and not (self.scale_bits and FORMATS[bounds["format"]].groups):
            raise ValueError("grouped is True; the column or the format is without group scales")
        k_unit = self.group if bounds["grouped"] else K_LANES
        tiles = []
        for name, unit, most in (
            ("t", self.t_lanes, self.max_t),
            ("n", self.n_lanes, self.max_n),
            ("k", k_unit, self.longest(bounds["format"])),
        ):
            if not 1 <= bounds[name] <= most or bounds[name] % unit:
                raise ValueError(
                    f"{name} is {bounds[name]}; the column takes multiples of {unit} up to {most}"
                )
            tiles.append(bounds[name] // unit)
        return tiles[0], tiles[1], bounds["k"] // K_LANES


def accumulate(x: ndarray, weights: ndarray, scales: ndarray | None) -> ndarray:
    """The exact sums [T, N] (int64) of activations [T, K] (formats.MX) and integer weights [N, K], decoded.

    scales: [N, K / group, 1 or 2] integers, the second ones minimums; None for weights without them.
    Raises ValueError for a code of -128, a shift above 16 or codes other than 0 at a shift of 16.
    """
    (T, K), (N, _) = x.shape, weights.shape
    groups = K // K_LANES
    codes = x["code"].reshape(T, groups, K_LANES)
    shifts, steps = (
        x[name].reshape(T, groups, K_LANES)[:, :, 0].astype(np.int64) for name in ("shift", "step")
    )
    factors = formats.MX_LEAST_FACTOR + steps << np.maximum(15 - shifts, 0)
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
        total += dots * factors[:, g, None]
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
        p, lane = self.params, self.params.lane(2)
        m.submodules.issue = issue = Shared(p.issue)
        m.submodules.operands = operands = Shared(p.operands)
        m.submodules.results = results = Shared(p.results)
        wiring.connect(m, wiring.flipped(self.i_descriptor), issue.i_descriptor)
        for port in ("i_r", "i_e"):
            wiring.connect(m, wiring.flipped(getattr(self, port)), getattr(results, port))
        wiring.connect(m, results.o_y, wiring.flipped(self.o_y))
        for name in "xws" if p.scale_bits else "xw":
            port = getattr(self, f"i_{name}")
            m.d.comb += [
                getattr(issue, f"{name}_valid").eq(port.valid),
                port.ready.eq(getattr(issue, f"{name}_ready")),
                getattr(operands, name).eq(port.payload),
            ]
        m.d.comb += [operands.half.eq(issue.half), operands.wide.eq(issue.wide)]
        if p.scale_bits:
            m.d.comb += operands.grouped.eq(issue.grouped)

        started = Signal(lane.latency)  # steps that end a tile, on their way through the lanes
        m.d.sync += started.eq(Cat(issue.last, started))
        valid = delayed(m, issue.issue, lane.power_delay)
        first = delayed(m, issue.first, lane.power_delay)
        accumulators = []
        for t in range(p.t_lanes):
            for n in range(0, p.n_lanes, 2):
                rows = min(2, p.n_lanes - n)
                m.submodules[f"lane_{t}_{n}"] = dot = Shared(p.lane(rows))
                m.d.comb += [dot.valid.eq(valid), dot.first.eq(first)]
                # port of the lane, vector of operands, place in it
                taken = [("far", "far", t), ("power", "powers", t)] + [("sum", "sums", t)] * p.minimum
                for k in range(CHAIN):
                    taken += [(f"codes_{k}", f"codes_{k}", t), (f"low_{k}", f"low_{k}", n // 2)]
                    taken += [(f"high_{k}", f"high_{k}", n // 2)] * (rows == 2)
                if p.two_widths:
                    m.d.comb += dot.wide.eq(issue.wide)
                for target, source, place in taken:
                    port = getattr(dot, target)
                    m.d.comb += port.eq(getattr(operands, source).word_select(place, len(port)))
                for name in ("scales",) * bool(p.scale_bits) + ("minimums",) * p.minimum:
                    part = getattr(operands, name)[n * p.scale_bits :]
                    m.d.comb += getattr(dot, name).eq(part[: rows * p.scale_bits])
                accumulators.append(dot.accumulators)
        m.d.comb += [
            results.accumulators.eq(Cat(accumulators)),
            results.load.eq(started[-1]),
            issue.returned.eq(results.returned),
        ]
        return m
