"""Run many graphs fast: the emitted Verilog of every kind of kernel and FIFO as a model, joined by the bench.

    models = NetworkModels(graphs)
    run = models.run(graph, phase, inputs, depths)
    run.links[k].taken, run.tokens[Port("b", "o_0")]

The models of all kinds are built once, in some seconds; a graph is wired when it runs, so hundreds of graphs
with thousands of kernels cost no more. What runs is what `sim.network_simulator` runs, in the same cycles.
FIFOs of depth 1 and 2 are queues of that depth; a deeper one is a queue of LUT memory that looks full when
it holds its depth.
"""

import ctypes
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from amaranth import Value
from amaranth.lib.wiring import In, Out

from sim.network_simulator import LinkTimes
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.rtl import Buildable, Library, rtlil_to_verilog
from streamgen.model.graph import Graph, Port
from streamgen.testing.bench import BenchError, Stalls, stream_ports
from streamgen.testing.kernel import descriptor_word
from streamgen.testing.stream_simulator import compile_models

__all__ = ["ModelRun", "NetworkModels"]

_FINE, _STUCK, _TOO_MANY, _LATE = range(4)
_DEEPEST = 128


@dataclass(frozen=True)
class ModelRun:
    """What a run saw.

    ended: "" when all tokens have moved, else "stuck" or "late". tokens, cycles: of the ports at the
    boundary, descriptors left out. links: every edge, in order.
    """

    ended: str
    tokens: dict[Port, list[int]]
    cycles: dict[Port, np.ndarray]
    links: list[LinkTimes]

    @property
    def finish(self) -> int:
        """Cycles of the run: the last one in which a token moved, plus 1."""
        times = [*self.cycles.values(), *(link.taken for link in self.links)]
        return 1 + max(int(cycles[-1]) for cycles in times if len(cycles))


@dataclass(frozen=True)
class _Kind:
    number: int
    clocking: tuple[str, ...]
    streams: Mapping[str, tuple[bool, int]]  # inward, bits; inputs first

    def pin(self, name: str) -> int:
        return list(self.streams).index(name)


class NetworkModels:
    """The kinds of kernels and FIFOs that some graphs need."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        self._kinds: dict[Buildable, _Kind] = {}
        library = Library()
        modules: list[str] = []

        def need(params: Buildable) -> _Kind:
            if params not in self._kinds:
                component = params.build()
                streams = {
                    name: (inward, len(Value.cast(getattr(component, name).payload)))
                    for inward in (True, False)
                    for name in stream_ports(component, In if inward else Out)
                }
                module, clocking = library.require(params, component)
                self._kinds[params] = _Kind(len(modules), clocking, streams)
                modules.append(module)
            return self._kinds[params]

        for graph in graphs:
            for node in graph.nodes:
                need(node.params)
            for edge in graph.edges:
                _, bits = need(graph.node(edge.source.node).params).streams[edge.source.name]
                for depth in (1, 2, _DEEPEST):
                    need(_queue(bits, depth))
        folder = tempfile.TemporaryDirectory(prefix="models-")
        weakref.finalize(self, folder.cleanup)
        place = Path(folder.name)
        (place / "design.v").write_text(rtlil_to_verilog(library.text()))
        prefixes = {f"Vkind{number}": module for number, module in enumerate(modules)}
        lines = [f'#include "{prefix}.h"' for prefix in prefixes]
        kinds = self._kinds.values()
        lines += ["#define KINDS(X) " + " ".join(f"X({k.number}, {int('rst' in k.clocking)})" for k in kinds)]
        for kind in kinds:
            pins = (f"X({str(inward).lower()}, {name})" for name, (inward, _) in kind.streams.items())
            lines.append(f"#define PINS_{kind.number}(X) {' '.join(pins)}")
        (place / "models.h").write_text("\n".join(lines) + "\n")
        driver = Path(__file__).with_name("network_models.cpp")
        library_ = compile_models(place, ["design.v"], prefixes, driver)
        u64, number = ctypes.c_uint64, ctypes.c_double
        blocks, wires, outcome = (ctypes.POINTER(kind) for kind in (_Block, _Wire, _Outcome))
        library_.simulate.argtypes = (u64, blocks, u64, wires, u64, number, number, u64, u64, outcome)
        library_.simulate.restype = None
        self._simulate = library_.simulate

    def run(
        self,
        graph: Graph,
        phase: int,
        inputs: Mapping[Port, Sequence[int]],
        depths: Sequence[int],
        *,
        stalls: Stalls | None = None,
        deadline: int | None = None,
        watchdog: int = 2000,
    ) -> ModelRun:
        """A phase of a graph with tokens for the input ports at its boundary, and depths for its edges.

        It ends when all tokens have moved, early in cycle `deadline` or when nothing moves for `watchdog`
        cycles. BenchError for a token too many.
        """
        place = {node.name: k for k, node in enumerate(graph.nodes)}
        kinds = [self._kinds[node.params] for node in graph.nodes]
        leaving, entering, wires = [], [], []
        order: list[list[tuple[int, int]]] = [[(kind.number, 0)] for kind in kinds]
        at = np.cumsum([0, *(1 + sum(1 for _ in graph.outputs_of(node.name)) for node in graph.nodes)])
        for edge, depth in zip(graph.edges, depths, strict=True):
            source, target = place[edge.source.node], place[edge.target.node]
            _, bits = kinds[source].streams[edge.source.name]
            queue = self._kinds[_queue(bits, depth)]
            itensor = graph.itensor(edge, phase)
            assert itensor is not None and depth <= _DEEPEST
            here = int(at[source]) + len(order[source])
            order[source].append((queue.number, depth))
            ends = (int(at[source]), kinds[source].pin(edge.source.name), here, 0)
            entering.append(_Stream(ends, bits, itensor.token_count))
            ends = (here, 1, int(at[target]), kinds[target].pin(edge.target.name))
            leaving.append(_Stream(ends, bits, itensor.token_count))
        ports: dict[Port, _Stream] = {}
        joined = {port for edge in graph.edges for port in (edge.source, edge.target)}
        for node, kind in zip(graph.nodes, kinds, strict=True):
            bounds = node.bounds[phase]
            assert bounds is not None
            here = int(at[place[node.name]])
            outputs = node.outputs(phase)
            for name, (inward, bits) in kind.streams.items():
                port = Port(node.name, name)
                if port in joined:
                    continue
                ends = (-1, -1, here, kind.pin(name)) if inward else (here, kind.pin(name), -1, -1)
                if name == "i_descriptor":
                    wires.append(_Stream(ends, bits, 1, [descriptor_word(node.params, bounds)]))
                elif inward:
                    ports[port] = _Stream(ends, bits, len(inputs[port]), inputs[port])
                else:
                    ports[port] = _Stream(ends, bits, outputs[name].token_count)
        streams = [*leaving, *entering, *wires, *ports.values()]
        pairs = [pair for parts in order for pair in parts]
        block = (_Block * len(pairs))(*(_Block(*pair) for pair in pairs))
        wire = (_Wire * len(streams))(*(stream.wire for stream in streams))
        chosen = stalls or Stalls(seed=0)
        outcome = _Outcome()
        self._simulate(
            *(len(pairs), block, len(streams), wire, chosen.seed, chosen.sources, chosen.sinks),
            *((1 << 63) if deadline is None else deadline, watchdog, ctypes.byref(outcome)),
        )
        if outcome.kind == _TOO_MANY:
            raise BenchError(f"cycle {outcome.cycle}: a token too many ({chosen!r}) in\n{graph}")
        for stream, state in zip(streams, wire, strict=True):
            stream.moved = state.moved
        queues = [stream.ends[2] for stream in entering]
        return ModelRun(
            {_FINE: "", _STUCK: "stuck", _LATE: "late"}[outcome.kind],
            {port: stream.values() for port, stream in ports.items() if stream.ends[2] < 0},
            {port: stream.times() for port, stream in ports.items()},
            [
                LinkTimes(into.times(), out.times(), int(block[queue].peak))
                for into, out, queue in zip(entering, leaving, queues, strict=True)
            ],
        )


def _queue(bits: int, depth: int) -> QueueParams:
    return (
        QueueParams(bits=bits, depth=depth)
        if depth <= 2
        else QueueParams(bits=bits, depth=_DEEPEST, memory="lutram")
    )


class _Block(ctypes.Structure):
    """`Block` of network_models.cpp."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("kind", "limit", "inside", "peak")]


class _Wire(ctypes.Structure):
    """`Wire` of network_models.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("source", "source_pin", "target", "target_pin")),
        *((name, ctypes.c_void_p) for name in ("tokens", "cycles")),
        *((name, ctypes.c_uint64) for name in ("words", "count", "moved")),
        *((name, ctypes.c_uint8) for name in ("valid", "ready", "waits")),
    ]


class _Outcome(ctypes.Structure):
    """`Outcome` of network_models.cpp."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("kind", "wire", "cycle")]


class _Stream:
    """The memory of one stream in a run; tokens only at the boundary."""

    def __init__(
        self, ends: tuple[int, int, int, int], bits: int, count: int, given: Sequence[int] = ()
    ) -> None:
        self.ends, self.moved = ends, 0
        self._bytes = 4 * -(-bits // 32)
        raw = b"".join(token.to_bytes(self._bytes, "little") for token in given)
        size = count * self._bytes if min(ends) < 0 else 0
        self._tokens = np.frombuffer(bytearray(raw or bytes(size)), np.uint8)
        self._cycles = np.zeros(count, np.uint64)
        self.wire = _Wire(*ends, self._tokens.ctypes.data, self._cycles.ctypes.data, self._bytes // 4, count)

    def times(self) -> np.ndarray:
        """Cycles of the tokens that moved."""
        return self._cycles[: self.moved].astype(np.int64)

    def values(self) -> list[int]:
        """The tokens that moved."""
        raw, size = self._tokens.tobytes(), self._bytes
        return [int.from_bytes(raw[k * size : (k + 1) * size], "little") for k in range(self.moved)]
