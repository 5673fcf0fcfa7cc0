"""Metadata of checkpoints: keys looked up, every value checked before it is used."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamgen.errors import CheckpointError

__all__ = ["Metadata"]

REQUIRED = object()
LARGEST = 2**31 - 1


class Metadata:
    """Values by key; CheckpointError names the key, its value and what is needed. get: None without one."""

    def __init__(self, path: Path, get: Callable[[str], Any]) -> None:
        self.path = path
        self.get = get

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """An integer of 1 and more."""
        value = self._value(key, default)
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise CheckpointError(f"{self.path}: {key} is {value!r}; an integer of at least 1 is needed")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if type(value) not in (int, float) or not (value > 0 and math.isfinite(value)):
            raise CheckpointError(f"{self.path}: {key} is {value!r}; a finite number above 0 is needed")
        return float(value)

    def boolean(self, key: str, default: Any = REQUIRED) -> bool:
        """True or false."""
        value = self._value(key, default)
        if type(value) is not bool:
            raise CheckpointError(f"{self.path}: {key} is {value!r}; true or false is needed")
        return value

    def refuse(self, key: str, value: Any, supported: str) -> CheckpointError:
        """The error for a feature that we lack."""
        return CheckpointError(f"{self.path}: {key} is {value!r}, which is not supported; {supported}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            raise CheckpointError(f"{self.path}: {key} is missing")
        return default
