"""Models of one's own on the command line: modules in files, ids, tokenizers, checkpoints."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

from streamgen import cli
from tests.shared.own_models import built, style

VOCABULARY = style("gpt_in_one_file").VOCABULARY
SOURCE = """
import torch
from tests.shared.own_models import built
model = built("gpt_in_one_file")

def build():
    return built("gpt_in_one_file").train()

def path():
    return "somewhere"

def layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
"""

NESTED = """
import torch
from torch import nn

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors, self.offsets = nn.Embedding(4, 8), nn.Embedding(6, 8)

    def forward(self, kinds, x):
        return x * self.factors(kinds[:, 0]) + self.offsets(kinds[:, 1])

class Nested(Rows):
    def forward(self, given):
        return [{"y": super().forward(given["kinds"], given["x"])}]

flat = Rows()

def nested():
    return Nested(), ({"kinds": torch.zeros(2, 2, dtype=torch.int64), "x": torch.ones(2, 8)},)
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "my_gpt.py").write_text(SOURCE)
    return f"{tmp_path}/my_gpt.py"


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    said = capsys.readouterr()
    return status, said.out, said.err


def test_estimate(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model", "build"):
        status, out, _ = _run(capsys, "estimate", f"{source}:{name}")
        assert status == 0 and "tokens/s" in out


def test_ids_and_characters(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The golden model writes the same ids with a tokenizer and without one, and from a checkpoint."""
    golden = ["--on", "golden", "--max-new-tokens", "3", "--weights", "w8", "--quiet"]
    status, ids, _ = _run(capsys, "generate", f"{source}:model", *golden, "-p", "1 5 7")
    assert status == 0 and len(ids.split()) == 3
    table = [chr(ord("A") + index) for index in range(VOCABULARY)]
    (tmp_path / "table.json").write_text(json.dumps(table))
    torch.save(built("gpt_in_one_file").state_dict(), tmp_path / "trained.pt")
    files = ["--tokenizer", f"{tmp_path}/table.json", "--checkpoint", f"{tmp_path}/trained.pt"]
    prompt = "".join(table[index] for index in (1, 5, 7))
    status, text, _ = _run(capsys, "generate", f"{source}:build", *golden, *files, "-p", prompt)
    assert status == 0 and text.rstrip("\n") == "".join(table[int(index)] for index in ids.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate", "{source}:model", "--on", "golden", "-p", "a text"],
            "the prompt must be ids with spaces",
        ),
        (["generate", "{source}:model", "--on", "golden", "-p", "1 61"], "the prompt must be ids below 61"),
        (["compile", "{source}:layers", "-o", "{folder}/out"], "example_inputs are missing"),
        (["compile", "{source}:layers", "-o", "{folder}/out", "--example-shape", "2,x"], "1,28,28"),
        (["compile", "{source}:layers", "-o", "{folder}/out", "--example-shape", "2,8:id"], "1,16:ids"),
        (["compile", "{source}:other", "-o", "{folder}/out"], "has no function or module 'other'"),
        (["compile", "{folder}/fails.py:model", "-o", "{folder}/out"], "ValueError: not today (line 2)"),
        (
            ["compile", "{source}:model", "-o", "{folder}/out", "--checkpoint", "{folder}/other.pt"],
            "the file lacks lm_head.weight",
        ),
        (
            ["compile", "{source}:path", "-o", "{folder}/out", "--checkpoint", "{folder}/other.pt"],
            "--checkpoint needs a torch module; ",
        ),
        (
            ["compile", "{folder}/config.json", "-o", "{folder}/out", "--checkpoint", "{folder}/other.pt"],
            "--checkpoint has no effect without a Python SOURCE",
        ),
    ],
)
def test_refused(
    arguments: list[str], message: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails.py").write_text("import torch\nraise ValueError('not today')\n")
    (tmp_path / "config.json").write_text("{}")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    status, _, err = _run(capsys, *(a.format(source=source, folder=tmp_path) for a in arguments))
    assert status in (1, 2)
    assert message in " ".join(err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_compile_and_generate(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A written design has no tokenizer, so its prompt is ids; the RTL writes the golden model's text."""
    folder = str(tmp_path / "out")
    assert _run(capsys, "compile", f"{source}:model", "-o", folder, "--max-tokens", "4")[0] == 0
    status, out, _ = _run(capsys, "generate", folder, "-p", "1 5 7", "--max-new-tokens", "3", "--compare")
    assert status == 0 and "3 tokens equal the golden model's" in out
    layers = str(tmp_path / "layers")
    shape = ["--example-shape", "3,8"]
    assert _run(capsys, "compile", f"{source}:layers", "-o", layers, *shape)[0] == 0
    status, _, err = _run(capsys, "report", folder, "--tokenizer", str(tmp_path))
    assert status == 2 and "--tokenizer has no effect with a written folder" in err


def test_pieces(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tokenizer of SentencePiece gives the ids of a prompt and the text of those that follow."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*"abcdefghijklmnopqrstuvwxyz"]),
        model_writer=written,
        model_type="char",
        vocab_size=30,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(written.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    golden = ["--on", "golden", "--max-new-tokens", "3", "--weights", "w8", "--quiet"]
    prompt = " ".join(map(str, theirs.encode("hi you")))
    status, ids, _ = _run(capsys, "generate", f"{source}:model", *golden, "-p", prompt)
    assert status == 0
    files = ["--tokenizer", f"{tmp_path}/tokenizer.model"]
    status, text, _ = _run(capsys, "generate", f"{source}:model", *golden, *files, "-p", "hi you")
    pieces = [
        theirs.id_to_piece(index).replace("\u2581", " ") for index in map(int, ids.split()) if index < 30
    ]
    assert status == 0 and text.rstrip("\n") == "".join(pieces)


@pytest.mark.slow
def test_arguments_in_nests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module whose arguments are in a dict takes an array for each, and random ones."""
    (tmp_path / "nested.py").write_text(NESTED)
    folder, shapes = str(tmp_path / "out"), ["--example-shape", "2,2:ids", "--example-shape", "2,8"]
    status, _, err = _run(capsys, "compile", f"{tmp_path}/nested.py:flat", "-o", folder, *shapes)
    assert status == 0, err
    status, out, err = _run(capsys, "simulate", folder, "--tokens", "3")
    assert status == 0, err
    assert "input kinds [3, 2] int64" in out and "equal the golden model's" in out
    folder = str(tmp_path / "nested")
    assert _run(capsys, "compile", f"{tmp_path}/nested.py:nested", "-o", folder)[0] == 0
    np.save(tmp_path / "kinds.npy", [[3, 0], [2, 5]])
    np.save(tmp_path / "x.npy", np.ones((2, 8)))
    given = ["-i", f"{tmp_path}/kinds.npy", "-i", f"{tmp_path}/x.npy", "-o", f"{tmp_path}/y.npy"]
    status, out, err = _run(capsys, "simulate", folder, *given)
    assert status == 0, err
    assert "equal the golden model's" in out
    assert np.load(tmp_path / "y.npy").shape == (2, 8)
    np.save(tmp_path / "kinds.npy", [[3, 0], [4, 5]])
    status, _, err = _run(capsys, "simulate", folder, *given)
    assert status == 2 and "'given_kinds' holds 4 in column 0; ids are 0 to 3 there" in err
    status, _, err = _run(capsys, "simulate", folder, *given[:2])
    assert status == 2 and "once for each of given_kinds, given_x; it is given 1 time" in " ".join(
        err.split()
    )
