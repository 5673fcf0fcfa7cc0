"""Error of whole encoders against float32, beside torch's dynamic quantisation to 8 bits.

    python benchmarks/encoders.py [NAME...] [--small] [--weights w8]

Models of transformers with random weights, in the sizes of their configurations; --small takes those of the
tests. The error is the norm of the difference over the norm of the float32 result, of each model's first
result. Torch quantises the weights of Linear to 8 bits and the activations of each call, both with one scale
for a tensor; its other calls stay float32.
"""

import argparse
import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import checking, import_any
from streamgen.model.graph.interpret import exact
from tests.shared import framed_modules, transformers_encoders

TOKENS = 16
Made = Callable[[], tuple[torch.nn.Module, dict[str, torch.Tensor]]]


def models(*, small: bool) -> dict[str, Made]:
    """Makers of models and their example inputs, by name."""
    texts = transformers_encoders.SMALL if small else transformers_encoders.WHOLE
    images = framed_modules.SHAPES if small else framed_modules.WHOLE

    def of_ids(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        model = transformers_encoders.made(*texts[name])
        generator = torch.Generator().manual_seed(4)
        ids = torch.randint(5, model.config.vocab_size, (1, TOKENS), generator=generator)
        return model, {"input_ids": ids}

    found: dict[str, Made] = {name: lambda name=name: of_ids(name) for name in texts if name != "Deberta"}
    return found | {name: lambda name=name: framed_modules.of_transformers(name, images) for name in images}


def ours(module: torch.nn.Module, example: dict[str, torch.Tensor], weights: str) -> np.ndarray:
    """The first result of the golden model."""
    with checking(False):  # the comparison below is one
        graph, interface = import_any(module, example, TOKENS)
    assert interface is not None
    given = ({name: x.numpy() for name, x in example.items()},)
    ids = graph.vocabularies
    taken = {
        name: array.reshape(-1) if name in ids else array.reshape(-1, array.shape[-1])
        for name, array in interface.taken(given).items()
    }
    config = CompileConfig(weights=weights)
    return first(interface.rebuilt(exact(graph.quantised(config.numbers(False)))(taken)[0], given))


def first(results: Any) -> Any:
    """The first array or tensor of a nest of results."""
    parts = results.values() if hasattr(results, "values") else results
    return next(part for part in parts if part is not None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--small", action="store_true", help="the sizes of the tests")
    parser.add_argument("--weights", default="w8", help="format of the weights (default: w8)")
    asked = parser.parse_args()
    made = models(small=asked.small)
    if unknown := [name for name in asked.names if name not in made]:
        parser.error(f"{unknown[0]} is not known; {', '.join(made)} are")
    table = Table("model", "streamgen", "torch int8", "streamgen / torch int8")
    for name in asked.names or made:
        module, example = made[name]()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its quantisation deprecated
            wanted = first(module(**example)).numpy()
            eight = torch.ao.quantization.quantize_dynamic(copy.deepcopy(module), {torch.nn.Linear})
            theirs = first(eight(**example)).numpy()
        errors = [
            float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
            for found in (ours(module, example, asked.weights), theirs)
        ]
        table.add_row(name, *(f"{100 * error:.2f} %" for error in errors), f"{errors[0] / errors[1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
