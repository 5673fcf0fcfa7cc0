"""The folder `cocotb` of a package: a bench, runs to which it holds the kernel, and running it."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

import numpy as np

from streamgen.artifact.manifest import Buffer, Manifest
from streamgen.base.folders import new_folder
from streamgen.base.progress import Progress
from streamgen.package.cosim.recording import Recorded, record, write_recording
from streamgen.package.cosim.tools import Simulator, built, run
from streamgen.package.folder import packaged
from streamgen.runtime.card import Card
from streamgen.runtime.chain import ChainExecution
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import TextDevice
from streamgen.runtime.simulator import OnSimulator
from streamgen.text.stored import MODEL, read_text

BENCH = "cocotb"
"""The folder in that of a kernel."""
_MODULE = "kernel_bench"


def write_bench(
    package: str | Path,
    inputs: Sequence[np.ndarray] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    new_tokens: int = 3,
) -> tuple[Path, ...]:
    """Write the bench of each kernel of a package into its folder `cocotb`; returns them.

    inputs: what is run, by default random tokens of this seed, one more than a run takes; for a language
    model the ids of a prompt, which is continued by so many new tokens.

    ValueError for a folder without a package or inputs that do not fit, FileExistsError where a bench is
    already, OSError when it cannot be written; what the simulated device raises.
    """
    place = Path(package).resolve()
    kernels = packaged(place)
    for folder, _ in kernels:
        if (folder / BENCH).exists():
            raise FileExistsError(f"{folder / BENCH} exists; remove it, or edit what is there")
    models = Card.read(place).models
    if inputs is not None and len(models) > 1:
        raise ValueError(
            f"{place} holds several models ({', '.join(models)}), which take inputs of their own"
        )
    recorded = [
        runs for model in models for runs in _recorded(place / model, inputs, seed, progress, new_tokens)
    ]
    return tuple(
        _written(folder, manifest, runs) for (folder, manifest), runs in zip(kernels, recorded, strict=True)
    )


def run_bench(
    package: str | Path, simulator: Simulator = "verilator", seed: int = 0, test: str | None = None
) -> dict[Path, int]:
    """Run the benches of a package by cocotb's runner; returns how many tests have passed, by folder. seed:
    of the stalls. test: a regular expression, to run some of them.

    ValueError where no bench is written, MissingToolError without the simulator, DeviceError when it does not
    take the Verilog or a test fails, with what was printed.
    """
    passed = {}
    for folder, manifest in packaged(Path(package).resolve()):
        place = folder / BENCH
        if not (place / f"{_MODULE}.py").is_file():
            raise ValueError(f"{place} holds no bench; `streamgen cocotb` writes one")
        sources = [folder / name for name in manifest.verilog_files]
        work = place / "build" / simulator
        runner = built(simulator, sources, manifest.top, work)
        shutil.copyfile(place / f"{_MODULE}.py", work / f"{_MODULE}.py")
        given = {"SEED": str(seed), "STREAMGEN_BENCH": str(place), "STREAMGEN_PACKAGE": str(folder)}
        passed[place] = run(runner, manifest.top, _MODULE, work, given, test)
    return passed


def _recorded(
    place: Path, inputs: Sequence[np.ndarray] | None, seed: int, progress: Progress | None, new_tokens: int
) -> list[list[Recorded]]:
    """The runs of each kernel, on the simulated device."""
    opened = OnSimulator(progress=progress)
    random = np.random.default_rng(seed)
    if (place / MODEL).is_file():
        text, config = read_text(place)
        with Execution(place, opened) as execution, record(execution) as runs:
            device = TextDevice(execution, text.vocabulary, config["context"])
            most = min(execution.manifest.max_tokens + 1, config["context"] - new_tokens)
            ids = random.integers(0, text.vocabulary, most) if inputs is None else _ids(inputs)
            for _ in device.session().generate(ids, new_tokens):
                pass
        return [runs]
    with ExitStack() as stack:
        chain = ChainExecution(place, opened)
        stack.callback(chain.close)
        recorded = [stack.enter_context(record(group)) for group in chain.groups]
        tokens = chain.groups[0].manifest.max_tokens
        whole = any(group.manifest.whole for group in chain.groups)
        count = tokens if whole else tokens + 1
        arrays = [_random(info, count, random) for info in chain.inputs] if inputs is None else inputs
        chain.run(*arrays)
        return recorded


def _random(info: Buffer, tokens: int, random: np.random.Generator) -> np.ndarray:
    assert info.shape is not None
    return random.normal(size=(tokens, *info.shape[1:])).astype(np.float32)


def _ids(inputs: Sequence[np.ndarray]) -> np.ndarray:
    if len(inputs) != 1 or inputs[0].ndim != 1:
        raise ValueError("a language model is run on one array of ids [tokens]")
    return inputs[0]


def _written(folder: Path, manifest: Manifest, runs: list[Recorded]) -> Path:
    with new_folder(folder / BENCH) as new:
        source = files("streamgen.package.cosim.shipped").joinpath(f"{_MODULE}.py").read_text()
        (new / f"{_MODULE}.py").write_text(source)
        (new / "Makefile").write_text(_makefile(manifest))
        write_recording(runs, new / "runs.npz")
    return folder / BENCH


def _makefile(manifest: Manifest) -> str:
    sources = " ".join(f"../{name}" for name in manifest.verilog_files)
    settings: Mapping[str, str] = {
        "SIM": "icarus",
        "TOPLEVEL_LANG": "verilog",
        "VERILOG_SOURCES": f"$(addprefix $(CURDIR)/,{sources})",
        "COCOTB_TOPLEVEL": manifest.top,
        "COCOTB_TEST_MODULES": _MODULE,
        "COCOTB_HDL_TIMEUNIT": "1ns",
        "COCOTB_HDL_TIMEPRECISION": "1ps",
    }
    lines = ["# The bench in kernel_bench.py, by cocotb's own makefiles.", "export SEED PATIENCE"]
    lines += [f"{name} ?= {value}" for name, value in settings.items()]
    return "\n".join([*lines, "include $(shell cocotb-config --makefiles)/Makefile.sim"]) + "\n"
