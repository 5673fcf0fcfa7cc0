"""Runs of accelerators that follow one another: what one writes to memory the next ones read.

A written chain is a folder with a written accelerator in a folder for each group, and `chain.json`: their
order, and the inputs and outputs of the whole. Buffers of one name are one tensor. It passes from group to
group as it lies in memory. Groups may have different token lanes; tensors between them lie row after row,
so that a group with more lanes finds zeros behind the rows of the one before. A folder without
`chain.json` is a chain of one.
"""

import dataclasses
import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamgen.errors import DeviceError
from streamgen.files import decode, parsed, read_file
from streamgen.manifest import Buffer, Manifest
from streamgen.runtime.arrays import Parts, cropped, image_bytes, in_passes, packed, padded, unpacked
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Compute, Execution
from streamgen.runtime.memory import MemoryModel

__all__ = ["CHAIN_FILE", "Chain", "ChainExecution"]

CHAIN_FILE = "chain.json"


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


class ChainExecution:
    """The groups written in `folder`, each on a device of its own; arguments and errors are `Execution`'s.

    in_turn: there is one device for all of them, as a board; each group gives it back for the next.
    """

    def __init__(
        self,
        folder: str | Path,
        open_device: Callable[[Path, Manifest], Device] | None = None,
        memory: MemoryModel | None = None,
        *,
        in_turn: bool = False,
        changed_files: bool = False,
    ) -> None:
        place = Path(folder)
        if (place / CHAIN_FILE).exists():
            self.chain = Chain.read(place)
            names = self.chain.folders
            self.groups = [
                Execution(self.chain.place(place, name), open_device, memory, changed_files=changed_files)
                for name in names
            ]
        else:
            self.groups = [Execution(place, open_device, memory, changed_files=changed_files)]
            inputs, outputs = (
                tuple(info.name for info in self.groups[0].buffers(role)) for role in ("input", "output")
            )
            top, here = self.groups[0].manifest.top, place.resolve().name
            self.chain = Chain(name=top, folders=(here,), inputs=inputs, outputs=outputs)
        self.inputs = tuple(self._buffer(name, "input", self.groups) for name in self.chain.inputs)
        self.outputs = tuple(self._buffer(name, "output", self.groups) for name in self.chain.outputs)
        self._in_turn = in_turn and len(self.groups) > 1
        self._check(place)

    def run(self, *inputs: np.ndarray, timeout: float = 600.0) -> tuple[np.ndarray, ...]:
        """The outputs for these inputs: for each pass over the tokens, all groups in order.

        Errors are those of `Execution.run`; the message of a failed run begins with its group.
        """
        if len(self.groups) == 1:
            return self.groups[0].run(*inputs, timeout=timeout)
        for group in self.groups:
            group.statuses = []

        def once(arrays: Mapping[str, np.ndarray], count: int) -> Mapping[str, np.ndarray]:
            images: dict[str, bytes] = {}
            results: dict[str, np.ndarray] = {}
            for group in self.groups:
                tiles = group.tiles(count)
                given = {}
                for info in group.buffers("input"):
                    if info.name in images:
                        size = image_bytes(info, tiles)
                        given[info.name] = images[info.name][:size].ljust(size, b"\0")
                    else:
                        given[info.name] = packed(info, padded(info, arrays[info.name], tiles), tiles)
                made = self._transfer(group, given, tiles, timeout)
                if self._in_turn:
                    group.close()
                images |= made
                for info in group.buffers("output"):
                    if info.name in self.chain.outputs:
                        results[info.name] = cropped(info, unpacked(info, made[info.name], tiles), count)
            return results

        def each(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            return (once(arrays, count) for arrays, count in parts)

        return in_passes(self.inputs, self.outputs, self._most, self._whole, each, inputs)

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

    def _transfer(
        self, group: Execution, images: Mapping[str, bytes], tiles: int, timeout: float
    ) -> dict[str, bytes]:
        try:
            return group.transfer(images, tiles, timeout)
        except DeviceError as error:
            raise type(error)(f"{group.folder.name}: {error}") from error

    @staticmethod
    def _buffer(name: str, role: str, groups: Sequence[Execution]) -> Buffer:
        for group in groups:
            for info in group.buffers(role):
                if info.name == name:
                    return info
        raise ValueError(f"no group of {groups[0].folder.parent} has an {role} {name!r}")

    def _check(self, place: Path) -> None:
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
