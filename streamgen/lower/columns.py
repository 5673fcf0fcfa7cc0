"""Weights as the columns of a matmul read them."""

import numpy as np

from streamgen.quantisation import QuantisedWeight

__all__ = ["column_tensors"]


def column_tensors(weight: QuantisedWeight, rows: int, width: int) -> dict[str, np.ndarray]:
    """Streams of all columns together: arrays of `rows` rows, zero where padded."""
    n, k = weight.codes.shape
    codes = np.zeros((rows, width), weight.codes.dtype)
    codes[:n, :k] = weight.codes
    scale = np.zeros(rows, np.float32)
    scale[:n] = weight.row_scale
    tensors = {"i_w": codes, "i_r": scale}
    if weight.scale is not None:
        parts = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum]
        assert weight.group is not None
        groups = np.zeros((rows, width // weight.group, len(parts)), weight.scale.dtype)
        for i, part in enumerate(parts):
            groups[:n, : part.shape[1], i] = part
        tensors["i_s"] = groups
    return tensors
