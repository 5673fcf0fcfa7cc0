"""Linears of lines within a row, such as columns of a table with features each: every line by itself.

Lines of the same features become one Linear, with the rows of all their weights. If all lines are features of
one value and few enough, one Linear reads the whole value, with zeros for features of other lines.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.elements import NEEDED
from streamgen.model.frontend.trace import Unsupported
from streamgen.model.operations import Linear
from streamgen.numbers.quantisation import GroupGrid

MOST_WEIGHTS = 1 << 16  # of one Linear in the place of several, zeros included
MOST_LINES = 64  # within a row, that become a Linear each


def by_line(
    draft: Draft,
    node: Node,
    contents: torch.Tensor,
    weight_of: Callable[[int], np.ndarray],
    bias: np.ndarray | None,
    asked: str | None = None,
    grid: GroupGrid | None = None,
) -> torch.Tensor:
    """Contents [.., out] of contents [.., in].

    weight_of: the weight [out, in] of each line, by its number among the lines of `contents`. grid: of the
    only weight; lines then have a Linear each. Raises Unsupported unless each line holds features of one
    token, and all tokens have the same lines.
    """
    elements = draft.elements
    lines = contents.reshape(-1, features := contents.shape[-1])
    order, columns = elements.spread(contents)
    whole = order.places.shape[1] % features == 0
    places = order.places.reshape(len(order.places), -1, features) if whole else order.places[:, :0, None]
    numbers = places[..., 0] // features
    if not places.numel() or (places != (numbers * features)[..., None] + torch.arange(features)).any():
        raise elements.refusal(contents, NEEDED)
    weights = [[weight_of(line) for line in of_token] for of_token in numbers.tolist()]
    if any(a is not b for other in weights[1:] for a, b in zip(other, weights[0], strict=True)):
        raise Unsupported("its weights differ from token to token")
    of_lines = draft.settled(columns).reshape(-1, features)
    results = _linears(draft, node, of_lines, weights[0], bias, asked, grid)
    found = torch.empty(len(lines), results.shape[1], dtype=torch.int64)
    found[numbers] = elements.indices(results, order.rows[:, None, None])
    return found.reshape(*contents.shape[:-1], -1)


def _linears(
    draft: Draft,
    node: Node,
    columns: torch.Tensor,
    weights: list[np.ndarray],
    bias: np.ndarray | None,
    asked: str | None,
    grid: GroupGrid | None,
) -> torch.Tensor:
    """Columns [lines, out] of columns [lines, in]."""
    out = len(weights[0])
    groups: dict[tuple[int, ...], list[int]] = {}
    for line, some in enumerate(columns.tolist()):
        groups.setdefault(tuple(some), []).append(line)
    sources = {name for name, _ in draft.elements.parts(columns.reshape(-1))}
    results = torch.empty(len(columns), out, dtype=torch.int64)

    def keep(name: str, lines: list[int]) -> None:
        results[lines] = draft.columns(name, len(lines) * out).reshape(-1, out)

    def tiled(lines: list[int]) -> np.ndarray | None:
        return None if bias is None else np.tile(bias, len(lines))

    if len(sources) == 1 and len(groups) > 1 and grid is None:
        (source,) = sources
        if len(columns) * out * (size := draft.elements.size(source)) <= MOST_WEIGHTS:
            whole = np.zeros((len(columns), out, size), np.float32)
            for line, weight in enumerate(weights):
                ((_, features),) = draft.elements.parts(columns[line])
                np.add.at(whole[line].T, features.numpy(), weight.T)
            everything = list(range(len(columns)))
            op = Linear(whole.reshape(-1, size), tiled(everything), asked=asked)
            keep(draft.linear(node, draft.named(node), op, source), everything)
            return results
    if len(groups) > MOST_LINES:
        raise Unsupported(f"it multiplies {len(groups)} lines of a row; at most {MOST_LINES} can be compiled")
    for lines in groups.values():
        if grid is not None:  # equal lines have one result
            op = Linear(weights[lines[0]], bias, grid, asked)
            name = draft.linear(node, draft.named(node), op, draft.value(node, columns[lines[0]]))
            results[lines] = draft.columns(name, out)
            continue
        weight = np.concatenate([weights[line] for line in lines]) if len(lines) > 1 else weights[lines[0]]
        op = Linear(weight, tiled(lines), asked=asked)
        keep(draft.linear(node, draft.named(node), op, draft.value(node, columns[lines[0]])), lines)
    return results
