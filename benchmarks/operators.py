"""How much of torch the importer takes: torch's own list of operators and its sample inputs; small modules;
both behind an embedding of ids.

    python benchmarks/operators.py [WORD ...] [--list] [--samples 2]

Every case is a module of one to three calls. Its tensors of floats are inputs, all else are constants. The
case is imported with the self check of the frontend; then its golden model runs on the sample inputs, and the
results must have the shapes, the types and about the values of torch's. An outcome is one of

    right      imported, and all results agree
    refused    an error of streamgen says what cannot be compiled
    wrong      imported, or stopped by the self check, and some result differs
    bare       an error that is not streamgen's own

WORD chooses the cases whose names hold it. --list prints every case with its outcome and the reason.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import argparse
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils import _pytree as pytree

import streamgen
from streamgen.base.errors import ImportMismatchError, StreamgenError
from streamgen.model.frontend import import_any
from streamgen.model.graph.interpret import exact
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from tests.shared.sequences import results_of
from tests.shared.small_modules import MODULES

OWN = str(Path(streamgen.__file__).parent)
OUTCOMES = ("right", "refused", "wrong", "bare")
LARGEST = 4096  # elements of a sample input
DRAWN = 40  # sample inputs of an operator, of which some are taken
ROWS = 997  # of a table of ids, at least: results of as many features would be logits
F24, WITH_CODES = 2e-3, 6e-2  # differences that are roundings, as a share of the norm: of f24, of 8-bit codes
LEFT_OUT = re.compile(
    r"conv|pool|interpolate|upsample|unfold|grid_sample|^fft|stft|sparse|^linalg\.(?!norm|vec|multi)|^special|"
    r"^signal|complex|^cdouble|^cfloat|^chalf|^polar$|cholesky|svd|^qr$|^lu$|^lu_|geqrf|lstsq|triangular_solve|"
    r"ormqr|pinverse|pca_lowrank|logdet|matrix_exp|^cov$|corrcoef|^rand|normal(?!ize)|bernoulli|multinomial|"
    r"uniform|cauchy|exponential|geometric|dropout|empty|jiterator|backward|ctc_loss|^torch\.|triton"
)
"""Names of operators that are not asked."""


@dataclass(frozen=True)
class Case:
    """A module with its inputs."""

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]


class Sample(torch.nn.Module):
    """A call of an operator. Its tensors of floats are inputs; the others are buffers."""

    def __init__(self, call: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        self.call = call
        self.leaves, self.spec = pytree.tree_flatten(arguments)
        for index, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor):
                if not leaf.is_floating_point():
                    self.register_buffer(f"constant{index}", leaf)
                self.leaves[index] = None
        self.places = [
            index
            for index, leaf in enumerate(pytree.tree_leaves(arguments))
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        ]

    def forward(self, *inputs: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for index, value in zip(self.places, inputs, strict=True):
            leaves[index] = value
        for name, buffer in self.named_buffers():
            leaves[int(name.removeprefix("constant"))] = buffer
        args, keywords = pytree.tree_unflatten(leaves, self.spec)
        return self.call(*args, **keywords)


def operators(samples: int) -> Iterator[Case]:
    """Some samples of each operator of torch's list."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        name = info.full_name
        if LEFT_OUT.search(name) or torch.float32 not in info.dtypes:
            continue
        torch.manual_seed(0)
        drawn = list(islice(info.sample_inputs("cpu", torch.float32), DRAWN))
        cases = [
            case for index, sample in enumerate(drawn) if (case := _case(f"{name}:{index}", info, sample))
        ]
        step = max(1, (len(cases) - 1) // max(1, samples - 1))
        yield from cases[::step][:samples]


def _case(name: str, info: Any, sample: Any) -> Case | None:
    arguments = ((sample.input, *sample.args), sample.kwargs)
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    if any(
        not 0 < tensor.numel() <= LARGEST or tensor.is_complex() or tensor.is_sparse for tensor in tensors
    ):
        return None
    inputs = tuple(tensor.detach() for tensor in tensors if tensor.is_floating_point())
    module = Sample(info.op, pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)).eval()
    try:
        results = pytree.tree_leaves(_run(module, inputs))
    except Exception:  # noqa: BLE001 - a sample may need what a plain call does not give
        return None
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    return Case(name, module, inputs) if tensors and not any(t.is_complex() for t in tensors) else None


def small_modules() -> Iterator[Case]:
    """The small modules."""
    for name, (call, shapes) in MODULES.items():
        torch.manual_seed(0)
        inputs = tuple(torch.randn(shape) for shape in shapes)
        yield Case(name, Sample(call, (inputs, {})).eval(), inputs)


class OfIds(torch.nn.Module):
    """A case whose first input is rows of a table. Its other inputs are buffers."""

    def __init__(self, case: Case, rows: torch.Tensor) -> None:
        super().__init__()
        self.module, self.rows = case.module, torch.nn.Embedding.from_pretrained(rows)
        self.others = len(case.inputs) - 1
        for index, value in enumerate(case.inputs[1:]):
            self.register_buffer(f"other{index}", torch.from_numpy(round_f24(value.numpy())))

    def forward(self, ids: torch.Tensor) -> Any:
        return self.module(self.rows(ids), *(getattr(self, f"other{i}") for i in range(self.others)))


def of_ids(cases: Iterator[Case]) -> Iterator[Case]:
    """The cases whose first input has two dimensions or more, for ids: the rows of that input are a table."""
    for case in cases:
        first = case.inputs[0] if case.inputs else torch.zeros(())
        if first.ndim > 1 and first.numel():
            rows = torch.from_numpy(round_f24(first.reshape(-1, first.shape[-1]).numpy()))
            ids = torch.arange(len(rows)).reshape(first.shape[:-1])
            more = rows[torch.arange(max(len(rows), ROWS)) % len(rows)]
            yield Case(case.name, OfIds(case, more).eval(), (ids,))


def _run(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
    with torch.no_grad():
        return module(*(value.clone() for value in inputs))


def outcome(case: Case) -> tuple[str, str]:
    """The outcome of a case, and the reason for any but right."""
    try:
        return _compared(case)
    except ImportMismatchError as error:
        return "wrong", _first_line(error)
    except Exception as error:  # noqa: BLE001 - the kind of error is what is asked
        last = traceback.extract_tb(error.__traceback__)[-1]
        raised = last.filename.startswith(OWN) and (last.line or "").startswith("raise")
        meant = isinstance(error, StreamgenError) or (isinstance(error, TypeError | ValueError) and raised)
        return ("refused" if meant else "bare"), f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _compared(case: Case) -> tuple[str, str]:
    graph, interface = import_any(case.module, case.inputs)
    assert interface is not None
    floats = [value.is_floating_point() for value in case.inputs]
    given = [
        round_f24(value.numpy().astype(np.float32)) if real else value.numpy()
        for value, real in zip(case.inputs, floats, strict=True)
    ]
    found = results_of(exact(graph.quantised(Numbers(weights="w8"))), graph, interface, given)
    codes = any(operation.op.matmul or operation.op.attention for _, operation in graph.walk())
    bound = WITH_CODES if codes else F24
    wanted = pytree.tree_leaves(_run(case.module, [torch.from_numpy(value) for value in given]))
    results = pytree.tree_leaves(found)
    if len(wanted) != len(results):
        return "wrong", f"{len(results)} results; torch has {len(wanted)}"
    for index, (array, tensor) in enumerate(zip(results, wanted, strict=True)):
        if tuple(array.shape) != tuple(tensor.shape):
            return "wrong", f"result {index} has shape {list(array.shape)}; torch's has {list(tensor.shape)}"
        if (array.dtype.kind == "f") != tensor.is_floating_point():
            return "wrong", f"result {index} is {array.dtype}; torch's is {tensor.dtype}"
        numbers = tensor.double().numpy()
        finite = np.isfinite(numbers) & (np.abs(numbers) < 3e38)
        rounded = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
        gap = np.linalg.norm(np.where(finite, array - numbers, 0)) / (np.linalg.norm(numbers[finite]) or 1)
        if not gap <= max(bound, rounded):
            return "wrong", f"result {index} differs by {gap:.1e} of its norm"
    return "right", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only cases whose names hold one of these")
    parser.add_argument("--list", action="store_true", help="print every case")
    parser.add_argument("--samples", type=int, default=2, help="samples of each operator (2)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    console = Console(width=160 if options.list else None, soft_wrap=options.list)
    table = Table("cases", *OUTCOMES, "all")
    for title, cases in (
        ("operators of torch", operators(options.samples)),
        ("small modules", small_modules()),
        ("operators, of ids", of_ids(operators(options.samples))),
        ("small modules, of ids", of_ids(small_modules())),
    ):
        count: Counter[str] = Counter()
        for case in cases:
            if options.words and not any(word in case.name for word in options.words):
                continue
            kind, reason = outcome(case)
            count[kind] += 1
            if options.list or kind in ("wrong", "bare"):
                console.print(f"{kind:8} {case.name:44} {reason}", markup=False, highlight=False)
        table.add_row(title, *(str(count[kind]) for kind in OUTCOMES), str(count.total()))
    console.print(table)


if __name__ == "__main__":
    main()
