"""A dimension treated as two, so that words are numbered in the order in which the source fills them.

    x[.., k, ..] = y[.., k // width, k % width, ..]

A matmul sends a tile of features for all tokens, then the next tile. If words are numbered by whole
dimensions, no word of a tile is known to be complete before the whole tile is. With features folded by the
tile, words complete one after the other (`trace.steady_level`).
"""

from collections.abc import Iterator

from streamgen.itensor import ITensor

Fold = tuple[int, int]  # the dimension, elements of the inner one


def folds(source: ITensor) -> Iterator[Fold]:
    """Dimensions that the source advances along, leaves for another dimension and comes back to."""
    moving = [k for k, trip in enumerate(source.tripcounts) if trip > 1]
    for dim, loops in enumerate(source.iter_map):
        own = [k for k in moving if k in loops]
        others = [k for k in moving if k not in loops and source.dimensions[k] is not None]
        if own and any(own[0] < k < own[-1] for k in others):
            yield dim, source.steps[own[0]]


def folded(stream: ITensor, like: ITensor, fold: Fold) -> ITensor:
    """The stream with a folded dimension. Loops are cut where those of `like` cross the edge.

    like: differs only in trip counts. Raises ValueError if tiles or loops do not respect the edges.
    """
    dim, width = fold
    trips, steps, dims = [], [], []
    reach = stream.base[dim] % width + stream.element_shape[dim]
    for trip, step, greatest, served in zip(
        stream.tripcounts, stream.steps, like.tripcounts, stream.dimensions, strict=True
    ):
        if served != dim:
            own = [(trip, step, served if served is None or served < dim else served + 1)]
        elif step % width == 0:
            own = [(trip, step // width, dim)]
        elif step * greatest <= width:
            own = [(trip, step, dim + 1)]
        elif width % step == 0 and trip % (inner := width // step) == 0:
            own = [(trip // inner, 1, dim), (inner, step, dim + 1)]
        else:
            raise ValueError(f"dimension {dim} of {stream} cannot be folded by {width}")
        reach += sum((count - 1) * by for count, by, to in own if to == dim + 1)
        for count, by, to in own:
            trips.append(count)
            steps.append(by)
            dims.append(to)
    if reach > width:
        raise ValueError(f"tiles of {stream} lie across the edges of dimension {dim} folded by {width}")
    return ITensor(
        (*stream.element_shape[:dim], 1, *stream.element_shape[dim:]),
        stream.dtype,
        trips,
        steps,
        [[k for k, to in enumerate(dims) if to == d] for d in range(stream.rank + 1)],
        (*stream.base[:dim], *divmod(stream.base[dim], width), *stream.base[dim + 1 :]),
    )
