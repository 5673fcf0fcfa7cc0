"""One pass of an interpreter, as seen by operations, and the state between passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

State = Mapping[str, Any]
"""The stored rows of each operation that keeps state, by its path."""


@dataclass
class Run:
    """One pass. tokens: the number of rows. position: of the first row. state: from the earlier passes.
    every_row: operations that take one row of a pass take all rows, which gives logits after every token.
    dtype: of floats. path: of the operation."""

    tokens: int
    position: int = 0
    state: State = field(default_factory=dict)
    every_row: bool = False
    dtype: Any = np.float64
    path: str = ""
    kept: dict[str, Any] = field(default_factory=dict)
    _once: dict[tuple[str, int], tuple[Any, Any]] = field(default_factory=dict)

    @property
    def positions(self) -> np.ndarray:
        """int64 [tokens]."""
        return np.arange(self.position, self.position + self.tokens)

    def once(self, name: str, value: np.ndarray, compute: Callable[[np.ndarray], Any]) -> Any:
        """compute(value), computed once for each value of this pass."""
        key = name, id(value)
        if key not in self._once:
            self._once[key] = value, compute(value)  # keep the value too, so that its id is not reused
        return self._once[key][1]

    def forget(self) -> None:
        """Forget the results of `once`, because the values of a layer are not used again."""
        self._once.clear()
