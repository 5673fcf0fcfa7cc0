"""Runs modules eagerly in torch: pass by pass, in float32, with only some layers of a large module.

A language model of transformers is called as its users call it, with ids and the cache that it has returned;
it chooses its own positions and masks. Any other decoder is given both (`import_decoder`).
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod
from typing import Any, Self

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from streamgen.model.frontend.plain_calls import without_autocast
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.trace import one_thread
from streamgen.model.graph.logical import LogicalGraph, Repeat
from streamgen.model.operations import Linear

FEW = 8  # ids of a pass of which each is asked for, though a run gives the last logits alone
HALVES = (torch.float16, torch.bfloat16)


def has_values(module: torch.nn.Module) -> bool:
    """Whether a module can run: no tensor is on the meta device, and no parameter is one number at every
    place, as parameters are of which only the shape is known."""
    parameters = list(module.parameters())
    return not (
        any(tensor.is_meta for tensor in (*parameters, *module.buffers()))
        or any(parameter.numel() > 1 and not any(parameter.stride()) for parameter in parameters)
    )


def floats_of(module: torch.nn.Module, without: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The 16-bit parameters and buffers as float32, by name, because a graph does not round to 16 bits.
    without: paths of modules to leave out."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {
        name: tensor.detach().float()
        for name, tensor in named
        if tensor.dtype in HALVES and not any(name.startswith(f"{path}.") for path in without)
    }


def called(
    module: torch.nn.Module, floats: dict[str, torch.Tensor], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """The result of a module, with these parameters and buffers in place of its own."""
    with quiet(), without_autocast(), torch.no_grad(), one_thread():
        if not floats:
            return module(*args, **keywords)
        return torch.func.functional_call(module, floats, tuple(args), dict(keywords))


class EagerText:
    """A text in a decoder, from its first token.

    floats: replace the module's own parameters. layers: indices of the computed layers, each with keys and
    values. padding: ids that are not tokens.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        floats: dict[str, torch.Tensor],
        layers: Sequence[int],
        kv_heads: int,
        head_dim: int,
    ) -> None:
        self._module, self._floats, self._layers = module, floats, layers
        transformers = sys.modules.get("transformers")
        self._of_transformers = transformers is not None and isinstance(module, transformers.PreTrainedModel)
        padding = getattr(getattr(module, "config", None), "pad_token_id", None)
        self.padding: list[int] = [padding] if self._of_transformers and padding is not None else []
        self._cache: Any = None
        self._ids: np.ndarray | None = np.zeros(
            0, np.int64
        )  # of the whole text; None if it began with a cache
        double = any(parameter.dtype == torch.float64 for parameter in module.parameters())
        self._dtype = torch.float64 if double else torch.float32
        self._keys, self._values = (
            [torch.zeros(1, kv_heads, 0, head_dim, dtype=self._dtype)] * len(layers) for _ in range(2)
        )

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """The logits [T, vocabulary] after each of the ids [T] of the next pass."""
        given = torch.from_numpy(ids)[None]
        self._ids = None if self._ids is None else np.concatenate([self._ids, ids])
        if self._of_transformers:
            keywords = {"input_ids": given, "past_key_values": self._cache, "use_cache": True}
            out = called(self._module, self._floats, (), keywords)
            logits, self._cache = out.logits, out.past_key_values
        else:
            past = self._keys[0].shape[2]
            positions = torch.arange(past, past + len(ids))[None]
            args = given, positions, list(self._keys), list(self._values)
            logits, self._keys, self._values = called(self._module, self._floats, args, {})
        rows: np.ndarray = logits[0].double().numpy()
        return rows

    def begin(self) -> None:
        """Another text, which is empty."""
        self._cache, self._ids = None, np.zeros(0, np.int64)
        self._keys, self._values = ([rows[:, :, :0] for rows in side] for side in (self._keys, self._values))

    def at_once(self, tokens: int) -> np.ndarray | None:
        """The logits after the last tokens of the text, which is computed again as a whole.

        Some classes of transformers give other logits for several tokens after a cache that has forgotten the
        positions outside a window; the logits of the whole text are the intended ones. None for all other
        caches, for a single token, and for a text that began with a cache.
        """
        forgets = any(getattr(layer, "is_sliding", False) for layer in getattr(self._cache, "layers", ()))
        if self._ids is None or not forgets or tokens == 1:
            return None
        keywords = {"input_ids": torch.from_numpy(self._ids)[None], "use_cache": False}
        logits: np.ndarray = called(self._module, self._floats, (), keywords).logits[0].double().numpy()
        return logits[-tokens:]

    @property
    def count(self) -> int:
        """The number of computed layers."""
        return len(self._layers)

    def layer_of(self, keys: np.ndarray, default: int) -> int:
        """The index of the layer with these keys [P, kv_heads · head_dim]. For a model of transformers it
        is `default`, because its caches may keep only the last positions."""
        if self._of_transformers:
            return default
        rows = [own[0].transpose(0, 1).reshape(len(keys), -1).double().numpy() for own in self._keys]
        return int(np.argmin([np.linalg.norm(own - keys) for own in rows]))

    def go_on_behind(self, keys: Sequence[np.ndarray], values: Sequence[np.ndarray]) -> None:
        """Continue after other passes, with their keys and values of each layer [P, kv_heads, head_dim]."""
        self._ids = None
        self._keys, self._values = (
            [torch.from_numpy(rows).to(self._dtype).transpose(0, 1)[None] for rows in side]
            for side in (keys, values)
        )
        if self._of_transformers:
            self._cache = sys.modules["transformers"].DynamicCache()
            for layer, key, value in zip(self._layers, self._keys, self._values, strict=True):
                self._cache.update(key, value, layer)


class EagerWhole:
    """A text in a module without a cache, which reads all of it in every pass.

    logits: of ids [T], those [T, vocabulary] behind each, or those [1, vocabulary] behind the last alone.
    """

    padding: tuple[int, ...] = ()

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._logits = logits
        self.begin()

    def begin(self) -> None:
        """Another text, which is empty."""
        self._ids = torch.zeros(0, dtype=torch.int64)

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """Logits [T, vocabulary] behind each of the ids [T] of the next pass; [1, vocabulary] behind the last
        of many ids, if the module gives no others."""
        before = len(self._ids)
        self._ids = torch.cat([self._ids, torch.from_numpy(ids)])
        rows = self._logits(self._ids)
        if len(rows) == 1 < len(ids) <= FEW:
            rows = torch.cat([self._logits(self._ids[:end]) for end in range(before + 1, len(self._ids) + 1)])
        behind: np.ndarray = rows[-len(ids) :].double().numpy()
        return behind

    def at_once(self, tokens: int) -> None:
        """None: every pass is of the whole text."""


class Seen(TorchDispatchMode):
    """Records the results of the calls of a module since `clear`.

    tensors: of floats, except views of parameters. results: by path, the results of the inner modules.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self._paths = {id(part): path for path, part in module.named_modules()}
        self.tensors: list[torch.Tensor] = []
        self.results: dict[str, list[torch.Tensor]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._hook = register_module_forward_hook(self._returned)
        entered: Self = super().__enter__()
        return entered

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._hook.remove()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        own = [leaf for leaf in _floats(result) if leaf.untyped_storage().data_ptr() not in self._own]
        self.tensors += [leaf.detach().clone() for leaf in own]  # calls in place may change it
        return result

    def _returned(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if id(module) in self._paths:
            self.results[self._paths[id(module)]] += [leaf.detach().clone() for leaf in _floats(result)]

    def clear(self) -> None:
        """Forget all results recorded so far."""
        self.tensors.clear()
        self.results.clear()


def _floats(nest: Any) -> list[torch.Tensor]:
    leaves = (leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, torch.Tensor))
    return [leaf for leaf in leaves if leaf.is_floating_point()]


@contextmanager
def fewer_layers(
    module: torch.nn.Module, graph: LogicalGraph, count: int, most: int
) -> Iterator[tuple[LogicalGraph, Sequence[int], Collection[str]]]:
    """A smaller model for the check: its graph, the indices of its layers, and the paths of the layers left
    out.

    If the model has at most `most` weights, or if its `count` layers are not found in the module, all layers
    are kept. Of a larger model the first layer of each form, the middle layer and the last layer are kept.
    Within the block, the other layers of the module return their input.
    """
    weights = sum(prod(o.op.extents) for _, o in graph.walk() if isinstance(o.op, Linear))
    repeat: Any = next((o.op for o in graph.operations if isinstance(o.op, Repeat)), None)
    lists = _lists(module, torch.nn.ModuleList, count) or _lists(module, torch.nn.Sequential, count)
    if weights <= most or repeat is None or len(repeat.layers) != count or len(lists) != 1:
        yield graph, range(count), ()
        return
    kept = sorted({*range(repeat.period), count // 2, count - 1})
    thin = Repeat(tuple(repeat.layers[index] for index in kept))
    operations = tuple(replace(o, op=thin) if o.op is repeat else o for o in graph.operations)
    (layers,) = lists
    paths = {part: path for path, part in module.named_modules()}
    with ExitStack() as stack:
        results: list[Any] = []
        hook = layers[0].register_forward_hook(lambda layer, given, result: results.append(result))
        stack.callback(hook.remove)

        def handed_on(hidden: torch.Tensor, *_: Any, **__: Any) -> Any:
            return (hidden, *results[-1][1:]) if isinstance(results[-1], tuple) else hidden

        left_out = []
        for index, layer in enumerate(layers):
            if index not in kept:
                left_out.append(paths[layer])
                stack.callback(_restore, layer, vars(layer).get("forward"))
                layer.forward = handed_on
        yield replace(graph, operations=operations), kept, left_out


def _lists(module: torch.nn.Module, kind: type[Any], count: int) -> list[Any]:
    """The lists of `count` modules."""
    return [part for part in module.modules() if isinstance(part, kind) and len(part) == count]


def _restore(layer: torch.nn.Module, forward: Any) -> None:
    if forward is None:
        del layer.forward
    else:
        layer.forward = forward
