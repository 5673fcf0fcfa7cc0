"""The message for a module that cannot be compiled: one line, then at most eight; the exception has all
problems.

A problem is a call and the reason why it is refused. A problem that repeats from layer to layer is named
once:

    2 operations are not supported: elu and sort
      in 32 layers, first in layers.0.mlp (Gated), /home/me/model.py:12: aten.elu.default
      head (Head), /home/me/model.py:40: aten.sort.default
    Supported: ...

A model of transformers may have parts that cannot be compiled yet (`missing_parts`). These are named first,
instead of their operations:

    mixture of experts is not supported yet: Mixtral, 32 layers
      mixture of experts: in 32 places, first in model.layers.0.mlp
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from streamgen.base.errors import UnsupportedOperationError

SHOWN = 8  # lines behind the first
MORE = "more in the error's `operations`"
NAMED = 4  # operations in the first line
TORCH_FOLDER = str(Path(torch.__file__).parent)
STREAMGEN_FOLDER = str(Path(__file__).parents[1])
PACKAGES = ("site-packages", "dist-packages")


def is_installed(file: str) -> bool:
    """Whether a source file is part of an installed package, of streamgen itself, or no file; if so, it is
    not the user's."""
    return file.startswith(("<", STREAMGEN_FOLDER)) or any(folder in Path(file).parts for folder in PACKAGES)


def first_line(error: Exception) -> str:
    """The first line of another library's error; its class if the error has no text."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a call. path, kind: of its module; empty for the outermost module. lines: (file, number)
    of the call stack, innermost last, without torch's own lines."""

    path: str
    kind: str = ""
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def module(self) -> str:
        """`layers.0.gate (Linear)`."""
        return " ".join([self.path or "the module", *([f"({self.kind})"] if self.kind else [])])

    @property
    def line(self) -> str:
        """The innermost line of the user's code, `/home/me/model.py:12`; empty if there is none."""
        return next((f"{file}:{n}" for file, n in reversed(self.lines) if not is_installed(file)), "")

    @property
    def short(self) -> str:
        """The place without lines of installed packages."""
        return ", ".join(filter(None, (self.module, self.line)))

    def __str__(self) -> str:
        return ", ".join([self.module, *(f"{file}:{number}" for file, number in self.lines[-1:])])


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A call that cannot be compiled, with the reason unless its name is reason enough."""

    place: Place
    operation: str
    reason: str = ""

    @property
    def text(self) -> str:
        """The problem without its place."""
        return self.operation + (f": {self.reason}" if self.reason else "")

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class MissingPart:
    """A part of a model that is not supported. name: as in the literature. modules: paths of the modules that
    are this part; empty if it belongs to the whole model. detail: more about the part."""

    name: str
    modules: tuple[str, ...] = ()
    detail: str = ""

    def holds(self, path: str) -> bool:
        """Whether a module belongs to this part."""
        return any(f"{path}.".startswith(f"{module}.") for module in self.modules)

    def __str__(self) -> str:
        if not self.modules:
            return f"{self.name}: {self.detail}" if self.detail else ""
        return f"{self.name}: {_repeated(self.modules)}"


def refusal(
    problems: Sequence[Problem],
    supported: str,
    parts: Sequence[MissingPart] = (),
    subject: str = "",
    reason: str = "",
) -> UnsupportedOperationError:
    """The error with all problems, in order.

    supported: the supported operations. parts: missing parts of a model; `subject` is the name and size of
    the model. reason: the error of a model with missing parts whose operations are not known.
    """
    everything = tuple([*map(str, parts), *([reason] if reason else []), *map(str, problems)])
    if not parts:
        count = f"{len(problems)} operation{'s are' if len(problems) > 1 else ' is'}"
        first = f"{count} not supported: {_names(problems)}"
        lines = [*_shown(_grouped(problems), SHOWN - 1), f"Supported: {supported}."]
    else:
        first = f"{_listed([p.name for p in parts])} {_is(parts)} not supported yet: {subject}"
        others = [problem for problem in problems if not any(p.holds(problem.place.path) for p in parts)]
        lines = _shown([*filter(None, map(str, parts)), *_grouped(others)], SHOWN)
    indented = [line if line.startswith("Supported: ") else f"  {line}" for line in lines]
    return UnsupportedOperationError("\n".join([first, *indented]), [line for line in everything if line])


def _is(parts: Sequence[MissingPart]) -> str:
    return "are" if len(parts) > 1 or parts[0].name.endswith("inputs") else "is"


def _names(problems: Sequence[Problem]) -> str:
    """Names of operations, without torch's prefixes."""
    names = dict.fromkeys(re.sub(r"^aten\.(\w+?)_?(\.\w+)?$", r"\1", p.operation) for p in problems)
    return _listed(list(names), NAMED)


def _listed(names: Sequence[str], most: int = SHOWN) -> str:
    """`a, b and c`."""
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _shown(lines: Sequence[str], most: int) -> list[str]:
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} {MORE}"]


def _grouped(problems: Sequence[Problem]) -> list[str]:
    """One line for each problem; problems that are alike in several layers share a line."""
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        place = problem.place
        path = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", place.path)
        groups.setdefault((path, place.kind, place.line, problem.text), []).append(problem)
    return [f"{_first(group)}: {group[0].text}" for group in groups.values()]


def _first(group: Sequence[Problem]) -> str:
    place = group[0].place
    layers = {_layer(problem.place.path) for problem in group}
    return f"in {len(layers)} layers, first in {place.short}" if len(layers) > 1 else place.short


def _repeated(modules: Sequence[str]) -> str:
    layers = {_layer(path) for path in modules}
    return f"in {len(layers)} layers, first in {modules[0]}" if len(layers) > 1 else f"in {modules[0]}"


def _layer(path: str) -> str:
    """`model.layers.3` for everything in that layer; the whole path if it has no number."""
    return re.sub(r"((?:^|\.)\d+)\..*", r"\1", path)
