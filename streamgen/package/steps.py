"""The commands that make a card's binary of a package, said once: for the Makefile, the README, the command
line, and the run itself. They run in the folder of the package, and what they make is in folders `build`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from streamgen.package.link import LINK
from streamgen.runtime.card import Card
from streamgen.runtime.xrt import BUILD

__all__ = ["SCRIPT", "ToolStep", "steps"]

SCRIPT = "package.tcl"


@dataclass(frozen=True, kw_only=True)
class ToolStep:
    """tool: the program. doing: in words. product: the file that it makes. needs: files of the package."""

    tool: str
    arguments: tuple[str, ...]
    doing: str
    product: str
    needs: tuple[str, ...]

    @property
    def command(self) -> str:
        """As a shell takes it."""
        return " ".join((self.tool, *self.arguments))

    @property
    def place(self) -> str:
        """The folder of what it makes."""
        return str(PurePosixPath(self.product).parent)

    @property
    def log(self) -> str:
        """Where all that it prints goes."""
        return f"{self.place}/{self.tool}.log"


def steps(card: Card, hardware: Mapping[str, tuple[str, ...]]) -> tuple[ToolStep, ...]:
    """The commands, in order: a kernel object of each kernel, then the binary. hardware: the files of which
    that of a kernel is made, by the kernel's name."""
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
