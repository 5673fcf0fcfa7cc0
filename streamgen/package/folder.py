"""Packages as folders: read what is written of a design, write what a card needs, build it.

A package of several groups, which run one after the other, has a folder for each of them.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from streamgen.boards import Board
from streamgen.folders import new_folder
from streamgen.manifest import Manifest
from streamgen.observe.report import Notes
from streamgen.package.constraints import CONSTRAINTS, placement_constraints
from streamgen.package.kernel_xml import kernel_xml
from streamgen.package.link import LINK, link_config
from streamgen.package.script import packaging_script
from streamgen.package.steps import SCRIPT, Step, steps
from streamgen.package.texts import group_makefile, makefile, readme
from streamgen.package.tools import Tools, run_step
from streamgen.progress import Progress, told
from streamgen.runtime.chain import CHAIN_FILE, Chain
from streamgen.runtime.verilog_text import require_harmless
from streamgen.text.stored import text_files
from streamgen.written import MANIFEST, WrittenFolder

__all__ = ["board_of_folder", "build", "package", "packaged", "steps_of"]

_KERNEL_XML = "kernel.xml"


@dataclass(frozen=True)
class Written:
    """A design that is written in a folder. instances: the SLR of each in the top of the Verilog."""

    files: WrittenFolder
    board: Board
    instances: Mapping[str, str]

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
        return cls(files, notes.board, notes.instances)

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

    def texts(self) -> dict[str, str]:
        """What a package has besides, by the name of the file."""
        manifest, constraints = self.manifest, placement_constraints(self.instances)
        made = {
            _KERNEL_XML: kernel_xml(manifest),
            LINK: link_config(manifest, self.board, self.instances),
            SCRIPT: packaging_script(manifest, self.board, constrained=constraints is not None),
        }
        if constraints is not None:
            made[CONSTRAINTS] = constraints
        return {**made, "Makefile": makefile(self.steps())}

    def steps(self) -> tuple[Step, Step]:
        """The commands that build its package."""
        constraints = () if placement_constraints(self.instances) is None else (CONSTRAINTS,)
        return steps(self.manifest, (SCRIPT, _KERNEL_XML, *self.manifest.verilog_files, *constraints))


def board_of_folder(source: str | Path) -> Board:
    """The board for which a written accelerator is compiled. ValueError for a folder without one."""
    return _read(Path(source))[1][0].board


def package(source: str | Path, target: str | Path) -> Path:
    """Write what a card and the vendor's tools need of a written accelerator into a new folder; returns it.

    Verilog, kernel.xml, Vivado's script, the linker's configuration, constraints, weights, manifest,
    Makefile, host program, README. The same accelerator gives the same bytes.

    ValueError for a folder that is no written accelerator, or one that cannot be a kernel; FileExistsError
    when the target exists and is not empty; OSError when it cannot be written. Either everything is written
    or nothing is left.
    """
    origin, place = Path(source).resolve(), Path(target).resolve()
    chain, designs = _read(origin)
    texts = [design.texts() for design in designs]
    with new_folder(place) as new:
        for folder, design, made in zip(_folders(chain), designs, texts, strict=True):
            (new / folder).mkdir(exist_ok=True)
            for name in design.copied:
                (new / folder / name).write_bytes(design.files.content(name))
            shutil.copyfile(design.folder / MANIFEST, new / folder / MANIFEST)
            for name, text in made.items():
                (new / folder / name).write_text(text)
        if chain is not None:
            (new / CHAIN_FILE).write_text(chain.to_json())
            (new / "Makefile").write_text(group_makefile(chain.folders))
        for name in (language := text_files(origin)):
            shutil.copyfile(origin / name, new / name)
        (new / "host.py").write_text(_host(bool(language)))
        (new / "README.md").write_text(_readme(chain, designs, bool(language)))
    return place


def build(folder: str | Path, tools: Tools, progress: Progress | None = None) -> tuple[Path, ...]:
    """Run the vendor's tools in a package; returns the binaries. progress: told what they print; by default
    that goes to standard error when it is a terminal.

    ToolError when one fails, with its errors and the place of its log; what it has made stays.
    """
    place = Path(folder).resolve()
    made = []
    with told(progress) as tell:
        for part, sequence in steps_of(place):
            for step in sequence:
                product = run_step(step, tools, place / part, tell)
            made.append(product)
    return tuple(made)


def steps_of(folder: Path) -> list[tuple[str, tuple[Step, Step]]]:
    """The commands that build a package, by the folder of each group in it."""
    chain = Chain.read(folder) if (folder / CHAIN_FILE).exists() else None
    return [(part, steps(WrittenFolder.read(folder / part).manifest, ())) for part in _folders(chain)]


def packaged(folder: Path) -> list[tuple[Path, Manifest]]:
    """The folder and the manifest of each kernel of a package. ValueError for a folder without one."""
    chain = Chain.read(folder) if (folder / CHAIN_FILE).exists() else None
    kernels = [WrittenFolder.read(folder / part) for part in _folders(chain)]
    for kernel in kernels:
        if not (kernel.path / _KERNEL_XML).is_file():
            raise ValueError(f"{kernel.path} is no package: no {_KERNEL_XML}; `streamgen package` writes one")
    return [(kernel.path, kernel.manifest) for kernel in kernels]


def _read(origin: Path) -> tuple[Chain | None, list[Written]]:
    chain = Chain.read(origin) if (origin / CHAIN_FILE).exists() else None
    return chain, [Written.read(origin / folder) for folder in _folders(chain)]


def _folders(chain: Chain | None) -> tuple[str, ...]:
    return (".",) if chain is None else chain.folders


def _host(language: bool) -> str:
    name = "text.py" if language else "arrays.py"
    return files("streamgen.package.hosts").joinpath(name).read_text()


def _readme(chain: Chain | None, designs: Sequence[Written], language: bool) -> str:
    name = designs[0].manifest.top if chain is None else chain.name
    parts = [(f, d.manifest, d.steps()) for f, d in zip(_folders(chain), designs, strict=True)]
    return readme(name, designs[0].board, parts, language)
