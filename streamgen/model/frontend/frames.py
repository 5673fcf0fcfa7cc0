"""Frames of a module: its inputs as sequences of one number of tokens, although it gives them different ones.

    decoder [1, 7, 64], encoder [1, 10, 64]    frame [1, 10, 64] each; three places of the decoder are empty
    image [1, 3, 224, 224], patches of 16      frame [1, 196, 768]; with a class token 197 places

A graph computes every value for all places of the frame, and a call that reads some of the tokens ignores the
others (`elements`). It holds for the shapes of the example, except for dimensions in front of the tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frames import Frame, inverse
from streamgen.model.frontend.elements import IN_TURN, NEEDED
from streamgen.model.frontend.moves import MOVES, RENAMES
from streamgen.model.frontend.trace import (
    Unsupported,
    arguments,
    aten,
    export_program,
    is_ids,
    plain_attention,
)

CONVOLUTIONS = {
    getattr(getattr(aten, f"conv{n}d"), overload): n for n in (1, 2, 3) for overload in ("default", "padding")
}
"""Calls that convolve, with the number of dimensions of a window."""
PRODUCTS = {aten.linear.default, aten.matmul.default, aten.mm.default}
VIEWS = {aten.view.default: aten.reshape.default}
Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Of an image: the number of tokens, a view and its order (`Frame`)."""
HELPED = (
    NEEDED,
    IN_TURN,
    "joins a constant to a value",
    "differs from token to token",
    "its mask",
    "it reduces over some tokens",
    "the left operand must be a value",
    "it needs a value that is computed at run time",
    "rows of an output must be in the order",
    "an output must have a row",
    "the same features for all tokens",
)
"""Parts of the reasons of refusals that may not hold in a frame."""


def may_help(refusal: UnsupportedOperationError) -> bool:
    """Whether calls that were refused for these reasons may be read in a frame."""
    lines = refusal.operations
    return bool(lines) and all(any(part in line for part in HELPED) for line in lines)


def frames_of(leaves: Sequence[Any], layouts: Mapping[int, Layout]) -> dict[int, Frame] | None:
    """Frames of example inputs and masks, by number; None if they do not differ in one dimension alone, that
    of the tokens. The frame has as many tokens as the longest input. layouts: see `layouts_of`."""
    leads: dict[int, tuple[int, ...]] = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            lead = leaf.shape if is_ids(leaf) else leaf.shape[:-1]
            leads[position] = (leaf.shape[0], layouts[position][0]) if position in layouts else tuple(lead)
    ranks = {len(lead) for lead in leads.values()}
    if len(ranks) != 1 or 0 in ranks:
        return None
    rank = ranks.pop()
    differing = [d for d in range(rank) if len({lead[d] for lead in leads.values()}) > 1]
    if len(differing) > 1 or (any(d != 1 for d in differing) and layouts):
        return None
    first = next(iter(leads.values()))
    d = differing[0] if differing else next((d for d in reversed(range(rank)) if first[d] != 1), rank - 1)
    size = max(lead[d] for lead in leads.values())
    frames = {}
    for position, lead in leads.items():
        shape = leaves[position].shape
        if position in layouts:
            tokens, view, order = layouts[position]
            frame = Frame(
                size=size, tokens=tokens, dimension=1, shape=(0, *shape[1:]), view=view, order=order
            )
        else:
            own = tuple(extent if n >= d or n >= rank else 0 for n, extent in enumerate(shape))
            frame = Frame(size=size, tokens=lead[d], dimension=d, shape=own)
        frames[position] = frame
    return frames


def grown(frames: Mapping[int, Frame], size: int, behind: int) -> dict[int, Frame]:
    """The frames with more places, of which so many are behind the inputs."""
    before = min(frame.behind for frame in frames.values())
    return {
        p: replace(frame, size=size, behind=frame.behind - before + behind) for p, frame in frames.items()
    }


def stacked(frames: Mapping[int, Frame], masks: Collection[int]) -> Iterator[dict[int, Frame]]:
    """Longer frames in which each input has places of its own: one behind the other, in their order and in
    the opposite one. masks: numbers of inputs that are masks."""
    inputs = [p for p in frames if p not in masks]
    size = sum(frames[p].tokens for p in inputs)
    for order in (inputs, inputs[::-1]) if len(inputs) > 1 and not masks else ():
        ends = np.cumsum([frames[p].tokens for p in order]).tolist()
        placed = zip(order, ends, strict=True)
        yield {p: replace(frames[p], size=size, behind=size - end) for p, end in placed}


def framed(frame: Frame, tensor: torch.Tensor) -> torch.Tensor:
    """The rows of the frame that hold a tensor."""
    if frame.view:
        lead = tensor.shape[: frame.dimension]
        tensor = tensor.reshape(*lead, *frame.view).permute(frame.permutation)
        tensor = tensor.reshape(*lead, frame.tokens, -1)
    parts = [tensor]
    for count in (frame.first, frame.behind):
        extents = [*tensor.shape]
        extents[frame.dimension] = count
        parts.append(torch.zeros(extents, dtype=tensor.dtype))
    return torch.cat([parts[1], tensor, parts[2]], frame.dimension)


def unframed(frame: Frame, rows: torch.Tensor) -> torch.Tensor:
    """The tensor that rows of the frame hold; ValueError for another number of rows."""
    if rows.shape[frame.dimension] != frame.size:
        raise ValueError(f"the frame has {frame.size} tokens, not {rows.shape[frame.dimension]}")
    rows = rows.narrow(frame.dimension, frame.first, frame.tokens)
    if not frame.view:
        return rows
    lead = rows.shape[: frame.dimension]
    ordered = rows.reshape(*lead, *(frame.view[d] for d in frame.order))
    return ordered.permute(inverse(frame.permutation)).reshape(*lead, *frame.shape[frame.dimension :])


def result_frame(frame: Frame, result: Any, lead: Sequence[int], behind: int = 0) -> Frame | None:
    """The frame of a result that has fewer tokens than the frame; None for any other result. lead: leading
    dimensions of the frames. behind: places behind the result."""
    d = frame.dimension
    if not isinstance(result, torch.Tensor) or result.ndim != len(lead) + 1 or result.shape[d] >= frame.size:
        return None
    if any(n != d and result.shape[n] != extent for n, extent in enumerate(lead)):
        return None
    shape = (0,) * result.ndim
    return Frame(size=frame.size, tokens=result.shape[d], dimension=d, shape=shape, behind=behind)


def windows(contents: torch.Tensor, kernel: Sequence[int]) -> torch.Tensor:
    """Windows [.., *grid, features] of contents [.., channels, *extents] that touch one another."""
    n = len(kernel)
    lead, channels, extents = contents.shape[: -n - 1], contents.shape[-n - 1], contents.shape[-n:]
    grid = [extent // k for extent, k in zip(extents, kernel, strict=True)]
    for d, (cells, k) in enumerate(zip(grid, kernel, strict=True)):
        contents = contents.narrow(len(lead) + 1 + d, 0, cells * k)
    contents = contents.reshape(
        *lead, channels, *(e for pair in zip(grid, kernel, strict=True) for e in pair)
    )
    at = len(lead)
    cells = [at + 1 + 2 * d for d in range(n)]
    order = [*range(at), *cells, at, *(d + 1 for d in cells)]
    return contents.permute(order).reshape(*lead, *grid, -1)


def window_of(node: Node) -> tuple[int, ...]:
    """The extents of the windows of a convolution; Unsupported if they overlap, have gaps or reach over the
    edge."""
    given = arguments(node)
    kernel = tuple(given["weight"].meta["val"].shape[2:])
    stride, padding, dilation = (given[name] for name in ("stride", "padding", "dilation"))
    if tuple(stride) * (len(kernel) // len(stride)) != kernel:
        raise Unsupported(
            f"the windows of its convolution are {_by(kernel)} and its stride is {_by(stride)}; convolutions "
            "whose stride is their window can be compiled"
        )
    if any(padding) if not isinstance(padding, str) else padding != "valid" and prod(kernel) > 1:
        raise Unsupported(f"its convolution has the padding {padding}; only 0 can be compiled")
    if any(one != 1 for one, k in zip(tuple(dilation) * len(kernel), kernel, strict=False) if k > 1):
        raise Unsupported(f"its convolution has the dilation {_by(dilation)}; only 1 can be compiled")
    if given["groups"] != 1:
        raise Unsupported(f"its convolution has {given['groups']} groups; only 1 can be compiled")
    return kernel


def _by(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))


def layouts_of(module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> dict[int, Layout]:
    """Layouts of images, by number: of inputs whose elements are moved before a first product or convolution
    reads them as rows."""
    floats = [p for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not is_ids(leaf)]
    if not any(leaves[p].ndim > 2 for p in floats):
        return {}
    args, keywords = pytree.tree_unflatten(list(leaves), spec)
    try:
        with plain_attention():
            program = export_program(module, args, keywords)
    except UnsupportedOperationError:  # torch cannot trace the module, which the other readings say
        return {}
    inputs = [
        node
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    tensors = [p for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    found = {}
    for position, node in zip(tensors, inputs, strict=True):
        leaf = leaves[position]
        if is_ids(leaf) or leaf.ndim < 3:
            continue
        lines = _first_lines(program.graph, node, leaf.shape)
        factors = None if lines is None else _factored(lines, leaf.shape)
        if factors is not None:
            found[position] = factors
    return found


def _first_lines(graph: torch.fx.Graph, source: Node, extents: Sequence[int]) -> torch.Tensor | None:
    """The rows of places of an input that the first product or convolution reads; None if there is none."""
    known: dict[Node, Any] = {source: torch.arange(prod(extents)).reshape(*extents)}
    for node in graph.nodes:
        read = [n for n in node.all_input_nodes if n in known]
        if node.op != "call_function" or not read or node.meta.get("val") is None:  # None: an assertion
            continue
        contents = known[read[0]]
        if node.target in CONVOLUTIONS:
            try:
                kernel = window_of(node)
            except Unsupported:
                return None
            rows = windows(contents, kernel)
            return rows.reshape(-1, rows.shape[-1])
        if node.target in PRODUCTS:
            return contents.reshape(-1, contents.shape[-1]) if node.args[0] is read[0] else None
        function: Any = VIEWS.get(node.target, node.target)
        if node.target in RENAMES:
            known[node] = contents
        elif node.target in MOVES and node.all_input_nodes == read:
            args, keywords = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = function(*args, **keywords)
        elif getattr(node.meta.get("val"), "shape", None) == getattr(contents, "shape", ()):
            known[node] = contents  # element by element, such as a division by 255
        else:
            return None
    return None


def _factored(lines: torch.Tensor, extents: Sequence[int]) -> Layout | None:
    """The layout of rows of places; None if no view has them, or they are the rows already."""
    batch, count = extents[0], prod(extents[1:])
    if lines.numel() != batch * count or len(lines) % batch:
        return None
    tokens = len(lines) // batch
    of_first = lines[:tokens]
    digits = [_digits(of_first[:, 0].tolist()), _digits((of_first[0] - of_first[0, 0]).tolist())]
    if None in digits:
        return None
    outer, inner = digits
    together = [*outer, *inner]  # type: ignore[misc]
    by_stride = sorted(together, key=lambda digit: -digit[1])
    view = tuple(extent for extent, _ in by_stride)
    order = tuple(by_stride.index(digit) for digit in together)
    if prod(view) != count:
        return None
    rows = torch.arange(batch * count).reshape(batch, *view).permute(0, *(1 + d for d in order))
    if not torch.equal(rows.reshape(lines.shape), lines) or (
        order == tuple(sorted(order)) and len(extents) == 3
    ):
        return None
    return tokens, view, order


def _digits(places: Sequence[int]) -> list[tuple[int, int]] | None:
    """Extents and strides, the outermost first, of a list of places that counts in a mixed base; None for any
    other list."""
    digits, unit = [], 1
    while unit < len(places):
        stride, extent = places[unit] - places[0], 1
        while extent * unit < len(places) and places[extent * unit] == places[0] + extent * stride:
            extent += 1
        digits.append((extent, stride))
        unit *= extent
    made = [0]
    for extent, stride in digits:
        made = [step * stride + place for step in range(extent) for place in made]
    return digits[::-1] if made == [place - places[0] for place in places] else None
