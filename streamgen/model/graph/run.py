"""One pass of an interpreter, as operations see it, and the state between passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

State = Mapping[str, Any]
"""By path of an operation, what it keeps."""


@dataclass
class Run:
    """One pass. tokens: rows. position: of the first. state: what the passes before have left. every_row:
    operations that take one row of a pass take all: logits behind every token. dtype: of floats. path: of
    the operation."""

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
        """compute(value), but once for each value of this pass."""
        key = name, id(value)
        if key not in self._once:
            self._once[key] = value, compute(value)  # the value too: its id stays taken
        return self._once[key][1]

    def forget(self) -> None:
        """What `once` has computed: values of a layer are not met again."""
        self._once.clear()
