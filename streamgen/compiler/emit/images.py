"""Files of the constants, one buffer a channel, and what the host must know of every buffer."""

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
    """Name of the file that this buffer is filled from."""
    return f"{weights_name(channel)}.bin"


def write_constants(graph: Graph, folder: Path) -> None:
    """Write the weight files: by channel the constants that its loads read, at the offsets of their
    descriptors, zeros between them. Each processor packs and holds one constant at a time."""
    placed: dict[int, list[tuple[ITensor, ndarray, int]]] = {}
    for tensor, itensor, array, first in _placed(graph):
        placed.setdefault(tensor.channel, []).append((itensor, array, first))

    def write(channel: int, count: int) -> None:
        with Path(folder, weights_file(channel)).open("wb") as file:
            for itensor, array, first in placed[channel]:
                file.seek(first)
                file.write(MemoryLayout.of(itensor).pack(itensor, array))
            file.truncate(count)

    side_by_side(lambda one: write(*one), constant_bytes(graph).items())


def constant_bytes(graph: Graph) -> dict[int, int]:
    """Bytes of those images, known before anything is packed."""
    count: dict[int, int] = {}
    for tensor, itensor, _, first in _placed(graph):
        end = first + MemoryLayout.of(itensor).beats(itensor.token_count) * BEAT_BYTES
        count[tensor.channel] = max(end, count.get(tensor.channel, 0))
    return dict(sorted(count.items()))


def _placed(graph: Graph) -> Iterator[tuple[Tensor, ITensor, ndarray, int]]:
    """Every constant of every walk: its tensor, stream and values, and the byte at which it begins."""
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
    """The buffer of an input or output: its stream for one token tile, and the loop that tiles lengthen if
    any does."""
    largest = program.graph.tensor_itensor(tensor)
    one = program.at(1).tensor_itensor(tensor)
    fixed = program.smaller is None or (program.max_tiles > 1 and one == largest)
    loop = None if fixed else _tile_loop(one, largest)
    assert tensor.role in ("input", "output")
    return Buffer(
        name=tensor.name,
        role="input" if tensor.role == "input" else "output",
        channel=tensor.channel,
        bytes=MemoryLayout.of(largest).beats(largest.token_count) * BEAT_BYTES,
        itensor=str(one),
        tile_loop=loop,
        shape=tensor.shape,
    )


def kept_buffer(tensor: Tensor) -> Buffer:
    """The buffer of what runs, or phases, leave to one another: whole beats, one after the other."""
    assert tensor.role in ("state", "spill") and tensor.itensor is not None
    beats = MemoryLayout.of(tensor.itensor).beats(tensor.itensor.token_count)
    role: Literal["state", "spill"] = "state" if tensor.role == "state" else "spill"
    return Buffer(name=tensor.place, role=role, channel=tensor.channel, bytes=beats * BEAT_BYTES)


def _tile_loop(one: ITensor, largest: ITensor) -> int:
    """Which loop of a stream runs longer with more tiles; the outermost over tokens if there is one tile."""
    changed = [i for i, (a, b) in enumerate(zip(one.tripcounts, largest.tripcounts, strict=True)) if a != b]
    (loop,) = changed or largest.iter_map[0][:1]
    assert replace(one, tripcounts=largest.tripcounts) == largest
    return loop
