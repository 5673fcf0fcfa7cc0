"""Quality of SmolLM2 and Gemma 3 on English prose, and the benchmark that measures it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import quality
from streamgen.base.errors import MissingToolError
from streamgen.model.frontend import default_checkpoint
from streamgen.model.golden_text import GoldenModel
from streamgen.model.graph.interpret import reference
from streamgen.numbers.quantisation import Numbers
from streamgen.text.windows import windows_of
from tests.shared.decoders import assembled, logits_of, random_parts


def test_windows_and_scores() -> None:
    windows = windows_of(np.arange(100), 70, 32)
    assert [list(window[[0, -1]]) for window in windows] == [[0, 31], [32, 63]]
    with pytest.raises(ValueError) as error:
        windows_of(np.arange(100), 120, 32)
    assert str(error.value) == "2 <= window = 32 <= tokens = 120 <= 100 does not hold"
    parts = random_parts()
    decoder = assembled(parts)
    ids = np.random.default_rng(2).integers(0, 70, 30)
    score = quality.score(reference(decoder, np.float32), GoldenModel(decoder.quantised(Numbers())), ids)
    logits = logits_of(parts, ids)[:-1]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert score.predicted == 29
    assert score.reference_perplexity == pytest.approx(
        np.exp(-np.log(p[np.arange(29), ids[1:]]).mean()), rel=1e-5
    )
    twice = score + score
    assert (twice.change, twice.agreement) == (score.change, score.agreement)


def test_prose_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bushfire" in quality.prose()
    monkeypatch.setattr(quality, "PROSE_PACKAGE", "no_such_package")
    with pytest.raises(MissingToolError) as error:
        quality.prose()
    assert str(error.value) == "the prose is not installed: pip install no_such_package"


@pytest.mark.slow
def test_smollm2_keeps_its_quality() -> None:
    """1,024 tokens: their perplexity was found to rise by 1.4 % and 93.4 % of next tokens to agree.

    The bounds leave room for another processor's float32, nothing else: golden is the same everywhere.
    """
    change, agreement = _found(default_checkpoint(), 1024)
    assert abs(change) < 1.8
    assert agreement > 92.5


@pytest.mark.campaign
@pytest.mark.slow
def test_gemma_keeps_its_quality() -> None:
    """512 tokens: their perplexity was found to rise by 1.2 % and 94.3 % of next tokens to agree."""
    change, agreement = _found(quality.gemma(), 512)
    assert abs(change) < 1.5
    assert agreement >= 93.0


def _found(checkpoint: Path, tokens: int) -> tuple[float, float]:
    """What the benchmark prints of a checkpoint: change of perplexity and agreement, percent."""
    script = Path(quality.__file__)
    command = [sys.executable, str(script), str(checkpoint), "--tokens", str(tokens)]
    environment = os.environ | {"PYTHONPATH": str(script.parent.parent), "COLUMNS": "120"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    change = re.search(r"perplexity, golden .* \(([+-][0-9.]+)%\)", done.stdout)
    agreement = re.search(r"agreement on the next token *│ *([0-9.]+)%", done.stdout)
    assert change and agreement, done.stdout
    return float(change[1]), float(agreement[1])
