"""Attention over quantised keys and values, in the order of roundings of the hardware.

q, k and v are int8 codes, each head of each token with a scale m·2^e (`kernels.quantise_rows`).

    f[t,s]     = f24(dot(q[t], k[s]) · m_q · m_k · 2^(e_q + e_k))     an exact integer, rounded once
    score[t,s] = f24(f · f24(attention scale))        then soft-capped, where there is a cap
    p, sum     = the integers of `kernels.attention_softmax` and their sum in f24
    acc[t,j]   = Σ_s p · m_v · v[s,j] · 2^(15 - d)    d = E_V - e_v[s]; 0 where d > 15; an integer
    o[t,j]     = f24(f24(acc · 2^(E_V - 15)) / sum)     0 where the sum is 0

E_V is the greatest e_v of a head over all positions in the cache, those of the pass that a row does not see
included. A split of a text into passes so changes nothing unless values of a head differ by more than 2^15.
A key or query that is not finite makes NaN of the scores it takes part in, a value of all results of its
head in the pass.

GEMM in float64 is exact here: the products of one f share one power of two and stay below
d · 127^2 · 255^2 < 2^53 (d < 8 million), a term of acc is (2^p_bits - 1) · 255 · 127 · 2^15 at most, so 2,072
positions may be added for 12 bits; pieces of so many are added as int64.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith import F24, DivideParams, ScaleAccumulatorParams
from streamgen.gateware.arith.scale import ACCUMULATOR_FRACTION
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import split_scale
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.elementwise import BINARY_OPERATIONS, ScalarParams
from streamgen.model.operations.exact_linear import EXACT
from streamgen.numbers.formats import E_NOT_FINITE

SCALER = ScaleAccumulatorParams(width=64, form=F24)
DIVIDE = DivideParams(form=F24)
TOKENS_AT_ONCE = 64
LARGEST_VALUE = 255 * 127 << ACCUMULATOR_FRACTION


@dataclass(frozen=True, eq=False)
class HeadCodes:
    """Quantised heads. codes: int8 [heads, T, d]. m, e: int32 [heads, T]."""

    codes: ndarray
    m: ndarray
    e: ndarray

    @classmethod
    def empty(cls, heads: int, d: int) -> "HeadCodes":
        """Heads without positions."""
        nothing = np.zeros((heads, 0), np.int32)
        return cls(np.zeros((heads, 0, d), np.int8), nothing, nothing)

    def reals(self) -> ndarray:
        """float64 [heads, T, d], exact; NaN for a head that is not finite."""
        finite = self.e != E_NOT_FINITE
        scale = np.where(finite, np.ldexp(self.m.astype(np.float64), np.where(finite, self.e, 0)), np.nan)
        return self.codes * scale[..., None]


def quantise_heads(x: ndarray, heads: int) -> HeadCodes:
    """Quantise rows of f24 values [T, heads · d] as the quantiser of rows does."""
    T, features = x.shape
    d = features // heads
    quantiser = QuantiseRowsParams(lanes=1, max_d=d, max_tokens=T * features)
    result = quantiser.golden({"t": T, "features": features, "d": d}, {"i": x})
    m, e = split_scale(result["o_scale"].T)
    return HeadCodes(result["o_x"].reshape(T, heads, d).swapaxes(0, 1), m, e)


def joined(held: HeadCodes, position: int, more: HeadCodes) -> HeadCodes:
    """Write heads of tokens at `position` and the following positions; later positions are dropped."""
    parts = (
        np.concatenate([old[:, :position], new], axis=1)
        for old, new in ((held.codes, more.codes), (held.m, more.m), (held.e, more.e))
    )
    return HeadCodes(*parts)


def attend(
    queries: HeadCodes,
    keys: HeadCodes,
    values: HeadCodes,
    *,
    position: int,
    scale: float,
    softmax: AttentionSoftmaxParams,
    causal: bool = True,
    window: int = 0,
    start: int = 0,
    bias: ndarray | None = None,
    soft_cap: float | None = None,
) -> ndarray:
    """Attention of heads of tokens from `position` on over those of all positions: f24 values float32 [T,
    heads · d].

    window: the number of positions that a token sees, on both sides of it if the attention is not causal; 0
    means all. start: the first position that is seen. bias: f24 numbers [T,
    heads, positions] that are added to the scores.
    """
    heads, T, d = queries.codes.shape
    reals = keys.reals()
    sharing = heads // len(reals)
    rounded_scale = F24.round(np.array(scale))
    greatest = values.e.max(axis=1)
    shift = greatest[:, None] - values.e
    weight = np.where(shift <= ACCUMULATOR_FRACTION, np.ldexp(1.0, ACCUMULATOR_FRACTION - shift), 0.0)
    integers = values.codes * (values.m * weight)[..., None]
    # Rows of a key head: token by token, and for each token the query heads that share it.
    grouped = queries.reals().reshape(len(reals), sharing, T, d).swapaxes(1, 2)
    result = np.empty((T, len(reals), sharing, d), np.float32)
    for first in range(0, T, TOKENS_AT_ONCE):
        tokens = slice(first, min(first + TOKENS_AT_ONCE, T))
        seen = position + tokens.stop if causal else reals.shape[1]
        bounds = {
            "rows": (tokens.stop - first) * sharing,
            "length": seen,
            **window_bounds(position + first, window, causal=causal),
            "rows_per_position": sharing,
            "start": start,
        }
        for head in range(len(reals)):
            rows = grouped[head, tokens].reshape(-1, d)
            scores = F24.round(F24.round(rows @ reals[head, :seen].T) * rounded_scale)
            if soft_cap is not None:
                cap = ScalarParams(function="soft_cap", lanes=1, max_tokens=1)
                scores = cap.golden({"constant": soft_cap}, {"i": scores})["o"]
            if bias is not None:
                own = bias[tokens, head * sharing : (head + 1) * sharing, :seen]
                scores = BINARY_OPERATIONS["add"].golden(scores, own.reshape(scores.shape).astype(np.float64))
            shares = softmax.golden(bounds, {"i": scores})
            sums = _sums(shares["o_p"].astype(np.float64), integers[head, :seen], softmax.p_bits)
            total = shares["o_sum"][:, None]
            o = DIVIDE.golden(SCALER.golden(sums, np.array(1.0), greatest[head]), total)
            result[tokens, head] = np.where(total == 0, 0.0, o).reshape(-1, sharing, d)
    return result.reshape(T, heads * d)


def window_bounds(position: int, window: int, *, causal: bool) -> dict[str, int]:
    """Bounds of a softmax for tokens from `position` on that see a window of positions; 0 means all.

    A window on both sides is a causal one of 2 * window - 1 positions that ends window - 1 positions later:
    t - window < p < t + window.
    """
    if causal or not window:
        return {"causal": causal, "position": position, "window": window}
    return {"causal": True, "position": position + window - 1, "window": 2 * window - 1}


def _sums(shares: ndarray, values: ndarray, p_bits: int) -> ndarray:
    """shares @ values: float64 if that is certainly exact, else int64."""
    piece = (EXACT - 1) // (((1 << p_bits) - 1) * LARGEST_VALUE)
    if len(values) <= piece:
        return shares @ values + 0.0
    parts = (slice(first, first + piece) for first in range(0, len(values), piece))
    return sum((shares[:, part] @ values[part]).astype(np.int64) for part in parts)
