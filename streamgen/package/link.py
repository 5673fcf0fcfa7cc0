"""The configuration of the linker, v++: platform, clock, one instance of the kernel, a bank for each port."""

import re
from collections.abc import Mapping

from streamgen.boards import Board
from streamgen.manifest import Manifest
from streamgen.package.constraints import only_slr

__all__ = ["LINK", "link_config"]

LINK = "link.cfg"


def link_config(manifest: Manifest, board: Board, instances: Mapping[str, str]) -> str:
    """Text of the file. instances: the SLR of each in the top; where all lie on one, it is asked for.

    ValueError for a clock of no whole MHz, a platform that is no name, or a port on a channel that the board
    does not have.
    """
    _require(manifest, board)
    unit, slr = f"{manifest.top}_1", only_slr(instances)
    lines = [
        f"platform={board.platform}",
        "# Clock 0 of the platform drives ap_clk.",
        f"kernel_frequency=0:{int(manifest.clock_mhz)}",
        "",
        "[connectivity]",
        f"nk={manifest.top}:1:{unit}",
    ]
    if slr is not None:
        lines.append(f"slr={unit}:{slr}")
    lines += [f"sp={unit}.{port.name}:HBM[{port.channel}]" for port in manifest.ports]
    return "\n".join(lines) + "\n"


def _require(manifest: Manifest, board: Board) -> None:
    if manifest.clock_mhz != int(manifest.clock_mhz):
        raise ValueError(
            f"{manifest.top!r} is compiled for {manifest.clock_mhz} MHz, and v++ takes whole MHz: compile it "
            f"with clock_mhz={int(manifest.clock_mhz)}"
        )
    for what, name in (("platform", board.platform), ("part", board.part)):
        if not re.fullmatch(r"[\w.+/-]+", name, re.ASCII):
            raise ValueError(
                f"the {what} of board {board.name!r} is {name!r}; letters, digits and _ . + / - make a name"
            )
    for port in manifest.ports:
        if port.channel >= board.hbm.channels:
            raise ValueError(
                f"port {port.name} of {manifest.top!r} is on channel {port.channel}; board {board.name!r} "
                f"has {board.hbm.channels} channels"
            )
