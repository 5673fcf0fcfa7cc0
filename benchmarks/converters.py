"""Layout converters: cycles of a window in simulation beside max(tokens in, tokens out), and what they hold.

    python benchmarks/converters.py

Each pair runs four descriptors back to back with every port ready; `cycles` is the distance between the
first tokens of successive windows in steady state. `bits` is the ping-pong buffer of the inferred
converter, `floor` the least that any converter must hold if the source sends nothing twice.
"""

from math import prod

import numpy as np

from sim.bench import run
from sim.kernel import descriptor_word
from streamgen.converters import PingPongParams
from streamgen.itensor import ITensor

T, K, N = 16, 576, 1536


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


def measured(params: PingPongParams) -> float:
    """Cycles of a window in steady state."""
    bounds = {"source": params.source, "target": params.target}
    converter = params.converter
    random = np.random.default_rng(0)
    runs = 4
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
    return float(starts[-1] - starts[1]) / (len(starts) - 2)


def main() -> None:
    """Print the table."""
    print(
        f"{'pair':46} {'windows':>7} {'in':>5} {'out':>5} {'bound':>6} {'cycles':>7} {'ratio':>6}"
        f" {'bits':>8} {'floor':>8}  memory"
    )
    for name, (source, target) in PAIRS.items():
        params = PingPongParams(source=source, target=target)
        converter, resources = params.converter, params.resources
        bound = max(converter.fills, converter.reads)
        cycles = measured(params)
        banks = prod(params.banking.source.ways)
        bank = params.banks.bank
        print(
            f"{name:46} {converter.windows:7} {converter.fills:5} {converter.reads:5} {bound:6} {cycles:7.1f}"
            f" {cycles / bound:6.2f} {converter.bits:8} {converter.live_bits:8}"
            f"  {banks} x {bank.bits} x {bank.depth} {bank.kind},"
            f" {resources.bram:g} BRAM, {resources.uram:g} URAM, {resources.lut:g} LUT, {resources.ff:g} FF"
        )


if __name__ == "__main__":
    main()
