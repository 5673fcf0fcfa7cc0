"""streamgen.model.frontend.decoder: what is no decoder is named, with its place."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_decoder
from tests.unit.model.frontend import plain_decoder
from tests.unit.model.frontend.plain_decoder import SIZES, Plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

PLAIN = Path(plain_decoder.__file__)


def _problem(kind: type[Plain], text: str, problem: str) -> str:
    """The line of a message: where in `forward` the call stands, and what is wrong."""
    lines = PLAIN.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if text in line)
    return f"the module ({kind.__name__}), {PLAIN}:{number}: {problem}"


ATTENTION = "mixed, key, value = self.attention("
FEED_FORWARD = "x = x + self.feed_forward("
HEAD = "return self.head(self.norm(x))"


class Causal(Plain):
    def mix(self, q, key, value, mask):
        return functional.scaled_dot_product_attention(q, key, value, is_causal=True, enable_gqa=True)


class Unmasked(Plain):
    def mix(self, q, key, value, mask):
        return functional.scaled_dot_product_attention(q, key, value, enable_gqa=True)


class Mixed(Plain):
    def mix(self, q, key, value, mask):
        key, value = (y.repeat(1, 2, 1, 1) for y in (key, value))
        return functional.scaled_dot_product_attention(q, key, value, mask)


class Yarn(Plain):
    def angles(self, positions):
        return tuple(1.2 * table for table in super().angles(positions))


class Dynamic(Plain):
    def angles(self, positions):
        stretch = torch.where(positions.max() > 20, 2.0, 1.0)
        angles = positions[:, None, :, None] * (self.frequencies / stretch)
        return angles.cos(), angles.sin()


class Quarter(Plain):
    def rotate(self, x, positions):
        cos, sin = self.angles(positions)
        first, second = x.chunk(2, -1)
        other = torch.cat([second[..., 1:], second[..., :1]], -1)
        return torch.cat([first * cos - other * sin, second * cos + first * sin], -1)


class Forgetful(Plain):
    def attention(self, block, x, positions, mask, key, value):
        out, key, value = super().attention(block, x, positions, mask, key, value)
        return out, key * 1.0, value


class Dropping(Plain):
    def feed_forward(self, block, x):
        return functional.dropout(super().feed_forward(block, x), 0.1)


class Alien(Plain):
    """Operations of no decoder, each named, whatever else is wrong."""

    def feed_forward(self, block, x):
        return block.down(torch.lgamma(block.gate(x)) * block.up(x))

    def head(self, x):
        return torch.digamma(functional.layer_norm(super().head(x), (37,)))


SDPA = "aten.scaled_dot_product_attention.default"


@pytest.mark.parametrize(
    ("kind", "problems"),
    [
        (
            Causal,
            2
            * [
                (
                    ATTENTION,
                    f"{SDPA}: is_causal aligns the first query with the first key of the cache; give "
                    "a mask instead",
                )
            ],
        ),
        (Unmasked, 2 * [(ATTENTION, f"{SDPA}: it has no causal mask")]),
        (Mixed, 2 * [(ATTENTION, f"{SDPA}: query head h must read the keys and values of head h // 2")]),
        (
            Yarn,
            [
                (ATTENTION, f"aten.{call}.Tensor: its cosine and sine at position 0 are 1.2, not 1 and 0")
                for call in 4 * ("sub", "add")
            ],
        ),
        (
            Dynamic,
            4
            * [
                (
                    ATTENTION,
                    "aten.sub.Tensor: its rotary table at position 1, pair 0 is 0.540302; one angle position "
                    "* 1.08905 gives 0.463329",
                )
            ],
        ),
        (
            Quarter,
            4
            * [
                (
                    ATTENTION,
                    "aten.sub.Tensor: its features rotate in pairs that are neither halves nor neighbours",
                )
            ],
        ),
        (
            Forgetful,
            2
            * [
                (
                    ATTENTION,
                    "aten.mul.Tensor: rows of earlier passes can only be keys and values of an attention",
                )
            ],
        ),
        (
            Dropping,
            2 * [(FEED_FORWARD, "aten.dropout.default: it is in training mode; call module.eval() first")],
        ),
        (
            Alien,
            [
                (FEED_FORWARD, "aten.lgamma.default"),
                (FEED_FORWARD, "aten.lgamma.default"),
                (HEAD, "aten.digamma.default"),
            ],
        ),
    ],
)
def test_unsupported(kind: type[Plain], problems: list[tuple[str, str]]) -> None:
    """Every problem of every layer in one error, with its place; those that are alike are one line."""
    torch.manual_seed(1)
    with pytest.raises(UnsupportedOperationError) as caught:
        import_decoder(kind(), **SIZES)
    first, *found, last = str(caught.value).splitlines()
    lines = [_problem(kind, *problem) for problem in problems]
    assert list(caught.value.operations) == lines
    assert found == [f"  {line}" for line in dict.fromkeys(lines)]
    assert first.startswith(f"{len(problems)} operation")
    assert last.startswith("Supported: an embedding of ids, learned or rotary positions or none; ")


@pytest.mark.parametrize(
    ("module", "sizes", "error", "message"),
    [
        (torch.relu, SIZES, TypeError, "module is builtin_function_or_method; a torch.nn.Module is needed"),
        (
            Plain(),
            {"layers": 2, "context": 40},
            TypeError,
            "import_decoder needs kv_heads, head_dim for a module that is not a transformers model",
        ),
        (Plain(), SIZES | {"context": 3}, ValueError, "context is 3; an integer of at least 4 is needed"),
        (Plain(), SIZES | {"layers": 2.0}, ValueError, "layers is 2.0; an integer of at least 1 is needed"),
        (
            Plain(),
            SIZES | {"head_dim": 6},
            UnsupportedOperationError,
            "the module cannot be traced: ",
        ),
        (
            Plain(),
            SIZES | {"layers": 1},
            UnsupportedOperationError,
            "the module cannot be traced: ",
        ),
        (
            nn.Identity(),
            SIZES,
            UnsupportedOperationError,
            "the module cannot be traced: ",
        ),
    ],
)
def test_bad_arguments(module: Any, sizes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        import_decoder(module, **sizes)


class Logits(Plain):
    def forward(self, ids, positions, keys, values):
        return super().forward(ids, positions, keys, values)[0]


def test_no_cache_comes_back() -> None:
    with pytest.raises(ValueError) as caught:
        import_decoder(Logits(), **SIZES)
    assert str(caught.value) == (
        "the module returns 1 tensors; 5 are needed: logits, and the keys and values of 2 layers"
    )


def test_weights_that_are_not_finite() -> None:
    module = Plain()
    with torch.no_grad():
        module.blocks[1].up.weight[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"^blocks\.1\.up\.weight\[3, 2\] is nan; all must be finite$"):
        import_decoder(module, **SIZES)
