"""Bind: turn the operations of a schedule into uses of kernels, which share instances (`instances`).

Every operation asks its site for kernels, phase by phase. A value that another phase reads waits in a hold
(`Hold`). The first phase that reads a hold empties it; if later phases read the value too, it is held again.
A value that passes from walk to walk is one hold with two writers. The operands of the engine are held in the
order of the quantiser (`matmul`), all other values row after row. Inputs of the graph lie in memory, and
every phase that reads an input loads it again. `steer` then connects the streams.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streamgen.artifact.packing import WORD_LANES, MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.alone import Alone
from streamgen.compiler.schedule.engine import Engine
from streamgen.compiler.schedule.holds import Hold, Holds
from streamgen.compiler.schedule.instances import Instance, Instances, Link
from streamgen.compiler.schedule.matmul import Matmuls
from streamgen.compiler.schedule.phases import Phase, Schedule
from streamgen.compiler.schedule.place import PhaseSite, cache_places
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.resident import ResidentMatmuls
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.compiler.schedule.uses import Uses
from streamgen.contract import Bounds
from streamgen.itensor import ITensor
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model.graph import Port
from streamgen.model.operations.site import Bound, Stream, of_stream
from streamgen.platform.boards import Channel
from streamgen.platform.dma import StoreParams

REQUESTED = "take_"  # prefix of the name of an output that is written on request


@dataclass(frozen=True, eq=False)
class Binding:
    """The kernels of a run.

    instances, holds: by name. links: streams between instances and holds. requested: by node, bounds that
    differ in a run that does not ask for some outputs. last: by node, bounds that differ in a run that asks
    for nothing that follows from the last row. uses: name of the instance of each use of a kernel, in order.
    """

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
    """Facts that all runs share. extent: features of values with padding. memory: a memory channel of the
    board. tensors: names of inputs and outputs in memory."""

    schedule: Schedule
    plan: HardwarePlan
    extent: Mapping[Value, int]
    memory: Channel
    tensors: Mapping[str, str]

    @cached_property
    def engine(self) -> Engine:
        """The matmuls of the engine."""
        return Engine(self.schedule, self.plan, self.extent)

    @cached_property
    def alone(self) -> Alone:
        """The matmuls that have columns of their own."""
        return Alone(self.schedule, self.plan, self.extent)

    @cached_property
    def resident(self) -> ResidentMatmuls:
        """The matmuls whose weights stay on the chip."""
        return ResidentMatmuls(self.schedule, self.plan, self.extent)


def bind(given: Given, tokens: int, position: int, source: int = 0, like: Binding | None = None) -> Binding:
    """The kernels of a run of `tokens` tokens from `position` on, of a text whose source has `source` rows.
    like: binding of the largest run, whose instances the uses share; None for the largest run itself.

    Raises GraphError if no kernel computes an operation.
    """
    return Binder(given, tokens, position, source, like).bind()


class Binder:
    """Binds one run. Operations see it as a `place.PhaseSite`."""

    def __init__(self, given: Given, tokens: int, position: int, source: int, like: Binding | None) -> None:
        self.schedule, self.plan, self.extent = given.schedule, given.plan, given.extent
        self._caches = cache_places(given.schedule)
        taken = [f"load_{given.tensors[name]}" for name in self.schedule.inputs]
        taken += [f"store_{given.tensors[name]}" for name in self.schedule.outputs]
        self._instances = Instances(None if like is None else like.uses, given.plan.fabric, taken)
        self._uses = Uses(
            self._instances, given.plan, extent=given.extent, memory=given.memory, tensors=given.tensors,
            tokens=tokens, position=position, source=source,
        )  # fmt: skip
        self._holds = Holds()
        self._matmuls = Matmuls(
            given.engine, given.alone, given.resident, self._uses, self._instances, self._holds
        )
        self._resident = given.resident
        self._requested: dict[str, Bounds] = {}
        self._made: dict[tuple[Value, int], Bound] = {}  # by value and phase
        self._lasts: dict[tuple[Value, int], int] = {}  # by value and section, the last phase that had it

    def bind(self) -> Binding:
        for phase in self.schedule.phases:
            self._bind(phase)
        instances = self._instances
        holds = self._holds.by_name
        return Binding(
            instances.by_name, holds, instances.links, self._requested, self._uses.unasked, instances.uses
        )

    def _bind(self, phase: Phase) -> None:
        site = PhaseSite(self._uses, self._caches, phase, self._matmuls.bind)
        done: set[Step] = set()
        for outer in phase.quantised:
            if outer.section != phase.section:
                self._quantise(site, outer)
        for step in phase.steps:
            if step in done:
                continue
            steps = phase.matmuls if step in phase.matmuls else [step]  # the engine is used once in a phase
            done.update(steps)
            for together in steps:
                self._step(site, together)
            for value in (value for together in steps for value in together.outputs):
                if value in phase.quantised:
                    self._quantise(site, value)
        for carried in self.schedule.carried:
            for end in (carried.first, carried.again):
                if end is not None and (end.section, end.phase) == (phase.section, phase.number):
                    self._keep(carried, end, phase)
        self._store(site)

    # Values.

    def _step(self, site: PhaseSite, step: Step) -> None:
        site.step = step
        if step in site.phase.matmuls:
            inputs: list[Bound] = [self._matmuls.operand(site.phase)]
        else:
            inputs = [self.stream(value, site.phase) for value in step.inputs]
        if inputs and all(isinstance(operand, np.ndarray) for operand in inputs):
            raise GraphError(
                f"operation {step.name!r} has only constant inputs; compute its result before compiling"
            )
        results = inputs if self._resident.computes(step) else step.op.bind(site, *inputs)
        for value, result in zip(step.outputs, results, strict=True):
            self._set(value, site.phase, result)

    def _set(self, value: Value, phase: Phase, result: Bound) -> None:
        if isinstance(result, Stream):
            result = replace(result, shape=value.shape)
        self._made[value, phase.number] = result
        self._lasts[value, phase.section] = phase.number

    def stream(self, value: Value, phase: Phase) -> Bound:
        """A value in a phase: from the operation that computes it there, from a hold or from memory."""
        if (value, phase.number) not in self._made:
            if value.shape.rows == "every":
                return next(bound for (other, _), bound in self._made.items() if other is value)
            self._made[value, phase.number] = self._arrive(value, phase)
            self._lasts[value, phase.section] = phase.number
        return self._made[value, phase.number]

    def _arrive(self, value: Value, phase: Phase) -> Stream:
        if value in self.schedule.inputs.values():
            return replace(self._uses.input(value, phase), shape=value.shape)
        walked = None if value.again is None else value.again.section
        had = [s for other, s in self._lasts if other is value and (s == phase.section or s != walked)]
        if walked is not None and not had:
            hold = self._holds.carrier(value.name)
        else:
            section = had[-1] if had else value.section
            if section is None or self._walks(section) not in (1, self._walks(phase.section)):
                raise GraphError(
                    f"{phase.name} reads {value.name!r}, but that value does not pass from walk to walk"
                )
            if section != phase.section and self._walks(phase.section) > 1:
                raise GraphError(
                    f"every walk of {phase.name} reads {value.name!r}, but that value is computed only once"
                )
            last = self._lasts[value, section]
            bound = self._made[value, last]
            if not isinstance(bound, Stream):
                raise GraphError(
                    f"{phase.name} reads {value.name!r}, but only the phase that computes that value can "
                    "read it"
                )
            hold = self._holds.new(f"{value.name}_kept")
            hold.writes[last] = self._kept(value)
            self._instances.link(last, bound.port, hold.sink)
        hold.reads[phase.number] = self._kept(value)
        return Stream(hold.source, hold.reads[phase.number], value.shape)

    def _kept(self, value: Value) -> ITensor:
        """The order in which a value is held."""
        return self._uses.rows(replace(value.shape, features=self.extent[value]))

    def _keep(self, carried: Value, value: Value, phase: Phase) -> None:
        """Hold a value that a walk begins with or passes to the next walk."""
        hold, bound = self._holds.carrier(carried.name), self.stream(value, phase)
        assert isinstance(bound, Stream)
        hold.writes[phase.number] = self._kept(carried)
        self._instances.link(phase.number, bound.port, hold.sink)

    def _walks(self, section: int) -> int:
        return self.schedule.sections[section].walks

    def _quantise(self, site: PhaseSite, value: Value) -> None:
        """Quantise a value into an operand of the engine."""
        x = self.stream(value, site.phase)
        assert isinstance(x, Stream)
        self._matmuls.quantise(site, value, x)

    def _store(self, site: PhaseSite) -> None:
        """Store the outputs that this phase computes."""
        for name, value in self.schedule.outputs.items():
            result = self._made.get((value, site.phase.number))
            if value.phase != site.phase.number or result is None:
                continue
            if not isinstance(result, Stream):
                raise GraphError(f"output {name!r} is a constant; an output must be computed")
            rows, features = self._uses.count(value.shape), value.shape.features
            if name in self.schedule.requested:
                lanes, extent = of_stream(result)["lanes"], result.extent
                take = TakeRowsParams(dtype="f24", lanes=lanes, max_tokens=rows * extent // lanes)
                bounds = {"rows": rows, "features": extent, "first": 0, "count": rows}
                result = replace(
                    site.kernel(f"{REQUESTED}{name}", take, bounds, i=result)["o"], shape=result.shape
                )
                self._requested[result.port.node] = {"count": 0}
            order = result.itensor
            by_rows = self.plan.columns > 0 or name in self.plan.boundary.by_rows
            if by_rows and value.shape.kind == "real" and result.extent % WORD_LANES == 0:
                order = self._uses.rows(replace(value.shape, features=result.extent), WORD_LANES)
            params = StoreParams(
                layout=MemoryLayout.of(order), max_tokens=order.token_count, **self._uses.memory._asdict()
            )
            behind = self._uses.host(name, order)
            node = f"store_{behind.name}"
            instance = self._instances.by_name[node] = Instance(node, params)
            instance.bounds[site.phase.number] = {"itensor": order, "offset": 0}
            instance.behind.append((behind, "output", None, (rows, features)))
            self._instances.link(site.phase.number, result.port, Port(node, "i"))
