"""Bind: operations of a schedule become uses of kernels, which share instances (`instances`).

Every operation asks its site for kernels, phase by phase. A value that another phase reads is held (`Hold`):
made in one phase, read in another. Whoever reads it in the first of these takes it out; what reads it later
gets it from there, held again. What passes from walk to walk is one hold with two writers. The operands of
the engine are held as the quantiser sends them, all others row after row. Inputs of the graph lie in memory:
every phase that reads one loads it again. Where streams come from and go to is `steer`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from streamgen.artifact.packing import WORD_LANES, MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.alone import Alone
from streamgen.compiler.schedule.engine import Engine, Matmul
from streamgen.compiler.schedule.instances import Instance, Instances, Link
from streamgen.compiler.schedule.phases import Phase, Schedule
from streamgen.compiler.schedule.place import PhaseSite, cache_places
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.compiler.schedule.uses import Uses
from streamgen.contract import Bounds
from streamgen.itensor import ITensor, broadcast
from streamgen.kernels.elementwise import BinaryParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.matmul.weights import WeightsParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.kernels.moves.unzip import UnzipParams
from streamgen.model.graph import Port
from streamgen.model.graph.logical import Shape
from streamgen.model.operations import LastRow
from streamgen.model.operations.site import Bound, Fixed, Stream, of_itensor, of_stream
from streamgen.numbers.formats import MX_GROUP, round_f24
from streamgen.platform.boards import Channel
from streamgen.platform.dma import StoreParams

__all__ = ["Binding", "Given", "Hold", "bind"]

REQUESTED = "take_"  # before the name of an output that is written on request


@dataclass(eq=False)
class Hold:
    """A value between phases. writes, reads: in which order, by phase. Who writes it has links to the port
    `i`, who reads it from the port `o`. carried: from walk to walk."""

    name: str
    writes: dict[int, ITensor] = field(default_factory=dict)
    reads: dict[int, ITensor] = field(default_factory=dict)
    carried: bool = False

    @property
    def source(self) -> Port:
        return Port(self.name, "o")

    @property
    def sink(self) -> Port:
        return Port(self.name, "i")


@dataclass(frozen=True, eq=False)
class Binding:
    """instances and holds by name; links: of instances and holds. requested: bounds of nodes that differ when
    outputs are not asked for; last: those when nothing is asked behind the last row. uses: the instance of
    each use of a kernel, in order."""

    instances: Mapping[str, Instance]
    holds: Mapping[str, Hold]
    links: Sequence[Link]
    requested: Mapping[str, Bounds]
    last: Mapping[str, Bounds]
    uses: Sequence[str]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for instance in self.instances.values():
            yield f"{instance.name}: {type(instance.params).__name__.removesuffix('Params')}"
            for phase, bounds in sorted(instance.bounds.items()):
                sizes = ", ".join(f"{name} {value}" for name, value in bounds.items())
                yield f"  phase {phase}: {sizes}"
        for hold in self.holds.values():
            writes, reads = (", ".join(map(str, sorted(phases))) for phases in (hold.writes, hold.reads))
            yield f"{hold.name}: held from phase {writes} to phase {reads}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """What is the same in all runs. extent: features of values with their padding. memory: a channel of the
    board. tensors: names in memory of inputs and outputs."""

    found: Schedule
    plan: HardwarePlan
    extent: Mapping[Value, int]
    memory: Channel
    tensors: Mapping[str, str]

    @cached_property
    def engine(self) -> Engine:
        """The matmuls of the engine."""
        return Engine(self.found, self.plan, self.extent)

    @cached_property
    def alone(self) -> Alone:
        """The matmuls that have columns of their own."""
        return Alone(self.found, self.plan, self.extent)


def bind(given: Given, tokens: int, position: int, like: Binding | None = None) -> Binding:
    """Kernels of a run of so many tokens from a position on, shared as in `like`, the largest run.

    GraphError for what no kernel computes.
    """
    return Binder(given, tokens, position, like).bind()


class Binder:
    """One run; `place.PhaseSite` is what operations see of it."""

    def __init__(self, given: Given, tokens: int, position: int, like: Binding | None) -> None:
        self.found, self.engine, self.plan = given.found, given.engine, given.plan
        self.extent, self._alone = given.extent, given.alone
        self._caches = cache_places(given.found)
        taken = [f"load_{given.tensors[name]}" for name in self.found.inputs]
        taken += [f"store_{given.tensors[name]}" for name in self.found.outputs]
        self._instances = Instances(None if like is None else like.uses, given.plan.fabric, taken)
        self._uses = Uses(
            self._instances, given.plan, extent=given.extent, memory=given.memory, tensors=given.tensors,
            tokens=tokens, position=position,
        )  # fmt: skip
        self._holds: dict[str, Hold] = {}
        self._requested: dict[str, Bounds] = {}
        self._last: dict[str, Bounds] = {}
        self._made: dict[tuple[Value, int], Bound] = {}  # by value and phase
        self._lasts: dict[tuple[Value, int], int] = {}  # by value and section, the last phase that had it
        self._operands: dict[Value, list[Hold]] = {}

    def bind(self) -> Binding:
        for phase in self.found.phases:
            self._bind(phase)
        found = self._instances
        return Binding(found.by_name, self._holds, found.links, self._requested, self._last, found.uses)

    def _bind(self, phase: Phase) -> None:
        site = PhaseSite(self._uses, self._caches, phase)
        done: set[Step] = set()
        for outer in phase.quantised:
            if outer.section != phase.section:
                self._quantise(site, outer)
        for step in phase.steps:
            if step in done:
                continue
            steps = phase.matmuls if step in phase.matmuls else [step]
            done.update(steps)
            if step in phase.matmuls:
                self._matmul(site)
            elif step.path in self.plan.alone:
                self._own_matmul(site, step)
            else:
                self._step(site, step)
            for value in (value for one in steps for value in one.outputs):
                if value in phase.quantised:
                    self._quantise(site, value)
        for carried in self.found.carried:
            for end in (carried.first, carried.again):
                if end is not None and (end.section, end.phase) == (phase.section, phase.number):
                    self._keep(carried, end, phase)
        self._store(site)

    # Values.

    def _step(self, site: PhaseSite, step: Step) -> None:
        site.step = step
        inputs = [self.stream(value, site.phase) for value in step.inputs]
        if inputs and all(isinstance(one, np.ndarray) for one in inputs):
            raise GraphError(f"operation {step.name!r} works on constants only; compute it before compiling")
        results = step.op.bind(site, *inputs)
        for value, result in zip(step.outputs, results, strict=True):
            if isinstance(step.op, LastRow):
                assert isinstance(result, Stream)
                self._last[result.port.node] = {"count": 0}
            self._set(value, site.phase, result)

    def _set(self, value: Value, phase: Phase, result: Bound) -> None:
        if isinstance(result, Stream):
            result = replace(result, shape=value.shape)
        self._made[value, phase.number] = result
        self._lasts[value, phase.section] = phase.number

    def stream(self, value: Value, phase: Phase) -> Bound:
        """A value in a phase: as it is made there, or out of a hold or out of memory."""
        if (value, phase.number) not in self._made:
            if value.shape.rows == "every":
                return next(made for (other, _), made in self._made.items() if other is value)
            self._made[value, phase.number] = self._arrive(value, phase)
            self._lasts[value, phase.section] = phase.number
        return self._made[value, phase.number]

    def _arrive(self, value: Value, phase: Phase) -> Stream:
        if value in self.found.inputs.values():
            return replace(self._uses.input(value, phase), shape=value.shape)
        walked = None if value.again is None else value.again.section
        had = [s for other, s in self._lasts if other is value and (s == phase.section or s != walked)]
        if walked is not None and not had:
            hold = self._carrier(value)
        else:
            section = had[-1] if had else value.section
            if section is None or self._walks(section) not in (1, self._walks(phase.section)):
                raise GraphError(f"{value.name!r} does not pass from walk to walk; {phase.name} reads it")
            if section != phase.section and self._walks(phase.section) > 1:
                raise GraphError(f"{value.name!r} is made once, and every walk of {phase.name} reads it")
            last = self._lasts[value, section]
            made = self._made[value, last]
            if not isinstance(made, Stream):
                raise GraphError(f"what {value.name!r} is read for must be in the phase in which it is made")
            hold = self._hold(f"{value.name}_kept")
            hold.writes[last] = self._kept(value)
            self._instances.link(last, made.port, hold.sink)
        hold.reads[phase.number] = self._kept(value)
        return Stream(hold.source, hold.reads[phase.number], value.shape)

    def _kept(self, value: Value) -> ITensor:
        """The order in which a value is held."""
        return self._uses.rows(replace(value.shape, features=self.extent[value]))

    def _carrier(self, value: Value) -> Hold:
        return self._holds.setdefault(value.name, Hold(value.name, carried=True))

    def _keep(self, carried: Value, value: Value, phase: Phase) -> None:
        """What a walk begins with, or gives to the next."""
        hold, made = self._carrier(carried), self.stream(value, phase)
        assert isinstance(made, Stream)
        hold.writes[phase.number] = self._kept(carried)
        self._instances.link(phase.number, made.port, hold.sink)

    def _hold(self, wanted: str) -> Hold:
        names = (wanted if not n else f"{wanted}_{n}" for n in count())
        hold = Hold(next(name for name in names if name not in self._holds))
        self._holds[hold.name] = hold
        return hold

    def _walks(self, section: int) -> int:
        return self.found.sections[section].walks

    # Matmuls.

    def _operand_lanes(self, features: int) -> int:
        """The same of the quantiser of operands: not fewer than the columns send in a cycle, which take a
        group of 32 a cycle while they meet the first tile of weights."""
        return max(self._uses.lanes_for(features), min(MX_GROUP, 1 << self.plan.columns.bit_length() - 1))

    def _own_matmul(self, site: PhaseSite, step: Step) -> None:
        """A matmul with columns of its own."""
        site.step = step
        (value,), (result,) = step.inputs, step.outputs
        x = self.stream(value, site.phase)
        if not isinstance(x, Stream):
            raise GraphError(f"operation {step.name!r} works on constants only; compute it before compiling")
        codes = site.once(("codes", value), lambda: self._alone.codes(site, value, x))
        y = self._alone.matmul(site, step, codes)
        if step.op.bias is not None:  # type: ignore[attr-defined]
            own = np.stack([round_f24(op.bias)[None] for op in step.ops])  # type: ignore[attr-defined]
            y = self._biased(site, f"{step.name}_bias", y, own)
        y = replace(y, shape=result.shape)
        self._set(result, site.phase, site.fit(y, self.extent[result]))

    def _quantise(self, site: PhaseSite, value: Value) -> None:
        """A value becomes an operand, held until the engine reads it."""
        x = self.stream(value, site.phase)
        assert isinstance(x, Stream)
        rows = self._uses.count(value.shape)
        k = next(m.k for m in self.engine.matmuls.values() if m.operand is value)
        x = site.fit(x, k)
        params = QuantiseParams(lanes=self._operand_lanes(k), max_k=k, sums=True)
        bounds = {"t": rows, "k": k, "valid_k": value.shape.features}
        codes = site.kernel("quantise", params, bounds, i=x)
        self._operand(site.phase, value, [(codes[port].port, codes[port].itensor) for port in ("o_x", "o_e")])

    def _operand(self, phase: Phase, value: Value, sources: Sequence[tuple[Port, ITensor]]) -> None:
        """Codes and exponents of an operand are held until the next phase reads them."""
        self._operands[value] = []
        for name, (port, itensor) in zip(("operand", "exponents"), sources, strict=True):
            hold = self._hold(name)
            hold.writes[phase.number] = itensor
            self._instances.link(phase.number, port, hold.sink)
            self._operands[value].append(hold)

    def _matmul(self, site: PhaseSite) -> None:
        """The matmuls of a phase: columns, their results side by side, and parted again."""
        phase, engine, plan = site.phase, self.engine, self.plan
        matmul = engine.matmuls[phase.number]
        operand = matmul.operand
        bounds = engine.bounds(phase.number, self._uses.count(operand.shape))
        weights = WeightsParams(column=engine.params)
        layout = weights.layout(bounds)
        out = engine.params.outputs(bounds)["o_y"]
        held = dict(zip(("i_x", "i_e"), self._operands[operand], strict=True))
        for hold in held.values():
            hold.reads[phase.number] = next(iter(hold.writes.values()))
        if any(m.phase > phase.number and m.operand is operand for m in engine.matmuls.values()):
            self._operand(phase, operand, [(h.source, h.reads[phase.number]) for h in held.values()])
        fed = [*weights.outputs(bounds)]
        outputs: dict[str, Any] = {}
        for c in range(plan.columns):
            name = f"column{c}"
            column = self._instances.by_name.setdefault(name, Instance(name, engine.params))
            column.bounds[phase.number] = bounds
            for port, hold in held.items():
                self._instances.link(phase.number, hold.source, Port(name, port))
            feed = f"{name}_weights"
            self._instances.by_name.setdefault(feed, Instance(feed, weights)).bounds[phase.number] = bounds
            beats = Fixed(
                itensor=layout.order,
                data=engine.column(phase.number, c, layout),  # type: ignore[arg-type]
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
        for step, stream in zip(matmul.steps, self._parted(site, matmul, y), strict=True):
            value = step.outputs[0]
            stream = replace(stream, shape=value.shape)
            self._set(value, phase, site.fit(stream, self.extent[value]))

    def _biased(self, site: PhaseSite, name: str, y: Stream, bias: np.ndarray) -> Stream:
        """y + bias, in tokens as wide as elementwise operations take them."""
        order = site.order(y)
        params = BinaryParams(operation="add", **of_itensor(order))
        b = broadcast(order)
        fixed: dict[str, Any] = {"i_b": site.fixed(b, bias)}
        o = site.kernel(name, params, {"itensor": order, "b": b}, i_a=y, **fixed)["o"]
        return replace(o, by_rows=False)

    def _parted(self, site: PhaseSite, matmul: Matmul, y: Stream) -> list[Stream]:
        """The results of each matmul of a phase."""
        ways, most = len(matmul.steps), y.itensor.token_count
        if ways == 1:
            return [y]
        if matmul.alternate:
            lanes = of_stream(y)["lanes"] // 2
            unzip = UnzipParams(ways=2, dtype="f24", lanes=lanes, max_tokens=most)
            found = site.kernel("unzip", unzip, {"itensor": y.itensor}, i=y)
        else:
            segments = SegmentsParams(token_bits=y.itensor.token_bits, ways=ways, max_tokens=most)
            sizes = tuple(rows // self.plan.unit // matmul.rounds for rows in matmul.rows)
            where = {"itensor": y.itensor, "sizes": sizes, "rounds": matmul.rounds}
            found = site.kernel("part", segments, where, i=y)
        return [replace(found[f"o_{way}"], by_rows=False) for way in range(ways)]

    def _store(self, site: PhaseSite) -> None:
        """Outputs that are made in this phase."""
        for name, value in self.found.outputs.items():
            made = self._made.get((value, site.phase.number))
            if value.phase != site.phase.number or made is None:
                continue
            if not isinstance(made, Stream):
                raise GraphError(f"output {name!r} is a constant; nothing computes it")
            rows, features = self._uses.count(value.shape), value.shape.features
            if name in self.found.requested:
                lanes, extent = of_stream(made)["lanes"], made.extent
                take = TakeRowsParams(dtype="f24", lanes=lanes, max_tokens=rows * extent // lanes)
                bounds = {"rows": rows, "features": extent, "first": 0, "count": rows}
                made = replace(site.kernel(f"{REQUESTED}{name}", take, bounds, i=made)["o"], shape=made.shape)
                self._requested[made.port.node] = {"count": 0}
            order = made.itensor
            by_rows = self.plan.columns > 0 or name in self.plan.boundary.by_rows
            if by_rows and value.shape.kind == "real" and made.extent % WORD_LANES == 0:
                order = self._uses.rows(replace(value.shape, features=made.extent), WORD_LANES)
            params = StoreParams(
                layout=MemoryLayout.of(order), max_tokens=order.token_count, **self._uses.memory._asdict()
            )
            behind = self._uses.host(name, order)
            node = f"store_{behind.name}"
            instance = self._instances.by_name[node] = Instance(node, params)
            instance.bounds[site.phase.number] = {"itensor": order, "offset": 0}
            instance.behind.append((behind, "output", None, (rows, features)))
            self._instances.link(site.phase.number, made.port, Port(node, "i"))
