"""streamgen.frontend: ordinary torch blocks become graphs that compute the same, and hardware that does."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from streamgen import golden
from streamgen.formats import round_f24
from streamgen.frontend import import_module
from streamgen.graph.interpret import exact, reference
from streamgen.graph.logical import LogicalGraph
from streamgen.lower import insert_converters, insert_forks, place_constants
from streamgen.quantisation import Numbers
from streamgen.schedule import Derivation, EnginePlan

H, T = 32, 5
Function = Callable[..., Any]


class Attend(nn.Module):
    """Self-attention whose inner part is a function of heads [batch, heads, tokens, head_dim]."""

    def __init__(self, inner: Function, heads: int = 4, kv_heads: int | None = None) -> None:
        super().__init__()
        self.inner, self.heads, self.kv_heads = inner, heads, heads if kv_heads is None else kv_heads
        self.q = nn.Linear(H, H)
        self.k = nn.Linear(H, H // heads * self.kv_heads)
        self.v = nn.Linear(H, H // heads * self.kv_heads, bias=False)
        self.o = nn.Linear(H, H)
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            f(x).view(*x.shape[:-1], n, H // self.heads).transpose(-2, -3)
            for f, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        ]
        return self.o(self.inner(self, *heads).transpose(-2, -3).reshape(x.shape))


def _by_hand(mask: Function | None) -> Function:
    def inner(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return functional.softmax(scores if mask is None else mask(m, scores), dim=-1) @ v

    return inner


def _grouped(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Key heads by broadcasting."""
    q = q.unflatten(-3, (m.kv_heads, -1)) * 0.3
    scores = torch.matmul(q, k.unsqueeze(-3).mT).masked_fill(
        torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1), -torch.inf
    )
    return (scores.softmax(-1) @ v.unsqueeze(-3)).flatten(-4, -3)


class PreNorm(nn.Module):
    """A causal block of one's own: fused projections, norms written out, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(H, 3 * H, bias=False)
        self.o = nn.Linear(H, H)
        self.gate_up = nn.Linear(H, 2 * 48)
        self.down = nn.Linear(48, H)
        self.weight = nn.Parameter(torch.rand(H) + 0.5)
        self.bias = nn.Parameter(torch.rand(H))

    def rms(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def layer(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        return (
            self.weight * ((x - mean) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5))
            + self.bias
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, S, _ = x.shape
        q, k, v = (p.view(B, S, 4, -1).transpose(1, 2) for p in self.qkv(self.rms(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, S, H))
        gate, up = self.gate_up(self.layer(x)).split(48, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Multihead(nn.Module):
    def __init__(self, masked: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(H, 4, **options)
        self.masked, self.batch_first = masked, options.get("batch_first", False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[1 if self.batch_first else 0]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens, dtype=x.dtype)
        return self.attention(x, x, x, attn_mask=mask if self.masked else None)[0]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(H, H), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x)) + x


class Plain(nn.Module):
    """A function with a matrix and a vector."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.W = nn.Parameter(torch.randn(H, 24) / 6)
        self.qkv = nn.Linear(H, 3 * H)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(H, 4, 64, batch_first=True, **options)


def _no_affine(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (H,)) + functional.rms_norm(x, (H,))


BLOCKS: dict[str, Function] = {
    "encoder layer": _encoder,
    "encoder layer, norm first, gelu": lambda: _encoder(norm_first=True, activation="gelu"),
    "encoder": lambda: nn.TransformerEncoder(_encoder(), 2, enable_nested_tensor=False),
    "pre-norm causal block": PreNorm,
    "mlp": lambda: nn.Sequential(
        nn.LayerNorm(H),
        nn.Linear(H, 48),
        nn.GELU(),
        nn.LayerNorm(48, bias=False),
        nn.Linear(48, 10),
        nn.Softmax(-1),
    ),
    "multihead": lambda: Multihead(batch_first=True),
    "multihead, causal": lambda: Multihead(True, batch_first=True),
    "sdpa": lambda: Attend(lambda m, q, k, v: functional.scaled_dot_product_attention(q, k, v)),
    "sdpa, causal, scale": lambda: Attend(
        lambda m, q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
    ),
    "sdpa, mask": lambda: Attend(
        lambda m, q, k, v: functional.scaled_dot_product_attention(
            q, k, v, m.mask[: q.shape[-2], : q.shape[-2]]
        )
    ),
    "sdpa, gqa": lambda: Attend(
        lambda m, q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), kv_heads=2
    ),
    "sdpa, repeated": lambda: Attend(
        lambda m, q, k, v: functional.scaled_dot_product_attention(
            q, k.repeat_interleave(2, -3), v.repeat_interleave(2, -3)
        ),
        kv_heads=2,
    ),
    "by hand": lambda: Attend(_by_hand(None)),
    "by hand, buffer": lambda: Attend(_by_hand(lambda m, s: s + m.mask[: s.shape[-1], : s.shape[-1]])),
    "by hand, triu": lambda: Attend(
        _by_hand(
            lambda m, s: (
                s + torch.triu(torch.ones(s.shape[-2:]) * -torch.inf, diagonal=1).nan_to_num(0, 0, -torch.inf)
            )
        )
    ),
    "by hand, where": lambda: Attend(
        _by_hand(lambda m, s: torch.where(torch.ones(s.shape[-2:], dtype=torch.bool).tril(), s, -torch.inf))
    ),
    "by hand, groups": lambda: Attend(_grouped, kv_heads=2),
    "used twice": Twice,
    "x @ W": lambda: Plain(lambda m, x: x @ m.W),
    "RMSNorm": lambda: nn.RMSNorm(H),
    "LayerNorm": lambda: nn.LayerNorm(H),
    "LayerNorm without bias": lambda: nn.LayerNorm(H, bias=False),
    "norms without parameters": lambda: Plain(_no_affine),
    "softmax": lambda: nn.Softmax(dim=-1),
    "slices of a Linear": lambda: Plain(lambda m, x: m.qkv(x)[..., 5:40] * 2),
    "features again in order": lambda: Plain(lambda m, x: torch.cat(m.qkv(x).chunk(3, -1), -1)),
}


def _made(name: str) -> nn.Module:
    torch.manual_seed(len(name))
    return BLOCKS[name]().eval()


def _rows(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy().reshape(-1, x.shape[-1])


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("batch", [1, 2])
def test_same_as_torch(name: str, batch: int) -> None:
    """Sequences of a batch are apart: the graph is of one, run for each."""
    module, x = _made(name), torch.randn(batch, T, H)
    graph = import_module(module, x)
    with torch.no_grad():
        expected = module.double()(x.double())
    for sequence, wanted in zip(x, expected, strict=True):
        (found,) = reference(graph)({graph.inputs[0].name: _rows(sequence)})[0].values()
        np.testing.assert_allclose(found, _rows(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BLOCKS)
def test_hardware(name: str) -> None:
    """The arithmetic of the hardware is near, and the graph of kernels that is derived computes just that."""
    module, x = _made(name), torch.randn(1, T, H)
    graph = import_module(module, x)
    given = round_f24(x[0].numpy())
    _near_and_derived(graph, {graph.inputs[0].name: given})


def _near_and_derived(graph: LogicalGraph, given: dict[str, np.ndarray]) -> None:
    model = graph.quantised(Numbers(weights="w8"))
    expected, _ = exact(model)(given)
    for output, value in reference(model)(given)[0].items():
        assert np.abs(expected[output] - value).max() <= 0.05 * np.abs(value).max()
    plan = EnginePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=4)
    kernels = Derivation(model, plan, 0.6927).graph(T, 0)
    kernels = place_constants(insert_converters(insert_forks(kernels)))
    padded = {}
    for tensor in (t for t in kernels.tensors if t.role == "input"):
        orders = (it for p in range(kernels.phases) for it in kernels.node(tensor.node).outputs(p).values())
        rows = np.zeros(next(orders).shape, np.float32)
        rows[:, : given[tensor.name].shape[1]] = given[tensor.name]
        padded[tensor.name] = rows
    outputs, _ = golden.run(kernels, padded)
    for output, value in expected.items():
        np.testing.assert_array_equal(outputs[output][:, : value.shape[1]], value)
