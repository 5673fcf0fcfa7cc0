"""Instances: the uses of kernels in all phases share hardware if that is possible and saves LUTs.

An instance from an earlier phase is used again under three conditions:

    The hardware differs only in its largest sizes (`max_...`); the instance gets the larger ones.
    The instance is free in this phase, and the streams of all phases together still have no cycle.
    A second instance costs more LUTs than choosing the inputs and steering the outputs.
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
    """An instance of a kernel: params, and bounds by phase. steps: see `Node`. behind: the array behind each
    memory port, with its role, the phase that reads it (None: all phases) and its logical shape. alone: no
    other use may share the instance."""

    name: str
    params: Any
    bounds: dict[int, Bounds] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    behind: list[tuple[Behind, str, int | None, tuple[int, ...]]] = field(default_factory=list)
    alone: bool = False


class Instances:
    """All instances by name, and the links between them.

    like: names of the instances of all uses of the largest run, in order; None for the largest run, which
    decides about sharing. taken: names that no instance may have.
    """

    def __init__(self, like: Sequence[str] | None, fabric: Fabric, taken: Collection[str] = ()) -> None:
        self._fabric, self._taken = fabric, frozenset(taken)
        self.by_name: dict[str, Instance] = {}
        self.links: list[Link] = []
        self.uses: list[str] = []
        self._like = like
        self._before: dict[str, set[str]] = {}  # direct and indirect sources of each instance

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
        """The instance of a use, linked to its sources: a shared or a new instance. alone: a new instance
        that no other use may share."""
        if self._like is not None:
            name = self._like[len(self.uses)]
            instance = self.by_name.get(name)
        else:
            instance = None if alone else self._shared(phase, params, bounds, behind, sources)
            name = self.free(name) if instance is None else instance.name
        self.uses.append(name)
        if instance is None:
            instance = self.by_name[name] = Instance(name, params, alone=alone)
            for region in behind:
                role = "state" if region.data is None else "constant"
                named = replace(region, name=f"{name}_{region.name}")
                instance.behind.append((named, role, None, region.itensor.shape))
        else:
            instance.params = envelope(instance.params, params)
        instance.bounds[phase] = bounds
        for port, source in sources.items():
            self.link(phase, source, Port(name, port))
        return instance

    def link(self, phase: int, source: Port, sink: Port) -> None:
        """Add a stream of a phase between instances, or from or to a hold. Updates the links and the sources
        of instances.

        Example: with links a -> b and c -> d, the link b -> c makes a and b sources of c, and also of d.
        """
        self.links.append((phase, source, sink))
        if source.node not in self.by_name or sink.node not in self.by_name:
            return
        before = self._before.setdefault(sink.node, set())
        before |= {source.node} | self._before.get(source.node, set())
        for later in self._before.values():
            if sink.node in later:
                later |= before

    def free(self, wanted: str) -> str:
        """The wanted name, with a number if an instance or the load of its constants already has that
        name."""
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
        """An instance of an earlier phase that this use can share at a gain; None if there is none."""
        nodes = {source.node for source in sources.values()}
        data = [id(region.data) for region in behind if region.data is not None]
        for instance in self.by_name.values():
            if instance.alone or phase in instance.bounds or not alike(instance.params, params):
                continue
            if _loops(params, bounds) != _loops(instance.params, next(iter(instance.bounds.values()))):
                continue
            if data != [id(region.data) for region, *_ in instance.behind if region.data is not None]:
                continue
            if any(instance.name in (node, *self._before.get(node, ())) for node in nodes):
                continue  # streams would form a cycle
            known = {(source, sink.name) for _, source, sink in self.links if sink.node == instance.name}
            same = {port for port, source in sources.items() if (source, port) in known}
            if worth(params, bounds, same, self._fabric):
                return instance
        return None


def _loops(params: KernelParams, bounds: Bounds) -> Any:
    """Streams of a kernel without their trip counts. They must be equal in all phases, because converters
    serve only such streams."""
    orders = {**params.inputs(bounds), **params.outputs(bounds)}
    return {port: (it.dtype, it.element_shape, it.steps, it.iter_map) for port, it in orders.items()}


def alike(a: Any, b: Any) -> bool:
    """Whether params are the same hardware apart from its largest sizes."""
    if type(a) is not type(b):
        return False
    return all(getattr(a, f.name) == getattr(b, f.name) for f in fields(a) if not f.name.startswith("max_"))


def envelope(a: Any, b: Any) -> Any:
    """The params that serve both, with the larger of all largest sizes."""
    sizes = [f.name for f in fields(a) if f.name.startswith("max_")]
    return replace(a, **{name: max(getattr(a, name), getattr(b, name)) for name in sizes})


def worth(params: KernelParams, bounds: Bounds, known: Collection[str], fabric: Fabric) -> bool:
    """Whether a second instance costs more LUTs than sharing, which needs selects at the inputs and routes at
    the outputs. known: inputs with the same source as before; a second instance would need a route for each.

    If all inputs have the same sources, outputs are assumed to go where they went before, and sharing is
    always worth it. Equal layers of one walk therefore use the same hardware to the end.
    """

    def luts(resources: Resources) -> float:
        return resources.lut + fabric.luts_of_a_dsp * resources.dsp

    def around(kind: type, itensor: ITensor) -> float:
        block = kind(token_bits=itensor.token_bits, ways=2, max_tokens=itensor.token_count)
        return luts(block.cost({"itensor": itensor, "way": 0}).resources)

    inputs = params.inputs(bounds)
    if known == {*inputs}:
        return True
    own = luts(params.cost(bounds).resources) + sum(around(RouteParams, inputs[port]) for port in known)
    chosen = sum(around(SelectParams, it) for port, it in inputs.items() if port not in known)
    return own > chosen + sum(around(RouteParams, it) for it in params.outputs(bounds).values())
