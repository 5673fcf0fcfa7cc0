"""streamgen.kernels.attention.quantise_rows: rtl == golden, golden == definition, promises as measured."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import E_ZERO, codes_of, join_scale, scales_of, split_scale
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

LANES = (1, 3, 4, 16)
LARGEST = (2 - 2.0**-15) * 2.0**127
NORMAL = 2.0**-126  # the least value of f24


def _rows(rng: np.random.Generator, t: int, features: int, spread: int = 12) -> np.ndarray:
    """Normal numbers; in half of the rows with factors of up to 2^±spread, so that many shifts occur."""
    exponents = rng.integers(-spread, spread + 1, (t, features)) * rng.integers(0, 2, (t, 1))
    return round_f24(rng.standard_normal((t, features)) * np.exp2(exponents))


def _case(rng: np.random.Generator, t: int, heads: int, d: int) -> Case:
    return {"t": t, "features": heads * d, "d": d}, {"i": _rows(rng, t, heads * d)}


def _extreme_rows(d: int) -> np.ndarray:
    """Rows [9, 2 * d], d > 2: zeros, the limits of f24, equal rows, groups far apart, NaN, infinities."""
    rng = np.random.default_rng(3)
    x = np.zeros((9, 2 * d))
    x[1] = rng.choice([LARGEST, -LARGEST], 2 * d)
    x[2] = rng.choice([NORMAL, -NORMAL, 3 * NORMAL, 0.0, -0.0], 2 * d)
    x[3, :d], x[3, d:] = LARGEST, NORMAL
    x[4, 0::2], x[4, 1::2] = LARGEST, NORMAL
    x[5] = -0.75
    x[6] = rng.standard_normal(2 * d)
    x[6, 1] = np.nan
    x[7] = rng.standard_normal(2 * d)
    x[7, -1] = -np.inf
    x[8, d:] = np.resize([127.0, 0.5, -1.5, 2.5, 126.5, -3.5, 63.5], d)  # scale 1: halves, to even
    return round_f24(x)


@pytest.mark.parametrize("lanes", LANES)
def test_matches_golden(lanes: int, stalls: Stalls | None) -> None:
    """Random descriptors back to back: rows, groups and their lengths change from one to the next."""
    rng = np.random.default_rng(lanes)
    params = QuantiseRowsParams(lanes=lanes, max_d=16 * lanes, max_tokens=300)
    d = 4 * lanes
    cases: list[Case] = [({"t": 9, "features": 2 * d, "d": d}, {"i": _extreme_rows(d)})]
    for _ in range(4):
        t, heads, tokens = (int(rng.integers(1, most)) for most in (4, 5, 17))
        cases.append(_case(rng, t, heads, tokens * lanes))
    cases.append(_case(rng, 1, 1, lanes))
    check_golden(params, cases, stalls)


def test_tiles_of_a_matmul(stalls: Stalls | None) -> None:
    """Some features of all rows, then the next ones: the same codes, in the order in which they came."""
    rng = np.random.default_rng(8)
    params = QuantiseRowsParams(lanes=4, max_d=16, max_tokens=300)
    cases: list[Case] = []
    for t, heads, tile in ((5, 4, 16), (3, 6, 32), (1, 4, 8), (7, 2, 32)):
        bounds, inputs = _case(rng, t, heads, 16 if tile > 8 else 8)
        cases.append((bounds | {"tile": tile}, inputs))
        rows = params.golden(bounds, inputs)
        assert all(np.array_equal(rows[port], x) for port, x in params.golden(*cases[-1]).items())
    assert [params.inputs(bounds)["i"].tripcounts for bounds, _ in cases[:2]] == [(4, 5, 4), (3, 3, 8)]
    check_golden(params, cases, stalls)


def test_reset_in_mid_run() -> None:
    rng = np.random.default_rng(5)
    params = QuantiseRowsParams(lanes=2, max_d=16, max_tokens=300)
    cases = [_case(rng, 3, 2, 8), _case(rng, 2, 3, 16)]
    for cycle in (9, 31, 60):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.3, sinks=0.3), reset_at=cycle)


def test_golden_of_extremes() -> None:
    """Written out by hand from the definition."""
    params = QuantiseRowsParams(lanes=4, max_d=8, max_tokens=100)
    out = params.golden({"t": 9, "features": 16, "d": 8}, {"i": _extreme_rows(8)})
    m, e = split_scale(out["o_scale"])
    codes = out["o_x"].reshape(9, 2, 8)
    # (2 - 2^-15) * 2^127 / 127 lies below 130 * 2^114; 2^-126 / 127 below 130 * 2^-140.
    assert m.tolist()[1] == [130, 130] and e.tolist()[1] == [114, 114]
    assert set(np.abs(codes[1]).flat) == {126}  # 65535 / 130 / 4
    assert m.tolist()[3] == [130, 130] and e.tolist()[3] == [114, -140]
    assert set(codes[3, 1]) == {126}  # 2^14 / 130
    assert codes[4].tolist() == [[126, 0] * 4] * 2
    assert (m.tolist()[5], e.tolist()[5]) == ([194, 194], [-15, -15])  # 0.75 * 2^15 / 127 = 193.5
    assert (codes[5] == -127).all()
    for row, group in ((0, 0), (0, 1), (8, 0)):
        assert (m[row, group], e[row, group]) == (128, E_ZERO)
        assert not codes[row, group].any()
    for row, group in ((6, 0), (7, 1)):
        assert (m[row, group], e[row, group]) == (128, E_NOT_FINITE)
        assert not codes[row, group].any()
        assert codes[row, 1 - group].any() and e[row, 1 - group] < 0  # the other head is not touched
    assert (m[8, 1], e[8, 1]) == (128, -7)
    assert codes[8, 1].tolist() == [127, 0, -2, 2, 126, -4, 64, 127]


def test_golden_is_within_half_a_scale() -> None:
    """|x - code * scale| <= scale / 2 exactly: no code clamps; and the scale is not larger than needed."""
    rng = np.random.default_rng(6)
    for spread in (0, 3, 100):
        x = _rows(rng, 60, 64, spread).astype(np.float64).reshape(60, 4, 16)
        m, e = scales_of(x)
        codes = codes_of(x, m, e)
        scale = np.ldexp(m.astype(np.float64), e)
        assert (np.abs(x - codes * scale[:, :, None]) <= scale[:, :, None] / 2).all()
        assert ((m >= 128) & (m <= 255)).all()
        greatest = np.abs(x).max(axis=2)
        assert (greatest <= 127 * scale).all()
        assert (scale <= greatest / 127 * (1 + 1 / 128)).all()


def test_scales_of_every_significand() -> None:
    """The least m * 2^e with 127 * m * 2^e >= x, by fractions, for all 32,768 of them."""
    significands = np.arange(1 << 15, 1 << 16)
    m, e = scales_of(significands.astype(np.float64)[:, None])
    for s, scale_m, scale_e in zip(significands.tolist(), m.tolist(), e.tolist(), strict=True):
        scale = scale_m * Fraction(2) ** scale_e
        below = (scale_m - 1 if scale_m > 128 else Fraction(255, 2)) * Fraction(2) ** scale_e
        assert 128 <= scale_m <= 255 and 127 * scale >= s > 127 * below


def test_scale_tokens() -> None:
    m, e = np.array([128, 255, 200]), np.array([E_ZERO, E_NOT_FINITE, 114])
    tokens = join_scale(m, e)
    assert tokens.tolist() == [128 - 141 * 256, 255 + 32767 * 256, 200 + 114 * 256]
    again = split_scale(tokens)
    assert again[0].tolist() == m.tolist() and again[1].tolist() == e.tolist()


def test_subnormals_count_as_zero() -> None:
    """Bits of exponent 0 with a fraction are no value of f24; the hardware reads them as zero."""
    params = QuantiseRowsParams(lanes=2, max_d=4, max_tokens=4)
    word = descriptor_word(params, {"t": 1, "features": 8, "d": 4})
    subnormal, least = 0x807FFF, 0x008000
    tokens = [subnormal << 24 | subnormal, subnormal, subnormal << 24 | least, subnormal]
    result = run(params.build(), {"i_descriptor": [word], "i": tokens}, {"o_x": 4, "o_scale": 2})
    assert result.tokens["o_x"] == [0, 0, 126, 0]
    assert result.tokens["o_scale"] == [128 | (E_ZERO & 0xFFFF) << 8, 130 | (-140 & 0xFFFF) << 8]


@pytest.mark.parametrize("lanes", [1, 3, 8, 32])
def test_promises(lanes: int) -> None:
    """Curves, cycles, latency and II as measured: a token a cycle, whatever the groups."""
    rng = np.random.default_rng(7)
    params = QuantiseRowsParams(lanes=lanes, max_d=12 * lanes, max_tokens=200)
    for t, heads, tokens in ((3, 2, 12), (40, 3, 1), (9, 4, 5), (1, 1, 1)):
        check_promises(params, *_case(rng, t, heads, tokens * lanes))


@pytest.mark.parametrize("d", [62, 64, 200])
def test_full_rate(d: int) -> None:
    """The longest groups too, in LUT memory and in block memory: the next one enters meanwhile."""
    params = QuantiseRowsParams(lanes=2, max_d=d, max_tokens=1000)
    check_promises(params, *_case(np.random.default_rng(8), 2, 5, d))


@pytest.mark.parametrize(("held", "least", "most"), [("o_x", 70, 72), ("o_scale", 30, 32)])
def test_waits_for_a_reader(held: str, least: int, most: int) -> None:
    """While one output is not taken, what ring, pipe and queues hold is taken in, no more."""
    params = QuantiseRowsParams(lanes=1, max_d=32, max_tokens=2000)
    d = 32 if held == "o_x" else 1
    bounds, inputs = _case(np.random.default_rng(9), 10, 6, d)
    itensors, golden = params.outputs(bounds), params.golden(bounds, inputs)
    expected = {port: encode_port(itensor, golden[port]) for port, itensor in itensors.items()}
    streams = {
        "i_descriptor": [descriptor_word(params, bounds)],
        "i": encode_port(params.inputs(bounds)["i"], inputs["i"]),
    }
    counts = {port: len(tokens) for port, tokens in expected.items()}
    result = run(params.build(), streams, counts, hold={held: 300})
    assert result.tokens == expected
    assert least <= sum(cycle < 300 for cycle in result.cycles["i"]) <= most


def _random_bits(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Every pattern of 24 bits may come: with many zeros, specials, near exponents and short fractions."""
    t = shape[0]
    exponent = np.clip(rng.integers(1, 255, (t, 1)) + rng.integers(-20, 4, shape), 1, 254)
    exponent = np.where(rng.random(shape) < 0.1, 0, exponent)
    special = (rng.random((t, 1)) < 0.1) & (rng.random(shape) < 0.01)
    exponent = np.where(special, 255, exponent)
    fraction = np.where(exponent == 0, 0, rng.integers(0, 1 << 15, shape))
    fraction = np.where(rng.random(shape) < 0.3, fraction & ~0xFF, fraction)
    bits = rng.integers(0, 2, shape) << 31 | exponent << 23 | fraction << 8
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", sampled([1, 4, 7, 32], [7, 32]))
def test_random_bits(lanes: int) -> None:
    """Long sweeps in Verilator, groups of all lengths, random stalls."""
    rng = np.random.default_rng(100 + lanes)
    params = QuantiseRowsParams(lanes=lanes, max_d=32 * lanes, max_tokens=1 << 12)
    simulator = StreamSimulator(params.build())
    for turn in range(10):
        cases: list[Case] = []
        for _ in range(30):
            t, heads, tokens = (int(rng.integers(1, most)) for most in (12, 9, 33))
            shape = (t, heads * tokens * lanes)
            bounds = {"t": t, "features": shape[1], "d": tokens * lanes}
            cases.append((bounds, {"i": _random_bits(rng, shape)}))
        check_golden(params, cases, Stalls(seed=turn, sources=0.1, sinks=0.1), simulator=simulator)


@pytest.mark.slow
def test_every_significand_as_the_greatest() -> None:
    """All 32,768 scales, each with a code at the limit and one around a tie."""
    params = QuantiseRowsParams(lanes=4, max_d=4, max_tokens=1 << 15)
    greatest = np.arange(1 << 15, 1 << 16).astype(np.float64)
    m, e = scales_of(greatest[:, None])
    scale = np.ldexp(m.astype(np.float64), e)
    ties = np.random.default_rng(11).integers(-126, 127, (2, len(m))) + 0.5
    x = round_f24(np.stack([greatest, ties[0] * scale, greatest - 1, ties[1] * scale], axis=1))
    case = ({"t": len(x), "features": 4, "d": 4}, {"i": x})
    check_golden(params, [case], simulator=StreamSimulator(params.build()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "QuantiseRows.lanes is 0; at least 1 is needed"),
        ({"max_d": 30}, "QuantiseRows.max_d is 30; it must be a multiple of lanes, 4"),
        ({"max_d": 0}, "QuantiseRows.max_d is 0; it must be a multiple of lanes, 4"),
        ({"max_tokens": 0}, "QuantiseRows.max_tokens is 0; 1 to 2^32 - 1 are allowed"),
        ({"max_tokens": 1 << 32}, "QuantiseRows.max_tokens is 4294967296; 1 to 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        QuantiseRowsParams(**{"lanes": 4, "max_d": 32, "max_tokens": 64} | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 6}, "QuantiseRows: d is 6; it must be a multiple of lanes, 4, up to 32"),
        ({"d": 64}, "QuantiseRows: d is 64; it must be a multiple of lanes, 4, up to 32"),
        ({"d": 0}, "QuantiseRows: d is 0; it must be a multiple of lanes, 4, up to 32"),
        ({"features": 40}, "QuantiseRows: features is 40; it must be a multiple of d, 16"),
        ({"features": 0}, "QuantiseRows: features is 0; it must be a multiple of d, 16"),
        ({"tile": 8}, "QuantiseRows: tile is 8; it must be a multiple of d that divides 32"),
        ({"tile": 48}, "QuantiseRows: tile is 48; it must be a multiple of d that divides 32"),
        ({"tile": 0}, "QuantiseRows: tile is 0; it must be a multiple of d that divides 32"),
        ({"t": 0}, "QuantiseRows: t is 0; it must be 1 to 64 tokens of 4"),
        ({"t": 9}, "QuantiseRows: t is 9; it must be 1 to 64 tokens of 4"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    params = QuantiseRowsParams(lanes=4, max_d=32, max_tokens=64)
    with pytest.raises(ValueError) as caught:
        params.describe({"t": 2, "features": 32, "d": 16} | change)
    assert str(caught.value) == message
