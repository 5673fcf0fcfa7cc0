"""model.frontend: ordinary torch blocks become graphs that compute the same, and hardware that does."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import streamgen
from streamgen.base.errors import GraphError, UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.schedule import Derivation, HardwarePlan
from streamgen.model.frontend import import_module, import_structured, joined
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import Exact, Input, LogicalGraph, Operation, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations import Attention
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from streamgen.platform.boards import Channel
from tests.shared.campaigns import sampled
from tests.shared.derived import check_derived

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
        self.ln = nn.LayerNorm(H)

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
    "middle of a row": lambda: Plain(lambda m, x: functional.rms_norm(x[..., 9:25], (16,))),
    "rows side by side": lambda: Plain(
        lambda m, x: torch.cat([x.softmax(-1), functional.rms_norm(x[..., 5:25], (20,)), x[..., -3:]], -1)
    ),
    "slices of a Linear": lambda: Plain(lambda m, x: m.qkv(x)[..., 5:40] * 2),
    "Linear of values side by side": lambda: Plain(
        lambda m, x: torch.cat([x[..., 20:], torch.relu(x)[..., :20]], -1) @ m.W
    ),
    "halves of a function": lambda: Plain(
        lambda m, x: torch.mul(*torch.tanh(m.qkv(x) * 0.5).chunk(2, -1)) + m.qkv(x)[..., :48]
    ),
    "first half of a norm": lambda: Plain(
        lambda m, x: functional.layer_norm(x, (H,))[..., :16] + x[..., :16]
    ),
    "features again in order": lambda: Plain(lambda m, x: torch.cat(m.qkv(x).chunk(3, -1), -1)),
}


def _made(name: str) -> nn.Module:
    torch.manual_seed(len(name))
    return BLOCKS[name]().eval()


def _rows(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy().reshape(-1, x.shape[-1])


@pytest.mark.parametrize("batch", sampled([1, 2], [2]))
@pytest.mark.parametrize("name", BLOCKS)
def test_same_as_torch(name: str, batch: int) -> None:
    """Sequences of a batch are apart: the graph is of one, run for each."""
    module, x = _made(name), torch.randn(batch, T, H)
    graph = import_module(module, x)
    with torch.no_grad():
        expected = module.double()(x.double())
    for sequence, wanted in zip(x, expected, strict=True):
        (found,) = reference(graph)({graph.inputs[0].name: _rows(sequence)})[0].values()
        np.testing.assert_allclose(found, _rows(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_hardware(name: str) -> None:
    """The arithmetic of the hardware is near, and the graph of kernels that is derived computes just that."""
    module, x = _made(name), torch.randn(1, T, H)
    graph = import_module(module, x)
    given = round_f24(x[0].numpy())
    check_derived(graph, {graph.inputs[0].name: given})


@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (lambda m, x: m.qkv(x)[..., 5:40] * 2, ["linear[32 -> 35, bias]", "scale[2]"]),
        (lambda m, x: torch.cat(m.qkv(x).chunk(3, -1), -1), ["linear[32 -> 96, bias]"]),
        (lambda m, x: torch.cat([x, -x], -1).relu() @ m.qkv.weight.reshape(64, -1), None),
        (
            lambda m, x: functional.softmax(torch.cat([x, x * x], -1), -1),
            ["mul", "concat[32 + 32]", "softmax"],
        ),
        (lambda m, x: functional.rms_norm(x[..., 8:24], (16,)), ["slice[8 + 16]", "norm[rms, 16]"]),
    ],
)
def test_views(function: Function, ops: list[str] | None) -> None:
    module, x = Plain(function), torch.randn(3, H)
    graph = import_module(module, x)
    if ops is not None:
        assert [str(operation.op) for operation in graph.operations] == ops
    (found,) = reference(graph)({"x": _rows(x)})[0].values()
    with torch.no_grad():
        np.testing.assert_allclose(found, _rows(module.double()(x.double())), rtol=1e-5, atol=1e-5)


class Nested(nn.Module):
    """Results in a nest, one of them none; an argument by keyword."""

    def forward(self, pair: dict[str, torch.Tensor], *, gate: torch.Tensor, scale: int = 2) -> Any:
        total = pair["a"] + pair["b"] * gate
        return {"sum": total, "rest": (pair["a"] * scale, [None, torch.relu(total)])}


def test_nests() -> None:
    a, b, gate = torch.randn(3, 2, 4, 8).unbind()
    found = import_structured(Nested(), ({"a": a, "b": b},), {"gate": gate, "scale": 3})
    graph = found.graph
    assert [value.name for value in graph.inputs] == ["pair_a", "pair_b", "gate"]
    given = found.arguments.taken((({"a": a, "b": b},), {"gate": gate, "scale": 3}))
    outputs, _ = reference(graph)({name: _rows(x) for name, x in given.items()})
    rebuilt = found.results.rebuilt(outputs)
    expected = Nested()({"a": a, "b": b}, gate=gate, scale=3)
    np.testing.assert_allclose(rebuilt["sum"], _rows(expected["sum"]), atol=1e-6)
    np.testing.assert_allclose(rebuilt["rest"][0], _rows(expected["rest"][0]), atol=1e-6)
    assert rebuilt["rest"][1][0] is None
    np.testing.assert_allclose(rebuilt["rest"][1][1], _rows(expected["rest"][1][1]), atol=1e-6)
    assert found.results.shapes == ((2, 4, 8), (2, 4, 8), None, (2, 4, 8))
    with pytest.raises(ValueError, match=r"^the nest is "):
        found.arguments.taken(((a, b), {}))


def test_several_inputs_and_outputs_in_hardware() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(H, 2, batch_first=True)
            self.head = nn.Linear(H, 12)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = x + self.attention(x, y, y, need_weights=False)[0]
            return z, self.head(z).softmax(-1)

    x, y = torch.randn(2, 1, T, H).unbind()
    graph = import_module(Cross().eval(), (x, y))
    check_derived(graph, {"x": round_f24(x[0].numpy()), "y": round_f24(y[0].numpy())})


def test_tokens_that_see_one_another() -> None:
    assert import_module(_made("encoder layer"), torch.randn(1, T, H)).mixes_tokens
    assert not import_module(_made("mlp"), torch.randn(1, T, H)).mixes_tokens


def test_window() -> None:
    def inner(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool)
        return functional.scaled_dot_product_attention(q, k, v, ones.tril().triu(-2))

    graph = import_module(Attend(inner), torch.randn(1, T, H))
    (attention,) = (o.op for o in graph.operations if isinstance(o.op, Attention))
    assert (attention.causal, attention.window) == (True, 3)


def _windowed(m: nn.Module, scores: torch.Tensor) -> torch.Tensor:
    """A window of 9 tokens, out of a table for 16."""
    assert isinstance(m.mask, torch.Tensor)
    tokens = scores.shape[-1]
    far = torch.ones(16, 16, dtype=torch.bool).tril(-9)
    return scores + m.mask[:tokens, :tokens].masked_fill(far[:tokens, :tokens], -math.inf)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("longest", "window", "tokens"),
    sampled(
        [(*case, tokens) for case in ((8, None), (10, 9), (2000, 9)) for tokens in (1, T, 9)],
        [(8, None, 1), (8, None, 9), (10, 9, 1), (2000, 9, T)],
    ),
)
def test_a_window_is_found_in_the_longest_sequence(tokens: int, longest: int, window: int | None) -> None:
    """Longer than the example, and than what the module runs with."""
    found = import_structured(Attend(_by_hand(_windowed)), torch.randn(2, tokens, H), longest=longest)
    (attention,) = (o.op for o in found.graph.operations if isinstance(o.op, Attention))
    assert (attention.causal, attention.window) == (True, 9 if tokens >= 9 else window)
    assert found.only == {}


@pytest.mark.slow
def test_the_longest_sequence_is_that_of_the_configuration() -> None:
    windows: list[int | None] = []

    def stop(name: str, made: Any) -> None:
        windows.extend(o.op.window for o in made.operations if isinstance(o.op, Attention))
        raise InterruptedError(name)

    for most in (8, 12):
        with pytest.raises(InterruptedError, match=r"^import$"):
            config = CompileConfig(max_tokens=most)
            streamgen.compile(Attend(_by_hand(_windowed)), torch.randn(T, H), config, after=stop)
    assert windows == [None, 9]


def test_a_module_that_asserts_its_longest_sequence() -> None:
    def inner(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert q.shape[-2] <= 12, "too long"
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    for tokens in (T, 12):
        found = import_structured(Attend(inner), torch.randn(1, tokens, H), longest=40)
        assert found.only == {}
    with pytest.raises(ValueError, match=r"does not run on inputs of shape .*too long"):
        import_structured(Attend(inner), torch.randn(1, 13, H))


def test_what_long_sequences_change_is_refused() -> None:
    def inner(m: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, 2 * v if v.shape[-2] > 30 else v)

    assert import_structured(Attend(inner), torch.randn(1, T, H), longest=30).only == {}
    with pytest.raises(UnsupportedOperationError, match="the result for 31 differs from the result for 5"):
        import_structured(Attend(inner), torch.randn(1, T, H), longest=31)


@pytest.mark.parametrize("shape", [(T, H), (T, 1, H)])
def test_tokens_first(shape: tuple[int, ...]) -> None:
    """What torch calls batch_first=False: right for one sequence."""
    module, x = Multihead(True).eval(), torch.randn(shape)
    found = import_structured(module, x)
    (rows,) = reference(found.graph)({"x": _rows(x)})[0].values()
    with torch.no_grad():
        np.testing.assert_allclose(rows, _rows(module.double()(x.double())), rtol=1e-5, atol=1e-5)
    assert found.only == ({} if len(shape) == 2 else {1: 1})


def test_one_token_does_not_hide_a_mask() -> None:
    module = Attend(_by_hand(lambda m, s: s + m.mask[: s.shape[-1], : s.shape[-1]]))
    for tokens in (1, T):
        graph = import_module(module, torch.randn(1, tokens, H))
        (attention,) = (o.op for o in graph.operations if isinstance(o.op, Attention))
        assert attention.causal


def test_a_mask_of_fixed_size() -> None:
    module = Attend(_by_hand(lambda m, s: s + m.mask))
    found = import_structured(module, torch.randn(2, 16, H))
    assert found.only == {1: 16}


FROZEN = "the result of the module depends on the extent of dimension 0 of its inputs"


def _loop(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for _ in range(x.shape[0]):
        x = torch.relu(x)
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x * x.shape[0], FROZEN),
        (lambda m, x: x * x.numel(), FROZEN),
        (_loop, FROZEN),
        (lambda m, x: x + torch.linspace(0, 1, x.shape[0])[:, None], FROZEN),
        (lambda m, x: (x @ x.T / x.shape[0]).softmax(-1) @ x, FROZEN),
        (lambda m, x: (x @ x.T).softmax(-1), "the softmax of attention scores can only multiply values"),
        (lambda m, x: x @ x.T, "a product of two values must be scores of an attention"),
    ],
)
def test_tokens_that_are_frozen(function: Function, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(Plain(function), torch.randn(3, H))
    assert message in str(caught.value)


def test_batch_behind_tokens() -> None:
    """What torch calls batch_first=False, of several sequences: each row holds a token of all of them."""
    module = Multihead(True).eval()
    found = import_structured(module, torch.randn(T, 2, H))
    (attention,) = (o.op for o in found.graph.operations if isinstance(o.op, Attention))
    assert attention.heads == 2 * 4 and attention.causal and found.only == {}
    x = torch.randn(T + 1, 2, H)
    (rows,) = reference(found.graph)({"x": x.double().reshape(T + 1, -1).numpy()})[0].values()
    with torch.no_grad():
        wanted = module.double()(x.double()).reshape(T + 1, -1)
    np.testing.assert_allclose(rows, wanted, rtol=1e-5, atol=1e-5)


def test_no_kernel() -> None:
    """An operation of a user's own, with a meaning and no hardware."""

    class Cubed(Operator):
        def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
            return inputs

        def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
            return inputs[0] ** 3

        def exact(self) -> Exact:
            return self.reference

        def __str__(self) -> str:
            return "cubed"

    graph = LogicalGraph((Input("x", H),), (Operation("y", Cubed(), ("x",)),), ("y",))
    plan = HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=4)
    with pytest.raises(GraphError) as raised:
        Derivation(graph.quantised(Numbers()), plan, Channel(0.6927, 100)).graph(3, 0)
    assert str(raised.value) == "no kernel computes cubed"
