"""Weights as the columns of a matmul read them, and the same order of tiles in tokens of another width."""

from math import prod

import numpy as np

from streamgen.itensor import ITensor
from streamgen.numbers.quantisation import QuantisedWeight


def column_tensors(
    weight: QuantisedWeight, rows: int, width: int, bias: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Codes "w", row scales "r" and, for weights in groups, group scales "s" of all columns together.

    rows, width: rows and elements of a row with padding, which is zero. bias: f24, at most `rows` values; it
    is stored beside the row scales.
    """
    n, k = weight.codes.shape
    codes = weight.codes
    if (n, k) != (rows, width):
        codes = np.zeros((rows, width), weight.codes.dtype)
        codes[:n, :k] = weight.codes
    scale = np.zeros(rows, np.float32)
    scale[:n] = weight.row_scale
    if bias is not None:
        beside = np.zeros(rows, np.float32)
        beside[: len(bias)] = bias
        scale = np.stack([scale, beside], 1)
    tensors = {"w": codes, "r": scale}
    if weight.scale is not None:
        parts = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum]
        assert weight.group is not None
        groups = np.zeros((rows, width // weight.group, len(parts)), weight.scale.dtype)
        for i, part in enumerate(parts):
            groups[:n, : part.shape[1], i] = part
        tensors["s"] = groups
    return tensors


def in_tokens_of(itensor: ITensor, lanes: int) -> ITensor:
    """The same order in tokens of `lanes` elements of a row. Each token is cut into parts, or neighbouring
    tokens are joined."""
    present = prod(itensor.element_shape)
    trips, steps, (rows, inner) = list(itensor.tripcounts), list(itensor.steps), itensor.iter_map
    if lanes < present:
        trips, steps, inner = [*trips, present // lanes], [*steps, lanes], (*inner, len(trips))
    elif lanes > present:
        trips[-1], steps[-1] = trips[-1] * present // lanes, lanes
    assert prod(trips) * lanes == itensor.token_count * present, (itensor, lanes)
    return ITensor((1, lanes), itensor.dtype, tuple(trips), tuple(steps), (rows, inner), itensor.base)
