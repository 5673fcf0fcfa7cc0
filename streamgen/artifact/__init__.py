"""A written design as values: manifest, phase table, digests, and the layout of weights and caches in
memory."""
