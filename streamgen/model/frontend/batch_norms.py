"""Batch norms in eval mode: a scale and a shift for each channel, computed in float64.

    scale = weight / sqrt(running_var + epsilon)        shift = bias - running_mean · scale

A Linear before them takes both (`fuse`).
"""

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.activations import add_steps, placed
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.trace import Unsupported, arguments, aten
from streamgen.model.operations import Binary, Constant


def _batch_norm(draft: Draft, node: Node) -> None:
    given = arguments(node)
    mean, variance = given["running_mean"], given["running_var"]
    if mean is None or variance is None:
        raise Unsupported(
            "it has no running statistics, so it normalises each batch by its own; "
            "track_running_stats=True and training keep them"
        )
    if given["training"]:
        raise Unsupported("it is in training mode; call module.eval() first")
    factor = 1 / np.sqrt(_numbers(draft, node, variance) + float(given["eps"]))
    if given["weight"] is not None:
        factor = factor * _numbers(draft, node, given["weight"])
    offset = -_numbers(draft, node, mean) * factor
    if given["bias"] is not None:
        offset = offset + _numbers(draft, node, given["bias"])
    factors, offsets = (placed(draft, node, values.astype(np.float32)) for values in (factor, offset))

    def steps(name: str, piece: slice) -> str:
        scale = draft.add(node, f"{draft.named(node)}_scale", Constant(factors[piece]))
        scaled = draft.add(node, f"{draft.named(node)}_scaled", Binary("mul"), name, scale)
        shift = draft.add(node, f"{draft.named(node)}_shift", Constant(offsets[piece]))
        return draft.add(node, draft.named(node), Binary("add"), scaled, shift)

    add_steps(draft, node, steps)


def _numbers(draft: Draft, node: Node, parameter: Any) -> np.ndarray:
    """float64 [channels]: a parameter or a buffer."""
    if draft.knows(parameter):
        raise Unsupported("its weight, bias or statistics are computed at run time")
    draft.constants.array(node, parameter)  # which must be finite
    tensor: torch.Tensor = draft.constants.tensors[parameter]
    return tensor.detach().cpu().double().numpy().reshape(-1)


CALLS = {aten.batch_norm.default: _batch_norm}
