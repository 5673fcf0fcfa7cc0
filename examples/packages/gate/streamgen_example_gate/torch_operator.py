"""The operator that models call; it knows nothing of hardware."""

import torch

__all__ = ["gate_rows"]


@torch.library.custom_op("streamgen_example::gate_rows", mutates_args=())
def gate_rows(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Rows whose first feature is above a limit, and zeros in place of all others."""
    return torch.where(x[..., :1] > limit, x, torch.zeros_like(x))


@gate_rows.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)
