"""Packages as folders: read written models, write the files that a card needs, and build the binary.

A package holds one model, or several models that share a card. Each of several models has a folder of its
name. A model of several groups has a folder for each group.
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

_KERNEL_XML = "kernel.xml"
_MODULE = re.compile(r"^module +(\\\S+|\w+)(.*?)^endmodule", re.MULTILINE | re.DOTALL)


class HasFolder(Protocol):
    """An accelerator."""

    @property
    def written(self) -> Path:
        """Folder of the written accelerator."""
        ...


Source = str | Path | HasFolder


@dataclass(frozen=True)
class Written:
    """A design in a folder. notes: the notes of the compiler."""

    files: WrittenFolder
    notes: Notes

    @classmethod
    def read(cls, folder: Path) -> "Written":
        """Read the design of a folder. Raises ValueError if the folder has no design, or if files are missing
        or have the wrong size."""
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
                        f"{path} has {size} bytes; buffer {buffer.name!r} needs {buffer.bytes}; write it "
                        "again"
                    )
        texts = {name: files.content(name) for name in manifest.verilog_files}
        require_harmless({folder / name: text for name, text in texts.items()})
        return cls(files, notes)

    @property
    def folder(self) -> Path:
        """Folder of the design."""
        return self.files.path

    @property
    def manifest(self) -> Manifest:
        """The manifest of the design."""
        return self.files.manifest

    @property
    def copied(self) -> tuple[str, ...]:
        """Files that are copied to the package."""
        weights = (buffer.file for buffer in self.manifest.buffers if buffer.file is not None)
        return (*self.manifest.verilog_files, *weights)

    @property
    def constraints(self) -> tuple[str, ...]:
        """The file of placement constraints; empty if there is none."""
        return () if placement_constraints(self.notes.instances) is None else (CONSTRAINTS,)

    @property
    def hardware(self) -> tuple[str, ...]:
        """Files from which the kernel object is made."""
        return (SCRIPT, _KERNEL_XML, *self.manifest.verilog_files, *self.constraints)

    def texts(self) -> dict[str, str]:
        """Texts of the files that are made for the package, by file name."""
        manifest, constraints = self.manifest, placement_constraints(self.notes.instances)
        texts = {
            _KERNEL_XML: kernel_xml(manifest),
            SCRIPT: packaging_script(manifest, self.notes.board, constrained=constraints is not None),
        }
        return texts if constraints is None else {**texts, CONSTRAINTS: constraints}


@dataclass(frozen=True)
class PackagedModel:
    """A written accelerator. folder: its folder in the package."""

    origin: Path
    execution: ChainExecution
    designs: Sequence[Written]
    folder: str = "."

    @classmethod
    def read(cls, origin: Path) -> "PackagedModel":
        """Read a written accelerator. Raises ValueError for any other folder, and if the buffers of its
        groups do not match."""
        execution = ChainExecution(origin)
        return cls(origin, execution, [Written.read(group.folder) for group in execution.groups])

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.execution.chain.name

    @cached_property
    def text_files(self) -> list[str]:
        """Tokenizer and settings of a language model; empty for any other model."""
        return text_files(self.origin)

    @property
    def folders(self) -> list[str]:
        """Folders of the kernels in the package."""
        if not (self.origin / CHAIN_FILE).exists():
            return [self.folder]
        return [(Path(self.folder) / name).as_posix() for name in self.execution.chain.folders]

    def parts(self, first: int) -> list[LinkedKernel]:
        """The kernels of the model. first: number of the first one on the card."""
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
        """Write the files of the model to a package."""
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
    """The board for which a written accelerator was compiled. Raises ValueError for any other folder."""
    return PackagedModel.read(Path(source).resolve()).designs[0].notes.board


def package(sources: Source | Sequence[Source], target: str | Path, name: str | None = None) -> Path:
    """Write all files that a card and the vendor's tools need to a new folder, and return its path.

    sources: one or several accelerators, or their folders. name: name of the binary; by default the name of a
    single accelerator, or "card". Each kernel has its Verilog, kernel.xml, Vivado script, constraints,
    weights and manifest. The package also has the linker configuration, card.json, a Makefile, a host program
    and a README. The same accelerators give the same bytes.

    Raises ValueError for a folder that is not a written accelerator, for an accelerator that cannot be a
    kernel, for a board without a shell, and for accelerators that cannot share a card; BudgetError if the
    card is too small; FileExistsError if the target exists and is not empty; OSError if it cannot be written.
    If writing fails, no files are left.
    """
    given = [sources] if isinstance(sources, str | Path) or hasattr(sources, "written") else list(sources)
    if not given:
        raise ValueError("a package needs at least one accelerator")
    place = Path(target).resolve()
    models = [PackagedModel.read(_folder_of(source)) for source in given]
    if len(models) > 1:
        _require_names(models)
        models = [PackagedModel(model.origin, model.execution, model.designs, model.name) for model in models]
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
    """Run the vendor's tools in a package and return the path of the binary. progress: called with the output
    of the tools; by default it goes to standard error if that is a terminal.

    Raises ToolError if a tool fails, with its errors and the path of its log. Finished files stay.
    """
    place = Path(folder).resolve()
    with told(progress) as tell:
        products = [run_step(step, tools, place, tell) for step in steps_of(place)]
    return products[-1]


def steps_of(folder: Path) -> tuple[ToolStep, ...]:
    """The commands that build a package. They run in the folder of the package."""
    return steps(Card.read(folder), {})


def packaged(folder: Path) -> list[tuple[Path, Manifest]]:
    """Folder and manifest of each kernel of a package. Raises ValueError for any other folder."""
    kernels = []
    for kernel in Card.read(folder).kernels:
        written = WrittenFolder.read(folder / kernel.folder)
        buffers = {buffer.name for buffer in written.manifest.buffers}
        if not (written.path / _KERNEL_XML).is_file():
            raise ValueError(
                f"{written.path} is not a package, since it has no {_KERNEL_XML}; `streamgen "
                "package` writes one"
            )
        if written.manifest.top != kernel.name or set(kernel.banks) != buffers:
            raise ValueError(
                f"{folder / CARD_FILE} describes another kernel than {written.path}; package the model again"
            )
        kernels.append((written.path, written.manifest))
    return kernels


def _folder_of(source: Source) -> Path:
    return Path(source if isinstance(source, str | Path) else source.written).resolve()


def _require_names(models: Sequence[PackagedModel]) -> None:
    """Raise ValueError if two models have the same name, because each has a folder of its name."""
    names = [model.name for model in models]
    for model in models:
        if names.count(model.name) > 1:
            where = " and ".join(str(other.origin) for other in models if other.name == model.name)
            raise ValueError(
                f"several models are called {model.name!r} ({where}): compile each with its own name "
                "(CompileConfig.name)"
            )


def _require_modules(designs: Sequence[Written]) -> None:
    """Raise ValueError if two kernels have different modules of the same name. This can only happen to the
    modules of users, because the names of the compiler's modules depend on their contents."""
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
