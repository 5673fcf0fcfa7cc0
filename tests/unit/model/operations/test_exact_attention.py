"""Attention of the exact interpreter against the equation in rational numbers, its pieces and specials."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.gateware.arith import F24
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.model.operations import exact_attention
from streamgen.model.operations.exact_attention import HeadCodes, attend, joined, quantise_heads
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from tests.unit.gateware.arith.arith_unit import round_exactly

SOFTMAX = AttentionSoftmaxParams(lanes=1, max_length=1 << 20)


def exact(value: Fraction) -> float:
    return round_exactly(value, F24)


def scale_of(heads: HeadCodes, head: int, token: int) -> tuple[int, int]:
    return int(heads.m[head, token]), int(heads.e[head, token])


def by_the_equation(
    queries: HeadCodes, keys: HeadCodes, values: HeadCodes, position: int, scale: float
) -> np.ndarray:
    """One query at a time, in integers and fractions; only the integers p are those of the kernel."""
    heads, T, d = queries.codes.shape
    length = keys.codes.shape[1]
    result = np.zeros((T, heads, d))
    for t in range(T):
        for head in range(heads):
            shared = head // (heads // len(keys.codes))
            m_q, e_q = scale_of(queries, head, t)
            scores = []
            for s in range(length):
                m_k, e_k = scale_of(keys, shared, s)
                dot = sum(
                    int(a) * int(b)
                    for a, b in zip(queries.codes[head, t], keys.codes[shared, s], strict=True)
                )
                f = exact(Fraction(dot * m_q * m_k) * Fraction(2) ** (e_q + e_k))
                scores.append(exact(Fraction(f) * Fraction(float(F24.round(np.array(scale))))))
            bounds = {"rows": 1, "length": length, "causal": True, "position": position + t}
            out = SOFTMAX.golden(bounds, {"i": np.array([scores])})
            greatest = max(int(e) for e in values.e[shared])
            for j in range(d):
                total = 0
                for s in range(length):
                    m_v, e_v = scale_of(values, shared, s)
                    if greatest - e_v <= 15:
                        shift = 15 - (greatest - e_v)
                        total += int(out["o_p"][0, s]) * m_v * int(values.codes[shared, s, j]) << shift
                numerator = exact(Fraction(total) * Fraction(2) ** (greatest - 15))
                result[t, head, j] = exact(Fraction(numerator) / Fraction(float(out["o_sum"][0])))
    return result.reshape(T, heads * d).astype(np.float32)


def random_heads(rng: np.random.Generator, heads: int, T: int, d: int, spread: int) -> np.ndarray:
    """f24 values of tokens whose heads differ by up to 2^spread."""
    x = rng.normal(size=(T, heads, d)) * 2.0 ** rng.integers(-spread, spread + 1, (T, heads, 1))
    return round_f24(x.reshape(T, heads * d))


@pytest.mark.parametrize("spread", [0, 3, 20])
def test_equation(spread: int) -> None:
    """Grouped heads, a context before the pass, values so far apart that some are left out."""
    rng = np.random.default_rng(spread)
    heads, kv_heads, d, T, before = 4, 2, 6, 3, 5
    q = quantise_heads(random_heads(rng, heads, T, d, 2), heads)
    k = random_heads(rng, kv_heads, before + T, d, 1)
    v = random_heads(rng, kv_heads, before + T, d, spread)
    v[1] = 0
    keys, values = quantise_heads(k, kv_heads), quantise_heads(v, kv_heads)
    kept = []
    for rows in (k, v):
        first, more = (quantise_heads(part, kv_heads) for part in (rows[:before], rows[before:]))
        kept.append(joined(joined(HeadCodes.empty(kv_heads, d), 0, first), before, more))
    found = attend(q, *kept, position=before, scale=0.3, softmax=SOFTMAX)
    assert np.array_equal(found, by_the_equation(q, keys, values, before, 0.3))


@pytest.mark.parametrize("p_bits", [8, 12, 16])
def test_long_contexts_are_exact(p_bits: int) -> None:
    """Equal scores and the greatest codes: the sums are the greatest that there are, in several pieces."""
    length = 5000
    codes = np.full((1, length, 2), 127, np.int8)
    codes[0, ::3, 1] = -126
    m, e = np.full((1, length), 255, np.int32), np.zeros((1, length), np.int32)
    e[0, ::7] = -15
    q = HeadCodes(np.zeros((1, 1, 2), np.int8), m[:, :1], e[:, 1:2])
    softmax = AttentionSoftmaxParams(lanes=1, max_length=length, p_bits=p_bits)
    found = attend(
        q,
        HeadCodes(np.zeros_like(codes), m, e),
        HeadCodes(codes, m, e),
        position=length - 1,
        scale=1.0,
        softmax=softmax,
    )
    p = (1 << p_bits) - 1
    total = exact(Fraction(p * length))
    for j in range(2):
        acc = sum(p * 255 * int(c) << 15 + int(s) for c, s in zip(codes[0, :, j], e[0], strict=True))
        assert found[0, j] == exact(Fraction(exact(Fraction(acc, 1 << 15))) / Fraction(total))


def test_blocks_of_tokens_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    x = random_heads(rng, 3, 20, 4, 2)
    q, k, v = (quantise_heads(rows, 3) for rows in (x, x, x[::-1]))
    for choice in ({}, {"window": 5}, {"causal": False}, {"causal": False, "window": 4}, {"soft_cap": 2.0}):
        given = {"position": 0, "scale": 0.5, "softmax": SOFTMAX, **choice}
        whole = attend(q, k, v, **given)
        with monkeypatch.context() as patch:
            patch.setattr(exact_attention, "TOKENS_AT_ONCE", 3)
            assert np.array_equal(whole, attend(q, k, v, **given))


def test_specials() -> None:
    """A key or query that is not finite makes NaN where it is seen, a value in all of its head."""
    rng = np.random.default_rng(6)
    x = random_heads(rng, 2, 6, 4, 1)

    def attended(place: str) -> np.ndarray:
        """Which results [token, head] are NaN when token 3 of head 1 is not finite in q, k or v."""
        bad = x.copy()
        bad[3, 5] = np.inf
        q, k, v = (quantise_heads(bad if name == place else x, 2) for name in "qkv")
        assert (max(part.e.max() for part in (q, k, v)) == E_NOT_FINITE) == (place in "qkv")
        nan = np.isnan(attend(q, k, v, position=0, scale=0.5, softmax=SOFTMAX)).reshape(6, 2, 4)
        assert (nan.all(axis=2) == nan.any(axis=2)).all()
        return nan.all(axis=2)

    assert np.argwhere(attended("q")).tolist() == [[3, 1]]
    assert np.argwhere(attended("k")).tolist() == [[3, 1], [4, 1], [5, 1]]
    assert np.argwhere(attended("v")).tolist() == [[token, 1] for token in range(6)]
    assert not attended("x").any()
    ones, zeros = (quantise_heads(np.full((2, 4), value, np.float32), 1) for value in (1, 0))
    assert not attend(ones, zeros, zeros, position=0, scale=1.0, softmax=SOFTMAX).any()


def test_what_lies_behind_is_forgotten() -> None:
    x = random_heads(np.random.default_rng(7), 1, 8, 4, 1)
    first, more = (quantise_heads(x[part], 1) for part in (slice(0, 5), slice(5, 8)))
    held = joined(joined(joined(HeadCodes.empty(1, 4), 0, first), 3, first), 3, more)
    wanted = quantise_heads(np.concatenate([x[:3], x[5:]]), 1)
    for name in ("codes", "m", "e"):
        assert np.array_equal(getattr(held, name), getattr(wanted, name))
