"""DMAs at the edge of a graph: memory to tokens (Load) and tokens to memory (Store).

    Load:  o = the first `tokens` tokens of the memory image that begins at base + 64 * offset
    Store: memory image at base + 64 * offset = the next `tokens` tokens of i, the last beat filled with zeros

The image is that of `MemoryLayout`: tokens in the order of the stream, so a DMA reads and writes strictly
sequentially. A descriptor {offset in beats, tokens} starts a transfer; several wait in line, and a Load
reads ahead of what the graph takes, also into later transfers, as far as its prefetch FIFO goes.

Promises: the memory gives `rate` beats a cycle after `latency` cycles (cf. `Hbm`). `cost.cycles` and the
curves hold to one latency + 1 %; the curve of a Load with room ahead is the memory's own pace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, prod
from typing import Any, ClassVar, Literal

import numpy as np
from amaranth import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for
from numpy import ndarray

from streamgen.artifact.packing import TRANSFER_BITS, MemoryLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks, Transfers
from streamgen.fifo.curves import KernelSide, NodeStream
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import Gather, GatherParams, Scatter, ScatterParams, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.platform.axi import BEAT_BITS, BEAT_SHIFT, MAX_BURST, Command, ReadPort, WritePort
from streamgen.platform.read_client import ReadClient, ReadClientParams, check_burst
from streamgen.platform.write_client import WriteClient, WriteClientParams

Pieces = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]

_OFFSET_BITS = 32
_LOAD_OVERHEAD = 6  # cycles from a Load's descriptor to its first beat, beside latency and FIFO
_STORE_OVERHEAD = 2  # cycles from a Store's descriptor to its first token taken
_TRIP = 8  # cycles from a burst asked for to its first beat, beside the latency of the memory
_DRAIN_OVERHEAD = 1  # cycles of a Store and its master, beside latency and FIFO


@dataclass(frozen=True, kw_only=True)
class _DmaParams:
    """layout: how tokens lie in memory. max_tokens: the longest transfer. rate, latency: see above."""

    layout: MemoryLayout
    max_tokens: int
    rate: float
    latency: int
    moves: ClassVar[bool] = True
    _WAITING: ClassVar[int]

    def __post_init__(self) -> None:
        name = type(self).__name__.removesuffix("Params").lower()
        if (beats := self.layout.beats(self.max_tokens)) >= 1 << TRANSFER_BITS:
            raise ValueError(
                f"max_tokens of a {name} is {self.max_tokens}, which are {beats} beats; "
                f"2^{TRANSFER_BITS} - 1 are allowed"
            )
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens of a {name} must be at least 1, not {self.max_tokens}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate of a {name} must be above 0 and at most 1 beat a cycle, not {self.rate}")
        if self.latency < 0:
            raise ValueError(f"latency of a {name} must be at least 0, not {self.latency}")

    @property
    def token_bits(self) -> int:
        """Bits of a token on the stream."""
        return prod(self.layout.element_shape) * formats.bits(self.layout.dtype)

    @property
    def token_signature(self) -> stream.Signature:
        """The stream of tokens."""
        return stream.Signature(self.token_bits)

    def descriptor_fields(self) -> tuple[Field, ...]:
        return Field("offset", _OFFSET_BITS), Field("tokens", bits_for(self.max_tokens))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        itensor, offset = self._itensor(bounds), bounds["offset"]
        if itensor.token_count > self.max_tokens:
            raise ValueError(f"{itensor.token_count} tokens are more than max_tokens {self.max_tokens}")
        if not 0 <= offset < 1 << _OFFSET_BITS:
            raise ValueError(f"offset must be 0 to 2^{_OFFSET_BITS} - 1 beats, not {offset}")
        return {"offset": offset, "tokens": itensor.token_count}

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return {"memory": self.layout.beats(self._itensor(bounds).token_count)}

    def _itensor(self, bounds: Bounds) -> ITensor:
        itensor: ITensor = bounds["itensor"]
        layout = MemoryLayout.of(itensor)
        if layout != self.layout and not layout.same_wires(self.layout):
            raise ValueError(f"{itensor} has other tokens than {self.layout}")
        return itensor

    def _paced(self, first: int, tokens: int) -> Pieces:
        """Token times when the memory sets the pace."""
        per_token = Fraction(self.layout.beats_per_token, self.layout.tokens_per_beat) / self._rate
        if per_token <= 1:
            return ((first, ((tokens, 1),)),)
        cycles, group = per_token.numerator, per_token.denominator  # `group` tokens in `cycles` cycles
        whole, rest = divmod(tokens, group)
        pieces: Pieces = ()
        if whole:
            pieces += ((first, ((whole, cycles), (group, cycles // group))),)
        if rest:
            pieces += ((first + whole * cycles, ((rest, cycles // group),)),)
        return pieces

    @property
    def _rate(self) -> Fraction:
        return Fraction(self.rate).limit_denominator(64)

    @property
    def _ii(self) -> float:
        return max(1.0, self.layout.beats_per_token / self.layout.tokens_per_beat / self.rate)

    def _beats(self, tokens: Any) -> Any:
        """Beats of a transfer."""
        if self.layout.tokens_per_beat == 1:
            return tokens * self.layout.beats_per_token
        return (tokens + self.layout.tokens_per_beat - 1) >> bits_for(self.layout.tokens_per_beat - 1)

    def _scatter(self) -> ScatterParams:
        """Words of a beat to tokens, or of a token to beats."""
        slots, parts = self.layout.tokens_per_beat, self.layout.beats_per_token
        if slots > 1:
            return ScatterParams(bits=BEAT_BITS // slots, slots=slots, token_bits=self._token_count_bits)
        return ScatterParams(bits=BEAT_BITS, slots=parts)

    def _gather(self) -> GatherParams:
        """Tokens to words of a beat, or beats to words of a token."""
        scatter = self._scatter()
        return GatherParams(bits=scatter.bits, slots=scatter.slots, token_bits=scatter.token_bits)

    def _promise(self, client: Resources, width: ScatterParams | GatherParams) -> Resources:
        """The client, the command before it, and what makes beats of tokens or tokens of beats."""
        total = client + Resources(lut=self._token_count_bits, ff=35 + self._token_count_bits)
        if self.layout.tokens_per_beat > 1:
            total += self.counts.resources + Resources(lut=15, ff=0)
        if self.layout.tokens_per_beat != self.layout.beats_per_token:
            total += replace(width, bits=self._used_bits).resources
        return total

    @property
    def _used_bits(self) -> int:
        """Bits of a slot, or of a beat of a token, that are not padding: only those become registers."""
        return -(-self.token_bits // self.layout.beats_per_token)

    @property
    def _token_count_bits(self) -> int:
        return bits_for(self.max_tokens)

    @property
    def counts(self) -> QueueParams:
        """Token counts of the transfers in line between the memory's side and the graph's."""
        return QueueParams(bits=self._token_count_bits, depth=self._WAITING)


@dataclass(frozen=True, kw_only=True)
class LoadParams(_DmaParams):
    """prefetch: beats of the FIFO that reads run ahead into; burst: greatest burst, in beats."""

    prefetch: int = 512
    burst: int = MAX_BURST
    _WAITING: ClassVar[int] = 4
    memory_ports: ClassVar[Mapping[str, Literal["read"]]] = {"memory": "read"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_burst("load", self.prefetch, self.burst)

    @property
    def client(self) -> ReadClientParams:
        """The memory client inside."""
        trip = ceil(self._rate * (self.latency + _TRIP))
        most = trip + self.burst
        return ReadClientParams(
            depth=self.prefetch, burst=self.burst, under_way=most if most < self.prefetch else None
        )

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._itensor(bounds)}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`inputs["memory"]` is the tensor in memory."""
        return {"o": inputs["memory"]}

    def cost(self, bounds: Bounds) -> Cost:
        last = int(self.curves(bounds)["o"].cycles()[-1])
        return Cost(resources=self._resources, ii=self._ii, latency=self._first, cycles=last + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return {"o": Curve(self._paced(self._first, self._itensor(bounds).token_count))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """Beats are asked for at once; a beat gives several tokens, or several beats one."""
        tokens = self._itensor(bounds).token_count
        ask, (pop, send, streams) = KernelSide("ask", np.ones(1, np.int64)), self.unpacked(tokens)
        return Clocks(
            (ask, pop, send),
            {"o": (send, np.arange(tokens))},
            streams,
            (self.reads("memory", (ask, np.zeros(1, np.int64)), pop, [len(pop.cycles)], [bounds["offset"]]),),
        )

    def unpacked(self, tokens: int, name: str = "") -> tuple[KernelSide, KernelSide, tuple[NodeStream, ...]]:
        """What takes beats from the prefetch FIFO, what sends tokens, and the streams between them."""
        several, parts = self.layout.tokens_per_beat, self.layout.beats_per_token
        beats, own = np.arange(self.layout.beats(tokens)), np.arange(tokens)
        pop, send = KernelSide(f"pop{name}", 1 + beats), KernelSide(f"send{name}", 2 + own * parts, parts)
        if several > 1:
            ends = np.minimum(beats * several + several - 1, tokens - 1)
            ways = pop.to(send, beats, beats * several), send.to(pop, ends[:-1], beats[1:], latency=0)
        else:
            ways = (
                pop.to(send, own * parts + parts - 1, own, latency=int(parts > 1)),
                send.to(pop, own[:-1], own[1:] * parts, latency=0),
            )
        return pop, send, ways

    def reads(
        self,
        port: str,
        asks: tuple[KernelSide, np.ndarray],
        pop: KernelSide,
        beats: Sequence[int],
        offsets: Sequence[int],
    ) -> Transfers:
        """What the client reads for the commands that a part gives."""
        return Transfers(
            port=port,
            burst=self.burst,
            depth=self.prefetch,
            under_way=self.client.under_way,
            latency=self.client.queue.latency,
            beats=np.array(beats),
            offsets=np.array(offsets),
            part=pop,
            moves=np.arange(len(pop.cycles)),
            asks=asks,
        )

    def least_prefetch(self) -> "LoadParams":
        return replace(self, prefetch=self.burst)

    def build(self) -> "Load":
        return Load(self)

    @property
    def _first(self) -> int:
        """Cycle of the first token."""
        slots, parts = self.layout.tokens_per_beat, self.layout.beats_per_token
        gather = int((parts - 1) / self.rate) + (slots > 1 or parts > 1)
        return _LOAD_OVERHEAD + self.client.queue.latency + self.latency + gather

    @property
    def _resources(self) -> Resources:
        slots, queue = self.layout.tokens_per_beat, self.client.queue
        padding = BEAT_BITS - self._used_bits * slots if queue.kind != "lutram" else 0  # not read out
        client = self.client.resources + Resources(lut=0, ff=-padding)
        return self._promise(client, self._scatter() if slots > 1 else self._gather())


@dataclass(frozen=True, kw_only=True)
class StoreParams(_DmaParams):
    """depth: beats of the FIFO in which bursts gather; burst: greatest burst, in beats."""

    depth: int = 2 * MAX_BURST
    burst: int = MAX_BURST
    _WAITING: ClassVar[int] = 2
    memory_ports: ClassVar[Mapping[str, Literal["write"]]] = {"memory": "write"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_burst("store", self.depth, self.burst)

    @property
    def client(self) -> WriteClientParams:
        """The memory client inside."""
        return WriteClientParams(depth=self.depth, burst=self.burst)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory` of the result is the tensor in memory."""
        return {"memory": inputs["i"]}

    def cost(self, bounds: Bounds) -> Cost:
        """latency and cycles count to `done`: a store has no output stream."""
        beats = self.layout.beats(self._itensor(bounds).token_count)
        by_memory = _STORE_OVERHEAD + min(beats, self.burst) + beats / self.rate
        last = int(self.curves(bounds)["i"].cycles()[-1])
        by_source = last + ((beats - 1) % self.burst + 1) / self.rate
        done = int(max(by_memory, by_source)) + self.latency + self.client.queue.latency + _DRAIN_OVERHEAD
        return Cost(resources=self._resources, ii=self._ii, latency=done, cycles=done + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """The FIFO takes a beat a cycle until it is full, then the memory sets the pace."""
        tokens, parts = self._itensor(bounds).token_count, self.layout.beats_per_token
        if self.layout.tokens_per_beat > 1:
            return {"i": Curve(self._paced(_STORE_OVERHEAD, tokens))}
        full = tokens
        if self._rate < 1:
            full = min(tokens, int((self.depth - self.burst * self._rate) / (1 - self._rate)) // parts)
        head: Pieces = ((_STORE_OVERHEAD, ((full, parts),)),) if full else ()
        return {"i": Curve(head + self._paced(_STORE_OVERHEAD + full * parts, tokens - full))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """Several tokens make a beat, or one makes several."""
        tokens, several = self._itensor(bounds).token_count, self.layout.tokens_per_beat
        parts, own = self.layout.beats_per_token, np.arange(tokens)
        beats = np.arange(self.layout.beats(tokens))
        take = KernelSide("take", _STORE_OVERHEAD + own * parts, parts)
        push = KernelSide("push", _STORE_OVERHEAD + several + beats)
        if several > 1:
            ends = np.minimum(beats * several + several - 1, tokens - 1)
            ways: tuple[NodeStream, ...] = (take.to(push, ends, beats), push.to(take, beats[:-2], ends[2:]))
        else:
            ways = (
                take.to(push, own, own * parts, latency=int(parts > 1)),
                push.to(take, own[:-1] * parts + parts - 1, own[1:], latency=0),
            )
        written = Transfers(
            port="memory",
            burst=self.burst,
            depth=self.depth,
            latency=0,
            beats=np.array([len(beats)]),
            offsets=np.array([bounds["offset"]]),
            part=push,
            moves=beats,
        )
        return Clocks((take, push), {"i": (take, own)}, ways, (written,))

    def build(self) -> "Store":
        return Store(self)

    @property
    def _resources(self) -> Resources:
        client = self.client.resources
        if self.layout.tokens_per_beat > 1:
            return self._promise(client, self._gather())
        queue = self.client.queue
        stored = replace(queue, bits=queue.bits - BEAT_BITS + self._used_bits, memory=queue.kind)
        return self._promise(client + -1 * queue.resources + stored.resources, self._scatter())


class Load(wiring.Component):
    """Tokens on `o`; `base` is the buffer's byte address, `memory` the port of a channel master."""

    def __init__(self, params: LoadParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "o": Out(params.token_signature),
                "base": In(64),
                "memory": Out(ReadPort),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params, layout = self._params, self._params.layout
        m.submodules.client = client = ReadClient(params.client)
        wiring.connect(m, wiring.flipped(self.memory), client.memory)
        counts = _start_transfers(m, self, client.i_command)
        slots = stream.Signature(layout.token_slot).create(path=("slots",))
        if layout.tokens_per_beat > 1:
            m.submodules.scatter = scatter = Scatter(params._scatter())
            _pass_on(m, counts, scatter.i_descriptor)
            _pass_on(m, client.o, scatter.i)
            _pass_on(m, scatter.o, slots)
        elif layout.beats_per_token > 1:
            m.submodules.gather = gather = Gather(params._gather())
            _pass_on(m, client.o, gather.i)
            _pass_on(m, gather.o, slots)
        else:
            _pass_on(m, client.o, slots)
        bits, slot = formats.bits(layout.dtype), layout.element_slot
        low = slot - bits if layout.dtype == "f24" else 0
        elements = (slots.payload.word_select(e, slot)[low : low + bits] for e in range(layout.elements))
        m.d.comb += [
            self.o.valid.eq(slots.valid),
            slots.ready.eq(self.o.ready),
            self.o.payload.eq(Cat(elements)),
        ]
        return m


class Store(wiring.Component):
    """Tokens on `i`; `base` and `memory` as in Load; `done` for a cycle when a transfer is in memory."""

    def __init__(self, params: StoreParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(params.token_signature),
                "base": In(64),
                "memory": Out(WritePort),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params, layout = self._params, self._params.layout
        m.submodules.client = client = WriteClient(params.client)
        wiring.connect(m, wiring.flipped(self.memory), client.memory)
        m.d.comb += self.done.eq(client.done)
        counts = _start_transfers(m, self, client.i_command)
        bits, slot = formats.bits(layout.dtype), layout.element_slot
        parts: list[Any] = []
        for e in range(layout.elements):
            element = self.i.payload.word_select(e, bits)
            zeros = Const(0, slot - bits)
            if layout.dtype == "f24":
                parts.append(Cat(zeros, element))
            elif layout.dtype[0] == "i":
                parts.append(Cat(element, element[-1].replicate(slot - bits)))
            else:
                parts.append(Cat(element, zeros))
        slots = stream.Signature(layout.token_slot).create(path=("slots",))
        m.d.comb += [
            slots.valid.eq(self.i.valid),
            self.i.ready.eq(slots.ready),
            slots.payload.eq(Cat(parts)),
        ]
        if layout.tokens_per_beat > 1:
            m.submodules.gather = gather = Gather(params._gather())
            _pass_on(m, counts, gather.i_descriptor)
            _pass_on(m, slots, gather.i)
            _pass_on(m, gather.o, client.i)
        elif layout.beats_per_token > 1:
            m.submodules.scatter = scatter = Scatter(params._scatter())
            _pass_on(m, slots, scatter.i)
            _pass_on(m, scatter.o, client.i)
        else:
            _pass_on(m, slots, client.i)
        return m


def _start_transfers(m: Module, dma: Load | Store, command: Any) -> Any:
    """Turn descriptors into commands of the client; returns the stream of their token counts.

    DMAs that have several tokens in a beat count them; of the others each transfer ends with a beat, the
    client alone counts, and nothing is returned.
    """
    params = dma._params
    descriptor = dma.i_descriptor
    fields = descriptor.payload
    free = Signal()
    view = Signal(Command, reset_less=True)
    counts, room = None, Const(1)
    if params.layout.tokens_per_beat > 1:
        m.submodules.counts = queue = Queue(params.counts)
        m.d.comb += [queue.i.valid.eq(descriptor.valid & free), queue.i.payload.eq(fields.tokens)]
        counts, room = queue.o, queue.i.ready
    m.d.comb += [
        free.eq(~command.valid | command.ready),
        descriptor.ready.eq(free & room),
        command.payload.eq(view),
    ]
    with m.If(free):
        m.d.sync += [
            command.valid.eq(descriptor.valid & room),
            view.address.eq((dma.base[BEAT_SHIFT:] + fields.offset) << BEAT_SHIFT),
            view.beats.eq(params._beats(fields.tokens)),
        ]
    return counts


def _pass_on(m: Module, source: Any, target: Any) -> None:
    """Join two streams whose payloads have the same bits."""
    m.d.comb += [
        target.valid.eq(source.valid),
        target.payload.eq(source.payload),
        source.ready.eq(target.ready),
    ]
