"""Factors that the user has fixed: find their layers, and reject factors that cannot be built.

A layer is named by the path of its module (`layers.0.down`) or by its operation (`layers_0_down`).
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from streamgen.base.wording import alternatives
from streamgen.compiler.config import VECTOR_LANES
from streamgen.model.graph.plan import LinearShape, Shape, VectorShape

MAX_COLUMNS = 16  # (1, C) tokens of 32-bit words fill one 512-bit beat
MAX_ROWS = 16  # rows of a column: 4 beats of 4-bit weights per step

Fixed = Mapping[str, Mapping[str, int]]
"""Factors by operation."""

_FACTORS = {
    LinearShape: ("columns", "n_lanes", "quantise_lanes", "lanes"),
    VectorShape: ("lanes",),
}
_KIND = {LinearShape: "a matmul", VectorShape: "an elementwise operation"}


def fixed_factors(shapes: Sequence[Shape], asked: Fixed) -> Fixed:
    """`CompileConfig.fixed` by operation. Raises ValueError for a name that is not a layer, and for factors
    that the layer does not have or that cannot be built."""
    by_operation: dict[str, dict[str, int]] = {}
    for key, factors in asked.items():
        shape = _layer(key, shapes)
        known = by_operation.setdefault(shape.name, {})
        for factor, value in factors.items():
            _check(key, shape, factor, value)
            if known.setdefault(factor, value) != value:
                raise ValueError(
                    f"CompileConfig.fixed gives {shape.name!r} two values of {factor}: {known[factor]}, and "
                    f"{value} under the name {key!r}"
                )
    _check_quantisers(shapes, by_operation)
    return by_operation


def _layer(key: str, shapes: Sequence[Shape]) -> Shape:
    same = [s for s in shapes if s.name == key] or [s for s in shapes if s.path and s.path == key]
    if len(same) == 1:
        return same[0]
    if same:
        names = ", ".join(shape.name for shape in same)
        raise ValueError(
            f"CompileConfig.fixed names {key!r}, which has several operations; name one of them: {names}"
        )
    layers = list(dict.fromkeys(name for s in shapes for name in (s.path, s.name) if name))
    close = get_close_matches(key, layers, n=3)
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?" if close else f"the layers are {', '.join(layers)}"
    )
    raise ValueError(f"CompileConfig.fixed names {key!r}, which is not a layer; {hint}")


def _check(key: str, shape: Shape, factor: str, value: int) -> None:
    allowed = _FACTORS[type(shape)]
    if factor not in allowed:
        raise ValueError(
            f"CompileConfig.fixed[{key!r}] has {factor!r}; the factors of {_KIND[type(shape)]} are "
            f"{', '.join(allowed)}"
        )
    if factor in ("columns", "n_lanes"):
        most = MAX_COLUMNS if factor == "columns" else MAX_ROWS
        law, holds = f"1 to {most}", value <= most
    else:
        law, holds = alternatives(VECTOR_LANES), value in VECTOR_LANES
    if not holds:
        raise ValueError(f"CompileConfig.fixed[{key!r}][{factor!r}] is {value}; it must be {law}")
    if factor == "lanes" and isinstance(shape, LinearShape) and not shape.bias:
        raise ValueError(
            f"CompileConfig.fixed[{key!r}]['lanes'] is {value}; 'lanes' of a matmul belong to the addition "
            f"of its bias, and {shape.name!r} has no bias"
        )


def _check_quantisers(shapes: Sequence[Shape], fixed: Fixed) -> None:
    first: dict[str, str] = {}  # by value, the first matmul that fixes its quantiser
    for shape in shapes:
        if not isinstance(shape, LinearShape) or "quantise_lanes" not in fixed.get(shape.name, {}):
            continue
        other = first.setdefault(shape.reads, shape.name)
        first_lanes, lanes = (fixed[name]["quantise_lanes"] for name in (other, shape.name))
        if first_lanes != lanes:
            raise ValueError(
                f"CompileConfig.fixed gives {other!r} quantise_lanes {first_lanes} and {shape.name!r} "
                f"{lanes}; both read {shape.reads!r} through one quantiser, so the two must be equal"
            )
