"""Windows in turn with the whole text, norms of heads, partial rotation by pairs, soft-caps."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 59, 40
DIM, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 32, 4, 2, 8, 6


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.size(-1),))


class Rotation(nn.Module):
    def __init__(self, rotated: int = 4) -> None:
        super().__init__()
        self.rotated = rotated
        angles = torch.outer(torch.arange(CONTEXT), 100.0 ** -(torch.arange(0, rotated, 2) / rotated))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        cos, sin = (t[: x.size(-2)] for t in (self.cos, self.sin))
        even, odd = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return torch.cat((pairs.flatten(-2), rest), dim=-1)


class Attention(nn.Module):
    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)
        self.rotation = Rotation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).unflatten(-1, (HEADS + 2 * KV_HEADS, HEAD_DIM)).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = self.rotation(rms_norm(q)), self.rotation(rms_norm(k))
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        scores = (q * HEAD_DIM**-0.5) @ k.mT
        scores = 20.0 * torch.tanh(scores / 20.0)
        steps = torch.arange(length, device=x.device)
        distance = steps[:, None] - steps[None, :]
        seen = distance >= 0
        if self.window is not None:
            seen = seen & (distance < self.window)
        scores = torch.where(seen, scores, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.attention = Attention(WINDOW if index % 2 == 0 else None)
        self.up = nn.Linear(DIM, 2 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(rms_norm(x))
        return x + self.down(F.relu(self.up(rms_norm(x))).square())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList([Block(index) for index in range(4)])
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(ids) * DIM**0.5
        for block in self.blocks:
            x = block(x)
        logits = self.head(rms_norm(x))
        return {"logits": 15.0 * torch.tanh(logits / 15.0)}


def build() -> nn.Module:
    return Model()
