"""Values that wait in memory for a later phase: the kernel that stores them and the kernel that loads them
again.

    memory[place] = i        then a token on o_stored: all of it is in memory
    o = memory[place]        when a token of i_stored is there

A value is tokens of one width in any order; they are loaded in the order in which they were stored. Tiles in:
`i` of a SpillStore; out: `o` of a SpillLoad. Every value of a run has its own place, so nothing is
overwritten before it is read. A read is requested after the last response to the writes, because a memory
keeps no order between the two. Inside are a `Store` and a `Load`; the bytes of a token are as encoded
(`numbers.formats`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.artifact.packing import MemoryLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.memory.joints import join
from streamgen.numbers import formats
from streamgen.platform.axi import ReadPort, WritePort
from streamgen.platform.dma import LoadParams, StoreParams

STORED = ITensor((1,), "u1", (1,), (1,), ((0,),))
"""The word that a value is in memory."""

_WAITING = 3  # values whose word has not left
_COUNTED = 1  # cycles from `done` of the store to the word
_ANSWERED = 2  # cycles from the last response to the word


@dataclass(frozen=True, kw_only=True)
class SpillLayout:
    """The places of values. token_bits: of a token. max_tokens: of a value. values: the number of places."""

    token_bits: int
    max_tokens: int
    values: int

    def __post_init__(self) -> None:
        for name in ("token_bits", "max_tokens", "values"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a spill must be at least 1, not {getattr(self, name)}")

    @property
    def memory(self) -> MemoryLayout:
        """The layout of a token: its bytes."""
        return MemoryLayout("u8", (1, -(-self.token_bits // 8)))

    @property
    def places(self) -> int:
        """Tokens from one value to the next, in whole beats."""
        several = self.memory.tokens_per_beat
        return -(-self.max_tokens // several) * several

    @property
    def value_beats(self) -> int:
        return self.memory.beats(self.max_tokens)

    @property
    def order(self) -> ITensor:
        """All values: a tensor [tokens, bytes of a token]."""
        return self.tokens(self.values * self.places)

    def tokens(self, count: int) -> ITensor:
        """An order of that many tokens as bytes."""
        return ITensor(self.memory.element_shape, "u8", (count,), (1,), ((0,), ()))

    def begin(self, place: int) -> int:
        """The first token of a value. ValueError if there is no such place."""
        if not 0 <= place < self.values:
            raise ValueError(f"place of a spill must be 0 to {self.values - 1}, not {place}")
        return place * self.places

    def bounds(self, bounds: Bounds) -> Bounds:
        """The bounds of the Store or the Load inside. ValueError for an unknown place and for tokens of
        another width."""
        itensor: ITensor = bounds["itensor"]
        if itensor.token_bits != self.token_bits:
            raise ValueError(f"{itensor} has tokens of {itensor.token_bits} bits, not {self.token_bits}")
        self.begin(bounds["place"])
        return {"itensor": self.tokens(itensor.token_count), "offset": bounds["place"] * self.value_beats}


@dataclass(frozen=True, kw_only=True)
class _SpillParams:
    """layout: places of values. rate, latency: of the memory.

    Bounds: itensor (the value as it streams), place (its number).
    """

    layout: SpillLayout
    rate: float
    latency: int
    moves: ClassVar[bool] = True

    @property
    def dma(self) -> StoreParams | LoadParams:
        raise NotImplementedError

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.dma.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return self.dma.describe(self.layout.bounds(bounds))

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return self.dma.traffic(self.layout.bounds(bounds))


@dataclass(frozen=True, kw_only=True)
class SpillStoreParams(_SpillParams):
    """Of values into memory."""

    memory_ports: ClassVar[Mapping[str, Literal["write"]]] = {"memory": "write"}

    @property
    def dma(self) -> StoreParams:
        """The unit that writes: bursts gather in LUT memory."""
        layout = self.layout
        sizes = {"max_tokens": layout.max_tokens, "depth": 32, "burst": 16}
        return StoreParams(layout=layout.memory, rate=self.rate, latency=self.latency, **sizes)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": bounds["itensor"]}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o_stored": STORED}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory`: all values, uint8 [tokens, bytes of a token]."""
        itensor, memory = bounds["itensor"], inputs["memory"].copy()
        begin = self.layout.begin(bounds["place"])
        tokens = itensor.to_tokens(inputs["i"])
        memory[begin : begin + len(tokens)] = formats.encode(itensor.dtype, tokens)
        return {"o_stored": np.ones(1, np.uint8), "memory": memory}

    def cost(self, bounds: Bounds) -> Cost:
        """Cycles until the value is in memory."""
        cost = self.dma.cost(self.layout.bounds(bounds))
        stored = cost.latency + _COUNTED
        return Cost(
            resources=cost.resources + Resources(lut=10, ff=4), ii=cost.ii, latency=stored, cycles=stored + 1
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        inside = self.layout.bounds(bounds)
        stored = self.dma.cost(inside).latency + _COUNTED
        return {**self.dma.curves(inside), "o_stored": Curve.nest(stored)}

    def clocks(self, bounds: Bounds) -> Clocks:
        """The cycles of the store; the last response makes the word."""
        clocks, stored = self.dma.clocks(self.layout.bounds(bounds)), self.curves(bounds)["o_stored"].cycles()
        word, first = KernelSide("stored", stored), np.zeros(1, np.int64)
        (written,) = clocks.transfers
        return Clocks(
            (*clocks.parts, word),
            {**clocks.ports, "o_stored": (word, first)},
            clocks.streams,
            (replace(written, done=(word, first), latency=_ANSWERED),),
        )

    def build(self) -> "SpillStore":
        return SpillStore(self)


@dataclass(frozen=True, kw_only=True)
class SpillLoadParams(_SpillParams):
    """Of values out of memory."""

    memory_ports: ClassVar[Mapping[str, Literal["read"]]] = {"memory": "read"}

    @property
    def dma(self) -> LoadParams:
        """The unit that reads."""
        layout = self.layout
        sizes = {"max_tokens": layout.max_tokens, "prefetch": 128, "burst": 16}
        return LoadParams(layout=layout.memory, rate=self.rate, latency=self.latency, **sizes)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i_stored": STORED}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": bounds["itensor"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory`: all values, uint8 [tokens, bytes of a token]."""
        itensor, begin = bounds["itensor"], self.layout.begin(bounds["place"])
        packed = inputs["memory"][begin : begin + itensor.token_count]
        return {"o": itensor.from_tokens(formats.decode(itensor.dtype, packed, itensor.element_shape))}

    def cost(self, bounds: Bounds) -> Cost:
        cost = self.dma.cost(self.layout.bounds(bounds))
        memory, queue = self.layout.memory, self.dma.client.queue
        if memory.tokens_per_beat == memory.beats_per_token:  # what of a beat is no token is not kept
            kept = replace(queue, bits=self.layout.token_bits, memory=queue.kind).storage
            cost = replace(cost, resources=cost.resources + kept + -1 * queue.storage)
        return cost

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return {"i_stored": Curve.nest(0), **self.dma.curves(self.layout.bounds(bounds))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """The cycles of the load, which is requested when the word is there."""
        clocks = self.dma.clocks(self.layout.bounds(bounds))
        word, first = KernelSide("word", np.zeros(1, np.int64)), np.zeros(1, np.int64)
        told = word.to(clocks.parts[0], first, first, latency=1)
        ports = {**clocks.ports, "i_stored": (word, first)}
        return Clocks((word, *clocks.parts), ports, (told, *clocks.streams), clocks.transfers)

    def build(self) -> "SpillLoad":
        return SpillLoad(self)


class SpillStore(wiring.Component):
    """The hardware of a SpillStoreParams; `base`: the byte address of the buffer of all values."""

    def __init__(self, params: SpillStoreParams) -> None:
        self.params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(params.layout.token_bits)),
                "o_stored": Out(stream.Signature(1)),
                "memory": Out(WritePort),
                "base": In(64),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.store = store = self.params.dma.build()
        wiring.connect(m, wiring.flipped(self.memory), store.memory)
        m.d.comb += store.base.eq(self.base)
        join(m, self.i, store.i)
        m.d.comb += store.i_descriptor.payload.eq(self.i_descriptor.payload)
        open_, stored = Signal(range(_WAITING + 1)), Signal(range(_WAITING + 1))  # values under way, words
        begins, told, free = Signal(), Signal(), Signal()
        m.d.comb += [
            free.eq(open_ != _WAITING),
            store.i_descriptor.valid.eq(self.i_descriptor.valid & free),
            self.i_descriptor.ready.eq(store.i_descriptor.ready & free),
            begins.eq(self.i_descriptor.valid & self.i_descriptor.ready),
            self.o_stored.valid.eq(stored != 0),
            self.o_stored.payload.eq(1),
            told.eq(self.o_stored.valid & self.o_stored.ready),
            self.done.eq(told),
        ]
        m.d.sync += [open_.eq(open_ + begins - told), stored.eq(stored + store.done - told)]
        return m


class SpillLoad(wiring.Component):
    """The hardware of a SpillLoadParams; `base`: the byte address of the buffer of all values."""

    def __init__(self, params: SpillLoadParams) -> None:
        self.params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i_stored": In(stream.Signature(1)),
                "o": Out(stream.Signature(params.layout.token_bits)),
                "memory": Out(ReadPort),
                "base": In(64),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.load = load = self.params.dma.build()
        wiring.connect(m, wiring.flipped(self.memory), load.memory)
        m.d.comb += load.base.eq(self.base)
        asked = load.i_descriptor
        m.d.comb += [
            asked.payload.eq(self.i_descriptor.payload),
            asked.valid.eq(self.i_descriptor.valid & self.i_stored.valid),
            self.i_descriptor.ready.eq(asked.ready & self.i_stored.valid),
            self.i_stored.ready.eq(asked.ready & self.i_descriptor.valid),
            self.o.valid.eq(load.o.valid),
            self.o.payload.eq(load.o.payload),
            load.o.ready.eq(self.o.ready),
        ]
        return m
