"""Finds the decisions of a module by the extents of its inputs: every number that torch makes from them.

The module runs once on tensors without contents, whose leading extents are symbols (torch's `ShapeEnv`). Each
Python comparison of extents is a guard there, and each number made from extents that reaches an operation is
an argument; both are formulas. A formula with one value for all extents decides nothing, and a size that
grows with the extents is nothing new.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import TORCH_FOLDER

FAR = 1 << 14  # the largest extent that is tried if a formula names it
NEAR = 64  # all extents up to this one are tried


@dataclass(frozen=True)
class Decision:
    """A formula of leading extents. line: its source line, `file:line`; empty for a mere size."""

    formula: Any
    line: str = field(default="", compare=False)

    def value(self, extents: Sequence[int]) -> Any:
        """The value of the formula for these leading extents."""
        return self.formula.xreplace({_symbol(d): sympy.Integer(n) for d, n in enumerate(extents)})

    @property
    def compares(self) -> bool:
        """Whether the formula is a comparison, not a number. A symbol alone is both for sympy."""
        return isinstance(self.formula, Boolean) and not isinstance(self.formula, sympy.Symbol)

    def named(self) -> set[int]:
        """Extents near the numbers in the formula."""
        numbers = {abs(int(number)) for number in self.formula.atoms(sympy.Integer)} - {0}
        numbers |= {a // b for a in numbers for b in numbers}
        return {n + step for n in numbers for step in (-1, 0, 1) if 1 <= n + step <= FAR}


def untried(
    known: Sequence[Decision], dimension: int, extents: Sequence[int], tried: Sequence[int], most: int | None
) -> tuple[int, str] | None:
    """An extent of one dimension for which some decision has a value that no tried extent gave, and the line
    of the decision; None if there is none. extents: of the example. most: the greatest extent that can be
    given; None for no limit.

    All comparisons together are one decision. Among extents for which they come out alike, a number is tried
    with two other values, as one may give the result of the example by chance.
    """
    known = [decision for decision in known if _symbol(dimension) in decision.formula.free_symbols]
    near = range(1, min(most or NEAR, NEAR) + 1)
    places = sorted(
        {*near, *(n for decision in known for n in decision.named() if most is None or n <= most)}
    )
    if most is not None and most > NEAR:
        places.append(most)

    def values(n: int, chosen: Sequence[Decision]) -> tuple[Any, ...]:
        return tuple(
            decision.value([*extents[:dimension], n, *extents[dimension + 1 :]]) for decision in chosen
        )

    compared = [decision for decision in known if decision.compares]
    met = {values(n, compared): n for n in reversed(tried)}
    alike: dict[tuple[Any, ...], list[int]] = {}
    for n in places:
        alike.setdefault(values(n, compared), []).append(n)
    here = values(extents[dimension], compared)
    for there, ns in alike.items():
        if there not in met:
            lines = [one.line for one, a, b in zip(compared, here, there, strict=True) if a != b]
            return ns[0], next(filter(None, lines), "")
    for one in known:
        if one.compares:
            continue
        for there, n in met.items():
            others = [m for m in alike.get(there, ()) if values(m, [one]) != values(n, [one])]
            if len(set(tried).intersection(others)) < min(2, len(others)):
                return next(m for m in (others[0], others[-1]) if m not in tried), one.line
    return None


def one_token(dimension: int) -> Decision:
    """The decision whether an extent is 1, which torch always treats as known."""
    return Decision(sympy.Eq(_symbol(dimension), 1))


def unseen(dimension: int) -> list[Decision]:
    """Stand-ins for the decisions of a module that cannot run with symbols: whether an extent is one of some
    numbers."""
    return [Decision(sympy.Eq(_symbol(dimension), extent)) for extent in (2, 3, 7, 8, 9, 16, 33, NEAR)]


def decisions(
    module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec, dimensions: Sequence[int]
) -> list[Decision] | None:
    """The decisions of the module by these leading dimensions, whose extents in the example are distinct and
    at least 2. None if the module cannot run without their numbers, for example because it indexes with them.
    """
    environment = ShapeEnv()
    fake = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fake.cache_enabled = False  # the cache of shapes costs more than it saves in one run
    taken = [_symbolic(fake, leaf, dimensions) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    tensors = [leaf for leaf in taken if isinstance(leaf, torch.Tensor)]  # all have the same leading extents
    seen = _Seen({tensor.shape[d].node.expr: _symbol(d) for tensor in tensors for d in dimensions})
    args, kwargs = pytree.tree_unflatten(taken, spec)
    try:
        with quiet(), torch.no_grad(), fake, seen:
            module(*args, **kwargs)
    except Exception:  # noqa: BLE001 - whatever a module raises of what is no number
        return None
    for guard in environment.guards:
        seen.note(guard.expr, _frame(guard.sloc.framework_loc))
    if any(not value.free_symbols for value in environment.replacements.values()):
        return None  # a symbol has become a number: what follows is not seen
    return list(seen.found.values())


class _Seen(TorchDispatchMode):
    """Records the formulas that operations get. symbols: maps torch's symbols to ours."""

    def __init__(self, symbols: Mapping[Any, Any]) -> None:
        super().__init__()
        self.symbols = symbols
        self.found: dict[Any, Decision] = {}

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument in (*args, *(kwargs or {}).values()):
            line = "" if isinstance(argument, (list, tuple)) else _caller()  # a list is a shape
            for leaf in pytree.tree_leaves(argument):
                if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    self.note(leaf.node.expr, line)
        return call(*args, **(kwargs or {}))

    def note(self, formula: Any, line: str) -> None:
        formula = formula.xreplace(self.symbols)
        known = self.found.get(formula)
        if not formula.free_symbols or (known is not None and known.line):
            return
        if line or not formula.is_polynomial():  # otherwise it is a size, which differs for all extents
            self.found[formula] = Decision(formula, line)


def _symbolic(fake: FakeTensorMode, leaf: torch.Tensor, dimensions: Sequence[int]) -> torch.Tensor:
    kinds = [DimDynamic.DYNAMIC if d in dimensions else DimDynamic.STATIC for d in range(leaf.ndim)]
    return fake.from_tensor(leaf, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))


def _symbol(dimension: int) -> Any:
    return sympy.Symbol(f"extent_{dimension}", integer=True, positive=True)


def _frame(summary: Any) -> str:
    """`file:line` of a frame that torch kept."""
    return f"{summary.filename}:{summary.lineno}" if hasattr(summary, "lineno") else ""


def _caller() -> str:
    """`file:line` of the call under way outside of torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(TORCH_FOLDER):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
