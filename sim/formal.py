"""Proofs about components: properties that hold in every cycle of every run, or a run that breaks one.

    theorem = Theorem("queue", Queue(params))
    theorem.assume(...)            # what the neighbours promise
    theorem.always("...", ...)     # what the component promises
    theorem.reachable("...", ...)  # what must be able to happen, so that no promise is empty
    prove(theorem)

Every input of the component is free in every cycle. A run begins with one cycle of reset in which every
register and every memory word holds anything; nothing is claimed in that cycle. So reset itself is proved
to suffice, whatever was there before.

A proof is by induction: property-directed reachability (A. Bradley, "SAT-Based Model Checking without
Unrolling", VMCAI 2011; N. Een, A. Mishchenko, R. Brayton, FMCAD 2011) looks for a set of states that holds
the first one, that no step leaves and in which every property is true. The prover then checks that set
once more by itself. Before that, signals that are always equal are merged, also by induction. So most
theorems speak of pins alone, without invariants, and outlive changes of what they are about. Arithmetic on
wide registers is what the search does not find by itself: there a theorem also says what registers mean
(`state`), and that is proved along with the rest.

A refutation is a run from reset to the cycle in which a property fails, the shortest there is. It is
replayed in a simulator before it is believed, and printed as a table.

Amaranth -> RTLIL -> Yosys: flatten, memories to registers, AIGER -> ABC (`yosys-abc`, which comes with
pyosys): `scorr`, `pdr`, `bmc3`. Contents of read-only memories are not looked at: a table holds anything.
"""

import io
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth import Module, ResetSignal, Shape, Signal, Value
from amaranth.hdl import Assert, Assume, Elaboratable
from amaranth.lib import wiring
from vcd.reader import TokenKind, tokenize

from streamgen.base.errors import StreamgenError
from streamgen.gateware.rtl import Library, run_yosys, to_rtlil

__all__ = ["EmptyTheoremError", "Proved", "RefutedError", "Theorem", "Trace", "UndecidedError", "prove"]

_REACH = 60  # cycles in which everything reachable is looked for
_BASE = 12  # cycles of a base case, enough to show most faults
_FIRST = "first_cycle"

_FLATTEN = (
    "hierarchy -top top",
    "proc -norom",
    "flatten",
    "memory_collect",
    "memory_map",
    "opt_clean",
    f"setattr -unset init w:* w:{_FIRST} %d",
    "chformal -lower",
    "async2sync",
    "setundef -anyseq",  # what Yosys thinks is of no concern may be anything
)
# `formalff` comes before any `opt`, which would take the liberty that an unknown first value gives it.
_TO_AIG = (
    "dffunmap",
    "formalff -clk2ff -ff2anyinit",
    "opt -fast",
    "techmap",
    "opt -fast",
    "aigmap",
    "formalff -anyinit2ff -fine",
    "delete -output",
    "opt_clean",
)


class RefutedError(AssertionError):
    """A property does not hold. `text` says which, `trace` is a run that shows it."""

    def __init__(self, theorem: str, text: str, trace: "Trace") -> None:
        super().__init__(f"{theorem}: it is not so that {text}\n\n{trace}")
        self.text = text
        self.trace = trace


class EmptyTheoremError(AssertionError):
    """What should be able to happen cannot: the assumptions are too strong or the component is stuck."""


class UndecidedError(AssertionError):
    """Neither a proof nor a refutation in the time given."""


@dataclass(frozen=True)
class Proved:
    """registers: bits of state of component and theorem. clauses: size of the inductive invariant, 0 when
    the properties follow from the assumptions alone. frames: steps it was unrolled to."""

    registers: int
    clauses: int
    frames: int


@dataclass(frozen=True)
class Trace:
    """A run, cycle 0 being the reset. values: of each signal, by cycle (None: it hangs on
    a read beyond the end of a memory). rows: the signals
    to print. vcd: the same and everything inside as a wave."""

    values: dict[str, list[int | None]]
    rows: tuple[str, ...]
    vcd: str

    @property
    def cycles(self) -> int:
        return len(next(iter(self.values.values())))

    def __str__(self) -> str:
        """A line a signal, a column a cycle, hexadecimal."""
        cells = {name.replace("__", "."): [_hex(v) for v in self.values[name]] for name in self.rows}
        cells = {"cycle": [str(k) for k in range(self.cycles)], **cells}
        margin = max(map(len, cells))
        widths = [max(map(len, column)) for column in zip(*cells.values(), strict=True)]
        return "\n".join(
            name.ljust(margin)
            + "".join(f"  {value:>{width}}" for value, width in zip(row, widths, strict=True))
            for name, row in cells.items()
        )


def _hex(value: int | None) -> str:
    if value is None:
        return "x"
    text = f"{value:x}"
    return text if len(text) <= 10 else f"..{text[-8:]}"


class Theorem(Elaboratable):
    """Free inputs, assumptions and properties around a component.

    component: what it is about; its inputs are free. inside: its module, for theorems that look at the
    pins of its parts, `inside.submodules.NAME`. m: the module for what the properties need to remember;
    its registers are reset as the component's are.
    """

    def __init__(self, name: str, component: wiring.Component) -> None:
        self.name = name
        self.component = component
        self.m = Module()
        self.inside: Module = component.elaborate(None)
        component._MustUse__used = True
        self.m.submodules.dut = self.inside
        self.texts: list[str] = []
        self.goals: list[str] = []
        self._inputs: dict[str, Signal] = {}
        self._reached: list[Value] = []
        self._first = Signal(name=_FIRST, init=1, reset_less=True)
        self.m.d.sync += self._first.eq(0)
        self.m.d.comb += Assume(ResetSignal() == self._first)
        self.pins: list[str] = []
        for path, member, value in component.signature.flatten(component):
            pin = "__".join(map(str, path))
            self.pins.append(pin)
            if member.flow == wiring.In:
                self.m.d.comb += Value.cast(value).eq(self.free(pin, len(Value.cast(value))))

    def free(self, name: str, shape: Any = 1) -> Signal:
        """A value that may be anything in every cycle."""
        signal = Signal(Shape.cast(shape), name=name)
        self._inputs[name] = signal
        setattr(self, name, signal)
        return signal

    def assume(self, condition: Any) -> None:
        """What holds in every cycle after the reset, by promise of the neighbours."""
        self.m.d.comb += Assume(self._first | condition)

    def always(self, text: str, condition: Any) -> None:
        """What is to be proved for every cycle after the reset. text: completes "it is so that"."""
        holds = Signal(name=f"property_{len(self.texts)}")
        self.texts.append(text)
        self.m.d.comb += [holds.eq(self._first | condition), Assert(holds)]

    def reachable(self, text: str, condition: Any) -> None:
        """What must be able to happen. `prove` looks for one run in which all of it has happened."""
        reached = Signal(name=f"reached_{len(self.goals)}")
        self.goals.append(text)
        with self.m.If(condition):
            self.m.d.sync += reached.eq(1)
        self._reached.append(reached)

    def state(self, name: str) -> Signal:
        """A signal of the component by its name, for properties that say what a register means."""
        named = {signal.name: signal for signal in self.inside._driving}
        if name not in named:
            raise ValueError(f"{self.name} drives no signal called {name!r}, only {', '.join(sorted(named))}")
        return named[name]

    def during(self, state: str) -> Value:
        """Whether the state machine of the component is in a state."""
        return self.inside._generated["fsm"].ongoing(state)

    @property
    def signature(self) -> wiring.Signature:
        """The free inputs, as pins."""
        return wiring.Signature({name: wiring.In(signal.shape()) for name, signal in self._inputs.items()})

    def elaborate(self, platform: Any) -> Module:
        missed = Signal(name="missed", init=1)
        reached = Value.cast(1)
        for value in self._reached:
            reached &= value
        self.m.d.comb += [missed.eq(self._first | ~reached), Assert(missed)]
        return self.m


def prove(theorem: Theorem, *, steps: int | None = None, seconds: int = 600) -> Proved:
    """Prove all properties of a theorem.

    steps: the properties are an invariant by themselves: when all hold in so many cycles in a row, they do
    in the next. None: an invariant is searched for, which takes narrow registers and counters.

    Raises RefutedError with the run in which one fails first, EmptyTheoremError when no run of 60
    cycles reaches all that is `reachable`, UndecidedError after so many seconds or when the properties are
    not inductive.
    """
    if not theorem.texts or not theorem.goals:
        raise ValueError(f"theorem {theorem.name} needs at least one `always` and one `reachable`")
    with tempfile.TemporaryDirectory() as folder:
        problem = _Problem(theorem, Path(folder), seconds)
        proved = problem.search() if steps is None else problem.induct(steps)
        reached = problem.ask("goals", f"bmc3 -F {_REACH} -T {seconds}")
        if _refuted(reached) is None:
            raise EmptyTheoremError(
                f"{theorem.name}: in {_REACH} cycles no run reaches all of: {'; '.join(theorem.goals)}"
            )
    return proved


def _refuted(said: str) -> int | None:
    """The cycle in which the prover sees a property fail."""
    found = re.search(r"was asserted in frame (\d+)", said)
    return int(found[1]) if found else None


def _registers(said: str) -> int:
    """Bits of state, as printed first."""
    found = re.search(r"lat = +(\d+)", said)
    assert found is not None, said
    return int(found[1])


class _Problem:
    """A theorem as files: two circuits for the prover (properties; goals) and one for the simulator."""

    def __init__(self, theorem: Theorem, folder: Path, seconds: int) -> None:
        self._theorem = theorem
        self._folder = folder
        self._seconds = seconds
        library = Library()
        top = to_rtlil(theorem, "top", library)
        commands = [*_FLATTEN, "design -save flat"]
        for name, other in (("properties", "missed"), ("goals", "property_*")):
            commands += [
                "design -load flat",
                f"delete w:{other} %co t:$assert %i",
                *_TO_AIG,
                f"write_aiger -zinit -map {folder / name}.map {folder / name}.aig",
            ]
        self._flat = run_yosys(
            f"{library.text()}\n{top}", *commands, "design -load flat", writer="write_rtlil"
        )

    def ask(self, name: str, commands: str) -> str:
        """What ABC prints about one of the two circuits."""
        import pyosys  # only for its place: slow to load

        program = Path(pyosys.__file__).with_name("yosys-abc")
        done = subprocess.run(
            [program, "-q", f"read_aiger {name}.aig; fold -s; strash; {commands}"],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * self._seconds + 60,
            check=True,
        )
        return done.stdout

    def search(self) -> Proved:
        """Let ABC find an inductive invariant."""
        search = f"pdr -v -T {self._seconds}"
        said = self.ask("properties", f"print_stats; scorr; {search}")
        if "UNDECIDED" in said:  # also what is said when nothing is left to be decided after `scorr`
            said = self.ask("properties", f"print_stats; {search}")
        if (frame := _refuted(said)) is not None:
            raise self.refutation(frame)
        if "Property proved." not in said:
            raise UndecidedError(f"{self._theorem.name}: not decided in {self._seconds} s")
        clauses = re.search(r"Verification of invariant with (\d+) clauses was successful", said)
        if "Invariant F" in said and clauses is None:
            raise UndecidedError(f"{self._theorem.name}: the prover does not confirm its invariant:\n{said}")
        frames = re.findall(r"^ *(\d+) : ", said, re.MULTILINE)
        return Proved(
            registers=_registers(said),
            clauses=int(clauses[1]) if clauses else 0,
            frames=int(frames[-1]) if frames else 0,
        )

    def induct(self, steps: int) -> Proved:
        """Base case by ABC, in more cycles than needed to find faults; the step by the solver of Yosys."""
        frames = max(steps + 1, _BASE)
        said = self.ask("properties", f"print_stats; bmc3 -F {frames} -T {self._seconds}")
        if (frame := _refuted(said)) is not None:
            raise self.refutation(frame)
        if f"No output asserted in {frames} frames" not in said:
            raise UndecidedError(f"{self._theorem.name}: base case not decided in {self._seconds} s:\n{said}")
        try:
            run_yosys(
                self._flat,
                "delete w:missed %co t:$assert %i",
                "opt_clean",
                f"sat -verify -tempinduct-inductonly -maxsteps {steps} -prove-asserts -set-assumes "
                f"-set {_FIRST} 0 -timeout {self._seconds}",
                writer="write_rtlil",
            )
        except StreamgenError as error:
            if "proof did fail" not in str(error):
                raise
            text = f"{self._theorem.name}: true for {frames} cycles, but not inductive in {steps} steps"
            raise UndecidedError(text) from error
        return Proved(registers=_registers(said), clauses=len(self._theorem.texts), frames=steps)

    def refutation(self, frame: int) -> RefutedError:
        """The shortest run to a failure that is known to be possible in cycle `frame`."""
        said = self.ask("properties", f"bmc3 -F {frame + 1}; write_cex -a trace.aiw")
        assert _refuted(said) is not None, f"a refutation that bounded search does not find:\n{said}"
        vcd = self._folder / "trace.vcd"
        trace, where = self._folder / "trace.aiw", self._folder / "properties.map"
        run_yosys(self._flat, f"sim -r {trace} -map {where} -vcd {vcd} -clock clk", writer="write_rtlil")
        text = vcd.read_text()
        values = _read_vcd(text)
        failed = [k for k in range(len(self._theorem.texts)) if values[f"property_{k}"][-1] != 1]
        assert failed, f"the simulator does not confirm the refutation:\n{values}"
        rows = tuple(self._rows(values))
        return RefutedError(self._theorem.name, self._theorem.texts[failed[0]], Trace(values, rows, text))

    def _rows(self, values: dict[str, list[int | None]]) -> Sequence[str]:
        """The pins of the component, then what the theorem remembers, but for names that begin with _."""
        pins = [pin for pin in self._theorem.pins if pin in values]
        hidden = re.compile(rf"property_\d+|reached_\d+|missed|clk|rst|{_FIRST}|_.*|.*[.$].*")
        return [*pins, *(name for name in values if name not in pins and not hidden.fullmatch(name))]


def _read_vcd(text: str) -> dict[str, list[int | None]]:
    """Value of every signal at the end of each cycle; the simulator's cycle has 10 steps."""
    names: dict[str, list[str]] = {}
    now: dict[str, int | None] = {}
    values: dict[str, list[int | None]] = {}
    cycle = 0
    for token in tokenize(io.BytesIO(text.encode())):
        if token.kind is TokenKind.VAR:
            names.setdefault(token.var.id_code, []).append(token.var.reference)
            values[token.var.reference] = []
        elif token.kind is TokenKind.CHANGE_TIME:
            while cycle < token.time_change // 10:
                _sample(names, now, values)
                cycle += 1
        elif token.kind is TokenKind.CHANGE_SCALAR:
            now[token.scalar_change.id_code] = {"0": 0, "1": 1}.get(token.scalar_change.value)
        elif token.kind is TokenKind.CHANGE_VECTOR:
            value = token.vector_change.value
            now[token.vector_change.id_code] = value if isinstance(value, int) else None
    return values


def _sample(
    names: dict[str, list[str]], now: dict[str, int | None], values: dict[str, list[int | None]]
) -> None:
    for code, references in names.items():
        for reference in references:
            values[reference].append(now.get(code))
