"""Connections between kernels and DMAs inside a kernel with memory ports, and the pace of the memory.

A transfer of few beats comes at the rate of the memory. The beats of a longer transfer are requested as room
in the prefetch FIFO comes back: `prefetch` beats in a trip to the memory plus the time in which a burst
leaves the FIFO.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from amaranth import Module, Value

from streamgen.contract.cost import Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.platform.dma import LoadParams

COMMAND = 3  # cycles in which a memory client takes a command
TRIP = 4  # cycles from a beat taken to the next one asked for, beside the latency of the memory


def join(m: Module, source: Any, target: Any) -> None:
    """A stream drives another stream whose payload has the same bits."""
    m.d.comb += [
        target.valid.eq(source.valid),
        Value.cast(target.payload).eq(source.payload),
        source.ready.eq(target.ready),
    ]


def beat_pace(load: LoadParams, beats: int) -> Fraction:
    """Cycles per beat, of that many consecutive beats."""
    pace = 1 / Fraction(load.rate).limit_denominator(64)
    if beats <= load.prefetch:
        return pace
    return max(pace, Fraction(load.latency + TRIP + load.burst * pace) / load.prefetch)


def paced(first: int, tokens: int, pace: Fraction) -> Curve:
    """Tokens from cycle `first` on, `pace` cycles each, at least one cycle."""
    pace = pace.limit_denominator(64)
    if pace <= 1:
        return Curve.nest(first, (tokens, 1))
    cycles, group = pace.numerator, pace.denominator  # `group` tokens in `cycles` cycles
    whole, rest = divmod(tokens, group)
    pieces: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    if whole:
        pieces.append((first, ((whole, cycles), (group, cycles // group))))
    if rest:
        pieces.append((first + whole * cycles, ((rest, cycles // group),)))
    return Curve(tuple(pieces))


def unused(queue: QueueParams, bits: int, padding: int) -> Resources:
    """Resources that a FIFO saves if some bits of its payload are never read or always 0.

    Synthesis leaves these columns out of registers and LUT memory, but not out of block memory.
    """
    if queue.kind not in ("register", "lutram"):
        return Resources(lut=0, ff=0)
    whole, rest = (replace(queue, bits=n, memory=queue.kind).resources for n in (bits, bits - padding))
    return whole + -1 * rest
