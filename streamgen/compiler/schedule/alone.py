"""Matmuls that have columns of their own. With C columns, column c computes the output rows n with n % C ==
c.

quantise (shared by all such matmuls that read the value in a phase)
  -> C columns, each with its weights, which one load feeds
  -> concat, which sends one (1, C) token of neighbouring rows per cycle
"""

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from streamgen.artifact.row_order import RowOrder
from streamgen.artifact.weight_layout import WeightLayout
from streamgen.compiler.schedule.column_weights import ColumnWeights
from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.place import PhaseSite
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.matmul.weights import WeightsParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.model.graph.late import LateArray
from streamgen.model.operations.site import Fixed, MatmulOperand, Stream
from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.quantisation import IntegerWeight, scale_bits


class Alone:
    """The matmuls of a schedule that have columns of their own. extent: features of values with padding."""

    def __init__(self, schedule: Schedule, plan: HardwarePlan, extent: Mapping[Value, int]) -> None:
        self._plan, self._extent = plan, extent
        self._units: dict[Value, int] = {}  # by operand: padding to groups of activations and of weights
        for step in (step for phase in schedule.phases for step in phase.steps if step.path in plan.alone):
            (x,) = step.inputs
            self._units[x] = lcm(self._units.get(x, MX_GROUP), _weights(step)[0].group or MX_GROUP)
        self._beats: dict[str, Sequence[LateArray]] = {}  # by path, once for the graphs of all runs

    def codes(self, site: PhaseSite, value: Value, x: Stream) -> MatmulOperand:
        """Quantise a value into the operand of all such matmuls that read it in this phase."""
        assert self._plan.own is not None
        k = self._extent[value]
        k += -k % self._units[value]
        params = QuantiseParams(lanes=self._plan.own.quantisers[value.path], max_k=k, sums=True)
        bounds = {"t": site.count(x.shape), "k": k, "valid_k": value.shape.features}
        outputs = site.kernel(f"quantise_{value.name}", params, bounds, i=site.fit(x, k))
        return MatmulOperand(outputs["o_x"], outputs["o_e"])

    def matmul(self, site: PhaseSite, step: Step, codes: MatmulOperand) -> Stream:
        """The result of a matmul of a quantised operand, without its bias."""
        plan, weights = self._plan.alone[step.path], _weights(step)
        (x,), (y,) = step.inputs, step.outputs
        unit = plan.tile
        rows = -(-self._extent[y] // unit) * unit
        k = codes.x.extent
        grouped = weights[0].grouped
        params = ColumnParams(
            t_lanes=self._plan.token_lanes,
            n_lanes=plan.n_lanes,
            formats=(weights[0].format,),
            group=weights[0].group or MX_GROUP,
            scale_bits=scale_bits(weights) if grouped else 0,
            minimum=weights[0].minimums,
            max_k=k,
            max_n=rows // plan.columns,
            max_t=self._plan.largest,
        ).told(weights)
        bounds = {
            "t": site.count(x.shape),
            "k": k,
            "n": rows // plan.columns,
            "format": weights[0].format,
            "grouped": grouped,
        }
        feed = WeightsParams(column=params)
        layout = feed.layout(bounds)
        outputs: dict[str, Any] = {}
        for c in range(plan.columns):
            name = f"{step.name}_column{c}"
            fixed: dict[str, Any] = {
                "i": Fixed(
                    layout.order,
                    self._columns(step, rows, k, layout)[c],
                    plan.channels[c],
                    self._plan.own_prefetch,
                    burst=64,
                )
            }
            streams = site.kernel(f"{name}_weights", feed, bounds, alone=True, **fixed)
            weights_in: dict[str, Any] = {
                port.replace("o_", "i_"): stream for port, stream in streams.items()
            }
            ports = site.kernel(name, params, bounds, alone=True, i_x=codes.x, i_e=codes.e, **weights_in)
            outputs[f"i_{c}"] = ports["o_y"]
        joined: Stream = outputs["i_0"]
        if plan.columns > 1:
            out = joined.itensor
            concat = ConcatParams(
                ways=plan.columns, dtype="f24", element_shape=(1, 1), max_tokens=out.token_count
            )
            joined = site.kernel(f"{step.name}_concat", concat, {"itensor": out}, **outputs)["o"]
        return Stream(joined.port, joined.itensor, y.shape, by_rows=False)

    def _columns(self, step: Step, rows: int, k: int, layout: WeightLayout) -> Sequence[LateArray]:
        """The weights of each column: of each, uint8 [walks, beats, 64]."""
        if step.path not in self._beats:
            order = RowOrder(rows=(rows,), columns=self._plan.alone[step.path].columns)
            walks = [(matmul,) for matmul in step.matmuls]
            self._beats[step.path] = ColumnWeights(walks=walks, order=order, width=k, layout=layout).columns
        return self._beats[step.path]


def _weights(step: Step) -> list[IntegerWeight]:
    return [matmul.integers for matmul in step.matmuls]
