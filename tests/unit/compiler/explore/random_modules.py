"""Random torch modules of Linear, activations, + and *, with random configurations; small, so that their
simulators build in seconds."""

import numpy as np
import torch

from streamgen.compiler.config import CompileConfig

__all__ = ["RandomModule", "random_config"]

SIZES = (3, 8, 17, 32, 40, 64, 70, 96)
UNARY = {"relu": torch.relu, "sigmoid": torch.sigmoid, "silu": torch.nn.functional.silu}
BINARY = {"add": torch.add, "mul": torch.mul}


class RandomModule(torch.nn.Module):
    """One or two inputs, two or three operations; what nothing reads is an output.

    features: of the inputs.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        sizes = [int(size) for size in rng.choice(SIZES, 3)]
        self.features = [int(rng.choice(sizes)) for _ in range(rng.integers(1, 3))]
        self.layers = torch.nn.ModuleList()
        self.steps: list[tuple[str, int, int]] = []  # operation, its operand, the other one or the layer
        features = list(self.features)
        wanted = int(rng.integers(2, 4))
        while len(self.steps) < wanted:
            a = len(features) - 1 if rng.random() < 0.6 else int(rng.integers(len(features)))
            kind = str(rng.choice(["linear", "linear", "unary", "binary", "constant"]))
            if kind == "linear":
                self.layers.append(
                    torch.nn.Linear(features[a], int(rng.choice(sizes)), bool(rng.integers(2)))
                )
                self.steps.append((kind, a, len(self.layers) - 1))
                features.append(self.layers[-1].out_features)
                continue
            if kind == "unary":
                self.steps.append((str(rng.choice(list(UNARY))), a, 0))
            elif kind == "binary":
                same = [i for i, size in enumerate(features) if size == features[a]]
                self.steps.append((str(rng.choice(list(BINARY))), a, int(rng.choice(same))))
            else:
                self.layers.append(torch.nn.Linear(features[a], 1))
                self.steps.append((f"constant {rng.choice(list(BINARY))}", a, len(self.layers) - 1))
            features.append(features[a])
        for i in range(len(self.features)):
            if not any(i in self._read(step) for step in self.steps):
                self.steps.append(("relu", i, 0))
                features.append(features[i])
        read = {i for step in self.steps for i in self._read(step)}
        self.outputs = [i for i in range(len(self.features), len(features)) if i not in read]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for kind, a, b in self.steps:
            if kind == "linear":
                values.append(self.layers[b](values[a]))
            elif kind in UNARY:
                values.append(UNARY[kind](values[a]))
            elif kind in BINARY:
                values.append(BINARY[kind](values[a], values[b]))
            else:
                values.append(BINARY[kind.split()[1]](values[a], self.layers[b].weight[0]))
        return tuple(values[i] for i in self.outputs)

    @staticmethod
    def _read(step: tuple[str, int, int]) -> set[int]:
        kind, a, b = step
        return {a, b} if kind in BINARY else {a}


def random_config(seed: int) -> CompileConfig:
    """Any formats, channels, token lanes, prefetch depths; few multipliers."""
    rng = np.random.default_rng([seed, 1])
    return CompileConfig(
        name=f"random_{seed}",
        max_tokens=int(rng.integers(1, 13)),
        multipliers=int(rng.choice([64, 96, 128])),
        channels=int(rng.choice([1, 2, 3])),
        weights=str(rng.choice(["w4", "w8"])),
        group=int(rng.choice([32, 64, 128])),
        scale_bits=int(rng.choice([8, 12, 16])),
        minimum=bool(rng.integers(2)),
        prefetch_beats=int(rng.choice([64, 100, 512])),
        sizing=str(rng.choice(["conservative", "normal"])),
    )
