"""kernel.xml: the ports and arguments of a kernel, as XRT and the linker see them.

AMD's UG1393, "RTL Kernel XML File", defines the format. Arguments stand in the order of their ids. A scalar
belongs to the port of the registers, a pointer to the master that reads and writes its buffer. The file also
names the control protocol, which `package_xo` then does not take as an option.
"""

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from streamgen.artifact.manifest import Argument, Manifest

CONTROL = "s_axi_control"
PROTOCOL = "ap_ctrl_chain"
REGISTER_BYTES = 0x1000
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>'
_SCALAR, _GLOBAL_MEMORY = "0", "1"


def vlnv(manifest: Manifest) -> str:
    """Vendor, library, name and version of the packaged block."""
    return f"streamgen:kernel:{manifest.top}:1.0"


def masters(manifest: Manifest) -> dict[str, str]:
    """For each pointer argument, by name: its AXI master."""
    ports = {port.channel: port.name for port in manifest.ports}
    return {buffer.name: ports[buffer.channel] for buffer in manifest.buffers}


def kernel_xml(manifest: Manifest) -> str:
    """Text of the file. The same manifest gives the same bytes."""
    root = Element("root", versionMajor="1", versionMinor="6")
    kernel = SubElement(
        root,
        "kernel",
        {
            "name": manifest.top,
            "language": "ip_c",
            "vlnv": vlnv(manifest),
            "attributes": "",
            "preferredWorkGroupSizeMultiple": "0",
            "workGroupSize": "1",
            "interrupt": "true",
            "hwControlProtocol": PROTOCOL,
        },
    )
    ports = SubElement(kernel, "ports")
    _port(ports, CONTROL, "slave", f"{REGISTER_BYTES:#x}", 32)
    for port in manifest.ports:
        _port(ports, port.name, "master", "0xFFFFFFFFFFFFFFFF", 512)
    arguments, through = SubElement(kernel, "args"), masters(manifest)
    for number, argument in enumerate(manifest.arguments):
        _argument(arguments, number, argument, through.get(argument.name, CONTROL))
    indent(root)
    return f"{_HEAD}\n{tostring(root, encoding='unicode')}\n"


def _port(ports: Element, name: str, mode: str, size: str, bits: int) -> None:
    given = {"name": name, "mode": mode, "range": size, "dataWidth": str(bits)}
    SubElement(ports, "port", {**given, "portType": "addressable", "base": "0x0"})


def _argument(arguments: Element, number: int, argument: Argument, port: str) -> None:
    pointer = argument.kind == "pointer"
    size = "0x8" if pointer else "0x4"
    SubElement(
        arguments,
        "arg",
        {
            "name": argument.name,
            "addressQualifier": _GLOBAL_MEMORY if pointer else _SCALAR,
            "id": str(number),
            "port": port,
            "size": size,
            "offset": f"{argument.offset:#05x}",
            "type": "void*" if pointer else "uint",
            "hostOffset": "0x0",
            "hostSize": size,
        },
    )
