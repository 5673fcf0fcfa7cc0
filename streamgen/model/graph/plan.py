"""The question to the explorer and its answer: unroll of matmuls, widths of vector kernels, padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import TYPE_CHECKING

from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.weights import WeightFormat

if TYPE_CHECKING:
    from streamgen.gateware.pointwise import Formula


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """A matmul for the explorer: name[T, n] = reads[T, k] W^T. level: the number of matmuls before it on a
    path.

    form: of its weights. group: weights that share a scale; None: one scale per row. path: of the module.
    bias: whether an addition follows.
    """

    name: str
    k: int
    n: int
    level: int
    form: WeightFormat
    group: int | None
    reads: str = "x"
    path: str = ""
    bias: bool = False


@dataclass(frozen=True, kw_only=True)
class VectorShape:
    """An elementwise operation. operands: values, without constants; the result has the order of the first.
    function: applied to each element, by the name of its unit or as an expression."""

    name: str
    features: int
    level: int
    operands: tuple[str, ...]
    function: "str | Formula"
    path: str = ""


Shape = LinearShape | VectorShape


@dataclass(frozen=True, kw_only=True)
class LinearPlan:
    """Unroll of one matmul, and the memory channel of each column."""

    columns: int = 1
    n_lanes: int = 1
    channels: tuple[int, ...] = ()

    @property
    def tile(self) -> int:
        """Output rows of one tile."""
        return self.columns * self.n_lanes


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A design that the search has evaluated: cycles of one token and of the most tokens in closed form.
    group: designs that follow from one another, in order. what: the factors that changed."""

    group: str
    what: str
    multipliers: int
    cycles: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The choice, and its reasons in words.

    linears: by matmul. widths: elements of a token, by input, by elementwise operation and, for its bias, by
    matmul. quantisers: elements that a quantiser takes in a cycle, by the value that it reads. pads: by
    value, the multiple to which its features are padded; all values of one of the `classes` have the same.
    tried: every design that the search evaluated. resident: whether the weights stay on the chip.
    """

    token_lanes: int
    linears: Mapping[str, LinearPlan]
    widths: Mapping[str, int]
    quantisers: Mapping[str, int]
    pads: Mapping[str, int]
    classes: tuple[frozenset[str], ...]
    io_channel: int
    channels: int
    reasons: tuple[str, ...]
    tried: tuple[Tried, ...] = ()
    resident: bool = False

    @property
    def multipliers(self) -> int:
        """Multipliers of all matmuls."""
        return sum(p.tile for p in self.linears.values()) * self.token_lanes * MX_GROUP

    def extent(self, value: str, features: int) -> int:
        """Features of a value with its padding."""
        return -(-features // self.pads[value]) * self.pads[value]


def agree(plans: Sequence[Plan]) -> list[Plan]:
    """The same plans, with a common padding for every value that several of them contain."""
    classes: list[set[str]] = []
    for shared in (members for plan in plans for members in plan.classes):
        joined = set(shared)
        for other in [c for c in classes if c & joined]:
            joined |= other
            classes.remove(other)
        classes.append(joined)
    pads = {
        value: lcm(*(plan.pads[v] for plan in plans for v in members if v in plan.pads))
        for members in classes
        for value in members
    }
    return [replace(plan, pads={value: pads[value] for value in plan.pads}) for plan in plans]


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The layout in memory of the inputs and outputs of one group of several.

    tensors: names of their tensors, by value. channels: by value, if it differs from the plan's own channel.
    by_rows: outputs that another group reads; they are stored row after row, like inputs.
    """

    tensors: Mapping[str, str]
    channels: Mapping[str, int] = field(default_factory=dict)
    by_rows: frozenset[str] = frozenset()
