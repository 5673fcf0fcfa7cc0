"""Operations of packages outside, by the torch operators that they compute.

A package names its operations in an entry point of the group `streamgen.operations`. The name of the entry
point is the torch operator, its value the class:

    [project.entry-points."streamgen.operations"]
    "mylib.gate_rows" = "mylib_hardware.operation:GateRows"

`mylib.gate_rows` stands for every overload, `mylib.gate_rows.default` for one. A script or a notebook calls
`register` instead. A class is imported only when a module calls its operator. Classes of graphs that are
written are found by their own names (`graph.storage`).
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
    """Bring an operation of this process for a torch operator, `mylib.gate_rows`.

    A class that is defined again, as in a notebook, replaces the former one. TypeError for what is no class
    of operations, ValueError for what is no name of an operator, or for one that another class computes.
    """
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise TypeError(f"the operation for {name!r} is {kind!r}; a class derived from Operator is needed")
    wanted = _spelled(name)
    if not 2 <= len(wanted.split(".")) <= 3 or not all(part.isidentifier() for part in wanted.split(".")):
        raise ValueError(f"{name!r} is no torch operator; 'namespace.name' is needed")
    former = _REGISTERED.get(wanted, kind)
    if _home(former) != _home(kind):
        raise ValueError(f"{wanted} is computed by {_home(former)} already; {_home(kind)} cannot replace it")
    _REGISTERED[wanted] = kind


def is_offered(operator: str) -> bool:
    """Whether a package or this process brings an operation for `mylib.gate_rows.default`."""
    offers = _offers(tuple(sys.path))
    return any(name in offers or name in _REGISTERED for name in _names(operator))


def find(operator: str, *, built_in: bool = False) -> type[Operator] | None:
    """The class of operations for `mylib.gate_rows.default`; None where nobody brings one.

    built_in: whether streamgen compiles the operator itself; nobody else may bring it.
    UnsupportedOperationError, in a line that names the package, for a class that cannot be imported or is
    none of operations, for an operator that two bring, and for one that is built in.
    """
    offers = _offers(tuple(sys.path))
    registered = {name: kind for name in _names(operator) if (kind := _REGISTERED.get(name)) is not None}
    points = [point for name in _names(operator) for point in offers.get(name, ())]
    brought = [*map(_package, points), *(f"this process (register({name!r}, ...))" for name in registered)]
    if built_in and brought:
        raise UnsupportedOperationError(
            f"{brought[0]} brings an operation for {operator}, which streamgen computes itself: remove it"
        )
    kinds = [*(_loaded(operator, point) for point in points), *registered.values()]
    if len({_home(kind) for kind in kinds}) > 1 or len(points) > 1:
        raise UnsupportedOperationError(
            f"{' and '.join(brought)} bring operations for {operator}: remove all but one"
        )
    return kinds[-1] if kinds else None


@lru_cache(maxsize=1)
def _offers(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Entry points by the operators that they name. path: where packages are looked for. A package that two
    folders of it hold counts once."""
    offered: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        offered.setdefault(_spelled(point.name), {}).setdefault(_package(point), point)
    return {name: tuple(points.values()) for name, points in offered.items()}


def _loaded(operator: str, point: EntryPoint) -> type[Operator]:
    said = f"{_package(point)} brings {point.value!r} for {operator}"
    try:
        kind = point.load()
    except Exception as error:  # a module may raise anything
        raise UnsupportedOperationError(
            f"{said}, which cannot be imported ({error}): install what the package needs, or remove it"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise UnsupportedOperationError(f"{said}, which is no class derived from Operator")
    return kind


def _package(point: EntryPoint) -> str:
    return "a package without a name" if point.dist is None else f"the package {point.dist.name}"


def _home(kind: type[Operator]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _spelled(name: str) -> str:
    """`mylib::gate_rows` is how torch spells it when it is defined."""
    return name.strip().replace("::", ".")


def _names(operator: str) -> tuple[str, str]:
    """What an entry point may call an overload."""
    return operator, operator.rpartition(".")[0]
