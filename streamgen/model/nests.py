"""The nesting of a torch module's arguments and results, stored with a design that only has names.

A nest consists of tuples, lists and dicts. Its leaves are names of inputs or outputs; None stands for a leaf
that is not a tensor. Leading dimensions of a result are those of the inputs, some joined, with dimensions of
extent 1 in between. Trailing dimensions of an input or a result may be joined to the features of a row.
Arguments of ids may have several columns, each of which is an input of the design. Masks tell tokens from
padding and are no inputs; the places of tokens are an input and no argument.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.base.files import decode, parsed, read_file
from streamgen.base.wording import alternatives
from streamgen.model.frames import Frame
from streamgen.model.input_kinds import KINDS, as_floats, of_kind
from streamgen.model.nest_values import filled, names_of, pairs_of, tagged, untagged
from streamgen.model.padding import ONE, MaskRule, require_no_padding, shown_tokens, without_padding_ids

INTERFACE = "interface.json"

TYPES = ("bool", "int32", "int64")  # of results that are no floats
ALL = -2  # in the place of a dimension: all dimensions joined


@dataclass(frozen=True, kw_only=True)
class Interface:
    """Arguments and results of a module.

    arguments: a tuple, the positional arguments. results: a nest. leading: for each result by name, the
    dimensions of the inputs that are its leading dimensions; None: all of them; -1: an extent of 1; -2: all
    of them joined. only: leading dimensions of the inputs that the module fixes, with their extents.
    trailing: by name of an argument or a result, the last dimensions that hold its features, if not one. ids:
    by name of an argument that holds ids, the inputs that are its columns, each with the number of rows that
    its ids choose from; 0 for a column that is no input, since no result depends on it. whole: all
    dimensions of all arguments are features of the one row of a run. ranks: the number of leading dimensions
    of the inputs; None for any number that the rules allow. places: by name of an input that takes the place
    of each token in its sequence, the number of places. masks: by name of an argument that is a mask, its
    rule. padding: by name of an input that takes ids, those that the module takes for padding; they must not
    be given, except where masks hide them.
    All other arguments are inputs of the same name. types: by name of a result that holds truth values or
    integers, the type of its numbers.
    unused: by name of an argument that is no input, since no result depends on it, the extent of its last
    dimension.
    frames: by name of an argument or a result, how it lies in a frame, whose extents are those of `only`.
    kinds: by name of an argument of truth values or integers that are numbers, their type.
    """

    arguments: tuple[Any, ...]
    results: Any
    leading: Mapping[str, tuple[int, ...] | None]
    only: Mapping[int, int]
    trailing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    whole: bool = False
    ranks: int | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    masks: Mapping[str, MaskRule] = field(default_factory=dict)
    padding: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, int] = field(default_factory=dict)
    frames: Mapping[str, Frame] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def taken(self, given: Sequence[Any]) -> dict[str, np.ndarray]:
        """Inputs by name, without the leading dimensions that are always 1.

        Raises TypeError for another number of arguments, another nest and ids that are no integers,
        ValueError for an extent that the module does not accept, for an id without a row in its table, for
        ids of padding, for more tokens than there are places, and for masks that hide tokens.
        """
        if len(given) != len(self.arguments):
            names = ", ".join(names_of(self.arguments))
            raise TypeError(f"run takes {len(self.arguments)} inputs ({names}); {len(given)} are given")
        arrays = self._rows(given)
        rules = [rule for rule in self.leading.values() if rule is not None]
        ranks = max((dimension + 1 for rule in rules for dimension in rule), default=0)
        for name, array in arrays.items():
            if array.ndim <= ranks:
                raise ValueError(
                    f"input {name!r} has shape {array.shape}; the module has results of {ranks} leading "
                    "dimensions of it"
                )
            for dimension, extent in self.only.items():
                if array.ndim <= dimension or array.shape[dimension] != extent:
                    raise ValueError(
                        f"input {name!r} has shape {array.shape}; the module fixes dimension {dimension} at "
                        f"{extent}"
                    )
        self._require_ranks(arrays)
        tokens, lengths = self.lengths(given)
        if any(length < tokens for length in lengths):
            raise ValueError("a mask hides tokens; each sequence must be computed by itself")
        ones = self._ones
        inputs: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            rows = array.reshape(_without(array.shape, ones))
            if name in self.unused:
                continue
            inputs |= self._columns(name, rows) if name in self.ids else {name: rows}
        lead = rows.shape[:-1]
        for name, places in self.places.items():
            if lead[-1] > places:
                raise ValueError(
                    f"a sequence has {lead[-1]} tokens; the model was compiled with {places} places, which "
                    "is the least of what the module has and CompileConfig.max_tokens"
                )
            inputs[name] = np.broadcast_to(np.arange(lead[-1]), lead)
        return inputs

    def lengths(self, given: Sequence[Any]) -> tuple[int, list[int]]:
        """The tokens of a sequence with padding, and those of each sequence without; none without masks.
        Raises the errors of `shown_tokens`."""
        if not self.masks:
            return 0, []
        arrays = self.named_arguments(given)
        lead = next(array.shape[:-1] for array in self._rows(given).values())
        tokens = self._tokens(lead)
        masks = {name: (self._mask(name, arrays[name], lead), rule) for name, rule in self.masks.items()}
        return lead[tokens], shown_tokens(masks, lead, tokens)

    def _tokens(self, lead: Sequence[int]) -> int:
        """The leading dimension that is the tokens of a sequence."""
        return next((d for d in reversed(range(len(lead))) if self.only.get(d) != 1), len(lead) - 1)

    def _mask(self, name: str, mask: Any, lead: Sequence[int]) -> Any:
        """A mask with the leading dimensions of the inputs; ValueError for a mask of a frame that hides
        tokens or has another shape than the example."""
        if name not in self.frames:
            return mask
        self.frames[name].framed(name, mask)  # which checks the shape
        if not self.masks[name].shown(mask, lead[self.masks[name].tokens])[0].all():
            raise ValueError(
                f"input {name!r} hides tokens; the module was compiled for one number of tokens, none of "
                "them padding. Compile it with an example of the tokens that are shown"
            )
        return self.masks[name].plain(lead)

    def without_padding(self, given: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """The arguments of each sequence by itself, without padding; None if masks hide nothing. Raises the
        errors of `lengths`."""
        tokens, lengths = self.lengths(given)
        if all(count == tokens for count in lengths):
            return None
        arrays = self.named_arguments(given)
        lead = next(array.shape[:-1] for array in self._rows(given).values())
        sequences = []
        for index, count in zip(np.ndindex(*lead[:-1]), lengths, strict=True):
            places = (*(slice(i, i + 1) for i in index), slice(count))
            own = (*(1 for _ in index), count)
            parts = {
                name: self.masks[name].plain(own) if name in self.masks else array[places]
                for name, array in arrays.items()
            }
            sequences.append(filled(self.arguments, parts))
        return sequences

    def with_padding(
        self, parts: Sequence[Mapping[str, np.ndarray]], given: Sequence[Any]
    ) -> dict[str, np.ndarray]:
        """The values of all sequences as one array for each result, from those of each sequence by itself.
        Rows of hidden tokens are NaN, because they were not computed."""
        tokens, lengths = self.lengths(given)
        dimension = self._tokens(next(array.shape[:-1] for array in self._rows(given).values()))
        whole = {}
        for name in parts[0]:
            rows, rule = [part[name] for part in parts], self.leading[name]
            if rule is None or dimension in rule:
                rows = [row.reshape(count, -1) for row, count in zip(rows, lengths, strict=True)]
                hidden = [np.full((tokens - len(row), row.shape[-1]), np.nan, row.dtype) for row in rows]
                rows = [np.concatenate(both) for both in zip(rows, hidden, strict=True)]
            whole[name] = np.stack(rows)
        return whole

    def _require_ranks(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError for another number of leading dimensions, if that is fixed."""
        for name, array in arrays.items():
            if self.ranks is not None and array.ndim - 1 != self.ranks:
                raise ValueError(
                    f"input {name!r} has {array.ndim - 1} leading dimensions; the module has {self.ranks}, "
                    "of which some results lack that of the tokens"
                )

    def _columns(self, name: str, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs that are the columns of ids [..., columns]."""
        if ids.dtype.kind not in "iu":
            raise TypeError(f"input {name!r} takes ids, which are integers; numpy's {ids.dtype} is given")
        inputs = {}
        for index, (column, rows) in enumerate(self.ids[name].items()):
            if not rows:
                continue
            inputs[column] = ids[..., index]
            wrong = inputs[column][(inputs[column] < 0) | (inputs[column] >= rows)]
            if wrong.size:
                place = f" in column {index}" if len(self.ids[name]) > 1 else ""
                raise ValueError(f"input {name!r} holds {wrong[0]}{place}; ids are 0 to {rows - 1} there")
            require_no_padding(name, inputs[column], self.padding.get(column, ()), any(self.masks.values()))
        return inputs

    def rebuilt(self, values: Mapping[str, np.ndarray], given: Sequence[Any]) -> Any:
        """The results, nested as in torch. values: by name, with the leading dimensions that
        `taken` leaves."""
        lead = next(array.shape[:-1] for array in self._rows(given).values())
        extents = {ONE: 1, ALL: prod(lead), **dict(enumerate(lead))}
        shaped = {}
        for name, array in values.items():
            rule = self.leading[name]
            shape = lead if rule is None else [extents[dimension] for dimension in rule]
            rows = array.reshape((*shape, *self.trailing.get(name, array.shape[-1:])))
            rows = self.frames[name].own(rows) if name in self.frames else rows
            shaped[name] = rows.astype(self.types[name]) if name in self.types else rows
        return filled(self.results, shaped)

    @property
    def names(self) -> list[str]:
        """Names of the arrays among the arguments, in order."""
        return list(names_of(self.arguments))

    def nested(self, arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """The arguments with these arrays in order. ValueError for another number of arrays."""
        nest: tuple[Any, ...] = filled(self.arguments, dict(zip(self.names, arrays, strict=True)))
        return nest

    def named_arguments(self, arguments: Sequence[Any]) -> dict[str, np.ndarray]:
        """The arrays among the arguments by name, in order."""
        return dict(pairs_of(self.arguments, tuple(arguments), "inputs"))

    def named_results(self, results: Any) -> dict[str, np.ndarray]:
        """The arrays among the results by name."""
        return dict(pairs_of(self.results, results, "results"))

    def given(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The arrays among the arguments, in order, that `taken` turns into inputs [tokens, features], with
        one leading dimension that is not fixed. Ids [tokens] are taken modulo the rows of their table.

        ValueError for a number of tokens that the fixed dimensions do not divide.
        """
        return [
            self._argument(
                name,
                np.zeros((len(next(iter(inputs.values()))), 1))
                if name in self.masks
                else np.stack(
                    [
                        without_padding_ids(inputs[column] % rows, self.padding.get(column, ()), rows)
                        if rows
                        else np.zeros(len(next(iter(inputs.values()))), np.int64)
                        for column, rows in self.ids[name].items()
                    ],
                    axis=-1,
                )
                if name in self.ids
                else np.zeros((len(next(iter(inputs.values()))), self.unused[name]), np.float32)
                if name in self.unused
                else inputs[name],
            )
            for name in self.names
        ]

    def _argument(self, name: str, rows: np.ndarray) -> np.ndarray:
        if self.whole:
            if len(rows) != 1:
                raise ValueError(f"tokens is {len(rows)}; the inputs of the module are one row")
            array = rows.reshape(self.trailing[name])
            return of_kind(array, self.kinds[name]) if name in self.kinds else array
        fixed = prod(self.only.values())
        count, rest = divmod(len(rows), fixed)
        if rest:
            raise ValueError(f"tokens is {len(rows)}; the module takes multiples of {fixed}")
        free = next(d for d in range(len(self.only) + 1) if d not in self.only)
        lead = [self.only.get(d, count if d == free else 1) for d in range(max(free, *self.only, 0) + 1)]
        lead = [1] * ((self.ranks or 0) - len(lead)) + lead
        if name in self.masks:
            array = self.masks[name].plain(lead)
        else:
            array = rows.reshape(*lead, *self.trailing.get(name, rows.shape[-1:]))
            array = of_kind(array, self.kinds[name]) if name in self.kinds else array
        return self.frames[name].own(array) if name in self.frames else array

    def _rows(self, given: Sequence[Any]) -> dict[str, np.ndarray]:
        """Inputs by name, each with one dimension of features."""
        rows: dict[str, np.ndarray] = {}
        for name, array in self.named_arguments(given).items():
            if name in self.masks:
                continue
            array = as_floats(name, array, self.kinds[name]) if name in self.kinds else array
            array = self.frames[name].framed(name, array) if name in self.frames else array
            extents = self.trailing.get(name, array.shape[-1:])
            lead = array.shape[: max(array.ndim - len(extents), 0)]
            if self.whole and array.shape != extents:
                raise ValueError(
                    f"input {name!r} has shape {array.shape}; the module was compiled for {extents} alone. "
                    "Compile it again with an example of the other shape"
                )
            if not self.whole and name in self.trailing and (not lead or array.shape[len(lead) :] != extents):
                raise ValueError(
                    f"input {name!r} has shape {array.shape}; its last dimensions must be {extents}, behind "
                    "one or more of tokens"
                )
            rows[name] = array.reshape(*lead, prod(extents)) if name in self.trailing else array
        return rows

    def renamed(self, names: Mapping[str, str]) -> "Interface":
        """The interface of a design with other names of inputs and outputs."""
        names = {**{name: name for name in (*self.ids, *self.masks, *self.unused)}, **names}
        return replace(
            self,
            arguments=filled(self.arguments, names),
            results=filled(self.results, names),
            leading={names[name]: rule for name, rule in self.leading.items()},
            trailing={names[name]: extents for name, extents in self.trailing.items()},
            places={names[name]: rows for name, rows in self.places.items()},
            padding={names[name]: ids for name, ids in self.padding.items()},
            types={names[name]: kind for name, kind in self.types.items()},
            frames={names[name]: frame for name, frame in self.frames.items()},
            kinds={names[name]: kind for name, kind in self.kinds.items()},
            ids={
                names[name]: {names.get(column, column): rows for column, rows in columns.items()}
                for name, columns in self.ids.items()
            },
        )

    @property
    def _ones(self) -> set[int]:
        return {dimension for dimension, extent in self.only.items() if extent == 1}

    def to_json(self) -> str:
        """A text that `from_json` turns back into an equal interface."""
        fields = {"leading": dict(self.leading), "only": dict(self.only)}
        nests = {"arguments": tagged(self.arguments), "results": tagged(self.results)}
        few: dict[str, Mapping[str, Any]] = {"trailing": self.trailing, "ids": self.ids}  # of some interfaces
        few |= {"places": self.places}
        few |= {"padding": self.padding, "types": self.types, "unused": self.unused, "kinds": self.kinds}
        few |= {"frames": {name: asdict(frame) for name, frame in self.frames.items()}}
        few |= {"masks": {name: asdict(rule) for name, rule in self.masks.items()}}
        given = {name: dict(value) for name, value in few.items() if value}
        shapes: dict[str, Any] = {"whole": True} if self.whole else {}
        shapes |= {} if self.ranks is None else {"ranks": self.ranks}
        return json.dumps({**fields, **nests, **given, **shapes}) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Interface":
        """The interface from a text of `to_json`; ValueError for any other text."""
        value = parsed(text)
        if isinstance(value, dict):
            few = ("trailing", "ids", "places", "masks", "padding", "types", "unused", "frames", "kinds")
            value = {"whole": False, "ranks": None, **{name: {} for name in few}, **value}
        stored = decode(_Stored, value, "interface")
        interface = cls(
            arguments=untagged(stored.arguments, "interface.arguments"),
            results=untagged(stored.results, "interface.results"),
            leading=stored.leading,
            only=stored.only,
            trailing=stored.trailing,
            ids=stored.ids,
            whole=stored.whole,
            ranks=stored.ranks,
            places=stored.places,
            masks=stored.masks,
            padding=stored.padding,
            types=stored.types,
            unused=stored.unused,
            frames=stored.frames,
            kinds=stored.kinds,
        )
        if not isinstance(interface.arguments, tuple):
            raise ValueError("interface.arguments: expected a tuple")
        if set(stored.leading) != set(names_of(interface.results)):
            raise ValueError("interface.leading: expected the names of the results")
        if any(d < ALL for rule in stored.leading.values() for d in rule or ()):
            raise ValueError("interface.leading: expected dimensions, -1 or -2")
        if not set(stored.types) <= set(stored.leading) or not set(stored.types.values()) <= set(TYPES):
            raise ValueError(f"interface.types: expected names of results, each with {alternatives(TYPES)}")
        inputs = set(names_of(interface.arguments))
        if not set(stored.unused) <= inputs or any(extent < 1 for extent in stored.unused.values()):
            raise ValueError("interface.unused: expected names of arguments, each with an extent")
        if not set(stored.frames) <= inputs | set(stored.leading):
            raise ValueError("interface.frames: expected names of inputs or results")
        if not set(stored.ids) <= inputs or not all(map(len, stored.ids.values())):
            raise ValueError("interface.ids: expected names of inputs, each with columns")
        if not set(stored.padding) <= {column for columns in stored.ids.values() for column in columns}:
            raise ValueError("interface.padding: expected names of inputs that take ids")
        if any(min(rows.values()) < 0 or not any(rows.values()) for rows in stored.ids.values()):
            raise ValueError("interface.ids: expected numbers of rows")
        if not set(stored.trailing) <= inputs | set(stored.leading):
            raise ValueError("interface.trailing: expected names of inputs or results")
        if not set(stored.kinds) <= inputs or not set(stored.kinds.values()) <= set(KINDS):
            raise ValueError(f"interface.kinds: expected names of inputs, each with {alternatives(KINDS)}")
        floats = inputs - set(stored.ids) - set(stored.unused) - set(stored.kinds)
        ranks = 0 if stored.whole else 1
        if any((len(e) < ranks and n in floats) or any(d < 1 for d in e) for n, e in stored.trailing.items()):
            raise ValueError("interface.trailing: expected extents of 1 or more")
        if stored.whole and not inputs <= set(stored.trailing):
            raise ValueError("interface.trailing: expected all inputs, which are whole")
        if any(prod(stored.trailing.get(n, (0,))) != len(columns) for n, columns in stored.ids.items()):
            raise ValueError("interface.trailing: expected the columns of ids")
        if any(d < 0 or extent < 1 for d, extent in stored.only.items()):
            raise ValueError("interface.only: expected dimensions with their extents")
        return interface

    def require_names(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Raise ValueError unless these are the inputs and outputs in the nests."""
        for what, nest, names in (("arguments", self.arguments, inputs), ("results", self.results, outputs)):
            nested, twice = list(names_of(nest)), what == "results"  # a tensor may be returned twice
            if not twice:
                nested = [name for name in nested if name not in self.masks and name not in self.unused]
                nested += self.places
                columns = {name: [c for c, rows in own.items() if rows] for name, own in self.ids.items()}
                nested = [column for name in nested for column in columns.get(name, [name])]
            if set(nested) != set(names) or (not twice and len(nested) != len(set(names))):
                raise ValueError(
                    f"{INTERFACE}: its {what} are {', '.join(names_of(nest)) or 'none'}; the design has "
                    f"{', '.join(names)}"
                )


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """The JSON value of an interface."""

    arguments: Any
    results: Any
    leading: Mapping[str, tuple[int, ...] | None]
    only: Mapping[int, int]
    trailing: Mapping[str, tuple[int, ...]]
    ids: Mapping[str, Mapping[str, int]]
    whole: bool
    ranks: int | None
    places: Mapping[str, int]
    masks: Mapping[str, MaskRule]
    padding: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    unused: Mapping[str, int]
    frames: Mapping[str, Frame]
    kinds: Mapping[str, str]


def write_interface(interface: Interface | None, folder: Path) -> None:
    """Write an interface into an existing folder. If there is none, write that; arrays are then given and
    returned in order."""
    (folder / INTERFACE).write_text("null\n" if interface is None else interface.to_json())


def read_interface(folder: Path, read: Callable[[str], bytes] | None = None) -> Interface | None:
    """The interface that `write_interface` wrote; ValueError if it cannot be read. read: returns the content
    of a file by its name."""
    try:
        text = (read or partial(read_file, folder))(INTERFACE)
        return None if text == b"null\n" else Interface.from_json(text)
    except ValueError as error:
        raise ValueError(f"{folder / INTERFACE} cannot be read: {error}") from error


def leading_rule(result: Sequence[int], inputs: Sequence[int]) -> tuple[int, ...] | None:
    """Which leading dimensions of the inputs are those of a result (`Interface.leading`), by the extents of
    an example. GraphError if they are different ones."""
    if tuple(result) == tuple(inputs):
        return None
    if len(result) == 1 and result[0] == prod(inputs):
        return (ALL,)
    rule, at = [], 0
    for extent in result:
        while extent != 1 and at < len(inputs) and inputs[at] == 1:
            at += 1  # left out in the result
        if at < len(inputs) and inputs[at] == extent:
            rule.append(at)
            at += 1
        elif extent == 1:
            rule.append(ONE)
        else:
            break
    missing = [extent for extent in inputs[at:] if extent != 1]
    if len(rule) != len(result) or missing:
        raise GraphError(
            f"leading dimensions {list(inputs)} of the inputs become {list(result)} in a result; they must "
            "stay, or become one"
        )
    return tuple(rule)


def _without(shape: Sequence[int], dimensions: set[int]) -> tuple[int, ...]:
    return tuple(extent for d, extent in enumerate(shape) if d not in dimensions or d == len(shape) - 1)
