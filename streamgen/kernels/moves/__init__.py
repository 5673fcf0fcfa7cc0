"""Kernels that move tiles unchanged: forks, selects, routes, parts of rows, tables."""
