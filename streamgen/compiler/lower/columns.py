"""Weights as the columns of a matmul read them, and the same order of tiles in other tokens."""

from math import prod

import numpy as np

from streamgen.itensor import ITensor
from streamgen.numbers.quantisation import QuantisedWeight


def column_tensors(
    weight: QuantisedWeight, rows: int, width: int, bias: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Codes "w", row scales "r", group scales "s" of all columns together: `rows` rows, zero where padded.

    bias: f24 [rows] beside the row scales, or fewer rows.
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
    """The same order in tokens of `lanes` elements of a row: each cut in parts, or neighbours joined."""
    present = prod(itensor.element_shape)
    trips, steps, (rows, inner) = list(itensor.tripcounts), list(itensor.steps), itensor.iter_map
    if lanes < present:
        trips, steps, inner = [*trips, present // lanes], [*steps, lanes], (*inner, len(trips))
    elif lanes > present:
        trips[-1], steps[-1] = trips[-1] * present // lanes, lanes
    assert prod(trips) * lanes == itensor.token_count * present, (itensor, lanes)
    return ITensor((1, lanes), itensor.dtype, tuple(trips), tuple(steps), (rows, inner), itensor.base)
