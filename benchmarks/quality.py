"""Perplexity and next-token agreement of the golden decoder against float32, on English prose.

    python benchmarks/quality.py [--tokens 8192] [--window 512] [--scale-bits 8] [--p-bits 12] [CHECKPOINT]

The prose is news of the Australian Broadcasting Corporation: the Lee background corpus, as the PyPI package
gensim ships it among its test data. Windows of so many tokens follow one another; each is a text of its own,
and every token of it but the first is predicted. The float32 model has the same file's weights, dequantised,
and torch's float32 arithmetic. Windows are shared out among processes.
"""

import argparse
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
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch.nn import functional

from streamgen.errors import MissingToolError
from streamgen.frontend import default_checkpoint, load_decoder
from streamgen.golden_decoder import GoldenDecoder
from streamgen.graph.decoder import Attention, Decoder, Norm, Rotary
from streamgen.graph.ops import Linear
from streamgen.graph.quantised_decoder import DecoderNumbers, quantise_decoder
from streamgen.tokenizer_files import load_tokenizer

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


class Reference:
    """A decoder in torch's float32."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """float32 [tokens, vocabulary] of a whole text."""
        x = torch.from_numpy(self._decoder.embedding)[torch.from_numpy(ids)]
        for layer in self._decoder.layers:
            x = x + self._attention(layer.attention, _norm(layer.attention_norm, x))
            block, n = layer.feed_forward, _norm(layer.feed_forward_norm, x)
            if block.function != "silu":
                raise ValueError(f"the reference knows silu, not {block.function}")
            x = x + _linear(block.down, functional.silu(_linear(block.gate, n)) * _linear(block.up, n))
        return _linear(self._decoder.head, _norm(self._decoder.norm, x)).numpy()

    @staticmethod
    def _attention(a: Attention, n: torch.Tensor) -> torch.Tensor:
        T = len(n)
        q, k, v = (
            _linear(part, n).reshape(T, heads, a.head_dim).transpose(0, 1)
            for part, heads in ((a.q, a.heads), (a.k, a.kv_heads), (a.v, a.kv_heads))
        )
        if a.rotary is not None:
            q, k = _rotate(a.rotary, q), _rotate(a.rotary, k)
        k, v = (part.repeat_interleave(a.heads // a.kv_heads, dim=0) for part in (k, v))
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=a.scale)
        return _linear(a.o, o.transpose(0, 1).reshape(T, -1))


def _linear(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else torch.from_numpy(linear.bias)
    return functional.linear(x, torch.from_numpy(linear.weight), bias)


def _norm(norm: Norm, x: torch.Tensor) -> torch.Tensor:
    if norm.kind != "rms" or norm.bias is not None or norm.plus_one:
        raise ValueError("the reference knows plain RMSNorm only")
    return functional.rms_norm(x, x.shape[-1:], torch.from_numpy(norm.weight), norm.epsilon)


def _rotate(rotary: Rotary, x: torch.Tensor) -> torch.Tensor:
    """Heads [heads, T, d], all of whose dimensions rotate."""
    angles = torch.from_numpy(np.outer(np.arange(x.shape[1]), rotary.frequencies))
    c, s = angles.cos().float(), angles.sin().float()
    if rotary.interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * c - b * s, b * c + a * s], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def score(reference: Reference, golden: GoldenDecoder, ids: np.ndarray) -> Score:
    """Of one window."""
    with torch.inference_mode():
        expected = reference.logits(ids)[:-1]
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


def measure(decoder: Decoder, numbers: DecoderNumbers, windows: list[np.ndarray], console: Console) -> Score:
    """All windows, on WORKERS processes that share the weights made here."""
    global _models
    _models = Reference(decoder), GoldenDecoder(quantise_decoder(decoder, numbers))
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


_models: tuple[Reference, GoldenDecoder] | None = None  # inherited by the processes


def _score(ids: np.ndarray) -> Score:
    assert _models is not None
    torch.set_num_threads(1)
    return score(*_models, ids)


def windows_of(ids: np.ndarray, tokens: int, window: int) -> list[np.ndarray]:
    """The first tokens of a text in windows; ValueError when it is too short or a window is."""
    if not 2 <= window <= tokens <= len(ids):
        raise ValueError(f"2 <= window = {window} <= tokens = {tokens} <= {len(ids)} does not hold")
    return [ids[first : first + window] for first in range(0, tokens - window + 1, window)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoint", type=Path, nargs="?", help="a GGUF file; SmolLM2 by default")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--weights", default="w4")
    parser.add_argument("--scale-bits", type=int, default=8)
    parser.add_argument("--p-bits", type=int, default=12)
    options = parser.parse_args()
    console = Console()
    path = options.checkpoint or default_checkpoint()
    numbers = DecoderNumbers(weights=options.weights, scale_bits=options.scale_bits, p_bits=options.p_bits)
    ids = np.array(load_tokenizer(path).encode(prose()))
    windows = windows_of(ids, options.tokens, options.window)
    start = time.perf_counter()
    total = measure(load_decoder(path), numbers, windows, console)
    elapsed = time.perf_counter() - start
    tokens = sum(map(len, windows))
    table = Table("figure", "value", title=f"{path.name}, {numbers}")
    for name, value in (
        (
            "text",
            f"{tokens} tokens of {PROSE_PACKAGE}'s {Path(PROSE_FILE).name}, windows of {options.window}",
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
