"""`streamgen embed`: rows of texts from the golden model and from a written folder, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import streamgen
from streamgen import cli
from streamgen.api.compiling import golden_encoder
from tests.shared.sentence_encoders import write_encoder

TEXTS = ("The sea is calm.", "wind")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"), layers=1)


def embed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit status and both outputs of a command line."""
    return (cli.main(["embed", *map(str, words)]), *capsys.readouterr())


def test_golden(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = golden_encoder(folder, streamgen.CompileConfig(max_tokens=7)).embed(TEXTS)
    file = tmp_path / "rows.npy"
    status, out, _ = embed(capsys, folder, *TEXTS, "--on", "golden", "-o", file)
    cosine = f"{wanted[0].astype(float) @ wanted[1]:.3f}"
    assert status == 0 and out.splitlines() == [
        "32 numbers for each text; cosines of the rows:",
        f" 1.000 {cosine:>6}  {TEXTS[0]}",
        f"{cosine:>6}  1.000  {TEXTS[1]}",
        f"rows -> {file}",
    ]
    assert np.array_equal(np.load(file), wanted)
    status, out, _ = embed(capsys, folder, *TEXTS, "--on", "golden", "--json")
    assert json.loads(out) == {"texts": [*TEXTS], "rows": wanted.tolist(), "on": "golden"}


def test_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Missing argument 'TEXT...'" in embed(capsys, folder)[2]
    assert "is no encoder of sentences: a folder that" in embed(capsys, tmp_path, "a", "--on", "golden")[2]
    assert "--on card and --xclbin FILE" in embed(capsys, folder, "a", "--on", "card")[2]
    status, _, told = embed(capsys, folder, TEXTS[0], "--on", "golden", "--max-tokens", 3)
    assert status == 2 and "text 0 has 7 tokens; the most is 3; --max-tokens allows up to 20" in told


@pytest.mark.slow
def test_written_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = streamgen.CompileConfig(max_tokens=7, goal="small")
    model = streamgen.compile(folder, config=config)
    wanted = golden_encoder(folder, config).embed(TEXTS)
    written = model.write(tmp_path / "written")
    status, out, _ = embed(capsys, written, *TEXTS, "--json")
    assert status == 0 and json.loads(out)["rows"] == wanted.tolist()
    assert "--max-tokens cannot change it" in embed(capsys, written, "a", "--max-tokens", 3)[2]
