"""Run the emitted Verilog of a component in Verilator, as the bench runs a component in Amaranth's simulator.

    simulator = StreamSimulator(component)
    result = simulator.run({"i": tokens}, {"o": count}, stalls=Stalls(seed=1, sources=0.3, sinks=0.3))
    result.tokens["o"], result.cycles["o"]

Inputs, results, laws and errors are those of `streamgen.testing.run`. The component may contain modules in
Verilog, which Amaranth's simulator cannot run. A run begins with two cycles of reset. Registers without a
reset hold random bits. The simulator is built once for a component, which takes a few seconds.
"""

import ctypes
import re
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.gateware.rtl import Library, to_verilog
from streamgen.runtime.verilator import (
    library_objects,
    package_folder,
    prelude,
    run_tool,
    verilator_program,
)
from streamgen.testing.bench import BenchError, Result, Stalls, StuckError, stream_ports
from streamgen.testing.monitor import StreamLawError

_FINE, _STUCK, _TOO_MANY, _VALID_FELL, _PAYLOAD_CHANGED, _LATE = range(6)
_VERILATOR_FLAGS = (
    *("--cc", "-O3", "--no-timing", "--noassert"),
    *("--x-assign", "unique", "--x-initial", "unique", "-Wno-fatal", "-Wno-lint", "--quiet"),
)
_COMPILER_FLAGS = (  # without optimisation, which would cost more time than it saves in a few thousand cycles
    *("-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-DVERILATOR=1"),
    *("-DVM_TRACE=0", "-DVM_COVERAGE=0", "-DVM_TIMING=0", "-DVM_SC=0"),
)


class StreamSimulator:
    """A component that is built for simulation. Ports other than streams are not driven.

    inputs, outputs: names of the streams. verilog: the Verilog text. sources: text of the files that the
    Verilog needs, by name.
    """

    def __init__(self, component: wiring.Component) -> None:
        ports = [
            (name, flow == In, len(Value.cast(getattr(component, name).payload)))
            for flow in (In, Out)
            for name in stream_ports(component, flow)
        ]
        self._build(type(component).__name__, ports, *self.translate(component))

    def _build(
        self,
        kind: str,
        ports: Sequence[tuple[str, bool, int]],
        verilog: str,
        sources: dict[str, str],
        header: str = "",
    ) -> None:
        """Build the simulator. ports: for each stream, its name, whether it is an input, and its bits.
        header: further definitions for the driver."""
        self._kind, self._ports = kind, ports
        self.inputs, self.outputs = (
            [name for name, inward, _ in ports if inward == wanted] for wanted in (True, False)
        )
        self.verilog, self.sources = verilog, sources
        folder = tempfile.TemporaryDirectory(prefix="streams-")
        weakref.finalize(self, folder.cleanup)
        place = Path(folder.name)
        files = {"design.v": verilog, **sources}
        for name, text in files.items():
            (place / name).write_text(text)
        self._library = _build(place, list(files), ports, header)

    @staticmethod
    def translate(component: wiring.Component) -> tuple[str, dict[str, str]]:
        """The Verilog of a component, with the top module `top`, and the text of the files that it needs, by
        name."""
        library = Library()
        return to_verilog(component, "top", library), library.sources

    def run(
        self,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, int],
        *,
        stalls: Stalls | None = None,
        watchdog: int = 2000,
        tail: int = 24,
        reset_at: int | None = None,
    ) -> Result:
        """Send `inputs` (raw tokens by port) and collect the given number of tokens from each output.

        Arguments, result and errors are those of `streamgen.testing.bench.run`.
        """
        return self._run(inputs, outputs, stalls, watchdog, tail, reset_at)[0]

    def _run(
        self,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, int],
        stalls: Stalls | None,
        watchdog: int,
        tail: int,
        reset_at: int | None = None,
        deadline: int | None = None,
        links: Any = None,
    ) -> tuple[Result, bool]:
        """Do a run. Returns its result, and whether it ended in cycle `deadline` with tokens left. links: see
        network_links.h."""
        for word, names, given in (("input", self.inputs, inputs), ("output", self.outputs, outputs)):
            if set(names) != set(given):
                raise ValueError(f"the {word}s of {self._kind} are {sorted(names)}, not {sorted(given)}")
        stalls = stalls or Stalls(seed=0)
        ports = [
            _Stream(name, inward, bits, inputs[name] if inward else outputs[name])
            for name, inward, bits in self._ports
        ]
        seen = (_Port * len(ports))(*(port.port for port in ports))
        outcome = _Outcome()
        chances = stalls.seed, stalls.sources, stalls.sinks
        cycles = (-1 if given is None else given for given in (reset_at, deadline))
        self._library.simulate(seen, links, *chances, *cycles, watchdog, tail, ctypes.byref(outcome))
        if outcome.kind not in (_FINE, _LATE):
            raise _error(outcome, ports, seen, repr(stalls))
        moved = {port.name: state.moved for port, state in zip(ports, seen, strict=True)}
        sent = [port for port in ports if not port.inward]
        result = Result(
            tokens={port.name: port.values()[: moved[port.name]] for port in sent},
            cycles={port.name: port.cycles[: moved[port.name]].tolist() for port in ports},
            offered={port.name: port.offered[: moved[port.name]].tolist() for port in sent},
            probes={},
        )
        return result, outcome.kind == _LATE


class _Port(ctypes.Structure):
    """`Port` of stream_bench.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "held", "now", "cycles", "offered")),
        *((name, ctypes.c_uint64) for name in ("words", "count", "moved", "offers")),
        *((name, ctypes.c_uint8) for name in ("valid", "ready", "waits")),
    ]


class _Outcome(ctypes.Structure):
    """`Outcome` of stream_bench.cpp."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("kind", "port", "cycle", "last")]


class _Stream:
    """The memory of one stream in a run."""

    def __init__(self, name: str, inward: bool, bits: int, given: Any) -> None:
        self.name, self.inward = name, inward
        self.count = len(given) if inward else given
        words = -(-bits // 32)
        self._bytes = 4 * words
        tokens = given if inward else ()
        for k, token in enumerate(tokens):
            if not 0 <= token < 1 << bits:
                raise ValueError(f"token {k} of {name!r} is {token:#x}; the stream has {bits} bits")
        raw = b"".join(int(token).to_bytes(self._bytes, "little") for token in tokens)
        self.tokens = np.zeros(max(self.count, 1) * words, np.uint32)
        self.tokens[: len(raw) // 4] = np.frombuffer(raw, np.uint32)
        self.held, self.now = np.zeros(words, np.uint32), np.zeros(words, np.uint32)
        self.cycles, self.offered = (np.zeros(max(self.count, 1), np.uint64) for _ in range(2))
        arrays = (self.tokens, self.held, self.now, self.cycles, self.offered)
        self.port = _Port(*(array.ctypes.data for array in arrays), words, self.count)

    def values(self) -> list[int]:
        """The tokens of the stream."""
        raw = self.tokens.tobytes()
        size = self._bytes
        return [int.from_bytes(raw[k * size : (k + 1) * size], "little") for k in range(self.count)]


def _error(outcome: _Outcome, ports: Sequence[_Stream], seen: Any, remark: str) -> Exception:
    stream_, port = ports[outcome.port], seen[outcome.port]
    where = f"stream {stream_.name!r}, cycle {outcome.cycle}"
    if outcome.kind == _TOO_MANY:
        return BenchError(f"{where}: a token too many, {stream_.count} expected ({remark})")
    if outcome.kind == _VALID_FELL:
        return StreamLawError(
            f"{where}, token {port.moved}: valid fell before the token was taken ({remark})"
        )
    if outcome.kind == _PAYLOAD_CHANGED:
        before, after = (int.from_bytes(words.tobytes(), "little") for words in (stream_.held, stream_.now))
        return StreamLawError(
            f"{where}, token {port.moved}: payload changed from {before:#x} to {after:#x} before the token "
            f"was taken ({remark})"
        )
    assert outcome.kind == _STUCK
    width = max(len(name) for name in ("stream", *(p.name for p in ports)))
    lines = [
        f"no token moved for {outcome.cycle - outcome.last} cycles, at cycle {outcome.cycle} ({remark})",
        f"{'stream':{width}}  valid ready  tokens left",
    ]
    for p, state in zip(ports, seen, strict=True):
        left = f"{p.count - state.moved} of {p.count}"
        waits = "  the sink waits for valid: valid must not wait for ready" if state.waits else ""
        lines.append(f"{p.name:{width}}  {state.valid:5d} {state.ready:5d}  {left}{waits}")
    return StuckError("\n".join(lines))


def _build(
    place: Path, files: Sequence[str], ports: Sequence[tuple[str, bool, int]], header: str
) -> ctypes.CDLL:
    """Translate and compile the Verilog, and load the shared library."""
    pins = " ".join(
        f"X({k}, {str(inward).lower()}, "
        + ", ".join(f"{name}___05F{part}" for part in ("payload", "valid", "ready"))
        + ")"
        for k, (name, inward, _) in enumerate(ports)
    )
    has_reset = re.search(r"^  input rst;", (place / files[0]).read_text(), re.MULTILINE)
    reset = "design->rst = value" if has_reset else ""
    (place / "streams.h").write_text(f"#define PORTS(X) {pins}\n#define RESET(value) {reset}\n{header}")
    library = compile_design(place, files, Path(__file__).with_name("stream_bench.cpp"))
    u64, i64, number = ctypes.c_uint64, ctypes.c_int64, ctypes.c_double
    library.simulate.argtypes = (
        *(ctypes.POINTER(_Port), ctypes.c_void_p, u64, number, number, i64, i64, u64, u64),
        ctypes.POINTER(_Outcome),
    )
    library.simulate.restype = None
    return library


def compile_design(place: Path, files: Sequence[str], driver: Path) -> ctypes.CDLL:
    """Compile the Verilog `files` of a folder, with top module `top`, and a C++ driver to a shared library,
    and load it."""
    return compile_models(place, files, {"Vdesign": "top"}, driver)


def compile_models(
    place: Path, files: Sequence[str], prefixes: Mapping[str, str], driver: Path
) -> ctypes.CDLL:
    """Like `compile_design`, for several modules of the `files`. Each module becomes its own model. prefixes:
    for each C++ class, the name of its module."""
    code = place / "verilated"
    for prefix, module in prefixes.items():
        names = ("--prefix", prefix, "--top-module", module, "--Mdir", str(code))
        run_tool(verilator_program(), *_VERILATOR_FLAGS, *names, *files, folder=place)
    unit, target = place / "unit.cc", place / "library.so"
    # The precompiled header of each model has the same guard, so the guard is removed before each file.
    parts = (f'#undef VL_PCH_INCLUDED\n#include "{file}"\n' for file in (driver, *sorted(code.glob("*.cpp"))))
    unit.write_text("".join(parts))
    compiler, objects = library_objects()
    include = package_folder() / "include"
    run_tool(
        *(compiler, *_COMPILER_FLAGS, *prelude(_COMPILER_FLAGS)),
        *(f"-I{Path(__file__).parent}", f"-I{place}", f"-I{code}"),
        *("-isystem", str(include), "-isystem", str(include / "vltstd"), "-shared", str(unit)),
        *(*map(str, objects), "-lpthread", "-Wl,-Bsymbolic", "-o", str(target)),
        folder=place,
    )
    return ctypes.CDLL(str(target))
