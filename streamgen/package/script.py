"""The script with which Vivado makes a kernel object from the Verilog. Settings of the design come first,
then `vivado.tcl`, which is the same for all designs."""

from collections.abc import Iterable, Iterator
from importlib.resources import files

from streamgen.artifact.manifest import Manifest
from streamgen.package.constraints import CONSTRAINTS
from streamgen.package.kernel_xml import CONTROL, PROTOCOL, REGISTER_BYTES, masters, vlnv
from streamgen.platform.boards import Board
from streamgen.runtime.xrt import BUILD

_CONTROL_REGISTERS = ("CTRL", "GIER", "IP_IER", "IP_ISR")


def packaging_script(manifest: Manifest, board: Board, *, constrained: bool) -> str:
    """Text of the script. constrained: whether the kernel has a file of placement constraints.

    Raises ValueError for a buffer that has the name of a control register.
    """
    settings = {
        "top": manifest.top,
        "build": BUILD,
        "vlnv": vlnv(manifest),
        "part": board.part,
        "verilog": _list([manifest.verilog]),
        "systemverilog": _list(manifest.sources),
        "constraints": _list([CONSTRAINTS] if constrained else []),
        "control": CONTROL,
        "masters": _list(port.name for port in manifest.ports),
        "protocol": PROTOCOL,
        "register_bytes": str(REGISTER_BYTES),
    }
    head = [
        f"# Packages the kernel {manifest.top} in Vivado: a kernel object in the folder {BUILD}.",
        *(f"set {name} {value}" for name, value in settings.items()),
        "# Name, offset, bits, and the master through which a pointer is followed.",
        "set registers {",
        *(f"    {{{register}}}" for register in _registers(manifest)),
        "}",
    ]
    body = files(__package__).joinpath("vivado.tcl").read_text()
    return "\n".join(head) + "\n\n" + body


def _registers(manifest: Manifest) -> Iterator[str]:
    through = masters(manifest)
    for k, name in enumerate(_CONTROL_REGISTERS):
        if name in through:
            raise ValueError(
                f"buffer {name!r} of {manifest.top!r} has the name of a control register; "
                f"rename the input or output ({', '.join(_CONTROL_REGISTERS)} are taken)"
            )
        yield f"{name} {4 * k:#05x} 32 {{}}"
    for argument in manifest.arguments:
        bits = 64 if argument.kind == "pointer" else 32
        yield f"{argument.name} {argument.offset:#05x} {bits} {through.get(argument.name, '{}')}"


def _list(names: Iterable[str]) -> str:
    return f"{{{' '.join(names)}}}"
