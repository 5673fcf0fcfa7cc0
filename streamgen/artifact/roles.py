"""Roles of buffers in memory, and names in the design of a language model that its host knows."""

IDS, POSITIONS, LOGITS, INDEX = "ids", "positions", "logits", "best_indices"
BEST, KEEP = "best", "keep"  # variants of a run: only the id of the greatest logit; only keys and values

USES = {
    "weights": ("weights", "resident"),
    "caches": ("state",),
    "spills": ("spill",),
    "inputs, outputs": ("input", "output"),
    "table, status": ("table", "status"),
}
"""Roles of buffers by their title in tables."""
