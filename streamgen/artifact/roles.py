"""What buffers in memory are for, and the names in a language model's design that its host knows."""

IDS, POSITIONS, LOGITS, INDEX = "ids", "positions", "logits", "best_indices"
BEST, KEEP = "best", "keep"  # variants of a run: the id of the greatest logit alone; keys and values alone

USES = {
    "weights": ("weights",),
    "caches": ("state",),
    "spills": ("spill",),
    "inputs, outputs": ("input", "output"),
    "table, status": ("table", "status"),
}
"""Roles of buffers by what tables call them."""
