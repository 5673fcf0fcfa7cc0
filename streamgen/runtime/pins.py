"""Registers before the pins that memory drives.

The model of a memory says what its pins are from the next edge of the clock on. When a register takes that
at the edge, Verilator evaluates what depends on the pins once a cycle, with all else that changes then; for
pins that change between two edges it would do that work once more at each call.
"""

import re
from collections.abc import Sequence

READ = ("arready", "rvalid", "rid", "rdata", "rresp", "rlast")
WRITE = ("awready", "wready", "bvalid", "bid", "bresp")


def registered(verilog: str, top: str, masters: Sequence[str]) -> str:
    """The Verilog, in which module `top` takes what drives its AXI `masters` from inputs `next_…`.

    A top that is not written as Yosys writes it stays as it is: the device then says which pins it lacks.
    """
    module = rf"^module {re.escape(top)}(\(.*?\);)(.*?)^endmodule"
    match = re.search(module, verilog, re.MULTILINE | re.DOTALL)
    if not match or not masters:
        return verilog
    pin = rf"((?:{'|'.join(map(re.escape, masters))})_(?:{'|'.join(READ + WRITE)}))"
    ports = re.sub(rf"\b{pin}\b", r"next_\1", match[1])
    body = re.sub(
        rf"^  input ((?:\[\d+:0\] )?){pin};\n  wire \1\2;\n",
        r"  input \1next_\2;\n  reg \1\2;\n  always @(posedge ap_clk) \2 <= next_\2;\n",
        match[2],
        flags=re.MULTILINE,
    )
    return verilog[: match.start(1)] + ports + body + verilog[match.end(2) :]
