"""Predicted cycles beside simulated ones: an MLP, an encoder layer under each policy, a small language model.

    python benchmarks/predict.py

Simulators are built if they are new; a prediction runs nothing.
"""

import runpy
import time
from pathlib import Path

import numpy as np
import torch

import streamgen
from streamgen.artifact.roles import BEST, KEEP
from tests.shared.decoders import tiny_accelerator

MLP = Path(__file__).parent.parent / "examples" / "mlp.py"


def main() -> None:
    """Print every figure."""
    print(f"{'run':44} {'predicted':>9} {'simulated':>9} {'ratio':>6} {'seconds':>8}")
    module, inputs = runpy.run_path(str(MLP))["mlp"]()
    config = streamgen.CompileConfig(max_tokens=8, multipliers=64)
    network = streamgen.compile(module, (inputs,), config=config)
    for tokens in (1, 8, 20):
        network.run(np.random.default_rng(tokens).normal(size=(tokens, 32)).astype(np.float32))
        cycles = network.report().cycles
        assert cycles is not None
        show(f"examples/mlp.py, {tokens} tokens", lambda n=tokens: network.predict(n), cycles)
    for policy in ("shared", "spatial", "mixed"):
        show_layer(policy)
    model = tiny_accelerator()
    session = model.session()
    for _ in session.generate(np.arange(1, 8), 3):
        pass
    session.last_logits([5])
    for one in model.device().passes:
        what = {BEST: "its id", KEEP: "nothing"}.get(one.variant, "logits")
        name = f"language model, {one.tokens} tokens from {one.position}, {what}"
        show(name, lambda p=one: model.predict(p.tokens, p.position, p.variant), one.cycles)


def show_layer(policy: str) -> None:
    """`nn.TransformerEncoderLayer`; mixed: its first feed-forward matmul has two columns of its own."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    config = streamgen.CompileConfig(
        policy=policy,  # type: ignore[arg-type]
        fixed={"linear1": {"columns": 2}} if policy == "mixed" else {},
        **{"max_tokens": 8, "multipliers": 512, "channels": 4},
    )
    accelerator = streamgen.compile(layer, (torch.zeros(1, 8, 64),), config)
    for tokens in (1, 8):
        accelerator.run(np.random.default_rng(tokens).normal(size=(1, tokens, 64)).astype(np.float32))
        cycles = accelerator.report().cycles
        assert cycles is not None
        show(f"encoder layer, {policy}, {tokens} tokens", lambda n=tokens: accelerator.predict(n), cycles)
    accelerator.close()


def show(name: str, predict, cycles: int) -> None:  # type: ignore[no-untyped-def]
    """A line; the seconds are those of the prediction."""
    start = time.perf_counter()
    predicted = predict()
    seconds = time.perf_counter() - start
    print(f"{name:44} {predicted:9,} {cycles:9,} {predicted / cycles:6.3f} {seconds:8.2f}")


if __name__ == "__main__":
    main()
