"""Runs of accelerators: build a simulator or open a board, write inputs, start runs, and read outputs."""

from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import OnSimulator, SimulatedDevice, simulated
from streamgen.runtime.xrt import BoardDevice, board, on_board

__all__ = [
    "BoardDevice",
    "Device",
    "DeviceBuffer",
    "Execution",
    "MemoryModel",
    "OnSimulator",
    "SimulatedDevice",
    "board",
    "on_board",
    "simulated",
]
