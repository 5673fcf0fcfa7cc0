"""Weight files with the constants, one buffer for each channel, and the `Buffer` of each tensor."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from numpy import ndarray

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.base.threads import side_by_side
from streamgen.itensor import ITensor
from streamgen.model.graph import Graph, Program, Tensor
from streamgen.model.graph.late import LateArray


def weights_name(channel: int) -> str:
    """Name of the buffer that holds the constants of a channel."""
    return f"weights_{channel}"


def weights_file(channel: int) -> str:
    """Name of the file with the contents of this buffer."""
    return f"{weights_name(channel)}.bin"


def write_constants(graph: Graph, folder: Path) -> None:
    """Write the weight files. The file of a channel has the constants that loads read from the channel, at
    the offsets of their descriptors, with zeros between them. Constants that are made together are made, then
    packed and written on all processors, before the next ones are made."""
    sizes = constant_bytes(graph)
    with ExitStack() as stack:
        files = {c: stack.enter_context(Path(folder, weights_file(c)).open("wb")) for c in sizes}
        for channel, count in sizes.items():
            files[channel].truncate(count)

        def write(make: Callable[[PlacedConstant], ndarray], constant: PlacedConstant) -> None:
            layout = MemoryLayout.of(constant.itensor)
            image = memoryview(layout.pack(constant.itensor, make(constant)))
            first, file = constant.first, files[constant.tensor.channel].fileno()
            while image:
                written = os.pwrite(file, image, first)
                image, first = image[written:], first + written

        together: dict[tuple[int, int], list[PlacedConstant]] = {}
        for constant in placed_constants(graph):
            data = constant.tensor.data
            maker = data.source if isinstance(data, LateArray) else constant.tensor
            together.setdefault((id(maker), constant.walk), []).append(constant)
        for constants in together.values():
            make = constants[0].maker()
            side_by_side(partial(write, make), constants)


def constant_bytes(graph: Graph) -> dict[int, int]:
    """Bytes of the weight file of each channel, known before anything is packed."""
    count: dict[int, int] = {}
    for constant in placed_constants(graph):
        itensor, channel = constant.itensor, constant.tensor.channel
        end = constant.first + MemoryLayout.of(itensor).beats(itensor.token_count) * BEAT_BYTES
        count[channel] = max(end, count.get(channel, 0))
    return dict(sorted(count.items()))


@dataclass(frozen=True)
class PlacedConstant:
    """A constant in a walk. itensor: its order. first: its first byte in the file of its channel."""

    tensor: Tensor
    itensor: ITensor
    walk: int
    first: int

    def maker(self) -> Callable[["PlacedConstant"], ndarray]:
        """Returns the array of this constant, and those of the constants that are made with it."""
        data = self.tensor.data
        if not isinstance(data, LateArray):
            return lambda constant: constant.tensor.values(constant.itensor, constant.walk)
        make = data.source.of_walk(self.walk)
        return lambda constant: make(constant.tensor.data.number)  # type: ignore[union-attr]


def placed_constants(graph: Graph) -> Iterator[PlacedConstant]:
    """All constants of all walks."""
    for tensor in graph.tensors:
        if tensor.role != "constant":
            continue
        itensor, node = graph.tensor_itensor(tensor), graph.node(tensor.node)
        phase = tensor.phase
        if phase is None:
            phase = next(phase for phase, bounds in enumerate(node.bounds) if bounds is not None)
        for walk in range(tensor.walks(itensor)):
            bounds = node.at(phase, walk)
            assert bounds is not None
            yield PlacedConstant(tensor, itensor, walk, bounds["offset"] * BEAT_BYTES)


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
