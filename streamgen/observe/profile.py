"""Profiles of passes: cycles by phase, by kernel and phase, and bytes by memory stream.

Every cycle of a pass belongs to one phase. A walk of a phase ends when its last token has passed the last
port of any node; then the next phase begins. Reading the phase table belongs to the first phase, the end of
the run to the last. In each phase a kernel is busy (a token passes one of its ports), stalled (no token
passes, and one waits at an output) or idle. Work ahead of a phase, such as loads, counts in the phase during
which it happens. Walks of a phase are summed.

`compiler.explore.bound` gives the bound of a phase. A phase whose weights were read ahead may take fewer
cycles. Bytes of streams are exact.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter
from pathlib import Path

import numpy as np
from rich.table import Table

from streamgen.artifact.manifest import Manifest
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.artifact.phase_table import PhaseTable
from streamgen.base.tables import rendered, table, width_of
from streamgen.base.wording import counted
from streamgen.compiler.emit.images import weights_name
from streamgen.compiler.explore.bound import phases
from streamgen.model.graph import Graph, Program
from streamgen.observe.alike import named, rows, spread
from streamgen.observe.channels import tensor_traffic
from streamgen.runtime.device import Device, HostCall
from streamgen.runtime.execution import Execution, Launch, Observer, OpenDevice
from streamgen.runtime.observed import Windows
from streamgen.runtime.simulator import SimulatedDevice

_NAMES, _SHARE = 34, 9  # characters of a kernel's name, and of its shares of a phase


@dataclass(frozen=True, kw_only=True)
class PhaseProfile:
    """All walks of a phase.

    memory_cycles, product_cycles: fewest cycles that memory and multipliers need. products: number of
    products. bytes: bytes of all memory streams, on so many `channels`.
    """

    name: str
    walks: int
    cycles: int
    memory_cycles: float
    product_cycles: float
    products: int
    bytes: int
    channels: int

    @property
    def bound(self) -> float:
        """Fewest cycles that memory and multipliers allow."""
        return max(self.memory_cycles, self.product_cycles)

    @property
    def ratio(self) -> float:
        """Cycles divided by the bound."""
        return self.cycles / self.bound if self.bound else 0.0


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """Busy, stalled and idle cycles of a node, by phase."""

    name: str
    kind: str
    busy: tuple[int, ...]
    stalled: tuple[int, ...]
    idle: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StreamProfile:
    """Bytes that a node reads from a memory buffer or writes to it.

    phases: bytes by phase; empty for streams of the control. share: share of the bytes that the channel can
    move during the pass.
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
    """A pass of `tokens` tokens from `position` on, through one design.

    moved: (bytes read, bytes written) by channel, as the simulated memory counts them. begun, ended: cycles
    of the card at the start of the run and at its end, as the host sees it. sections: index of the phase of
    each step in order; a step is a walk of a phase. fifos: name and depth of each FIFO. windows: the pass in
    windows, with nodes in the order of `kernels`, ports in the order of `moved` and FIFOs in the order of
    `fifos`; not in JSON.
    """

    design: str
    position: int
    tokens: int
    cycles: int
    phases: tuple[PhaseProfile, ...]
    kernels: tuple[KernelProfile, ...]
    streams: tuple[StreamProfile, ...]
    moved: dict[int, tuple[int, int]]
    begun: int
    ended: int
    sections: tuple[int, ...]
    fifos: tuple[tuple[str, int], ...]
    windows: Windows = field(repr=False, compare=False)

    @property
    def bound(self) -> float:
        """Fewest cycles that memory and multipliers allow, summed over the phases."""
        return sum(phase.bound for phase in self.phases)

    def lines(self, width: int, full: bool) -> Iterator[str | Table]:
        """Lines and tables of the pass. width: characters of a line. full: print a line for each kernel and
        stream, without grouping equal ones."""
        yield (
            f"{self.design}, {counted(self.tokens, 'token')} at position {self.position}: {self.cycles:,} "
            "cycles, "
            f"bound {self.bound:,.0f}, "
            f"ratio {self.cycles / self.bound:.3f}; {sum(map(sum, self.moved.values())):,} bytes moved"
        )
        yield self._phase_table()
        kernels = rows(self.kernels, lambda k: k.kind, full)
        yield self._sum_table(kernels)
        each = max(1, (width - _NAMES) // _SHARE)
        for first in range(0, len(self.phases), each):
            yield self._share_table(kernels, range(first, min(first + each, len(self.phases))))
        yield self._stream_table(full)

    def _phase_table(self) -> Table:
        phase_table = table("phase", "#", "walks", "cycles", "%", "bound", "ratio", "bytes", "channels")
        for number, p in enumerate(self.phases):
            phase_table.add_row(
                p.name,
                str(number),
                str(p.walks),
                f"{p.cycles:,}",
                f"{100 * p.cycles / self.cycles:.1f}",
                f"{p.bound:,.0f}",
                f"{p.ratio:.3f}" if p.bound else "",
                f"{p.bytes:,}",
                str(p.channels),
            )
        return phase_table

    def _sum_table(self, kernels: Sequence[Sequence[KernelProfile]]) -> Table:
        """Cycles of each kernel in all phases together."""
        sum_table = table("kernel", "kind", "busy", "stalled", "idle", "busy+stalled %", texts=2)
        for several in kernels:
            sums = [[sum(getattr(k, what)) for k in several] for what in ("busy", "stalled", "idle")]
            shares = _shares(sum(sums[0]), sum(sums[1]), self.cycles * len(several))
            name = named([k.name for k in several])
            sum_table.add_row(name, several[0].kind, *map(spread, sums), shares)
        return sum_table

    def _share_table(self, kernels: Sequence[Sequence[KernelProfile]], phases: range) -> Table:
        """Busy and stalled shares of the cycles of these phases. Equal kernels share a line (mean)."""
        share_table = table("busy+stalled % in phase", *map(str, phases))
        for several in kernels:
            shares = [
                _shares(
                    sum(k.busy[p] for k in several),
                    sum(k.stalled[p] for k in several),
                    self.phases[p].cycles * len(several),
                )
                for p in phases
            ]
            if any(shares):
                share_table.add_row(named([k.name for k in several]), *shares)
        return share_table

    def _stream_table(self, full: bool) -> Table:
        stream_table = table("stream", "buffer", "way", "channel", "bytes", "% of channel", texts=3)
        nodes = attrgetter("node")
        for several in rows(self.streams, lambda s: (s.way, re.sub(r"\d+", "#", s.buffer)), full, nodes):
            stream_table.add_row(
                named([s.node for s in several]),
                named([s.buffer for s in several]),
                several[0].way,
                spread([s.channel for s in several]),
                spread([s.bytes for s in several]),
                f"{100 * max(s.share for s in several):.1f}",
            )
        return stream_table


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profiled passes of a run. `str()` gives tables. calls: accesses of the host to buffers."""

    name: str
    clock_mhz: float
    passes: tuple[PassProfile, ...]
    calls: tuple[HostCall, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False, width: int | None = None) -> str:
        """Tables as text. full: a line for each kernel and stream; otherwise equal ones share a line. width:
        characters of a line; by default the width of the terminal."""
        return rendered(self._lines(full, width_of(width)), width)

    def _lines(self, full: bool, width: int) -> Iterator[str | Table]:
        yield f"{self.name}: {self.clock_mhz:g} MHz"
        for profile in self.passes:
            yield from profile.lines(width, full)

    def to_json(self) -> str:
        """All values as JSON, without the windows of the passes."""
        value = dataclasses.asdict(self)
        for pass_values in value["passes"]:
            del pass_values["windows"]
        return json.dumps(value, indent=1) + "\n"


class Profiler:
    """Profiles the runs on devices that `opened` opens. The results are in `passes` and `calls`."""

    def __init__(self) -> None:
        self.passes: list[PassProfile] = []
        self.calls: list[HostCall] = []

    def opened(self, opener: OpenDevice, folder: Path, manifest: Manifest) -> Device:
        """Open a simulated device, and keep the accesses of the host to its buffers."""
        device = opener(folder, manifest)
        assert isinstance(device, SimulatedDevice)
        device.calls = self.calls
        return device

    def result(self, name: str, clock_mhz: float) -> Profile:
        """All passes so far."""
        return Profile(name=name, clock_mhz=clock_mhz, passes=tuple(self.passes), calls=tuple(self.calls))

    def observer(self, program: Program, names: Sequence[str], execution: Execution) -> Observer:
        """An observer of the runs of a design on a simulator that counts at its streams. names: names of the
        phases."""

        @contextmanager
        def observe(device: Device, images: Mapping[str, bytes], launch: Launch) -> Iterator[None]:
            assert isinstance(device, SimulatedDevice)
            graph = program.at(launch.tiles, launch.position, launch.variant, launch.source or None)
            channels = [port.channel for port in device.manifest.ports]
            before = {channel: device.traffic(channel) for channel in channels}
            device.profile(len(graph.nodes), _tokens(graph, device.manifest))
            yield
            moved = {channel: _moved(before[channel], device.traffic(channel)) for channel in channels}
            cycles, tokens = execution.statuses[-1].cycles, launch.tiles * program.token_lanes
            self.passes.append(_profile(graph, names, device, launch, tokens, cycles, moved))

        return observe


def _tokens(graph: Graph, manifest: Manifest) -> dict[tuple[str, str, int], np.ndarray]:
    """Numbers of tokens that pass each side of each stream for its node, by step."""
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
    """The profile that a device counted in a run of `total` cycles."""
    manifest, counts = device.manifest, device.profiled()
    rate = Fraction(manifest.memory.beats, manifest.memory.cycles)
    steps = [phase for phase, _ in graph.steps()]
    of_phase = (np.array(steps) == np.arange(graph.phases)[:, None]).astype(np.uint64)
    cycles, busy, stalled = (of_phase @ part for part in (counts.cycles, counts.busy, counts.stalled))
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
                memory_cycles=walks * stage.memory_cycles(rate),
                product_cycles=walks * stage.compute_cycles,
                products=walks * stage.products,
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
        moved=moved,
        begun=device.starts[-1],
        ended=device.time,
        sections=tuple(steps),
        fifos=tuple((edge.name, edge.depth or 1) for edge in graph.edges),
        windows=counts.windows,
    )


def _moved(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return BEAT_BYTES * (after[0] - before[0]), BEAT_BYTES * (after[1] - before[1])


def _streams(graph: Graph, manifest: Manifest, program: PhaseTable, limit: float) -> Iterator[StreamProfile]:
    """program: phase table of the pass. limit: bytes that a channel can move during the pass."""
    by_stream: dict[tuple[str, str, int, str], list[int]] = {}
    for tensor, way, counts in tensor_traffic(graph):
        buffer = weights_name(tensor.channel) if tensor.role == "constant" else tensor.place
        key = tensor.node, buffer, tensor.channel, way
        by_stream[key] = [a + b for a, b in zip(by_stream.get(key, [0] * graph.phases), counts, strict=True)]
    for key, parts in by_stream.items():
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
    """Percentages of the cycles; blank if both are 0."""
    if not busy + stalled:
        return ""
    return f"{100 * busy / cycles:.0f}" + (f"+{100 * stalled / cycles:.0f}" if stalled else "")
