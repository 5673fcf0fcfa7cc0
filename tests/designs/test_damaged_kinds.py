"""Damaged files of every kind that streamgen reads: they are read, or one error says why not, soon."""

import random
import resource
import shutil
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

import streamgen
from streamgen.artifact.manifest import Buffer, Manifest
from streamgen.base.errors import StreamgenError
from streamgen.base.files import read_array
from streamgen.compiler.config import CompileConfig
from streamgen.model.calibration import calibrated
from streamgen.model.frontend import load_decoder
from streamgen.numbers.quantisation import Numbers
from streamgen.package import package
from streamgen.package.emulation.binary import emulation_xclbin
from streamgen.package.folder import packaged, steps_of
from streamgen.runtime.card import Card
from streamgen.runtime.xclbin import require_design
from streamgen.text.tokenizer_files import load_tokenizer
from tests.shared.accelerators import tiny
from tests.shared.campaigns import sampled
from tests.shared.damage import damaged
from tests.shared.decoders import random_decoder, tiny_accelerator
from tests.unit.model.frontend.checkpoints import llama
from tests.unit.model.frontend.families import family
from tests.unit.model.frontend.test_load_gguf import gguf_file
from tests.unit.model.frontend.test_packed_weights import written_packed
from tests.unit.text.vocabularies import family as vocabulary

pytestmark = pytest.mark.slow

SECONDS, BYTES = 2.0, 500 << 20
DAMAGES, CASES, QUICK = 50, 16, 1  # damages of a case; cases of each kind, and those of `make check`
TEXT = np.arange(6, dtype=np.uint32)
NUMBERS = Numbers(by_layer={"logits": "w8"})


@dataclass(frozen=True)
class Kind:
    """How files come to be in a folder, and how they are read."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _language_model(folder: Path) -> None:
    found = streamgen.load(folder, changed_files=True)
    found.golden(TEXT % 8)
    tokenizer = found.tokenizer  # type: ignore[attr-defined]
    if tokenizer is not None:
        tokenizer.encode("FOWB94")


def _groups(folder: Path) -> None:
    found = streamgen.load(folder, changed_files=True)
    found.golden(np.zeros((2, 64), np.float32))
    found.report()


def _two_groups(folder: Path) -> None:
    torch.manual_seed(0)
    two = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    config = CompileConfig(max_tokens=2, multipliers=64, channels=1, converter_bits=12000)
    made = streamgen.compile(two, torch.zeros(2, 64), config)
    assert len(made.groups) > 1
    made.write(folder)


def _module(folder: Path) -> None:
    found = streamgen.load(folder, changed_files=True)
    found.golden(np.zeros((2, 40), np.float32))
    found.report()


def _packaged(folder: Path) -> None:
    tiny().write(folder / "written")
    package(folder / "written", folder / "card")
    shutil.rmtree(folder / "written")


@cache
def _decoder() -> Any:
    sizes = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "layers": 1}
    return random_decoder(**sizes)


def _calibrated(folder: Path) -> object:
    return calibrated(_decoder(), [{"ids": np.arange(8)}], NUMBERS, folder)


def _gguf(folder: Path) -> None:
    kinds = {"attn": GGMLQuantizationType.Q4_1, "ffn": GGMLQuantizationType.Q8_0}
    gguf_file(folder / "model.gguf", llama(), kinds)


def _safetensors(folder: Path) -> None:
    llama().save_pretrained(folder)


def _arrays(folder: Path) -> None:
    np.save(folder / "x.npy", np.ones((2, 40), np.float32))


def _emulated(manifest: Manifest) -> bytes:
    return emulation_xclbin(Card.alone(manifest), [manifest], [b"library"])


X = Buffer(name="x", role="input", channel=0, bytes=4096)

KINDS = {
    "module": Kind(lambda folder: tiny().write(folder), _module),
    "language model": Kind(lambda folder: tiny_accelerator().write(folder), _language_model),
    "groups": Kind(_two_groups, _groups),
    "package": Kind(_packaged, lambda folder: (packaged(folder / "card"), steps_of(folder / "card"))),
    "xclbin": Kind(
        lambda folder: (folder / "a.xclbin").write_bytes(
            emulation_xclbin(Card.alone(tiny().manifest), [tiny().manifest], [b"library"])
        ),
        lambda folder: require_design(folder / "a.xclbin", tiny().manifest),
    ),
    "calibration": Kind(_calibrated, _calibrated),
    "gguf": Kind(_gguf, lambda folder: load_decoder(folder / "model.gguf", 32)),
    "gguf tokenizer": Kind(
        lambda folder: vocabulary("gpt-2").gguf(folder / "a.gguf"),
        lambda folder: load_tokenizer(folder / "a.gguf").encode("Hello, world"),
    ),
    "tokenizer": Kind(
        lambda folder: vocabulary("llama-3").folder(folder / "tokenizer"),
        lambda folder: load_tokenizer(folder / "tokenizer").encode("Hello, world"),
    ),
    "safetensors": Kind(_safetensors, lambda folder: load_decoder(folder, 32)),
    "safetensors of transformers": Kind(
        lambda folder: family("Qwen3").save_pretrained(folder), lambda folder: load_decoder(folder, 32)
    ),
    "packed weights": Kind(
        lambda folder: written_packed(folder, "gptq"), lambda folder: load_decoder(folder, 32)
    ),
    "arrays": Kind(_arrays, lambda folder: read_array(folder / "x.npy")),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder of each kind, written when it is first asked for."""
    place = tmp_path_factory.mktemp("originals")

    def written(name: str) -> Path:
        folder = place / name.replace(" ", "_")
        if not folder.exists():
            folder.mkdir()
            KINDS[name].write(folder)
        return folder

    return written


@pytest.mark.parametrize(("name", "case"), sampled(
    [(name, case) for name in KINDS for case in range(CASES)],
    [(name, case) for name in KINDS for case in range(QUICK)],
))  # fmt: skip
def test_damage(name: str, case: int, seed: int, originals: Callable[[str], Path], tmp_path: Path) -> None:
    folder, kind = Path(shutil.copytree(originals(name), tmp_path / "damaged")), KINDS[name]
    draw = random.Random(f"{seed} {name} {case}")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kind.read(folder)  # undamaged; what is imported once is imported now
    begun = time.process_time()
    kind.read(folder)
    limit = max(SECONDS, 10 * (time.process_time() - begun))  # also where the machine is slow
    wrong = []
    for number in range(DAMAGES):
        path = draw.choice(files)
        content = path.read_bytes()
        path.write_bytes(changed := damaged(path.name, content, draw))
        if (said := _tried(kind, folder, limit)) is not None:
            kept = tmp_path / f"{number}_{path.name}"
            kept.write_bytes(changed)
            wrong.append(f"{said}; kept in {kept}")
        for more in set(folder.rglob("*")) - set(files):
            if more.is_file():
                more.unlink()
        path.write_bytes(content)
    assert not wrong, "\n".join(wrong)


def _tried(kind: Kind, folder: Path, limit: float) -> str | None:
    """What is wrong with how a folder is read, if anything."""
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(folder)
    except (StreamgenError, ValueError) as error:
        if not str(error):
            return f"{type(error).__name__} says nothing"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it should not be
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{error!r} in {frame.filename}:{frame.lineno}"
    taken = time.process_time() - begun
    if taken > limit:
        return f"{taken:.1f} s"
    if (used := (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10) > BYTES:
        return f"{used >> 20} MB"
    return None
