"""A kernel written in Verilog: the module is instanced as it is, its files are shipped with the design.

A user's Params give golden, cost and curves as all Params do; their `build` is

    def build(self) -> BlackBox:
        return BlackBoxParams(
            module="running_sum",
            files=(Path(__file__).with_name("running_sum.v"),),
            parameters={"LANES": self.lanes},
            descriptor=self.descriptor_fields(),
            inputs={"i": 16 * self.lanes},
            outputs={"o": 16 * self.lanes},
        ).build()

The module has these pins and no others, which is checked with Yosys, parameters applied, when it is built:

    clk, rst                                    rst is active high and synchronous
    <port>_payload, <port>_valid, <port>_ready  for `i_descriptor` and every port of inputs and outputs

The payload of `i_descriptor` is the fields of the descriptor, the first in the lowest bits. Files are read
in order, as SystemVerilog; all modules and macros that one uses are in the files before it or in itself.
Amaranth's simulator cannot run Verilog: `streamgen.testing.StreamSimulator` runs the kernel in Verilator.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from amaranth import ClockSignal, Instance, Module, ResetSignal, Shape, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.base.errors import StreamgenError
from streamgen.base.folders import temporary_folder
from streamgen.contract import Field
from streamgen.gateware.rtl import Library, run_yosys
from streamgen.gateware.stream import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class BlackBoxParams:
    """module: its name. files: the Verilog that defines it and all modules that it instantiates. parameters:
    integers for its parameters. descriptor: fields of the descriptor. inputs, outputs: bits of a token of
    each port."""

    module: str
    files: tuple[Path, ...] = field(repr=False)
    parameters: Mapping[str, int] = field(default_factory=dict)
    descriptor: tuple[Field, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.files:
            raise ValueError(f"black box {self.module!r} has no files")
        for file in self.files:
            if not re.fullmatch(r"[\w.-]+\.s?v", file.name, re.ASCII):
                raise ValueError(
                    f"file {file.name!r} of black box {self.module!r} is not called "
                    "like a file of Verilog: letters, digits, '_', '-', '.', and .v or .sv at its end"
                )
        for name, value in self.parameters.items():
            if isinstance(value, bool) or not isinstance(value, int) or not -(2**31) <= value < 2**31:
                raise ValueError(
                    f"parameter {name!r} of black box {self.module!r} is {value!r}; "
                    "integers of 32 bits are allowed"
                )

    def __hash__(self) -> int:
        return hash((self.module, self.files))

    @property
    def ports(self) -> dict[str, wiring.Member]:
        """The stream ports of the component."""
        return {
            "i_descriptor": In(descriptor_signature(self.descriptor)),
            **{name: In(stream.Signature(bits)) for name, bits in self.inputs.items()},
            **{name: Out(stream.Signature(bits)) for name, bits in self.outputs.items()},
        }

    @property
    def pins(self) -> dict[str, tuple[str, int]]:
        """Direction and bits of every pin that the module must have."""
        pins = {"clk": ("input", 1), "rst": ("input", 1)}
        for name, member in self.ports.items():
            there, back = ("input", "output") if member.flow == In else ("output", "input")
            pins[f"{name}_payload"] = there, Shape.cast(member.signature.members["payload"].shape).width
            pins[f"{name}_valid"] = there, 1
            pins[f"{name}_ready"] = back, 1
        return pins

    def sources(self) -> tuple["VerilogSource", ...]:
        """The text of the files. ValueError lists every pin of the module that differs from the params."""
        texts = tuple((file.name, _text(file, self.module)) for file in self.files)
        names = ", ".join(name for name, _ in texts)
        values = ", ".join(f"{name} = {value}" for name, value in self.parameters.items())
        label = f"module {self.module!r} of {names}{f' with {values}' if values else ''}"
        try:
            modules, pins = _read(self.module, texts, tuple(self.parameters.items()))
        except StreamgenError as error:
            reason = re.sub(r"/\S*/", "", str(error).splitlines()[-1].strip())  # without the folder
            raise ValueError(f"Yosys cannot read {label}: {reason}") from error
        if self.module not in modules:
            known = ", ".join(sorted(modules)) or "none"
            raise ValueError(f"there is no module {self.module!r} in {names}, which define: {known}")
        if problems := _disagreements(self.pins, pins):
            raise ValueError("\n  ".join([f"{label} does not have the pins of its Params:", *problems]))
        return tuple(
            VerilogSource(name, text, tuple(module for module, file in modules.items() if file == name))
            for name, text in texts
        )

    def build(self) -> "BlackBox":
        """The component. Raises the errors of `sources`."""
        self.sources()
        return BlackBox(self)


class VerilogSource(NamedTuple):
    """A file of Verilog: its name, its text, the modules that it defines."""

    name: str
    text: str
    modules: tuple[str, ...]


class BlackBox(wiring.Component):
    """The module of BlackBoxParams, as a component."""

    def __init__(self, params: BlackBoxParams) -> None:
        self._params = params
        super().__init__(params.ports)

    @property
    def sources(self) -> tuple[VerilogSource, ...]:
        """The files of the params."""
        return self._params.sources()

    def elaborate(self, platform: Any) -> Module:
        p = self._params
        if not isinstance(platform, Library):
            raise StreamgenError(
                f"{p.module!r} is Verilog, which Amaranth's simulator cannot run; "
                "streamgen.testing.StreamSimulator runs it in Verilator"
            )
        for source in self.sources:
            platform.add_source(*source)
        pins: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for name, member in p.ports.items():
            there, back = ("i", "o") if member.flow == In else ("o", "i")
            port = getattr(self, name)
            pins[f"{there}_{name}_payload"] = Value.cast(port.payload)
            pins[f"{there}_{name}_valid"] = port.valid
            pins[f"{back}_{name}_ready"] = port.ready
        m = Module()
        m.submodules.box = Instance(p.module, **{f"p_{n}": v for n, v in p.parameters.items()}, **pins)
        return m


def _text(file: Path, module: str) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"file {file.name!r} of black box {module!r} cannot be read (is it data of the package?): {error}"
        ) from error


def _disagreements(wanted: Mapping[str, tuple[str, int]], found: Mapping[str, tuple[str, int]]) -> list[str]:
    problems = []
    for name, pin in wanted.items():
        if name not in found:
            problems.append(f"{name} is missing, {_pin(*pin)}")
        elif found[name] != pin:
            problems.append(f"{name} is {_pin(*found[name])}, not {_pin(*pin)}")
    extra = [f"{name} is {_pin(*pin)} of no port" for name, pin in found.items() if name not in wanted]
    return problems + extra


def _pin(direction: str, bits: int) -> str:
    return f"an {direction} of {bits} bit{'s' if bits > 1 else ''}"


@lru_cache(maxsize=64)
def _read(
    module: str, texts: tuple[tuple[str, str], ...], parameters: tuple[tuple[str, int], ...]
) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """The modules that Yosys finds, with their files, and the pins of `module` with direction and bits."""
    with temporary_folder() as folder:
        for name, text in texts:
            (folder / name).write_text(text)
        read = "read_verilog -sv " + " ".join(f"{folder}/{name}" for name, _ in texts)
        every = _modules(run_yosys("", read, "proc", writer="write_json"))
        modules = {name: Path(entry["attributes"]["src"].split(":")[0]).name for name, entry in every.items()}
        if module not in modules:
            return modules, {}
        # hexadecimal, since a decimal number is taken as unsigned
        values = [f"-chparam {name} 32'sh{value % (1 << 32):08x}" for name, value in parameters]
        hierarchy = " ".join([f"hierarchy -check -top {module}", *values])
        chosen = _modules(run_yosys("", read, hierarchy, "proc", writer="write_json"))[module]
    return modules, {name: (pin["direction"], len(pin["bits"])) for name, pin in chosen["ports"].items()}


def _modules(netlist: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(netlist)["modules"]
    return parsed
