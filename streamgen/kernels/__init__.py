"""Kernels: hardware that takes streams of tiles and gives streams of tiles."""
