"""Layout converters: cycles of a window in simulation beside max(tokens in, tokens out), and what they hold.

    python benchmarks/converters.py

First table: each pair runs several descriptors back to back with every port ready, in a ping-pong converter
and in the one that is chosen; `cycles` is the distance between the first tokens of successive windows in
steady state. `bits` is all memory but the output queue: the buffer, and of a pool its map and free places.
`floor` is the least that any converter must hold if the source sends nothing twice (`live_bits`).

Then CORPUS random pairs: their bits against the ping-pong buffer and against the floor. `liveness allows` are
the pairs whose floor is at most SHARE of the ping-pong buffer. Of every SAMPLE-th pair the cycles of a window
are measured in simulation, in both converters.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from random import Random

import numpy as np

from streamgen.converters import InPlaceParams, PingPongParams, choose_converter
from streamgen.itensor import ITensor, infer_converter
from streamgen.numbers.formats import MX_GROUP
from streamgen.testing.bench import run
from streamgen.testing.kernel import descriptor_word

T, K, N = 16, 576, 1536
CORPUS, SHARE, SAMPLE = 500, 0.6, 20


def itensor(element, dtype, *loops) -> ITensor:
    """loops: (trip, step, dimension or None), outermost first."""
    return ITensor(
        element,
        dtype,
        [trip for trip, _, _ in loops],
        [step for _, step, _ in loops],
        [[k for k, (_, _, served) in enumerate(loops) if served == r] for r in range(len(element))],
    )


def rows_to_tiles(tokens: int, lanes: int) -> tuple[ITensor, ITensor]:
    return (
        itensor((1, 32), "mxi8s", (tokens, 1, 0), (K // 32, 32, 1)),
        itensor((lanes, 32), "mxi8s", (8, 1, None), (tokens // lanes, lanes, 0), (K // 32, 32, 1)),
    )


def outputs_to_rows(tokens: int, lanes: int, columns: int, width: int = 16) -> tuple[ITensor, ITensor]:
    tile = 4 * columns
    return (
        itensor(
            (1, columns),
            "f24",
            (N // tile, tile, 1),
            (tokens // lanes, lanes, 0),
            (lanes, 1, 0),
            (4, columns, 1),
        ),
        itensor((1, width), "f24", (tokens, 1, 0), (N // width, width, 1)),
    )


def transpose(source: tuple[int, int], target: tuple[int, int], extent: int = 64) -> tuple[ITensor, ITensor]:
    down, across = (
        (box, (extent // box[0], box[0], 0), (extent // box[1], box[1], 1)) for box in (source, target)
    )
    return itensor(down[0], "i8", down[1], down[2]), itensor(across[0], "i8", across[2], across[1])


PAIRS = {
    "8x8 (a) -> (b)": (
        itensor((2, 2), "f32", (4, 2, 0), (4, 2, 1)),
        itensor((4, 2), "f32", (4, 2, 1), (2, 4, 0)),
    ),
    "8x8 (b) -> (c)": (
        itensor((4, 2), "f32", (4, 2, 1), (2, 4, 0)),
        itensor((4, 2), "f32", (2, 4, 1), (2, 2, 1), (2, 1, None), (2, 4, 0)),
    ),
    "activations, 1 token lane, again for 8 tiles": rows_to_tiles(T, 1),
    "activations, 4 token lanes, again for 8 tiles": rows_to_tiles(T, 4),
    "outputs of 4 columns -> rows of 16": outputs_to_rows(T, 4, 4),
    "outputs of 8 columns -> rows of 16": outputs_to_rows(T, 4, 8),
    "outputs of 32 columns -> rows of 16": outputs_to_rows(T, 4, 32),
    "outputs of 3 columns -> rows of 16": outputs_to_rows(T, 4, 3),
    "heads: rows -> head by head": (
        itensor((1, 16), "f24", (T, 1, 0), (K // 16, 16, 1)),
        itensor((1, 16), "f24", (K // 64, 64, 1), (T, 1, 0), (4, 16, 1)),
    ),
    "row panels, columns inside": (
        itensor((1, 8), "i8", (16, 4, 0), (4, 1, 0), (8, 8, 1)),
        itensor((4, 1), "i8", (16, 4, 0), (64, 1, 1)),
    ),
    "transpose (1,8) -> (8,1)": transpose((1, 8), (8, 1)),
    "transpose (8,8) -> (8,8)": transpose((8, 8), (8, 8)),
    "transpose (1,32) -> (32,1)": transpose((1, 32), (32, 1)),
    "3x3 windows of pixels": (
        itensor((1, 1, 8), "i8", (16, 1, 0), (16, 1, 1)),
        itensor((3, 3, 8), "i8", (14, 1, 0), (14, 1, 1)),
    ),
    "rows of 12 -> rows of 16": (
        itensor((1, 12), "i8", (8, 1, 0), (8, 12, 1)),
        itensor((1, 16), "i8", (2, 4, 0), (6, 16, 1), (4, 1, 0)),
    ),
}


def random_pair(seed: int) -> tuple[ITensor, ITensor]:
    """A source and a target that needs a converter: 256 to 16384 elements (or groups of 32) of some format.

    Both sides cut the tensor in tiles of at most 32 elements (4 groups); every dimension has one loop or two,
    all loops in any order. 3 of 10 pairs share an outer loop, 3 of 10 targets read something again, 3 of 20
    targets of two dimensions read windows that overlap.
    """
    random = Random(seed)
    while True:
        dtype = random.choice(("i8", "f24", "f32", "mxi8s"))
        unit = MX_GROUP if dtype == "mxi8s" else 1
        rank = random.choice((2, 2, 2, 3))
        extents = [random.choice((4, 8, 12, 16, 24, 32, 48, 64, 96, 128)) for _ in range(rank)]
        if not 256 <= prod(extents) <= 16384:
            continue
        shared = []
        if random.random() < 0.3:
            served = random.choice((None, *range(rank)))
            shared.append((random.choice((2, 3, 4, 8)), 1 if served is None else extents[served], served))
        sides = [_tiles(random, extents, 32 if unit == 1 else 4) for _ in range(2)]
        if random.random() < 0.15 and rank == 2:
            tile = tuple(min(random.choice((1, 2, 3, 5)), extent) for extent in extents)
            steps = [(extent - t + 1, 1, r) for r, (extent, t) in enumerate(zip(extents, tile, strict=True))]
            sides[1] = (tile, steps)
        if random.random() < 0.3:
            sides[1][1].insert(random.randint(0, len(sides[1][1])), (random.choice((2, 3, 4, 8)), 1, None))
        source, target = (
            itensor(
                (*tile[:-1], tile[-1] * unit),
                dtype,
                *((trip, step * unit if r == rank - 1 else step, r) for trip, step, r in shared + loops),
            )
            for tile, loops in sides
        )
        try:
            if max(source.token_count, target.token_count) <= 20_000 and infer_converter(source, target):
                return source, target
        except ValueError:  # the target reads what the source does not send
            continue


def _tiles(
    random: Random, extents: Sequence[int], most: int
) -> tuple[tuple[int, ...], list[tuple[int, int, int | None]]]:
    """A tile of at most so many elements, and the loops that cover the extents with it."""
    while True:
        tile = tuple(random.choice([d for d in range(1, min(e, 32) + 1) if e % d == 0]) for e in extents)
        if prod(tile) <= most:
            break
    loops: list[tuple[int, int, int | None]] = []
    for r, extent in enumerate(extents):
        step, rest = tile[r], extent // tile[r]
        if rest > 1 and random.random() < 0.4:
            inner = random.choice([d for d in range(1, rest + 1) if rest % d == 0])
            if inner > 1:
                loops.append((inner, step, r))
            step, rest = step * inner, rest // inner
        if rest > 1:
            loops.append((rest, step, r))
    random.shuffle(loops)
    return tile, loops


def measured(params: PingPongParams | InPlaceParams) -> float:
    """Cycles of a window in steady state."""
    bounds = {"source": params.source, "target": params.target}
    converter = params.converter
    random = np.random.default_rng(0)
    runs = 5 if converter.windows < 3 else 2
    tokens = [
        int.from_bytes(random.bytes(-(-params.source.token_bits // 8)), "little")
        >> (-params.source.token_bits % 8)
        for _ in range(params.source.token_count)
    ]
    streams = {"i_descriptor": [descriptor_word(params, bounds)] * runs, "i": tokens * runs}
    result = run(params.build(), streams, {"o": runs * params.target.token_count})
    starts = np.array(result.cycles["o"][:: converter.reads])
    if converter.windows > 2:
        return float(np.median(np.diff(starts)))
    return float(starts[-1] - starts[len(starts) // 2]) / (len(starts) - 1 - len(starts) // 2)


def scheme(params: PingPongParams | InPlaceParams) -> str:
    """How it keeps its words."""
    return params.scheme if isinstance(params, InPlaceParams) else "ping-pong"


def table() -> None:
    """Print the named pairs."""
    print(
        f"{'pair':46} {'windows':>7} {'in':>5} {'out':>5} {'cycles':>14} {'bits':>17} {'floor':>7}"
        f"  {'chosen':9} memory"
    )
    for name, (source, target) in PAIRS.items():
        both = PingPongParams(source=source, target=target), choose_converter(source, target)
        converter = both[0].converter
        cycles = [measured(params) for params in both]
        resources = both[1].resources
        print(
            f"{name:46} {converter.windows:7} {converter.fills:5} {converter.reads:5}"
            f" {cycles[0]:6.1f} {cycles[1]:7.1f} {both[0].held_bits:8} {both[1].held_bits:8}"
            f" {converter.live_bits:7}"
            f"  {scheme(both[1]):9} {resources.bram:g} BRAM, {resources.uram:g} URAM,"
            f" {resources.lut:g} LUT, {resources.ff:g} FF"
        )


def corpus() -> None:
    """Print the distribution over random pairs."""
    found = []
    for seed in range(CORPUS):
        pair = random_pair(seed)
        half, chosen = PingPongParams(source=pair[0], target=pair[1]), choose_converter(*pair)
        found.append((seed, half, chosen, half.converter.live_bits))
    allowed = [entry for entry in found if entry[3] <= SHARE * entry[1].held_bits]
    quantiles = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    print(f"\n{CORPUS} random pairs; quantiles at {', '.join(f'{q:g}' for q in quantiles)}")
    for title, entries in (("all", found), (f"liveness allows (floor <= {SHARE} ping-pong)", allowed)):
        totals = [
            sum(bits)
            for bits in zip(*((h.held_bits, c.held_bits, live) for _, h, c, live in entries), strict=True)
        ]
        print(f"{title}: {len(entries)} pairs, {dict(Counter(scheme(c) for _, _, c, _ in entries))}")
        print(f"  bits: ping-pong {totals[0]}, chosen {totals[1]}, floor {totals[2]}")
        print(f"  chosen / ping-pong {totals[1] / totals[0]:.3f}, chosen / floor {totals[1] / totals[2]:.3f}")
        for text, shares in (
            ("chosen / ping-pong", [c.held_bits / h.held_bits for _, h, c, _ in entries]),
            ("chosen / floor", [c.held_bits / live for _, _, c, live in entries]),
            ("floor / ping-pong", [live / h.held_bits for _, h, _, live in entries]),
        ):
            print(f"  {text:20} {' '.join(f'{q:5.2f}' for q in np.quantile(shares, quantiles))}")
    sample = found[::SAMPLE]
    slower = [measured(chosen) - measured(half) for _, half, chosen, _ in sample]
    print(f"cycles of a window, chosen - ping-pong, {len(sample)} pairs: {min(slower):g} to {max(slower):g}")


def main() -> None:
    """Print both."""
    table()
    corpus()


if __name__ == "__main__":
    main()
