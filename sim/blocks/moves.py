"""Kernels and converters that move tiles and change none."""

from sim.blocks.cases import Case, stream_of_bits
from streamgen.converters import LayoutParams, PingPongParams, choose_converter
from streamgen.itensor import ITensor
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.embedding import EmbeddingParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.kernels.moves.unzip import UnzipParams

__all__ = [
    "concats",
    "converters",
    "embeddings",
    "forks",
    "row_fitters",
    "row_joiners",
    "row_takers",
    "segments",
    "switches",
    "unzips",
]


def forks() -> list[ForkParams]:
    return [
        ForkParams(token_bits=bits, ways=ways, max_tokens=tokens)
        for bits, ways, tokens in ((8, 2, 4), (24, 3, 1000), (280, 2, 60000), (280, 8, 1000), (512, 20, 100))
    ]


def concats() -> list[Case]:
    cases: list[Case] = []
    for ways, dtype, shape, tokens in (
        (2, "f24", (1, 1), 10),
        (4, "f24", (1, 1), 5000),
        (16, "f24", (1, 1), 1 << 16),
        (3, "i8", (4, 1), 300),
        (8, "f24", (4, 1), 1000),
    ):
        params = ConcatParams(ways=ways, dtype=dtype, element_shape=shape, max_tokens=tokens)
        cases.append((params, {"itensor": ITensor(shape, dtype, (4,), (1,), ((0,), ()))}))
    return cases


def switches() -> list[Case]:
    shapes = ((24, 2, 100), (96, 2, 60000), (280, 3, 1 << 20), (280, 5, 1000), (512, 8, 1000))
    return [
        (kind(token_bits=bits, ways=ways, max_tokens=tokens), {"itensor": stream_of_bits(bits), "way": 1})
        for kind in (SelectParams, RouteParams)
        for bits, ways, tokens in shapes
    ]


def row_takers() -> list[Case]:
    shapes = (("f24", 1, 100), ("f24", 4, 60000), ("mxi8s", 32, 1 << 20))
    return [
        (
            TakeRowsParams(dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "features": lanes, "first": 0, "count": 1},
        )
        for dtype, lanes, tokens in shapes
    ]


def row_fitters() -> list[Case]:
    shapes = (("f24", 1, 1), ("f24", 1, 100), ("i8", 2, 5000), ("f24", 4, 60000), ("i8", 16, 1 << 12))
    return [
        (
            FitRowsParams(dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "features": lanes, "fitted": lanes},
        )
        for dtype, lanes, tokens in (*shapes, ("f24", 16, 1 << 20), ("mxi8s", 32, (1 << 32) - 1))
    ]


def row_joiners() -> list[Case]:
    shapes = ((2, "f24", 1, 100), (2, "f24", 16, 60000), (3, "i8", 4, 5000), (5, "f24", 4, 1 << 20))
    return [
        (
            JoinRowsParams(ways=ways, dtype=dtype, lanes=lanes, max_tokens=tokens),
            {"rows": 1, "parts": (lanes,) * ways},
        )
        for ways, dtype, lanes, tokens in (*shapes, (8, "f24", 2, 4000))
    ]


def segments() -> list[Case]:
    shapes = ((24, 2, 100), (48, 3, 60000), (280, 4, 1 << 20))
    return [
        (
            SegmentsParams(token_bits=bits, ways=ways, max_tokens=tokens),
            {"itensor": stream_of_bits(bits), "sizes": (1,) * (ways - 1) + (5 - ways,)},
        )
        for bits, ways, tokens in shapes
    ]


def unzips() -> list[Case]:
    cases: list[Case] = []
    for ways, dtype, lanes, tokens in ((2, "f24", 1, 100), (2, "f24", 4, 60000), (3, "i8", 16, 1 << 20)):
        itensor = ITensor((1, ways * lanes), dtype, (4,), (1,), ((0,), ()))
        params = UnzipParams(ways=ways, dtype=dtype, lanes=lanes, max_tokens=tokens)
        cases.append((params, {"itensor": itensor}))
    return cases


def embeddings() -> list[EmbeddingParams]:
    return [
        EmbeddingParams(row_beats=beats, row_tokens=tokens, load_tokens=1 << 16, max_rows=rows, max_ids=ids)
        for beats, tokens, rows, ids in (
            (1, 1, 1000, 1),
            (6, 5, 49_152, 100),
            (36, 36, 49_152, 2048),
            (77, 300, 262_144, 1 << 20),
            (64, 64, 151_936, 4096),
        )
    ]


def converters() -> list[LayoutParams]:
    """What matmuls need: panels that are used again, rows as tiles of tokens, other widths, other orders."""
    pairs = [
        *(
            (_tiles("i4", (4, 32), (6, k), (0, 1)), _tiles("i4", (4, 32), (6, 3, k), (0, None, 1)))
            for k in (6, 48)
        ),
        (_tiles("i8", (2, 1, 2), (5, 18), (0, 1)), _tiles("i8", (2, 1, 2), (5, 4, 18), (0, None, 1))),
        (_tiles("mxi8s", (1, 32), (16, 18), (0, 1)), _tiles("mxi8s", (4, 32), (12, 4, 18), (None, 0, 1))),
        (_tiles("i16", (1,), (16,), (0,)), _tiles("i16", (1,), (12, 16), (None, 0))),
        (_tiles("f24", (1, 1), (96, 16), (1, 0)), _tiles("f24", (1, 4), (16, 24), (0, 1))),
        (_tiles("f24", (1, 16), (8, 12), (0, 1)), _tiles("f24", (1, 4), (8, 48), (0, 1))),
        (_tiles("f24", (1, 12), (8, 16), (0, 1)), _tiles("f24", (1, 16), (8, 12), (0, 1))),
        (_tiles("u8", (1, 4), (64, 64), (0, 1)), _tiles("u8", (4, 1), (256, 16), (1, 0))),
    ]
    found: list[LayoutParams] = []
    for source, target in pairs:
        found += [PingPongParams(source=source, target=target), choose_converter(source, target)]
    return list(dict.fromkeys(found))


def _tiles(
    dtype: str, element: tuple[int, ...], trips: tuple[int, ...], dimensions: tuple[int | None, ...]
) -> ITensor:
    """Loops over whole tiles along dimensions; None sends them all again."""
    steps = tuple(1 if d is None else element[d] for d in dimensions)
    served = tuple(tuple(loop for loop, d in enumerate(dimensions) if d == r) for r in range(len(element)))
    return ITensor(element, dtype, trips, steps, served)
