"""scaled_dot_product_attention with enable_gqa, rotary halves from buffers, autocast around norms."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 67, 28
DIM, HEADS, KV_HEADS, HEAD_DIM = 32, 4, 2, 8


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 1.0 / (1000.0 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
    angles = torch.arange(CONTEXT).float()[:, None] * inverse
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    length, half = x.shape[2], x.shape[3] // 2
    x1, x2 = x[..., :half], x[..., half:]
    cos, sin = cos[:length, :][None, None], sin[:length, :][None, None]
    return ((x * cos) + (torch.cat((-x2, x1), dim=-1) * sin)).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    @torch.autocast(device_type="cpu", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        return (x * torch.rsqrt(variance + 1e-6) * self.weight).to(kind)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(DIM, HEADS * HEAD_DIM, bias=False)
        self.wk = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False)
        self.wv = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=True)
        self.wo = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)
        self.fc1 = nn.Linear(DIM, 40, bias=False)
        self.fc2 = nn.Linear(DIM, 40, bias=False)
        self.fc3 = nn.Linear(40, DIM, bias=False)
        self.norm1, self.norm2 = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x, mask, cos, sin):
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.wq(y).view(b, t, HEADS, HEAD_DIM).transpose(1, 2)
        k = self.wk(y).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        v = self.wv(y).view(b, t, KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.fc3(F.silu(self.fc1(y)) * self.fc2(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(VOCABULARY, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.final_norm = RMSNorm(DIM)
        self.out_head = nn.Linear(DIM, VOCABULARY, bias=False)
        self.mask = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool))
        cos, sin = tables()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        t = ids.shape[1]
        x = self.tok_emb(ids)
        for block in self.blocks:
            x = block(x, self.mask[:t, :t], self.cos, self.sin)
        return self.out_head(self.final_norm(x)[:, -1]).float()


def build() -> nn.Module:
    return Model()
