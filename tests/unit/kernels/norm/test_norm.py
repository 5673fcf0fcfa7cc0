"""streamgen.kernels.norm.norm: rtl == golden, golden against float64, promises against measurement."""

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from streamgen.kernels.norm.norm import NormParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126  # the least value of f24
U = 2.0**-16  # the greatest relative error of a rounding to f24

RMS = NormParams(kind="rms", lanes=4, max_k=96, max_rows=40)
GEMMA = NormParams(kind="rms", lanes=3, max_k=48, max_rows=12, plus_one=True)
LAYER = NormParams(kind="layer", lanes=4, max_k=96, max_rows=40, bias=True)
NARROW = NormParams(kind="layer", lanes=1, max_k=30, max_rows=12, bias=True, plus_one=True)
ALL = {"rms": RMS, "gemma": GEMMA, "layer": LAYER, "narrow": NARROW}


@lru_cache(maxsize=8)
def simulator(params: NormParams) -> StreamSimulator:
    return StreamSimulator(params.build())


def case(params: NormParams, x: np.ndarray, valid_k: int, epsilon: float, seed: int = 0) -> Case:
    """A case of these rows, with random parameters, wild ones among them."""
    rng = np.random.default_rng([seed, x.shape[1]])
    inputs = {"i": round_f24(x)}
    for port in params.parameters:
        row = rng.normal(size=(1, x.shape[1])) * np.exp2(rng.integers(-3, 4, (1, x.shape[1])))
        inputs[port] = round_f24(np.where(rng.random(row.shape) < 0.1, 0.0, row))
    return {"t": len(x), "k": x.shape[1], "valid_k": valid_k, "epsilon": epsilon}, inputs


def rows(rng: np.random.Generator, t: int, k: int, spread: int = 8) -> np.ndarray:
    """Rows of values of many sizes, each with another mean."""
    x = rng.normal(size=(t, k)) * np.exp2(rng.integers(-spread, spread + 1, (t, k)))
    return np.asarray(round_f24(x + rng.normal(size=(t, 1)) * 2.0**spread), np.float64)


def random_cases(params: NormParams, seed: int, count: int) -> list[Case]:
    """Rows, lengths, padding and epsilon change from one descriptor to the next."""
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        t, k = int(rng.integers(1, 6)), params.lanes * int(rng.integers(1, params.max_tokens + 1))
        valid_k = k if number % 3 == 0 else int(rng.integers(1, k + 1))
        epsilon = float(rng.choice([0.0, 1e-6, 1e-5, 1e-2, 3.0]))
        x = rows(rng, t, k, int(rng.integers(0, 12)))
        cases.append(case(params, x, valid_k, epsilon, seed + number))
    return cases


def extreme_rows() -> np.ndarray:
    """Rows [12, 12]: zeros, equal values, the limits of f24, values far apart, NaN, infinities."""
    rng = np.random.default_rng(3)
    x = np.zeros((12, 12))
    x[1] = 28000.0
    x[2] = rng.choice([LARGEST, -LARGEST], 12)
    x[3] = rng.choice([NORMAL, -NORMAL, 3 * NORMAL, 0.0, -0.0], 12)
    x[4] = rng.normal(size=12)
    x[4, 5] = np.nan
    x[5] = rng.normal(size=12)
    x[5, 11] = -np.inf
    x[6] = LARGEST
    x[7, 3] = LARGEST
    x[7, 4:] = rng.normal(size=8)
    x[8] = 1000 + 2.0**-6 * (np.arange(12) % 2)
    x[9] = np.where(np.arange(12) == 7, 2.0, 2.0 - 2.0**-15)  # the least difference there is
    x[10] = np.exp2(-4.0 * np.arange(12))
    x[11, 0] = -5.0
    return np.asarray(round_f24(x), np.float64)


def definition(params: NormParams, bounds: Any, inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    """(o, the greatest error allowed) in float64, from the equation.

    Every rounding adds a relative error of at most U = 2^-16. To 1 / root contribute the sum, 1 / K, their
    product, epsilon and the addition, of which the root takes half: 2 U with what is cut off 40-bit terms;
    and the function its 2^-14 = 4 U. Then come x · r, 1 + w, the product with w, and the second order: 10 U
    in all, and U of the sum with b. Of layer, d = x - mean errs by U and by 2^-36 of the greatest power of
    the row, e; the root mean square by no more than its elements.
    """
    x, *parameters = (
        inputs[port].astype(np.float64)[:, : bounds["valid_k"]] for port in params.inputs(bounds)
    )
    w, b = parameters[0] + params.plus_one, parameters[1] if params.bias else 0.0
    e = np.exp2(np.floor(np.log2(np.abs(x).max(axis=1, keepdims=True))) - 36) if params.centred else 0.0
    if params.centred:
        x = x - x.mean(axis=1, keepdims=True)
    root = np.sqrt((x**2).mean(axis=1, keepdims=True) + bounds["epsilon"])
    scaled = x / root * w
    o = scaled + b
    relative = 12 * U if params.centred else 10 * U
    return o, relative * np.abs(scaled) + e / root * (np.abs(w) + np.abs(scaled)) + U * np.abs(o)


def by_torch(params: NormParams, bounds: Any, inputs: Any) -> np.ndarray:
    """What torch makes of the same in float64."""
    x, *parameters = (
        torch.from_numpy(inputs[port].astype(np.float64)[:, : bounds["valid_k"]])
        for port in params.inputs(bounds)
    )
    shape, w = (bounds["valid_k"],), parameters[0][0] + params.plus_one
    b = parameters[1][0] if params.bias else torch.zeros(shape, dtype=torch.float64)
    if params.centred:
        return functional.layer_norm(x, shape, w, b, bounds["epsilon"]).numpy()
    return (functional.rms_norm(x, shape, w, bounds["epsilon"]) + b).numpy()


def check_definition(params: NormParams, bounds: Any, inputs: Any) -> float:
    """The greatest error as a share of what is allowed, which it must not exceed."""
    o = params.golden(bounds, inputs)["o"]
    expected, allowed = definition(params, bounds, inputs)
    share = np.abs(o[:, : bounds["valid_k"]] - expected) / np.maximum(allowed, NORMAL)
    assert share.max() <= 1
    assert not o[:, bounds["valid_k"] :].any()
    return float(share.max())


@pytest.mark.parametrize("name", ALL)
def test_matches_golden(name: str, stalls: Stalls | None) -> None:
    """Random descriptor sequences back to back, extremes among them."""
    params = ALL[name]
    cases = random_cases(params, 5, 9)
    cases[4:4] = [case(params, extreme_rows(), 12, 1e-5), case(params, extreme_rows(), 11, 0.0)]
    check_golden(params, cases, stalls, simulator=simulator(params))


@pytest.mark.parametrize("name", ALL)
def test_reset_in_mid_run(name: str) -> None:
    params = ALL[name]
    cases = random_cases(params, 6, 4)
    for cycle in (3, 40, 77, 130):
        check_golden(params, cases, simulator=simulator(params), reset_at=cycle)


@pytest.mark.parametrize("name", ALL)
def test_promises(name: str) -> None:
    """Cycles of every token, cost, and the next descriptor in time: long rows, rows of one token, one row."""
    params = ALL[name]
    rng = np.random.default_rng(7)
    lanes = params.lanes
    for t, tokens in ((3, params.max_tokens), (params.max_rows, 1), (1, 1), (1, 5), (12, 2)):
        cases = case(params, rows(rng, t, tokens * lanes), tokens * lanes, 1e-6)
        check_promises(params, *cases, simulator=simulator(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("tokens", [1, 2, 9, None])
def test_descriptors_follow_without_a_gap(name: str, tokens: int | None) -> None:
    """A row each: a token a cycle from the first input to the last output."""
    params = ALL[name]
    tokens = tokens or params.max_tokens
    rng = np.random.default_rng(8)
    k = tokens * params.lanes
    cases = [case(params, rows(rng, 1, k), k, 1e-6, seed) for seed in range(30)]
    result = check_golden(params, cases, simulator=simulator(params))
    for port in ("i", "o"):
        cycles = result.cycles[port]
        assert cycles[-1] - cycles[0] == len(cycles) - 1 == 30 * tokens - 1, port


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_enter_while_nobody_takes_them(kind: Any) -> None:
    """While the output waits, another row at least comes in."""
    params = NormParams(kind=kind, lanes=1, max_k=24, max_rows=12)
    bounds, inputs = case(params, rows(np.random.default_rng(9), 12, 24), 24, 1e-6)
    streams = {"i_descriptor": [descriptor_word(params, bounds)]}
    streams |= {port: encode_port(itensor, inputs[port]) for port, itensor in params.inputs(bounds).items()}
    result = run(params.build(), streams, {"o": 12 * 24}, hold={"o": 300})
    assert 2 * 24 <= sum(cycle < 300 for cycle in result.cycles["i"]) < 12 * 24


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("extra", ["plain", "bias", "plus_one", "both"])
def test_golden_is_near_the_definition(kind: Any, extra: str) -> None:
    bias, plus_one = extra in ("bias", "both"), extra in ("plus_one", "both")
    params = NormParams(kind=kind, lanes=4, max_k=16384, max_rows=64, bias=bias, plus_one=plus_one)
    rng = np.random.default_rng(10)
    worst = 0.0
    for k, spread, epsilon in (
        (64, 0, 1e-5),
        (2048, 3, 1e-6),
        (300, 12, 1e-12),
        (16384, 6, 0.0),
        (8, 20, 1e-2),
    ):
        bounds, inputs = case(params, rows(rng, 8, k, spread), k - 3, epsilon)
        expected, _ = definition(params, bounds, inputs)
        np.testing.assert_allclose(expected, by_torch(params, bounds, inputs), rtol=1e-9, atol=1e-9)
        worst = max(worst, check_definition(params, bounds, inputs))
    assert worst > 0.1  # the bound is no more than ten times what happens


@pytest.mark.parametrize("params", [RMS, LAYER])
def test_residuals_of_28000(params: NormParams) -> None:
    """Few channels of a residual are huge, the others near 1, as in SmolLM2 and Qwen."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(20, 576))
    x[:, [7, 300]] = [[27839.0, -28000.0]]
    params = NormParams(kind=params.kind, lanes=4, max_k=576, max_rows=20, bias=params.bias)
    check_definition(params, *case(params, x, 576, 1e-5))
    check_golden(params, [case(params, x[:1], 576, 1e-5)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_long_rows(kind: Any) -> None:
    """The greatest sums: of the limits of f24, of equal values, and 28,000 among values near 1."""
    params = NormParams(kind=kind, lanes=8, max_k=16384, max_rows=6, bias=kind == "layer")
    rng = np.random.default_rng(15)
    x = rng.normal(size=(5, 16384))
    x[0] = rng.choice([LARGEST, -LARGEST], 16384)
    x[1] = LARGEST
    x[2] = 28000.0
    x[3, ::1000] = 28000.0
    several = [case(params, x, 16384, 1e-5), case(params, x, 16384, 0.0), case(params, x[1:4], 16377, 1e-5)]
    check_golden(params, several, Stalls(seed=1, sinks=0.2), simulator=StreamSimulator(params.build()))
    check_definition(params, *case(params, x[3:], 16384, 1e-5))


def test_small_variance_beside_a_large_mean() -> None:
    """Values differ by one last place in one element: results are right to 2^-19 of the greatest of them."""
    params = NormParams(kind="layer", lanes=4, max_k=4096, max_rows=4, bias=True)
    for k in (64, 4096):
        x = np.full((3, k), 28000.0)
        x[0, 5] += 0.5
        x[1] = np.where(np.arange(k) % 2, 28000.0, 28000.5)
        x[2] = np.where(np.arange(k) == 9, -16384.0, 2.0**-15 * 16384 / 2 - 16384.0)
        bounds, inputs = case(params, x, k, 0.0)
        check_definition(params, bounds, inputs)
        inputs["i_weight"][:], inputs["i_bias"][:] = 1, 0
        o = params.golden(bounds, inputs)["o"].astype(np.float64)
        centred = x - x.mean(axis=1, keepdims=True)
        expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
        error = np.abs(o - expected) - 12 * U * np.abs(expected)
        assert (error <= 2.0**-19 * np.abs(expected).max(axis=1, keepdims=True)).all()


def test_golden_of_extremes() -> None:
    """What the docstring says of zeros, equal values, NaN, infinities, the limits of f24."""
    x = extreme_rows()
    with np.errstate(all="ignore"):
        for params, epsilon in ((RMS, 1e-5), (RMS, 0.0), (LAYER, 1e-5), (LAYER, 0.0)):
            bounds, inputs = case(params, x, 12, epsilon)
            inputs["i_weight"][:] = 1
            if params.bias:
                inputs["i_bias"][:] = 0
            o = params.golden(bounds, inputs)["o"].astype(np.float64)
            special = [4, 5] if epsilon else [0, 4, 5] if params is RMS else [0, 1, 4, 5, 6]
            assert np.isnan(o).all(axis=1).nonzero()[0].tolist() == special
            assert np.isnan(o).any(axis=1).nonzero()[0].tolist() == special
            if params is RMS:
                # Without epsilon even the least and the greatest values have a mean square of 1.
                full = [1, 2, 6] if epsilon else [1, 2, 3, 6]
                assert np.allclose((o[full] ** 2).mean(axis=1), 1, atol=16 * U, rtol=0)
                assert not o[0].any() or not epsilon
                assert abs(o[7, 3] - np.sqrt(12)) < 2.0**-13 * np.sqrt(12) and not o[7, :3].any()
            else:
                full = [2, 3, 7, 8, 9, 10, 11] if not epsilon else [2, 7, 11]
                assert np.allclose((o[full] ** 2).mean(axis=1), 1, atol=16 * U, rtol=0)
                assert not o[[0, 1, 6]].any() or not epsilon


def test_equal_values_give_the_bias() -> None:
    """Whatever the value and the length, also where 1 / K is not exact."""
    params = NormParams(kind="layer", lanes=1, max_k=700, max_rows=60, bias=True)
    rng = np.random.default_rng(12)
    for k in (1, 2, 3, 7, 93, 640, 699):
        x = rng.normal(size=(60, 1)) * np.exp2(rng.integers(-120, 120, (60, 1))) * np.ones((1, k))
        bounds, inputs = case(params, x, k, 1e-12)
        assert (params.golden(bounds, inputs)["o"] == inputs["i_bias"]).all()


def test_padding_is_ignored() -> None:
    """What lies beyond valid_k changes nothing, not even NaN, in data and in parameters; it is sent as 0."""
    rng = np.random.default_rng(13)
    for params in (GEMMA, LAYER):
        k = 4 * params.lanes
        for valid_k in (1, params.lanes, params.lanes + 1, 2 * params.lanes + 2, k - 1):
            bounds, inputs = case(params, rows(rng, 3, k), valid_k, 1e-5)
            dirty = {port: array.copy() for port, array in inputs.items()}
            for array in dirty.values():
                array[:, valid_k:] = np.nan
            assert np.array_equal(params.golden(bounds, inputs)["o"], params.golden(bounds, dirty)["o"])
            check_golden(params, [(bounds, dirty)], simulator=simulator(params))


@pytest.mark.parametrize("name", ["rms", "layer"])
def test_subnormals_count_as_zero(name: str) -> None:
    """Bits of exponent 0 with a fraction are no value of f24; the hardware reads them as zeros."""
    params = ALL[name]
    x = rows(np.random.default_rng(14), 2, 16)
    x[:, ::3] = 0
    bounds, inputs = case(params, x, 16, 1e-5)
    golden = encode_port(params.outputs(bounds)["o"], params.golden(bounds, inputs)["o"])
    streams = {port: encode_port(itensor, inputs[port]) for port, itensor in params.inputs(bounds).items()}
    for k, token in enumerate(streams["i"]):
        for lane in range(4):
            if not token >> 24 * lane & 0x7FFFFF:
                token |= (0x7FFF, 1, 0x4001)[k % 3] << 24 * lane
        streams["i"][k] = token
    streams["i_descriptor"] = [descriptor_word(params, bounds)]
    assert simulator(params).run(streams, {"o": len(golden)}).tokens["o"] == golden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lanes"),
    sampled(
        product(["rms", "layer"], [1, 2, 5, 8, 32]), [("rms", 5), ("rms", 8), ("layer", 1), ("layer", 2)]
    ),
)
def test_random_bits(kind: Any, lanes: int) -> None:
    """Every pattern of f24 may come: random ones, near exponents, zeros, specials, in data and parameters."""
    rng = np.random.default_rng(100 + lanes)
    plus_one = lanes % 2 == 0
    params = NormParams(
        kind=kind, lanes=lanes, max_k=40 * lanes, max_rows=50, bias=lanes != 8, plus_one=plus_one
    )
    cases = []
    for _ in range(60):
        t, k = int(rng.integers(1, 51)), lanes * int(rng.integers(1, 41))
        bounds = {"t": t, "k": k, "valid_k": int(rng.integers(1, k + 1))}
        inputs = {}
        for port, itensor in params.inputs(bounds).items():
            centre = rng.integers(1, 255, (itensor.shape[0], 1))
            exponent = np.clip(centre + rng.integers(-24, 6, itensor.shape), 1, 254)
            exponent = np.where(rng.random(itensor.shape) < 0.05, 0, exponent)
            special = (rng.random((itensor.shape[0], 1)) < 0.1) & (rng.random(itensor.shape) < 0.05)
            exponent = np.where(special, 255, exponent)
            fraction = np.where(exponent == 0, 0, rng.integers(0, 1 << 15, itensor.shape))
            bits = rng.integers(0, 2, itensor.shape) << 31 | exponent << 23 | fraction << 8
            inputs[port] = bits.astype(np.uint32).view(np.float32)
        epsilon = float(round_f24(np.exp2(rng.uniform(-126, 127)))) * (rng.random() < 0.9)
        cases.append((bounds | {"epsilon": epsilon}, inputs))
    block = StreamSimulator(params.build())
    check_golden(params, cases, simulator=block)
    check_golden(params, cases, Stalls(seed=lanes, sources=0.2, sinks=0.4), simulator=block)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "batch"}, "Norm.kind is 'batch'; 'rms' and 'layer' are allowed"),
        ({"lanes": 0}, "Norm.lanes is 0; 1 to max_k = 96 are allowed"),
        ({"lanes": 97}, "Norm.lanes is 97; 1 to max_k = 96 are allowed"),
        ({"lanes": 5}, "Norm.max_k is 96; a multiple of lanes = 5 up to 65536 is needed"),
        ({"max_k": 65540}, "Norm.max_k is 65540; a multiple of lanes = 4 up to 65536 is needed"),
        ({"max_rows": 0}, "Norm.max_rows is 0; 1 to 2^32 - 1 are allowed"),
        ({"max_rows": 1 << 32}, "Norm.max_rows is 4294967296; 1 to 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        NormParams(**{"kind": "rms", "lanes": 4, "max_k": 96, "max_rows": 40} | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 0}, "Norm: t is 0; it must be 1 to 40"),
        ({"t": 41}, "Norm: t is 41; it must be 1 to 40"),
        ({"k": 50}, "Norm: k is 50; it must be a multiple of 4 up to 96"),
        ({"k": 0}, "Norm: k is 0; it must be a multiple of 4 up to 96"),
        ({"k": 100}, "Norm: k is 100; it must be a multiple of 4 up to 96"),
        ({"valid_k": 49}, "Norm: valid_k is 49; it must be 1 to k = 48"),
        ({"valid_k": 0}, "Norm: valid_k is 0; it must be 1 to k = 48"),
        ({"epsilon": -1e-5}, "Norm: epsilon is -1e-05; it must be 0, or 2^-126 to the greatest f24"),
        ({"epsilon": 1e-39}, "Norm: epsilon is 1e-39; it must be 0, or 2^-126 to the greatest f24"),
        ({"epsilon": 3.41e38}, "Norm: epsilon is 3.41e+38; it must be 0, or 2^-126 to the greatest f24"),
        ({"epsilon": float("nan")}, "Norm: epsilon is nan; it must be 0, or 2^-126 to the greatest f24"),
    ],
)
def test_bad_bounds(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RMS.describe({"t": 2, "k": 48, "valid_k": 48, "epsilon": 1e-5} | change)
    assert str(caught.value) == message
