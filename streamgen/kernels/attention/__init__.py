"""Attention on 8-bit rows: rotation, caches of keys and values, scores, and sums of values."""
