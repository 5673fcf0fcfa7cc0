"""The commands that build the binary of a package. The Makefile, the README, the command line and `build` use
them. They run in the folder of the package and write to folders `build`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from streamgen.package.link import LINK
from streamgen.runtime.card import Card
from streamgen.runtime.xrt import BUILD

SCRIPT = "package.tcl"


@dataclass(frozen=True, kw_only=True)
class ToolStep:
    """A command. tool: the program. doing: description for messages. product: file that it makes. needs:
    files that it reads."""

    tool: str
    arguments: tuple[str, ...]
    doing: str
    product: str
    needs: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line."""
        return " ".join((self.tool, *self.arguments))

    @property
    def place(self) -> str:
        """Folder of the product."""
        return str(PurePosixPath(self.product).parent)

    @property
    def log(self) -> str:
        """File for the output of the tool."""
        return f"{self.place}/{self.tool}.log"


def steps(card: Card, hardware: Mapping[str, tuple[str, ...]]) -> tuple[ToolStep, ...]:
    """The commands in order: one for each kernel object, then one for the binary. hardware: files from which
    a kernel object is made, by the name of the kernel."""
    packagings = []
    for kernel in card.kernels:
        inside = PurePosixPath(kernel.folder)
        packagings.append(
            ToolStep(
                tool="vivado",
                arguments=("-mode", "batch", "-nojournal", "-nolog", "-source", str(inside / SCRIPT)),
                doing=f"packaging the kernel {kernel.name}",
                product=str(inside / BUILD / f"{kernel.name}.xo"),
                needs=tuple(str(inside / name) for name in hardware.get(kernel.name, ())),
            )
        )
    objects, binary = tuple(step.product for step in packagings), f"{BUILD}/{card.name}.xclbin"
    link = ("--link", "--target", "hw", "--config", LINK, "--temp_dir", f"{BUILD}/link", "--log_dir")
    linking = ToolStep(
        tool="v++",
        arguments=(*link, f"{BUILD}/logs", "--output", binary, *objects),
        doing=f"linking {card.name}, which takes hours",
        product=binary,
        needs=(*objects, LINK),
    )
    return (*packagings, linking)
