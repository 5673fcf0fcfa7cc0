"""Dummy: a kernel that computes nothing but keeps any bursty curves, and stalls as hard as a kernel may.

    after each cycle of its clock in which something is due:
        s = rotate(s, 7) xor token + port + 1      for each input due, in order of ports
        s = rotate(s, 3) + 1                       for each output due
    token of output j = s + j * 0x9E3779B1, repeated to the width of the port; s begins at 0

Ports carry one-dimensional unsigned tokens. A port moves its tokens in pieces: `bursts` times `length`
tokens, `period` cycles apart, `pitch` cycles from the last token of a burst to the first of the next; the
first token comes `wait` cycles after the token before it, or after cycle 0. All of that arrives as a
descriptor.

The kernel has one clock. It stands while an input that is due has no token or an output that is due no room;
inputs due in one cycle move together, and no output due with them is valid before they have tokens. The next
descriptor is taken in the cycle of the last token, or later: executions do not overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.numbers import formats

__all__ = ["Dummy", "DummyParams", "Piece"]

_BITS = {"wait": 8, "bursts": 7, "pitch": 7, "length": 7, "period": 3}  # a word of 32 bits a piece
_PIECE = data.StructLayout(_BITS)
_COUNTS = data.StructLayout({"left": _BITS["wait"], "tokens": _BITS["length"], "bursts": _BITS["bursts"]})
_MASK = 0xFFFFFFFF
_SPREAD = 0x9E3779B1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a curve: `bursts` times `length` tokens. All at least 1 and below 2^bits of the descriptor."""

    wait: int = 1
    bursts: int = 1
    pitch: int = 1
    length: int = 1
    period: int = 1

    def __post_init__(self) -> None:
        for name, bits in _BITS.items():
            if not 1 <= (value := getattr(self, name)) < 1 << bits:
                raise ValueError(f"{name} of a piece must be 1 to {(1 << bits) - 1}, not {value}")

    @property
    def tokens(self) -> int:
        return self.bursts * self.length

    @property
    def word(self) -> int:
        """All numbers as one, the first in the lowest bits; never 0."""
        word = shift = 0
        for name, bits in _BITS.items():
            word |= getattr(self, name) << shift
            shift += bits
        return word

    @property
    def burst(self) -> int:
        """Cycles from the first token of a burst to the last."""
        return (self.length - 1) * self.period


@dataclass(frozen=True, kw_only=True)
class DummyParams:
    """inputs, outputs: token widths of the ports `i_0` ..., `o_0` ...; pieces: the most of a curve.

    Bounds: {port: pieces of its curve}.
    """

    inputs_bits: tuple[int, ...]
    outputs_bits: tuple[int, ...]
    pieces: int = 3

    def __post_init__(self) -> None:
        if not (self.inputs_bits and self.outputs_bits):
            raise ValueError("a dummy has at least one input and one output")
        for bits in (*self.inputs_bits, *self.outputs_bits):
            if not 1 <= bits <= 64:
                raise ValueError(f"bits of a dummy's port must be 1 to 64, not {bits}")
        if self.pieces < 1:
            raise ValueError(f"pieces of a dummy must be at least 1, not {self.pieces}")

    @property
    def widths(self) -> dict[str, int]:
        """Token width of each port, inputs first."""
        return {
            **{f"i_{k}": bits for k, bits in enumerate(self.inputs_bits)},
            **{f"o_{k}": bits for k, bits in enumerate(self.outputs_bits)},
        }

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {name: self._itensor(name, bounds) for name in self.widths if name[0] == "i"}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {name: self._itensor(name, bounds) for name in self.widths if name[0] == "o"}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return tuple(Field(f"{port}_{piece}", 32) for port in self.widths for piece in range(self.pieces))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        values = {field.name: 0 for field in self.descriptor_fields()}
        for port in self.widths:
            if not 1 <= len(bounds[port]) <= self.pieces:
                raise ValueError(f"{port} of a dummy has 1 to {self.pieces} pieces, not {len(bounds[port])}")
            for k, piece in enumerate(bounds[port]):
                values[f"{port}_{k}"] = piece.word
        return values

    def golden(self, bounds: Bounds, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        due: dict[int, list[tuple[str, int]]] = {}
        for port, curve in self.curves(bounds).items():
            for k, cycle in enumerate(curve.cycles().tolist()):
                due.setdefault(cycle, []).append((port, k))
        sent: dict[str, list[int]] = {port: [] for port in self.widths if port[0] == "o"}
        state = 0
        for _, moves in sorted(due.items()):
            for port, _ in moves:
                if port in sent:
                    sent[port].append(_token(state, int(port[2:]), self.widths[port]))
            for port, k in moves:
                if port in sent:
                    state = (_rotated(state, 3) + 1) & _MASK
                else:
                    folded = int(inputs[port][k])
                    folded = folded >> 32 ^ folded & _MASK
                    state = (_rotated(state, 7) ^ (folded + int(port[2:]) + 1)) & _MASK
        return {
            port: np.array(tokens, formats.numpy_dtype(f"u{self.widths[port]}"))
            for port, tokens in sent.items()
        }

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        return {port: _curve(bounds[port]) for port in self.widths}

    def cost(self, bounds: Bounds) -> Cost:
        """Resources are a rough count: nobody builds a dummy."""
        cycles = {port: curve.cycles() for port, curve in self.curves(bounds).items()}
        busiest = max(cycles.values(), key=len)
        taken, sent = ([cycles[port] for port in self.widths if port[0] == letter] for letter in ("i", "o"))
        bits = 32 * len(self.widths) * (self.pieces + 1) + 32
        return Cost(
            resources=Resources(lut=2 * bits, ff=bits),
            ii=float(busiest[-1] - busiest[0]) / (len(busiest) - 1) if len(busiest) > 1 else 1.0,
            latency=int(min(c[0] for c in sent) - min(c[0] for c in taken)),
            cycles=int(max(c[-1] for c in sent)) + 1,
        )

    def build(self) -> "Dummy":
        return Dummy(self)

    def _itensor(self, port: str, bounds: Bounds) -> ITensor:
        tokens = sum(piece.tokens for piece in bounds[port])
        return ITensor((1,), f"u{self.widths[port]}", (tokens,), (1,), ((0,),))


def _curve(pieces: Sequence[Piece]) -> Curve:
    nests = []
    now = 0
    for piece in pieces:
        now += piece.wait
        nests.append((now, ((piece.bursts, piece.burst + piece.pitch), (piece.length, piece.period))))
        now += (piece.bursts - 1) * (piece.burst + piece.pitch) + piece.burst
    return Curve(tuple(nests))


def _token(state: int, port: int, bits: int) -> int:
    word = (state + port * _SPREAD) & _MASK
    return (word | word << 32) & (1 << bits) - 1


def _rotated(state: int, by: int) -> int:
    return (state << by | state >> (32 - by)) & _MASK


class Dummy(wiring.Component):
    """`i_0` ... to `o_0` ...; what all widths have in common is a block of its own, built once."""

    def __init__(self, params: DummyParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{
                    port: (In if port[0] == "i" else Out)(stream.Signature(bits))
                    for port, bits in params.widths.items()
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.core = core = Shared(
            _CoreParams(inputs=len(p.inputs_bits), outputs=len(p.outputs_bits), pieces=p.pieces)
        )
        m.d.comb += [
            core.i_descriptor.payload.eq(self.i_descriptor.payload),
            core.i_descriptor.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(core.i_descriptor.ready),
        ]
        for port in p.widths:
            mine, inner = getattr(self, port), getattr(core, port)
            if port[0] == "i":
                folded = mine.payload[:32] ^ mine.payload[32:]
                m.d.comb += [
                    inner.payload.eq(folded),
                    inner.valid.eq(mine.valid),
                    mine.ready.eq(inner.ready),
                ]
            else:
                m.d.comb += [
                    mine.payload.eq(Cat(inner.payload, inner.payload)),
                    mine.valid.eq(inner.valid),
                    inner.ready.eq(mine.ready),
                ]
        return m


@dataclass(frozen=True, kw_only=True)
class _CoreParams:
    """Numbers of ports, all of 32 bits, and of pieces."""

    inputs: int
    outputs: int
    pieces: int

    @property
    def ports(self) -> tuple[str, ...]:
        return (*(f"i_{k}" for k in range(self.inputs)), *(f"o_{k}" for k in range(self.outputs)))

    def build(self) -> "_Core":
        return _Core(self)


class _Core(wiring.Component):
    def __init__(self, params: _CoreParams) -> None:
        self._params = params
        bits = 32 * len(params.ports) * params.pieces
        super().__init__(
            {
                "i_descriptor": In(stream.Signature(bits)),
                **{port: (In if port[0] == "i" else Out)(stream.Signature(32)) for port in params.ports},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        ports = [_Port(m, port, self._params.pieces) for port in self._params.ports]
        inputs = [port for port in ports if port.name[0] == "i"]
        outputs = [port for port in ports if port.name[0] == "o"]
        running, given, step, last = Signal(), Signal(), Signal(), Signal()
        sent = {port.name: Signal(name=f"sent_{port.name}") for port in outputs}
        state = Signal(32)
        m.d.comb += [
            given.eq(Cat(~port.due | getattr(self, port.name).valid for port in inputs).all() & running),
            step.eq(given & Cat(~p.due | sent[p.name] | getattr(self, p.name).ready for p in outputs).all()),
            last.eq(step & Cat(~port.active | port.ends for port in ports).all()),
            self.i_descriptor.ready.eq(~running | last),
        ]
        mixed: Value = state
        for port in inputs:
            i = getattr(self, port.name)
            m.d.comb += i.ready.eq(step & port.due)
            then = Signal(32)
            m.d.comb += then.eq(mixed)
            with m.If(port.due):
                m.d.comb += then.eq(mixed.rotate_left(7) ^ (i.payload + int(port.name[2:]) + 1)[:32])
            mixed = then
        for port in outputs:
            o = getattr(self, port.name)
            m.d.comb += [
                o.valid.eq(given & port.due & ~sent[port.name]),
                o.payload.eq(state + int(port.name[2:]) * _SPREAD),
            ]
            with m.If(step):
                m.d.sync += sent[port.name].eq(0)
            with m.Elif(o.valid & o.ready):
                m.d.sync += sent[port.name].eq(1)
            then = Signal(32)
            m.d.comb += then.eq(mixed)
            with m.If(port.due):
                m.d.comb += then.eq(mixed.rotate_left(3) + 1)
            mixed = then
        with m.If(step):
            m.d.sync += state.eq(mixed)
            for port in ports:
                port.step(m)
        with m.If(self.i_descriptor.ready):
            m.d.sync += [running.eq(self.i_descriptor.valid), state.eq(0)]
            for k, port in enumerate(ports):
                words = self.i_descriptor.payload.word_select(k, 32 * self._params.pieces)
                port.start(m, words, self.i_descriptor.valid)
        return m


class _Port:
    """Where a port stands in its curve: the pieces that are left, and what is left of the first of them."""

    def __init__(self, m: Module, name: str, pieces: int) -> None:
        self.name = name
        self.active = Signal(name=f"active_{name}")
        self.due = Signal(name=f"due_{name}")
        self.ends = Signal(name=f"ends_{name}")
        self._pieces = Signal(32 * pieces, name=f"pieces_{name}")
        # cycles of the clock until the next token, tokens of the burst and bursts after it, less one
        self._counts = Signal(_COUNTS, name=f"counts_{name}")
        m.d.comb += [
            self.due.eq(self.active & (self._counts.left == 0)),
            self.ends.eq(
                self.due & (self._counts.tokens == 0) & (self._counts.bursts == 0) & (self._after.wait == 0)
            ),
        ]

    @property
    def _after(self) -> Any:
        """The piece after the present one; a piece that waits 0 cycles is none."""
        return data.View(_PIECE, Cat(self._pieces[32:], Const(0, 32))[:32])

    def start(self, m: Module, words: Value, valid: Value) -> None:
        """Take the descriptor: a word a piece."""
        m.d.sync += [self.active.eq(valid), self._pieces.eq(words)]
        m.d.sync += self._counts.eq(_begun(data.View(_PIECE, words[:32])))

    def step(self, m: Module) -> None:
        """The clock goes on."""
        now, counts = data.View(_PIECE, self._pieces[:32]), self._counts
        with m.If(~self.due):
            m.d.sync += counts.left.eq(counts.left - 1)
        with m.Elif(counts.tokens != 0):
            m.d.sync += [counts.left.eq(now.period - 1), counts.tokens.eq(counts.tokens - 1)]
        with m.Elif(counts.bursts != 0):
            m.d.sync += [
                counts.left.eq(now.pitch - 1),
                counts.tokens.eq(now.length - 1),
                counts.bursts.eq(counts.bursts - 1),
            ]
        with m.Else():
            m.d.sync += [
                self.active.eq(self._after.wait != 0),
                counts.eq(_begun(self._after)),
                self._pieces.eq(self._pieces[32:]),
            ]


def _begun(piece: Any) -> Value:
    """The counts before the first token of a piece."""
    return Cat(
        (piece.wait - 1)[: _BITS["wait"]],
        (piece.length - 1)[: _BITS["length"]],
        (piece.bursts - 1)[: _BITS["bursts"]],
    )
