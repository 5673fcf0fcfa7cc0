"""Functions of one variable as torch computes them: what tests hold the table of functions to."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch

from streamgen.gateware.functions import Function

__all__ = ["torch_function", "torch_values"]


def torch_function(function: Function, spelling: str | None = None) -> Callable[..., torch.Tensor]:
    """The call of torch, the first one if none is named, with the arguments that it must have.

    Further arguments take the place of these.
    """
    if not function.torch:  # torch computes it by several calls
        return getattr(torch.nn.functional, function.title.lower())  # type: ignore[no-any-return]
    call = reduce(getattr, (spelling or function.torch[0]).split("."), torch.ops)
    return lambda x, **others: call(x, **{**function.arguments, **others})


def torch_values(function: Function, x: np.ndarray) -> np.ndarray:
    """float64 array: the function as torch computes it in float64."""
    return torch_function(function)(torch.from_numpy(np.asarray(x, np.float64))).numpy()
