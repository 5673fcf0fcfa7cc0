"""Packages as folders: read what is written of models, write what a card needs, build it.

A package holds one model, or several that share a card, each in a folder of its name. A model of one kernel
has its files in its folder; one of several groups, which follow one another, has a folder for each.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from streamgen.artifact.manifest import Manifest
from streamgen.artifact.written import CHAIN_FILE, MANIFEST, WrittenFolder
from streamgen.base.folders import new_folder
from streamgen.base.progress import Progress, told
from streamgen.observe.report import Notes
from streamgen.package.constraints import CONSTRAINTS, placement_constraints
from streamgen.package.kernel_xml import kernel_xml
from streamgen.package.link import LINK, link_config
from streamgen.package.linkage import LinkedKernel, linked, wires
from streamgen.package.script import packaging_script
from streamgen.package.steps import SCRIPT, ToolStep, steps
from streamgen.package.texts import makefile, readme
from streamgen.package.tools import Tools, run_step
from streamgen.platform.boards import Board, shell_of
from streamgen.runtime.card import CARD_FILE, Card
from streamgen.runtime.chain import ChainExecution
from streamgen.runtime.verilog_text import require_harmless
from streamgen.text.stored import text_files

__all__ = ["board_of_folder", "build", "package", "packaged", "steps_of"]

_KERNEL_XML = "kernel.xml"
_MODULE = re.compile(r"^module +(\\\S+|\w+)(.*?)^endmodule", re.MULTILINE | re.DOTALL)


class HasFolder(Protocol):
    """An accelerator."""

    @property
    def written(self) -> Path:
        """Where it is written."""
        ...


Source = str | Path | HasFolder


@dataclass(frozen=True)
class Written:
    """A design that is written in a folder. notes: of the compiler."""

    files: WrittenFolder
    notes: Notes

    @classmethod
    def read(cls, folder: Path) -> "Written":
        """ValueError for a folder without one, or with files missing or of the wrong size."""
        files = WrittenFolder.read(folder)
        notes, manifest = Notes.read(folder, files.content), files.manifest
        for name in manifest.verilog_files:
            if not (folder / name).is_file():
                raise ValueError(f"{folder / name}, which the manifest names, is missing; write it again")
        for buffer in manifest.buffers:
            if buffer.file is not None:
                path = folder / buffer.file
                size = path.stat().st_size if path.is_file() else 0
                if size != buffer.bytes:
                    raise ValueError(
                        f"{path} has {size} bytes; buffer {buffer.name!r} takes {buffer.bytes}; write it "
                        "again"
                    )
        texts = {name: files.content(name) for name in manifest.verilog_files}
        require_harmless({folder / name: text for name, text in texts.items()})
        return cls(files, notes)

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self.files.path

    @property
    def manifest(self) -> Manifest:
        """What its host knows."""
        return self.files.manifest

    @property
    def copied(self) -> tuple[str, ...]:
        """Files that belong to the package as they are."""
        weights = (buffer.file for buffer in self.manifest.buffers if buffer.file is not None)
        return (*self.manifest.verilog_files, *weights)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The file of wishes for the placer, where there is one."""
        return () if placement_constraints(self.notes.instances) is None else (CONSTRAINTS,)

    @property
    def hardware(self) -> tuple[str, ...]:
        """Files of which its kernel object is made."""
        return (SCRIPT, _KERNEL_XML, *self.manifest.verilog_files, *self.constraints)

    def texts(self) -> dict[str, str]:
        """What a package has of it besides, by the name of the file."""
        manifest, constraints = self.manifest, placement_constraints(self.notes.instances)
        made = {
            _KERNEL_XML: kernel_xml(manifest),
            SCRIPT: packaging_script(manifest, self.notes.board, constrained=constraints is not None),
        }
        return made if constraints is None else {**made, CONSTRAINTS: constraints}


@dataclass(frozen=True)
class PackagedModel:
    """A written accelerator. folder: in the package."""

    origin: Path
    execution: ChainExecution
    designs: Sequence[Written]
    folder: str = "."

    @classmethod
    def read(cls, origin: Path) -> "PackagedModel":
        """ValueError for a folder that holds none, or where groups do not read what others write."""
        execution = ChainExecution(origin)
        return cls(origin, execution, [Written.read(group.folder) for group in execution.groups])

    @property
    def name(self) -> str:
        """As it is called."""
        return self.execution.chain.name

    @cached_property
    def text_files(self) -> list[str]:
        """Those of a language model."""
        return text_files(self.origin)

    @property
    def folders(self) -> list[str]:
        """Of its kernels, in the package."""
        if not (self.origin / CHAIN_FILE).exists():
            return [self.folder]
        return [(Path(self.folder) / name).as_posix() for name in self.execution.chain.folders]

    def parts(self, first: int) -> list[LinkedKernel]:
        """Its kernels, of which the first has this number on the card."""
        return [
            LinkedKernel(
                folder=folder,
                manifest=design.manifest,
                board=design.notes.board,
                slrs=design.notes.slrs,
                instances=design.notes.instances,
                wires=design.notes.wires,
                meets={name: first + writer for name, writer in self.execution.meets(k).items()},
            )
            for k, (folder, design) in enumerate(zip(self.folders, self.designs, strict=True))
        ]

    def write(self, package: Path) -> None:
        """Its files, into that of a package."""
        for folder, design in zip(self.folders, self.designs, strict=True):
            place = package / folder
            place.mkdir(parents=True, exist_ok=True)
            for name in design.copied:
                (place / name).write_bytes(design.files.content(name))
            shutil.copyfile(design.folder / MANIFEST, place / MANIFEST)
            for name, text in design.texts().items():
                (place / name).write_text(text)
        place = package / self.folder
        if (self.origin / CHAIN_FILE).exists():
            shutil.copyfile(self.origin / CHAIN_FILE, place / CHAIN_FILE)
        for name in self.text_files:
            shutil.copyfile(self.origin / name, place / name)
        (place / "host.py").write_text(_host("text" if self.text_files else "arrays"))


def board_of_folder(source: str | Path) -> Board:
    """The board for which a written accelerator is compiled. ValueError for a folder without one."""
    return PackagedModel.read(Path(source).resolve()).designs[0].notes.board


def package(sources: Source | Sequence[Source], target: str | Path, name: str | None = None) -> Path:
    """Write what a card and the vendor's tools need of one or several accelerators into a new folder; returns
    it. sources: accelerators, or folders in which they are written. name: of the binary, by default that of a
    single accelerator, or "card".

    Verilog, kernel.xml, Vivado's script, constraints, weights and manifest of each kernel; the linker's
    configuration, card.json, Makefile, host program, README. The same accelerators give the same bytes.

    ValueError for a folder that is no written accelerator, for one that cannot be a kernel, for a board
    without a shell, and for accelerators that cannot share a card; BudgetError when the card has too little
    room for all; FileExistsError when the target exists and is not empty; OSError when it cannot be written.
    Either everything is written or nothing is left.
    """
    given = [sources] if isinstance(sources, str | Path) or hasattr(sources, "written") else list(sources)
    if not given:
        raise ValueError("a package needs at least one accelerator")
    place = Path(target).resolve()
    models = [PackagedModel.read(_folder_of(one)) for one in given]
    if len(models) > 1:
        _require_names(models)
        models = [PackagedModel(one.origin, one.execution, one.designs, one.name) for one in models]
    designs = [design for model in models for design in model.designs]
    for design in designs:
        shell_of(design.notes.board)
    parts: list[LinkedKernel] = []
    for model in models:
        parts += model.parts(len(parts))
    called = name or (models[0].name if len(models) == 1 else "card")
    card = linked(called, [model.folder for model in models], parts)
    _require_modules(designs)
    manifests, board = [design.manifest for design in designs], designs[0].notes.board
    hardware = {design.manifest.top: design.hardware for design in designs}
    sequence = steps(card, hardware)
    texts = {model.folder for model in models if model.text_files}
    shared = {
        LINK: link_config(card, manifests, board),
        CARD_FILE: card.to_json(),
        "Makefile": makefile(sequence),
        "README.md": readme(card, board, manifests, sequence, texts, wires(card, parts)),
    }
    with new_folder(place) as new:
        for model in models:
            model.write(new)
        for file, text in shared.items():
            (new / file).write_text(text)
        if len(models) > 1:
            (new / "host.py").write_text(_host("several"))
    return place


def build(folder: str | Path, tools: Tools, progress: Progress | None = None) -> Path:
    """Run the vendor's tools in a package; returns the binary. progress: told what they print; by default
    that goes to standard error when it is a terminal.

    ToolError when one fails, with its errors and the place of its log; what it has made stays.
    """
    place = Path(folder).resolve()
    with told(progress) as tell:
        made = [run_step(step, tools, place, tell) for step in steps_of(place)]
    return made[-1]


def steps_of(folder: Path) -> tuple[ToolStep, ...]:
    """The commands that build a package, which run in its folder."""
    return steps(Card.read(folder), {})


def packaged(folder: Path) -> list[tuple[Path, Manifest]]:
    """The folder and the manifest of each kernel of a package. ValueError for a folder without one."""
    kernels = []
    for kernel in Card.read(folder).kernels:
        found = WrittenFolder.read(folder / kernel.folder)
        if not (found.path / _KERNEL_XML).is_file():
            raise ValueError(f"{found.path} is no package: no {_KERNEL_XML}; `streamgen package` writes one")
        if found.manifest.top != kernel.name or set(kernel.banks) != {b.name for b in found.manifest.buffers}:
            raise ValueError(f"{folder / CARD_FILE} is of another kernel than {found.path}; package it again")
        kernels.append((found.path, found.manifest))
    return kernels


def _folder_of(source: Source) -> Path:
    return Path(source if isinstance(source, str | Path) else source.written).resolve()


def _require_names(models: Sequence[PackagedModel]) -> None:
    """ValueError for two models of one name: they have folders of their names."""
    names = [model.name for model in models]
    for model in models:
        if names.count(model.name) > 1:
            where = " and ".join(str(one.origin) for one in models if one.name == model.name)
            raise ValueError(
                f"several models are called {model.name!r} ({where}): compile each with a name of its own "
                "(CompileConfig.name)"
            )


def _require_modules(designs: Sequence[Written]) -> None:
    """ValueError when kernels have modules of users of one name that are not the same. Modules of the
    compiler have names that say what they are."""
    known: dict[str, tuple[str, str]] = {}
    for design in designs:
        top = design.manifest.top
        for file in design.manifest.sources:
            for match in _MODULE.finditer(design.files.content(file).decode()):
                digest = sha256(match[2].encode()).hexdigest()
                other, first = known.setdefault(match[1], (digest, top))
                if other != digest:
                    raise ValueError(
                        f"kernels {first!r} and {top!r} have different modules called {match[1]!r} ({file}): "
                        "rename one of them"
                    )


def _host(kind: str) -> str:
    return files("streamgen.package.hosts").joinpath(f"{kind}.py").read_text()
