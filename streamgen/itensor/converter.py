"""The converter between two orders of one tensor: how little must be buffered, and how.

A prefix of the two loop nests is shared when both agree on it loop by loop (trip and step vector, re-use
included) and, in every iteration of it, the target reads only what the source sends in that iteration.
The buffer is the region that the target reads in one iteration, twice: one half fills while the other
is read. Elements that the target never reads are dropped, repeats are discarded.

Two facts make the inference cheap. Iterations of a shared prefix are translates of one another, so one
window decides for all. And with neighbouring loops merged as in the canonical form, two nests agree on a
prefix exactly when they agree on whole loops and then, at most, on a part of the next: of loops with
trips a, b and steps u, v the outer f iterations are shared when a*u == b*v and f divides both. Legal
prefixes stay legal when shortened, and the buffer shrinks as they grow: the longest is the smallest.

The loops that were given are kept apart where that costs nothing (merging only when it lengthens the
prefix), so that hardware sized by the largest bounds runs smaller ones: `Converter.at`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from streamgen.itensor.canonical import Loop
from streamgen.itensor.cover import Cover, first_missing
from streamgen.itensor.live import live_elements
from streamgen.itensor.nests import (
    Unit,
    cut,
    inner,
    merged_units,
    nest_of,
    shared_prefix,
    single_units,
    with_trips,
)
from streamgen.itensor.operations import same_stream
from streamgen.itensor.type import ITensor
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class Converter:
    """The inferred converter of a pair of streams.

    source, target: the pair.
    fill, read: the same streams with loops split (trip 1 left out); the first `shared` loops of both
        are equal, and an iteration of them is a window.
    fill_origin, read_origin: for each loop of `fill` and `read` the loops of `source` and `target` that
        it is a part of; neighbours with equal entries are the parts of one loop, outermost first.
    """

    source: ITensor
    target: ITensor
    fill: ITensor
    read: ITensor
    fill_origin: tuple[Unit, ...]
    read_origin: tuple[Unit, ...]
    shared: int

    @property
    def windows(self) -> int:
        """Number of windows."""
        return prod(self.fill.tripcounts[: self.shared])

    @property
    def fills(self) -> int:
        """Source tokens per window."""
        return prod(self.fill.tripcounts[self.shared :])

    @property
    def reads(self) -> int:
        """Target tokens per window."""
        return prod(self.read.tripcounts[self.shared :])

    @property
    def fill_window(self) -> ITensor:
        """What the source sends in the first window."""
        return inner(self.fill, self.shared)

    @property
    def read_window(self) -> ITensor:
        """What the target reads in the first window."""
        return inner(self.read, self.shared)

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """Extents of the region that the target reads in one window, which starts at `target.base`."""
        window = self.read_window
        return tuple(extent - start for extent, start in zip(window.shape, window.base, strict=True))

    @property
    def bits(self) -> int:
        """Memory of the ping-pong buffer."""
        return 2 * formats.token_bits(self.target.dtype, self.buffer_shape)

    @cached_property
    def live_bits(self) -> int:
        """The least that a converter must hold, whatever it does, if the source sends nothing twice.

        Source tokens are pushed in order, the target takes a token as soon as it is complete; this is
        the greatest number of bits, after a push and before the takes, that are present and still to be
        read. Enumerates the tensor.
        """
        count = live_elements(self.source, self.target)
        return formats.token_bits(self.target.dtype, (count,))

    def at(self, source: ITensor, target: ITensor) -> "Converter":
        """The same loops, parts and shared prefix for a pair that differs in trip counts only.

        Inner parts keep their trips where the shared prefix cuts a loop (their products are steps of
        the parts outside, and steps do not change), so every trip is affine in those of the pair.
        Raises ValueError when that does not give the streams of the pair, when a window's target reads
        what its source does not send, or when a window outgrows this converter's buffer.
        """
        for side, new, old in (("source", source, self.source), ("target", target, self.target)):
            if new != with_trips(old, new.tripcounts):
                raise ValueError(f"the {side} may differ in trip counts only; it is {new}, not like {old}")
        fill_trips, read_trips = self._trips(source, target)
        fill, read = with_trips(self.fill, fill_trips), with_trips(self.read, read_trips)
        for side, nest, stream in (("source", fill, source), ("target", read, target)):
            if not same_stream(nest, stream):
                raise ValueError(f"the loops {nest} of the {side} cannot send {stream}")
        result = replace(self, source=source, target=target, fill=fill, read=read)
        if (hole := _hole(result.fill_window, result.read_window)) is not None:
            raise ValueError(
                f"in a window of {self.shared} shared loops the target reads element {hole[1]} of dimension "
                f"{hole[0]}, which the source does not send in it"
            )
        if any(new > old for new, old in zip(result.buffer_shape, self.buffer_shape, strict=True)):
            raise ValueError(f"a window of {result.buffer_shape} outgrows the buffer of {self.buffer_shape}")
        return result

    def _trips(self, source: ITensor, target: ITensor) -> tuple[list[int], list[int]]:
        """Trips of `fill` and `read` for other bounds; they may turn out not to give the streams."""
        sides = (  # what each nest is a part of, its trips, the trips to come
            (self.fill_origin, self.fill.tripcounts, source.tripcounts),
            (self.read_origin, self.read.tripcounts, target.tripcounts),
        )
        rests = [{unit: prod(trips[loop] for loop in unit) for unit in origin} for origin, _, trips in sides]
        prefix = []
        for p in range(self.shared):
            choices = (
                [  # the last part of a loop takes what is left of it
                    rest[origin[p]]
                    for (origin, _, _), rest in zip(sides, rests, strict=True)
                    if origin[p] not in origin[p + 1 :]
                ]
                or [  # both loops go on inside the window, with trips that cannot change
                    max(1, rest[origin[p]] // old[p + 1])
                    for (origin, old, _), rest in zip(sides, rests, strict=True)
                ]
            )
            prefix.append(choices[0])
            for (origin, _, _), rest in zip(sides, rests, strict=True):
                rest[origin[p]], over = divmod(rest[origin[p]], choices[0])
                if over or choices[0] != choices[-1]:
                    raise ValueError(
                        f"the trips {source.tripcounts} and {target.tripcounts} cannot share loop {p} as "
                        f"{self.source.tripcounts} and {self.target.tripcounts} do"
                    )
        fill, read = (
            prefix + [rest[unit] for unit in origin[self.shared :]]
            for (origin, _, _), rest in zip(sides, rests, strict=True)
        )
        return fill, read


def infer_converter(source: ITensor, target: ITensor) -> Converter | None:
    """The converter with the smallest ping-pong buffer; None when a plain FIFO does.

    Raises ValueError unless dtype and rank agree and the target reads only what the source sends.
    """
    if source.dtype != target.dtype:
        raise ValueError(f"dtype must agree; the source has {source.dtype}, the target {target.dtype}")
    if source.rank != target.rank:
        raise ValueError(f"rank must agree; the source has {source.rank}, the target {target.rank}")
    if same_stream(source, target):
        return None
    if formats.is_mx(source.dtype):
        for side, stream in (("source", source), ("target", target)):
            _check_groups(side, stream)
    if (hole := _hole(source, target)) is not None:
        raise ValueError(
            f"the target reads element {hole[1]} of dimension {hole[0]}, which the source never sends"
        )
    apart = _build(source, target, single_units(source), single_units(target))
    merged = _build(source, target, merged_units(source), merged_units(target))
    return min(apart, merged, key=lambda c: (c.bits, -c.windows))


def _check_groups(side: str, stream: ITensor) -> None:
    """Groups that share a shift cannot be cut."""
    moving = (loop for loop in stream.iter_map[-1] if stream.tripcounts[loop] > 1)
    offsets = [stream.base[-1], *(stream.steps[loop] for loop in moving)]
    if any(offset % formats.MX_GROUP for offset in offsets):
        raise ValueError(
            f"base and steps of the last dimension of {stream.dtype} must be multiples of "
            f"{formats.MX_GROUP} to be converted; the {side} has {offsets}"
        )


def _hole(source: ITensor, target: ITensor) -> tuple[int, int] | None:
    """(dimension, coordinate) that the target reads and the source does not send, None when there is none."""
    for r, (sent, wanted) in enumerate(zip(_covers(source), _covers(target), strict=True)):
        if (coordinate := first_missing(sent, wanted)) is not None:
            return r, coordinate
    return None


def _covers(stream: ITensor) -> list[Cover]:
    """What the stream covers, by dimension."""
    return [
        Cover.of(start, extent, [(stream.tripcounts[loop], stream.steps[loop]) for loop in loops])
        for start, extent, loops in zip(stream.base, stream.element_shape, stream.iter_map, strict=True)
    ]


def _build(
    source: ITensor, target: ITensor, fill: list[tuple[Unit, Loop]], read: list[tuple[Unit, Loop]]
) -> Converter:
    """The converter with the longest prefix that these units allow."""

    def legal(fill_rest: list[Loop], read_rest: list[Loop]) -> bool:
        return _hole(nest_of(source, fill_rest), nest_of(target, read_rest)) is None

    parts = shared_prefix([loop for _, loop in fill], [loop for _, loop in read], legal)
    fill_nest, fill_origin = cut(source, fill, parts)
    read_nest, read_origin = cut(target, read, parts)
    return Converter(
        source=source,
        target=target,
        fill=fill_nest,
        read=read_nest,
        fill_origin=fill_origin,
        read_origin=read_origin,
        shared=len(parts),
    )
