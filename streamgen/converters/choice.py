"""Chooses the converter of a pair of streams: the one with the least memory that loses no throughput.

A ping-pong converter works for every pair, and a window takes max(F, D) cycles in it. An in-place converter
is chosen if it needs at most the share WORTH of the ping-pong buffer, map and free places included, and saves
at least LEAST bits (its control costs about as many LUTs as hold that many bits), and if a window still takes
max(F, D) cycles. It need not save LEAST bits if a window that is read repeatedly can be read before half of
it is written: otherwise all of the readings wait for data that may come slowly. The smallest number of places
is found by bisection on exact timing, because with more places nothing happens later.

If the source comes back to a dimension, an in-place converter that folds the dimension is taken if there is
one: the last tokens of a tile then need not be waited for (`folding`).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from streamgen.converters import timing
from streamgen.converters.folding import folds
from streamgen.converters.inplace import InPlaceParams
from streamgen.converters.pingpong import PingPongParams
from streamgen.itensor import ITensor

WORTH, LEAST = 0.9, 1024


@lru_cache(maxsize=1024)
def choose_converter(
    source: ITensor, target: ITensor, smaller: tuple[tuple[ITensor, ITensor], ...] = ()
) -> PingPongParams | InPlaceParams:
    """The converter for a pair. source, target: the streams at the greatest bounds. smaller: further bounds
    that it must support; a scheme that cannot is not taken.

    Raises ValueError if `infer_converter` does, and if no conversion is needed.
    """
    pair = PingPongParams(source=source, target=target)
    for seen in (*_folded(pair), pair):
        best = _least(seen, smaller)
        if best is not None:
            return best
    return pair


def _folded(pair: PingPongParams) -> Iterator[PingPongParams]:
    """The pair with a folded dimension, if folding shows earlier which words are complete; else None."""
    for fold in folds(pair.source):
        try:
            yield replace(pair, fold=fold)
        except ValueError:  # tiles lie across its edges
            continue


def _least(pair: PingPongParams, smaller: tuple[tuple[ITensor, ITensor], ...]) -> InPlaceParams | None:
    """The in-place converter with the least memory among those that are worthwhile; None if there is none."""
    best, most = None, int(WORTH * pair.held_bits)
    for scheme, after in _schemes(pair):
        smallest = _smallest(pair, scheme, after, most)
        if smallest is None or (smallest.held_bits > pair.held_bits - LEAST and not _reads_early(smallest)):
            continue
        if all(_runs(smallest, *bounds) for bounds in smaller):
            best, most = smallest, smallest.held_bits - 1
    return best


def _reads_early(params: InPlaceParams) -> bool:
    """Whether a window that is read repeatedly can be read before half of it is written."""
    trips = params.trips({"source": params.source, "target": params.target})
    rules = params.rules(trips, every=False)
    fills = len(rules.wants)
    return rules.reads > fills and 2 * (int(rules.completes[0]) + 1) < fills


Scheme = tuple[Literal["ring", "pool"], int]


def _schemes(pair: PingPongParams) -> Iterator[Scheme]:
    """The candidates: a ring, perhaps with outer loops whose last iteration frees places, and a pool."""
    yield from (("ring", after) for after in range(len(pair.reader.inner)))
    yield "pool", 0


def _runs(params: InPlaceParams, source: ITensor, target: ITensor) -> bool:
    try:
        params.describe({"source": source, "target": target})
    except ValueError:
        return False
    return True


def _smallest(
    pair: PingPongParams, scheme: Literal["ring", "pool"], after: int, most: int
) -> InPlaceParams | None:
    """The converter with the fewest places and at most that many bits; None if there is none."""

    def build(places: int) -> InPlaceParams:
        return InPlaceParams(
            source=pair.source,
            target=pair.target,
            fold=pair.fold,
            scheme=scheme,
            places=places,
            after=after,
        )

    high = min(2 * pair.banking.words - 1, most // pair.word_bits)
    if high < 2:
        return None
    try:
        params = build(2 * pair.banking.words - 1)
    except ValueError:  # the scheme does not support these loops
        return None
    if scheme == "ring" and after and not params.reader.level:
        return None  # no place comes free before the end of a window, as without `after`
    rules = params.rules(params.trips({"source": pair.source, "target": pair.target}), every=False)
    least = max(len(rules.wants), rules.reads)

    def keeps_up(places: int) -> bool:
        delay = replace(params.pool, places=places).delay if scheme == "pool" else rules.delay
        return timing.period(replace(rules, slots=places, delay=delay)) <= least

    if not keeps_up(high):
        return None
    low = 2
    while low < high:
        middle = (low + high) // 2
        if keeps_up(middle):
            high = middle
        else:
            low = middle + 1
    smallest = build(high)
    return smallest if smallest.held_bits <= most else None
