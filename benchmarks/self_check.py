"""What it costs that an import checks itself: random models, imported without the check and with it.

    python benchmarks/self_check.py [llama-tiny] [gpt2] [llama-1b] [encoder]

Processor time of one thread, the best of some runs. Of llama-1b, which has more than 2^28 weights, three of
the 22 layers are compared.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from streamgen.model.frontend import checking, import_any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

CONTEXT = 256


def _llama(**sizes: int) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()


MODELS: dict[str, tuple[Callable[[], Any], int]] = {
    "llama-tiny": (
        lambda: _llama(
            **{"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2},
        ),
        5,
    ),
    "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval(), 3),
    "llama-1b": (
        lambda: _llama(
            **{"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22},
            **{"num_attention_heads": 32, "num_key_value_heads": 4},
        ),
        1,
    ),
    "encoder": (lambda: torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).eval(), 5),
}
"""What makes a model, and how often it is imported."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(MODELS)}")
    options = parser.parse_args()
    if unknown := set(options.names) - MODELS.keys():
        parser.error(f"no models are called {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    found = Table("model", "parameters", "import, s", "with the check, s", "ratio")
    for name in options.names or MODELS:
        make, runs = MODELS[name]
        torch.manual_seed(1)
        model = make()
        count = sum(parameter.numel() for parameter in model.parameters())
        without, checked = (min(_seconds(model, on) for _ in range(runs)) for on in (False, True))
        cells = (f"{without:.2f}", f"{checked:.2f}", f"{checked / without:.2f}")
        found.add_row(name, f"{count:,}", *cells)
    Console().print(found)


def _seconds(model: Any, on: bool) -> float:
    """Processor time of importing a model."""
    example = None if hasattr(model, "config") else torch.zeros(1, 16, 256)
    start = time.process_time()
    with checking(on):
        import_any(model, example, longest=16, context=CONTEXT)
    return time.process_time() - start


if __name__ == "__main__":
    main()
