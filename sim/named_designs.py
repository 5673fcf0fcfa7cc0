"""Digests of the files that named designs emit: two states of the project that emit the same print the same.

    python -m sim.named_designs [NAME ...] > before.txt

A change that only moves code prints the same lines before and after. Weights are random but those of SmolLM2.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import GELU, LayerNorm, Linear, ReLU, Sequential, SiLU

import streamgen
from streamgen.model.frontend import default_checkpoint

__all__ = ["DESIGNS", "digests"]


def _module() -> Any:
    config = streamgen.CompileConfig(name="dut", max_tokens=3, multipliers=128, channels=2)
    module = Sequential(Linear(40, 24), SiLU(), LayerNorm(24), Linear(24, 40))
    return streamgen.compile(module, torch.zeros(2, 40), config)


def _mlp() -> Any:
    config = streamgen.CompileConfig(name="mlp", max_tokens=48, multipliers=96, converter_bits=150_000)
    module = Sequential(Linear(40, 48), ReLU(), Linear(48, 40), GELU(), Linear(40, 24))
    return streamgen.compile(module, torch.zeros(2, 40), config)


def _decoder(kind: str, **choices: Any) -> Any:
    """A tiny decoder of this model_type."""
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, sliding_window=16,
    )  # fmt: skip
    wish = {"name": "decoder", "max_tokens": 4, "context": 64, "channels": 2, "lanes": 2}
    return streamgen.compile(
        transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval(),
        config=streamgen.CompileConfig(**{**wish, **choices}),
    )


def _gpt2_medium(layers: int) -> Any:
    config = transformers.GPT2Config(n_layer=layers, n_embd=1024, n_inner=4096, n_head=16, n_positions=1024)
    wish = streamgen.CompileConfig(
        name="gpt2",
        goal="small",
        channels=32,
        multipliers=8192,
        max_tokens=16,
        context=1024,
        lanes=32,
        prefetch_beats=512,
    )
    return streamgen.compile(transformers.GPT2LMHeadModel(config).eval(), config=wish)


def _smollm2() -> Any:
    wish = streamgen.CompileConfig(
        name="text", goal="small", max_tokens=16, context=256, channels=4, multipliers=512
    )
    return streamgen.compile(default_checkpoint(), config=wish)


DESIGNS: dict[str, Callable[[], Any]] = {
    "module": _module,
    "mlp": _mlp,
    "llama": lambda: _decoder("llama", n_lanes=2),
    "qwen3": lambda: _decoder("qwen3", policy="mixed", multipliers=256),
    "gemma2": lambda: _decoder("gemma2", policy="spatial", multipliers=2048),
    "gemma3": lambda: _decoder("gemma3_text", n_lanes=2, hold_bits=4096),
    "smollm2": _smollm2,
    "gpt2-medium-2": lambda: _gpt2_medium(2),
    "gpt2-medium": lambda: _gpt2_medium(24),
}


def digests(name: str) -> list[str]:
    """A line a file: the first 16 digits of its SHA-256, the design, the file."""
    torch.manual_seed(0)
    made = DESIGNS[name]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = made.write(Path(temporary, "design"))
        return [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]} {name} {path.relative_to(folder)}"
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(DESIGNS)}; all")
    names = parser.parse_args().names or list(DESIGNS)
    if unknown := set(names) - DESIGNS.keys():
        parser.error(f"no designs are called {', '.join(sorted(unknown))}")
    for name in names:
        print("\n".join(digests(name)), flush=True)


if __name__ == "__main__":
    main()
