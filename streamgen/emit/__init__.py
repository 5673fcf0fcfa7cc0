"""From a finished program to Verilog, packed constants and the manifest of the host."""

from streamgen.emit.design import Design, emit
from streamgen.emit.outline import place_program

__all__ = ["Design", "emit", "place_program"]
