"""Contents of the memory channels and traffic on them, in bytes."""

from collections.abc import Iterable, Iterator, Mapping

from rich.table import Table

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.artifact.roles import USES
from streamgen.base.tables import table
from streamgen.contract import memory_ports, traffic
from streamgen.model.graph import Graph, Tensor
from streamgen.observe.alike import spread

ALIKE = 0.02  # channels whose bytes differ by less share a line

Channels = Mapping[int, Mapping[str, int]]


def channel_bytes(buffers: Iterable[Buffer]) -> dict[int, dict[str, int]]:
    """Bytes by channel and by role of the buffer. Channels are sorted."""
    channels: dict[int, dict[str, int]] = {}
    for buffer in buffers:
        by_role = channels.setdefault(buffer.channel, {})
        by_role[buffer.role] = by_role.get(buffer.role, 0) + buffer.bytes
    return dict(sorted(channels.items()))


def tensor_traffic(graph: Graph) -> Iterator[tuple[Tensor, str, list[int]]]:
    """For each tensor of a run: the direction in which it moves, "read" or "write", and its bytes by phase,
    summed over all walks."""
    walks = [times for section, times in graph.walked() for _ in section]
    for tensor in graph.tensors:
        node = graph.node(tensor.node)
        counts = [
            0
            if bounds is None or tensor.phase not in (None, phase)
            else walks[phase] * traffic(node.params, bounds)[tensor.port] * BEAT_BYTES
            for phase, bounds in enumerate(node.bounds)
        ]
        yield tensor, memory_ports(node.params)[tensor.port], counts


def moved_bytes(graph: Graph) -> dict[int, tuple[int, int]]:
    """(bytes read, bytes written) in a run by channel, without the traffic of the control."""
    moved: dict[int, tuple[int, int]] = {}
    for tensor, way, counts in tensor_traffic(graph):
        read, written = moved.get(tensor.channel, (0, 0))
        count = sum(counts)
        moved[tensor.channel] = (read + count, written) if way == "read" else (read, written + count)
    return dict(sorted(moved.items()))


def channel_table(channels: Channels, room: int) -> Table:
    """A table of bytes by channel. Equal neighbouring channels share a line. room: bytes of one channel."""
    used = {role for by_role in channels.values() for role in by_role}
    uses = {title: roles for title, roles in USES.items() if used.intersection(roles)}
    channels_table = table("channel", *uses, "all", f"% of {room:,}")
    runs: list[list[int]] = []
    for channel, by_role in channels.items():
        if runs and _alike(channels[runs[-1][0]], by_role):
            runs[-1].append(channel)
        else:
            runs.append([channel])
    for run in runs:
        several = [channels[channel] for channel in run]
        name = f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}"
        cells = [
            spread([sum(by_role.get(role, 0) for role in roles) for by_role in several])
            for roles in uses.values()
        ]
        sums = [sum(by_role.values()) for by_role in several]
        channels_table.add_row(name, *cells, spread(sums), f"{100 * max(sums) / room:.1f}")
    return channels_table


def _alike(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    return a.keys() == b.keys() and all(abs(a[k] - b[k]) <= ALIKE * max(a[k], b[k]) for k in a)
