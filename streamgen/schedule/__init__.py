"""From logical graphs to graphs of kernels: schedule, bind, steer."""

from streamgen.schedule.derive import Derivation
from streamgen.schedule.phases import Schedule, schedule
from streamgen.schedule.plan import EnginePlan

__all__ = ["Derivation", "EnginePlan", "Schedule", "schedule"]
