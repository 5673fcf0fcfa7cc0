"""What a decoder becomes before it is a graph: the choices, and its weights in the order of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamgen.errors import GraphError
from streamgen.formats import MX_GROUP, round_f24
from streamgen.graph.logical import LogicalGraph, Repeat
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BINARY_OPERATIONS as UNITS
from streamgen.lower.columns import column_tensors
from streamgen.operations import Attention, Linear, Norm, Rotary
from streamgen.quantisation import QuantisedWeight

__all__ = ["WORD_LANES", "DecoderPlan", "DecoderWeights", "arrange_weights", "layers_of"]

MATMULS = ("q", "k", "v", "o", "gate", "up", "down")
WORD_LANES = 16  # 32-bit words of a beat


@dataclass(frozen=True, kw_only=True)
class DecoderPlan:
    """What is built.

    max_tokens: of a run. context: positions. columns: of the engine, column c on channel c. n_lanes: rows
    that a column computes side by side. lanes: elements a cycle between matmuls. kv_channels: over which the
    cache is striped, a power of two. prefetch: beats of the FIFO of each column's codes. scale_bits: of the
    scales of w4.
    """

    max_tokens: int
    context: int
    columns: int
    n_lanes: int
    lanes: int
    kv_channels: int = 1
    prefetch: int = 512
    scale_bits: int = 8


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """A decoder with its weights as the accelerator reads them.

    phases: those of the matmuls, by phase: one for each walk. embedding: f24, with a row of NaN for unknown
    ids behind all others.
    """

    model: LogicalGraph
    phases: Mapping[str, Sequence[QuantisedWeight]]
    embedding: np.ndarray
    _columns: dict[tuple[str, str], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @property
    def layers(self) -> tuple[LogicalGraph, ...]:
        return layers_of(self.model)

    def column(self, phase: str, port: str, index: int, count: int, itensor: ITensor) -> np.ndarray:
        """What column `index` of `count` reads in a phase: an array shaped as `itensor` for each walk."""
        key = (phase, port)
        if key not in self._columns:  # once for the graphs of all runs
            tensors = [column_tensors(weight, *weight.codes.shape)[port] for weight in self.phases[phase]]
            rows = len(tensors[0]) // count
            padded = np.zeros((count, len(tensors), *itensor.shape), tensors[0].dtype)
            for walk, tensor in enumerate(tensors):
                for c in range(count):
                    inside = tuple(slice(extent) for extent in (rows, *tensor.shape[1:]))
                    padded[c, walk][inside] = tensor[c::count]
            self._columns[key] = padded
        return self._columns[key][index]


def arrange_weights(model: LogicalGraph, plan: DecoderPlan) -> DecoderWeights:
    """Rows in the order of the engine. GraphError for sizes that do not tile, for what no kernel computes,
    and for a model that is not one layer many times over."""
    if plan.columns % 2:
        raise GraphError(f"columns of a decoder must be even, not {plan.columns}")
    _require_alike(model)
    _require_kernels(model, plan)
    unit = plan.columns * plan.n_lanes

    def one(path: str) -> QuantisedWeight:
        linear: Linear = model.op(path)
        if linear.bias is not None:
            raise GraphError(f"{path} has a bias; matmuls of decoders have none")
        found = linear.integers
        if (rows := len(found.codes)) % unit:
            raise GraphError(f"{path} has {rows} rows; a multiple of columns * n_lanes = {unit} is needed")
        group = MX_GROUP if found.group is None else found.group
        if (features := found.codes.shape[1]) % group:
            raise GraphError(f"{path} takes {features} features; a multiple of {group}, a group, is needed")
        return found

    def of_layer(number: int) -> dict[str, QuantisedWeight]:
        found = {name: one(f"layers[{number}].{name}") for name in MATMULS}
        return {
            "attend": _joined([found[name] for name in "qkv"]),
            "project": found["o"],
            "expand": _alternating(found["gate"], found["up"], plan.columns // 2),
            "reduce": found["down"],
        }

    layers = [of_layer(number) for number in range(len(layers_of(model)))]
    table = round_f24(model.op("embedding").table)
    return DecoderWeights(
        model=model,
        phases={
            **{phase: [layer[phase] for layer in layers] for phase in layers[0]},
            "head": [one("logits")],
        },
        embedding=np.concatenate([table, np.full_like(table[:1], np.nan)]),
    )


def layers_of(model: LogicalGraph) -> tuple[LogicalGraph, ...]:
    """The layers of a model."""
    repeat = model.by_name["layers"].op
    assert isinstance(repeat, Repeat)
    return repeat.layers


def _require_alike(model: LogicalGraph) -> None:
    """GraphError unless all layers compute the same with other numbers; it names what differs where."""
    layers, norm = layers_of(model), model.op("norm")
    for number, layer in enumerate(layers):
        for a, b in zip(layer.operations, layers[0].operations, strict=False):
            (kind, mine), (other, theirs) = a.op.form(), b.op.form()
            names = [name for (name, x), (_, y) in zip(mine, theirs, strict=False) if x != y]
            if (a.name, a.inputs, kind) != (b.name, b.inputs, other) or names:
                raise GraphError(
                    f"layers[{number}].{a.name} and layers[0].{b.name} differ in "
                    f"{', '.join(names) or 'kind'}: one engine walks layers that are alike"
                )
        for name in ("attention_norm", "feed_forward_norm"):
            if _kind(layer.op(name)) != _kind(norm):
                raise GraphError(
                    f"layers[{number}].{name} and norm differ in kind, 1 + weight or bias: "
                    "one kernel computes all norms"
                )


def _kind(norm: Norm) -> tuple[object, ...]:
    return norm.kind, norm.plus_one, norm.bias is not None


def _require_kernels(model: LogicalGraph, plan: DecoderPlan) -> None:
    """GraphError for a function or for sizes of a layer that the kernels between the matmuls do not have."""
    layer = layers_of(model)[0]
    attention: Attention = layer.op("attention")
    function = layer.op("gated").gate
    gates = [name.removesuffix("_multiply") for name in UNITS if name.endswith("_multiply")]
    if function not in gates:
        raise GraphError(
            f"the function of layers[0].gated is {function!r}; accelerators have {', '.join(gates)}"
        )
    if attention.window is not None or attention.soft_cap is not None:
        raise GraphError("layers[0].attention has a window or a soft-cap; decoders attend to all positions")
    if attention.head_dim % plan.lanes:
        raise GraphError(f"head_dim is {attention.head_dim}; a multiple of lanes = {plan.lanes} is needed")
    if "rotate_q" not in layer.by_name:
        return
    rotary: Rotary = layer.op("rotate_q")
    if rotary.interleaved and plan.lanes == 1:
        raise GraphError("lanes is 1; rotary positions of interleaved pairs need at least 2")
    unit = max(WORD_LANES, plan.lanes if rotary.interleaved else 2 * plan.lanes)
    if rotary.rotated % unit:
        raise GraphError(
            f"{rotary.rotated} dimensions of a head rotate; a multiple of {unit} is needed with lanes = "
            f"{plan.lanes}"
        )


def _joined(parts: Sequence[QuantisedWeight]) -> QuantisedWeight:
    """The rows of several weights, one after the other."""

    def rows(name: str) -> Any:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    names = ("codes", "scale", "minimum", "row_scale")
    return replace(parts[0], **{name: rows(name) for name in names})


def _alternating(a: QuantisedWeight, b: QuantisedWeight, count: int) -> QuantisedWeight:
    """`count` rows of a, as many of b, and so on."""
    joined = _joined([a, b])
    order = np.arange(2 * len(a.codes)).reshape(2, -1, count).swapaxes(0, 1).reshape(-1)

    def rows(array: np.ndarray | None) -> Any:
        return None if array is None else array[order]

    names = ("codes", "scale", "minimum", "row_scale")
    return replace(joined, **{name: rows(getattr(joined, name)) for name in names})
