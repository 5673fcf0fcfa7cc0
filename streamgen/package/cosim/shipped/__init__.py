"""Benches, shipped with packages as they are: they need streamgen[cosim] and their folder."""
