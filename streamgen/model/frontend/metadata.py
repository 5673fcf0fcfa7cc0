"""Metadata of checkpoints: every key is known or refused, and every value is checked before it is used.

A reader asks for the keys that it knows. `unknown` then checks all keys of a checkpoint: a key that nobody
asked for must have a value without effect.

A problem is noted and reading continues, so that one error has all problems, together with those of the
tensors (`problems.refuse`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

REQUIRED = object()
LARGEST = 2**31 - 1
CLOSE = 1e-6  # between a number and the float32 that a file holds of it


def says_nothing(value: Any) -> bool:
    """Whether a value has no effect for any meaning of its key: null, false, 0, "none", or a nest of only
    these."""
    if isinstance(value, Mapping):
        return all(says_nothing(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(says_nothing(each) for each in value)
    return value is None or value == 0 or (isinstance(value, str) and value.lower() in ("", "none"))


class Metadata:
    """Values by key. get: returns the value of a key, or None. prefix: the beginning of every key, which
    callers leave out. problems: for each wrong value, its key, the value and what is needed."""

    def __init__(
        self, get: Callable[[str], Any], problems: list[str] | None = None, prefix: str = ""
    ) -> None:
        self._get = get
        self.prefix = prefix
        self.problems = [] if problems is None else problems
        self.asked: set[str] = set()
        self.broken = False
        """Whether some value was wrong and another stands in for it."""

    def get(self, key: str) -> Any:
        """The unchecked value of a key; None if there is none."""
        self.asked.add(key)
        return self._get(f"{self.prefix}{key}")

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """An integer of at least 1."""
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
        """True or false; None if the value is neither."""
        value = self._value(key, default)
        if type(value) is bool:
            return value
        self._stand_in(key, value, "true or false")
        return None

    def same(self, key: str, *allowed: Any) -> None:
        """Require that the value of a key, if there is one, is one of these."""
        value = self.get(key)
        if value is not None and not any(_equal(value, each) for each in allowed):
            self.lack(key, value, f"{' or '.join(_told(each) for each in allowed)} is")

    def lack(self, key: str, value: Any, supported: str) -> None:
        """Note a value that is not supported."""
        self.problems.append(f"{self.prefix}{key} is {_told(value)}, which is not supported; {supported}")

    def note(self, problem: str) -> None:
        """Note a wrong value on which other values depend."""
        self.broken = True
        self.problems.append(problem)

    def unknown(self, keys: Iterable[str], neutral: Mapping[str, Sequence[Any]]) -> list[str]:
        """Problems with the keys that nobody has asked for and whose values have an effect.

        keys: all keys of the checkpoint, with the prefix; keys without it are ignored. neutral: the values
        without effect of those keys for which null, false and 0 have one.
        """
        rest = Metadata(self._get, prefix=self.prefix)
        for key in (full.removeprefix(self.prefix) for full in keys if full.startswith(self.prefix)):
            if key in self.asked:
                continue
            if key in neutral:
                rest.same(key, *neutral[key])
            elif not says_nothing(value := self.get(key)):
                rest.lack(key, value, "the field is not known")
        return rest.problems

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value

    def _stand_in(self, key: str, value: Any, needed: str) -> int:
        key = f"{self.prefix}{key}"
        self.note(
            f"{key} is missing" if value is REQUIRED else f"{key} is {_told(value)}; {needed} is needed"
        )
        return 1


def _equal(value: Any, allowed: Any) -> bool:
    """Whether two values are the same; a file may hold numbers as float32."""
    if isinstance(value, bool) or isinstance(allowed, bool) or not isinstance(value, int | float):
        return type(value) is type(allowed) and bool(value == allowed)
    return isinstance(allowed, int | float) and math.isclose(value, allowed, rel_tol=CLOSE)


def _told(value: Any) -> str:
    """A value for a message: the shortest text of a float32, the first elements of a list."""
    if isinstance(value, float):
        return f"{value:.1f}" if value.is_integer() else f"{value:.7g}"
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(_told, value[:4]))}, ...]"
    return repr(value)
