"""Run the emitted Verilog of a component in Verilator: what `sim.bench` does, for components of any kind.

    simulator = StreamSimulator(component)
    result = simulator.run({"i": tokens}, {"o": count}, stalls=Stalls(seed=1, sources=0.3, sinks=0.3))
    result.tokens["o"], result.cycles["o"]

The same inputs, results, laws and errors as `sim.bench.run`. A component may hold modules in Verilog, which
Amaranth's simulator cannot run. Two cycles of reset come first; registers that nothing resets hold random
bits. The simulator is built once for a component, in a few seconds.
"""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.bench import BenchError, Result, Stalls, StuckError, stream_ports
from sim.monitor import StreamLawError
from streamgen.errors import MissingToolError
from streamgen.rtl import Library, to_verilog
from streamgen.runtime.verilator import package_folder

__all__ = ["StreamSimulator", "compile_design"]

_FINE, _STUCK, _TOO_MANY, _VALID_FELL, _PAYLOAD_CHANGED = range(5)
_VERILATOR_FLAGS = (
    *("--cc", "--prefix", "Vdesign", "--top-module", "top", "-O3", "--no-timing", "--noassert"),
    *("--x-assign", "unique", "--x-initial", "unique", "-Wno-fatal", "-Wno-lint", "--quiet"),
)
_COMPILER_FLAGS = (
    *(
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-gnu-unique",
        "-DVERILATOR=1",
        "-DVM_TRACE=0",
    ),
    *("-DVM_COVERAGE=0", "-DVM_TIMING=0", "-DVM_SC=0"),
)


class StreamSimulator:
    """A component, built for simulation. Ports that are no streams are not driven.

    inputs, outputs: names of the streams. verilog, sources: the text, and the files it needs, by name.
    """

    def __init__(self, component: wiring.Component) -> None:
        self._kind = type(component).__name__
        self._links: Any = None  # of a network, see sim.network_simulator
        self.inputs, self.outputs = (stream_ports(component, flow) for flow in (In, Out))
        self._ports = [
            (name, name in self.inputs, len(Value.cast(getattr(component, name).payload)))
            for name in (*self.inputs, *self.outputs)
        ]
        self.verilog, self.sources = self.translate(component)
        folder = tempfile.TemporaryDirectory(prefix="streams-")
        weakref.finalize(self, folder.cleanup)
        place = Path(folder.name)
        files = {"design.v": self.verilog, **self.sources}
        for name, text in files.items():
            (place / name).write_text(text)
        self._library = _build(place, list(files), self._ports, self._header())

    @staticmethod
    def translate(component: wiring.Component) -> tuple[str, dict[str, str]]:
        """Verilog of a component, its module called `top`, and the files that it needs."""
        library = Library()
        return to_verilog(component, "top", library), library.sources

    def _header(self) -> str:
        """What the driver must know besides the ports."""
        return ""

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

        The arguments are those of `sim.bench.run`, and so is what it returns and raises.
        """
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
        reset = -1 if reset_at is None else reset_at
        self._library.simulate(
            seen,
            self._links,
            stalls.seed,
            stalls.sources,
            stalls.sinks,
            reset,
            watchdog,
            tail,
            ctypes.byref(outcome),
        )
        if outcome.kind != _FINE:
            raise _error(outcome, ports, seen, repr(stalls))
        return Result(
            tokens={port.name: port.values() for port in ports if not port.inward},
            cycles={port.name: port.cycles[: port.count].tolist() for port in ports},
            offered={port.name: port.offered[: port.count].tolist() for port in ports if not port.inward},
            probes={},
        )


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
        """The tokens that came."""
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
    """Translate and compile; the shared library, loaded."""
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
    u64, number = ctypes.c_uint64, ctypes.c_double
    library.simulate.argtypes = (
        *(ctypes.POINTER(_Port), ctypes.c_void_p, u64, number, number, ctypes.c_int64, u64, u64),
        ctypes.POINTER(_Outcome),
    )
    library.simulate.restype = None
    return library


def compile_design(place: Path, files: Sequence[str], driver: Path) -> ctypes.CDLL:
    """The Verilog `files` of a folder with module `top`, and a C++ driver, as a shared library, loaded."""
    made = place / "made"
    _run(
        str(package_folder() / "bin" / "verilator_bin"),
        *_VERILATOR_FLAGS,
        "--Mdir",
        str(made),
        *files,
        cwd=place,
    )
    unit = place / "unit.cc"
    unit.write_text("".join(f'#include "{file}"\n' for file in (driver, *sorted(made.glob("*.cpp")))))
    target = place / "library.so"
    _run(
        *(_compiler(), *_COMPILER_FLAGS, *_include(), f"-I{place}", f"-I{made}", "-shared", str(unit)),
        *(*map(str, _verilated()), "-lpthread", "-Wl,-Bsymbolic", "-o", str(target)),
        cwd=place,
    )
    return ctypes.CDLL(str(target))


def _include() -> tuple[str, ...]:
    include = package_folder() / "include"
    return (f"-I{Path(__file__).parent}", "-isystem", str(include), "-isystem", str(include / "vltstd"))


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise MissingToolError("simulation needs a C++ compiler and finds none: apt-get install g++")


@lru_cache(maxsize=1)
def _verilated() -> tuple[Path, ...]:
    """The objects of Verilator's own library, compiled once a process."""
    folder = tempfile.TemporaryDirectory(prefix="verilated-")
    weakref.finalize(_verilated, folder.cleanup)
    place = Path(folder.name)
    objects = []
    for name in ("verilated", "verilated_threads"):
        source = package_folder() / "include" / f"{name}.cpp"
        objects.append(place / f"{name}.o")
        _run(
            *(_compiler(), *_COMPILER_FLAGS, *_include(), "-c", str(source), "-o", str(objects[-1])),
            cwd=place,
        )
    return tuple(objects)


def _run(*command: str, cwd: Path) -> None:
    environment = os.environ | {"VERILATOR_ROOT": str(package_folder())}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{Path(command[0]).name} failed:\n{done.stderr or done.stdout}")
