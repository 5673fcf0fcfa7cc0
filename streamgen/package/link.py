"""The configuration file of the linker v++: platform, clock, kernels, and the memory bank of each port."""

import re
from collections.abc import Iterator, Sequence

from streamgen.artifact.manifest import Manifest
from streamgen.platform.boards import Board, shell_of
from streamgen.runtime.card import Card, Kernel

LINK = "link.cfg"


def link_config(card: Card, manifests: Sequence[Manifest], board: Board) -> str:
    """Text of the file. manifests: the manifests of the kernels of the card, in order.

    Raises ValueError for a board without a shell, for a clock that is not a whole number of MHz, for a
    platform or part that is not a valid name, and for a port on a channel that the board does not have.
    """
    for manifest in manifests:
        _require(manifest, board)
    lines = [
        f"platform={shell_of(board).platform}",
        "# Clock 0 of the platform drives ap_clk.",
        f"kernel_frequency=0:{int(manifests[0].clock_mhz)}",
        "",
        "[connectivity]",
        *(f"nk={kernel.name}:1:{kernel.unit}" for kernel in card.kernels),
        *(f"slr={kernel.unit}:{kernel.slr}" for kernel in card.kernels if kernel.slr is not None),
    ]
    for kernel, manifest in zip(card.kernels, manifests, strict=True):
        lines += _banks(kernel, manifest)
    return "\n".join(lines) + "\n"


def _banks(kernel: Kernel, manifest: Manifest) -> Iterator[str]:
    """One line for each port. If its arguments lie in several banks, because another kernel owns some of
    them, one line for each argument."""
    for port in manifest.ports:
        names = [buffer.name for buffer in manifest.buffers if buffer.channel == port.channel]
        banks = {name: kernel.banks[name] for name in names}
        if len(set(banks.values())) == 1:
            banks = {port.name: banks[names[0]]}
        yield from (f"sp={kernel.unit}.{name}:HBM[{bank}]" for name, bank in banks.items())


def _require(manifest: Manifest, board: Board) -> None:
    if manifest.clock_mhz != int(manifest.clock_mhz):
        raise ValueError(
            f"{manifest.top!r} is compiled for {manifest.clock_mhz} MHz, but v++ takes whole MHz: compile it "
            f"with clock_mhz={int(manifest.clock_mhz)}"
        )
    for what, name in (("platform", shell_of(board).platform), ("part", board.part)):
        if not re.fullmatch(r"[\w.+/-]+", name, re.ASCII):
            raise ValueError(
                f"the {what} of board {board.name!r} is {name!r}; letters, digits and _ . + / - are allowed"
            )
    for port in manifest.ports:
        if port.channel >= board.hbm.channels:
            raise ValueError(
                f"port {port.name} of {manifest.top!r} is on channel {port.channel}; board {board.name!r} "
                f"has {board.hbm.channels} channels"
            )
