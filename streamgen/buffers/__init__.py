"""How tensors and caches lie in buffers of memory."""
