"""Matmuls whose weights stay on the chip.

quantise (shared by all such matmuls that read the value)
  -> a kernel with the weights, the row scales and the biases of the matmul, which sends rows

A ReLU that is the only reader of a result belongs to the kernel of its matmul.
"""

from collections.abc import Mapping
from math import gcd, lcm

import numpy as np

from streamgen.compiler.lower.columns import column_tensors
from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.place import PhaseSite
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quick_quantise import QuickQuantiseParams
from streamgen.kernels.matmul.resident import ResidentParams
from streamgen.kernels.matmul.resident_image import pack
from streamgen.model.operations.site import Behind, MatmulOperand, Stream
from streamgen.numbers.formats import MX_GROUP, round_f24
from streamgen.numbers.quantisation import scale_bits


class ResidentMatmuls:
    """The matmuls of a schedule. extent: features of values with padding."""

    def __init__(self, schedule: Schedule, plan: HardwarePlan, extent: Mapping[Value, int]) -> None:
        self._plan, self._extent = plan, extent
        self._units: dict[Value, int] = {}  # by operand: padding to groups of activations and of weights
        self._sums: dict[Value, bool] = {}  # by operand: whether a matmul has minimums
        for step in (step for phase in schedule.phases for step in phase.steps if step.path in plan.alone):
            (x,) = step.inputs
            weight = step.matmuls[0].integers
            self._units[x] = lcm(self._units.get(x, MX_GROUP), weight.group or MX_GROUP)
            self._sums[x] = self._sums.get(x, False) or weight.minimums
        self._rectified = _rectified(schedule, plan) if plan.resident else {}
        self._images: dict[str, np.ndarray] = {}  # by path, once for the graphs of all runs

    def computes(self, step: Step) -> bool:
        """Whether the kernel of a matmul computes the operation, too."""
        return step in self._rectified.values()

    def matmul(self, site: PhaseSite, step: Step, x: Stream) -> Stream:
        """The result of a matmul, with its bias added, row after row."""
        (value,), (y,) = step.inputs, step.outputs
        operand = site.once(("codes", value), lambda: self._codes(site, value, x))
        plan = self._plan.alone[step.path]
        params = self._params(step, operand.x.extent, self._sums[value])
        behind = Behind(
            port="memory",
            name="weights",
            channel=plan.channels[0],
            itensor=params.image,
            data=self._image(step, params),
        )
        bounds = {"t": site.count(value.shape), "offset": 0}
        ports = {"i_x": operand.x, "i_e": operand.e}
        o = site.kernel(step.name, params, bounds, behind=[behind], alone=True, **ports)["o"]
        return Stream(o.port, o.itensor, y.shape)

    def _codes(self, site: PhaseSite, value: Value, x: Stream) -> MatmulOperand:
        """Quantise a value into the operand of all matmuls that read it."""
        k = self._extent[value]
        k += -k % self._units[value]
        x = site.fit(x, k)
        params = QuickQuantiseParams(
            lanes=gcd(x.itensor.element_shape[-1], MX_GROUP),
            k=k,
            valid_k=value.shape.features,
            max_rows=self._plan.largest,
            sums=self._sums[value],
        )
        outputs = site.kernel(f"quantise_{value.name}", params, {"t": site.count(x.shape)}, i=x)
        return MatmulOperand(outputs["o_x"], outputs["o_e"])

    def _params(self, step: Step, k: int, sums: bool) -> ResidentParams:
        matmul, lanes = step.matmuls[0], self._plan.alone[step.path].n_lanes
        weight = matmul.integers
        column = ColumnParams(
            t_lanes=1,
            n_lanes=lanes,
            formats=(weight.format,),
            group=weight.group or MX_GROUP,
            scale_bits=scale_bits([weight]) if weight.grouped else 0,
            minimum=weight.minimums,
            max_k=k,
            max_n=-(-self._extent[step.outputs[0]] // lanes) * lanes,
            max_t=self._plan.largest,
            bias=matmul.bias is not None,
        )
        return ResidentParams(column=column.told([weight]), sums=sums, relu=step in self._rectified)

    def _image(self, step: Step, params: ResidentParams) -> np.ndarray:
        if step.path not in self._images:
            matmul, column = step.matmuls[0], params.column
            bias = None if matmul.bias is None else round_f24(matmul.bias)
            tensors = column_tensors(matmul.integers.read(), column.max_n, column.max_k, bias)
            self._images[step.path] = pack(params, **tensors)
        return self._images[step.path]


def _rectified(schedule: Schedule, plan: HardwarePlan) -> dict[Step, Step]:
    """By matmul, the ReLU that is the only reader of its result."""
    steps = [step for phase in schedule.phases for step in phase.steps]
    kept = {*schedule.outputs.values(), *(value.again for value in schedule.carried)}
    found = {}
    for step in steps:
        readers = [other for other in steps if not set(step.outputs).isdisjoint(other.inputs)]
        alone = step.path in plan.alone and len(readers) == 1 and kept.isdisjoint(step.outputs)
        if alone and readers[0].op.elementwise == "relu":
            found[step] = readers[0]
    return found
