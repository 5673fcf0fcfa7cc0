"""A written design as values: manifest, phase table, digests, and how weights and caches lie in memory."""
