"""Weight files with the constants, one buffer for each channel, and the `Buffer` of each tensor."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from numpy import ndarray

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.base.threads import side_by_side
from streamgen.itensor import ITensor
from streamgen.model.graph import Graph, Program, Tensor


def weights_name(channel: int) -> str:
    """Name of the buffer that holds the constants of a channel."""
    return f"weights_{channel}"


def weights_file(channel: int) -> str:
    """Name of the file with the contents of this buffer."""
    return f"{weights_name(channel)}.bin"


def write_constants(graph: Graph, folder: Path) -> None:
    """Write the weight files. The file of a channel has the constants that loads read from the channel, at
    the offsets of their descriptors, with zeros between them. Each processor packs and holds one constant at
    a time."""
    placed: dict[int, list[tuple[ITensor, ndarray, int]]] = {}
    for tensor, itensor, array, first in _placed(graph):
        placed.setdefault(tensor.channel, []).append((itensor, array, first))

    def write(channel: int, count: int) -> None:
        with Path(folder, weights_file(channel)).open("wb") as file:
            for itensor, array, first in placed[channel]:
                file.seek(first)
                file.write(MemoryLayout.of(itensor).pack(itensor, array))
            file.truncate(count)

    side_by_side(lambda item: write(*item), constant_bytes(graph).items())


def constant_bytes(graph: Graph) -> dict[int, int]:
    """Bytes of the weight file of each channel, known before anything is packed."""
    count: dict[int, int] = {}
    for tensor, itensor, _, first in _placed(graph):
        end = first + MemoryLayout.of(itensor).beats(itensor.token_count) * BEAT_BYTES
        count[tensor.channel] = max(end, count.get(tensor.channel, 0))
    return dict(sorted(count.items()))


def _placed(graph: Graph) -> Iterator[tuple[Tensor, ITensor, ndarray, int]]:
    """All constants of all walks: tensor, stream, values and first byte."""
    for tensor in graph.tensors:
        if tensor.role != "constant":
            continue
        assert tensor.data is not None
        itensor, node = graph.tensor_itensor(tensor), graph.node(tensor.node)
        phase = tensor.phase
        if phase is None:
            phase = next(phase for phase, bounds in enumerate(node.bounds) if bounds is not None)
        for walk, array in enumerate(tensor.data if tensor.walks(itensor) > 1 else [tensor.data]):
            bounds = node.at(phase, walk)
            assert bounds is not None
            yield tensor, itensor, array, bounds["offset"] * BEAT_BYTES


def boundary_buffer(program: Program, tensor: Tensor) -> Buffer:
    """The buffer of an input or output, with its stream for one token tile and the loop that grows with the
    number of tiles, if there is one."""
    largest = program.graph.tensor_itensor(tensor)
    one_tile = program.at(1).tensor_itensor(tensor)
    fixed = program.smaller is None or (program.max_tiles > 1 and one_tile == largest)
    loop = None if fixed else _tile_loop(one_tile, largest)
    assert tensor.role in ("input", "output")
    return Buffer(
        name=tensor.name,
        role="input" if tensor.role == "input" else "output",
        channel=tensor.channel,
        bytes=MemoryLayout.of(largest).beats(largest.token_count) * BEAT_BYTES,
        itensor=str(one_tile),
        tile_loop=loop,
        shape=tensor.shape,
    )


def kept_buffer(tensor: Tensor) -> Buffer:
    """The buffer of a state or a spill: whole beats, one after the other."""
    assert tensor.role in ("state", "spill") and tensor.itensor is not None
    beats = MemoryLayout.of(tensor.itensor).beats(tensor.itensor.token_count)
    role: Literal["state", "spill"] = "state" if tensor.role == "state" else "spill"
    return Buffer(name=tensor.place, role=role, channel=tensor.channel, bytes=beats * BEAT_BYTES)


def _tile_loop(one_tile: ITensor, largest: ITensor) -> int:
    """The loop of a stream that grows with the number of tiles. If the largest run has one tile, the
    outermost loop over tokens."""
    changed = [
        i for i, (a, b) in enumerate(zip(one_tile.tripcounts, largest.tripcounts, strict=True)) if a != b
    ]
    (loop,) = changed or largest.iter_map[0][:1]
    assert replace(one_tile, tripcounts=largest.tripcounts) == largest
    return loop
