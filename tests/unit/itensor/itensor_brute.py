"""What the definitions say, token by token and element by element."""

from itertools import product
from math import prod

import numpy as np


def offsets(stream):
    """Nested `for`s."""
    result = []
    for index in product(*(range(trip) for trip in stream.tripcounts)):
        result.append(
            tuple(
                start + sum(index[loop] * stream.steps[loop] for loop in loops)
                for start, loops in zip(stream.base, stream.iter_map, strict=True)
            )
        )
    return result


def elements(stream, offset):
    """The elements of a token, row-major."""
    return list(product(*(range(o, o + e) for o, e in zip(offset, stream.element_shape, strict=True))))


def tokens(stream):
    """The elements of every token."""
    return [elements(stream, offset) for offset in offsets(stream)]


def same(a, b):
    """Whether the two streams are one."""
    return (a.element_shape, a.dtype, offsets(a)) == (b.element_shape, b.dtype, offsets(b))


def readable(source, target):
    """Whether the target reads only what the source sends."""
    return set().union(*tokens(target)) <= set().union(*tokens(source))


def smallest_buffer(source, target):
    """Fewest elements of a window's region, over all ways to cut both streams in windows.

    Nothing here knows loops: both streams are cut in W equal runs; the runs of each must be translates
    of its first run, window by window by the same vectors, and read only what is sent in the window.
    """
    sent, read = offsets(source), offsets(target)
    best = None
    for windows in range(1, min(len(sent), len(read)) + 1):
        if len(sent) % windows or len(read) % windows:
            continue
        vectors = []
        for stream in (sent, read):
            runs = np.array(stream).reshape(windows, len(stream) // windows, -1)
            moved = runs - runs[:, :1]
            vectors.append((runs[:, 0] - runs[0, 0]).tolist() if (moved == moved[0]).all() else None)
        if vectors[0] is None or vectors[0] != vectors[1]:
            continue
        here = set().union(*(elements(source, o) for o in sent[: len(sent) // windows]))
        there = set().union(*(elements(target, o) for o in read[: len(read) // windows]))
        if there <= here:
            region = np.array(sorted(there))
            size = prod((region.max(axis=0) - region.min(axis=0) + 1).tolist())
            best = size if best is None else min(best, size)
    return best


def replay(converter):
    """Run the ping-pong buffer: what each target token holds, in terms of the elements sent."""
    sent, wanted = iter(tokens(converter.fill)), iter(tokens(converter.read))
    lead = converter.shared
    result = []
    for index in product(*(range(trip) for trip in converter.fill.tripcounts[:lead])):
        start = list(converter.target.base)
        for r, loops in enumerate(converter.read.iter_map):
            start[r] += sum(index[loop] * converter.read.steps[loop] for loop in loops if loop < lead)
        buffer = {}
        for _ in range(converter.fills):
            for element in next(sent):
                place = tuple(x - s for x, s in zip(element, start, strict=True))
                if all(0 <= p < extent for p, extent in zip(place, converter.buffer_shape, strict=True)):
                    buffer[place] = element
        for _ in range(converter.reads):
            token = next(wanted)
            places = [tuple(x - s for x, s in zip(element, start, strict=True)) for element in token]
            result.append([buffer.get(place) for place in places])
    assert next(sent, None) is None
    assert next(wanted, None) is None
    return result


def live(source, target):
    """Greatest number of elements held, pushing and taking token by token."""
    wanted = tokens(target)
    last = {element: k for k, token in enumerate(wanted) for element in token}
    present, taken, peak = set(), 0, 0
    for token in tokens(source):
        present |= set(token)
        peak = max(peak, sum(last.get(element, -1) >= taken for element in present))
        while taken < len(wanted) and present.issuperset(wanted[taken]):
            taken += 1
    assert taken == len(wanted)
    return peak
