"""Emulated cards: XRT's hardware emulation drives the simulator of a package.

    emulated("card")                             # writes card/emulation/NAME.xclbin; needs no XRT
    emulate("card", ["card/host.py", "-i", …])   # runs the host program on the real XRT and the emulated card

XRT starts the device process in the xclbin and talks to it over a socket. The process answers with the
simulated device. Arguments, banks, addresses and the control protocol are therefore those of a card.
Emulation proves nothing about the vendor's tools or about time.
"""

from streamgen.package.emulation.binary import emulated
from streamgen.package.emulation.environment import Xrt, find_xrt
from streamgen.package.emulation.host import emulate

__all__ = ["Xrt", "emulate", "emulated", "find_xrt"]
