"""Decoders and modules of random shapes and choices: RTL is golden bit for bit, or we refuse them."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.base.errors import StreamgenError
from streamgen.compiler.config import CompileConfig
from tests.shared.decoders import compiled_model, random_decoder

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(0)]

DECODERS, MODULES = 300, 300
VOCABULARIES = (33, 40, 50, 64, 97, 255, 256, 1000, 4099, 50257)


def shape(rng: np.random.Generator, number: int) -> tuple[dict[str, Any], CompileConfig]:
    """Sizes of a decoder, and what is chosen for it; by its number the rare ones come in turn."""

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    head_dim, kv_heads, per = one(8, 12, 16, 24, 32), one(1, 2, 3), one(1, 2, 3)
    context = one(1, 3, 8, 20, 40)
    sizes = {
        "hidden": one(32, 64, 80, 96, 100),
        "heads": kv_heads * per,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "wide": one(33, 96, 160, 200),
        "function": one("silu", "gelu", "gelu_tanh", "relu"),
        "norm": one("rms", "layer"),
        "plus_one": bool(one(False, True)),
        "bias": bool(one(False, True)),
        "interleaved": bool(one(False, True)),
        "rotated": one(0, head_dim, head_dim // 2 // 2 * 2),
        "layers": one(1, 2, 3),
        "vocabulary": VOCABULARIES[number % len(VOCABULARIES)] if number % 8 == 0 else one(*VOCABULARIES[:6]),
        "context": context,
        "windows": one((None,), (2,), (None, 3), (context + 5,)),
    }
    config = CompileConfig(
        name="random",
        max_tokens=one(1, 2, 3, 4),
        context=one(context, 4096),
        channels=one(2, 4),
        multipliers=1024,
        n_lanes=one(1, 2, 3, 4),
        lanes=one(1, 2, 4, 8, 16, 32),
        policy=one(None, None, None, "mixed", "spatial"),
        weights=one(None, "w4", "w8"),
        head=one("w4", "w8"),
        group=one(32, 64, 128),
        scale_bits=one(8, 12, 16),
        minimum=bool(one(False, True)),
        p_bits=one(8, 12, 16),
        sizing=one("conservative", "conservative", "normal"),
        hold_bits=one(None, None, 0),
    )
    return sizes, config


@pytest.mark.parametrize("number", range(DECODERS))
def test_decoders(number: int, seed: int, record_property: Callable[[str, object], None]) -> None:
    rng = np.random.default_rng([seed, number, 16])
    sizes, config = shape(rng, number)
    try:
        model = compiled_model(random_decoder(number, **sizes), config)
    except (StreamgenError, ValueError) as error:
        record_property("refused", str(error))
        assert str(error)
        return
    tokens = int(rng.integers(1, min(sizes["context"], 9) + 1))
    ids = rng.integers(0, sizes["vocabulary"], tokens)
    try:
        expected, session, at = model.golden.logits(ids), model.session(), 0
        while at < tokens:
            count = int(rng.integers(1, tokens - at + 1))
            found = session.last_logits(ids[at : at + count])
            at += count
            np.testing.assert_array_equal(found, expected[at - 1], err_msg=f"{sizes} {config}")
        with pytest.raises(ValueError):  # behind the end of the context
            session.last_logits(np.zeros(sizes["context"] - tokens + 1, int))
    finally:
        model.close()


@pytest.mark.parametrize("number", range(MODULES))
def test_modules(number: int, seed: int, record_property: Callable[[str, object], None]) -> None:
    rng = np.random.default_rng([seed, number, 17])

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    sizes = [int(rng.integers(1, 200)) for _ in range(one(2, 3, 4))]
    layers: list[torch.nn.Module] = []
    torch.manual_seed(number)
    for k, n in pairwise(sizes):
        layers += [torch.nn.Linear(k, n, bias=bool(one(False, True)))]
        layers += one([], [torch.nn.ReLU()], [torch.nn.GELU()], [torch.nn.LayerNorm(n)], [torch.nn.SiLU()])
    module = torch.nn.Sequential(*layers).eval()
    config = CompileConfig(
        name="random",
        max_tokens=one(1, 2, 5, 16),
        multipliers=one(32, 64, 256, 1024),
        channels=one(1, 2, 3, 8),
        policy=one(None, None, "shared", "mixed"),
        weights=one(None, "w8"),
        group=one(32, 64, 128),
        scale_bits=one(8, 11, 16),
        minimum=bool(one(False, True)),
        lanes=one(None, 1, 2, 4, 8, 16, 32),
        token_lanes=one(None, None, 1, 2, 4),
        sizing=one("conservative", "normal"),
        converter_bits=one(None, None, 20000),
    )
    try:
        accelerator = streamgen.compile(module, torch.zeros(2, sizes[0]), config)
    except (StreamgenError, ValueError) as error:
        record_property("refused", str(error))
        assert str(error)
        return
    x = rng.normal(size=(int(rng.integers(1, 8)), sizes[0])).astype(np.float32)
    try:
        assert accelerator.run(x).tobytes() == accelerator.golden(x).tobytes(), f"{sizes} {config}"
    finally:
        accelerator.close()
