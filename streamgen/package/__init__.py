"""Packages: the files that the vendor's tools need to build a written design for a card, and running the
tools.

    package("mlp", "card")                      # Verilog, kernel.xml, scripts, weights, host: a new folder
    tools = find_tools(board_of_folder("mlp"))  # None if vivado or v++ is not on PATH
    build("card", tools)                        # the binary of the card; takes hours

Packaging works on folders that `Accelerator.write` wrote. It needs neither the compiler nor a simulator.
"""

from streamgen.package.folder import board_of_folder, build, package, steps_of
from streamgen.package.tools import Tools, find_tools

__all__ = ["Tools", "board_of_folder", "build", "find_tools", "package", "steps_of"]
