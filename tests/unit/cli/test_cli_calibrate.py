"""`streamgen compile --calibrate`: the weights of a float checkpoint are rounded for a text; errors are
messages."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamgen
from streamgen import cli
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import load_decoder
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Linear
from streamgen.numbers.quantisation import QuantisedWeight
from tests.unit.cli.test_cli_generate import checkpoint

pytestmark = pytest.mark.slow

Call = Callable[..., tuple[int, str, str]]
OPTIONS = ("--name=tiny", "--max-tokens=4", "--context=72", "--channels=2", "--n-lanes=2", "--lanes=2")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `streamgen compile` in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["compile", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_weights_are_rounded_for_the_text(call: Call, tmp_path: Path) -> None:
    """The codes differ from those without a text. A budget of bits gives some matmuls 8 bits."""
    place = checkpoint(tmp_path / "small")
    text = "".join(chr(ord("!") + i) for i in np.random.default_rng(0).integers(0, 64, 300))
    Path("text.txt").write_text(text)
    plain = _weights(load_decoder(place).quantised(CompileConfig().numbers(True)))
    kept: dict[str, dict[str, QuantisedWeight]] = {}
    for name, more in (
        ("calibrated", ("--calibrate-folder=work",)),
        ("mixed", ("--calibrate-tokens=100", "--bits=5.5")),
    ):
        code, out, err = call(place, "-o", name, "--calibrate=text.txt", *more, *OPTIONS)
        assert (code, err) == (0, "") and out.startswith("written to ")
        kept[name] = _weights(streamgen.load(name)._quantised)
    assert len(list(Path("work").glob("*.npz"))) == len(plain) - 1  # the head has 8 bits
    same = {path for path, weight in kept["calibrated"].items() if (weight.codes == plain[path].codes).all()}
    assert same == {"logits"}
    formats = {path.split(".")[-1]: weight.format for path, weight in kept["mixed"].items()}
    assert set(formats.values()) == {"w4", "w8"} and formats["logits"] == "w8"


def _weights(graph: LogicalGraph) -> dict[str, QuantisedWeight]:
    return {path: o.op.integers.read() for path, o in graph.walk() if isinstance(o.op, Linear)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{small} -o x --bits=5", "--bits has no effect without --calibrate FILE"),
        ("{small} -o x --calibrate-folder=w", "--calibrate-folder has no effect without --calibrate"),
        ("{small} -o x --calibrate=empty.txt", "empty.txt has 0 tokens; calibration needs at least 2"),
        ("{small} -o x --calibrate=bytes.txt", "bytes.txt is not UTF-8: "),
        ("{small} -o x --calibrate=missing.txt", "File 'missing.txt' does not exist"),
        ("{small} -o x --calibrate=text.txt --bits=4", "a budget of 4 bits a weight is too small"),
        ("m:f -o x --calibrate=text.txt", "--calibrate needs a language model: a GGUF file, or a folder"),
    ],
)
def test_bad_calibration(call: Call, tmp_path: Path, arguments: str, message: str) -> None:
    place = checkpoint(tmp_path / "small")
    Path("empty.txt").write_text("")
    Path("text.txt").write_text("ABCDEF" * 20)
    Path("bytes.txt").write_bytes(b"\xff\xfe\x00")
    code, out, err = call(*arguments.format(small=place).split(), *OPTIONS)
    assert code in (1, 2) and out == "" and message in " ".join(err.split())
    assert not Path("x").exists()
