"""From amaranth components to Verilog, each different block converted once and instanced.

A design of thousands of equal multipliers is one module and thousands of instances. `Shared(params)`
is a component that behaves as `params.build()` does; in a simulation in Python it contains that
component, in a conversion by `to_verilog` it becomes an instance of a module that is converted the
first time equal params are met. Modules that are Verilog already are not converted: their files gather in
the `Library` of the conversion, to be shipped beside the text.
"""

import hashlib
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from amaranth import ClockSignal, Const, Instance, Module, ResetInserter, ResetSignal, Value
from amaranth.back import rtlil
from amaranth.hdl import Fragment
from amaranth.hdl._ast import SignalDict
from amaranth.hdl._ir import PortDirection, build_netlist  # no public names for these
from amaranth.lib import wiring

from streamgen.base.collector import collector_at_rest
from streamgen.base.errors import StreamgenError
from streamgen.base.folders import temporary_folder


class Buildable(Protocol):
    """Hashable parameters of hardware whose repr names every choice (a frozen dataclass)."""

    def build(self) -> wiring.Component: ...


def block_name(params: Buildable) -> str:
    """Name of the module for these params: the class without `Params`, and a digest of the choices.

    Where in its package the class stands is no part of it: files move, names of modules stay.
    """
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(params).__name__.removesuffix("Params")).lower()
    identity = f"{type(params).__module__.partition('.')[0]}.{params!r}"
    return f"{words}_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"


# Characters of blocks that are kept for later conversions in this process; the least recently used go first.
# None by default: whoever works on a block, and loads its code again, wants to see what it has become.
REMEMBERED = 0


@dataclass(eq=False)
class _Block:
    """A block that is converted. pins: which of clk and rst it has; needs: what it instances, as met;
    foreign: it, or one of those, is a file that may change."""

    params: Buildable
    name: str
    text: str = ""
    pins: tuple[str, ...] = ()
    needs: list["_Block"] = field(default_factory=list)
    foreign: bool = False


class _KeptBlocks:
    """Blocks that were converted, by params and name: params that differ in type alone may be equal."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[Buildable, str], _Block] = OrderedDict()
        self._size, self._lock = 0, Lock()

    def get(self, params: Buildable, name: str) -> _Block | None:
        with self._lock:
            if (block := self._blocks.get((params, name))) is not None:
                self._blocks.move_to_end((params, name))
            return block

    def keep(self, block: _Block) -> None:
        with self._lock:
            if not block.foreign and self._blocks.setdefault((block.params, block.name), block) is block:
                self._size += len(block.text)
            while self._size > REMEMBERED:
                self._size -= len(self._blocks.popitem(last=False)[1].text)


_memory = _KeptBlocks()


class Library:
    """The modules of one conversion, by params. Passed to amaranth as its `platform`. met: told how many
    instances in the top it has met so far."""

    def __init__(self, met: Callable[[int], object] | None = None) -> None:
        self._met, self._count = met, 0
        self._blocks: dict[Buildable, _Block] = {}
        self._texts: list[str] = []
        self._making: list[_Block] = []
        self._sources: dict[str, str] = {}
        self._foreign: dict[str, str] = {}

    def require(self, params: Buildable, component: wiring.Component) -> tuple[str, tuple[str, ...]]:
        """Convert the block once; return its module name and which of clk and rst it has."""
        if params not in self._blocks:
            name = block_name(params)
            if (block := _memory.get(params, name)) is None:
                block = self._convert(_Block(params, name), component)
                _memory.keep(block)
            self._take(block)
        component._MustUse__used = True  # where it was built for its signature only
        block = self._blocks[params]
        if self._making:
            self._making[-1].needs.append(block)
            self._making[-1].foreign |= block.foreign
        elif self._met is not None:
            self._count += 1
            self._met(self._count)
        return block.name, block.pins

    def _convert(self, block: _Block, component: wiring.Component) -> _Block:
        self._making.append(block)
        block.text = to_rtlil(component, block.name, self)
        self._making.pop()
        body = block.text[block.text.index(f"module \\{block.name}\n") :]
        body = body[: body.index("\nend\n")]
        block.pins = tuple(re.findall(r"^ *wire .*input \d+ +\\(clk|rst)$", body, re.MULTILINE))
        return block

    def _take(self, block: _Block) -> None:
        """A block, behind what it instances."""
        if block.params not in self._blocks:
            for need in block.needs:
                self._take(need)
            self._blocks[block.params] = block
            self._texts.append(block.text)

    def add_source(self, name: str, text: str, modules: Iterable[str]) -> None:
        """Take a file of Verilog that defines these modules.

        ValueError when another file has its name, or defines one of its modules.
        """
        if self._making:
            self._making[-1].foreign = True
        if self._sources.setdefault(name, text) != text:
            raise ValueError(f"two different files of Verilog are called {name!r}: one must be renamed")
        for module in modules:
            if (other := self._foreign.setdefault(module, name)) != name:
                raise ValueError(f"module {module!r} is defined in {other!r} and in {name!r}")

    @property
    def sources(self) -> dict[str, str]:
        """Text of every file of Verilog that the blocks need, by name."""
        return dict(self._sources)

    def check_foreign(self, verilog: str) -> None:
        """ValueError when a module of the files is also one of `verilog`, the text of the conversion."""
        for module in re.findall(r"^module (\w+)", verilog, re.MULTILINE):
            if module in self._foreign:
                raise ValueError(
                    f"module {module!r} of {self._foreign[module]!r} has the name of a module of the design"
                )

    @property
    def names(self) -> dict[Buildable, str]:
        """Module name of every block met so far."""
        return {params: block.name for params, block in self._blocks.items()}

    def text(self) -> str:
        """RTLIL of every block met so far."""
        return "\n".join(self._texts)


class Shared(wiring.Component):
    """The hardware of `params`, instanced from the one module that all equal params share.

    apart: synthesis shall not dissolve the instance, since a region of the device is named for it.
    reset: of this instance, in place of its domain's.
    """

    def __init__(self, params: Buildable, apart: bool = False, reset: Value | None = None) -> None:
        self._params, self._reset = params, reset
        self._attributes = {"a_keep_hierarchy": "yes"} if apart else {}
        self._component = params.build()
        super().__init__(self._component.signature)

    def elaborate(self, platform: Any) -> Module | Instance:
        if not isinstance(platform, Library):
            m = Module()
            block = self._component
            m.submodules.block = block if self._reset is None else ResetInserter(self._reset)(block)
            wiring.connect(m, wiring.flipped(self), self._component)
            return m
        name, clocking = platform.require(self._params, self._component)
        reset = ResetSignal() if self._reset is None else self._reset
        pins: dict[str, Any] = {}
        for pin, flow, value in _pins(self):
            pins[f"{'i' if flow == wiring.In else 'o'}_{pin}"] = value
        for pin in clocking:
            pins[f"i_{pin}"] = ClockSignal() if pin == "clk" else reset
        return Instance(name, **pins, **self._attributes)


def to_verilog(component: wiring.Component, name: str = "top", library: Library | None = None) -> str:
    """Verilog of a component and of all blocks it instances; the same input gives the same bytes.

    A `library`, empty, holds after the call what else belongs to the design: `library.sources`.
    """
    library = Library() if library is None else library
    with collector_at_rest():
        top = to_rtlil(component, name, library)
    verilog = rtlil_to_verilog(library.text() + "\n" + top, name)
    library.check_foreign(verilog)
    return verilog


def to_rtlil(component: wiring.Component, name: str, library: Library) -> str:
    """RTLIL of a component; the blocks that it instances gather in the library."""
    # Without a direction an output that nothing drives would become an input.
    directions = {wiring.In: PortDirection.Input, wiring.Out: PortDirection.Output}
    ports = {pin: (value, directions[flow]) for pin, flow, value in _pins(component)}
    netlist = build_netlist(Fragment.get(component, library), ports=ports, name=name)
    empty = rtlil.EmptyModuleChecker(netlist)
    design = rtlil.Design(emit_src=False)
    for index, module in enumerate(netlist.modules):
        if not empty.is_empty(index):
            builder = design.module(".".join(module.name), src_loc=module.src_loc)
            _ModuleEmitter(builder, netlist, module, SignalDict(), empty_checker=empty).emit()
    return str(design)


class _ModuleEmitter(rtlil.ModuleEmitter):
    """Amaranth's, but for memories that begin with zeros: what a FIFO holds is written before it is read.

    Bit by bit, initial values take half of the time of a conversion, and megabytes of Verilog. Products say
    that they are meant for DSPs, from the sizes on from which synthesis counts them so.
    """

    def emit_memory(self, cell_idx: int, cell: Any) -> None:
        if any(cell.init):
            super().emit_memory(cell_idx, cell)

    def emit_operator(self, cell_idx: int, cell: Any) -> None:
        super().emit_operator(cell_idx, cell)
        if cell.operator == "*" and not any(map(_is_power_of_two, cell.inputs)):
            widths = [
                min(len(self.shorten_operand(operand, signed=signed)) for signed in (False, True))
                for operand in cell.inputs
            ]
            if min(widths) >= _DSP_OPERAND and sum(widths) >= _DSP_PRODUCT:
                self.cell_wires[cell_idx].attribute("use_dsp", "yes")


def _is_power_of_two(operand: Any) -> bool:
    return operand.is_const and sum(net.const for net in operand) == 1


_DSP_OPERAND, _DSP_PRODUCT = 2, 9  # least bits


def _pins(component: wiring.Component) -> Iterator[tuple[str, wiring.Flow, Value]]:
    """Name, direction and value of every pin. A `ready` that is always 1 is none, nor is what has no bits: in
    Verilog it would be `[-1:0]`, two bits that nothing drives."""
    for path, member, value in component.signature.flatten(component):
        if not isinstance(value, Const) and len(pin := Value.cast(value)):
            yield "__".join(map(str, path)), member.flow, pin


def rtlil_to_verilog(text: str, top: str | None = None) -> str:
    """Verilog of RTLIL, of a design or of blocks, without attributes that only Yosys and amaranth understand.

    What is combinational becomes assignments. A block `always @*` whose inputs rest would be evaluated at the
    start of a simulation by the rules of Verilog-2005, never by those of SystemVerilog: there an initial
    value is no event.
    """
    blocks = "*" if top is None else f"* {top} %d"
    verilog = run_yosys(
        text,
        "delete w:* s:0 %i",  # wires without bits, which Verilog does not have
        *(
            "proc_clean",
            "proc_init",
            "proc_mux",
            "proc_clean",
            "pmuxtree",
        ),  # of `proc`, what amaranth's processes need
        # A register that keeps its value has an enable, one that resets a reset. Not in the top: vectors of
        # what all blocks say would take each other's names there, and look as if they ran in circles.
        *(f"opt_clean {blocks}", f"opt_dff {blocks}", f"opt_clean {blocks}"),
        "memory_collect",
        "attrmap -remove generator -remove top -remove src -remove amaranth.hierarchy "
        "-remove amaranth.decoding",
        "attrmap -modattr -remove generator -remove top -remove src -remove amaranth.hierarchy",
        writer="write_verilog",
    )
    # An extended sign comes as the same bit many times over, which a simulator puts together bit by bit.
    return re.sub(
        r"(?<=[{ ])((?:\\\S+ |\w+ ?)(?:\[\d+\])?)((?:, \1){2,})(?=[, }])",
        lambda run: f"{{{1 + run[2].count(', ')}{{{run[1]}}}}}",
        verilog,
    )


def run_yosys(text: str, *commands: str, writer: str) -> str:
    """Run Yosys commands on RTLIL, silently; return what the command `writer` writes.

    It runs in a process of its own, since an error inside Yosys ends its process without a word to Python.
    Raises StreamgenError with the last lines that Yosys printed when it fails.
    """
    with temporary_folder() as folder:
        source, target = folder / "source", folder / "target"
        source.write_text(text)
        script = (f"read_rtlil {source}", *commands, f"{writer} {target}")
        done = subprocess.run(
            [sys.executable, "-c", _RUN_COMMANDS, *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode or not target.exists():
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            raise StreamgenError("\n  ".join(["Yosys failed; it printed last:", *lines[-_LAST_LINES:]]))
        return target.read_text()


_RUN_COMMANDS = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for command in sys.argv[1:]:
    libyosys.run_pass(command, design)
"""
_LAST_LINES = 8
