"""streamgen.kernels.attention.scores: rtl == golden, golden against exact products, promises as measured."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.itensor import same_stream
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import E_ZERO, join_scale, split_scale
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

# Limits of the exponents that quantisers give, of f24 in the product, of i16, and not finite.
EXPONENTS = (E_ZERO, -140, -83, -82, -64, 0, 40, 46, 47, 105, 113, 32766, -32768, E_NOT_FINITE)
SCALES = (0.125, 1.0, -0.3, 0.0, 2.0**-126, (2 - 2.0**-15) * 2.0**127, 1e-30)


def _params(dims: int, lanes: int, group: int = 1, max_length: int = 40) -> AttentionScoresParams:
    return AttentionScoresParams(dims=dims, lanes=lanes, group=group, max_length=max_length, max_rows=63)


def scales(rng: np.random.Generator, shape: tuple[int, int], directed: float = 0.3) -> np.ndarray:
    """Ordinary scales, and a share of those with exponents from the list."""
    e = np.where(rng.random(shape) < directed, rng.choice(EXPONENTS, shape), rng.integers(-30, 10, shape))
    return join_scale(rng.integers(128, 256, shape), e)


def codes(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """int8 of all values; whole rows of the greatest magnitude and of zeros."""
    found = rng.integers(-127, 128, shape).astype(np.int8)
    kind = rng.random((len(found), 1))
    found = np.where(kind < 0.15, np.int8(127), found)
    found = np.where((kind > 0.15) & (kind < 0.3), np.int8(-127), found)
    return np.where((kind > 0.3) & (kind < 0.4), np.int8(0), found)


def _case(
    params: AttentionScoresParams, rng: np.random.Generator, heads: int, t: int, length: int, scale: float
) -> Case:
    """The padding of the last tile holds anything."""
    bounds = {"heads": heads, "t": t, "length": length, "scale": scale}
    shapes = {port: itensor.shape for port, itensor in params.inputs(bounds).items()}
    keys = codes(rng, shapes["i_k"])
    keys[length:] = rng.integers(-128, 128, keys[length:].shape)
    keys[rng.random(keys.shape) < 0.02] = -128
    key_scales = scales(rng, shapes["i_k_scale"])
    key_scales[length:] = rng.integers(-(1 << 23), 1 << 23, key_scales[length:].shape)
    return bounds, {
        "i_q": codes(rng, shapes["i_q"]),
        "i_q_scale": scales(rng, shapes["i_q_scale"]),
        "i_k": keys,
        "i_k_scale": key_scales,
    }


def _cases(params: AttentionScoresParams, rng: np.random.Generator, count: int) -> list[Case]:
    """The longest, the shortest, random ones."""
    limit = params.max_rows // params.group
    several = [(1, 2, params.max_length), (1, 1, 1), (1, 1, 1)]
    for _ in range(count):
        heads = int(rng.integers(1, 1 + min(3, limit)))
        t = int(rng.integers(1, 1 + min(4, limit // heads)))
        several.append((heads, t, int(rng.integers(1, 1 + min(params.max_length, 5 * params.lanes)))))
    return [_case(params, rng, *shape, float(rng.choice(SCALES))) for shape in several]


@pytest.mark.parametrize(("dims", "lanes", "group"), [(4, 1, 2), (5, 2, 1), (9, 3, 2), (1, 4, 1), (3, 16, 3)])
def test_matches_golden(dims: int, lanes: int, group: int) -> None:
    """Random descriptors back to back under random stalls of all kinds."""
    params = _params(dims, lanes, group)
    cases = _cases(params, np.random.default_rng(dims), 3)
    for sources, sinks in ((0.0, 0.0), (0.2, 0.4)):
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


def test_heads_of_real_width() -> None:
    """All products at their greatest: no sum of packed products leaves its field."""
    params = _params(64, 2, 3)
    rng = np.random.default_rng(2)
    cases = _cases(params, rng, 3)
    for q, k in ((127, 127), (127, -128), (-127, -128), (-127, 127)):
        bounds, inputs = _case(params, rng, 1, 1, 5, 1.0)
        ends = {"i_q": np.full_like(inputs["i_q"], q), "i_k": np.full_like(inputs["i_k"], k)}
        cases.append((bounds, {**inputs, **ends}))
        ends["i_k"][::2] = 127
        cases.append((bounds, {**inputs, **ends, "i_k": ends["i_k"].copy()}))
    check_golden(params, cases, Stalls(seed=3, sources=0.2, sinks=0.2))


def test_reset_in_mid_run() -> None:
    params = _params(4, 2, 2)
    cases = _cases(params, np.random.default_rng(4), 2)
    for cycle in (5, 33, 60):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


def test_golden_is_rounded_twice() -> None:
    """By fractions: the exact product to f24, times the constant to f24; in the order of rows."""
    params = _params(4, 2, 2)
    bounds, inputs = _case(params, np.random.default_rng(5), 2, 9, 21, 0.3)
    out = params.golden(bounds, inputs)["o"]
    assert out.shape == (36, 22)
    constant = float(round_f24(np.array(0.3)))
    m_q, e_q = (part.tolist() for part in split_scale(inputs["i_q_scale"]))
    m_k, e_k = (part.tolist() for part in split_scale(inputs["i_k_scale"]))
    q, k = inputs["i_q"].tolist(), inputs["i_k"].tolist()
    expected = np.empty((36, 21))
    for row, s in np.ndindex(36, 21):
        head, t, member = row // 18, row // 2 % 9, row % 2
        query = head * 2 + member
        products = zip(q[t][4 * query :][:4], k[s][4 * head :][:4], strict=True)
        exact = sum(a * b for a, b in products) * m_q[t][query] * m_k[s][head]
        f = f24_of(exact * Fraction(2) ** (e_q[t][query] + e_k[s][head]))
        special = f == 0 or np.isinf(f)
        expected[row, s] = f * constant if special else f24_of(Fraction(f) * Fraction(constant))
        if E_NOT_FINITE in (e_q[t][query], e_k[s][head]):
            expected[row, s] = np.nan
    np.testing.assert_array_equal(out[:, :21], expected)
    for kind in (np.isnan, np.isinf, lambda x: x == 0):
        assert 5 < kind(expected).sum() < 700


def f24_of(value: Fraction) -> float:
    """The nearest f24, ties to even."""
    if value == 0:
        return 0.0
    top = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    top -= abs(value) < Fraction(2) ** top
    if not -200 < top < 200:
        return float(np.copysign(np.inf if top > 0 else 0.0, 1 if value > 0 else -1))
    unit = Fraction(2) ** (top - 15)
    return float(round_f24(np.array(float(round(value / unit) * unit))))


def test_golden_matches_real_arithmetic() -> None:
    """Quantised from reals: |score - scale * q.k| is at most what half a code of each element makes.

    With |q - q'| <= s_q / 2 and |k'| <= 127 s_k, a product is off by (127 + 127 + 1/2) s_q s_k / 2 at most,
    and the roundings of f, of the constant and of the score by 2^-16 of the result each.
    """
    params = _params(64, 1, 3)
    rng = np.random.default_rng(6)
    bounds = {"heads": 2, "t": 3, "length": 11, "scale": 0.125}
    q = round_f24(rng.normal(size=(3, 6 * 64)))
    k = round_f24(rng.normal(size=(11, 2 * 64)))
    quantiser = QuantiseRowsParams(lanes=1, max_d=64, max_tokens=1 << 20)
    inputs, sizes = {}, {}
    for name, x in (("q", q), ("k", k)):
        found = quantiser.golden({"t": len(x), "features": x.shape[1], "d": 64}, {"i": x})
        inputs |= {f"i_{name}": found["o_x"], f"i_{name}_scale": found["o_scale"]}
        m, e = split_scale(found["o_scale"])
        sizes[name] = m * 2.0**e
    out = params.golden(bounds, inputs)["o"].reshape(2, 3, 3, 11)
    exact = np.einsum(
        "thgd,lhd->htgl", q.reshape(3, 2, 3, 64).astype(float), k.reshape(11, 2, 64).astype(float)
    )
    unit = np.einsum("thg,lh->htgl", sizes["q"].reshape(3, 2, 3), sizes["k"])
    bound = 0.125 * (64 * 127.25 * unit) + np.abs(out) * 3 * 2.0**-16
    assert (np.abs(out - 0.125 * exact) <= bound).all()
    assert np.abs(out - 0.125 * exact).max() < 0.05


def test_special_rows() -> None:
    """Zeros give 0, of either sign as the constant has it; a scale that is not finite gives NaN."""
    params = _params(4, 1)
    zero, nan = join_scale(128, E_ZERO), join_scale(128, E_NOT_FINITE)
    one = join_scale(128, -7)
    bounds = {"heads": 1, "t": 3, "length": 3, "scale": -1.0}
    q = np.array([[0] * 4, [1] * 4, [0] * 4], np.int8)
    inputs = {
        "i_q": q,
        "i_q_scale": np.array([[zero], [one], [nan]]),
        "i_k": q,
        "i_k_scale": np.array([[zero], [one], [nan]]),
    }
    out = params.golden(bounds, inputs)["o"]
    np.testing.assert_array_equal(out, [[0, 0, np.nan], [0, -4, np.nan], [np.nan] * 3])
    assert np.signbit(out[0, 0])
    check_golden(params, [(bounds, inputs)])


def test_golden_refuses_what_multipliers_cannot_hold() -> None:
    params = _params(4, 2)
    bounds, inputs = _case(params, np.random.default_rng(7), 1, 1, 2, 1.0)
    inputs["i_q"][0, 2] = -128
    with pytest.raises(ValueError, match=r"^a code of i_q is -128; -127 to 127 are allowed$"):
        params.golden(bounds, inputs)


def test_the_streams_are_those_of_softmax_and_quantiser() -> None:
    params = _params(8, 4, 3)
    bounds = {"heads": 2, "t": 3, "length": 10, "scale": 1.0}
    softmax = AttentionSoftmaxParams(lanes=4, max_length=40)
    taken = softmax.inputs({"rows": 18, "length": 10, "causal": True, "rows_per_position": 3})["i"]
    assert same_stream(params.outputs(bounds)["o"], taken)
    once = {"heads": 1, "t": 1, "length": 1, "scale": 1.0}
    quantiser = QuantiseRowsParams(lanes=8, max_d=8, max_tokens=99)
    found = quantiser.outputs({"t": 1, "features": 24, "d": 8})
    assert same_stream(params.inputs(once)["i_q"], found["o_x"])
    assert same_stream(params.inputs(once)["i_q_scale"], found["o_scale"])


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 2), (3, 2, 5), (1, 3, 40)])
def test_promises(shape: tuple[int, int, int]) -> None:
    """Rows of a tile follow one another in each cycle; so do descriptors."""
    params = _params(4, 2, 2)
    check_promises(params, *_case(params, np.random.default_rng(8), *shape, 0.5))


def test_waits_for_a_reader() -> None:
    """While nothing is taken, what the queue holds is let in, no more."""
    params = _params(4, 1)
    bounds, inputs = _case(params, np.random.default_rng(9), 1, 2, 40, 1.0)
    golden = encode_port(params.outputs(bounds)["o"], params.golden(bounds, inputs)["o"])
    streams = {name: encode_port(it, inputs[name]) for name, it in params.inputs(bounds).items()}
    streams["i_descriptor"] = [descriptor_word(params, bounds)]
    result = run(params.build(), streams, {"o": len(golden)}, hold={"o": 200})
    assert result.tokens["o"] == golden
    assert sum(cycle < 200 for cycle in result.cycles["i_k"]) in (31, 32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "lanes", "group"),
    sampled([(64, 1, 3), (64, 2, 3), (80, 4, 1), (128, 3, 2)], [(64, 2, 3), (80, 4, 1)]),
)
def test_long_sweeps(dims: int, lanes: int, group: int) -> None:
    """In Verilator: many descriptors, long rows, random stalls."""
    params = _params(dims, lanes, group, max_length=300)
    simulator = StreamSimulator(params.build())
    rng = np.random.default_rng(10 + lanes)
    for turn, (sources, sinks) in enumerate(((0.0, 0.0), (0.1, 0.1), (0.5, 0.0), (0.0, 0.5))):
        cases = _cases(params, rng, 20)
        check_golden(params, cases, Stalls(seed=turn, sources=sources, sinks=sinks), simulator=simulator)
    check_promises(params, *_case(params, rng, 2, 3, 299, 0.125), simulator=simulator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": 0}, "AttentionScores.dims is 0; 1 to 1024 are allowed"),
        ({"dims": 1025}, "AttentionScores.dims is 1025; 1 to 1024 are allowed"),
        ({"lanes": 65}, "AttentionScores.lanes is 65; 1 to 64 are allowed"),
        ({"group": 0}, "AttentionScores.group is 0; 1 to 16777215 are allowed"),
        ({"max_length": 0}, "AttentionScores.max_length is 0; 1 to 1048576 are allowed"),
        ({"max_rows": 0}, "AttentionScores.max_rows is 0; 1 to 16777215 are allowed"),
    ],
)
def test_bad_params(change: dict[str, int], message: str) -> None:
    fields = {"dims": 4, "lanes": 2, "group": 1, "max_length": 40, "max_rows": 9}
    with pytest.raises(ValueError) as caught:
        AttentionScoresParams(**fields | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 0}, "AttentionScores: heads is 0; it must be at least 1"),
        ({"t": 0}, "AttentionScores: t is 0; it must be 1 to 63 rows, not 0"),
        ({"t": 17}, "AttentionScores: t is 17; it must be 1 to 63 rows, not 68"),
        ({"length": 0}, "AttentionScores: length is 0; it must be 1 to 40"),
        ({"length": 41}, "AttentionScores: length is 41; it must be 1 to 40"),
        ({"scale": np.nan}, "AttentionScores: scale is nan; a finite number of f24 is needed"),
        ({"scale": 1e39}, "AttentionScores: scale is 1e+39; a finite number of f24 is needed"),
    ],
)
def test_bad_bounds(change: dict[str, float], message: str) -> None:
    params = _params(4, 2, 2)
    with pytest.raises(ValueError) as caught:
        params.describe({"heads": 2, "t": 1, "length": 5, "scale": 1.0} | change)
    assert str(caught.value) == message
