"""Turn a finished program into Verilog, packed constants and the manifest of the host."""

from streamgen.compiler.emit.design import Design, emit
from streamgen.compiler.emit.outline import Outline, outline, place_program
from streamgen.compiler.emit.packed import packed_model
from streamgen.compiler.emit.resources import promised, require_fit

__all__ = ["Design", "Outline", "emit", "outline", "packed_model", "place_program", "promised", "require_fit"]
