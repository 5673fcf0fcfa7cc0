"""Operations of other packages, by the torch operators that they compute.

A package names its operations in entry points of the group `streamgen.operations`. The name of an entry point
is the torch operator, its value is the class:

    [project.entry-points."streamgen.operations"]
    "mylib.gate_rows" = "mylib_hardware.operation:GateRows"

`mylib.gate_rows` stands for every overload, `mylib.gate_rows.default` for one of them. A script or a notebook
calls `register` instead. A class is imported only when a module calls its operator. Classes in stored graphs
are found by their own names (`graph.storage`).
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.graph.logical import Operator

GROUP = "streamgen.operations"
_REGISTERED: dict[str, type[Operator]] = {}


def register(name: str, kind: type[Operator]) -> None:
    """Register an operation of this process for a torch operator, such as `mylib.gate_rows`.

    A class that is defined again, as in a notebook, replaces the earlier one. Raises TypeError for anything
    but a class of operations; ValueError for a name that is not a torch operator, or that another class
    computes.
    """
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise TypeError(f"the operation for {name!r} is {kind!r}; a class derived from Operator is needed")
    wanted = _spelled(name)
    if not 2 <= len(wanted.split(".")) <= 3 or not all(part.isidentifier() for part in wanted.split(".")):
        raise ValueError(f"{name!r} is not a torch operator; 'namespace.name' is needed")
    former = _REGISTERED.get(wanted, kind)
    if _home(former) != _home(kind):
        raise ValueError(f"{wanted} is already computed by {_home(former)}; {_home(kind)} cannot replace it")
    _REGISTERED[wanted] = kind


def is_offered(operator: str) -> bool:
    """Whether a package or this process provides an operation for `mylib.gate_rows.default`."""
    offers = _offers(tuple(sys.path))
    return any(name in offers or name in _REGISTERED for name in _names(operator))


def find(operator: str, *, built_in: bool = False) -> type[Operator] | None:
    """The class of operations for `mylib.gate_rows.default`; None if there is none.

    built_in: whether streamgen itself compiles the operator; no package may then provide it.
    UnsupportedOperationError names the package of a class that cannot be imported or is not a class of
    operations, of an operator that two packages provide, and of an operator that is built in.
    """
    offers = _offers(tuple(sys.path))
    registered = {name: kind for name in _names(operator) if (kind := _REGISTERED.get(name)) is not None}
    points = [point for name in _names(operator) for point in offers.get(name, ())]
    brought = [*map(_package, points), *(f"this process (register({name!r}, ...))" for name in registered)]
    if built_in and brought:
        raise UnsupportedOperationError(
            f"{brought[0]} provides an operation for {operator}, which streamgen computes itself: remove it"
        )
    kinds = [*(_loaded(operator, point) for point in points), *registered.values()]
    if len({_home(kind) for kind in kinds}) > 1 or len(points) > 1:
        raise UnsupportedOperationError(
            f"{' and '.join(brought)} provide operations for {operator}: remove all but one"
        )
    return kinds[-1] if kinds else None


@lru_cache(maxsize=1)
def _offers(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points by the operators that they name. path: the folders that are searched for packages. A
    package that is in two of them counts once."""
    offered: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        offered.setdefault(_spelled(point.name), {}).setdefault(_package(point), point)
    return {name: tuple(points.values()) for name, points in offered.items()}


def _loaded(operator: str, point: EntryPoint) -> type[Operator]:
    said = f"{_package(point)} provides {point.value!r} for {operator}"
    try:
        kind = point.load()
    except Exception as error:  # a module may raise anything
        raise UnsupportedOperationError(
            f"{said}, which cannot be imported ({error}): install what the package needs, or remove it"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise UnsupportedOperationError(f"{said}, which is not a class derived from Operator")
    return kind


def _package(point: EntryPoint) -> str:
    return "a package without a name" if point.dist is None else f"the package {point.dist.name}"


def _home(kind: type[Operator]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _spelled(name: str) -> str:
    """torch writes an operator as `mylib::gate_rows` when it is defined; return `mylib.gate_rows`."""
    return name.strip().replace("::", ".")


def _names(operator: str) -> tuple[str, str]:
    """The names that an entry point may have for an overload."""
    return operator, operator.rpartition(".")[0]
