"""Running sum with saturation, a module in Verilog (running_sum.v).

    o[t, c] = clamp(o[t - 1, c] + i[t, c], -2^15, 2^15 - 1)        o[-1, c] = 0

Bounds: {"rows": int, "panels": int}. Tiles of 1 x lanes come and go panel by panel, row by row inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.itensor import ITensor
from streamgen.kernels.blackbox import BlackBox, BlackBoxParams

__all__ = ["RunningSumParams"]

BITS = 16


@dataclass(frozen=True, kw_only=True)
class RunningSumParams:
    """lanes: numbers of a token. max_rows, max_panels: the largest execution."""

    lanes: int
    max_rows: int
    max_panels: int

    def __post_init__(self) -> None:
        for name in ("lanes", "max_rows", "max_panels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a running sum must be at least 1, not {getattr(self, name)}")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return Field("rows", self.max_rows.bit_length()), Field("panels", self.max_panels.bit_length())

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        for name, most in (("rows", self.max_rows), ("panels", self.max_panels)):
            if not 1 <= bounds[name] <= most:
                raise ValueError(f"{name} is {bounds[name]}; the running sum takes 1 to {most}")
        return {"rows": bounds["rows"], "panels": bounds["panels"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        limits = np.iinfo(np.int16)
        output = np.zeros_like(inputs["i"])
        total = np.zeros(output.shape[1], np.int64)
        for row, values in enumerate(inputs["i"]):
            total = np.clip(total + values, limits.min, limits.max)
            output[row] = total
        return {"o": output}

    def cost(self, bounds: Bounds) -> Cost:
        control = Resources(lut=39, ff=2 * self.max_rows.bit_length() + self.max_panels.bit_length() + 3)
        lanes = Resources(lut=31 * self.lanes, ff=BITS * self.lanes)
        tokens = self._itensor(bounds).token_count
        return Cost(resources=control + lanes, ii=1.0, latency=1, cycles=2 + tokens)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        return {"i": Curve.nest(1, (tokens, 1)), "o": Curve.nest(2, (tokens, 1))}

    def build(self) -> BlackBox:
        rows, panels = self.descriptor_fields()
        return BlackBoxParams(
            module="running_sum",
            files=(Path(__file__).with_name("running_sum.v"),),
            parameters={"LANES": self.lanes, "ROWS_BITS": rows.bits, "PANELS_BITS": panels.bits},
            descriptor=(rows, panels),
            inputs={"i": BITS * self.lanes},
            outputs={"o": BITS * self.lanes},
        ).build()

    def _itensor(self, bounds: Bounds) -> ITensor:
        self.describe(bounds)
        trips = (bounds["panels"], bounds["rows"])
        return ITensor((1, self.lanes), "i16", trips, (self.lanes, 1), ((1,), (0,)))
