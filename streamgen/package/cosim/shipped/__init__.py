"""Benches, copied into packages unchanged. They need streamgen[cosim] and the folder of their kernel."""
