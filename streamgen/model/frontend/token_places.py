"""Tokens that a module finds at run time: the place of the greatest of all tokens, and rows at such places.

    x.argmax(1)              the least place of those that hold the greatest number
    x[arange(B), place]      the sum over tokens of (its place is the one that is meant, its row, else 0)

A place counts from the first token of the dimension in which it is found or taken; -1 is the last token. Ids
become numbers by a table that holds them, or the results of a comparison with one number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from streamgen.gateware.pointwise import Formula, FormulaBuilder
from streamgen.model.frontend.arithmetic import Operand, compute
from streamgen.model.frontend.draft import MOST_COUNTED, Draft
from streamgen.model.frontend.lookups import CLAMPS, COMPARED, OF_IDS, are_ids
from streamgen.model.frontend.moves import MOVES, RENAMES, renamed
from streamgen.model.frontend.on_contents import OnContents
from streamgen.model.frontend.trace import Unsupported, arguments, aten, is_ids, shape
from streamgen.model.operations import Embedding, Expression

IDS_COMPUTED = "ids can be computed with if they are looked up in a table, which says how many there are"
BEYOND = float(MOST_COUNTED + 1)  # greater than the place of any token
EXTREMES = {aten.argmax.default: False, aten.argmin.default: True}
"""Calls that find a place: whether it is that of the least element."""
TABLES = (aten.embedding.default, aten.index.Tensor, aten.index_select.default)


def expression(on: OnContents, formula: Callable[..., int], *operands: torch.Tensor) -> torch.Tensor:
    """Contents of an expression of operands, which broadcast. formula: of the builder and its values."""
    builder = FormulaBuilder()
    given = dict(zip(map(str, range(len(operands))), torch.broadcast_tensors(*operands), strict=True))
    found = builder.formula(formula(builder, *map(builder.value, given)))
    assert not isinstance(found, float)
    return on.each(Expression(found[0]), *(given[str(key)] for key in found[1]))


def compared(draft: Draft, node: Node) -> bool:
    """Read a comparison of ids with one number as a table of truth values; False for any other call."""
    if node.target not in COMPARED or draft.sequences.padding is None or not are_ids(draft, node.args[0]):
        return False
    ids, other = node.args[:2]
    if isinstance(other, Node):
        constant = draft.constants.tensors.get(other)
        other = constant.item() if isinstance(constant, torch.Tensor) and constant.numel() == 1 else None
    if other is None:
        return False
    function: Any = node.target
    truths = function.overloadpacket.Scalar(torch.arange(_vocabulary(draft, node, ids)), other)
    draft.keep(node, _looked_up(draft, node, ids, truths.float()).expand(shape(node)))
    return True


@contextmanager
def numbers_of_ids(draft: Draft, node: Node) -> Iterator[None]:
    """Within a block, the ids that a call of arithmetic reads are numbers like any other."""
    before = {}
    if draft.sequences.padding is not None and node.target not in OF_IDS:
        for source in node.all_input_nodes:
            if are_ids(draft, source):
                before[source] = draft.contents[source]
                draft.contents[source] = as_numbers(draft, node, source)
    try:
        yield
    finally:
        draft.contents |= before


def as_numbers(draft: Draft, node: Node, ids: Node) -> torch.Tensor:
    """Contents of ids as numbers."""
    count = _vocabulary(draft, node, ids)
    if count > MOST_COUNTED:
        raise Unsupported(
            f"it computes with ids below {count}; those below {MOST_COUNTED + 1} can be numbers. Ids can be "
            "compared with one number, and looked up in an embedding"
        )
    numbers = _looked_up(draft, node, ids, torch.arange(count, dtype=torch.float32))
    draft.count(numbers, count - 1)
    return numbers


def cast(draft: Draft, node: Node) -> None:
    """Read a cast of floats to integers, which cuts their fractions off, or of integers to floats. Integers
    are counted if a clamp bounds them. Those of few bits need a clamp to what they hold."""
    source = node.all_input_nodes[0]
    floats, kind = source.meta["val"].is_floating_point(), node.meta["val"].dtype
    if floats and _holds(kind, source) and source not in draft.partial:
        order, columns = draft.form(node, source, draft.elements.spread)
        compute(draft, node, Expression(Formula(values=1, steps=(("trunc", (0,)),))), order, Operand(columns))
        most = _bound(source)
        draft.count(draft.contents[node], -1 if most is None else most)
    elif not floats and draft.is_whole(draft.contents.get(source)):
        draft.keep(node, draft.contents[source])
    elif are_ids(draft, source) and draft.sequences.padding is not None:
        draft.keep(node, as_numbers(draft, node, source))
    else:
        raise Unsupported(f"it casts {'floats' if floats else 'integers'} to {kind}")


def _holds(kind: torch.dtype, source: Node) -> bool:
    """Whether a type of integers holds the elements of a value of floats without their fractions."""
    if kind in WIDE or kind == torch.bool:
        return kind in WIDE
    bounds = _bounds(source)
    return bounds is not None and torch.iinfo(kind).min <= bounds[0] <= bounds[1] <= torch.iinfo(kind).max


def _bound(node: Node) -> int | None:
    """The number that elements are at most if a clamp says that they are not below 0; None otherwise."""
    bounds = _bounds(node)
    return int(bounds[1]) if bounds is not None and bounds[0] >= 0 else None


def _bounds(node: Node) -> tuple[float, float] | None:
    """The bounds that a clamp gives elements; None without one."""
    while node.op == "call_function" and node.target in MOVES | RENAMES | ROUNDED and node.all_input_nodes:
        node = node.all_input_nodes[0]
    if node.target not in CLAMPS:
        return None
    low, high = (arguments(node).get(name) for name in ("min", "max"))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return (low, high) if low <= high else None


def count_result(draft: Draft, node: Node) -> None:
    """Note that sums, differences, products and choices of counted values are whole, and clamped integers."""
    value, contents = node.meta.get("val"), draft.contents.get(node)
    if contents is None or not isinstance(value, torch.Tensor) or value.dtype not in WIDE:
        return
    given = arguments(node)
    if node.target in CLAMPS and (most := _bound(node)) is not None:
        draft.count(contents, most)
    elif node.target in WHOLE and given.get("alpha", 1) == 1:
        names, greatest = WHOLE[node.target]
        mosts = [_most(draft, given[name]) for name in names]
        if None not in mosts:
            draft.count(contents, greatest(*mosts))


def _most(draft: Draft, operand: Any) -> int | None:
    """The number that whole numbers of at least 0 are at most; None for others."""
    if operand in draft.contents:
        return draft.counted(draft.contents[operand])
    constant = draft.constants.tensors.get(operand) if isinstance(operand, Node) else torch.tensor(operand)
    if not isinstance(constant, torch.Tensor) or not is_ids(constant) or not constant.numel():
        return None
    return int(constant.max()) if constant.min() >= 0 else None


def _vocabulary(draft: Draft, node: Node, ids: Node) -> int:
    """The number of rows of the least table that ids choose from."""
    inputs = _inputs_of(ids)
    sizes = []
    for call in node.graph.nodes:
        if call.target not in TABLES or len(call.args) < 2:
            continue
        places = [n for n in call.all_input_nodes if n is not call.args[0] and _inputs_of(n) & inputs]
        if places and call.args[0] in draft.constants.tensors:
            sizes.append(shape(call.args[0])[0])
    if not sizes:
        raise Unsupported(IDS_COMPUTED)
    return min(sizes)


def _inputs_of(node: Node) -> set[Node]:
    """The inputs of the module whose elements a call moves."""
    if node.op == "placeholder":
        return {node}
    moves = node.op == "call_function" and node.target in MOVES | RENAMES
    return {n for source in node.all_input_nodes for n in _inputs_of(source)} if moves else set()


def _looked_up(draft: Draft, node: Node, ids: Node, numbers: torch.Tensor) -> torch.Tensor:
    """Contents of a number for each id."""
    contents = draft.contents[ids]
    order, columns = draft.elements.spread(contents)
    op = Embedding(numbers[:, None].numpy())
    names = [draft.add(node, f"{node.name}_of_ids", op, draft.value(node, c)) for c in columns.split(1)]
    made = torch.empty(contents.numel(), dtype=torch.int64)
    by_column = torch.cat([draft.columns(name, 1) for name in names])
    made[order.places] = draft.elements.indices(by_column, order.rows[:, None])
    return made.reshape(contents.shape)


def place_of_extreme(draft: Draft, node: Node) -> bool:
    """Read the place of the greatest or least of all tokens; False if a call finds no place among tokens."""
    if node.target not in EXTREMES or not draft.knows(node.args[0]):
        return False
    given = arguments(node)
    contents = draft.form(node, given["self"], lambda c: c)
    dim = given["dim"]
    lines = contents.reshape(1, -1) if dim is None else contents.movedim(dim, -1)
    on = OnContents(draft, node)
    if not lines.numel() or not lines.ndim or not on.is_over_tokens(lines.reshape(-1, lines.shape[-1])):
        return False
    lines = lines.reshape(-1, lines.shape[-1])
    places = _places(draft, node, lines)
    counted = draft.are_counted(lines)
    if draft.elements.framed and not counted and lines.shape[1] < (draft.elements.run or draft.elements.rows):
        raise Unsupported("it finds the place of an extreme of some tokens, whose numbers may be infinite")
    if EXTREMES[node.target]:
        lines = on.negated(lines)
    elif renamed(given["self"]).meta["val"].dtype == torch.bool:
        return _first_of_kind(draft, on, lines, places)
    greatest = on.over_tokens("max", lines)

    def held(f: FormulaBuilder, x: int, most: int, place: int) -> int:
        here = f.apply("eq", x, most)
        here = here if counted else f.apply("or", here, f.apply("is_nan", x))
        return f.apply("where", here, place, f.constant(BEYOND))

    held_places = expression(on, held, lines, greatest[:, None], places)
    draft.keep(node, on.over_tokens("min", held_places).reshape(shape(node)))
    draft.count(draft.contents[node])
    return True


def _first_of_kind(draft: Draft, on: OnContents, lines: torch.Tensor, places: torch.Tensor) -> bool:
    """Read the place of the first 1 among ones and zeros, which is 0 if there is none, in one reduction."""

    def held(f: FormulaBuilder, here: int, place: int) -> int:
        return f.apply("where", here, place, f.constant(BEYOND))

    def found(f: FormulaBuilder, place: int) -> int:
        return f.apply("where", f.apply("lt", place, f.constant(BEYOND)), place, f.constant(0.0))

    least = on.over_tokens("min", expression(on, held, lines, places))
    draft.keep(on.node, expression(on, found, least).reshape(shape(on.node)))
    draft.count(draft.contents[on.node])
    return True


def rows_at_places(draft: Draft, node: Node) -> bool:
    """Read rows of tokens at a place of run time, one for each sequence; False for any other call."""
    found = _with_one_place(draft, node)
    if found is None:
        return False
    lines, index = found
    on = OnContents(draft, node)
    flat, index = lines.reshape(-1, lines.shape[-1]), index.reshape(-1)
    if not draft.elements.run or not draft.elements.are_single(index // draft.elements.stride):
        raise Unsupported(
            "its places differ from token to token; one place for each sequence can be taken at run time"
        )
    chosen, each = index.unique(return_inverse=True)
    first = torch.tensor([int((each == number).nonzero()[0]) for number in range(len(chosen))])
    places = _places(draft, node, flat[first])
    if not draft.are_counted(chosen):  # -1 is the last one
        count = on.over_tokens("max", places)

        def wrapped(f: FormulaBuilder, place: int, last: int) -> int:
            behind = f.apply("add", f.apply("add", place, last), f.constant(1.0))
            return f.apply("where", f.apply("lt", place, f.constant(0.0)), behind, place)

        chosen = expression(on, wrapped, chosen, count)
    here = expression(on, lambda f, place, wanted: f.apply("eq", place, wanted), places, chosen[:, None])

    def kept(f: FormulaBuilder, is_here: int, x: int) -> int:
        return f.apply("where", is_here, x, f.constant(0.0))

    whole = draft.counted(flat)
    rows = on.over_tokens("sum", expression(on, kept, here[each], flat))
    draft.keep(node, rows.reshape(shape(node)))
    if whole is not None:
        draft.count(draft.contents[node], whole)
    return True


def _with_one_place(draft: Draft, node: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The elements [.., places] that a call chooses from, for each element of its result, and the place that
    it chooses; None if a call has no place of run time among tokens."""
    if node.target not in TAKEN:
        return None
    given = arguments(node)
    source, indices = given["self"], given.get("indices", given.get("index"))
    listed: list[Any] = list(indices) if isinstance(indices, Sequence) else [indices]
    late = [d for d, index in enumerate(listed) if draft.knows(index)]
    if len(late) != 1 or source not in draft.contents:
        return None
    chooser = listed[late[0]]
    dimension = late[0] if node.target == aten.index.Tensor else given["dim"]
    contents = draft.contents[source]
    if chooser.meta["val"].dtype not in WIDE or are_ids(draft, chooser) or not contents.ndim:
        return None
    if not OnContents(draft, node).is_over_tokens(contents.movedim(dimension, -1).flatten(0, -2)):
        return None
    index = draft.form(node, chooser, lambda c: c)
    contents = draft.form(node, source, lambda c: c)
    function: Any = node.target

    def taken(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor
        if node.target != aten.index.Tensor:
            found = function(x, dimension, places)
        else:
            found = function(x, [places if i is chooser else draft.constants.tensors.get(i) for i in listed])
        return found

    count = contents.shape[dimension]
    each = [taken(contents, torch.full(index.shape, place)) for place in range(count)]
    extents = [1] * contents.ndim
    extents[dimension] = index.numel()
    numbers = torch.arange(index.numel())
    wide = [*contents.shape]
    wide[dimension] = index.numel()
    which = taken(numbers.reshape(extents).expand(wide), numbers.reshape(index.shape))
    return torch.stack(each, -1), index.reshape(-1)[which]


def _places(draft: Draft, node: Node, lines: torch.Tensor) -> torch.Tensor:
    """Contents, like those of lines [.., tokens], of the place of each token in its line."""
    elements = draft.elements
    run = elements.run or elements.rows
    rows = lines % elements.stride
    by_line = (rows - elements.before) % run
    if (by_line != by_line[:1]).any() or len(by_line[0].unique()) != lines.shape[1]:
        raise Unsupported("each place of a line must be another token, the same in each sequence")
    numbers = np.empty((run, 1), np.float32)
    numbers[by_line[0].numpy(), 0] = np.arange(lines.shape[1], dtype=np.float32)
    places = by_line[0].sort().values
    tokens = elements.tokens.reshape(-1, run)[:, places]
    by_row = np.tile(numbers[places.numpy()], (len(tokens), 1))
    numbered, key = draft.sequences.numbered, tuple(by_line[0].tolist())
    if key not in numbered:
        columns = draft.sequences.by_place(node, by_row, tokens.reshape(-1))
        if columns is None:
            raise Unsupported("places of tokens differ between sequences")
        numbered[key] = columns
    return elements.indices(numbered[key], rows)


WHOLE: dict[Any, tuple[tuple[str, str], Callable[..., int]]] = {
    aten.add.Tensor: (("self", "other"), lambda a, b: a + b),
    aten.mul.Tensor: (("self", "other"), lambda a, b: a * b),
    aten.sub.Tensor: (("self", "other"), lambda a, b: -1),
    aten.rsub.Scalar: (("self", "other"), lambda a, b: -1),
    aten.masked_fill.Scalar: (("self", "value"), max),
    **dict.fromkeys([aten.where.self, aten.where.ScalarOther], (("self", "other"), max)),
}
"""Calls that make whole numbers of two counted values: the greatest result; -1 if it may be below 0."""
WIDE = {torch.int32, torch.int64}
ROUNDED = {aten.floor.default, aten.trunc.default}
TAKEN = {aten.index.Tensor, aten.index_select.default, aten.gather.default}
"""Calls that take elements at places."""
