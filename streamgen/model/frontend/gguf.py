"""Feed-forward blocks from GGUF checkpoints, with their real weights and 4-bit grids.

Linear modules made here from 4-bit tensors have their grid as the attribute `weight_grid`, and the compiler
keeps its codes.
"""

from pathlib import Path

import torch
from gguf import ReaderTensor

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.gguf_file import architecture_of, open_gguf, read_tensor


class FeedForward(torch.nn.Module):
    """down(silu(gate(x)) * up(x)): the feed-forward block of Llama."""

    def __init__(self, gate: torch.nn.Linear, up: torch.nn.Linear, down: torch.nn.Linear) -> None:
        super().__init__()
        self.gate = gate
        self.up = up
        self.act = torch.nn.SiLU()
        self.down = down

    def example_inputs(self, tokens: int) -> torch.Tensor:
        """Zeros in the shape of the block's input."""
        return torch.zeros(tokens, self.gate.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def load_feed_forward(path: str | Path, layer: int) -> FeedForward:
    """The feed-forward block of one layer, float32, in eval mode; CheckpointError says what is wrong.

    Linear modules of a Q4_0, Q4_1 or Q4_K tensor have the attribute `weight_grid`, a GroupGrid; those of
    other quantised tensors ask for 8 bits with `weight_format`.
    """
    path = Path(path)
    reader = open_gguf(path)
    if (architecture := architecture_of(path, reader)) != "llama":
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
        raise CheckpointError(f"{path}: the shapes of layer {layer} do not fit each other: {shapes}")
    return FeedForward(gate, up, down).eval()


def _linear(path: Path, tensor: ReaderTensor) -> torch.nn.Linear:
    weight, grid, asked = read_tensor(path, tensor)
    if weight.ndim != 2:
        raise CheckpointError(
            f"{path}: tensor {tensor.name} has shape {list(weight.shape)}; [N, K] is needed"
        )
    N, K = weight.shape
    linear = torch.nn.utils.skip_init(torch.nn.Linear, K, N, bias=False)
    linear.weight = torch.nn.Parameter(torch.from_numpy(weight), requires_grad=False)
    if grid:
        linear.weight_grid = grid
    if asked:
        linear.weight_format = asked
    return linear
