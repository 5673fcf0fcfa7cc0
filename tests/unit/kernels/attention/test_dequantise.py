"""kernels.attention.dequantise: rtl == golden, golden against exact products, promises as measured."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from streamgen.kernels.attention.dequantise import DequantiseParams
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import E_ZERO, join_scale, split_scale
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import Case, check_golden, check_promises
from streamgen.testing.stream_simulator import StreamSimulator

LARGEST = (2 - 2.0**-15) * 2.0**127
NORMAL = 2.0**-126
# Around every border of the exponent: of f24, of the 9 bits the hardware looks at, of i16, and not finite.
EXPONENTS = (E_ZERO, -140, -133, -127, -126, -15, 0, 105, 112, 113, 120, 121, 128, 511, 512, -512, -513)
EXPONENTS = (*EXPONENTS, -32768, E_NOT_FINITE - 1, E_NOT_FINITE)
FACTORS = (0.0, -0.0, NORMAL, -NORMAL, LARGEST, -LARGEST, 1.0, -1.5, np.inf, -np.inf, np.nan)


def _case(rng: np.random.Generator, scale_dtype: str, t: int, heads: int, d: int) -> Case:
    """Codes of all values; half of the scales from the lists above, half ordinary."""
    codes = rng.integers(-128, 128, (t, heads * d)).astype(np.int8)
    codes[rng.random(codes.shape) < 0.1] = 0
    directed = rng.random((t, heads)) < 0.5
    if scale_dtype == "i24":
        e = np.where(directed, rng.choice(EXPONENTS, (t, heads)), rng.integers(-30, 30, (t, heads)))
        scales = join_scale(rng.integers(128, 256, (t, heads)), e)
    else:
        plain = rng.standard_normal((t, heads)) * np.exp2(rng.integers(-20, 20, (t, heads)))
        scales = round_f24(np.where(directed, rng.choice(FACTORS, (t, heads)), plain))
    return {"t": t, "features": heads * d, "d": d}, {"i_x": codes, "i_scale": scales}


def _params(scale_dtype: str, lanes: int) -> DequantiseParams:
    return DequantiseParams(lanes=lanes, scale_dtype=scale_dtype, max_d=16 * lanes, max_tokens=400)


@pytest.mark.parametrize(("scale_dtype", "lanes"), [*product(("i24", "f24"), (1, 3, 8)), ("f24", 32)])
def test_matches_golden(scale_dtype: str, lanes: int) -> None:
    """Random descriptors back to back under random stalls of all kinds."""
    rng = np.random.default_rng(lanes)
    cases = [_case(rng, scale_dtype, 20, 3, 2 * lanes)]
    for _ in range(4):
        t, heads, tokens = (int(rng.integers(1, most)) for most in (4, 5, 17))
        cases.append(_case(rng, scale_dtype, t, heads, tokens * lanes))
    cases.append(_case(rng, scale_dtype, 1, 1, lanes))
    for sources, sinks in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.4, 0.8)):
        check_golden(_params(scale_dtype, lanes), cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


def test_reset_in_mid_run() -> None:
    rng = np.random.default_rng(5)
    cases = [_case(rng, "i24", 3, 2, 8), _case(rng, "i24", 2, 3, 16)]
    for cycle in (7, 20, 41):
        check_golden(_params("i24", 2), cases, Stalls(seed=cycle, sources=0.3, sinks=0.3), reset_at=cycle)


def test_golden_is_the_rounded_product() -> None:
    """By fractions: to nearest even once, then the limits of f24. Scales m * 2^e are never rounded."""
    rng = np.random.default_rng(6)
    for scale_dtype in ("i24", "f24"):
        bounds, inputs = _case(rng, scale_dtype, 60, 2, 4)
        out = _params(scale_dtype, 1).golden(bounds, inputs)["o"].reshape(60, 2, 4)
        codes = inputs["i_x"].reshape(60, 2, 4)
        for place in np.ndindex(out.shape):
            code, scale = int(codes[place]), inputs["i_scale"][place[:2]]
            if scale_dtype == "i24":
                m, e = (int(part) for part in split_scale(scale))
                finite, exact = e != E_NOT_FINITE, code * m * Fraction(2) ** e
            else:
                finite = bool(np.isfinite(scale))
                exact = code * Fraction(float(scale)) if finite else Fraction(0)
            if not finite:
                expected = np.nan if scale_dtype == "i24" or not code else code * scale
                np.testing.assert_array_equal(out[place], expected)
                continue
            assert out[place] == _rounded(exact)
            if scale_dtype == "i24" and np.isfinite(out[place]) and abs(exact) >= NORMAL:
                assert out[place] == exact


def _rounded(exact: Fraction) -> float:
    """The nearest f24 of a fraction, ties to even."""
    if not exact:
        return 0.0
    magnitude = abs(exact)
    place = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    place -= magnitude < Fraction(2) ** place
    nearest = round(magnitude / Fraction(2) ** (place - 15)) * Fraction(2) ** (place - 15)
    if nearest < Fraction(2) ** -126:
        return 0.0
    value = np.inf if nearest >= 2**128 else float(nearest)
    return value if exact > 0 else -value


def test_undoes_the_quantiser() -> None:
    """What comes back is within half a scale of what went in; groups not finite come back as NaN."""
    rng = np.random.default_rng(7)
    x = round_f24(rng.standard_normal((20, 48)) * np.exp2(rng.integers(-40, 40, (20, 1))))
    x[3, 5], x[4, 40], x[5] = np.inf, np.nan, 0
    bounds = {"t": 20, "features": 48, "d": 16}
    quantised = QuantiseRowsParams(lanes=4, max_d=16, max_tokens=1000).golden(bounds, {"i": x})
    inputs = {"i_x": quantised["o_x"], "i_scale": quantised["o_scale"]}
    back = _params("i24", 4).golden(bounds, inputs)["o"].reshape(20, 3, 16)
    m, e = split_scale(quantised["o_scale"])
    lost = e == E_NOT_FINITE
    assert np.argwhere(lost).tolist() == [[3, 0], [4, 2]]
    assert np.isnan(back[lost]).all() and not back[5].any()
    half = np.ldexp(m, np.where(lost, 0, e)) / 2
    error = np.abs(back.astype(np.float64) - x.reshape(20, 3, 16))
    assert (error <= half[:, :, None])[~lost].all()


@pytest.mark.parametrize("lanes", [1, 5, 16])
@pytest.mark.parametrize("scale_dtype", ["i24", "f24"])
def test_promises(scale_dtype: str, lanes: int) -> None:
    rng = np.random.default_rng(8)
    for t, heads, tokens in ((3, 2, 16), (20, 3, 1), (9, 4, 5), (1, 1, 1)):
        check_promises(_params(scale_dtype, lanes), *_case(rng, scale_dtype, t, heads, tokens * lanes))


@pytest.mark.slow
@pytest.mark.parametrize("scale_dtype", ["i24", "f24"])
def test_every_code_with_many_scales(scale_dtype: str) -> None:
    """All 256 codes, each with thousands of scales, in Verilator."""
    rng = np.random.default_rng(9)
    params = DequantiseParams(lanes=16, scale_dtype=scale_dtype, max_d=256, max_tokens=1 << 16)
    simulator = StreamSimulator(params.build())
    every = np.tile(np.arange(-128, 128), 4000).reshape(4000, 256)
    bounds, inputs = _case(rng, scale_dtype, 4000, 1, 256)
    check_golden(
        params,
        [(bounds, {"i_x": every.astype(np.int8), "i_scale": inputs["i_scale"]})],
        Stalls(seed=1, sources=0.05, sinks=0.05),
        simulator=simulator,
    )


def test_bad_scales() -> None:
    bounds = {"t": 1, "features": 2, "d": 1}
    scales = join_scale(np.array([[128, 127]]), np.zeros((1, 2), int))
    with pytest.raises(ValueError) as caught:
        _params("i24", 1).golden(bounds, {"i_x": np.ones((1, 2), np.int8), "i_scale": scales})
    assert str(caught.value) == "m of a scale is 127; it must be 128 to 255"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "Dequantise.lanes is 0; at least 1 is needed"),
        ({"scale_dtype": "f32"}, "Dequantise.scale_dtype is 'f32'; i24 and f24 are allowed"),
        ({"max_d": 30}, "Dequantise.max_d is 30; it must be a multiple of lanes, 4"),
        ({"max_tokens": 0}, "Dequantise.max_tokens is 0; 1 to 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict[str, object], message: str) -> None:
    choices: dict[str, object] = {"lanes": 4, "scale_dtype": "i24", "max_d": 32, "max_tokens": 64}
    with pytest.raises(ValueError) as caught:
        DequantiseParams(**choices | change)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 6}, "Dequantise: d is 6; it must be a multiple of lanes, 4, up to 32"),
        ({"d": 0}, "Dequantise: d is 0; it must be a multiple of lanes, 4, up to 32"),
        ({"features": 40}, "Dequantise: features is 40; it must be a multiple of d, 16"),
        ({"t": 0}, "Dequantise: t is 0; it must be 1 to 64 tokens of 4"),
        ({"t": 9}, "Dequantise: t is 9; it must be 1 to 64 tokens of 4"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    params = DequantiseParams(lanes=4, scale_dtype="f24", max_d=32, max_tokens=64)
    with pytest.raises(ValueError) as caught:
        params.describe({"t": 2, "features": 32, "d": 16} | change)
    assert str(caught.value) == message
