"""Compare every token of a run with the golden model and find the first difference.

A simulator with probes (`streamgen.runtime.instruments`) compares the tokens that enter and leave each FIFO
with the tokens of the golden model. It stops in the cycle of the first difference. Differences in the same
cycle are reported in topological order. `streamgen.observe.difference` finds the faulty kernel.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches

import numpy as np

from streamgen.artifact.manifest import Manifest, StreamFacts
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.base.errors import DeviceError, DeviceTimeoutError, ProbeError
from streamgen.base.wording import counted
from streamgen.model import golden
from streamgen.model.graph import Edge, Graph, Program
from streamgen.numbers import formats
from streamgen.observe.difference import Difference, Expectation
from streamgen.runtime.arrays import packed, unpacked
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Launch, Observer
from streamgen.runtime.observed import Watched
from streamgen.runtime.simulator import SimulatedDevice

DRAIN_CYCLES, DRAIN_STEP = 4096, 64  # after the last store, for tokens that nobody needs


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """Numbers of runs, edges and tokens that the probes compared, and the first difference, if any."""

    runs: int = 0
    edges: int = 0
    tokens: int = 0
    difference: Difference | None = None

    def __str__(self) -> str:
        where = f"{counted(self.tokens, 'token')} on {counted(self.edges, 'edge')}"
        if self.difference is not None:
            return f"{self.difference}\n  {where} were right before"
        return f"{where} in {counted(self.runs, 'run')}: no difference from the golden model"


class Probe:
    """The probes of one call of `Accelerator.run`. Their result is in `report`."""

    def __init__(self, edges: Sequence[str] | None, manifests: Sequence[Manifest]) -> None:
        """edges: names of edges as in the report; None for all. Raises ValueError for an unknown edge."""
        known = [stream.name for manifest in manifests for stream in manifest.streams]
        for name in edges or ():
            if name not in known:
                near = get_close_matches(name, known, n=1, cutoff=0)
                raise ValueError(f"no edge is called {name!r}; the nearest name is {near[0]!r}")
        self._edges = None if edges is None else frozenset(edges)
        self.report = ProbeReport(edges=len(known if edges is None else set(edges)))

    def streams(self, manifest: Manifest) -> tuple[StreamFacts, ...]:
        """The probed streams of a design, in topological order."""
        return tuple(s for s in manifest.streams if self._edges is None or s.name in self._edges)

    def observer(self, program: Program, manifest: Manifest) -> Observer:
        """An observer of the runs of a design whose golden model is `program`."""

        def observe(
            device: Device, images: Mapping[str, bytes], launch: Launch
        ) -> AbstractContextManager[None]:
            graph = program.at(launch.tiles, launch.position, launch.variant, launch.source or None)
            return self._watch(device, images, graph, manifest, launch)

        return observe

    @contextmanager
    def _watch(
        self, device: Device, images: Mapping[str, bytes], graph: Graph, manifest: Manifest, launch: Launch
    ) -> Iterator[None]:
        assert isinstance(device, SimulatedDevice)
        tiles = launch.tiles
        by_name = {edge.name: edge for edge in graph.edges}
        edges = [by_name[stream.name] for stream in self.streams(manifest)]
        boundary = {b.name: b for b in manifest.buffers}
        inputs = {name: unpacked(boundary[name], image, tiles) for name, image in images.items()}
        expected, outputs = _expected(graph, inputs, _state(graph, device), edges)
        written = manifest.variant(launch.variant).outputs
        self.report = replace(self.report, runs=self.report.runs + 1)
        run = Expectation(graph, edges, expected, self.report.runs)
        device.watch(expected)
        try:
            yield
            for _ in range(0, DRAIN_CYCLES, DRAIN_STEP):
                if run.complete(device.watched()):
                    break
                device.run(DRAIN_STEP)
        except DeviceError as error:
            seen = device.watched()
            difference = run.difference(seen)
            if difference is None and isinstance(error, DeviceTimeoutError):
                difference = run.owed(seen)
            self._count(seen, difference)
            if difference is None:
                raise
            raise ProbeError(str(self.report)) from error
        seen = device.watched()
        difference = None if run.complete(seen) else run.owed(seen) or run.absent(seen)
        for name, array in outputs.items() if difference is None else ():
            if name not in written:
                continue
            image = packed(boundary[name], array, tiles)
            there = device.allocate(name).read(len(image))
            if there != image:
                difference = run.stored(boundary[name], tiles, image, there)
                break
        self._count(seen, difference)
        if difference is not None:
            raise ProbeError(str(self.report))

    def _count(self, seen: Watched, difference: Difference | None) -> None:
        tokens = self.report.tokens + sum(into for into, _ in seen.passed)
        self.report = replace(self.report, tokens=tokens, difference=difference)


def _expected(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    state: dict[str, np.ndarray],
    edges: Sequence[Edge],
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The tokens of each edge in order, over all phases, and the outputs by name."""
    parts: dict[str, list[np.ndarray]] = {edge.name: [] for edge in edges}
    sinks = {tensor.node: tensor.name for tensor in graph.tensors if tensor.role == "output"}
    outputs = {}
    for phase, port, array in golden.steps(graph, inputs, state):
        for edge in graph.outputs_of(port.node):
            if edge.source != port:
                continue
            if edge.target.node in sinks:
                outputs[sinks[edge.target.node]] = array
            if edge.name in parts and (itensor := graph.itensor(edge, phase)) is not None:
                parts[edge.name].append(formats.encode(itensor.dtype, itensor.to_tokens(array)))
    return [_joined(parts[edge.name]) for edge in edges], outputs


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """The tokens of an edge; empty if the edge is unused in all phases of a run."""
    return np.concatenate(parts) if parts else np.zeros((0, 1), np.uint8)


def _state(graph: Graph, device: SimulatedDevice) -> dict[str, np.ndarray]:
    """State that earlier runs left on a device, by buffer."""
    state = {}
    for tensor in graph.tensors:
        if tensor.role == "state" and tensor.place not in state:
            assert tensor.itensor is not None
            layout = MemoryLayout.of(tensor.itensor)
            size = layout.beats(tensor.itensor.token_count) * BEAT_BYTES
            image = device.allocate(tensor.place).read(size)
            state[tensor.place] = layout.unpack(tensor.itensor, image)
    return state
