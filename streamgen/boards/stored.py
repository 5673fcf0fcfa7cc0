"""Boards out of files: `dataclasses.asdict` of one, as JSON has kept it, becomes the board again."""

from collections.abc import Mapping
from typing import Any

from streamgen.boards.board import Board, Hbm, Slr
from streamgen.boards.fabric import Fabric, RamShape
from streamgen.cost import Resources

__all__ = ["restored"]


def restored(board: Mapping[str, Any]) -> Board:
    """ValueError for a mapping that was no board."""
    try:
        slrs = (Slr(name=slr["name"], resources=Resources(**slr["resources"])) for slr in board["slrs"])
        fabric, hbm = _fabric(board["fabric"]), Hbm(**board["hbm"])
        return Board(**{**board, "fabric": fabric, "slrs": tuple(slrs), "hbm": hbm})
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no board: {error!r}") from error


def _fabric(fabric: Mapping[str, Any]) -> Fabric:
    shapes = {name: tuple(RamShape(*shape) for shape in fabric[name]) for name in ("lutram", "bram")}
    weights = tuple(fabric["brams_of_urams"])
    return Fabric(**{**fabric, **shapes, "uram": RamShape(*fabric["uram"]), "brams_of_urams": weights})
