"""Turn matmuls into kernels: columns of their own (`alone`), or the columns of the engine, which matmuls
share.

The operands of the engine are quantised in an earlier phase and wait in the order of the quantiser. All
matmuls of a phase are bound together: the columns compute their results side by side, and the results are
then parted: tile by tile if every tile has rows of one matmul, and otherwise row by row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.alone import Alone
from streamgen.compiler.schedule.engine import Engine, EngineMatmul
from streamgen.compiler.schedule.holds import Hold, Holds
from streamgen.compiler.schedule.instances import Instance, Instances
from streamgen.compiler.schedule.phases import Phase
from streamgen.compiler.schedule.place import PhaseSite
from streamgen.compiler.schedule.resident import ResidentMatmuls
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.compiler.schedule.uses import Uses
from streamgen.itensor import ITensor, broadcast
from streamgen.kernels.elementwise import BinaryParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.unzip import UnzipParams
from streamgen.model.graph import Port
from streamgen.model.graph.logical import Shape
from streamgen.model.operations.site import Bound, Fixed, MatmulOperand, Stream, of_itensor, of_stream
from streamgen.numbers.formats import MX_GROUP, round_f24


class Matmuls:
    """The matmuls of a run."""

    def __init__(
        self,
        engine: Engine,
        alone: Alone,
        resident: ResidentMatmuls,
        uses: Uses,
        instances: Instances,
        holds: Holds,
    ) -> None:
        self._engine, self._alone, self._resident, self._plan = engine, alone, resident, engine.plan
        self._uses, self._instances, self._holds = uses, instances, holds
        self._waiting: dict[Value, list[Hold]] = {}  # holds of codes and exponents of operands
        self._read: dict[int, MatmulOperand] = {}  # by phase

    def bind(self, site: PhaseSite, x: Bound) -> Stream:
        """The result of a matmul, as `Site.matmul` promises it."""
        step = site.own
        if isinstance(x, MatmulOperand):
            y = site.once("engine", lambda: self._shared(site, x))[step]
        elif isinstance(x, Stream):
            own = self._resident.matmul if self._plan.resident else self._by_itself
            y = own(site, step, x)
        else:
            raise GraphError(f"operation {step.name!r}: no kernel multiplies a {type(x).__name__}")
        return replace(y, shape=step.outputs[0].shape)

    def quantise(self, site: PhaseSite, value: Value, x: Stream) -> None:
        """Quantise a value into an operand, and hold it until the engine reads it."""
        rows = self._uses.count(value.shape)
        k = next(m.k for m in self._engine.matmuls.values() if m.operand is value)
        x = site.fit(x, k)
        params = QuantiseParams(lanes=self._operand_lanes(k), max_k=k, sums=True)
        bounds = {"t": rows, "k": k, "valid_k": value.shape.features}
        codes = site.kernel("quantise", params, bounds, i=x)
        self._hold(site.phase, value, [(codes[port].port, codes[port].itensor) for port in ("o_x", "o_e")])

    def operand(self, phase: Phase) -> MatmulOperand:
        """The operand that the engine reads in a phase. If a later phase reads it too, it is held again."""
        if phase.number not in self._read:
            value = self._engine.matmuls[phase.number].operand
            holds = self._waiting[value]
            for hold in holds:
                hold.reads[phase.number] = next(iter(hold.writes.values()))
            if any(m.phase > phase.number and m.operand is value for m in self._engine.matmuls.values()):
                self._hold(phase, value, [(hold.source, hold.reads[phase.number]) for hold in holds])
            self._read[phase.number] = MatmulOperand(
                *(Stream(hold.source, hold.reads[phase.number], value.shape) for hold in holds)
            )
        return self._read[phase.number]

    def _hold(self, phase: Phase, value: Value, sources: Sequence[tuple[Port, ITensor]]) -> None:
        self._waiting[value] = []
        for name, (port, itensor) in zip(("operand", "exponents"), sources, strict=True):
            hold = self._holds.new(name)
            hold.writes[phase.number] = itensor
            self._instances.link(phase.number, port, hold.sink)
            self._waiting[value].append(hold)

    def _operand_lanes(self, features: int) -> int:
        """Lanes of the quantiser of operands: at least as many as the columns send per cycle. During the
        first tile of weights the columns take a group of 32 per cycle, so more lanes than 32 are not
        needed."""
        return max(self._uses.lanes_for(features), min(MX_GROUP, 1 << self._plan.columns.bit_length() - 1))

    def _by_itself(self, site: PhaseSite, step: Step, x: Stream) -> Stream:
        """A matmul in columns of its own; a kernel behind the columns adds the bias."""
        (value,) = step.inputs
        codes = site.once(("codes", value), lambda: self._alone.codes(site, value, x))
        y = self._alone.matmul(site, step, codes)
        biases = [matmul.bias for matmul in step.matmuls if matmul.bias is not None]
        if not biases:
            return y
        order = site.order(y)
        params = BinaryParams(operation="add", **of_itensor(order))
        b = broadcast(order)
        fixed: dict[str, Any] = {"i_b": site.fixed(b, np.stack([round_f24(bias)[None] for bias in biases]))}
        o = site.kernel(f"{step.name}_bias", params, {"itensor": order, "b": b}, i_a=y, **fixed)["o"]
        return replace(o, by_rows=False)

    def _shared(self, site: PhaseSite, operand: MatmulOperand) -> Mapping[Step, Stream]:
        """The results of the matmuls of a phase; the columns of the engine add their biases."""
        phase, engine, plan = site.phase, self._engine, self._plan
        matmul = engine.matmuls[phase.number]
        bounds = engine.bounds(phase.number, self._uses.count(matmul.operand.shape))
        weights, weight_bounds = engine.weights, engine.weight_bounds(phase.number, bounds["t"])
        layout = weights.layout(weight_bounds)
        out = engine.params.outputs(bounds)["o_y"]
        fed = [*weights.outputs(weight_bounds)]
        outputs: dict[str, Any] = {}
        for c in range(plan.columns):
            name = f"column{c}"
            column = self._instances.by_name.setdefault(name, Instance(name, engine.params))
            column.bounds[phase.number] = bounds
            for port, stream in (("i_x", operand.x), ("i_e", operand.e)):
                self._instances.link(phase.number, stream.port, Port(name, port))
            feed = f"{name}_weights"
            instance = self._instances.by_name.setdefault(feed, Instance(feed, weights))
            instance.bounds[phase.number] = weight_bounds
            beats = Fixed(
                itensor=layout.order,
                data=engine.columns(phase.number, layout)[c],
                channel=c,
                prefetch=plan.prefetch,
                burst=64,
            )
            self._uses.constants(phase, feed, {"i": beats})
            for port in fed:
                sink = Port(name, port.replace("o_", "i_"))
                self._instances.link(phase.number, Port(feed, port), sink)
            outputs[f"i_{c}"] = Stream(Port(name, "o_y"), out, Shape(1))
        concat = ConcatParams(
            ways=plan.columns, dtype="f24", element_shape=(1, 1), max_tokens=out.token_count
        )
        y = replace(site.kernel("engine", concat, {"itensor": out}, **outputs)["o"], by_rows=False)
        width = max(plan.columns, plan.lanes)  # what is cut keeps up with its readers
        parts = zip(self._parted(site, matmul, y, width), matmul.extents, strict=True)
        # logits share no kernel with rows of several tokens: a converter for both held as many logits
        alone = engine.is_long_row(phase.number)
        fitted = [
            site.fit(replace(part, shape=matmul.operand.shape), size, lanes=width, alone=alone)
            for part, size in parts
        ]
        return dict(zip(matmul.steps, fitted, strict=True))

    def _parted(self, site: PhaseSite, matmul: EngineMatmul, y: Stream, width: int) -> list[Stream]:
        """The results of each matmul of a phase. width: the most elements of a token of rows."""
        ways, most = len(matmul.steps), y.itensor.token_count
        if ways == 1:
            return [y]
        if matmul.alternate:
            lanes = of_stream(y)["lanes"] // 2
            unzip = UnzipParams(ways=2, dtype="f24", lanes=lanes, max_tokens=most)
            parts = site.kernel("unzip", unzip, {"itensor": y.itensor}, i=y)
        else:
            where: dict[str, Any]
            if matmul.whole:
                order = y.itensor
                sizes = tuple(rows // self._plan.unit // matmul.rounds for rows in matmul.rows)
                where = {"itensor": order, "sizes": sizes, "rounds": matmul.rounds}
            else:
                lanes = gcd(width, *matmul.rows)
                order = site.rows(replace(matmul.operand.shape, features=sum(matmul.rows)), lanes)
                sizes = tuple(rows // lanes for rows in matmul.rows)
                where = {"itensor": order, "sizes": sizes, "each": True}
            segments = SegmentsParams(token_bits=order.token_bits, ways=ways, max_tokens=order.token_count)
            parts = site.kernel("part", segments, where, i=y)
        return [replace(parts[f"o_{way}"], by_rows=not matmul.whole) for way in range(ways)]
