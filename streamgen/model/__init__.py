"""A model as a graph of operations: its import, its interpreters in numpy, and its calibration."""
