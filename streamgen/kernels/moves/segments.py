"""Segments: consecutive parts of a stream go to consecutive outputs.

    o_k = the tiles of i for which its outermost loop is in part k

An example is the result of one matmul for several values (queries, keys, values), which is split again. With
several `rounds` each output gets a piece of its part, then each the next piece. With `each`, every trip of
the outermost loop (a row) is split at the loop inside it. Tiles leave in the order in which they come in, one
token per cycle; one register stage holds the tokens for all outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np
from amaranth import Module, Signal
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import CountdownParams, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import Splitter, add_steering, passed


@dataclass(frozen=True, kw_only=True)
class SegmentsParams:
    """token_bits: width of a token. ways: outputs `o_0` ... max_tokens: the longest execution.

    Bounds: {"itensor": ITensor, "sizes": trips of its outermost loop that go to each output in a round,
    "rounds": how often (1 unless given), "each": whether sizes are of the second loop, in every trip of the
    outermost (False unless given)}.
    """

    token_bits: int
    ways: int
    max_tokens: int
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("token_bits", 1), ("ways", 2), ("max_tokens", self.ways)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of segments must be at least {least}, not {getattr(self, name)}")

    @property
    def count(self) -> CountdownParams:
        return CountdownParams(bits=self.max_tokens.bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        itensor = self._itensor(bounds)
        trips, loop = itensor.tripcounts, _loop(bounds)
        again = 1 if loop else _rounds(bounds)
        return {
            f"o_{way}": replace(itensor, tripcounts=(*trips[:loop], size * again, *trips[loop + 1 :]))
            for way, size in enumerate(bounds["sizes"])
        }

    def descriptor_fields(self) -> tuple[Field, ...]:
        bits = self.count.bits
        return Field("tokens", bits), *(Field(f"tokens_{way}", bits) for way in range(self.ways))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        itensor = self._itensor(bounds)
        inner = itensor.token_count // prod(itensor.tripcounts[: _loop(bounds) + 1])
        parts = {f"tokens_{way}": size * inner for way, size in enumerate(bounds["sizes"])}
        return {"tokens": itensor.token_count, **parts}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        itensor, sizes, loop = self._itensor(bounds), bounds["sizes"], _loop(bounds)
        (axis,) = (dim for dim, loops in enumerate(itensor.iter_map) if loop in loops)
        again = 1 if loop else _rounds(bounds)
        ends = np.cumsum([size * itensor.steps[loop] for size in [*sizes] * again])
        pieces = np.split(inputs["i"], ends[:-1], axis)
        ways = len(sizes)
        return {f"o_{way}": np.concatenate(pieces[way::ways], axis) for way in range(ways)}

    def cost(self, bounds: Bounds) -> Cost:
        bits = self.count.bits
        own = Resources(
            lut=3.4 * self.ways + (1.6 + 1.15 * self.ways) * bits, ff=(self.ways + 1) * (bits + 1)
        )
        return Cost(
            resources=self.count.resources + own + skid_resources(self.token_bits + self.ways, 1),
            ii=1.0,
            latency=1,
            cycles=2 + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        counts, rounds = self.describe(bounds), _rounds(bounds)
        curves, first = {"i": Curve.nest(1, (counts["tokens"], 1))}, 2
        for way in range(self.ways):
            tokens = counts[f"tokens_{way}"]
            curves[f"o_{way}"] = Curve.nest(first, (rounds, counts["tokens"] // rounds), (tokens, 1))
            first += tokens
        return curves

    def clocks(self, bounds: Bounds) -> Clocks:
        """Tokens leave as they come in, for any output."""
        every = np.arange(self._itensor(bounds).token_count)
        take, send = KernelSide("take", 1 + every), KernelSide("send", 2 + every)
        curves = self.curves(bounds)
        ports = {f"o_{way}": (send, curves[f"o_{way}"].cycles() - 2) for way in range(self.ways)}
        streams = take.to(send, every, every, latency=1), send.to(take, every[:-2], every[2:])
        return Clocks((take, send), {"i": (take, every), **ports}, streams)

    def build(self) -> "Segments":
        return Segments(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        itensor = passed(bounds, "segments", self.token_bits, self.max_tokens)
        sizes, rounds, loop = bounds["sizes"], _rounds(bounds), _loop(bounds)
        where = ("outermost", "second")[loop]
        if loop and ("rounds" in bounds or len(itensor.tripcounts) < 2):
            raise ValueError(f"each trip of {itensor} is parted; two loops are needed, and no rounds")
        trips = prod(itensor.tripcounts[: loop + 1])
        if rounds < 1 or trips % rounds:
            raise ValueError(f"rounds is {rounds}; it must divide the outermost trip, {trips}")
        if len(sizes) != self.ways or min(sizes) < 1 or sum(sizes) * rounds != trips:
            raise ValueError(
                f"sizes are {sizes}; {self.ways} of at least 1 are needed that sum up to the {where} trip"
                f"{'' if loop or rounds == 1 else ' of a round'}, {trips // rounds}"
            )
        if sum(loop in loops for loops in itensor.iter_map) != 1 or any(itensor.base):
            raise ValueError(f"the {where} loop of {itensor} must serve one dimension, from its beginning on")
        return itensor


def _loop(bounds: Bounds) -> int:
    """The loop whose trips are parted."""
    return int(bounds.get("each", False))


def _rounds(bounds: Bounds) -> int:
    """How often each output gets a piece."""
    return int(bounds["itensor"].tripcounts[0] if _loop(bounds) else bounds.get("rounds", 1))


class Segments(Splitter):
    """`i` to `o_0` … `o_{ways-1}`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p, fields = self._params, self.i_descriptor.payload
        chosen = Signal(p.ways, reset_less=True)  # one-hot
        left = Signal(p.count.bits, reset_less=True)  # tokens of the piece that follow this one
        counts = [Signal(p.count.bits, name=f"tokens_{way}", reset_less=True) for way in range(p.ways)]
        outputs = [getattr(self, f"o_{way}") for way in range(p.ways)]
        count = add_steering(m, p.count, self.i_descriptor, self.i, chosen, outputs)
        with m.If(count.step):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 0):
                m.d.sync += [chosen.eq(chosen.rotate_left(1)), left.eq(counts[0] - 1)]
                m.d.sync += [here.eq(after) for here, after in pairwise([*counts, counts[0]])]
        with m.If(count.taken):
            m.d.sync += [chosen.eq(1), left.eq(fields.tokens_0 - 1)]
            m.d.sync += [here.eq(fields[f"tokens_{(way + 1) % p.ways}"]) for way, here in enumerate(counts)]
        return m
