"""Tables of a language model, such as masks, cosines, sines and rows for positions: calls on positions and
constants.

A table can be computed for any positions.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx import Node

from streamgen.model.frontend.in_place import is_in_place
from streamgen.model.frontend.trace import Constants


class Tables:
    """All tables of a program. traced: int64 [T], the positions of the trace. source: the program's input of
    positions."""

    def __init__(self, constants: Constants, traced: torch.Tensor | None = None) -> None:
        self.constants = constants
        self.source: Node | None = None
        self._traced = traced
        self._calls: dict[Node, None] = {}  # in order
        self._changing = False  # whether some call changes the tensor of another
        self._known: dict[tuple[int, ...], dict[Node, Any]] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._calls or (node is not None and node is self.source)

    def add(self, node: Node) -> None:
        """Add a call on positions."""
        self._calls[node] = None
        self._changing = self._changing or is_in_place(node)
        self._known.clear()

    @property
    def traced(self) -> torch.Tensor:
        """The positions of the trace."""
        assert self._traced is not None
        return self._traced

    @property
    def context(self) -> int:
        """Positions that a text may have; those of the trace are the last ones."""
        return int(self.traced[-1]) + 1

    counts = False  # whether positions are counted by the module, not given

    def is_uniform(self, node: Node) -> bool:
        """Whether a table has the same row for every position."""
        return False

    def add_parts(self, node: Node, parts: Sequence[Node], readable: Collection[Any]) -> None:
        """Note the calls that a call is taken apart into. readable: calls that are left whole."""

    def masks(self, tokens: int, keys: int) -> tuple[int, int]:
        """Extents of the masks of so many queries and keys, as `shown` has them."""
        return tokens, keys

    def at(self, node: Node, positions: torch.Tensor) -> torch.Tensor:
        """The tensor of a table for these positions, int64 [T]."""
        known = self._known.setdefault(tuple(positions.tolist()), {})
        if node not in known:
            assert self.source is not None
            known[self.source] = positions[None]

            def value(source: Node) -> Any:
                return known[source] if source in known else self.constants.tensors[source]

            for call in self._calls if self._changing else self._behind(node, known):
                args, kwargs = torch.fx.node.map_arg((call.args, call.kwargs), value)
                if is_in_place(call) and call.args[0] in self.constants.tensors:
                    args = (args[0].clone(), *args[1:])  # the constant is used for other positions too
                function: Any = call.target
                known[call] = function(*args, **kwargs)
        contents: torch.Tensor = known[node]
        return contents

    def shown(self, node: Node) -> torch.Tensor:
        """The tensor of a constant, or of a table at the positions of the trace."""
        return self.at(node, self.traced) if node in self else self.constants.tensors[node]

    def _behind(self, node: Node, known: dict[Node, Any]) -> list[Node]:
        """The calls that must run to compute a table, in order."""
        needed, left = set(), [node]
        while left:
            call = left.pop()
            if call in self._calls and call not in known and call not in needed:
                needed.add(call)
                left.extend(call.all_input_nodes)
        return [call for call in self._calls if call in needed]
