"""Descriptor bus: words from the sequencer become descriptors at the nodes.

    o_k = the descriptor of target k: its varying fields are the words sent to k, in order, the other
          fields are constants; one descriptor for each word marked `last`

Words travel through a tree of registers, eight ways a level, and are gathered at their node, where `depth`
descriptors wait: one in the registers that gather it, several in a queue behind those. A word for a node
that has no place holds up what comes behind it. A node without varying fields is sent one word, whose value
does not matter. Several buses may be sent the same words, each with some of the nodes: words for others are
dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from amaranth import Cat, Const, Module, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_layout, descriptor_signature

TARGET_BITS = 16
_WAYS_BITS = 3

BusWord = data.StructLayout({"target": unsigned(TARGET_BITS), "last": unsigned(1), "word": unsigned(32)})
"""One word of a descriptor; `last` completes the descriptor."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A node on the bus. fields: of its descriptor. constants: (name, value) of fields that never vary.

    depth: descriptors that wait at the node.
    """

    fields: tuple[Field, ...]
    constants: tuple[tuple[str, int], ...] = ()
    depth: int = 4

    def __post_init__(self) -> None:
        bits = {field.name: field.bits for field in self.fields}
        for name, value in self.constants:
            if name not in bits:
                raise ValueError(f"constant {name!r} is no field; the fields are {list(bits)}")
            if not 0 <= value < 1 << bits[name]:
                raise ValueError(f"constant {name!r} has {bits[name]} bits; {value} does not fit")
        if self.depth < 1:
            raise ValueError(f"depth of a target must be at least 1, not {self.depth}")

    @property
    def varying(self) -> tuple[Field, ...]:
        """The fields that words carry, in the order of the words."""
        constant = dict(self.constants)
        return tuple(field for field in self.fields if field.name not in constant)

    @property
    def words(self) -> "WordCollectorParams":
        """What collects the varying fields."""
        return WordCollectorParams(bits=tuple(field.bits for field in self.varying), depth=self.depth)

    @property
    def resources(self) -> Resources:
        return self.words.resources

    def build(self) -> "DescriptorCollector":
        return DescriptorCollector(self)


class DescriptorCollector(wiring.Component):
    """Gathers the words of one node on `i` into descriptors on `o`."""

    def __init__(self, params: Target) -> None:
        self._params = params
        super().__init__({"i": In(stream.Signature(BusWord)), "o": Out(descriptor_signature(params.fields))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.words = words = Shared(self._params.words)
        wiring.connect(m, wiring.flipped(self.i), words.i)
        m.d.comb += [self.o.valid.eq(words.o.valid), words.o.ready.eq(self.o.ready)]
        varying = self._params.varying
        stored: Any = data.View(descriptor_layout(varying), words.o.payload) if varying else None
        constants = dict(self._params.constants)
        for field in self._params.fields:
            value = constants[field.name] if field.name in constants else stored[field.name]
            m.d.comb += self.o.payload[field.name].eq(value)
        return m


@dataclass(frozen=True, kw_only=True)
class WordCollectorParams:
    """bits: of the words of a descriptor, in the order in which they come; none when no value matters.

    depth: descriptors that wait.
    """

    bits: tuple[int, ...]
    depth: int

    @property
    def queue(self) -> QueueParams:
        """The queue of gathered words."""
        return QueueParams(bits=max(1, sum(self.bits)), depth=self.depth)

    @property
    def resources(self) -> Resources:
        words = len(self.bits)
        if self.depth == 1:
            return Resources(lut=words + 3, ff=sum(self.bits) + words + (words == 0))
        if not self.bits:
            return Resources(lut=10, ff=5)  # a queue without payload
        return self.queue.resources + Resources(lut=2 * words + 1, ff=sum(self.bits[:-1]) + words - 1)

    def build(self) -> "WordCollector":
        return WordCollector(self)


class WordCollector(wiring.Component):
    """Words on `i`, side by side on `o` after the last one; the same block at all nodes with such words."""

    def __init__(self, params: WordCollectorParams) -> None:
        self._params = params
        bits = params.queue.bits
        super().__init__({"i": In(stream.Signature(BusWord)), "o": Out(stream.Signature(unsigned(bits)))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        *early, final = self._params.bits or (0,)
        word = self.i.payload
        taken = Signal()
        m.d.comb += taken.eq(self.i.valid & self.i.ready)
        if self._params.depth == 1:
            held = self._held(m, taken, self._params.bits)
            with m.If(taken & word.last):
                m.d.sync += self.o.valid.eq(1)
            with m.Elif(self.o.ready):
                m.d.sync += self.o.valid.eq(0)
            m.d.comb += [self.i.ready.eq(~self.o.valid), self.o.payload.eq(Cat(*held))]
            return m
        m.submodules.queue = queue = Queue(self._params.queue)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        held = self._held(m, taken, early)
        m.d.comb += [
            self.i.ready.eq(queue.i.ready),
            queue.i.valid.eq(self.i.valid & word.last),
            queue.i.payload.eq(Cat(*held, word.word[:final])),
        ]
        return m

    def _held(self, m: Module, taken: Value, bits: Sequence[int]) -> list[Signal]:
        """Registers for the first words of each descriptor."""
        word = self.i.payload
        held = [Signal(n, name=f"held_{k}", reset_less=True) for k, n in enumerate(bits)]
        words = len(self._params.bits)
        place = Const(1, 1) if words <= 1 else Signal(words, init=1, name="place")
        with m.If(taken):
            for k, register in enumerate(held):
                with m.If(place[k]):
                    m.d.sync += register.eq(word.word)
            if words > 1:
                m.d.sync += place.eq(place << 1)
                with m.If(word.last):
                    m.d.sync += place.eq(1)
        return held


@dataclass(frozen=True, kw_only=True)
class DescriptorBusParams:
    """targets: the nodes, numbered in order; None for one that is on another bus."""

    targets: tuple[Target | None, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.targets) <= 1 << TARGET_BITS:
            raise ValueError(f"a descriptor bus has 1 to {1 << TARGET_BITS} targets, not {len(self.targets)}")

    @property
    def levels(self) -> int:
        """Registers from `i` to a node's collector."""
        return max(1, -(-(len(self.targets) - 1).bit_length() // _WAYS_BITS))

    @property
    def resources(self) -> Resources:
        """With the collectors."""
        return reduce(add, (t.resources for t in self.targets if t is not None), self.tree)

    @property
    def tree(self) -> Resources:
        """Without the collectors."""
        total = Resources(lut=0, ff=0)
        ways = {k for k, target in enumerate(self.targets) if target is not None}
        for level in range(self.levels):  # a stage holds a word, the end of its target and a bit a way
            stages = {way >> _WAYS_BITS for way in ways}
            word = BusWord.size - TARGET_BITS + _WAYS_BITS * level
            total += Resources(lut=1.4 * len(ways), ff=len(stages) * word + len(ways))
            ways = stages
        return total

    def build(self) -> "DescriptorBus":
        return DescriptorBus(self)


class DescriptorBus(wiring.Component):
    """Words on `i`, the descriptors of target k on `o_k`."""

    def __init__(self, params: DescriptorBusParams) -> None:
        self._params = params
        super().__init__(
            {
                "i": In(stream.Signature(BusWord)),
                **{
                    f"o_{k}": Out(descriptor_signature(target.fields))
                    for k, target in enumerate(params.targets)
                    if target is not None
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        leaves: list[Any] = []
        for k, target in enumerate(self._params.targets):
            if target is None:
                leaves.append(None)
                continue
            m.submodules[f"collector_{k}"] = collector = target.build()
            wiring.connect(m, wiring.flipped(getattr(self, f"o_{k}")), collector.o)
            leaves.append(collector.i)
        _tree(m, self.i, leaves, (self._params.levels - 1) * _WAYS_BITS)
        return m


def _tree(m: Module, i: Any, leaves: Sequence[Any], shift: int) -> None:
    """A register, then a branch for each value of the target's bits from `shift` up, and so on."""
    width = 1 << shift
    every = [leaves[first : first + width] for first in range(0, len(leaves), width)]
    groups = {k: group for k, group in enumerate(every) if any(leaf is not None for leaf in group)}
    word = Signal(BusWord, reset_less=True)
    pending = Signal(len(groups))
    free = Signal()
    branches = []
    for k, group in enumerate(groups.values()):
        branch = group[0] if shift == 0 else stream.Signature(BusWord).create()
        m.d.comb += [branch.payload.eq(word), branch.valid.eq(pending[k])]
        branches.append(branch)
        if shift:
            _tree(m, branch, group, shift - _WAYS_BITS)
    ready = Cat(branch.ready for branch in branches)
    m.d.comb += [free.eq((pending & ~ready) == 0), i.ready.eq(free)]
    with m.If(free):
        number = i.payload.target[shift : shift + _WAYS_BITS]
        choice = Cat(number == Const(k, _WAYS_BITS) for k in groups)
        m.d.sync += [word.eq(i.payload), pending.eq(i.valid.replicate(len(groups)) & choice)]
