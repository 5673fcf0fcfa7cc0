"""Runs of accelerators that follow one another: what one writes to memory the next ones read.

A written chain is a folder with a written accelerator in a folder for each group, and `chain.json`: their
order, and the inputs and outputs of the whole. Buffers of one name are one tensor. The groups are kernels of
one card: a tensor between them is one buffer of its memory, that one kernel writes and others read, and the
host does not touch it. Several samples are in flight (`line.py`). Groups may have different token lanes;
tensors between them lie row after row, so that a group with more lanes reads behind the rows of the one
before: the host keeps zeros there. A folder without `chain.json` is a chain of one.
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
    """name: of the whole. folders: of the groups, as they run. inputs, outputs: of the whole, buffers of some
    group."""

    name: str
    folders: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in ("folders", "inputs", "outputs"):
            names = getattr(self, field)
            if len(set(names)) != len(names):
                raise ValueError(f"{field} of a chain are {names}; no name may come twice")
        if not self.folders:
            raise ValueError("a chain needs at least one folder")
        for name in self.folders:
            if not name or Path(name).name != name or name == "..":
                raise ValueError(f"{name!r} is no folder inside that of the chain")

    def to_json(self) -> str:
        """Text that `from_json` turns back into an equal chain."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Chain":
        """ValueError for a text that `to_json` did not make."""
        return typing.cast(Chain, decode(cls, parsed(text), "chain"))

    @staticmethod
    def place(folder: Path, name: str) -> Path:
        """The folder of a group. ValueError for a link out of that of the chain."""
        if (folder / name).resolve().parent != folder.resolve():
            raise ValueError(f"{folder / name} is a link out of its folder; put the folder itself there")
        return folder / name

    @classmethod
    def read(cls, folder: Path) -> "Chain":
        """The chain that is written in a folder. ValueError for a file that is none."""
        path = folder / CHAIN_FILE
        try:
            return cls.from_json(read_file(folder, CHAIN_FILE))
        except ValueError as error:
            raise ValueError(f"{path} is no chain: {error}") from error


@dataclass(frozen=True)
class _Between:
    """A tensor between groups. writer, readers: numbers of groups, with the buffer as it is to each."""

    writer: int
    group: Execution
    info: Buffer
    readers: dict[int, Buffer] = dataclasses.field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of the buffer."""
        return max(self.info.bytes, *(info.bytes for info in self.readers.values()))

    def require(self, group: Execution, info: Buffer) -> None:
        """ValueError unless a group reads what is written: the same rows, in the same beats."""
        sides = ((self.group, self.info), (group, info))
        count = lcm(*(one.manifest.tokens_per_tile for one, _ in sides))
        try:
            (array,), _ = checked_inputs([self.info], random_inputs([self.info], count, 0))
            images = {packed(one, padded(one, array, at.tiles(count)), at.tiles(count)) for at, one in sides}
        except ValueError:  # of other ranks
            images = set()
        if len(images) != 1:
            raise ValueError(
                f"{group.folder} reads {info.name!r} as {info.itensor}; {self.group.folder} writes it as "
                f"{self.info.itensor}, which are other beats in memory: compile them as one model"
            )


class ChainExecution:
    """The groups written in `folder`, kernels of one card; arguments and errors are `Execution`'s."""

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
        self.groups = [Execution(one, opener, changed_files=changed_files) for one in places]
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
        """Of buffers between groups how far they may hold other bytes than zeros."""

    def run(self, *inputs: np.ndarray, timeout: float = 600.0) -> tuple[np.ndarray, ...]:
        """The outputs for these inputs; each part of the tokens goes through all groups in order, several
        parts at a time.

        Errors are those of `Execution.run`; the message of a failed run begins with its group.
        """
        for group in self.groups:
            group.statuses = []

        def each(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            return through(self.groups, parts, self.chain.outputs, timeout, self._prepare)

        return in_passes(self.inputs, self.outputs, self._most, self._whole, each, inputs)

    def meets(self, group: int) -> dict[str, int]:
        """The inputs of a group that another one writes, by name, and the number of that one."""
        return {name: one.writer for name, one in self._tensors.items() if group in one.readers}

    def evaluate(self, computes: Sequence[Compute], *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """As `run`, with a function in the place of each group's device (see `Execution.evaluate`)."""

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
        """Give all devices back; the next run opens them again."""
        for group in self.groups:
            group.close()

    @property
    def _most(self) -> int:
        return self.groups[0].manifest.max_tokens

    @property
    def _whole(self) -> bool:
        return any(group.manifest.whole for group in self.groups)

    def open_with(self, opener: OpenDevice) -> None:
        """Open the devices so; those that are open stay, and what opens their like."""
        if not any(group.is_open for group in self.groups):
            for group in self.groups:
                group.open_device = opener

    def _between(self) -> dict[str, "_Between"]:
        """The tensors between groups. ValueError where a group would read other bytes than are written."""
        between: dict[str, _Between] = {}
        for k, group in enumerate(self.groups):
            for info in group.buffers("input"):
                if info.name in between:
                    between[info.name].require(group, info)
                    between[info.name].readers[k] = info
            between |= {info.name: _Between(k, group, info) for info in group.buffers("output")}
        return {name: one for name, one in between.items() if one.readers}

    def _prepare(self, stage: int, slot: int, tokens: int) -> None:
        """The buffers between the groups: those that a group writes are there, those that it reads are the
        same, with zeros behind what is written, as far as it reads."""
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
        """ValueError unless every input is given or written by an earlier group, and passes are alike."""
        known = set(self.chain.inputs)
        for group in self.groups:
            for info in group.buffers("input"):
                if info.name not in known:
                    raise ValueError(f"{group.folder} reads {info.name!r}, which no group before it writes")
            known |= {info.name for info in group.buffers("output")}
            if group.manifest.max_tokens != self._most:
                raise ValueError(
                    f"{group.folder} takes {group.manifest.max_tokens} tokens a pass, "
                    f"{self.groups[0].folder} {self._most}"
                )
