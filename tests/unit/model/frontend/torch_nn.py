"""The classes of torch.nn that need no convolution, pooling, recurrence or loss: an example of each, and what
the importer makes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend.any_module import import_any
from streamgen.model.frontend.importer import CALLS, MOVED
from streamgen.model.frontend.trace import export_program, plain_attention

__all__ = ["EXAMPLES", "LEFT_OUT", "Example", "classes", "outcome", "places"]

LEFT_OUT = ("conv", "pooling", "rnn", "loss", "adaptive")
"""Modules of torch.nn.modules whose classes are convolutions, pools, recurrences and losses."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """make: the module. shapes: of its inputs. refused: a part of the message; None if the module compiles.
    note: beside the table's yes."""

    make: Callable[[], nn.Module]
    shapes: Sequence[tuple[int, ...]] = ((3, 8),)
    refused: str | None = None
    note: str = ""
    ids: bool = False

    def inputs(self) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        if self.ids:
            return tuple(torch.randint(0, 4, shape, generator=generator) for shape in self.shapes)
        return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)


class Named(nn.Module):
    """Parts of a dict or a list, called one after the other."""

    def __init__(self, parts: nn.ModuleDict | nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts.values() if isinstance(self.parts, nn.ModuleDict) else self.parts:
            x = part(x)
        return x


class Weighed(nn.Module):
    """A parameter in a dict or a list."""

    def __init__(self, weights: nn.ParameterDict | nn.ParameterList) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.weights["scale"] if isinstance(self.weights, nn.ParameterDict) else self.weights[0])


def _padding(shape: tuple[int, ...], kind: type[nn.Module], *arguments: Any) -> Example:
    return Example(make=lambda: kind(1, *arguments), shapes=[shape])


def _norm(kind: type[nn.Module], *shape: int) -> Example:
    return Example(
        make=lambda: nn.Sequential(kind(3), nn.Flatten()),
        shapes=[(2, 3, *shape)],
        note="in eval mode; channels are features of one token",
    )


OF_ROWS = "of the last dimension"
EVAL = "in eval mode"
SMALL = "of the shape of the example; inputs of up to 8,192 elements"
EXAMPLES: dict[str, Example] = {
    "AlphaDropout": Example(make=nn.AlphaDropout, note=EVAL),
    "BatchNorm1d": Example(
        make=lambda: nn.BatchNorm1d(8), note=f"{EVAL}; channels are features of one token"
    ),
    "BatchNorm2d": _norm(nn.BatchNorm2d, 2, 2),
    "BatchNorm3d": _norm(nn.BatchNorm3d, 2, 2, 2),
    "Bilinear": Example(make=lambda: nn.Bilinear(8, 4, 5), shapes=[(3, 8), (3, 4)]),
    "CELU": Example(make=lambda: nn.CELU(0.5)),
    "ChannelShuffle": Example(
        make=lambda: nn.Sequential(nn.ChannelShuffle(2), nn.Flatten()),
        shapes=[(3, 4, 2, 2)],
    ),
    "CircularPad1d": _padding((2, 3, 4), nn.CircularPad1d),
    "CircularPad2d": _padding((2, 3, 4, 4), nn.CircularPad2d),
    "CircularPad3d": _padding((2, 3, 4, 4, 4), nn.CircularPad3d),
    "ConstantPad1d": _padding((2, 3, 4), nn.ConstantPad1d, 0.5),
    "ConstantPad2d": _padding((2, 3, 4, 4), nn.ConstantPad2d, 0.5),
    "ConstantPad3d": _padding((2, 3, 4, 4, 4), nn.ConstantPad3d, 0.5),
    "CosineSimilarity": Example(make=nn.CosineSimilarity, shapes=[(3, 8), (3, 8)]),
    "CrossMapLRN2d": Example(
        make=lambda: nn.CrossMapLRN2d(2), shapes=[(2, 4, 3, 3)], refused="not supported"
    ),
    "Dropout": Example(make=nn.Dropout, note=EVAL),
    "Dropout1d": Example(make=nn.Dropout1d, shapes=[(2, 3, 4)], note=EVAL),
    "Dropout2d": Example(make=nn.Dropout2d, shapes=[(2, 3, 4, 4)], note=EVAL),
    "Dropout3d": Example(make=nn.Dropout3d, shapes=[(2, 3, 4, 4, 4)], note=EVAL),
    "ELU": Example(make=lambda: nn.ELU(0.5)),
    "Embedding": Example(make=lambda: nn.Embedding(4, 8, padding_idx=0), shapes=[(2, 3)], ids=True),
    "EmbeddingBag": Example(
        make=lambda: nn.EmbeddingBag(4, 8),
        shapes=[(2, 3)],
        ids=True,
        note="bags of one size",
    ),
    "FeatureAlphaDropout": Example(make=nn.FeatureAlphaDropout, shapes=[(2, 3, 4, 4)], note=EVAL),
    "Flatten": Example(make=nn.Flatten, shapes=[(3, 1, 4, 5)]),
    "Fold": Example(make=lambda: nn.Fold((4, 4), 2), shapes=[(2, 12, 9)], note=SMALL),
    "GELU": Example(make=nn.GELU),
    "GLU": Example(make=nn.GLU),
    "GroupNorm": Example(make=lambda: nn.GroupNorm(2, 8), note="of [tokens, channels]"),
    "Hardshrink": Example(make=nn.Hardshrink),
    "Hardsigmoid": Example(make=nn.Hardsigmoid),
    "Hardswish": Example(make=nn.Hardswish),
    "Hardtanh": Example(make=lambda: nn.Hardtanh(-2.0, 0.5)),
    "Identity": Example(make=nn.Identity),
    "InstanceNorm1d": Example(make=lambda: nn.InstanceNorm1d(3), shapes=[(2, 3, 4)], note=SMALL),
    "InstanceNorm2d": Example(make=lambda: nn.InstanceNorm2d(3), shapes=[(2, 3, 4, 4)], note=SMALL),
    "InstanceNorm3d": Example(make=lambda: nn.InstanceNorm3d(3), shapes=[(2, 3, 4, 4, 4)], note=SMALL),
    "LayerNorm": Example(make=lambda: nn.LayerNorm(8), note=OF_ROWS),
    "LeakyReLU": Example(make=lambda: nn.LeakyReLU(0.2)),
    "Linear": Example(make=lambda: nn.Linear(8, 4)),
    "LocalResponseNorm": Example(
        make=lambda: nn.LocalResponseNorm(2), shapes=[(2, 4, 3)], refused="aten.avg_pool2d"
    ),
    "LogSigmoid": Example(make=nn.LogSigmoid),
    "LogSoftmax": Example(make=lambda: nn.LogSoftmax(-1), note=OF_ROWS),
    "Mish": Example(make=nn.Mish),
    "ModuleDict": Example(make=lambda: Named(nn.ModuleDict({"up": nn.Linear(8, 4), "act": nn.ReLU()}))),
    "ModuleList": Example(make=lambda: Named(nn.ModuleList([nn.Linear(8, 4), nn.ReLU()]))),
    "MultiheadAttention": Example(
        make=lambda: _OfItself(nn.MultiheadAttention(8, 2, batch_first=True)), shapes=[(2, 3, 8)]
    ),
    "PReLU": Example(make=lambda: nn.PReLU(8), note="channels are features of one token"),
    "PairwiseDistance": Example(make=nn.PairwiseDistance, shapes=[(3, 8), (3, 8)]),
    "ParameterDict": Example(make=lambda: Weighed(nn.ParameterDict({"scale": nn.Parameter(torch.rand(8))}))),
    "ParameterList": Example(make=lambda: Weighed(nn.ParameterList([nn.Parameter(torch.rand(8))]))),
    "PixelShuffle": Example(
        make=lambda: nn.Sequential(nn.PixelShuffle(2), nn.Flatten(), nn.Linear(36, 2)), shapes=[(2, 4, 3, 3)]
    ),
    "PixelUnshuffle": Example(
        make=lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(48, 2)),
        shapes=[(2, 3, 4, 4)],
    ),
    "RMSNorm": Example(make=lambda: nn.RMSNorm(8), note=OF_ROWS),
    "RReLU": Example(make=nn.RReLU, note=EVAL),
    "ReLU": Example(make=nn.ReLU),
    "ReLU6": Example(make=nn.ReLU6),
    "ReflectionPad1d": _padding((2, 3, 4), nn.ReflectionPad1d),
    "ReflectionPad2d": _padding((2, 3, 4, 4), nn.ReflectionPad2d),
    "ReflectionPad3d": _padding((2, 3, 4, 4, 4), nn.ReflectionPad3d),
    "ReplicationPad1d": _padding((2, 3, 4), nn.ReplicationPad1d),
    "ReplicationPad2d": _padding((2, 3, 4, 4), nn.ReplicationPad2d),
    "ReplicationPad3d": _padding((2, 3, 4, 4, 4), nn.ReplicationPad3d),
    "SELU": Example(make=nn.SELU),
    "Sequential": Example(make=lambda: nn.Sequential(nn.Sequential(nn.Linear(8, 4)), nn.ReLU())),
    "SiLU": Example(make=nn.SiLU),
    "Sigmoid": Example(make=nn.Sigmoid),
    "Softmax": Example(make=lambda: nn.Softmax(-1), note=OF_ROWS),
    "Softmax2d": Example(make=nn.Softmax2d, shapes=[(2, 3, 4, 4)], note=SMALL),
    "Softmin": Example(make=lambda: nn.Softmin(-1), note=OF_ROWS),
    "Softplus": Example(make=lambda: nn.Softplus(2.0)),
    "Softshrink": Example(make=nn.Softshrink),
    "Softsign": Example(make=nn.Softsign),
    "SyncBatchNorm": Example(make=lambda: nn.SyncBatchNorm(8), note=f"{EVAL}; like BatchNorm1d"),
    "Tanh": Example(make=nn.Tanh),
    "Tanhshrink": Example(make=nn.Tanhshrink),
    "Threshold": Example(make=lambda: nn.Threshold(0.5, 0.0), note="the value is 0 or the threshold"),
    "Transformer": Example(
        make=lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), shapes=[(2, 3, 8), (2, 3, 8)]
    ),
    "TransformerDecoder": Example(
        make=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1),
        shapes=[(2, 3, 8), (2, 3, 8)],
    ),
    "TransformerDecoderLayer": Example(
        make=lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), shapes=[(2, 3, 8), (2, 3, 8)]
    ),
    "TransformerEncoder": Example(
        make=lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
        ),
        shapes=[(2, 3, 8)],
    ),
    "TransformerEncoderLayer": Example(
        make=lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), shapes=[(2, 3, 8)]
    ),
    "Unflatten": Example(make=lambda: nn.Unflatten(1, (2, 4))),
    "Unfold": Example(make=lambda: nn.Unfold(2), shapes=[(2, 3, 4, 4)], note=SMALL),
    "Upsample": Example(make=lambda: nn.Upsample(scale_factor=2), shapes=[(2, 3, 4, 4)], note=SMALL),
    "UpsamplingBilinear2d": Example(
        make=lambda: nn.UpsamplingBilinear2d(scale_factor=2), shapes=[(2, 3, 4, 4)], note=SMALL
    ),
    "UpsamplingNearest2d": Example(
        make=lambda: nn.UpsamplingNearest2d(scale_factor=2), shapes=[(2, 3, 4, 4)], note=SMALL
    ),
    "ZeroPad1d": _padding((2, 3, 4), nn.ZeroPad1d),
    "ZeroPad2d": _padding((2, 3, 4, 4), nn.ZeroPad2d),
    "ZeroPad3d": _padding((2, 3, 4, 4, 4), nn.ZeroPad3d),
}


class _OfItself(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x, x, x, need_weights=False)[0]


def classes() -> list[str]:
    """The names of the classes of torch.nn that this file is about; lazy ones become others of the list.
    Container, DataParallel and Module compute nothing themselves."""
    found = []
    for name in dir(nn):
        kind = getattr(nn, name)
        if not isinstance(kind, type) or not issubclass(kind, nn.Module):
            continue
        if kind.__module__.split(".")[-1] in LEFT_OUT or name.startswith("Lazy"):
            continue
        if name not in ("Container", "DataParallel", "Module"):
            found.append(name)
    return found


def outcome(example: Example) -> str:
    """Import an example; the refusal, or nothing."""
    torch.manual_seed(0)
    try:
        import_any(example.make().eval(), example.inputs())
    except (UnsupportedOperationError, TypeError) as error:
        return str(error)
    return ""


def places(example: Example) -> list[str]:
    """The files of streamgen/model/frontend/ that read the calls of an example; none for a call that is
    refused."""
    module, inputs = example.make().eval(), example.inputs()
    with plain_attention():
        program = export_program(module, inputs)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    readers = [CALLS[call] for call in calls if call in CALLS]
    read = {getattr(reader, "func", reader).__module__.rpartition(".")[2] for reader in readers}
    return sorted(read | ({"moves"} if MOVED.intersection(calls) else set()))
