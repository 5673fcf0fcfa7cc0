"""Uses of kernels in the phases of a run, and the loads that feed them from memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.instances import Instance, Instances
from streamgen.compiler.schedule.phases import Phase
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steps import Value
from streamgen.contract import Bounds, KernelParams
from streamgen.itensor import ITensor, without_reuse
from streamgen.model.graph import Port
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Shape
from streamgen.model.operations.site import Behind, Fixed, Source, Stream
from streamgen.platform.boards import Channel
from streamgen.platform.dma import LoadParams

INPUT_PREFETCH = (
    1024  # most beats of an input to prefetch; it is requested whole, before weights on its channel
)


class Uses:
    """The uses of kernels in one run of `tokens` tokens from `position` on, with `source` rows of a source.

    extent: features of values with padding. memory: a memory channel of the board. tensors: names of inputs
    and outputs in memory.
    """

    def __init__(
        self,
        instances: Instances,
        plan: HardwarePlan,
        *,
        extent: Mapping[Value, int],
        memory: Channel,
        tensors: Mapping[str, str],
        tokens: int,
        position: int,
        source: int,
    ) -> None:
        self.plan, self.extent, self.memory = plan, extent, memory
        self.tokens, self.position, self.source = tokens, position, source
        self._instances, self._tensors = instances, tensors
        self._spread: dict[str, int] = {}  # channels of constants, by the name of their reader
        self.unasked: dict[str, Bounds] = {}
        """By instance, bounds that differ in a run that asks for nothing that follows from the last row."""

    def rows(self, shape: Shape, lanes: int | None = None) -> ITensor:
        """The order of a value row after row. shape: shape with padded features. lanes: elements of a token;
        by default `lanes_for`."""
        lanes = self.lanes_for(shape.features) if lanes is None else lanes
        if shape.features % lanes:
            raise GraphError(f"{shape.features} features do not divide into tokens of {lanes} lanes")
        trips = (self.count(shape), shape.features // lanes)
        return ITensor((1, lanes), "f24", trips, (1, lanes), ((0,), (1,)))

    def lanes_for(self, features: int) -> int:
        """The lanes of the plan, halved until they divide `features`."""
        lanes = self.plan.lanes
        while features % lanes:
            lanes //= 2
        return lanes

    def count(self, shape: Shape) -> int:
        """Rows of a value in this run."""
        return {"tokens": self.tokens, "positions": self.position + self.tokens}.get(shape.rows, 1)

    def input(self, value: Value, phase: Phase) -> Stream:
        """Load an input of the graph in a phase."""
        if value.shape.kind == "ids":
            return self.numbers(value.name, phase)
        itensor = self.rows(replace(value.shape, features=self.extent[value]), self.plan.width(value.path))
        beats = MemoryLayout.of(itensor).beats(itensor.token_count)
        prefetch = min(-(-beats // 64) * 64, INPUT_PREFETCH)
        shape = (self.count(value.shape), value.shape.features)
        where = self.host(value.name, itensor)
        return self.load(f"load_{where.name}", phase, itensor, prefetch, 64, where, "input", shape)

    def host(self, name: str, itensor: ITensor) -> Behind:
        """The place of an input or an output of the graph in memory."""
        channel = self.plan.boundary.channels.get(name, self.plan.io_channel)
        return Behind(port="memory", name=self._tensors.get(name, name), channel=channel, itensor=itensor)

    def numbers(self, name: str, phase: Phase) -> Stream:
        """Load an input of the host that has a number for each token."""
        itensor = ITensor((1,), "u32", (self.tokens,), (1,), ((0,),))
        where = self.host(name, itensor)
        return self.load(f"load_{where.name}", phase, itensor, 128, 64, where, "input", (self.tokens,))

    def load(
        self,
        node: str,
        phase: Phase,
        itensor: ITensor,
        prefetch: int,
        burst: int,
        behind: Behind,
        role: str,
        shape: tuple[int, ...],
    ) -> Stream:
        """Load an array in a phase. behind: the array. role, shape: its role and its logical shape. Phases
        share the load with the name `node`."""
        layout, most = MemoryLayout.of(itensor), itensor.token_count
        params = LoadParams(
            layout=layout, prefetch=prefetch, burst=burst, max_tokens=most, **self.memory._asdict()
        )
        instance = self._instances.by_name.setdefault(node, Instance(node, params))
        instance.params = replace(instance.params, max_tokens=max(instance.params.max_tokens, most))
        instance.bounds[phase.number] = {"itensor": itensor, "offset": 0}
        if role == "constant":
            instance.behind.append((behind, role, phase.number, shape))
        elif not instance.behind:  # an input that several phases read
            instance.behind.append((behind, role, None, shape))
        return Stream(Port(node, "o"), itensor, Shape(1))

    def use(
        self,
        phase: Phase,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        steps: Mapping[str, int],
        behind: Sequence[Behind],
        inputs: Mapping[str, Source],
        unasked: Bounds | None = None,
        alone: bool = False,
    ) -> dict[str, Stream]:
        """Use a kernel in a phase. Returns its outputs by port. unasked: bounds that differ in a run that
        asks for nothing that follows from the last row. alone: the kernel gets an instance of its own."""
        sources = {port: source.port for port, source in inputs.items() if isinstance(source, Stream)}
        instance = self._instances.use(phase.number, name, params, bounds, behind, sources, alone)
        instance.steps |= steps
        if unasked is not None:
            self.unasked[instance.name] = unasked
        self.constants(phase, instance.name, inputs)
        return {
            port: Stream(Port(instance.name, port), itensor, Shape(1))
            for port, itensor in params.outputs(bounds).items()
        }

    def constants(self, phase: Phase, node: str, inputs: Mapping[str, Source]) -> None:
        """Add the loads of the constants that ports of an instance read in a phase."""
        for port, fixed in inputs.items():
            if not isinstance(fixed, Fixed):
                continue
            name = node if port == "i" else f"{node}_{port.removeprefix('i_')}"
            once, walks = without_reuse(fixed.itensor), fixed.data
            data = (
                walks if isinstance(walks, LateArray) else np.asarray(walks if len(walks) > 1 else walks[0])
            )
            channel = fixed.channel
            if channel is None:
                channel = self._spread.setdefault(name, self.plan.constant_channel(len(self._spread)))
            behind = Behind(
                port="memory",
                name=f"{name}_{phase.number}",
                channel=channel,
                itensor=once,
                data=data,
            )
            where = (f"load_{name}", phase, once, fixed.prefetch, fixed.burst)
            load = self.load(*where, behind, "constant", once.shape)
            self._instances.link(phase.number, load.port, Port(node, port))
