"""A card that is not there: XRT's hardware emulation drives the simulator of a package.

    emulated("card")                             # writes card/emulation/NAME.xclbin; needs no XRT
    emulate("card", ["card/host.py", "-i", …])   # the host program, on the real XRT and the emulated card

XRT starts the device process that lies in the xclbin and talks to it over a socket; the process answers with
the simulated device. Arguments, banks, addresses and the control protocol are so those of a card; it proves
nothing of the vendor's tools, nor of time.
"""

from streamgen.package.emulation.binary import emulated
from streamgen.package.emulation.environment import Xrt, find_xrt
from streamgen.package.emulation.host import emulate

__all__ = ["Xrt", "emulate", "emulated", "find_xrt"]
