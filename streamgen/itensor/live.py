"""How much any converter between two streams must hold, by replaying both.

Everything is a sum over dimensions: the index of the first token that sends an element is the sum, over
the dimensions, of the least index weight that reaches its coordinate (re-use loops add nothing), the
index of the last token that reads it the sum of the greatest ones. So only the two results, one number
per element and one per target token, are as large as the tensor.
"""

from functools import reduce
from math import prod

import numpy as np

from streamgen.itensor.type import ITensor


def live_elements(source: ITensor, target: ITensor) -> int:
    """The greatest number of elements present and still to be read, after a push and before the takes."""
    sent = [_reach(source, r, np.minimum) for r in range(source.rank)]
    read = [_reach(target, r, np.maximum) for r in range(target.rank)]
    wanted = [np.flatnonzero(index >= 0) for index in read]
    first = reduce(np.add.outer, [index[where] for index, where in zip(sent, wanted, strict=True)]).reshape(
        -1
    )
    last = reduce(np.add.outer, [index[where] for index, where in zip(read, wanted, strict=True)]).reshape(-1)
    repeats = zip(target.tripcounts, _weights(target), target.dimensions, strict=True)
    last += sum((trip - 1) * weight for trip, weight, served in repeats if served is None)
    taken = _taken(target, sent)[last]
    ticks = source.token_count + 1
    change = np.bincount(first, minlength=ticks) - np.bincount(taken + 1, minlength=ticks)
    return int(np.cumsum(change).max())


def _weights(stream: ITensor) -> list[int]:
    """How far an iteration of each loop moves on in the stream."""
    return [prod(stream.tripcounts[loop + 1 :]) for loop in range(len(stream.tripcounts))]


def _grid(stream: ITensor, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and index weights of all iterations of the loops of dimension r, one axis per loop."""
    weights = _weights(stream)
    offsets, index = np.array(stream.base[r]), np.array(0)
    for loop in stream.iter_map[r]:
        i = np.arange(stream.tripcounts[loop], dtype=np.int64)
        offsets = np.add.outer(offsets, i * stream.steps[loop])
        index = np.add.outer(index, i * weights[loop])
    return offsets, index


def _reach(stream: ITensor, r: int, best: np.ufunc) -> np.ndarray:
    """By coordinate of dimension r, the best index weight of a token that covers it; -1 for none."""
    offsets, index = (part.reshape(-1) for part in _grid(stream, r))
    unreached = np.iinfo(np.int64).max if best is np.minimum else -1
    result = np.full(stream.shape[r], unreached, np.int64)
    for e in range(stream.element_shape[r]):
        best.at(result, offsets + e, index)
    result[result == unreached] = -1
    return result


def _taken(target: ITensor, sent: list[np.ndarray]) -> np.ndarray:
    """By target token, the source token after which it is taken."""
    complete = np.zeros(target.tripcounts, np.int64)
    for r, index in enumerate(sent):
        offsets, _ = _grid(target, r)
        latest = reduce(np.maximum, (index[offsets + e] for e in range(target.element_shape[r])))
        axes = [trip if loop in target.iter_map[r] else 1 for loop, trip in enumerate(target.tripcounts)]
        complete += latest.reshape(axes)
    return np.maximum.accumulate(complete.reshape(-1))
