"""What is known of a causal language model of transformers before it is traced: its cache and its positions.

The model runs once on tensors without contents (torch's `FakeTensorMode`). The cache of this run shows how
many layers, heads and dimensions there are, because configurations name these differently in every family, or
per layer.

Positions count from 0. Some models, if no positions are given, count otherwise, for example from after their
padding index. Such a model is run with and without positions, and `offset` is the number to add.
"""

import inspect
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend.module_kinds import unchanged
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import first_line

POSITIONS = (  # what configurations call the number of positions that a model is made for
    "max_position_embeddings",
    "max_target_positions",
    "n_positions",
    "n_ctx",
    "seq_length",
    "max_seq_len",
    "max_sequence_length",
)
TOKENS = 3  # of a run
FIRST = 4  # layers in which positions are looked for: of some models one in four has none


def values_of(config: Any) -> dict[str, Any]:
    """All values of a configuration, also those of nested parts; the text configuration has priority."""
    said: dict[str, Any] = {}
    for part in (config.get_text_config(decoder=True).to_dict(), config.to_dict()):
        for key, value in part.items():
            said.setdefault(key, value)
            if isinstance(value, Mapping):
                for inner, of_part in value.items():
                    said.setdefault(str(inner), of_part)
    return said


def adds_by_distance(model: Any) -> bool:
    """Whether a model seems to add a bias by distance to its scores (ALiBi): by its configuration or by the
    methods of its modules."""
    names = (name for kind in {type(module) for module in model.modules()} for name in dir(kind))
    return bool(values_of(model.config).get("alibi", any("alibi" in name for name in names)))


def positions_of(config: Any) -> int | None:
    """The number of positions that a configuration of transformers allows; None if it names none."""
    said = config.get_text_config(decoder=True).to_dict()
    known = {**config.to_dict(), **said}
    return next((known[n] for n in POSITIONS if type(known.get(n)) is int and known[n] > 0), None)


@dataclass(frozen=True)
class CacheSizes:
    """What a layer caches of each position: (heads, dimensions) of its keys and of its values."""

    keys: tuple[int, int]
    values: tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRun:
    """Result of a run. cache: what the model returns besides logits; None for nothing. name: the name of that
    result in the model. sizes: of the layers; None unless all of them cache exactly keys and values. reason:
    why the model does not run on ids alone, or not with a cache; empty if it runs with one. cached: False if
    it runs only without a cache."""

    cache: Any = None
    name: str = ""
    sizes: tuple[CacheSizes, ...] | None = None
    reason: str = ""
    cached: bool = True


def probe(model: torch.nn.Module) -> ModelRun:
    """Run the model on ids alone, on tensors without contents if the model allows that."""
    results, reason = _tried(model, cached=True)
    if results is not None:
        return _probe_of(results)
    results, other = _tried(model, cached=False)
    return ModelRun(reason=other) if results is None else ModelRun(reason=reason, cached=False)


def _tried(model: torch.nn.Module, *, cached: bool) -> tuple[Mapping[str, Any] | None, str]:
    """The results of a run and an empty text, or None and the reason why the model does not run."""
    reason = ""
    for mode in (FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()), nullcontext()):
        try:
            with quiet(), torch.no_grad(), unchanged(model), mode:
                if isinstance(mode, FakeTensorMode):
                    _without_contents(model)
                ids = torch.zeros(1, TOKENS, dtype=torch.int64)
                return model(input_ids=ids, use_cache=cached, return_dict=True), ""
        except Exception as error:  # noqa: BLE001 - a model may raise anything, as for inputs that it lacks
            reason = first_line(error)
    return None, reason


def _probe_of(results: Mapping[str, Any]) -> ModelRun:
    kept = {name: value for name, value in results.items() if name not in ("logits", "loss")}
    cache = kept.get("past_key_values")
    if cache is None:
        name = next(iter(kept), "")
        return ModelRun(cache=kept.get(name), name=name)
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    return ModelRun(cache=cache, name="past_key_values", sizes=_sizes(layers))


def _sizes(layers: Any) -> tuple[CacheSizes, ...] | None:
    """Sizes of layers that keep exactly one tensor [1, heads, P, dims] of keys and one of values; None for
    others."""
    if not layers:
        return None
    sizes = []
    for layer in layers:
        pair: list[Any] = [getattr(layer, name, None) for name in ("keys", "values")]
        others = [
            n for n, value in vars(layer).items() if _holds_tensors(value) and n not in ("keys", "values")
        ]
        if others or not all(isinstance(tensor, torch.Tensor) and tensor.ndim == 4 for tensor in pair):
            return None
        sizes.append(CacheSizes(*((int(tensor.shape[1]), int(tensor.shape[3])) for tensor in pair)))
    return tuple(sizes)


def _holds_tensors(value: Any) -> bool:
    """Whether an attribute of a layer holds tensors; plain numbers are counters."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return any(isinstance(held, torch.Tensor) and held.ndim > 1 for held in values)


def _without_contents(model: torch.nn.Module) -> None:
    """Give parameters that are one number at every place memory of their own, because some models write to
    them. Within a `FakeTensorMode` this takes no memory."""
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not any(parameter.stride()):
                part._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape), requires_grad=False)


def offset_of(model: torch.nn.Module, layers: int) -> int:
    """The number that a model of `layers` layers adds to positions 0, 1, 2 ... if it is given none.

    The model runs up to the end of its first layers, where positions have been used. Raises
    UnsupportedOperationError if its own positions are not consecutive: no position_ids then give the same
    results.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return 0
    ids = torch.tensor([plain_ids(model)])
    try:
        with _PositionsSeen() as seen:
            own = _first_values(model, layers, ids)
    except (IndexError, RuntimeError) as error:  # of sizes that make no sense, such as 0
        name = type(model).__name__
        raise UnsupportedOperationError(f"{name} does not run on token ids: {first_line(error)}") from error
    for offset in dict.fromkeys([0, *sorted(seen.offsets)]):  # of rotations any would do
        try:
            given = _first_values(model, layers, ids, torch.arange(offset, offset + TOKENS)[None])
        except (IndexError, RuntimeError):  # outside of its positions
            continue
        if torch.allclose(own, given, rtol=1e-4, atol=1e-5 * float(own.abs().max())):
            return offset
    raise UnsupportedOperationError(
        f"the positions of {type(model).__name__} are not supported: without position_ids it computes "
        "something else than with 0, 1, 2 ... or any other consecutive numbers"
    )


def plain_ids(model: Any) -> list[int]:
    """Ids that are not padding, each once if the vocabulary is large enough."""
    said = model.config.get_text_config(decoder=True).to_dict()
    vocabulary, padding = said.get("vocab_size") or TOKENS + 1, said.get("pad_token_id")
    plain = [n for n in range(min(vocabulary, TOKENS + 1)) if n != padding] or [0]
    return (TOKENS * plain)[:TOKENS]


class _Enough(Exception):  # noqa: N818 - ends a run, never leaves this file
    """Carries the values after the first layers."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values


def _first_values(
    model: torch.nn.Module, layers: int, ids: torch.Tensor, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """The values that the model computes from ids, up to the last of `FIRST` layers; the logits if these
    layers are not known. NaN and infinity become 0: weights that are not finite are reported later, by name.
    """

    def stop(layer: torch.nn.Module, given: Any, value: Any) -> None:
        raise _Enough(value if isinstance(value, torch.Tensor) else value[0])

    lists = [
        part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == layers
    ]
    handle = lists[0][min(FIRST, layers) - 1].register_forward_hook(stop) if lists else None
    given = {} if positions is None else {"position_ids": positions}
    with quiet(), torch.no_grad(), unchanged(model):
        try:
            values = model(input_ids=ids, use_cache=False, return_dict=True, **given).logits
        except _Enough as enough:
            values = enough.values
        finally:
            if handle is not None:
                handle.remove()
    return values.nan_to_num(0.0, 0.0, 0.0)


class _PositionsSeen(TorchDispatchMode):
    """Records the first of consecutive integers among the results of all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: set[int] = set()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = call(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.int64 and result.numel() == TOKENS:
            numbers = result.reshape(-1)
            if (numbers.diff() == 1).all():
                self.offsets.add(int(numbers[0]))
        return result
