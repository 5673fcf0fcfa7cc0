"""Random legal pairs of itensors, random bounds for them, random tensors."""

from math import prod
from random import Random

import numpy as np

from streamgen.contract import Bounds
from streamgen.converters import PingPongParams
from streamgen.itensor import ITensor, infer_converter
from streamgen.numbers import formats

Loop = tuple[int, int, int | None]


def itensor(element, dtype, loops: list[Loop], base=None) -> ITensor:
    """loops: (trip, step, dimension or None), outermost first."""
    return ITensor(
        element,
        dtype,
        [trip for trip, _, _ in loops],
        [step for _, step, _ in loops],
        [[k for k, (_, _, served) in enumerate(loops) if served == r] for r in range(len(element))],
        base,
    )


def random_pair(random: Random, dtype: str = "u8") -> tuple[ITensor, ITensor]:
    """A pair that needs a converter: re-use, tiles of tiles, windows, gaps, slices, shared loops."""
    unit = formats.MX_GROUP if formats.is_mx(dtype) else 1
    while True:
        rank = random.choice((1, 1, 2, 2, 2, 3, 4))
        extents = [random.choice((1, 2, 3, 4, 6, 8, 12) if rank < 3 else (1, 2, 3, 4)) for _ in range(rank)]
        base = [random.choice((0, 0, 0, 1, 2, 4)) for _ in range(rank)]
        shared: list[Loop] = []
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            served = random.choice((None, *range(rank)))
            extent = 1 if served is None else extents[served]
            step = random.choice((extent, extent + 1, max(1, extent // 2)))
            shared.append((random.choice((2, 3, 4)), step, served))
        source = _tiles(random, extents, shared, base)
        choose = _tiles if random.random() < 0.5 else _windows
        target = choose(random, extents, shared, base)
        pair = [_scaled(unit, dtype, *side) for side in (source, target)]
        if max(side.token_count for side in pair) > 150 or prod(pair[0].shape) > 600 * unit:
            continue
        try:
            if infer_converter(*pair) is not None:
                return pair[0], pair[1]
        except ValueError:
            continue


def random_bounds(random: Random, params: PingPongParams) -> Bounds:
    """Other trip counts that the hardware runs, or the greatest ones when 30 tries find none."""
    for _ in range(30):
        bounds = {}
        for side, full in (("source", params.source), ("target", params.target)):
            trips = [random.randint(1, trip) if random.random() < 0.5 else trip for trip in full.tripcounts]
            bounds[side] = ITensor(
                full.element_shape, full.dtype, trips, full.steps, full.iter_map, full.base
            )
        try:
            params.describe(bounds)
        except ValueError:
            continue
        return bounds
    return {"source": params.source, "target": params.target}


def random_tensor(random: Random, source: ITensor) -> np.ndarray:
    """A tensor for the source, of any bits that the format has."""
    generator = np.random.default_rng(random.getrandbits(32))
    shape = source.shape
    if not formats.is_mx(source.dtype):
        return generator.integers(0, 100, shape).astype(formats.numpy_dtype(source.dtype))
    tensor = np.zeros(shape, formats.MX)
    tensor["code"] = generator.integers(-127, 128, shape)
    groups = (*shape[:-1], shape[-1] // formats.MX_GROUP)
    tensor["shift"] = np.repeat(
        generator.integers(0, formats.MX_MAX_SHIFT, groups), formats.MX_GROUP, axis=-1
    )
    return tensor


def _tiles(random, extents, shared, base):
    """Tiles that cover the extents, tiled again and again, in any order, with re-use."""
    element, loops = [], []
    for r, extent in enumerate(extents):
        step = random.choice([d for d in range(1, extent + 1) if extent % d == 0])
        element.append(step)
        while (rest := extent // step) > 1:
            trip = random.choice([d for d in range(2, rest + 1) if rest % d == 0])
            loops.append((trip, step, r))
            step *= trip
    return element, shared + _shuffled(random, loops), base


def _windows(random, extents, shared, base):
    """Windows that overlap or leave gaps, somewhere in the extents."""
    element, loops, start = [], [], []
    for r, extent in enumerate(extents):
        element.append(random.randint(1, min(extent, 5)))
        room = extent - element[-1]
        for _ in range(random.choice((0, 1, 1, 2))):
            if room:
                step = random.randint(1, room)
                loops.append((random.randint(1, room // step + 1), step, r))
                room -= (loops[-1][0] - 1) * step
        start.append(base[r] + random.randint(0, room))
    return element, shared + _shuffled(random, loops), start


def _shuffled(random, loops):
    if random.random() < 0.4:
        loops.append((random.choice((2, 3)), 1, None))
    if random.random() < 0.1:
        loops.append((1, 1, random.choice((None, 0))))
    random.shuffle(loops)
    return loops


def _scaled(unit, dtype, element, loops, base):
    last = len(element) - 1
    return itensor(
        [*element[:-1], element[-1] * unit],
        dtype,
        [(trip, step * unit if served == last else step, served) for trip, step, served in loops],
        [*base[:-1], base[-1] * unit],
    )
