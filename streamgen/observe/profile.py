"""Where the cycles of a pass go: by phase, by kernel and phase, by stream of memory.

A phase lasts, in each of its walks, until its last token has passed the last port of any node; then the
next one begins. So every cycle of a pass belongs to one phase: the reading of the phase table to the first,
the end of the run to the last. In every phase a kernel is busy (a token passes one of its ports), stalled
(none does, and one waits at an output) or idle. What a kernel does ahead of a phase, as loads do, counts in
the phase that lasts meanwhile. Walks of a phase are summed.

The bound of a phase is that of `streamgen.explore.bound`; a phase whose weights were read ahead may take
less. Bytes of streams are those of the graph, exact.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from rich.console import Console
from rich.table import Table

from streamgen.buffers.packing import BEAT_BYTES
from streamgen.contract import memory_ports, traffic
from streamgen.emit.images import weights_name
from streamgen.explore.bound import phases
from streamgen.graph import Graph, Program
from streamgen.manifest import Manifest, PhaseTable
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Execution, Launch, Observer
from streamgen.runtime.simulator import SimulatedDevice

__all__ = [
    "KernelProfile",
    "PassProfile",
    "PhaseProfile",
    "Profile",
    "Profiler",
    "StepProfile",
    "StreamProfile",
]


@dataclass(frozen=True, kw_only=True)
class PhaseProfile:
    """A phase in all of its walks. bound: the least cycles. bytes: of all streams, over `channels`."""

    name: str
    walks: int
    cycles: int
    bound: float
    bytes: int
    channels: int

    @property
    def ratio(self) -> float:
        """Cycles against the bound."""
        return self.cycles / self.bound if self.bound else 0.0


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """Cycles of a node in each phase."""

    name: str
    kind: str
    busy: tuple[int, ...]
    stalled: tuple[int, ...]
    idle: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """One walk of a phase, by its number. busy, stalled: cycles of each node, in the order of the kernels."""

    phase: int
    cycles: int
    busy: tuple[int, ...]
    stalled: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StreamProfile:
    """Bytes that a node reads from a buffer in memory, or writes to it; by phase, but for the control's own.

    share: of what its channel can move in the cycles of the pass.
    """

    node: str
    buffer: str
    channel: int
    way: str
    bytes: int
    phases: tuple[int, ...]
    share: float


@dataclass(frozen=True, kw_only=True)
class PassProfile:
    """A pass of `tokens` tokens from `position` on, by one design. steps: the walks of its phases, one after
    the other. moved: bytes read and written, by channel, as the simulated memory counts them."""

    design: str
    position: int
    tokens: int
    cycles: int
    phases: tuple[PhaseProfile, ...]
    kernels: tuple[KernelProfile, ...]
    streams: tuple[StreamProfile, ...]
    steps: tuple[StepProfile, ...]
    moved: dict[int, tuple[int, int]]

    @property
    def bound(self) -> float:
        """Least cycles."""
        return sum(phase.bound for phase in self.phases)

    def lines(self) -> Iterator[str | Table]:
        """What is printed of it."""
        yield (
            f"{self.design}, {self.tokens} tokens at {self.position}: {self.cycles} cycles, "
            f"bound {self.bound:.0f}, "
            f"ratio {self.cycles / self.bound:.3f}; {sum(map(sum, self.moved.values()))} bytes moved"
        )
        yield self._phase_table()
        yield self._kernel_table()
        yield self._stream_table()

    def _phase_table(self) -> Table:
        table = Table("phase", "walks", "cycles", "%", "bound", "cycles / bound", "bytes", "channels")
        for p in self.phases:
            table.add_row(
                p.name,
                str(p.walks),
                str(p.cycles),
                f"{100 * p.cycles / self.cycles:.1f}",
                f"{p.bound:.0f}",
                f"{p.ratio:.3f}" if p.bound else "",
                str(p.bytes),
                str(p.channels),
            )
        return table

    def _kernel_table(self) -> Table:
        table = Table(
            "busy+stalled %", *(phase.name for phase in self.phases), "all", "busy", "stalled", "idle"
        )
        for k in self.kernels:
            parts = zip(k.busy, k.stalled, (phase.cycles for phase in self.phases), strict=True)
            sums = [sum(cycles) for cycles in (k.busy, k.stalled, k.idle)]
            shares = [_shares(*part) for part in (*parts, (sums[0], sums[1], self.cycles))]
            table.add_row(k.name, *shares, *map(str, sums))
        return table

    def _stream_table(self) -> Table:
        table = Table("stream", "buffer", "channel", "way", "bytes", "% of the channel")
        for s in self.streams:
            table.add_row(s.node, s.buffer, str(s.channel), s.way, str(s.bytes), f"{100 * s.share:.1f}")
        return table


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The passes of a text, or of other inputs; `str()` prints them as tables."""

    name: str
    clock_mhz: float
    passes: tuple[PassProfile, ...]

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=160)
        console.print(f"{self.name}: {self.clock_mhz:g} MHz", highlight=False)
        for one in self.passes:
            for part in one.lines():
                console.print(part, highlight=False)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


class Profiler:
    """Sees where the cycles of all runs of one call go; `passes` has them."""

    def __init__(self) -> None:
        self.passes: list[PassProfile] = []

    def observer(self, program: Program, names: Sequence[str], execution: Execution) -> Observer:
        """What watches the runs of a design on a simulator that counts at its streams. names: of phases."""

        @contextmanager
        def observe(device: Device, images: Mapping[str, bytes], launch: Launch) -> Iterator[None]:
            assert isinstance(device, SimulatedDevice)
            graph = program.at(launch.tiles, launch.position, launch.variant)
            channels = [port.channel for port in device.manifest.ports]
            before = {channel: device.traffic(channel) for channel in channels}
            device.profile(len(graph.nodes), _tokens(graph, device.manifest))
            yield
            moved = {channel: _moved(before[channel], device.traffic(channel)) for channel in channels}
            cycles, tokens = execution.statuses[-1].cycles, launch.tiles * program.token_lanes
            self.passes.append(_profile(graph, names, device, launch, tokens, cycles, moved))

        return observe


def _tokens(graph: Graph, manifest: Manifest) -> dict[tuple[str, str, int], np.ndarray]:
    """Tokens that pass each side of each stream for its node, step by step."""
    instances = {stream.name: stream.sides for stream in manifest.streams}
    places = {node.name: k for k, node in enumerate(graph.nodes)}
    steps = [phase for phase, _ in graph.steps()]
    tokens = {}
    for edge in graph.edges:
        source, target = graph.node(edge.source.node), graph.node(edge.target.node)
        sent = [source.outputs(phase).get(edge.source.name) for phase in range(graph.phases)]
        read = [target.inputs(phase).get(edge.target.name) for phase in range(graph.phases)]
        for instance, side, node, orders in zip(
            instances[edge.name], "io", (source, target), (sent, read), strict=True
        ):
            counts = np.array([0 if it is None else it.token_count for it in orders])
            tokens[instance, side, places[node.name]] = counts[steps]
    return tokens


def _profile(
    graph: Graph,
    names: Sequence[str],
    device: SimulatedDevice,
    launch: Launch,
    tokens: int,
    total: int,
    moved: dict[int, tuple[int, int]],
) -> PassProfile:
    """What a device has counted in a run of `total` cycles."""
    manifest, found = device.manifest, device.profiled()
    rate = Fraction(manifest.memory.beats, manifest.memory.cycles)
    steps = [phase for phase, _ in graph.steps()]
    of_phase = (np.array(steps) == np.arange(graph.phases)[:, None]).astype(np.uint64)
    cycles, busy, stalled = (of_phase @ part for part in (found.cycles, found.busy, found.stalled))
    table = manifest.variant(launch.variant).program
    return PassProfile(
        design=manifest.top,
        position=launch.position,
        tokens=tokens,
        cycles=total,
        phases=tuple(
            PhaseProfile(
                name=name,
                walks=walks,
                cycles=int(took),
                bound=walks * stage.cycles(rate),
                bytes=walks * stage.bytes,
                channels=len(stage.channels),
            )
            for name, (stage, walks), took in zip(names, phases(graph), cycles, strict=True)
        ),
        kernels=tuple(
            KernelProfile(
                name=node.name,
                kind=type(node.params).__name__.removesuffix("Params"),
                busy=tuple(map(int, busy[:, k])),
                stalled=tuple(map(int, stalled[:, k])),
                idle=tuple(map(int, cycles - busy[:, k] - stalled[:, k])),
            )
            for k, node in enumerate(graph.nodes)
        ),
        streams=tuple(_streams(graph, manifest, table, total * float(rate) * BEAT_BYTES)),
        steps=tuple(
            StepProfile(
                phase=phase, cycles=int(took), busy=tuple(map(int, moves)), stalled=tuple(map(int, waits))
            )
            for phase, took, moves, waits in zip(steps, found.cycles, found.busy, found.stalled, strict=True)
        ),
        moved=moved,
    )


def _moved(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return BEAT_BYTES * (after[0] - before[0]), BEAT_BYTES * (after[1] - before[1])


def _streams(graph: Graph, manifest: Manifest, program: PhaseTable, limit: float) -> Iterator[StreamProfile]:
    """program: that of the pass. limit: bytes that a channel can move in it."""
    walks = [times for section, times in graph.walked() for _ in section]
    found: dict[tuple[str, str, int, str], list[int]] = {}
    for tensor in graph.tensors:
        node = graph.node(tensor.node)
        buffer = weights_name(tensor.channel) if tensor.role == "constant" else tensor.place
        way = memory_ports(node.params)[tensor.port]
        counts = found.setdefault((node.name, buffer, tensor.channel, way), [0] * graph.phases)
        for phase, bounds in enumerate(node.bounds):
            if bounds is not None and tensor.phase in (None, phase):
                counts[phase] += walks[phase] * traffic(node.params, bounds)[tensor.port] * BEAT_BYTES
    for key, parts in found.items():
        yield _stream(*key, sum(parts), tuple(parts), limit)
    control = next(info.channel for info in manifest.buffers if info.role == "table")
    table = program.beats_read * BEAT_BYTES
    yield _stream("control", "table", control, "read", table, (), limit)
    yield _stream("control", "status", control, "write", manifest.status_bytes, (), limit)


def _stream(
    node: str, buffer: str, channel: int, way: str, total: int, parts: tuple[int, ...], limit: float
) -> StreamProfile:
    return StreamProfile(
        node=node, buffer=buffer, channel=channel, way=way, bytes=total, phases=parts, share=total / limit
    )


def _shares(busy: int, stalled: int, cycles: int) -> str:
    """Percent of the cycles; blank for nothing."""
    if not busy + stalled:
        return ""
    return f"{100 * busy / cycles:.0f}" + (f"+{100 * stalled / cycles:.0f}" if stalled else "")
