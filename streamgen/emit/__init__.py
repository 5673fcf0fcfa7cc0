"""From a finished program to Verilog, packed constants and the manifest of the host."""

from streamgen.emit.design import Design, emit
from streamgen.emit.outline import Outline, outline, place_program
from streamgen.emit.resources import promised, require_fit

__all__ = ["Design", "Outline", "emit", "outline", "place_program", "promised", "require_fit"]
