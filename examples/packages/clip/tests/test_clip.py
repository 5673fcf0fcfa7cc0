"""The clip conforms: all that graphs, passes and the emitter ask of a kernel."""

import numpy as np
from streamgen_example_clip import ClipParams

from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.testing import conformance_tests

PARAMS = ClipParams(lanes=2, max_tokens=40)


def rows(tokens: int, dtype: str = "f24") -> ITensor:
    return ITensor((1, 2), dtype, (tokens, 2), (1, 2), ((0,), (1,)))


def case(tokens: int, limit: float, seed: int) -> tuple:
    """Values around the limit, and those that are special."""
    values = formats.round_f24(np.random.default_rng(seed).normal(size=(tokens, 4)) * 2)
    values[0] = limit, -np.inf, np.nan, -0.0
    return {"itensor": rows(tokens), "limit": limit}, {"i": values}


test_clip_conforms = conformance_tests(
    PARAMS,
    [case(8, 1.5, 0), case(1, 0.0, 1), case(20, np.inf, 2)],
    refused=[
        {"itensor": rows(21), "limit": 1.0},
        {"itensor": rows(1, "f32"), "limit": 1.0},
        {"itensor": rows(1), "limit": -1.0},
        {"itensor": rows(1), "limit": 0.1},
    ],
)
