"""From logical graphs to graphs of kernels: schedule, bind, steer."""

from streamgen.schedule.derive import Derivation, tensor_names
from streamgen.schedule.phases import Schedule, Value, schedule
from streamgen.schedule.plan import HardwarePlan
from streamgen.schedule.shapes import layer_shapes

__all__ = ["Derivation", "HardwarePlan", "Schedule", "Value", "layer_shapes", "schedule", "tensor_names"]
