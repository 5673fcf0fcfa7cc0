"""Chooses the matmuls that have 8 bits, for a given number of bits of all weights together.

Layers share their hardware, so a choice is the format of one matmul in all layers of a body. Each such matmul
is rounded to 4 bits alone, with all others in floats, and the texts show the loss of the outputs; the budget
goes where it saves the most. This assumes that losses add up, and that calibration reduces all of them by the
same factor.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from streamgen.base.progress import Progress
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph, Matmul, Operation, Operator
from streamgen.numbers.quantisation import IntegerWeight, Numbers
from streamgen.numbers.weights import BYTES, DEFAULT, FORMATS, WeightFormat

LAYER = re.compile(r"\[\d+\]")


@dataclass
class _Matmuls:
    """Matmuls of all layers that share one format. paths: of the operations. weights: the number of
    weights."""

    paths: list[str]
    weights: int = 0

    @property
    def pattern(self) -> str:
        """A pattern that matches these paths, for `Numbers.by_layer`."""
        return re.sub(LAYER, "[[]*]", self.paths[0])


def within_bits(
    graph: LogicalGraph,
    texts: Sequence[Mapping[str, npt.ArrayLike]],
    numbers: Numbers,
    bits: float,
    progress: Progress | None = None,
) -> Numbers:
    """The numbers, with 8 bits for those matmuls where they save the most of the loss that 4 bits cause on
    the texts.

    bits: per weight in memory, on average over all matmuls, scales and minimums of 4-bit codes included: from
    4.5 (groups of 32) to 8. texts: inputs of passes that begin at position 0. Matmuls whose format is set by
    the numbers or the checkpoint keep it, and count.

    Raises ValueError for no texts, and for fewer bits than the matmuls need with 4 bits wherever the format
    is free.
    """
    if not texts:
        raise ValueError("the choice of formats needs texts; there are none")
    tell = progress or (lambda message: None)
    free, taken = _sorted_out(graph, numbers)
    low = _bits(DEFAULT, numbers)
    total = taken.weights + sum(unit.weights for unit in free)
    least = (taken.bits + low * sum(unit.weights for unit in free)) / max(total, 1)
    if bits < least:
        raise ValueError(
            f"a budget of {bits:g} bits a weight is too small: with 4-bit codes wherever the format is free, "
            f"scales and minimums included, weights have {least:.3f}"
        )
    if not free:
        return numbers
    real = [name for name in graph.outputs if graph.shapes[name].kind == "real"]

    def outputs(graph: LogicalGraph) -> Iterator[dict[str, np.ndarray]]:
        run = reference(graph, np.float32)
        return (run(text, every_row=True, outputs=real)[0] for text in texts)

    expected, lost = list(outputs(graph)), []
    for index, unit in enumerate(free):
        tell(f"weighing {unit.pattern}, {index + 1} of {len(free)}")
        rounded = outputs(_rounded(graph, unit, numbers))
        lost.append(sum(_distance(e, f) for e, f in zip(expected, rounded, strict=True)))
    tell("")
    more = np.array([unit.weights * (BYTES.code_bits - low) for unit in free])
    room = (bits - least) * total
    chosen = milp(
        -np.array(lost) / max(sum(lost), 1e-300),
        integrality=np.ones(len(free)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(more / more.max(), ub=room / more.max() * (1 + 1e-9)),
    ).x
    formats = {unit.pattern: BYTES.name for unit, wide in zip(free, chosen, strict=True) if wide > 0.5}
    return replace(numbers, by_layer={**numbers.by_layer, **formats})


@dataclass
class _Taken:
    """The bits of the matmuls whose format is settled."""

    weights: int = 0
    bits: float = 0.0


def _sorted_out(graph: LogicalGraph, numbers: Numbers) -> tuple[list[_Matmuls], _Taken]:
    """The matmuls whose format is free, and the sums over the others."""
    units: dict[str, _Matmuls] = defaultdict(lambda: _Matmuls([]))
    taken = _Taken()
    for path, matmul in graph.matmuls():
        settled = _settled(matmul, numbers, path)
        size = matmul.extents[0] * matmul.extents[1]
        if settled is None:
            unit = units[re.sub(LAYER, "", path)]
            unit.paths.append(path)
            unit.weights += size
        else:
            taken.weights += size
            taken.bits += size * _bits(FORMATS[settled], numbers)
    return list(units.values()), taken


def _settled(matmul: Matmul, numbers: Numbers, path: str) -> str | None:
    """The format that a matmul has, or that its checkpoint or the numbers set; None if neither does."""
    if isinstance(matmul.weight, IntegerWeight):
        return matmul.weight.format
    default, other = (numbers.weight_format(path, asked) for asked in (DEFAULT.name, BYTES.name))
    return default if default == other else matmul.wanted


def _bits(form: WeightFormat, numbers: Numbers) -> float:
    return form.bits(group=numbers.group, scale_bits=numbers.scale_bits, minimum=numbers.minimum)


def _rounded(graph: LogicalGraph, unit: _Matmuls, numbers: Numbers) -> LogicalGraph:
    """The graph with only these matmuls in 4 bits."""
    paths = set(unit.paths)

    def change(path: str, operation: Operation) -> Operator:
        return operation.op.quantised(numbers, path) if path in paths else operation.op

    return graph.map(change)


def _distance(expected: Mapping[str, np.ndarray], computed: Mapping[str, np.ndarray]) -> float:
    """Squared errors of the outputs, relative to the outputs."""
    total = 0.0
    for name, array in expected.items():
        error, size = (float(np.square(a).sum(dtype=np.float64)) for a in (computed[name] - array, array))
        total += error / size if size else error
    return total
