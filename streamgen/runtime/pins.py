"""Put registers in front of the pins that memory drives, for speed.

The memory model gives the values of its pins from the next clock edge on. If a register takes these values at
the edge, Verilator evaluates the logic behind the pins once a cycle, together with all other logic. If the
pins changed between two edges, Verilator would evaluate the logic behind them once more in each cycle.
"""

import re
from collections.abc import Sequence

READ = ("arready", "rvalid", "rid", "rdata", "rresp", "rlast")
WRITE = ("awready", "wready", "bvalid", "bid", "bresp")


def registered(verilog: str, top: str, masters: Sequence[str]) -> str:
    """Return the Verilog with registers in module `top`: inputs `next_…` take the place of the inputs of its
    AXI `masters`.

    A top module that is not written as Yosys writes it is not changed. The device then names the missing
    pins.
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
