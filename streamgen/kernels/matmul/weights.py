"""The weights of a matmul column: beats of memory become its codes, group scales and row scales.

    i (1, 64) bytes, in the order of `artifact.weight_layout`  ->  o_w, o_s, o_r, as the column reads them

A beat goes to whoever lacks tokens. A token of codes and the scales of its rows make a word, words lie in a
ring (`replay`) that holds the tile which is sent token after token of the activations, and what runs ahead of
it; row scales have a ring of their own (`row_scales`). So each beat is read once.

The last tile of a matmul may have fewer rows than the others. Its tokens of codes then have fewer beats
(`UnevenWeightsParams`), and the codes of the rows that are not there are 0.

Time. A beat in every cycle; a token of codes that needs none takes a cycle, too. When the rings are full,
beats wait (`weight_times`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.artifact.packing import BEAT_BITS, MemoryLayout
from streamgen.artifact.weight_layout import WeightLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.dot import K_LANES
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.replay import ReplayParams
from streamgen.kernels.matmul.row_scales import RowScalesParams
from streamgen.kernels.matmul.weight_times import WeightTimes, times_of
from streamgen.numbers.weights import BYTES, FORMATS

_LUTRAM_DEPTH, _BLOCK_DEPTH = 64, 512  # words of a ring: of LUT memory at most, of block RAM at least
_AHEAD = 4  # descriptors whose words are still to be read


@dataclass(frozen=True, kw_only=True)
class WeightsParams:
    """column: the params of the column. Bounds: those of the column, and "used": rows that are not padding (n
    unless given)."""

    column: ColumnParams
    uneven: ClassVar[bool] = False
    """Whether tokens of codes may have fewer beats in the last tile."""
    moves: ClassVar[bool] = True
    is_of_column: ClassVar[bool] = True
    link_depth: ClassVar[int] = 1

    @property
    def codes(self) -> MemoryLayout:
        """The layout of tokens of codes in memory."""
        form = FORMATS[self.column.formats[0]]
        return MemoryLayout(f"i{form.code_bits}", (self.column.n_lanes, K_LANES))

    @property
    def scales(self) -> MemoryLayout | None:
        """The layout of tokens of group scales in memory."""
        p = self.column
        return MemoryLayout(f"i{p.scale_bits}", (p.n_lanes, 1, 1 + p.minimum)) if p.scale_bits else None

    @property
    def code_bits(self) -> int:
        return self.column.operands.token_bits

    @property
    def scale_bits(self) -> int:
        return self.column.n_lanes * self.column.operands.scale_bits

    @property
    def max_words(self) -> int:
        """Tokens of codes of a tile; 8-bit codes come in halves if the column also has 4-bit codes."""
        p = self.column
        return max(p.max_k, 2 * p.longest(BYTES.name) if p.two_widths else 0) // K_LANES

    @property
    def passes(self) -> int:
        """The most times that a tile is sent."""
        return self.column.max_t // self.column.t_lanes

    @property
    def replay(self) -> ReplayParams:
        """The ring of words, with an eighth of a tile to run ahead, or nothing if tiles are sent once. It is
        made of LUT memory if that holds a tile of `max_k` in all formats."""

        def depth(words: int) -> int:
            return max(32, 1 << ceil_log2(words + -(-words // 8) if self.passes > 1 else 1))

        large = depth(self.column.max_k // K_LANES * len(self.column.formats)) > _LUTRAM_DEPTH
        return ReplayParams(
            bits=self.code_bits + self.scale_bits,
            depth=max(depth(self.max_words), _BLOCK_DEPTH if large else 1),
            max_tiles=self.column.max_n // self.column.n_lanes,
            max_passes=self.passes,
            max_words=self.max_words,
        )

    @property
    def row_scales(self) -> RowScalesParams:
        """The ring of row scales."""
        return RowScalesParams(
            tile_rows=self.column.n_lanes,
            max_tiles=self.column.max_n // self.column.n_lanes,
            max_passes=self.column.max_t,
            bias=self.column.bias,
        )

    @property
    def held_bits(self) -> int:
        """Of weights that are sent several times."""
        return self.replay.bits * self.replay.depth if self.passes > 1 else 0

    def layout(self, bounds: Bounds) -> WeightLayout:
        """What is read of memory."""
        streams = {port.removeprefix("o_"): itensor for port, itensor in self.outputs(bounds).items()}
        return WeightLayout.of(**streams, last_beats=self._last_beats(bounds, streams["w"]))

    def _last_beats(self, bounds: Bounds, codes: ITensor) -> int | None:
        """Beats of a token of codes in the last tile, if they are fewer than in the others."""
        rows, n = self.column.n_lanes, bounds["n"]
        used = bounds.get("used", n)
        if not n - rows < used <= n:
            raise ValueError(
                f"used is {used}; the last of {n // rows} tiles of {rows} rows must have some of them"
            )
        layout = MemoryLayout.of(codes)
        bits = layout.element_slot * (layout.elements // rows)
        beats = -(-(used - n + rows) * bits // BEAT_BITS)
        if beats == layout.beats_per_token:
            return None
        if not self.uneven:
            raise ValueError(f"used is {used} of {n} rows; the weights are built for whole tiles")
        return beats

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self.layout(bounds).order}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        wanted = self.column.inputs(bounds)
        return {f"o_{name}": wanted[f"i_{name}"] for name in "wsr" if f"i_{name}" in wanted}

    def descriptor_fields(self) -> tuple[Field, ...]:
        walk = self.replay.walk
        tiles, passes, words = walk.fields
        grouped = (Field("grouped", 1),) if self.scale_bits else ()
        last = (Field("last_part", self._part_bits),) if self.uneven else ()
        return (tiles, passes, words, *grouped, *last)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        layout = self.layout(bounds)
        values = {
            "tiles": layout.tiles,
            "passes": bounds["t"] // self.column.t_lanes,
            "words": layout.words,
        }
        if self.scale_bits:
            values["grouped"] = int(bounds["grouped"])
        if self.uneven:
            values["last_part"] = (layout.last_beats or self.codes.beats_per_token) - 1
        return values

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`i`: the beats, uint8 [beats, 64]."""
        arrays = self.layout(bounds).unpack(inputs["i"])
        return {f"o_{name}": array for name, array in arrays.items()}

    def times(self, bounds: Bounds) -> WeightTimes:
        """The cycle of each token, if nothing stalls."""
        timed = {name: value for name, value in bounds.items() if name != "offset"}
        return _times(self, tuple(sorted(timed.items())))

    def cost(self, bounds: Bounds) -> Cost:
        times = self.times(bounds)
        ports = times.ports
        first = min(int(ports[port][0]) for port in ports if port != "i")
        last = max(int(ports[port][-1]) for port in ports if port != "i")
        busiest = max(ports.values(), key=len)
        ii = (busiest[-1] - busiest[0]) / max(1, len(busiest) - 1)
        return Cost(
            resources=self.resources,
            ii=max(1.0, float(ii)),
            latency=first - int(ports["i"][0]),
            cycles=last + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return self.times(bounds).curves

    def clocks(self, bounds: Bounds) -> Clocks:
        return self.times(bounds).clocks

    @property
    def resources(self) -> Resources:
        parts = self.replay.resources + self.row_scales.resources
        for ring in (self.replay, self.row_scales):
            parts += self._waiting(ring.descriptor_fields()).resources
        held = Resources(lut=0, ff=BEAT_BITS * self.codes.beats_per_token)
        several = self.codes.tokens_per_beat
        if several > 1:
            held += Resources(lut=self.code_bits * -(-several // 4), ff=0)
        if self.scales is not None:
            choice = -(-self.scales.tokens_per_beat // 4) if self.scales.tokens_per_beat > 1 else 0
            held += Resources(lut=self.scale_bits * choice, ff=BEAT_BITS * self.scales.beats_per_token)
        counted = self.replay.walk.words_bits + self.replay.walk.tiles_bits
        if self.uneven:
            held += Resources(lut=2 * self._part_bits + 2, ff=2 * self._part_bits)
        return parts + held + Resources(lut=4 * counted + 60, ff=3 * counted + 30)

    @property
    def _part_bits(self) -> int:
        """Bits of the number of a beat of a token of codes."""
        return (self.codes.beats_per_token - 1).bit_length()

    def _waiting(self, fields: tuple[Field, ...]) -> QueueParams:
        """Descriptors for a ring."""
        return QueueParams(bits=sum(field.bits for field in fields), depth=_AHEAD)

    def build(self) -> "Weights":
        return Weights(self)


@dataclass(frozen=True, kw_only=True)
class UnevenWeightsParams(WeightsParams):
    """Weights whose tokens of codes may have fewer beats in the last tile.

    Raises ValueError for tokens of one beat.
    """

    uneven: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.codes.beats_per_token == 1:
            rows = self.column.n_lanes
            raise ValueError(f"a token of {rows} rows of the weights has one beat and cannot have fewer")


@lru_cache(maxsize=64)
def _times(params: WeightsParams, key: tuple[tuple[str, Any], ...]) -> WeightTimes:
    """Times of the bounds that `key` lists."""
    bounds = dict(key)
    return times_of(
        params.layout(bounds),
        params.replay,
        params.row_scales,
        passes=bounds["t"] // params.column.t_lanes,
        tokens=bounds["t"] // params.column.t_lanes * params.column.t_lanes,
        grouped=bool(bounds["grouped"]),
    )


class Weights(wiring.Component):
    """i -> o_w, o_r[, o_s]."""

    def __init__(self, params: WeightsParams) -> None:
        self.params = p = params
        column = p.column
        bounds = {"t": column.max_t, "k": column.max_k, "n": column.max_n, "format": column.formats[0]}
        outputs = p.outputs({**bounds, "grouped": column.scale_bits > 0})
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(p.descriptor_fields())),
                "i": In(stream.Signature(BEAT_BITS)),
                **{port: Out(signature(itensor)) for port, itensor in outputs.items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        m.submodules.replay = replay = p.replay.build()
        m.submodules.row_scales = rows = p.row_scales.build()
        m.d.comb += [
            rows.data.eq(self.i.payload),
            self.o_r.valid.eq(rows.o.valid),
            self.o_r.payload.eq(rows.o.payload),
            rows.o.ready.eq(self.o_r.ready),
        ]
        descriptor = self.i_descriptor
        fields = descriptor.payload
        grouped = fields.grouped if p.scale_bits else Const(0)
        passes = fields.passes * p.column.t_lanes
        active = Signal()
        heads = []
        for name, ring, params, values in (
            ("words", replay, p.replay, Cat(fields.tiles, fields.passes, fields.words, grouped)),
            ("rows", rows, p.row_scales, Cat(fields.tiles, passes[: p.row_scales.walk.passes_bits])),
        ):
            m.submodules[f"{name}_waiting"] = waiting = Queue(p._waiting(params.descriptor_fields()))
            m.d.comb += [
                waiting.i.payload.eq(values),
                ring.i_descriptor.valid.eq(waiting.o.valid),
                ring.i_descriptor.payload.as_value().eq(waiting.o.payload),
                waiting.o.ready.eq(ring.i_descriptor.ready),
            ]
            heads.append(waiting.i)
        take = Signal()
        m.d.comb += [
            descriptor.ready.eq(~active & heads[0].ready & heads[1].ready),
            take.eq(descriptor.valid & descriptor.ready),
            *(head.valid.eq(take) for head in heads),
        ]
        self._fill(m, replay, rows, take, active, grouped)
        self._send(m, replay)
        return m

    def _fill(self, m: Module, replay: Any, rows: Any, take: Signal, active: Signal, grouped: Any) -> None:
        """Send beats to the part that lacks them; make words of the tokens."""
        p = self.params
        fields = self.i_descriptor.payload
        column = p.column
        words, word_left = (
            Signal(p.replay.walk.words_bits, name=n, reset_less=True) for n in ("words", "word_left")
        )
        tile_left = Signal(p.replay.walk.tiles_bits, reset_less=True)
        word_last, tile_last = Signal(reset_less=True), Signal(reset_less=True)
        lacks = Signal(
            range(-column.n_lanes, p.row_scales.beat_rows + 1), reset_less=True
        )  # rows beyond this tile's; below 0: some lack
        need_r, need_s = lacks[-1], Signal(reset_less=True) if p.scale_bits else Const(0)
        need_w: Any = Signal(reset_less=True) if p.codes.tokens_per_beat > 1 else Const(1)
        slot_r, slot_s, slot_w, go, step, commit = (
            Signal(name=n) for n in ("slot_r", "slot_s", "slot_w", "go", "step", "commit")
        )
        m.d.comb += [
            slot_r.eq(need_r),
            slot_s.eq(~need_r & need_s),
            slot_w.eq(~need_r & ~need_s & need_w),
            go.eq(active & replay.room & (rows.room | ~need_r)),
            self.i.ready.eq(go & (need_r | need_s | need_w)),
            step.eq(self.i.valid & self.i.ready),
            rows.take.eq(step & slot_r),
            replay.commit.eq(commit),
        ]
        with m.If(rows.take):
            m.d.sync += lacks.eq(lacks + p.row_scales.beat_rows)
        final: Any = p.codes.beats_per_token - 1  # the part that ends a token of this tile
        if p.uneven:
            final, last_part = (
                Signal.like(fields.last_part, name=n, reset_less=True) for n in ("final", "last_part")
            )
            with m.If(take):
                m.d.sync += [
                    last_part.eq(fields.last_part),
                    final.eq(Mux(fields.tiles == 1, fields.last_part, p.codes.beats_per_token - 1)),
                ]
            with m.Elif(commit & word_last & (tile_left == 2)):
                m.d.sync += final.eq(last_part)
        complete = self._hold(
            m, replay, step & slot_w, step & slot_s, commit, need_s, need_w, grouped, take, final
        )
        m.d.comb += commit.eq(go & ~need_r & ~need_s & (~need_w | (self.i.valid & complete)))
        m.d.sync += replay.write.eq(commit)
        with m.If(take):
            m.d.sync += [
                active.eq(1),
                words.eq(fields.words),
                word_left.eq(fields.words),
                word_last.eq(fields.words == 1),
                tile_left.eq(fields.tiles),
                tile_last.eq(fields.tiles == 1),
                lacks.eq(-column.n_lanes),
            ]
        with m.Elif(commit):
            m.d.sync += [
                word_left.eq(Mux(word_last, words, word_left - 1)),
                word_last.eq(Mux(word_last, words == 1, word_left == 2)),
            ]
            with m.If(word_last):
                m.d.sync += [
                    lacks.eq(lacks - column.n_lanes),
                    tile_left.eq(tile_left - 1),
                    tile_last.eq(tile_left == 2),
                    active.eq(~tile_last),
                ]

    def _hold(
        self,
        m: Module,
        replay: Any,
        codes: Any,
        scales: Any,
        commit: Signal,
        need_s: Signal,
        need_w: Signal,
        grouped: Any,
        take: Signal,
        final: Any,
    ) -> Any:
        """The registers of codes and scales, the requests for more, and the word. final: the part that ends a
        token. Returns whether a beat of codes is the last that its token needs."""
        p = self.params
        several, parts = p.codes.tokens_per_beat, p.codes.beats_per_token
        held = [Signal(BEAT_BITS, name=f"codes_{k}", reset_less=True) for k in range(parts)]
        part = Signal(range(parts)) if parts > 1 else Const(0)
        for k, register in enumerate(held):
            with m.If(codes & (part == k)):
                m.d.sync += register.eq(self.i.payload)
            if p.uneven and k:  # the beat may not come
                with m.If(codes & (part == 0)):
                    m.d.sync += register.eq(0)
        if parts > 1:
            with m.If(codes):
                m.d.sync += part.eq(Mux(part == final, 0, part + 1))
        code: Any = Cat(held)[: p.code_bits]
        if several > 1:
            place, sent = (Signal(range(several), name=n, reset_less=True) for n in ("place", "made"))
            with m.If(take):
                m.d.sync += [need_w.eq(1), place.eq(0)]
            with m.Elif(commit):
                m.d.sync += [place.eq(place + 1), sent.eq(place), need_w.eq(place == several - 1)]
            code = held[0].word_select(sent, p.codes.token_slot)[: p.code_bits]
        m.d.comb += replay.data[: p.code_bits].eq(code)
        if p.scales is not None:
            self._hold_scales(m, replay, scales, commit, need_s, grouped, take)
        return part == final

    def _hold_scales(
        self, m: Module, replay: Any, scales: Any, commit: Signal, need_s: Signal, grouped: Any, take: Signal
    ) -> None:
        p = self.params
        assert p.scales is not None
        several, parts = p.scales.tokens_per_beat, p.scales.beats_per_token
        again = p.column.group // K_LANES
        held = [Signal(BEAT_BITS, name=f"scales_{k}", reset_less=True) for k in range(parts)]
        part = Signal(range(parts)) if parts > 1 else Const(0)
        for k, register in enumerate(held):
            with m.If(scales & (part == k)):
                m.d.sync += register.eq(self.i.payload)
        if parts > 1:
            with m.If(scales):
                m.d.sync += part.eq(Mux(part == parts - 1, 0, part + 1))
        served = several * again  # words of the scales that are held, a power of two
        groups = Signal(reset_less=True)
        place, sent = (
            Signal(range(max(2, served)), name=n, reset_less=True) for n in ("word_of", "word_made")
        )
        with m.If(take):
            m.d.sync += [groups.eq(grouped), need_s.eq(grouped), place.eq(0)]
        with m.Elif(scales & (part == parts - 1)):
            m.d.sync += need_s.eq(0)
        with m.Elif(commit):
            m.d.sync += [need_s.eq(groups & (place == served - 1)), sent.eq(place)]
            m.d.sync += place.eq(Mux(place == served - 1, 0, place + 1))
        chosen = Signal(p.scales.token_slot if several > 1 else parts * BEAT_BITS)
        m.d.comb += chosen.eq(
            held[0].word_select(sent[ceil_log2(again) :], p.scales.token_slot) if several > 1 else Cat(held)
        )
        bits, slot = p.column.scale_bits, p.scales.element_slot
        elements = (chosen.word_select(e, slot)[:bits] for e in range(p.scale_bits // bits))
        m.d.comb += replay.data[p.code_bits :].eq(Cat(elements))

    def _send(self, m: Module, replay: Any) -> None:
        """A word is a token of codes and a token of scales, each taken at its own time."""
        p = self.params
        o = replay.o
        if p.scales is None:
            m.d.comb += [
                self.o_w.valid.eq(o.valid),
                self.o_w.payload.eq(o.payload),
                o.ready.eq(self.o_w.ready),
            ]
            return
        sent_w, sent_s = Signal(), Signal()
        m.d.comb += [
            self.o_w.valid.eq(o.valid & ~sent_w),
            self.o_w.payload.eq(o.payload[: p.code_bits]),
            self.o_s.valid.eq(o.valid & replay.tag & ~sent_s),
            self.o_s.payload.eq(o.payload[p.code_bits :]),
            o.ready.eq((sent_w | self.o_w.ready) & (sent_s | ~replay.tag | self.o_s.ready)),
        ]
        m.d.sync += [
            sent_w.eq(o.valid & ~o.ready & (sent_w | self.o_w.ready)),
            sent_s.eq(o.valid & ~o.ready & (sent_s | self.o_s.ready)),
        ]
