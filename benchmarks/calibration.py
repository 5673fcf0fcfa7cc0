"""What calibration saves of the quality that 4 bits cost weights without a grid of their own.

    python benchmarks/calibration.py [--calibration 8192] [--tokens 8192] [--window 512] [--work DIR]
        [FILE | --gemma]

The model is the checkpoint's in other coordinates, which changes nothing in exact arithmetic, but leaves no
weight on the grid that it came on. A model of Llama's form is turned: a random rotation of the residual
stream, with the norms' weights moved into the matmuls behind them. Where norms follow matmuls, as in Gemma,
there is no such rotation: each feature that a matmul reads gets a random factor, taken from what makes it (a
norm's weight, the values that attention mixes, the factor of a gated product). Texts of calibration are those
behind the ones that are measured, of the prose of `quality.py`.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import quality
from streamgen.base.progress import terminal_progress
from streamgen.model.calibration import calibrated
from streamgen.model.frontend import default_checkpoint, load_decoder
from streamgen.model.graph.logical import LogicalGraph, Operation, Operator, Repeat
from streamgen.model.operations import Embedding, Linear, Norm
from streamgen.model.operations.balance import balanced
from streamgen.numbers.quantisation import Numbers
from streamgen.text.tokenizer_files import load_tokenizer
from streamgen.text.windows import windows_of

READERS = ("q", "k", "v", "gate", "up")
WRITERS = ("o", "down")


def turned(model: LogicalGraph, seed: int = 0) -> LogicalGraph:
    """A model of Llama's form that computes the same in other coordinates, its weights floats."""
    hidden = model.features("embedding")
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(hidden, hidden)))

    def of_layer(layer: LogicalGraph) -> LogicalGraph:
        norms = {"q": "attention_norm", "k": "attention_norm", "v": "attention_norm"}
        norms |= {"gate": "feed_forward_norm", "up": "feed_forward_norm"}

        def change(name: str, operation: Operation) -> Operator:
            op = operation.op
            if isinstance(op, Norm):
                return replace(op, weight=np.ones_like(op.weight))
            if isinstance(op, Linear) and name in READERS:
                return Linear(_float(op.floats * layer.op(norms[name]).weight @ rotation), op.bias)
            if isinstance(op, Linear) and name in WRITERS:
                return Linear(_float(rotation.T @ op.floats), op.bias)
            return op

        return layer.map(change)

    def change(operation: Operation) -> Operator:
        op = operation.op
        if isinstance(op, Repeat):
            return Repeat(tuple(of_layer(layer) for layer in op.layers))
        if isinstance(op, Embedding):
            return Embedding(_float(op.floats(np.arange(op.extents[0])) @ rotation))
        if isinstance(op, Norm):
            return replace(op, weight=np.ones_like(op.weight))
        if isinstance(op, Linear):
            return Linear(_float(op.floats * model.op("norm").weight @ rotation), op.bias)
        return op

    return replace(model, operations=tuple(replace(o, op=change(o)) for o in model.operations))


def stretched(model: LogicalGraph, seed: int = 0) -> LogicalGraph:
    """A gated model with any norms that computes the same, its weights floats: features have other scales."""
    rng = np.random.default_rng(seed)

    def factors(count: int) -> np.ndarray:
        return np.exp2(rng.uniform(-0.5, 0.5, count))

    def of_layer(layer: LogicalGraph) -> LogicalGraph:
        """v and o, up and down share factors, and matmuls behind a norm."""
        linears = {name: o.op for name, o in layer.by_name.items() if isinstance(o.op, Linear)}
        attention = layer.op("attention")
        mixed, gated = factors(linears["v"].extents[0]), factors(linears["down"].extents[1])
        shared = attention.heads // attention.kv_heads
        heads = np.repeat(mixed.reshape(attention.kv_heads, -1), shared, axis=0).reshape(-1)
        rows, columns = {"v": mixed, "up": gated}, {"o": heads, "down": gated}
        norms = {o.name: factors(len(o.op.weight)) for o in layer.operations if _is_read(layer, o)}
        for name in linears:
            (source,) = layer.by_name[name].inputs
            columns |= {name: norms[source]} if source in norms else {}

        def change(name: str, operation: Operation) -> Operator:
            op = operation.op
            if isinstance(op, Linear):
                row = rows.get(name, np.ones(op.extents[0]))
                bias = None if op.bias is None else _float(op.bias * row)
                return Linear(_float(op.floats * row[:, None] / columns.get(name, 1.0)), bias)
            if name in norms:
                assert isinstance(op, Norm)
                return replace(op, weight=_float(op.weight * norms[name]))
            return op

        return layer.map(change)

    def change(operation: Operation) -> Operator:
        op = operation.op
        if isinstance(op, Repeat):
            return Repeat(tuple(of_layer(layer) for layer in op.layers))
        return Linear(op.floats, op.bias) if isinstance(op, Linear) else op

    return replace(model, operations=tuple(replace(o, op=change(o)) for o in model.operations))


def _is_read(layer: LogicalGraph, operation: Operation) -> bool:
    """Whether it is a norm, without a bias, of which matmuls alone are made."""
    op, (value, *_) = operation.op, operation.values
    readers = [o.op for o in layer.operations if value in o.inputs]
    plain = isinstance(op, Norm) and op.heads == 1 and op.bias is None and not op.plus_one
    return plain and value not in layer.outputs and all(isinstance(one, Linear) for one in readers)


def _is_llama(model: LogicalGraph) -> bool:
    """Whether the residual stream can be turned: its norms stand before matmuls only."""
    layer = model.by_name["layers"].op.layers[0]  # type: ignore[attr-defined]
    return all(_is_read(layer, o) for o in layer.operations if isinstance(o.op, Norm))


def _float(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    of = parser.add_mutually_exclusive_group()
    of.add_argument("checkpoint", type=Path, nargs="?", help="a GGUF file; SmolLM2 by default")
    of.add_argument("--gemma", action="store_true", help="Gemma 3 270M (make .venv/.gemma)")
    parser.add_argument("--calibration", type=int, default=8192, help="tokens")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--work", type=Path, help="where matmuls that are done are kept")
    options = parser.parse_args()
    path = quality.gemma() if options.gemma else options.checkpoint or default_checkpoint()
    console, numbers = Console(), Numbers(by_layer={"logits": "w8"})
    ids = np.array(load_tokenizer(path).encode(quality.prose()))
    windows = windows_of(ids, options.tokens, options.window)
    behind = windows_of(ids[options.tokens :], options.calibration, options.window)
    loaded = load_decoder(path, options.window)
    model = balanced(turned(loaded) if _is_llama(loaded) else stretched(loaded))
    small = calibrated(
        model, [{"ids": window} for window in behind], numbers, options.work, terminal_progress()
    )
    table = Table("weights", "perplexity", "change", "agreement", title=f"{path.name}, in other coordinates")
    for name, graph, own in (
        ("w8", model, Numbers(weights="w8")),
        ("w4, rounded", model, numbers),
        ("w4, calibrated", small, numbers),
    ):
        found = quality.measure(model, graph.quantised(own), windows, console)
        if name == "w8":
            table.add_row("float32", f"{found.reference_perplexity:.3f}", "", "")
        table.add_row(
            name, f"{found.golden_perplexity:.3f}", f"{found.change:+.2%}", f"{found.agreement:.1%}"
        )
    console.print(table)


if __name__ == "__main__":
    main()
