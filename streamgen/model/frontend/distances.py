"""Biases of causal scores that are numbers of heads and distances, such as those of ALiBi and T5."""

import numpy as np
import torch

from streamgen.model.frontend.trace import Unsupported


def distances_of(
    bias: torch.Tensor, extents: tuple[int, int], lead: torch.Size, order: torch.Tensor
) -> np.ndarray:
    """A bias as numbers of distances, float32 [heads · positions], the farthest first and each less that of
    distance 0, which changes no share. bias: [.., positions or 1, positions or 1]. extents: of a mask of all
    positions. lead: leading dimensions of the scores. order: of the heads.

    Raises Unsupported for a bias that depends on more than the distance.
    """
    rows, columns = extents
    if rows != columns or bias.shape[-1] not in (1, columns):
        raise Unsupported("a bias of its scores must have a column for each position")
    bias = bias.broadcast_to(*lead, rows, columns).reshape(-1, rows, columns)[order]
    relative = bias - bias.diagonal(dim1=-2, dim2=-1)[..., None]
    table = relative[:, -1]  # the last token sees all distances
    behind = torch.arange(rows)[:, None] - torch.arange(columns)
    wanted = table[:, (columns - 1 - behind).clamp(max=columns - 1)]
    if ((relative - wanted).abs() * (behind >= 0) > 1e-5 * (1 + table.abs().max())).any():
        raise Unsupported(
            "a bias of its scores must be a number for each head and distance of positions, such as those of "
            "ALiBi and of relative positions"
        )
    found: np.ndarray = table.float().numpy().reshape(-1)
    return found
