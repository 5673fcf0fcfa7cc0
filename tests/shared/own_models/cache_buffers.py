"""Keys and values in buffers that are written at given positions; masks and rotations by these positions."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 59, 32
DIM, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 4, 2, 8, 2


class KVCache(nn.Module):
    def __init__(self, max_batch_size: int = 1) -> None:
        super().__init__()
        shape = (max_batch_size, KV_HEADS, CONTEXT, HEAD_DIM)
        self.register_buffer("k_cache", torch.zeros(shape))
        self.register_buffer("v_cache", torch.zeros(shape))

    def update(self, input_pos, k_val, v_val):
        assert input_pos.shape[0] == k_val.shape[2]
        k_out, v_out = self.k_cache, self.v_cache
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(dim) + 0.5)

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(torch.mean(y * y, dim=-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def apply_rotary_emb(x, freqs_cis):
    shaped = x.float().reshape(*x.shape[:-1], -1, 2)
    freqs_cis = freqs_cis.view(1, shaped.size(1), 1, shaped.size(3), 2)
    out = torch.stack(
        [
            shaped[..., 0] * freqs_cis[..., 0] - shaped[..., 1] * freqs_cis[..., 1],
            shaped[..., 1] * freqs_cis[..., 0] + shaped[..., 0] * freqs_cis[..., 1],
        ],
        -1,
    )
    return out.flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wqkv = nn.Linear(DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)
        self.kv_cache = KVCache()

    def forward(self, x, freqs_cis, mask, input_pos):
        bsz, seqlen, _ = x.shape
        kv_size = KV_HEADS * HEAD_DIM
        q, k, v = self.wqkv(x).split([DIM, kv_size, kv_size], dim=-1)
        q = q.view(bsz, seqlen, HEADS, HEAD_DIM)
        k = k.view(bsz, seqlen, KV_HEADS, HEAD_DIM)
        v = v.view(bsz, seqlen, KV_HEADS, HEAD_DIM)
        q, k = apply_rotary_emb(q, freqs_cis), apply_rotary_emb(k, freqs_cis)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = self.kv_cache.update(input_pos, k, v)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        return self.wo(y.transpose(1, 2).contiguous().view(bsz, seqlen, DIM))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.w1, self.w3 = nn.Linear(DIM, 48, bias=False), nn.Linear(DIM, 48, bias=False)
        self.w2 = nn.Linear(48, DIM, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x, input_pos, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask, input_pos)
        y = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.output = RMSNorm(DIM), nn.Linear(DIM, VOCABULARY, bias=False)
        freqs = 1.0 / (10000 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        angles = torch.outer(torch.arange(CONTEXT), freqs)
        self.register_buffer("freqs_cis", torch.stack([angles.cos(), angles.sin()], dim=-1))
        self.register_buffer("causal_mask", torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)))

    def forward(self, idx, input_pos):
        mask = self.causal_mask[None, None, input_pos]
        freqs_cis = self.freqs_cis[input_pos]
        x = self.tok_embeddings(idx)
        for layer in self.layers:
            x = layer(x, input_pos, freqs_cis, mask)
        return self.output(self.norm(x))


def build() -> nn.Module:
    return Transformer()


def others(tokens: int):
    return (torch.arange(tokens),)
