"""`streamgen generate` on the tiny decoder, and what its golden model writes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli
from streamgen.text.sampling import Sampler
from tests.shared.decoders import WORDS, tiny_accelerator

__all__ = ["CHOICE", "CHOSEN", "PROMPT", "Call", "caller", "golden_text"]

PROMPT = "FOWB94"  # as many tokens: two passes
CHOICE: dict[str, Any] = {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "seed": 7}
CHOSEN = ["--temperature=2.0", "--top-k=30", "--top-p=0.9", "--seed=7"]

Call = Callable[..., tuple[int, str, str]]

_FORECAST = re.compile(r"about [\d,]+ cycles to simulate; the duration is known after .*\n")


def caller(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs `streamgen generate` in a folder, without standard input, on a machine that has not simulated yet:
    exit code, output, errors but for how long a simulation will take."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("streamgen.cli.texts.remembered", lambda name: None)
    monkeypatch.setattr("streamgen.cli.texts.remember", lambda name, value: None)

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["generate", *(str(argument) for argument in arguments)])
        out, err = capsys.readouterr()
        return code, out, _FORECAST.sub("", err)

    return run


def golden_text(count: int, **choice: Any) -> str:
    """What the golden model writes behind PROMPT."""
    sampler = Sampler(**choice) if choice else None
    return WORDS.decode(tiny_accelerator().golden.generate(WORDS.encode(PROMPT), count, sampler=sampler))
