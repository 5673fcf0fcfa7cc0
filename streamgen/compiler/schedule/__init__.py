"""The passes from logical graphs to graphs of kernels: schedule, bind, steer."""

from streamgen.compiler.schedule.channels import Room
from streamgen.compiler.schedule.derive import Derivation, tensor_names
from streamgen.compiler.schedule.phases import Schedule, schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.shapes import layer_shapes
from streamgen.compiler.schedule.steps import Value

__all__ = [
    "Derivation",
    "HardwarePlan",
    "Room",
    "Schedule",
    "Value",
    "layer_shapes",
    "schedule",
    "tensor_names",
]
