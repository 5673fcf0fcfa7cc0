"""A kernel for streamgen, written in Verilog."""

from streamgen_example_verilog.running_sum import RunningSumParams

__all__ = ["RunningSumParams"]
