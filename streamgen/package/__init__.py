"""From a written folder to a kernel for the card: what the vendor's tools need of a design, and running them.

    package("mlp", "card")                      # Verilog, kernel.xml, scripts, weights, host: a new folder
    tools = find_tools(board_of_folder("mlp"))  # None where vivado and v++ are not on PATH
    build("card", tools)                        # the card's binary, in hours

It works on folders that `Accelerator.write` wrote, without compiler or simulator.
"""

from streamgen.package.folder import board_of_folder, build, package, steps_of
from streamgen.package.tools import Tools, find_tools

__all__ = ["Tools", "board_of_folder", "build", "find_tools", "package", "steps_of"]
