"""cocotb benches of packages. cocotbext-axi plays the host and the memory.

    write_bench("card")               # card/cocotb: a bench, recorded runs, a Makefile
    run_bench("card", "icarus")       # runs the bench with cocotb's runner, on Verilator or Icarus

The bench repeats runs that were recorded on the simulated device. Host, memory and simulator are others, and
the results must be the same. Users can extend the bench, or run it on a netlist that they built from the
Verilog.
"""

from streamgen.package.cosim.folder import run_bench, write_bench
from streamgen.package.cosim.recording import record
from streamgen.package.cosim.tools import LANGUAGES, SIMULATORS, Language, Simulator

__all__ = ["LANGUAGES", "SIMULATORS", "Language", "Simulator", "record", "run_bench", "write_bench"]
