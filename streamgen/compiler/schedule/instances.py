"""Instances: uses of kernels in all phases share hardware where that is possible and worth it.

A kernel that an earlier phase has asked for is used again when

    it is the same hardware but for its greatest sizes (`max_...`), of which the instance gets the larger ones
    it is free in this phase, and streams of all phases together still have no cycle
    it costs more LUTs than choosing its inputs and steering its outputs would
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any

from streamgen.contract import Bounds, KernelParams
from streamgen.contract.cost import Resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.model.graph import Port
from streamgen.model.operations.site import Behind
from streamgen.platform.boards import Fabric

Link = tuple[int, Port, Port]
"""Phase, source and sink of a stream."""


@dataclass(eq=False)
class Instance:
    """Hardware: params, and bounds by phase. steps: as of a Node. behind: what lies behind its memory ports,
    with its role, the phase that reads it (None: all) and its logical shape. alone: no other use gets it."""

    name: str
    params: Any
    bounds: dict[int, Bounds] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    behind: list[tuple[Behind, str, int | None, tuple[int, ...]]] = field(default_factory=list)
    alone: bool = False


class Instances:
    """All instances by name, and the links between them.

    like: names of the instances of the uses, in order, as the largest run has them; the first run decides.
    taken: names that no use gets.
    """

    def __init__(self, like: Sequence[str] | None, fabric: Fabric, taken: Collection[str] = ()) -> None:
        self._fabric, self._taken = fabric, frozenset(taken)
        self.by_name: dict[str, Instance] = {}
        self.links: list[Link] = []
        self.uses: list[str] = []
        self._like = like
        self._before: dict[str, set[str]] = {}  # whom an instance gets streams from, through others too

    def use(
        self,
        phase: int,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        behind: Sequence[Behind],
        sources: Mapping[str, Port],
        alone: bool = False,
    ) -> Instance:
        """The instance of a use: one that is there, or a new one; linked to its sources. alone: a new one,
        that no other use gets."""
        if self._like is not None:
            name = self._like[len(self.uses)]
            instance = self.by_name.get(name)
        else:
            instance = None if alone else self._shared(phase, params, bounds, behind, sources)
            name = self.free(name) if instance is None else instance.name
        self.uses.append(name)
        if instance is None:
            instance = self.by_name[name] = Instance(name, params, alone=alone)
            for one in behind:
                role = "state" if one.data is None else "constant"
                shape = one.itensor.shape if one.data is None else one.data.shape
                instance.behind.append((replace(one, name=f"{name}_{one.name}"), role, None, shape))
        else:
            instance.params = envelope(instance.params, params)
        instance.bounds[phase] = bounds
        for port, source in sources.items():
            self.link(phase, source, Port(name, port))
        return instance

    def link(self, phase: int, source: Port, sink: Port) -> None:
        """A stream of a phase; between instances, or from or to a hold."""
        self.links.append((phase, source, sink))
        if source.node not in self.by_name or sink.node not in self.by_name:
            return
        before = self._before.setdefault(sink.node, set())
        before |= {source.node} | self._before.get(source.node, set())
        for later in self._before.values():
            if sink.node in later:
                later |= before

    def free(self, wanted: str) -> str:
        """A name that no instance has, and no load of its constants."""
        names = (wanted if not n else f"{wanted}_{n}" for n in count())
        taken = self._taken | self.by_name.keys()
        return next(name for name in names if not taken & {name, f"load_{name}"})

    def _shared(
        self,
        phase: int,
        params: KernelParams,
        bounds: Bounds,
        behind: Sequence[Behind],
        sources: Mapping[str, Port],
    ) -> Instance | None:
        """An instance of an earlier phase that can do this, too, and is worth it."""
        nodes = {source.node for source in sources.values()}
        data = [id(one.data) for one in behind if one.data is not None]
        for instance in self.by_name.values():
            if instance.alone or phase in instance.bounds or not alike(instance.params, params):
                continue
            if _loops(params, bounds) != _loops(instance.params, next(iter(instance.bounds.values()))):
                continue
            if data != [id(one.data) for one, *_ in instance.behind if one.data is not None]:
                continue
            if any(instance.name in (node, *self._before.get(node, ())) for node in nodes):
                continue  # streams would go round
            known = {(source, sink.name) for _, source, sink in self.links if sink.node == instance.name}
            same = {port for port, source in sources.items() if (source, port) in known}
            if worth(params, bounds, same, self._fabric):
                return instance
        return None


def _loops(params: KernelParams, bounds: Bounds) -> Any:
    """Streams but for their trip counts: the same in all phases, as converters serve nothing else."""
    orders = {**params.inputs(bounds), **params.outputs(bounds)}
    return {port: (it.dtype, it.element_shape, it.steps, it.iter_map) for port, it in orders.items()}


def alike(a: Any, b: Any) -> bool:
    """Whether params are the same hardware but for its greatest sizes."""
    if type(a) is not type(b):
        return False
    return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(a) if not f.name.startswith("max_"))


def envelope(a: Any, b: Any) -> Any:
    """The hardware that serves both: the larger of the greatest sizes."""
    sizes = [f.name for f in fields(a) if f.name.startswith("max_")]
    return replace(a, **{name: max(getattr(a, name), getattr(b, name)) for name in sizes})


def worth(params: KernelParams, bounds: Bounds, known: Collection[str], fabric: Fabric) -> bool:
    """Whether hardware of its own costs more than to choose the inputs of an instance that is there, and to
    steer its outputs. known: inputs that come from where they came before, else routes would be needed.

    When all inputs do, outputs are taken to go where they went before: layers of one walk that are alike use
    the same hardware to the end.
    """

    def luts(resources: Resources) -> float:
        return resources.lut + fabric.luts_of_a_dsp * resources.dsp

    def around(kind: type, itensor: ITensor) -> float:
        one = kind(token_bits=itensor.token_bits, ways=2, max_tokens=itensor.token_count)
        return luts(one.cost({"itensor": itensor, "way": 0}).resources)

    inputs = params.inputs(bounds)
    if known == {*inputs}:
        return True
    own = luts(params.cost(bounds).resources) + sum(around(RouteParams, inputs[port]) for port in known)
    chosen = sum(around(SelectParams, it) for port, it in inputs.items() if port not in known)
    return own > chosen + sum(around(RouteParams, it) for it in params.outputs(bounds).values())
