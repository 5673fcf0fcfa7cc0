"""From logical graphs to graphs of kernels: schedule, bind, steer."""

from streamgen.schedule.derive import Derivation, tensor_names
from streamgen.schedule.phases import Schedule, schedule
from streamgen.schedule.plan import HardwarePlan
from streamgen.schedule.shapes import layer_shapes
from streamgen.schedule.steps import Value

__all__ = ["Derivation", "HardwarePlan", "Schedule", "Value", "layer_shapes", "schedule", "tensor_names"]
