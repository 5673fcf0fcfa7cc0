"""Metadata of checkpoints: keys looked up, every value checked before it is used.

What is wrong is noted and read on, so that one error has all of it, with the tensors (`problems.refuse`).
"""

import math
from collections.abc import Callable
from typing import Any

__all__ = ["Metadata"]

REQUIRED = object()
LARGEST = 2**31 - 1


class Metadata:
    """Values by key. get: None without one. problems: key, value and what is needed, of all that is wrong."""

    def __init__(self, get: Callable[[str], Any], problems: list[str] | None = None) -> None:
        self.get = get
        self.problems = [] if problems is None else problems
        self.broken = False
        """Whether a value stands for one that cannot be used."""

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """An integer of 1 and more."""
        value = self._value(key, default)
        if type(value) is int and 1 <= value <= LARGEST:
            return value
        return self._stand_in(key, value, "an integer of at least 1")

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if type(value) in (int, float) and value > 0 and math.isfinite(value):
            return float(value)
        return self._stand_in(key, value, "a finite number above 0")

    def boolean(self, key: str, default: Any = REQUIRED) -> bool | None:
        """True or false; None where it cannot be used."""
        value = self._value(key, default)
        if type(value) is bool:
            return value
        self._stand_in(key, value, "true or false")
        return None

    def lack(self, key: str, value: Any, supported: str) -> None:
        """Note a feature that we lack."""
        self.problems.append(f"{key} is {value!r}, which is not supported; {supported}")

    def note(self, problem: str) -> None:
        """Note what is wrong with a value that others depend on."""
        self.broken = True
        self.problems.append(problem)

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value

    def _stand_in(self, key: str, value: Any, needed: str) -> int:
        self.note(f"{key} is missing" if value is REQUIRED else f"{key} is {value!r}; {needed} is needed")
        return 1
