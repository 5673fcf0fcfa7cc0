"""Modules that write a text about a source: encoders with decoders, and decoders of given features.

An argument of the module is the text, ids that go on token by token; all other tensors are its source. The
graph of the text is that of a language model of one's own (`own_decoder`), and the module of the source is
imported as any other (`export`).
"""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from streamgen.model.frontend.assembly import UNASKED
from streamgen.model.frontend.examples import Example
from streamgen.model.frontend.export import import_structured
from streamgen.model.frontend.imported import Imported
from streamgen.model.frontend.masks import Mask, masks_of
from streamgen.model.frontend.module_kinds import require_readable
from streamgen.model.frontend.own_decoder import import_sourced
from streamgen.model.frontend.trace import is_ids
from streamgen.model.frontend.transformers_modules import without_cache
from streamgen.model.graph.logical import LogicalGraph

OF_TEXT = ("tgt", "trg", "target", "decoder", "text", "causal")  # in names of masks of a text


class TwoParts(NamedTuple):
    """A module in two parts. text: the graph of its text. source: what it computes of its source: keys and
    values of each attention in turn."""

    text: LogicalGraph
    source: Imported


def import_text_of_source(
    module: torch.nn.Module, example_inputs: Any, text: int | str, context: int | None = None
) -> TwoParts:
    """Import a module whose argument `text`, a position or a name, is a text, and whose other arguments are
    its source.

    example_inputs: arguments in order, or a dict of keywords; the text is ids [1, T], [T] or [T, 1]. The
    graphs hold for sources of the shapes of the example, or of fewer rows if the source is imported for any
    number of tokens. context: positions of a text.

    Raises TypeError and ValueError for an argument `text` that is missing or holds no ids, and without
    another tensor; and the errors of `import_sourced` and `import_structured`.
    """
    require_readable(module)
    first = _TextFirst.of(module, Example.of(example_inputs), text)
    with without_cache(module):
        wanted = UNASKED if context is None else context
        graph, part = import_sourced(first, first.ids, first.source, wanted, type(module).__name__)
        return TwoParts(graph, import_structured(part, first.source, longest=1))


class _TextFirst(torch.nn.Module):
    """A module that is called with its text and the tensors of its source. leaves, spec: the arguments and
    keywords of the example, in which the tensors are replaced. text: number of the text among the leaves.
    Masks hide nothing, or in a mask of scores those behind each token; they are made for each text."""

    def __init__(
        self, module: torch.nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec, text: int
    ) -> None:
        super().__init__()
        self.module, self._leaves, self._spec, self._text = module, list(leaves), spec, text
        self.ids: torch.Tensor = leaves[text]
        self._masks = masks_of(module, leaves, spec)
        tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and n != text]
        self._places = [n for n in tensors if n not in self._masks]
        self.source = [leaves[place] for place in self._places]
        for position, mask in self._masks.items():
            if mask.hides(leaves[position]).any():
                raise ValueError(
                    f"the argument {mask.name!r} hides tokens; an example of a text and a source without "
                    "padding is needed"
                )

    @classmethod
    def of(cls, module: torch.nn.Module, example: Example, text: int | str) -> "_TextFirst":
        """With the text at a position or of a name."""
        ids = _text_of(module, example, text)
        if not isinstance(ids, torch.Tensor) or not is_ids(ids):
            kind = f"a tensor of {ids.dtype}" if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise TypeError(f"the argument {text!r}, the text, is {kind}; ids are needed")
        leaves, spec = pytree.tree_flatten((example.arguments, dict(example.keywords)))
        found = cls(module, leaves, spec, next(n for n, leaf in enumerate(leaves) if leaf is ids))
        if not found.source:
            raise ValueError(
                "the example has no other tensor than the text; a language model without a source needs no "
                "argument `text`"
            )
        return found

    def forward(self, ids: torch.Tensor, *source: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for place, tensor in zip((self._text, *self._places), (ids, *source), strict=True):
            leaves[place] = tensor
        for place, mask in self._masks.items():
            leaves[place] = mask.of(self._masked(mask, ids, source))
        arguments, keywords = pytree.tree_unflatten(leaves, self._spec)
        return self.module(*arguments, **keywords)

    def _masked(self, mask: Mask, ids: torch.Tensor, source: Sequence[torch.Tensor]) -> Sequence[int]:
        """The first dimensions of the tensor that a mask is about: the text, if the name says so or no part
        of the source has its extents."""
        own = [x.shape for x in source if tuple(x.shape[: len(mask.lead)]) == mask.lead]
        of_text = any(word in mask.name.lower() for word in OF_TEXT) or mask.rule.causal
        return ids.shape if of_text or not own else own[0]


def _text_of(module: torch.nn.Module, example: Example, text: int | str) -> Any:
    """The argument of an example at a position or of a name; ValueError if there is none."""
    arguments, keywords = example.arguments, example.keywords
    names = list(inspect.signature(module.forward).parameters)[: len(arguments)]
    if isinstance(text, str):
        if text in keywords:
            return keywords[text]
        if text not in names:
            given = ", ".join([*names, *keywords])
            raise ValueError(f"text is {text!r}; the example has the arguments {given or 'of no name'}")
        text = names.index(text)
    if not 0 <= text < len(arguments):
        raise ValueError(f"text is {text}; the example has {len(arguments)} positional arguments")
    return arguments[text]
