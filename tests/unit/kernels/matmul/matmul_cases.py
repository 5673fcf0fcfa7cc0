"""Small columns, their bounds and random operands, for the tests of the matmul."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.weights import WeightsParams
from streamgen.numbers import formats
from streamgen.numbers.weights import FORMATS

__all__ = ["beats_of", "bounds_of", "column", "operands", "random_bounds"]


def column(**changes: Any) -> ColumnParams:
    """A column of two rows and one token, W4 with 8-bit scales for groups of 32, with `changes`."""
    lanes = {"t_lanes": 1, "n_lanes": 2} | {k: v for k, v in changes.items() if k.endswith("_lanes")}
    fields = {
        **lanes,
        "formats": ("w4",),
        "group": 32,
        "scale_bits": 8,
        "minimum": False,
        "max_k": 128,
        "max_n": 2 * lanes["n_lanes"],
        "max_t": 2 * lanes["t_lanes"] if lanes["t_lanes"] > 1 else 4,
    }
    return ColumnParams(**{**fields, **changes})


def bounds_of(params: ColumnParams, **changes: Any) -> dict[str, Any]:
    """The largest bounds of a column, with `changes`."""
    form = changes.get("format", params.formats[0])
    return {
        "t": params.max_t,
        "k": params.longest(form),
        "n": params.max_n,
        "format": form,
        "grouped": params.scale_bits > 0 and bool(FORMATS[form].groups),
        **changes,
    }


def random_bounds(params: ColumnParams, rng: np.random.Generator) -> dict[str, Any]:
    """Any bounds that a column can run."""
    form = str(rng.choice(params.formats))
    grouped = params.scale_bits > 0 and bool(FORMATS[form].groups) and bool(rng.random() < 0.7)
    sizes = {}
    for name, unit, most in (
        ("t", params.t_lanes, params.max_t),
        ("n", params.n_lanes, params.max_n),
        ("k", params.group if grouped else 32, params.longest(form)),
    ):
        sizes[name] = unit * int(rng.integers(1, most // unit + 1))
    return {**sizes, "format": form, "grouped": grouped}


def operands(
    params: ColumnParams, bounds: Mapping[str, Any], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Random inputs: every code, weight and scale, shifts 0 to 16, results of any common size."""
    T, K, N = bounds["t"], bounds["k"], bounds["n"]
    x = np.zeros((T, K), formats.MX)
    x["shift"] = np.repeat(rng.choice([0, 1, 2, 3, 7, 14, 15, 16], (T, K // 32)), 32, 1)
    x["step"] = np.repeat(rng.integers(0, 4, (T, K // 32)), 32, 1)
    x["code"] = np.where(x["shift"] < 16, rng.integers(-127, 128, (T, K)), 0)
    limit = 1 << FORMATS[bounds["format"]].code_bits - 1
    inputs = {
        "i_x": x,
        "i_e": rng.integers(-20, 20, T).astype(np.int16),
        "i_w": rng.integers(-limit, limit, (N, K)).astype(np.int8),
        "i_r": formats.round_f24(rng.normal(size=N)),
    }
    if params.bias:
        bias = rng.choice([0.0, -0.0, 1e-30, np.inf, 1.0, -3.5, 1e4], N) * rng.choice([1.0, rng.random()], N)
        inputs["i_r"] = np.stack([inputs["i_r"], formats.round_f24(bias)], 1)
    if bounds["grouped"]:
        limit = 1 << params.scale_bits - 1
        shape = (N, K // params.group, 1 + params.minimum)
        kind = formats.numpy_dtype(f"i{params.scale_bits}")
        inputs["i_s"] = rng.integers(-limit, limit, shape).astype(kind)
    return inputs


def beats_of(
    params: WeightsParams, bounds: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights among the operands of a column as beats of memory."""
    arrays = {port[2:]: array for port, array in inputs.items() if port in ("i_w", "i_s", "i_r")}
    return {"i": params.layout(bounds).pack(**arrays)}
