"""Runs of chains: groups of one accelerator that run one after the other and pass data through memory.

A written chain is a folder. It has a folder with a written accelerator for each group, and `chain.json`,
which holds the order of the groups and the inputs and outputs of the chain. A folder without `chain.json` is
a chain of one group.

Buffers of the same name are the same tensor. The groups are kernels of one card. A tensor between groups is
one buffer in the memory of the card: one kernel writes it, others read it, and the host does not copy it.
Several samples are in flight (`line.py`). Groups may have different numbers of token lanes. Tensors between
groups lie row after row, so a group with more lanes reads beyond the rows that the group before it wrote. The
host keeps zeros there.
"""

import dataclasses
import json
import typing
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from pathlib import Path

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.written import CHAIN_FILE
from streamgen.base.files import decode, parsed, read_file
from streamgen.runtime.arrays import (
    Parts,
    checked_inputs,
    cropped,
    image_bytes,
    in_passes,
    packed,
    padded,
    random_inputs,
)
from streamgen.runtime.device import DeviceBuffer
from streamgen.runtime.execution import Compute, Execution, OpenDevice
from streamgen.runtime.line import through
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import OnSimulator


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A chain. name: name of the accelerator. folders: folders of the groups, in the order in which they run.
    inputs, outputs: names of the inputs and outputs of the chain; each is a buffer of a group.

    Raises ValueError for a name that occurs twice and for a folder that does not lie inside the chain's
    folder.
    """

    name: str
    folders: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in ("folders", "inputs", "outputs"):
            names = getattr(self, field)
            if len(set(names)) != len(names):
                raise ValueError(f"{field} of a chain are {names}; each name may occur only once")
        if not self.folders:
            raise ValueError("a chain needs at least one folder")
        for name in self.folders:
            if not name or Path(name).name != name or name == "..":
                raise ValueError(f"{name!r} is not a folder directly inside the folder of the chain")

    def to_json(self) -> str:
        """JSON text; `from_json` turns it back into an equal chain."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Chain":
        """Inverse of `to_json`. Raises ValueError for any other text."""
        return typing.cast(Chain, decode(cls, parsed(text), "chain"))

    @staticmethod
    def place(folder: Path, name: str) -> Path:
        """The folder of a group. Raises ValueError for a link to a folder outside the chain."""
        if (folder / name).resolve().parent != folder.resolve():
            raise ValueError(f"{folder / name} is a link out of its folder; put the folder itself there")
        return folder / name

    @classmethod
    def read(cls, folder: Path) -> "Chain":
        """Read the chain of a folder. Raises ValueError if its `chain.json` does not hold a chain."""
        path = folder / CHAIN_FILE
        try:
            return cls.from_json(read_file(folder, CHAIN_FILE))
        except ValueError as error:
            raise ValueError(f"{path} does not hold a chain: {error}") from error


@dataclass(frozen=True)
class _Between:
    """A tensor between groups. writer: number of the group that writes it. group, info: this group and its
    buffer. readers: for each group that reads the tensor, by number, its buffer."""

    writer: int
    group: Execution
    info: Buffer
    readers: dict[int, Buffer] = dataclasses.field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the buffer."""
        return max(self.info.bytes, *(info.bytes for info in self.readers.values()))

    def require(self, group: Execution, info: Buffer) -> None:
        """Raise ValueError unless a group reads the tensor as it is written: the same rows, in the same
        beats."""
        sides = ((self.group, self.info), (group, info))
        count = lcm(*(side.manifest.tokens_per_tile for side, _ in sides))
        try:
            (array,), _ = checked_inputs([self.info], random_inputs([self.info], count, 0))
            images = {
                packed(buffer, padded(buffer, array, side.tiles(count)), side.tiles(count))
                for side, buffer in sides
            }
        except ValueError:  # the ranks differ
            images = set()
        if len(images) != 1:
            raise ValueError(
                f"{group.folder} reads {info.name!r} as {info.itensor}; {self.group.folder} writes it as "
                f"{self.info.itensor}, and these give different beats in memory: compile the groups as one "
                "model"
            )


class ChainExecution:
    """The groups that are written in `folder`, as kernels of one card. Arguments and errors are those of
    `Execution`."""

    def __init__(
        self,
        folder: str | Path,
        open_device: OpenDevice | None = None,
        memory: MemoryModel | None = None,
        *,
        changed_files: bool = False,
    ) -> None:
        place, opener = Path(folder), open_device or OnSimulator(memory)
        several = (place / CHAIN_FILE).exists()
        chain = Chain.read(place) if several else None
        places = [place] if chain is None else [chain.place(place, name) for name in chain.folders]
        self.groups = [Execution(group, opener, changed_files=changed_files) for group in places]
        if chain is None:
            inputs, outputs = (
                tuple(info.name for info in self.groups[0].buffers(role)) for role in ("input", "output")
            )
            top, here = self.groups[0].manifest.top, place.resolve().name
            chain = Chain(name=top, folders=(here,), inputs=inputs, outputs=outputs)
        elif len(self.groups) > 1:
            for group in self.groups:
                group.label = group.folder.name
        self.chain = chain
        self.inputs = tuple(self._buffer(name, "input", self.groups) for name in self.chain.inputs)
        self.outputs = tuple(self._buffer(name, "output", self.groups) for name in self.chain.outputs)
        self._check()
        self._tensors = self._between()
        self._filled: weakref.WeakKeyDictionary[DeviceBuffer, int] = weakref.WeakKeyDictionary()
        """For each buffer between groups: the number of leading bytes that may be non-zero."""

    def run(self, *inputs: np.ndarray, timeout: float = 600.0) -> tuple[np.ndarray, ...]:
        """Run the chain and return the outputs for these inputs. Each part of the tokens goes through all
        groups in order, and several parts are in flight.

        Raises the errors of `Execution.run`. The message of a failed run begins with the name of the group.
        """
        for group in self.groups:
            group.statuses, group.launches = [], []

        def each(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            return through(self.groups, parts, self.chain.outputs, timeout, self._prepare)

        return in_passes(self.inputs, self.outputs, self._most, self._whole, each, inputs)

    def meets(self, group: int) -> dict[str, int]:
        """For each input of a group that another group writes, by name: the number of that other group."""
        return {name: between.writer for name, between in self._tensors.items() if group in between.readers}

    def evaluate(self, computes: Sequence[Compute], *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Like `run`, with a function in place of the device of each group (see `Execution.evaluate`)."""

        def each(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            for arrays, count in parts:
                values = dict(arrays)
                for group, compute in zip(self.groups, computes, strict=True):
                    tiles = group.tiles(count)
                    infos = group.buffers("input")
                    values |= compute({i.name: padded(i, values[i.name], tiles) for i in infos}, tiles)
                yield {info.name: cropped(info, values[info.name], count) for info in self.outputs}

        return in_passes(self.inputs, self.outputs, self._most, self._whole, each, inputs)

    def close(self) -> None:
        """Close all devices. The next run opens them again."""
        for group in self.groups:
            group.close()

    @property
    def _most(self) -> int:
        return self.groups[0].manifest.max_tokens

    @property
    def _whole(self) -> bool:
        return any(group.manifest.whole for group in self.groups)

    def open_with(self, opener: OpenDevice) -> None:
        """Use `opener` for the devices from now on. If a device is open already, all groups keep their
        opener."""
        if not any(group.is_open for group in self.groups):
            for group in self.groups:
                group.open_device = opener

    def _between(self) -> dict[str, "_Between"]:
        """The tensors between groups, by name. Raises ValueError if a group reads other bytes than are
        written."""
        between: dict[str, _Between] = {}
        for k, group in enumerate(self.groups):
            for info in group.buffers("input"):
                if info.name in between:
                    between[info.name].require(group, info)
                    between[info.name].readers[k] = info
            between |= {info.name: _Between(k, group, info) for info in group.buffers("output")}
        return {name: tensor for name, tensor in between.items() if tensor.readers}

    def _prepare(self, stage: int, slot: int, tokens: int) -> None:
        """Prepare the buffers between groups for a run of a group: allocate the buffers that it writes, share
        the buffers that it reads, and write zeros behind the data where it reads further."""
        for name, between in self._tensors.items():
            if stage != between.writer and stage not in between.readers:
                continue
            writer = self.groups[between.writer]
            written = image_bytes(between.info, writer.tiles(tokens))
            buffer = writer.device.allocate(name, slot, between.bytes)
            filled = self._filled.get(buffer, buffer.size)
            if stage == between.writer:
                self._filled[buffer] = max(filled, written)
                continue
            group = self.groups[stage]
            group.device.adopt(name, buffer, slot)
            if image_bytes(between.readers[stage], group.tiles(tokens)) > written and filled > written:
                buffer.write(bytes(filled - written), written)
                self._filled[buffer] = written

    @staticmethod
    def _buffer(name: str, role: str, groups: Sequence[Execution]) -> Buffer:
        for group in groups:
            for info in group.buffers(role):
                if info.name == name:
                    return info
        raise ValueError(f"no group of {groups[0].folder.parent} has an {role} {name!r}")

    def _check(self) -> None:
        """Raise ValueError unless every input is an input of the chain or an output of an earlier group, and
        all groups take the same number of tokens."""
        known = set(self.chain.inputs)
        for group in self.groups:
            for info in group.buffers("input"):
                if info.name not in known:
                    raise ValueError(f"{group.folder} reads {info.name!r}, but no group before it writes it")
            known |= {info.name for info in group.buffers("output")}
            if group.manifest.max_tokens != self._most:
                raise ValueError(
                    f"{group.folder} takes {group.manifest.max_tokens} tokens in a run, but "
                    f"{self.groups[0].folder} takes {self._most}: compile the groups as one model"
                )
