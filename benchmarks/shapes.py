"""Published shapes with random weights, each to Verilog: seconds by stage, and the most memory at a time.

    python benchmarks/shapes.py [--channels 8] [--multipliers 1024] [--context 1024] [NAME ...]

The shapes are those for which others publish figures (GPT-2 Medium, Qwen, Llama, Gemma of StreamTensor,
arXiv 2509.13694) and Llama-3.2-1B; that of Gemma is Gemma-3-1B's. The models are made by transformers'
configuration classes, in float32. Each is compiled and written in a process of its own, so that its memory is
its own: what the model takes is counted, what making it takes is not timed. Processor time is what a machine
that does nothing else needs.
"""

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import streamgen
from streamgen.base.errors import StreamgenError

SECONDS, MEMORY = 90.0, 16 * 1024.0  # to be under, MiB
Sizes = dict[str, Any]


def _sizes(layers: int, hidden: int, features: int, heads: int, kv_heads: int, vocabulary: int) -> Sizes:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": features,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }


SHAPES: dict[str, tuple[str, str, Sizes]] = {
    "gpt2-medium": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_layer": 24, "n_embd": 1024, "n_inner": 4096, "n_head": 16, "n_positions": 1024},
    ),
    "qwen": ("Qwen2Config", "Qwen2ForCausalLM", _sizes(24, 896, 4864, 14, 2, 151936)),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        _sizes(22, 2048, 5632, 32, 4, 32000) | {"tie_word_embeddings": False},
    ),
    "llama-3.2-1b": (
        "LlamaConfig",
        "LlamaForCausalLM",
        _sizes(16, 2048, 8192, 32, 8, 128256)
        | {
            "max_position_embeddings": 131072,
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0},
                **{"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            },
        },
    ),
    "gemma-3-1b": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        _sizes(26, 1152, 6912, 4, 1, 262144) | {"head_dim": 256, "sliding_window": 512},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(SHAPES)}")
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--multipliers", type=int, default=1024)
    parser.add_argument("--context", type=int, default=1024)
    options = parser.parse_args()
    if unknown := set(options.names) - SHAPES.keys():
        parser.error(f"no shapes are called {', '.join(sorted(unknown))}")
    choices = {
        "goal": "small",
        "channels": options.channels,
        "multipliers": options.multipliers,
        "context": options.context,
    }
    console = Console()
    for name in options.names or SHAPES:
        console.print(measured(name, choices))


def measured(name: str, choices: dict[str, Any]) -> Table:
    """A model in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(_compiled, (name, choices))
    title = f"{name}, {found['weights'] / 1e6:,.0f} M weights, {choices}"
    table = Table("stage", "processor s", "s by the clock", "most MiB until then", title=title)
    for stage, busy, elapsed, most in found["stages"]:
        table.add_row(stage, f"{busy:.1f}", f"{elapsed:.1f}", f"{most:,.0f}")
    busy, elapsed = (sum(stage[i] for stage in found["stages"]) for i in (1, 2))
    ratio = f"{busy / SECONDS:.2f} of {SECONDS:g} s"
    table.add_row("all", f"{busy:.1f} ({ratio})", f"{elapsed:.1f}", f"{found['most'] / MEMORY:.2f} of 16 GiB")
    if found["error"]:
        table.caption = found["error"]
    return table


def _compiled(name: str, choices: dict[str, Any]) -> dict[str, Any]:
    """Seconds and memory of each stage, in this process."""
    model = _model(name)
    stages: list[tuple[str, float, float, float]] = []
    marks = [(time.process_time(), time.perf_counter())]

    def done(stage: str, made: Any = None) -> None:
        marks.append((time.process_time(), time.perf_counter()))
        busy, elapsed = (after - before for after, before in zip(marks[-1], marks[-2], strict=True))
        stages.append((stage, busy, elapsed, watch.most))

    error = ""
    with _Memory() as watch, tempfile.TemporaryDirectory() as place:
        try:
            config = streamgen.CompileConfig(name=name.replace("-", "_").replace(".", "_"), **choices)
            accelerator = streamgen.compile(model, None, config, progress=lambda text: None, after=done)
            accelerator.write(Path(place, "written"))
            done("write")
        except StreamgenError as reason:
            error = f"{type(reason).__name__}: {reason}"
    weights = sum(parameter.numel() for parameter in model.parameters())
    return {"stages": stages, "most": watch.most, "error": error, "weights": weights}


def _model(name: str) -> Any:
    """With transformers' own random weights."""
    import torch
    import transformers

    config, kind, sizes = SHAPES[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes)
    made._attn_implementation = "sdpa"
    return getattr(transformers, kind)(made).eval()


class _Memory:
    """Looks ten times a second how much this process has, MiB; what is mapped from files is left out."""

    def __init__(self) -> None:
        self.most = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
            self.most = max(self.most, int(fields["RssAnon"].split()[0]) / 1024)


if __name__ == "__main__":
    main()
