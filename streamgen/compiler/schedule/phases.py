"""Schedule: decide which operations work in the same phase, and which phases are walked several times.

    section   a sequence of phases that are walked together: the operations before a repetition (one walk),
    the
              body of a repetition (one walk for each repetition of the body), and the operations behind it
              with the layers that are left over (one walk)
    phase     a piece of the graph in which the matmul engine is used once, by all matmuls that read one value
              and have weights of one format

An operation belongs to the first phase in which all its inputs are there; so does a matmul with columns of
its own. A matmul of the engine reads an operand that an earlier phase has quantised. Each value that such
matmuls read therefore starts a new phase, and each further format of weights starts one more. The rest of a
phase follows from the results of the engine, up to the operands of the next phases. Without an engine, a
section is one phase.

A value that the body of a repetition passes to the next walk is a value of its own (`Value.again`). It is
written before the first walk and at the end of each walk. It is read at the beginning of each walk and behind
the last one. If no phase computes it before the first walk, because it is an input or comes from another
repetition, an `Identity` does. If it is an output of the graph, an `Identity` behind the walks computes the
output.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.last_rows import takes_last_rows_early
from streamgen.compiler.schedule.steps import Step, Value
from streamgen.model.graph.logical import LogicalGraph, Matmul, Operation, Operator, Repeat
from streamgen.model.operations import Identity
from streamgen.numbers.quantisation import IntegerWeight


@dataclass(eq=False)
class Phase:
    """A phase. number: its index in the order of a run. matmuls: steps of the engine. quantised: values that
    become operands of later phases."""

    number: int
    section: int
    steps: list[Step] = field(default_factory=list)
    matmuls: list[Step] = field(default_factory=list)
    quantised: list[Value] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The names of the matmuls; without matmuls, the name of the first step."""
        named = [step for step in self.steps if step.op.matmul is not None] or self.steps[:1]
        return "+".join(step.name for step in named)


@dataclass(eq=False)
class Section:
    """A section. walks: number of times that its phases are walked."""

    walks: int
    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule. sections: in the order of a run. carried: values that pass from walk to walk. inputs,
    outputs: those of the graph, by name. requested: names of the outputs that are written on request."""

    sections: tuple[Section, ...]
    carried: tuple[Value, ...]
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    requested: frozenset[str]

    @property
    def phases(self) -> list[Phase]:
        return [phase for section in self.sections for phase in section.phases]

    def alternates(self, phase: Phase) -> bool:
        """Whether a phase has two matmuls of the engine whose results meet in one elementwise operation, and
        go nowhere else."""
        steps = phase.matmuls
        results = {step.outputs[0] for step in steps}
        if len(steps) != 2:
            return False
        readers = [s for p in self.phases for s in p.steps if results.intersection(s.inputs)]
        (first, *more) = readers
        alike = len({step.op.form() for step in steps}) == 1
        kept = results & {*self.outputs.values(), *(c.again for c in self.carried)}
        whole = first.op.elementwise is not None and {*first.inputs} == results
        return alike and not more and not kept and whole

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for section in self.sections:
            yield f"section, walked {section.walks} times" if section.walks > 1 else "section"
            for phase in section.phases:
                yield f"  phase {phase.number}, {phase.name}"
                for step in phase.steps:
                    read = ", ".join(value.name for value in step.inputs)
                    yield f"    {', '.join(v.name for v in step.outputs)} = {step.op}({read})"
                if phase.quantised:
                    yield f"    operands: {', '.join(value.name for value in phase.quantised)}"


def schedule(
    graph: LogicalGraph, alone: Collection[str] | None = (), *, early_last_rows: bool = False
) -> Schedule:
    """Sections and phases of a graph.

    alone: paths of the matmuls with columns of their own; None for all matmuls. All others share one engine.
    early_last_rows: take last rows as early as possible (`last_rows`). If they are taken behind a repetition
    of more than two walks, its last walk becomes a section of its own.

    Raises GraphError for repetitions that cannot be scheduled.
    """
    return _Scheduler(graph, alone, early_last_rows).schedule()


class _Scheduler:
    def __init__(self, graph: LogicalGraph, alone: Collection[str] | None, early: bool) -> None:
        self._graph, self._alone, self._early = graph, alone, early
        self._steps: list[list[Step]] = [[]]
        self._walks = [1]
        self._carried: list[Value] = []
        self._same: dict[Value, Value] = {}

    def schedule(self) -> Schedule:
        graph = self._graph
        inputs = {value.name: Value(value.name, value.name, value.shape) for value in graph.inputs}
        scope = dict(inputs)
        for operation in graph.operations:
            if isinstance(operation.op, Repeat):
                self._repeat(operation, operation.op, scope)
            else:
                self._add(operation, [operation.op], operation.name, scope)
        outputs = {name: self._made(scope[name], name) for name in graph.outputs}
        if self._early:
            self._steps[-1], stands = takes_last_rows_early(self._steps[-1], outputs.values())
            outputs = {name: stands.get(value, value) for name, value in outputs.items()}
        alone = self._alone
        sections: list[Section] = []
        number = 0
        for steps, walks in zip(self._steps, self._walks, strict=True):
            if not steps:
                continue
            shared = (
                []
                if alone is None
                else [step for step in steps if step.op.matmul is not None and step.path not in alone]
            )
            section = Section(walks, _phases(steps, shared, len(sections), number))
            number += len(section.phases)
            sections.append(section)
        return Schedule(tuple(sections), tuple(self._carried), inputs, outputs, graph.requested)

    def _add(
        self,
        operation: Operation,
        ops: Sequence[Operator],
        path: str,
        scope: dict[str, Value],
        prefix: str = "",
    ) -> None:
        inputs = tuple(scope[name] for name in operation.inputs)
        shapes = operation.op.shapes(*(value.shape for value in inputs))
        section = len([steps for steps in self._steps[:-1] if steps])
        parent = path.removesuffix(operation.name)
        outputs = tuple(
            Value(prefix + name, parent + name, shape, section)
            for name, shape in zip(operation.values, shapes, strict=True)
        )
        name = prefix + operation.name
        self._steps[-1].append(Step(name, path, operation.where, ops, inputs, outputs))
        scope |= zip(operation.values, outputs, strict=True)

    def _made(self, value: Value, name: str) -> Value:
        """The value, if a phase computes it; otherwise a copy that an `Identity` computes of an input or of
        the value of the last walk."""
        if value.section is not None:
            return value
        if value not in self._same:
            scope = {name: value}
            self._add(Operation(name, Identity(), (name,)), [Identity()], f"same.{name}", scope, "same_")
            self._same[value] = scope[name]
        return self._same[value]

    def _repeat(self, operation: Operation, repeat: Repeat, scope: dict[str, Value]) -> None:
        values = [scope[name] for name in operation.inputs]
        walks = repeat.walks - self._last_apart(operation, repeat)
        if walks > 1:
            values = [self._made(value, name) for value, name in zip(values, operation.inputs, strict=True)]
            self._steps.append([])
            self._walks.append(walks)
            body = repeat.layers[0].inputs
            own = [
                Value(
                    f"{operation.name}_{value.name}",
                    f"{operation.name}.{value.name}",
                    value.shape,
                    first=first,
                )
                for value, first in zip(body, values, strict=True)
            ]
            self._carried += own
            values = own
        whole = walks * repeat.period
        for index in range(repeat.period):
            # names of the layers of a body differ by their number
            prefix = "" if repeat.period == 1 and walks > 1 else f"{operation.name}{index}_"
            values = self._layer(
                operation, repeat.layers[index : whole : repeat.period], index, prefix, values
            )
        if walks > 1:
            for carried, again in zip(own, values, strict=True):
                if again in own:
                    raise GraphError(f"{operation.place} passes {again.name!r} on unchanged")
                carried.again = again
            values = list(own)
            self._steps.append([])
            self._walks.append(1)
        for index, layer in enumerate(repeat.layers[whole:], whole):
            values = self._layer(operation, (layer,), index, f"{operation.name}{index}_", values)
        scope |= zip(operation.values, values, strict=True)

    def _last_apart(self, operation: Operation, repeat: Repeat) -> bool:
        """Whether the last walk becomes a section of its own, in which last rows can be taken early."""
        readers = (o.op for o in self._graph.operations if set(operation.values) & set(o.inputs))
        takes = any(op.takes_last_row for op in readers)
        return self._early and takes and not repeat.rest and repeat.walks > 2

    def _layer(
        self,
        operation: Operation,
        layers: Sequence[LogicalGraph],
        index: int,
        prefix: str,
        values: Sequence[Value],
    ) -> list[Value]:
        """The outputs of one layer. layers: the layer in each walk of the body, or one layer behind the
        walks. values: its inputs."""
        inner = dict(zip((value.name for value in layers[0].inputs), values, strict=True))
        for inside in layers[0].operations:
            if inside.op.layers:
                raise GraphError(f"{operation.place}: a repetition inside a repetition cannot be scheduled")
            path = f"{operation.name}[{index}].{inside.name}"
            ops = [layer.by_name[inside.name].op for layer in layers]
            self._add(inside, ops, path, inner, prefix)
        return [inner[name] for name in layers[0].outputs]


def _phases(steps: Sequence[Step], shared: Collection[Step], section: int, first: int) -> list[Phase]:
    """The phases of a section. shared: matmuls of the engine. first: number of the first phase."""
    phases: list[Phase] = []

    def phase(number: int) -> Phase:
        while number >= first + len(phases):
            phases.append(Phase(first + len(phases), section))
        return phases[number - first]

    operands: dict[tuple[Value, Hashable], int] = {}  # phase of the matmuls of each operand and format
    engine = first  # last phase in which the engine is taken
    for step in steps:
        ready = max(
            (v.phase for v in step.inputs if v.phase is not None and v.section == section), default=first
        )
        if step in shared:
            (operand,) = step.inputs
            key = operand, _format(step.matmuls[0])
            if key not in operands:
                if operand not in {other for other, _ in operands}:
                    phase(ready).quantised.append(operand)
                operands[key] = engine = max(ready, engine) + 1
            ready = operands[key]
            phase(ready).matmuls.append(step)
        phase(ready).steps.append(step)
        for value in step.outputs:
            value.phase = ready
    for current in phases:
        _later_states(current, phases)
    return phases


def _later_states(phase: Phase, phases: Sequence[Phase]) -> None:
    """Move each operation that keeps state to the phase of its first reader, because state must be read in
    the phase that fills it. The inputs of the operation are held until then.

    Example: a cache in phase 1 whose first reader is attention in phase 2 leaves phase 1 and is inserted
    right before that reader; its outputs get the phase 2.
    """
    for step in [step for step in phase.steps if step.op.keeps_state]:
        later = (p for p in phases if any(set(step.outputs) & set(other.inputs) for other in p.steps))
        reader = next(later, phase)
        if reader is not phase:
            phase.steps.remove(step)
            first = next(i for i, other in enumerate(reader.steps) if set(step.outputs) & set(other.inputs))
            reader.steps.insert(first, step)
            for value in step.outputs:
                value.phase = reader.number


def _format(matmul: Matmul) -> Hashable:
    """A key that is equal for matmuls which the engine can compute together; None before they are
    quantised."""
    weight = matmul.weight
    if not isinstance(weight, IntegerWeight):
        return None
    return weight.format, weight.group, weight.minimums
