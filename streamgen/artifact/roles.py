"""What buffers in memory are for."""

__all__ = ["USES"]

USES = {
    "weights": ("weights",),
    "caches": ("state",),
    "spills": ("spill",),
    "inputs, outputs": ("input", "output"),
    "table, status": ("table", "status"),
}
"""Roles of buffers by what tables call them."""
