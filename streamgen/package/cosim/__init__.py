"""A package under cocotb, with cocotbext-axi as its host and as its memory.

    write_bench("card")               # card/cocotb: a bench, what it runs, a Makefile
    run_bench("card", "icarus")       # the same by cocotb's runner, on Verilator or Icarus

What the bench runs is recorded from the simulated device: other host, other memory, other simulator, the same
results. The bench is a start for one of the user's own, and for what he has built of the Verilog.
"""

from streamgen.package.cosim.folder import run_bench, write_bench
from streamgen.package.cosim.recording import record
from streamgen.package.cosim.tools import LANGUAGES, SIMULATORS, Language, Simulator

__all__ = ["LANGUAGES", "SIMULATORS", "Language", "Simulator", "record", "run_bench", "write_bench"]
