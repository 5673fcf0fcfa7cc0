"""Countdown: counts the tokens of a transfer and takes the next count without losing a cycle.

    active for exactly `count` steps after each count taken; last in the final one

Counts come on `i_count`. In every cycle with `active & step` one token counts. The next count is taken
when nothing is active or together with the last step, so transfers follow one another without a gap.
A count of 0 takes one cycle in which nothing is active. `active` and `last` are registers, `i_count.ready`
depends on `step`; `taken` marks the cycle in which a count is taken (for what belongs to it).
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources


@dataclass(frozen=True, kw_only=True)
class CountdownParams:
    """bits: width of the count, which goes up to 2^bits - 1."""

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise ValueError(f"bits of a countdown must be 1 to 32, not {self.bits}")

    @property
    def resources(self) -> Resources:
        return Resources(lut=3.6 * self.bits + 3, ff=self.bits + 2)

    def build(self) -> "Countdown":
        return Countdown(self)


def add_rows(m: Module, most: int, descriptor: Any, width: int = 1) -> Any:
    """A stream of the fields of each descriptor, once for each of its `rows`, of which there are at most so
    many. A descriptor without rows is one. width: elements of a token, a power of two; with several, `tokens`
    of a descriptor are the elements of a row, and those of the stream its tokens."""
    if most == 1:
        return descriptor
    rows = CountdownParams(bits=most.bit_length()).build()
    m.submodules.rows = rows
    row = descriptor.signature.flip().create(path=("row",))
    m.d.comb += [
        rows.i_count.payload.eq(descriptor.payload.rows),
        rows.i_count.valid.eq(descriptor.valid),
        descriptor.ready.eq(rows.i_count.ready),
        row.valid.eq(rows.active),
        rows.step.eq(row.valid & row.ready),
    ]
    with m.If(rows.taken):
        m.d.sync += row.payload.eq(descriptor.payload)
        if width > 1:
            tokens = (descriptor.payload.tokens + width - 1) >> (width.bit_length() - 1)
            m.d.sync += row.payload.tokens.eq(tokens)
    return row


class Countdown(wiring.Component):
    """`i_count` and `step` in, `active`, `last` and `taken` out."""

    def __init__(self, params: CountdownParams) -> None:
        self._bits = params.bits
        super().__init__(
            {
                "i_count": In(stream.Signature(params.bits)),
                "step": In(1),
                "active": Out(1),
                "last": Out(1),
                "taken": Out(1),
            }
        )

    def takes(self, source: Any, count: Value) -> list[Any]:
        """Statements: each token of the stream `source` is taken as a count, `count` of its payload."""
        return [
            self.i_count.valid.eq(source.valid),
            self.i_count.payload.eq(count),
            source.ready.eq(self.i_count.ready),
        ]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        left = Signal(self._bits, reset_less=True)  # steps after the present one
        count = self.i_count
        m.d.comb += [
            count.ready.eq(~self.active | (self.last & self.step)),
            self.taken.eq(count.valid & count.ready),
        ]
        with m.If(count.ready):
            m.d.sync += [
                self.active.eq(count.valid & (count.payload != 0)),
                self.last.eq(count.payload == 1),
                left.eq(count.payload - 1),
            ]
        with m.Elif(self.step):
            m.d.sync += [self.last.eq(left == 1), left.eq(left - 1)]
        return m
