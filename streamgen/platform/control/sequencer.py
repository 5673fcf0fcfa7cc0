"""Sequencer: walks the phase table in memory and sends its descriptors, word by word.

    word = base + layer*l + position*p + tiles*t        modulo 2^32, a slot of the table a cycle

The format of the table is that of `streamgen.artifact.manifest`. It is read through a read client (`o_read`,
`i_read`): first a chunk that holds the directory and the start of section 0, then, as soon as the
directory is there, every walk of every section, ahead of their use: between layers no time is lost.

A header with the flag `awaited` adds one to the completions awaited, every bit of `completed` takes one
off; a header with the flag `barrier` waits until none is awaited. `finished` is high when everything
has been sent and completed. `bad` rises when the table is not one; the sequencer then stands still.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.artifact.packing import ADDRESS_BITS, BEAT_BYTES, TRANSFER_BITS
from streamgen.artifact.phase_table import MAX_SECTIONS, TABLE_CHUNK, TABLE_MAGIC
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import RegisterSlice, RegisterSliceParams
from streamgen.platform.control.descriptor_bus import TARGET_BITS, BusWord

Request = data.StructLayout({"address": unsigned(ADDRESS_BITS), "beats": unsigned(TRANSFER_BITS)})
"""A transfer of whole beats, as memory clients take it."""

_CHUNK = TABLE_CHUNK // BEAT_BYTES
_BEATS_BITS = 20
_LAYER_BITS = 16
_TILES_BITS = 16
_SLOT_BITS = 128
_SLOTS = 8 * BEAT_BYTES // _SLOT_BITS
_AHEAD = 2  # walks asked for and not yet begun
_SLOT_SIGNALS = ("slot_valid", "advance", "step", "opens", "wrong", "hold")

_Walk = data.StructLayout({"beats": _BEATS_BITS, "final": _BEATS_BITS, "layer": _LAYER_BITS, "last": 1})
_Section = data.StructLayout(
    {"beats": _BEATS_BITS, "_0": 32 - _BEATS_BITS, "repeats": _LAYER_BITS, "_1": 32 - _LAYER_BITS}
)
_Directory = data.StructLayout(
    {"magic": 32, "sections": 32, "section": data.ArrayLayout(_Section, MAX_SECTIONS)}
)
_Header = data.StructLayout({"target": 16, "words": 8, "awaited": 1, "barrier": 1, "_": 5, "valid": 1})
_Word = data.StructLayout({name: signed(32) for name in ("base", "layer", "position", "tiles")})


@dataclass(frozen=True, kw_only=True)
class SequencerParams:
    """targets: nodes on the descriptor bus. completions: bits of `completed`."""

    targets: int
    completions: int

    def __post_init__(self) -> None:
        if not 1 <= self.targets <= 1 << TARGET_BITS:
            raise ValueError(f"targets of a sequencer must be 1 to {1 << TARGET_BITS}, not {self.targets}")
        if self.completions < 1:
            raise ValueError(f"completions of a sequencer must be at least 1, not {self.completions}")

    @property
    def resources(self) -> Resources:
        return Resources(lut=1615, ff=3013, dsp=7)

    def build(self) -> "Sequencer":
        return Sequencer(self)


class Sequencer(wiring.Component):
    """`start` for a cycle with `table`, `tiles` and `position` steady until `finished`."""

    def __init__(self, params: SequencerParams) -> None:
        self._params = params
        super().__init__(
            {
                "start": In(1),
                "table": In(64),
                "tiles": In(32),
                "position": In(32),
                "completed": In(params.completions),
                "o_read": Out(stream.Signature(Request)),
                "i_read": In(stream.Signature(8 * BEAT_BYTES)),
                "o": Out(stream.Signature(BusWord)),
                "finished": Out(1),
                "bad": Out(1),
                "sent": Out(32),
                "awaited": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.walks = walks = Queue(QueueParams(bits=_Walk.size, depth=_AHEAD))
        m.submodules.read = read = RegisterSlice(RegisterSliceParams(bits=8 * BEAT_BYTES))
        wiring.connect(m, wiring.flipped(self.i_read), read.i)
        directory_taken = Signal()  # the beat of `read` is the directory and is taken now
        asked = self._ask(m, walks.i, read.o, directory_taken)
        beat, beat_valid, layer, beat_done, walked = self._beats(m, walks.o, read.o, directory_taken)
        drained = self._slots(m, beat, beat_valid, layer, beat_done)
        m.d.sync += self.finished.eq(
            asked & walked & ~beat_valid & drained & (self.awaited == 0) & ~self.start & ~self.bad
        )
        return m

    def _ask(self, m: Module, walks: Any, read: Any, directory_taken: Signal) -> Signal:
        """Send requests and the walks they serve; returns whether the table has been asked for."""
        asked = Signal(init=1)
        directory = data.View(_Directory, read.payload)
        sections = Signal(data.ArrayLayout(_Section, MAX_SECTIONS), reset_less=True)
        left = Signal(range(MAX_SECTIONS + 1), reset_less=True)
        body = Signal(64, reset_less=True)  # where the section begins
        layer = Signal(_LAYER_BITS, reset_less=True)
        following = Signal(_LAYER_BITS, reset_less=True)  # layer + 1
        opening = Signal(reset_less=True)  # the first walk, whose first beats came with the directory
        no_table = Signal(reset_less=True)
        here = sections[0]
        request = self.o_read.payload
        walk = data.View(_Walk, walks.payload)
        ahead = _CHUNK - 1
        free = Signal()
        final_walk = Signal()
        m.d.comb += [
            free.eq((~self.o_read.valid | self.o_read.ready) & walks.ready),
            final_walk.eq(following == here.repeats),
            walk.beats.eq(here.beats),
            walk.layer.eq(layer),
            walk.last.eq(final_walk & (left == 1)),
            walk.final.eq(Mux(opening & (here.beats < ahead), ahead, here.beats) - 1),
        ]
        with m.If(self.o_read.ready):
            m.d.sync += self.o_read.valid.eq(0)
        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.d.sync += [
                    asked.eq(0),
                    self.o_read.valid.eq(1),
                    request.address.eq(self.table),
                    request.beats.eq(_CHUNK),
                    body.eq(self.table + BEAT_BYTES),
                ]
                m.next = "DIRECTORY"
            with m.State("DIRECTORY"):
                m.d.comb += directory_taken.eq(read.valid)
                m.d.sync += [
                    sections.eq(directory.section),
                    left.eq(directory.sections),
                    layer.eq(0),
                    following.eq(1),
                    opening.eq(1),
                    no_table.eq(
                        (directory.magic != TABLE_MAGIC)
                        | (directory.sections == 0)
                        | (directory.sections > MAX_SECTIONS)
                    ),
                ]
                with m.If(directory_taken):
                    m.next = "WALK"
            with m.State("WALK"):
                m.d.comb += walks.valid.eq(free & (here.beats != 0) & ~no_table)
                with m.If((here.beats == 0) | no_table):
                    m.d.sync += self.bad.eq(1)
                    m.next = "STOP"
                with m.Elif(free):
                    m.d.sync += [
                        self.o_read.valid.eq(~opening | (here.beats > ahead)),
                        request.address.eq(body + Mux(opening, ahead * BEAT_BYTES, 0)),
                        request.beats.eq(here.beats - Mux(opening, ahead, 0)),
                        opening.eq(0),
                        layer.eq(following),
                        following.eq(following + 1),
                    ]
                    with m.If(final_walk):
                        m.d.sync += [
                            layer.eq(0),
                            following.eq(1),
                            left.eq(left - 1),
                            body.eq(body + here.beats * BEAT_BYTES),
                            Cat(sections).eq(Cat(sections)[_Section.size :]),
                        ]
                        with m.If(left == 1):
                            m.d.sync += asked.eq(1)
                            m.next = "IDLE"
            with m.State("STOP"):
                pass
        return asked

    def _beats(
        self, m: Module, walks: Any, read: Any, directory_taken: Signal
    ) -> tuple[Any, Signal, Signal, Signal, Signal]:
        """Take the beats of each walk, drop those up to `final` that are not its own.

        Returns the beat, its valid and layer, the bit that ends it, and whether all walks are over.
        """
        walk = data.View(_Walk, walks.payload)
        beat = Signal(8 * BEAT_BYTES, reset_less=True)
        valid, done, walked = Signal(name="beat_valid"), Signal(name="beat_done"), Signal(init=1)
        layer = Signal(_LAYER_BITS, reset_less=True)
        place = Signal(_BEATS_BITS)  # of the beat on i_read, in its walk
        wanted, ends, take = Signal(), Signal(), Signal()
        m.d.comb += [
            wanted.eq(place < walk.beats),
            ends.eq(place == walk.final),
            take.eq(walks.valid & read.valid & (~wanted | ~valid | done)),
            read.ready.eq(directory_taken | take),
            walks.ready.eq(take & ends),
        ]
        with m.If(take):
            m.d.sync += place.eq(place + 1)
            with m.If(ends):
                m.d.sync += place.eq(0)
                with m.If(walk.last):
                    m.d.sync += walked.eq(1)
        with m.If(done):
            m.d.sync += valid.eq(0)
        with m.If(take & wanted):
            m.d.sync += [valid.eq(1), beat.eq(read.payload), layer.eq(walk.layer)]
        with m.If(self.start):
            m.d.sync += walked.eq(0)
        return beat, valid, layer, done, walked

    def _slots(self, m: Module, beat: Any, beat_valid: Signal, layer: Signal, beat_done: Signal) -> Any:
        """Read a slot a cycle and send its word; returns whether nothing is on its way."""
        place = Signal(range(_SLOTS))
        slot = Signal(_SLOT_BITS, reset_less=True)
        slot_layer = Signal(_LAYER_BITS, reset_less=True)
        header, word = data.View(_Header, slot[: _Header.size]), data.View(_Word, slot)
        words = Signal(8)  # words of this descriptor still to come
        target = Signal(TARGET_BITS, reset_less=True)
        slot_valid, advance, step, opens, wrong, hold = (Signal(name=n) for n in _SLOT_SIGNALS)
        is_header = Signal(init=1)  # words == 0
        complete = Signal()  # the barrier in `slot` has been held for a cycle and none is awaited
        m.d.comb += [
            hold.eq(is_header & header.barrier & ~complete),
            step.eq(slot_valid & advance & ~hold & ~self.bad),
            wrong.eq(slot[: _Header.size].any() & (~header.valid | (header.target >= self._params.targets))),
            opens.eq(step & is_header & header.valid & ~wrong),
            beat_done.eq(beat_valid & (~slot_valid | step) & (place == _SLOTS - 1)),
        ]
        with m.If(~slot_valid | step):
            m.d.sync += [
                slot_valid.eq(beat_valid),
                slot.eq(beat.word_select(place, _SLOT_BITS)),
                slot_layer.eq(layer),
                place.eq(place + beat_valid),
            ]
        m.d.sync += complete.eq(slot_valid & is_header & ~step & (self.awaited == 0))
        with m.If(step):
            m.d.sync += [words.eq(words - 1), is_header.eq(words == 1)]
            with m.If(is_header):
                has_words = opens & (header.words != 0)
                m.d.sync += [target.eq(header.target), words.eq(header.words), is_header.eq(~has_words)]
                with m.If(wrong):
                    m.d.sync += self.bad.eq(1)
        with m.If(self.start):
            m.d.sync += self.sent.eq(0)
        with m.Elif(opens):
            m.d.sync += self.sent.eq(self.sent + 1)
        completions = Signal(range(self._params.completions + 1))
        m.d.sync += completions.eq(sum(self.completed[k] for k in range(self._params.completions)))
        m.d.sync += self.awaited.eq(self.awaited + (opens & header.awaited) - completions)

        # base + layer*l + position*p + tiles*t: operands, products, once more for the multipliers' output
        # registers, two sums. The whole pipeline stands still while the bus does; the slice at its end
        # keeps the bus's way back short.
        stages = 5
        valid = Signal(stages)
        info = [
            Signal(data.StructLayout({"target": TARGET_BITS, "last": 1}), name=f"info_{k}")
            for k in range(stages)
        ]
        m.submodules.slice = out = RegisterSlice(RegisterSliceParams(bits=BusWord.size))
        m.d.comb += advance.eq(~valid[-1] | out.i.ready)
        alone = opens & (header.words == 0)  # a descriptor without words is one word on the bus
        factors = [
            (word.layer, slot_layer),
            (word.position, self.position),
            (word.tiles, self.tiles[:_TILES_BITS]),
        ]
        base = [Signal(32, name=f"base_{k}", reset_less=True) for k in range(3)]
        low, high, result = (Signal(32, name=name, reset_less=True) for name in ("low", "high", "result"))
        with m.If(advance):
            m.d.sync += [
                valid.eq(Cat(step & ~is_header | alone, valid)),
                info[0].target.eq(Mux(is_header, header.target, target)),
                info[0].last.eq(is_header | (words == 1)),
                base[0].eq(word.base),
                base[1].eq(base[0]),
                base[2].eq(base[1]),
            ]
            m.d.sync += [info[k].eq(info[k - 1]) for k in range(1, stages)]
            products = []
            for k, (coefficient, variable) in enumerate(factors):
                a = Signal(32, name=f"coefficient_{k}", reset_less=True)
                b = Signal(len(variable), name=f"variable_{k}", reset_less=True)
                product = Signal(32, name=f"product_{k}", reset_less=True)
                again = Signal(32, name=f"product_again_{k}", reset_less=True)
                m.d.sync += [a.eq(coefficient), b.eq(variable), product.eq(a * b), again.eq(product)]
                products.append(again)
            m.d.sync += [
                low.eq(base[2] + products[0]),
                high.eq(products[1] + products[2]),
                result.eq(low + high),
            ]
        sent = data.View(BusWord, out.i.payload)
        m.d.comb += [
            out.i.valid.eq(valid[-1]),
            sent.word.eq(result),
            sent.target.eq(info[-1].target),
            sent.last.eq(info[-1].last),
            self.o.valid.eq(out.o.valid),
            self.o.payload.eq(out.o.payload),
            out.o.ready.eq(self.o.ready),
        ]
        return ~valid.any() & ~out.o.valid & ~slot_valid
