"""The two commands that make a card's binary of a package, said once: for the Makefile, the README, the
command line, and the run itself. They run in the folder of the package, and what they make is in `build`."""

from dataclasses import dataclass

from streamgen.manifest import Manifest
from streamgen.package.link import LINK
from streamgen.runtime.xrt import BUILD

__all__ = ["SCRIPT", "Step", "steps"]

SCRIPT = "package.tcl"


@dataclass(frozen=True, kw_only=True)
class Step:
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
    def log(self) -> str:
        """Where all that it prints goes."""
        return f"{BUILD}/{self.tool}.log"


def steps(manifest: Manifest, hardware: tuple[str, ...]) -> tuple[Step, Step]:
    """The commands, in order. hardware: files of the package that the kernel object is made of."""
    kernel, binary = f"{BUILD}/{manifest.top}.xo", f"{BUILD}/{manifest.top}.xclbin"
    link = ("--link", "--target", "hw", "--config", LINK, "--temp_dir", f"{BUILD}/link", "--log_dir")
    return (
        Step(
            tool="vivado",
            arguments=("-mode", "batch", "-nojournal", "-nolog", "-source", SCRIPT),
            doing=f"packaging the kernel {manifest.top}",
            product=kernel,
            needs=hardware,
        ),
        Step(
            tool="v++",
            arguments=(*link, f"{BUILD}/logs", "--output", binary, kernel),
            doing=f"linking {manifest.top}, which takes hours",
            product=binary,
            needs=(LINK,),
        ),
    )
