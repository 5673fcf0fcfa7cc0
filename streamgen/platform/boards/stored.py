"""Boards out of files: `dataclasses.asdict` of one, as JSON has kept it, becomes the board again."""

import json
from collections.abc import Mapping
from typing import Any, cast

from streamgen.base.files import decode
from streamgen.platform.boards.board import Board


def restored(board: Mapping[str, Any]) -> Board:
    """ValueError, with the field, for a mapping that was no board."""
    try:
        value = json.loads(json.dumps(board))  # tuples become lists, as in a file
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"board: it holds what JSON does not: {error}") from error
    return cast(Board, decode(Board, value, "board"))
