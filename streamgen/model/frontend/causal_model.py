"""A causal language model of transformers, before it is traced: the cache that it makes, and its positions.

The model runs once on tensors without contents (torch's `FakeTensorMode`): its cache says how many layers,
heads and dimensions there are, for configurations of every family name these otherwise, or layer by layer.

Positions are numbered from 0. A model that numbers them otherwise when it is given none, as from behind its
padding index, is run with and without them, and `offset` is what must be added.
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


def positions_of(config: Any) -> int | None:
    """Positions that a configuration of transformers allows; None when it names none."""
    said = config.get_text_config(decoder=True).to_dict()
    known = {**config.to_dict(), **said}
    return next((known[n] for n in POSITIONS if type(known.get(n)) is int and known[n] > 0), None)


@dataclass(frozen=True)
class CacheSizes:
    """What a layer keeps of each position: heads and dimensions of its keys and of its values."""

    keys: tuple[int, int]
    values: tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRun:
    """What a run has shown. cache: what the model returns besides logits, None for nothing. name: what it
    calls that. sizes: of the layers, None unless all of them keep keys and values and nothing else. reason:
    why the model does not run on ids alone, else empty; with a cache it may not run even so: `cached`.
    """

    cache: Any = None
    name: str = ""
    sizes: tuple[CacheSizes, ...] | None = None
    reason: str = ""
    cached: bool = True


def probe(model: torch.nn.Module) -> ModelRun:
    """Run the model on ids alone, without contents where it can do so."""
    results, reason = _tried(model, cached=True)
    if results is not None:
        return _probe_of(results)
    results, other = _tried(model, cached=False)
    return ModelRun(reason=other) if results is None else ModelRun(reason=reason, cached=False)


def _tried(model: torch.nn.Module, *, cached: bool) -> tuple[Mapping[str, Any] | None, str]:
    """Results of a run, or what the model says against it."""
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
    """Sizes of layers that keep a tensor [1, heads, P, dims] of keys, one of values, and no other."""
    if not layers:
        return None
    sizes = []
    for layer in layers:
        pair: list[Any] = [getattr(layer, name, None) for name in ("keys", "values")]
        others = [
            n for n, value in vars(layer).items() if _holds_tensors(value) and n not in ("keys", "values")
        ]
        if others or not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in pair):
            return None
        sizes.append(CacheSizes(*((int(one.shape[1]), int(one.shape[3])) for one in pair)))
    return tuple(sizes)


def _holds_tensors(value: Any) -> bool:
    """Whether a layer keeps a tensor there; numbers alone are counts."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return any(isinstance(one, torch.Tensor) and one.ndim > 1 for one in values)


def _without_contents(model: torch.nn.Module) -> None:
    """Give parameters that are one number at every place memory of their own, for some models write to them;
    within a `FakeTensorMode` it takes none."""
    for part in model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not any(parameter.stride()):
                part._parameters[name] = torch.nn.Parameter(torch.empty(parameter.shape), requires_grad=False)


def offset_of(model: torch.nn.Module, layers: int) -> int:
    """What a model of so many layers adds to positions 0, 1, 2 ... when it is given none.

    It is run as far as behind its first layers, in which positions are met. UnsupportedOperationError when
    its own positions are not consecutive: what it computes by itself is then known for no position_ids.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return 0
    ids = torch.tensor([_plain_ids(model)])
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


def _plain_ids(model: Any) -> list[int]:
    """Ids that are no padding, each once where there are as many."""
    said = model.config.get_text_config(decoder=True).to_dict()
    vocabulary, padding = said.get("vocab_size") or TOKENS + 1, said.get("pad_token_id")
    plain = [n for n in range(min(vocabulary, TOKENS + 1)) if n != padding] or [0]
    return (TOKENS * plain)[:TOKENS]


class _Enough(Exception):  # noqa: N818 - ends a run, never leaves this file
    """The values behind the first layers."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values


def _first_values(
    model: torch.nn.Module, layers: int, ids: torch.Tensor, positions: torch.Tensor | None = None
) -> torch.Tensor:
    """What the model computes of ids up to the last of `FIRST` layers; logits where these are not found. What
    is no number is 0: weights that are none are told later, by name."""

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
    """Notes the first of consecutive integers among the results of all calls."""

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
