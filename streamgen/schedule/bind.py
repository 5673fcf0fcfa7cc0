"""Bind: operations of a schedule become uses of kernels, and uses share instances.

Every operation asks its site for kernels, phase by phase. A kernel that an earlier phase has asked for is
used again when

    it is the same hardware but for its greatest sizes (`max_...`), of which the instance gets the larger ones
    it is free in this phase, and streams of all phases together still have no cycle
    it costs more LUTs than choosing its inputs and steering its outputs would

A value that another phase reads is held (`Hold`): made in one phase, read in another. Whoever reads it in the
first of these takes it out; what reads it later gets it from there, held again. What passes from walk to walk
is one hold with two writers. The operands of the engine are held as the quantiser sends them, all others row
after row. Where streams come from and go to is `steer`'s.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any

import numpy as np

from streamgen.contract import Bounds, KernelParams
from streamgen.cost import Resources
from streamgen.errors import GraphError
from streamgen.formats import MX_GROUP
from streamgen.graph import Port
from streamgen.graph.logical import Operator, Shape
from streamgen.itensor import ITensor, without_reuse
from streamgen.kernels.concat import ConcatParams
from streamgen.kernels.quantise import QuantiseParams
from streamgen.kernels.route import RouteParams
from streamgen.kernels.segments import SegmentsParams
from streamgen.kernels.select import SelectParams
from streamgen.kernels.take_rows import TakeRowsParams
from streamgen.kernels.unzip import UnzipParams
from streamgen.kv_layout import KvLayout
from streamgen.operations import Cache
from streamgen.operations.site import Behind, Bound, Fixed, Source, Stream, of_stream
from streamgen.packing import WORD_LANES, MemoryLayout
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.schedule.engine import Engine
from streamgen.schedule.phases import Phase, Schedule, Step, Value

__all__ = ["Binding", "Hold", "Instance", "bind"]

LUTS_OF_A_DSP = 136  # the card has so many for each
REQUESTED = "take_"  # before the name of an output that is written on request


@dataclass(eq=False)
class Instance:
    """Hardware: params, and bounds by phase. steps: as of a Node. behind: what lies behind its memory ports,
    with its role, the phase that reads it (None: all) and its logical shape."""

    name: str
    params: Any
    bounds: dict[int, Bounds] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    behind: list[tuple[Behind, str, int | None, tuple[int, ...]]] = field(default_factory=list)


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
    """instances and holds by name; links: (phase, source, sink), of instances and holds. requested: bounds of
    nodes that differ when outputs are not asked for. uses: the instance of each use of a kernel, in order."""

    instances: Mapping[str, Instance]
    holds: Mapping[str, Hold]
    links: Sequence[tuple[int, Port, Port]]
    requested: Mapping[str, Bounds]
    uses: Sequence[str]


def bind(
    found: Schedule, engine: Engine, rate: float, tokens: int, position: int, like: Binding | None = None
) -> Binding:
    """Kernels of a run of so many tokens from a position on, shared as in `like`, the largest run.

    GraphError for what no kernel computes.
    """
    return _Binder(found, engine, rate, tokens, position, like).bind()


class _Binder:
    def __init__(
        self,
        found: Schedule,
        engine: Engine,
        rate: float,
        tokens: int,
        position: int,
        like: Binding | None,
    ) -> None:
        self._like, self._uses = like, []  # type: Binding | None, list[str]
        self.found, self.engine, self.plan, self.rate = found, engine, engine.plan, rate
        self.tokens, self.position = tokens, position
        self.instances: dict[str, Instance] = {}
        self.holds: dict[str, Hold] = {}
        self.links: list[tuple[int, Port, Port]] = []
        self._requested: dict[str, Bounds] = {}
        self._made: dict[tuple[Value, int], Bound] = {}  # by value and phase
        self._lasts: dict[tuple[Value, int], int] = {}  # by value and section, the last phase that had it
        self._operands: dict[Value, list[Hold]] = {}
        self._before: dict[
            str, set[str]
        ] = {}  # instances that an instance gets streams from, through others too
        self._caches = _cache_places(found)

    def bind(self) -> Binding:
        for phase in self.found.phases:
            site = _Site(self, phase)
            done: set[Step] = set()
            for outer in phase.quantised:
                if outer.section != phase.section:
                    self._quantise(site, outer)
            for step in phase.steps:
                if step in done:
                    continue
                if phase.matmuls and step is phase.matmuls[0]:
                    self._matmul(site)
                    done.update(phase.matmuls)
                    outputs = [value for one in phase.matmuls for value in one.outputs]
                else:
                    self._step(site, step)
                    outputs = list(step.outputs)
                for value in outputs:
                    if value in phase.quantised:
                        self._quantise(site, value)
            for carried in self.found.carried:
                for end in (carried.first, carried.again):
                    if end is not None and (end.section, end.phase) == (phase.section, phase.number):
                        self._keep(carried, end, phase)
            self._store(site)
        return Binding(self.instances, self.holds, self.links, self._requested, self._uses)

    # Values.

    def _step(self, site: "_Site", step: Step) -> None:
        site.step = step
        inputs = [self.stream(value, site.phase) for value in step.inputs]
        results = step.op.bind(site, *inputs)
        for value, result in zip(step.outputs, results, strict=True):
            self._set(value, site.phase, result)

    def _set(self, value: Value, phase: Phase, result: Bound) -> None:
        if isinstance(result, Stream):
            result = replace(result, shape=value.shape)
        self._made[value, phase.number] = result
        self._lasts[value, phase.section] = phase.number

    def stream(self, value: Value, phase: Phase) -> Bound:
        """A value in a phase: as it is made there, or out of a hold."""
        if (value, phase.number) not in self._made:
            if value.shape.rows == "every":
                return self._constant(value)
            self._made[value, phase.number] = self._arrive(value, phase)
            self._lasts[value, phase.section] = phase.number
        return self._made[value, phase.number]

    def _constant(self, value: Value) -> Bound:
        return next(made for (other, _), made in self._made.items() if other is value)

    def _arrive(self, value: Value, phase: Phase) -> Stream:
        if value.again is not None and (value, phase.section) not in self._lasts:
            hold = self._carrier(value)
        elif value in self.found.inputs.values():
            return self._input(value, phase)
        else:
            section = phase.section if (value, phase.section) in self._lasts else value.section
            if section is None or self._walks(section) not in (1, self._walks(phase.section)):
                raise GraphError(f"{value.name!r} does not pass from walk to walk; {phase.name} reads it")
            if section != phase.section and self._walks(phase.section) > 1:
                raise GraphError(f"{value.name!r} is made once, and every walk of {phase.name} reads it")
            last = self._lasts[value, section]
            made = self._made[value, last]
            if not isinstance(made, Stream):
                raise GraphError(f"what {value.name!r} is read for must be in the phase in which it is made")
            hold = self._hold(f"{value.name}_kept")
            hold.writes[last] = self.rows(value.shape)
            self.links.append((last, made.port, hold.sink))
        hold.reads[phase.number] = self.rows(value.shape)
        return Stream(hold.source, hold.reads[phase.number], value.shape)

    def _carrier(self, value: Value) -> Hold:
        if value.name not in self.holds:
            self.holds[value.name] = Hold(value.name, carried=True)
        return self.holds[value.name]

    def _keep(self, carried: Value, value: Value, phase: Phase) -> None:
        """What a walk begins with, or gives to the next."""
        hold, made = self._carrier(carried), self._made[value, phase.number]
        assert isinstance(made, Stream)
        hold.writes[phase.number] = self.rows(carried.shape)
        self.links.append((phase.number, made.port, hold.sink))

    def _hold(self, wanted: str) -> Hold:
        hold = Hold(self._free(wanted, self.holds))
        self.holds[hold.name] = hold
        return hold

    def _walks(self, section: int) -> int:
        return self.found.sections[section].walks

    def _input(self, value: Value, phase: Phase) -> Stream:
        if value.shape.kind == "ids":
            return self.numbers(value.name, phase)
        raise GraphError(f"input {value.name!r} is no number a token; an engine takes ids")

    # Streams.

    def rows(self, shape: Shape, lanes: int | None = None) -> ITensor:
        lanes = lanes or self.plan.lanes
        if shape.features % lanes:
            raise GraphError(f"{shape.features} features do not divide into tokens of {lanes} lanes")
        trips = (self.count(shape), shape.features // lanes)
        return ITensor((1, lanes), "f24", trips, (1, lanes), ((0,), (1,)))

    def count(self, shape: Shape) -> int:
        return {"tokens": self.tokens, "positions": self.position + self.tokens}.get(shape.rows, 1)

    def numbers(self, name: str, phase: Phase) -> Stream:
        itensor = ITensor((1,), "u32", (self.tokens,), (1,), ((0,),))
        node = f"load_{name}"
        behind = Behind(port="memory", name="", channel=0, itensor=itensor)
        self._load(node, phase, itensor, 128, 64, behind, name, "input", (self.tokens,))
        return Stream(Port(node, "o"), itensor, Shape(1, kind="ids"))

    def _load(
        self,
        node: str,
        phase: Phase,
        itensor: ITensor,
        prefetch: int,
        burst: int,
        behind: Behind,
        tensor: str,
        role: str,
        shape: tuple[int, ...],
    ) -> None:
        """A load of what lies behind it in this phase."""
        layout = MemoryLayout.of(itensor)
        params = LoadParams(
            layout=layout, prefetch=prefetch, burst=burst, max_tokens=itensor.token_count, rate=self.rate
        )
        instance = self.instances.setdefault(node, Instance(node, params))
        most = max(instance.params.max_tokens, params.max_tokens)
        instance.params = replace(instance.params, max_tokens=most)
        instance.bounds[phase.number] = {"itensor": itensor, "offset": 0}
        if role == "constant":
            instance.behind.append((replace(behind, name=tensor), role, phase.number, shape))
        elif not instance.behind:  # an input that several phases read
            instance.behind.append((replace(behind, name=tensor), role, None, shape))

    def use(
        self,
        phase: Phase,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        steps: Mapping[str, int],
        behind: Sequence[Behind],
        inputs: Mapping[str, Source],
    ) -> dict[str, Stream]:
        """An instance in a phase: one that is there, or a new one."""
        instance, free = self._instance(phase, name, params, bounds, behind, inputs)
        self._uses.append(free)
        if instance is None:
            instance = self.instances[free] = Instance(free, params)
            for one in behind:
                role = "state" if one.data is None else "constant"
                shape = one.itensor.shape if one.data is None else one.data.shape
                named = replace(one, name=f"{free}_{one.name}")
                instance.behind.append((named, role, None, shape))
        else:
            instance.params = envelope(instance.params, params)
        instance.bounds[phase.number] = bounds
        instance.steps |= steps
        before = self._before.setdefault(instance.name, set())
        for port, source in inputs.items():
            if isinstance(source, Fixed):
                source = self._constants(phase, instance.name, port, source)
            elif source.port.node in self.instances:
                before |= {source.port.node} | self._before.get(source.port.node, set())
            self.links.append((phase.number, source.port, Port(instance.name, port)))
        for later in self._before.values():
            if instance.name in later:
                later |= before
        return {
            port: Stream(Port(instance.name, port), itensor, Shape(1))
            for port, itensor in params.outputs(bounds).items()
        }

    def _instance(
        self,
        phase: Phase,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        behind: Sequence[Behind],
        inputs: Mapping[str, Source],
    ) -> tuple[Instance | None, str]:
        """The instance of a use, if it is there, and its name."""
        if self._like is not None:
            name = self._like.uses[len(self._uses)]
            return self.instances.get(name), name
        found = self._shared(phase, params, bounds, behind, inputs)
        return found, self._free(name, self.instances) if found is None else found.name

    def _shared(
        self,
        phase: Phase,
        params: KernelParams,
        bounds: Bounds,
        behind: Sequence[Behind],
        inputs: Mapping[str, Source],
    ) -> Instance | None:
        """An instance of an earlier phase that can do this, too, and is worth it."""
        streams = {port: source.port for port, source in inputs.items() if isinstance(source, Stream)}
        for instance in self.instances.values():
            if phase.number in instance.bounds or not alike(instance.params, params):
                continue
            data = [id(one.data) for one, *_ in instance.behind if one.data is not None]
            if data != [id(one.data) for one in behind if one.data is not None]:
                continue
            sources = {port.node for port in streams.values()}
            if any(instance.name in (s, *self._before.get(s, ())) for s in sources):
                continue  # streams would go round
            known = {(source, sink.name) for _, source, sink in self.links if sink.node == instance.name}
            if _worth(params, bounds, {port for port, source in streams.items() if (source, port) in known}):
                return instance
        return None

    def _constants(self, phase: Phase, node: str, port: str, fixed: Fixed) -> Stream:
        """The load of what a port of an instance reads in a phase."""
        name = f"{node}_{port.removeprefix('i_')}"
        once = without_reuse(fixed.itensor)
        data = np.asarray(fixed.data)
        behind = Behind(
            port="memory",
            name="",
            channel=fixed.channel,
            itensor=once,
            data=data if len(data) > 1 else data[0],
        )
        where = (f"load_{name}", phase, once, fixed.prefetch, fixed.burst)
        self._load(*where, behind, f"{name}_{phase.number}", "constant", once.shape)
        return Stream(Port(f"load_{name}", "o"), once, Shape(1, "every"))

    def _free(self, wanted: str, taken: Mapping[str, Any]) -> str:
        names = (wanted if not n else f"{wanted}_{n}" for n in count())
        return next(name for name in names if name not in taken)

    # What surrounds the engine.

    def _quantise(self, site: "_Site", value: Value) -> None:
        """A value becomes an operand, held until the engine reads it."""
        x = self.stream(value, site.phase)
        assert isinstance(x, Stream)
        rows, k = self.count(value.shape), value.shape.features
        padded = -(-k // MX_GROUP) * MX_GROUP
        params = QuantiseParams(lanes=self.plan.lanes, max_k=padded, sums=True)
        codes = site.kernel("quantise", params, {"t": rows, "k": padded, "valid_k": k}, i=x)
        self._operands[value] = []
        for port, name in (("o_x", "operand"), ("o_e", "exponents")):
            hold = self._hold(name)
            hold.writes[site.phase.number] = codes[port].itensor
            self.links.append((site.phase.number, codes[port].port, hold.sink))
            self._operands[value].append(hold)

    def _matmul(self, site: "_Site") -> None:
        """The matmuls of a phase: columns, their results side by side, and parted again."""
        phase, engine, plan = site.phase, self.engine, self.plan
        matmul = engine.matmuls[phase.number]
        (operand,) = {step.inputs[0] for step in matmul.steps}
        bounds = engine.bounds(phase.number, self.count(operand.shape))
        wanted = engine.params.inputs(bounds)
        held: dict[str, Source] = {}
        for port, hold in zip(("i_x", "i_e"), self._operands[operand], strict=True):
            hold.reads[phase.number] = next(iter(hold.writes.values()))
            held[port] = Stream(hold.source, wanted[port], operand.shape)
        outputs: dict[str, Any] = {}
        for c in range(plan.columns):
            constants = {
                port: Fixed(
                    itensor=itensor,
                    data=data,
                    channel=c,
                    prefetch=plan.prefetch if port == "i_w" else 64,
                    burst=64 if port == "i_w" else 16,
                )
                for port, (itensor, data) in engine.streams(phase.number, c, wanted).items()
            }
            found = self._column(phase, f"column{c}", bounds, held | constants)
            outputs[f"i_{c}"] = found["o_y"]
        out = engine.params.outputs(bounds)["o_y"]
        concat = ConcatParams(
            ways=plan.columns, dtype="f24", element_shape=(1, 1), max_tokens=out.token_count
        )
        y = replace(site.kernel("engine", concat, {"itensor": out}, **outputs)["o"], by_rows=False)
        for step, stream in zip(matmul.steps, self._parted(site, y), strict=True):
            self._set(step.outputs[0], phase, self._biased(site, step, stream))

    def _column(
        self, phase: Phase, name: str, bounds: Bounds, inputs: Mapping[str, Source]
    ) -> dict[str, Stream]:
        """A column is the instance of its name, whatever else is like it."""
        instance = self.instances.get(name)
        if instance is None:
            self.instances[name] = Instance(name, self.engine.params)
        instance = self.instances[name]
        instance.bounds[phase.number] = bounds
        for port, source in inputs.items():
            if isinstance(source, Fixed):
                source = self._constants(phase, name, port, source)
            self.links.append((phase.number, source.port, Port(name, port)))
        found = self.engine.params.outputs(bounds)
        return {port: Stream(Port(name, port), itensor, Shape(1)) for port, itensor in found.items()}

    def _parted(self, site: "_Site", y: Stream) -> list[Stream]:
        """The results of each matmul of a phase."""
        matmul = self.engine.matmuls[site.phase.number]
        if len(matmul.steps) == 1:
            return [y]
        if matmul.alternate:
            lanes = of_stream(y)["lanes"] // 2
            unzip = UnzipParams(ways=2, dtype="f24", lanes=lanes, max_tokens=y.itensor.token_count)
            found = site.kernel("unzip", unzip, {"itensor": y.itensor}, i=y)
        else:
            segments = SegmentsParams(
                token_bits=y.itensor.token_bits, ways=len(matmul.steps), max_tokens=y.itensor.token_count
            )
            sizes = tuple(rows // self.plan.unit for rows in matmul.rows)
            found = site.kernel("part", segments, {"itensor": y.itensor, "sizes": sizes}, i=y)
        return [replace(found[f"o_{way}"], by_rows=False) for way in range(len(matmul.steps))]

    def _biased(self, site: "_Site", step: Step, y: Stream) -> Stream:
        if step.op.bias is None:  # type: ignore[attr-defined]
            return y
        raise GraphError(f"{step.path} has a bias; matmuls of decoders have none")

    def _store(self, site: "_Site") -> None:
        """Outputs that are made in this phase."""
        for name, value in self.found.outputs.items():
            made = self._made.get((value, site.phase.number))
            if value.phase != site.phase.number or not isinstance(made, Stream):
                continue
            rows = self.count(value.shape)
            if name in self.found.requested:
                lanes = of_stream(made)["lanes"]
                most = rows * value.shape.features // lanes
                take = TakeRowsParams(dtype="f24", lanes=lanes, max_tokens=most)
                bounds = {"rows": rows, "features": value.shape.features, "first": 0, "count": rows}
                made = site.kernel(f"{REQUESTED}{name}", take, bounds, i=made)["o"]
                self._requested[made.port.node] = {"count": 0}
            order = made.itensor
            if value.shape.kind == "real" and value.shape.features % WORD_LANES == 0:
                order = self.rows(value.shape, WORD_LANES)
            params = StoreParams(layout=MemoryLayout.of(order), max_tokens=order.token_count, rate=self.rate)
            node = f"store_{name}"
            behind = Behind(port="memory", name=name, channel=0, itensor=order)
            instance = self.instances[node] = Instance(node, params)
            instance.bounds[site.phase.number] = {"itensor": order, "offset": 0}
            instance.behind.append((behind, "output", None, (rows, value.shape.features)))
            self.links.append((site.phase.number, made.port, Port(node, "i")))


class _Site:
    """`operations.site.Site` of a phase; `step` is the operation that is bound."""

    def __init__(self, binder: _Binder, phase: Phase) -> None:
        self._binder, self.phase = binder, phase
        self.step: Step | None = None
        self._once: dict[Hashable, Any] = {}
        self.tokens, self.position = binder.tokens, binder.position
        self.context, self.lanes, self.rate = binder.plan.context, binder.plan.lanes, binder.rate
        self.rows, self.count = binder.rows, binder.count

    @property
    def name(self) -> str:
        assert self.step is not None
        return self.step.name

    @property
    def ops(self) -> Sequence[Operator]:
        assert self.step is not None
        return self.step.ops

    def kernel(
        self,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        *,
        steps: Mapping[str, int] | None = None,
        behind: Sequence[Behind] = (),
        **inputs: Source,
    ) -> dict[str, Stream]:
        return self._binder.use(self.phase, name, params, bounds, steps or {}, behind, inputs)

    def fixed(self, itensor: ITensor, walks: np.ndarray) -> Fixed:
        padded = np.zeros((len(walks), *without_reuse(itensor).shape), walks.dtype)
        padded[:, :, : walks.shape[2]] = walks
        return Fixed(itensor, list(padded), channel=0)

    def table(self, name: str, itensor: ITensor, data: np.ndarray) -> Behind:
        channel = self._binder.plan.columns - 1
        return Behind(port="memory", name="table", channel=channel, itensor=itensor, data=data)

    def numbers(self, name: str) -> Stream:
        return self._binder.numbers(name, self.phase)

    def caches(self, width: int, dtype: str, heads: int) -> tuple[KvLayout, int, int]:
        assert self.step is not None
        layer, step = self._binder._caches[self.step]
        layout = KvLayout(
            dtype=dtype,
            width=width,
            heads=heads,
            layers=step * len(self.step.ops),
            positions=self.context,
            channels=self._binder.plan.kv_channels,
        )
        return layout, layer, step

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]


def _cache_places(found: Schedule) -> dict[Step, tuple[int, int]]:
    """For each cache its layer in memory, and the layers of a walk: caches of different phases share one."""
    kinds: dict[Hashable, list[Step]] = {}
    for phase in found.phases:
        own = [step for step in phase.steps if isinstance(step.op, Cache)]
        for index, step in enumerate(own):
            kinds.setdefault((step.op, phase.section, index), []).append(step)
    return {step: (layer, len(steps)) for steps in kinds.values() for layer, step in enumerate(steps)}


def alike(a: Any, b: Any) -> bool:
    """Whether params are the same hardware but for its greatest sizes."""
    if type(a) is not type(b):
        return False
    return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(a) if not f.name.startswith("max_"))


def envelope(a: Any, b: Any) -> Any:
    """The hardware that serves both: the larger of the greatest sizes."""
    sizes = [f.name for f in fields(a) if f.name.startswith("max_")]
    return replace(a, **{name: max(getattr(a, name), getattr(b, name)) for name in sizes})


def _worth(params: KernelParams, bounds: Bounds, known: Collection[str]) -> bool:
    """Whether hardware of its own costs more than to choose the inputs of an instance that is there, and to
    steer its outputs. known: inputs that come from where they came before, else routes would be needed."""

    def luts(resources: Resources) -> float:
        return resources.lut + LUTS_OF_A_DSP * resources.dsp

    def around(kind: type, itensor: ITensor) -> float:
        one = kind(token_bits=itensor.token_bits, ways=2, max_tokens=itensor.token_count)
        return luts(one.cost({"itensor": itensor, "way": 0}).resources)

    inputs = params.inputs(bounds)
    own = luts(params.cost(bounds).resources) + sum(around(RouteParams, inputs[port]) for port in known)
    chosen = sum(around(SelectParams, it) for port, it in inputs.items() if port not in known)
    return own > chosen + sum(around(RouteParams, it) for it in params.outputs(bounds).values())
