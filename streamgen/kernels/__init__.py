"""Kernels: hardware that takes streams of tiles and sends streams of tiles."""
