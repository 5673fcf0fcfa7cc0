"""From a finished program to Verilog, packed constants and the manifest of the host."""

from streamgen.emit.design import Design, emit

__all__ = ["Design", "emit"]
