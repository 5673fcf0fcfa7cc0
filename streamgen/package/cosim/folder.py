"""The folder `cocotb` of a package: write the bench and the recorded runs, and run the bench."""

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
"""Folder of the bench, inside the folder of a kernel."""
_MODULE = "kernel_bench"


def write_bench(
    package: str | Path,
    inputs: Sequence[np.ndarray] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    new_tokens: int = 3,
) -> tuple[Path, ...]:
    """Write the bench of each kernel of a package into its folder `cocotb`, and return these folders.

    inputs: the arrays that are run; for a language model, one array of the ids [tokens] of a prompt. By
    default, random tokens of this seed, one more than a run takes. new_tokens: number of tokens by which a
    language model continues the prompt.

    Raises ValueError for a folder without a package and for inputs that do not fit, FileExistsError if a
    bench already exists, OSError if a file cannot be written, and all errors of the simulated device.
    """
    place = Path(package).resolve()
    kernels = packaged(place)
    for folder, _ in kernels:
        if (folder / BENCH).exists():
            raise FileExistsError(f"{folder / BENCH} already exists; remove it to write a new bench")
    models = Card.read(place).models
    if inputs is not None and len(models) > 1:
        raise ValueError(
            f"{place} holds several models ({', '.join(models)}), and each takes its own inputs: leave out "
            "the inputs, or package one model"
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
    """Run the benches of a package with cocotb's runner, and return the number of passed tests by folder.

    seed: seed of the stalls. test: a regular expression; only tests with a matching name are run.

    Raises ValueError if there is no bench, MissingToolError without the simulator, and DeviceError, with the
    output of the simulator, if the simulator rejects the Verilog or a test fails.
    """
    passed = {}
    for folder, manifest in packaged(Path(package).resolve()):
        place = folder / BENCH
        if not (place / f"{_MODULE}.py").is_file():
            raise ValueError(f"{place} has no bench; `streamgen cocotb` writes one")
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
        raise ValueError("a language model takes one input, an array of ids [tokens]")
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
    lines = ["# Runs the bench in kernel_bench.py with cocotb's makefiles.", "export SEED PATIENCE"]
    lines += [f"{name} ?= {value}" for name, value in settings.items()]
    return "\n".join([*lines, "include $(shell cocotb-config --makefiles)/Makefile.sim"]) + "\n"
