"""What kernels share that pass tokens on as they are: fork, route, select, segments."""

from collections.abc import Sequence
from typing import Any

from amaranth import Cat, Module, Value
from amaranth.lib import stream

from streamgen.contract import Bounds
from streamgen.gateware.stream import CountdownParams, add_skid
from streamgen.itensor import ITensor


def passed(bounds: Bounds, name: str, token_bits: int, max_tokens: int) -> ITensor:
    """The stream of an execution; ValueError, which names the kernel ("a route"), when it does not fit."""
    itensor: ITensor = bounds["itensor"]
    if itensor.token_bits != token_bits:
        raise ValueError(
            f"tokens of the {name.removeprefix('a ')} have {token_bits} bits, "
            f"those of {itensor} {itensor.token_bits}"
        )
    if itensor.token_count > max_tokens:
        raise ValueError(f"{name} of at most {max_tokens} tokens cannot run {itensor.token_count}: {itensor}")
    return itensor


def way_of(bounds: Bounds, name: str, ways: int, ports: str) -> int:
    """The way of an execution; ValueError, which names the kernel and its ports, when there is none."""
    way = bounds["way"]
    if not 0 <= way < ways:
        raise ValueError(f"way is {way}; {name} of {ways} {ports} takes 0 to {ways - 1}")
    return int(way)


def add_steering(
    m: Module, params: CountdownParams, descriptor: Any, i: Any, chosen: Value, outputs: Sequence[Any]
) -> Any:
    """Pass the `tokens` of each descriptor from `i` to the outputs, through a register stage.

    chosen: one-hot, the output of the token that `i` offers. Returns the countdown, whose `taken` is high
    when a descriptor is taken and whose `step` when a token is.
    """
    m.submodules.count = count = params.build()
    bits, ways = len(i.payload), len(outputs)
    addressed, sent = (stream.Signature(bits + ways).create(path=(name,)) for name in ("addressed", "sent"))
    m.d.comb += [
        count.i_count.valid.eq(descriptor.valid),
        count.i_count.payload.eq(descriptor.payload.tokens),
        descriptor.ready.eq(count.i_count.ready),
        count.step.eq(i.valid & i.ready),
        addressed.valid.eq(i.valid & count.active),
        addressed.payload.eq(Cat(chosen, i.payload)),
        i.ready.eq(addressed.ready & count.active),
    ]
    add_skid(m, addressed, [sent])
    m.d.comb += sent.ready.eq((Cat(o.ready for o in outputs) & sent.payload[:ways]).any())
    for way, o in enumerate(outputs):
        m.d.comb += [o.valid.eq(sent.valid & sent.payload[way]), o.payload.eq(sent.payload[ways:])]
    return count
