"""The text of an itensor, to and from.

    itensor<4x2xf32, iter_space: [4,2]*[2,4], iter_map: (d0,d1)->(d1,d0+2)>

The space lists trip counts and steps, the map gives for each data dimension the sum of its loops and
its base. White space is free between tokens. `0` is a dimension without loops and base.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[0-9]+")
_NAME = re.compile(r"[a-z]+[0-9]*[a-z]*")
_LOOP = re.compile(r"d[0-9]+")


def render(
    element_shape: Sequence[int],
    dtype: str,
    tripcounts: Sequence[int],
    steps: Sequence[int],
    iter_map: Sequence[Sequence[int]],
    base: Sequence[int],
) -> str:
    """The one text of these fields."""
    tile = "x".join([*map(str, element_shape), dtype])
    trips, strides = (",".join(map(str, values)) for values in (tripcounts, steps))
    loops = ",".join(f"d{loop}" for loop in range(len(tripcounts)))
    sums = []
    for entry, start in zip(iter_map, base, strict=True):
        terms = [f"d{loop}" for loop in entry]
        if start or not terms:
            terms.append(str(start))
        sums.append("+".join(terms))
    return f"itensor<{tile}, iter_space: [{trips}]*[{strides}], iter_map: ({loops})->({','.join(sums)})>"


def parse(string: str) -> dict[str, Any]:
    """The arguments of the ITensor that this text names."""
    if not isinstance(string, str):
        raise TypeError(f"the text of an itensor must be a str, not {string!r}")
    reader = _TextPosition(string)
    reader.expect("itensor")
    reader.expect("<")
    shape: list[int] = []
    while (extent := reader.match(_NUMBER)) is not None:
        shape.append(int(extent))
        reader.expect("x")
    dtype = reader.match(_NAME)
    if dtype is None:
        reader.fail("a format")
    for token in (",", "iter_space", ":"):
        reader.expect(token)
    tripcounts = reader.listed("[", reader.number, "]")
    reader.expect("*")
    steps = reader.listed("[", reader.number, "]")
    for token in (",", "iter_map", ":"):
        reader.expect(token)
    names = reader.listed("(", reader.loop, ")")
    if names != list(range(len(tripcounts))):
        raise ValueError(
            f"the map must start from {len(tripcounts)} loops d0, d1, ... in order in {string!r}, "
            f"not from ({','.join(f'd{name}' for name in names)})"
        )
    reader.expect("-")
    reader.expect(">")
    sums = reader.listed("(", reader.sum, ")")
    reader.expect(">")
    reader.end()
    return {
        "element_shape": shape,
        "dtype": dtype,
        "tripcounts": tripcounts,
        "steps": steps,
        "iter_map": [loops for loops, _ in sums],
        "base": [start for _, start in sums],
    }


class _TextPosition:
    """A position in a text."""

    def __init__(self, string: str) -> None:
        self._string = string
        self._at = 0
        self._skip()

    def _skip(self) -> None:
        match = _SPACE.match(self._string, self._at)
        self._at = match.end() if match else self._at

    def fail(self, wanted: str) -> NoReturn:
        raise ValueError(f"expected {wanted} at position {self._at} of {self._string!r}")

    def match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._string, self._at)
        if match is None:
            return None
        self._at = match.end()
        self._skip()
        return match[0]

    def skip(self, token: str) -> bool:
        return self.match(re.compile(re.escape(token))) is not None

    def expect(self, token: str) -> None:
        if not self.skip(token):
            self.fail(repr(token))

    def end(self) -> None:
        if self._at != len(self._string):
            self.fail("the end")

    def number(self) -> int:
        number = self.match(_NUMBER)
        if number is None:
            self.fail("a number")
        return int(number)

    def loop(self) -> int:
        loop = self.match(_LOOP)
        if loop is None:
            self.fail("a loop d<i>")
        return int(loop[1:])

    def sum(self) -> tuple[list[int], int]:
        loops: list[int] = []
        start: int | None = None
        while True:
            if (number := self.match(_NUMBER)) is not None:
                if start is not None:
                    raise ValueError(f"a sum has two numbers, {start} and {number}, in {self._string!r}")
                start = int(number)
            else:
                loops.append(self.loop())
            if not self.skip("+"):
                return loops, start or 0

    def listed(self, opening: str, item: Callable[[], Any], closing: str) -> list[Any]:
        self.expect(opening)
        if self.skip(closing):
            return []
        items = [item()]
        while self.skip(","):
            items.append(item())
        self.expect(closing)
        return items
