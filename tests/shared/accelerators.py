"""Small compiled accelerators that several test files share; each is compiled once a process.

Their Verilog is the same every time, so that the cache of built simulators serves all of them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import sigmoid, silu

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams

__all__ = [
    "RESIDUAL",
    "SHARED_CHANNEL",
    "TINY",
    "Gated",
    "Residual",
    "Several",
    "by_hand",
    "compiled",
    "contents",
    "grouped",
    "same",
    "tiny",
    "tiny_module",
    "values",
]


class Residual(torch.nn.Module):
    """One input, one output; a bias, a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(40, 24)
        self.down = torch.nn.Linear(24, 40, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.up(x))) + x


class Gated(torch.nn.Module):
    """The feed-forward block of a language model: two matmuls of one input, a product, one matmul."""

    def __init__(self, features: int = 33, hidden: int = 70) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(features, hidden, bias=False)
        self.up = torch.nn.Linear(features, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Several(torch.nn.Module):
    """Two inputs, two outputs, a constant; one output is read inside as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(100, 24)
        self.second = torch.nn.Linear(24, 7)
        self.gain = torch.nn.Parameter(torch.linspace(0.5, 2, 24))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = sigmoid(self.first(x)) * z * self.gain
        return h, torch.relu(self.second(h))


TINY = CompileConfig(name="tiny", max_tokens=1, multipliers=32, channels=1, weights="w8", prefetch_beats=64)
RESIDUAL = CompileConfig(
    name="residual", max_tokens=3, multipliers=128, token_lanes=2, channels=2, prefetch_beats=64
)
SHARED_CHANNEL = CompileConfig(
    name="several", max_tokens=5, multipliers=256, token_lanes=4, channels=1, group=64, scale_bits=12,
    minimum=False, prefetch_beats=64,
)  # fmt: skip


def tiny_module() -> torch.nn.Module:
    """One matmul, without bias."""
    torch.manual_seed(1)
    return torch.nn.Linear(40, 5, bias=False)


def compiled(
    module: Callable[[], torch.nn.Module], config: CompileConfig, *features: int, seed: int = 0
) -> Accelerator:
    """A module with weights of this seed, compiled for inputs of so many features."""
    torch.manual_seed(seed)
    return streamgen.compile(module(), [torch.zeros(2, f) for f in features], config)


@cache
def tiny() -> Accelerator:
    """40 -> 5 features, 8-bit weights, one token a pass; the fastest design to build."""
    return streamgen.compile(tiny_module(), torch.zeros(1, 40), TINY)


@cache
def grouped() -> Accelerator:
    """40 -> 48 -> 40 -> 24 features in three groups: kernels of one card, 48 tokens a run."""
    torch.manual_seed(2)
    linear = torch.nn.Linear
    module = torch.nn.Sequential(
        linear(40, 48), torch.nn.ReLU(), linear(48, 40), torch.nn.SiLU(), linear(40, 24)
    )
    config = replace(TINY, name="mlp", max_tokens=48, multipliers=96, converter_bits=150_000)
    return streamgen.compile(module, torch.zeros(2, 40), config)


def by_hand(name: str = "hand") -> Accelerator:
    """Sum and product of two inputs [2, 32] whose tiles come in different orders."""
    rows = ITensor((1, 4), "f24", (2, 8), (1, 4), ((0,), (1,)))
    panels = ITensor((1, 4), "f24", (8, 2), (4, 1), ((1,), (0,)))
    b = GraphBuilder(name)
    one = b.load("one", rows, shape=(2, 30), channel=0)
    two = b.load("two", panels, shape=(2, 32), channel=1)
    for operation in ("add", "multiply"):
        params = BinaryParams(operation=operation, lanes=4, max_tokens=rows.token_count)
        out = b.kernel(operation, params, {"itensor": rows}, i_a=one, i_b=two)["o"]
        b.store(f"{operation}_result", out, shape=(2, 30), channel=1)
    return streamgen.assemble(b.build())


def values(*shape: int, seed: int = 0) -> np.ndarray:
    """float32 activations."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def same(one: np.ndarray | tuple[np.ndarray, ...], two: np.ndarray | tuple[np.ndarray, ...]) -> bool:
    """Whether two results are equal bit for bit, in shape and in type."""
    if isinstance(one, tuple) or isinstance(two, tuple):
        assert isinstance(one, tuple) and isinstance(two, tuple)
        return len(one) == len(two) and all(map(same, one, two))
    return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}
