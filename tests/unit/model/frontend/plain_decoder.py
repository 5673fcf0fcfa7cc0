"""A decoder in plain torch, with no library's modules: small methods that variants override."""

import math

import torch
from torch import nn
from torch.nn import functional

__all__ = ["CONTEXT", "SIZES", "Explicit", "Plain"]

VOCABULARY, HIDDEN, FEATURES, HEADS, KV_HEADS, HEAD_DIM, LAYERS, CONTEXT = 37, 24, 40, 4, 2, 8, 2, 40
SIZES = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "context": CONTEXT}
Cache = list[torch.Tensor]


class Scale(nn.Module):
    """RMSNorm as an equation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Block(nn.Module):
    """One layer's parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Scale(), Scale()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD_DIM)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, FEATURES, bias=False)
        self.up = nn.Linear(HIDDEN, FEATURES)
        self.down = nn.Linear(FEATURES, HIDDEN)


class Plain(nn.Module):
    """Heads by views, rotation in halves with angles made on the way, scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = Scale()
        self.register_buffer("frequencies", 100.0 ** (-torch.arange(HEAD_DIM // 2) * 2.0 / HEAD_DIM))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, keys: Cache, values: Cache
    ) -> tuple[torch.Tensor, Cache, Cache]:
        x = self.embed(ids, positions)
        mask = self.mask(positions, keys[0].shape[2])
        grown_keys, grown_values = [], []
        for block, key, value in zip(self.blocks, keys, values, strict=True):
            mixed, key, value = self.attention(block, block.before(x), positions, mask, key, value)
            x = x + mixed
            x = x + self.feed_forward(block, block.after(x))
            grown_keys.append(key)
            grown_values.append(value)
        return self.head(self.norm(x)), grown_keys, grown_values

    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.embedding.weight)

    def feed_forward(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        return block.down(functional.silu(block.gate(x)) * block.up(x))

    def mask(self, positions: torch.Tensor, past: int) -> torch.Tensor:
        return torch.arange(past + positions.shape[1]) <= positions[..., None]

    def project(self, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = (linear(x) for linear in (block.q, block.k, block.v))
        return tuple(y.view(*y.shape[:2], -1, HEAD_DIM).transpose(1, 2) for y in (q, k, v))

    def attention(
        self,
        block: Block,
        x: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = self.project(block, x)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        key, value = torch.cat([key, k], 2), torch.cat([value, v], 2)
        out = self.mix(q, key, value, mask)
        return block.o(out.transpose(1, 2).flatten(2)), key, value

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[:, None, :, None] * self.frequencies
        return angles.cos(), angles.sin()

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles(positions)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def mix(
        self, q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, key, value, mask, enable_gqa=True)


class Explicit(Plain):
    """The same decoder in other words: fused projections, tables, neighbouring pairs of the first features
    of a head, matmul and softmax, a scaled query, changes in place, a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.ModuleList(
            [nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM) for _ in range(LAYERS)]
        )
        self.gate_up = nn.ModuleList([nn.Linear(HIDDEN, 2 * FEATURES) for _ in range(LAYERS)])
        self.out = nn.Linear(HIDDEN, VOCABULARY)
        self.last = nn.RMSNorm(HIDDEN, eps=1e-4)
        angles = torch.arange(CONTEXT)[:, None] * torch.tensor([0.7, 0.02])
        self.register_buffer("table", torch.stack([angles.cos(), angles.sin()]))
        for index, block in enumerate(self.blocks):
            block.index = index

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)

    def project(self, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.fused[block.index](x).unflatten(-1, (KV_HEADS, HEADS // KV_HEADS + 2, HEAD_DIM))
        q, k, v = y.split([HEADS // KV_HEADS, 1, 1], dim=3)
        return tuple(part.flatten(2, 3).permute(0, 2, 1, 3) for part in (q, k, v))

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = (self.table[i][positions].repeat_interleave(2, -1)[:, None] for i in (0, 1))
        turning, rest = x[..., :4], x[..., 4:]
        pairs = turning.unflatten(-1, (2, 2))
        crossed = torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2)
        return torch.cat([turning * cos + crossed * sin, rest], -1)

    def mix(
        self, q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        key, value = (y.repeat_interleave(HEADS // KV_HEADS, dim=1) for y in (key, value))
        scores = torch.matmul(q / math.sqrt(HEAD_DIM), key.mT) * 0.75
        scores = scores.masked_fill(~mask, -torch.inf)
        return torch.matmul(scores.softmax(-1), value)

    def feed_forward(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up[block.index](x).chunk(2, -1)
        up = up.contiguous()
        return block.down(up * functional.gelu(gate, approximate="tanh"))
