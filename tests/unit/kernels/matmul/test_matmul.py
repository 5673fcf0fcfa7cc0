"""The matmul column: RTL equals golden, golden equals integers and reals, promises equal measurement."""

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamgen.gateware.rtl import block_name, to_verilog
from streamgen.kernels.matmul.matmul import accumulate
from streamgen.numbers import formats
from streamgen.numbers.quantisation import QuantisedWeight, quantise, row_sum
from streamgen.numbers.weights import FORMATS
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import check_golden, check_promises
from tests.shared.campaigns import sampled
from tests.unit.kernels.matmul.matmul_cases import bounds_of, column, operands, random_bounds

BUILDS = {
    "w4": column(),
    "w4-minimum": column(minimum=True, t_lanes=2, n_lanes=2),
    "w4-group-64-12-bit": column(group=64, scale_bits=12, n_lanes=3),
    "w4-group-128-16-bit": column(group=128, scale_bits=16, minimum=True, n_lanes=1, t_lanes=2, max_k=256),
    "w8-rows": column(formats=("w8",), scale_bits=0, t_lanes=2),
    "both": column(formats=("w4", "w8"), minimum=True),
    "both-rows": column(formats=("w4", "w8"), scale_bits=0, n_lanes=4, t_lanes=2),
}
MIXED = BUILDS["both"]
BIASED = [
    column(bias=True, formats=("w4", "w8"), n_lanes=4, max_n=16),
    column(bias=True, minimum=True, t_lanes=2, n_lanes=3),
]


@pytest.fixture(params=BUILDS.values(), ids=BUILDS.keys())
def params(request):
    return request.param


def test_matches_golden(params, stalls):
    rng = np.random.default_rng(stalls.seed if stalls else 0)
    cases = []
    for _ in range(3):
        bounds = random_bounds(params, rng)
        cases.append((bounds, operands(params, bounds, rng)))
    check_golden(params, cases, stalls)


@pytest.mark.parametrize("params", BIASED, ids=["one-token", "odd-rows"])
def test_biases(params, stalls):
    """Golden is that of the column without one and a sum rounded once; -0 changes no bit."""
    rng = np.random.default_rng(stalls.seed if stalls else 0)
    cases, plain = [], replace(params, bias=False)
    for _ in range(3):
        bounds = random_bounds(params, rng)
        case = operands(params, bounds, rng)
        case["i_r"][:1] = [[1.0, -0.0]]
        without = plain.golden(bounds, {**case, "i_r": case["i_r"][:, 0]})["o_y"]
        found = params.golden(bounds, case)["o_y"]
        sums = without.astype(np.float64) + case["i_r"][:, 1]
        assert np.array_equal(found, formats.round_f24(sums), equal_nan=True)
        assert np.array_equal(np.signbit(found[:, 0]), np.signbit(without[:, 0]))
        cases.append((bounds, case))
    check_golden(params, cases, stalls)
    check_golden(params, cases[:2], stalls, reset_at=31)
    check_promises(params, *cases[0])


def test_extreme_values(params):
    rng = np.random.default_rng(5)
    cases = []
    for format in params.formats:
        bounds = bounds_of(params, format=format)
        top = 7 if format == "w4" else 127
        for code, weight, shift in ((127, top, 0), (-127, -top - 1, 0), (127, -top - 1, 15), (127, top, 16)):
            case = operands(params, bounds, rng)
            case["i_x"]["shift"] = shift
            case["i_x"]["code"] = code if shift < 16 else 0
            case["i_x"]["step"] = 3
            case["i_w"][:] = weight
            if "i_s" in case:
                limit = 1 << params.scale_bits - 1
                case["i_s"][:] = -limit if code < 0 else limit - 1
            cases.append((bounds, case))
    result = check_golden(params, cases, Stalls(seed=3, sources=0.1, sinks=0.3))
    assert len(set(result.tokens["o_y"])) > 4


def test_exponents_and_row_scales_at_their_ends():
    params = column(t_lanes=2, n_lanes=2, max_n=16, max_t=16, max_k=32)
    bounds = bounds_of(params)
    rng = np.random.default_rng(1)
    case = operands(params, bounds, rng)
    case["i_e"][:] = [-32768, -300, -150, -140, -127, -40, -1, 0, 1, 40, 90, 100, 120, 150, 300, 32767]
    case["i_r"][:12] = [0, -0.0, np.inf, -np.inf, np.nan, 2.0**-126, -(2.0**-126), 1, -1, 2.0**127, 0.5, 3]
    case["i_x"]["shift"], case["i_x"]["code"] = 0, 100 - np.arange(32)
    case["i_w"][:], case["i_s"][:] = rng.integers(1, 8, (16, 32)), rng.integers(1, 128, (16, 1, 1))
    case["i_x"]["code"][3] = 0
    golden = params.golden(bounds, case)["o_y"]
    assert np.isinf(golden[14, 7]) and golden[0, 7] == 0 and np.isnan(golden[3, 2])
    assert np.isnan(golden[15]).all()  # 32767 is E_NOT_FINITE
    assert (np.abs(golden[golden != 0]) >= 2.0**-126)[~np.isnan(golden[golden != 0])].all()
    check_golden(params, [(bounds, case)], Stalls(seed=4, sources=0.2, sinks=0.2))


def test_golden_is_the_formula():
    """Against Python's integers, loop by loop, for groups of 64 with minimums."""
    params = column(group=64, minimum=True, scale_bits=16, max_k=192)
    bounds = bounds_of(params)
    case = operands(params, bounds, np.random.default_rng(2))
    x, w, s = case["i_x"], case["i_w"].astype(object), case["i_s"].astype(object)
    for t in range(bounds["t"]):
        for n in range(bounds["n"]):
            expected = 0
            for g in range(bounds["k"] // 32):
                part = slice(32 * g, 32 * g + 32)
                codes, d = x["code"][t, part].astype(object), int(x["shift"][t, 32 * g])
                scale, minimum = s[n, g // 2]
                term = scale * (codes * w[n, part]).sum() + minimum * codes.sum()
                expected += term * (5 + int(x["step"][t, 32 * g])) << (15 - d) if d < 16 else 0
            assert accumulate(x, case["i_w"], case["i_s"])[t, n] == expected


def test_golden_matches_reals(params):
    """Within two roundings to 16 bits, 2^-16 each, of the exact product of the dequantised operands."""
    rng = np.random.default_rng(6)
    for format in params.formats:
        bounds = bounds_of(params, format=format)
        case = operands(params, bounds, rng)
        x = case["i_x"]
        left = np.ldexp(x["code"] * (5.0 + x["step"]), case["i_e"][:, None].astype(int) - x["shift"])
        right = case["i_w"].astype(float)
        if "i_s" in case:
            parts = np.repeat(case["i_s"].astype(float), params.group, 1)
            right = right * parts[..., 0] + (parts[..., 1] if params.minimum else 0)
        exact = [
            [
                sum(map(Fraction, row * w), Fraction()) * Fraction(float(r))
                for w, r in zip(right, case["i_r"], strict=True)
            ]
            for row in left
        ]
        y = params.golden(bounds, case)["o_y"]
        for got, wanted in zip(y.flat, np.array(exact, object).flat, strict=True):
            error = abs(Fraction(float(got)) - wanted)
            assert error <= abs(wanted) * Fraction(2 * 2**16 + 1, 2**32)


def test_promises(params):
    rng = np.random.default_rng(7)
    largest = bounds_of(params)
    unit = params.group if params.scale_bits else 32
    one = {**largest, "t": params.t_lanes, "n": params.n_lanes, "k": unit}
    for bounds in (largest, one, {**largest, "k": unit}, bounds_of(params, format=params.formats[-1])):
        check_promises(params, bounds, operands(params, bounds, rng))


def test_ungrouped_weights_take_no_scales():
    bounds = bounds_of(MIXED, format="w8", grouped=False)
    assert "i_s" not in MIXED.inputs(bounds) and "i_s" not in MIXED.curves(bounds)
    check_promises(MIXED, bounds, operands(MIXED, bounds, np.random.default_rng(8)))


def test_every_number_of_tokens():
    params = column(t_lanes=2, max_t=16, max_n=2, max_k=32)
    rng = np.random.default_rng(9)
    cases = [(b, operands(params, b, rng)) for b in (bounds_of(params, t=t) for t in range(2, 17, 2))]
    check_golden(params, cases)


def test_small_tiles_run_at_the_pace_of_the_output():
    params = column(t_lanes=2, n_lanes=4, max_n=32, max_t=16)
    bounds = bounds_of(params, k=64)
    case = operands(params, bounds, np.random.default_rng(10))
    cycles = check_golden(params, [(bounds, case)]).cycles["o_y"]
    assert np.all(np.diff(cycles) == 1) and len(cycles) == 512


def test_accumulators_are_wide_enough():
    """The greatest sums that operands reach come within 2 % of the bound that chooses the width."""
    both, rows = {"formats": ("w4", "w8"), "minimum": True}, {"formats": ("w8",), "scale_bits": 0}
    for limit, kw in ((3648, {"minimum": True}), (3648, both), (33024, rows)):
        params = column(max_k=limit, **kw)
        assert params.accumulator_bits == 48
        assert column(max_k=limit + 32, **kw).accumulator_bits == 49
        x = np.zeros((1, limit), formats.MX)
        x["code"], x["step"] = 127, 3
        weights = np.full((1, limit), -128 if params.formats == ("w8",) else -8)
        scales = np.broadcast_to([-128, 127], (1, limit // 32, 2)) if params.scale_bits else None
        found = np.abs(accumulate(x, weights, scales)).max()
        assert params.largest_sum * 0.98 < found <= params.largest_sum


def test_sums_are_as_wide_as_the_weights_ask_for():
    """A column that knows its weights has 48 bits where these are enough, and never less than they need."""
    k, unknown = 8192, column(max_k=8192, minimum=True)
    rng = np.random.default_rng(3)
    weight = quantise(rng.standard_normal((4, k)).astype(np.float32))
    greatest = np.abs(np.rint(weight.dequantise() / weight.row_scale[:, None])).sum(1).max()
    assert row_sum([weight]) == greatest
    told = unknown.told([weight])
    assert (unknown.accumulator_bits, told.accumulator_bits) == (50, 48)
    assert told.lane(2).multipliers == unknown.lane(2).multipliers - 2
    full = QuantisedWeight(
        np.full((1, k), -8, np.int8),
        np.full((1, k // 32), 127),
        np.full((1, k // 32), -127),
        np.ones(1, np.float32),
        "w4",
        32,
    )
    assert row_sum([weight, full]) == k * 9 * 127
    assert unknown.told([weight, full]).accumulator_bits == 50
    few = column(max_k=32, minimum=True)
    assert few.told([full]) is few
    bounds = {"t": 1, "k": k, "n": 2, "format": "w4", "grouped": True}
    x = np.zeros((1, k), formats.MX)
    x["code"], x["step"] = 127, 3
    case = {
        "i_x": x,
        "i_w": np.full((2, k), -8, np.int8),
        "i_s": np.broadcast_to([127, -127], (2, k // 32, 2)),
        "i_r": np.ones(2, np.float32),
        "i_e": np.zeros(1, np.int64),
    }
    with pytest.raises(ValueError, match="the column was told of"):
        told.golden(bounds, case)


def test_rtl_has_each_lane_once():
    params = column(t_lanes=2, n_lanes=5, max_n=5)
    text = to_verilog(params.build(), "column")
    assert text == to_verilog(params.build(), "column")
    for rows, instances in ((2, 4), (1, 2)):
        name = block_name(params.lane(rows))
        assert len(re.findall(rf"^module {name}\b", text, re.MULTILINE)) == 1
        assert len(re.findall(rf"^ +{name} ", text, re.MULTILINE)) == instances


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t_lanes": 0}, "t_lanes of a column must be at least 1, not 0"),
        ({"n_lanes": -1}, "n_lanes of a column must be at least 1, not -1"),
        (
            {"formats": ("w8", "w4")},
            f"formats of a column must be one of {', '.join(FORMATS)}, or a narrow one and w8 in this order, "
            "not ('w8', 'w4')",
        ),
        ({"group": 16}, "group of a column must be 32, 64 or 128, not 16"),
        ({"scale_bits": 7}, "scale_bits of a column must be 0 or 8 to 16, not 7"),
        ({"scale_bits": 0, "minimum": True}, "minimum of a column needs group scales; scale_bits is 0"),
        ({"max_k": 48}, "max_k of a column must be a positive multiple of 32, not 48"),
        ({"group": 64, "max_k": 96}, "max_k of a column must be a positive multiple of 64, not 96"),
        ({"max_n": 3}, "max_n of a column must be a positive multiple of 2, not 3"),
        ({"t_lanes": 2, "max_t": 3}, "max_t of a column must be a positive multiple of 2, not 3"),
        (
            {"formats": ("w8",), "scale_bits": 8},
            "scale_bits of a column is 8; 8-bit weights have no group scales",
        ),
        ({"max_k_w8": 64}, "max_k_w8 of a column needs both formats"),
        (
            {"formats": ("w4", "w8"), "max_k_w8": 160},
            "max_k_w8 of a column must be a multiple of 32 up to max_k, 128, not 160",
        ),
        (
            {"formats": ("w4", "w8"), "max_k_w8": 40},
            "max_k_w8 of a column must be a multiple of 32 up to max_k, 128, not 40",
        ),
        (
            {"scale_bits": 16, "max_k": 2**21},
            "max_k of a column is 2097152: 64-bit accumulators could overflow",
        ),
    ],
)
def test_bad_params(change, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        column(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "w8"}, "format is 'w8'; the column has w4"),
        ({"t": 0}, "t is 0; the column takes multiples of 1 up to 4"),
        ({"n": 3}, "n is 3; the column takes multiples of 2 up to 4"),
        ({"k": 160}, "k is 160; the column takes multiples of 32 up to 128"),
        ({"k": 40}, "k is 40; the column takes multiples of 32 up to 128"),
    ],
)
def test_bad_bounds(change, message):
    params = column()
    bounds = {**bounds_of(params), **change}
    for method in (params.describe, params.inputs, params.outputs, params.cost, params.curves):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            method(bounds)


def test_bytes_of_shorter_rows():
    params = column(formats=("w4", "w8"), max_k_w8=64)
    assert params.inputs(bounds_of(params, k=128)) and params.inputs(bounds_of(params, format="w8"))
    with pytest.raises(ValueError, match=r"^k is 96; the column takes multiples of 32 up to 64$"):
        params.describe(bounds_of(params, format="w8", k=96))


def test_grouped_needs_scales():
    params = column(scale_bits=0)
    with pytest.raises(
        ValueError, match=r"^grouped is True; the column or the format is without group scales$"
    ):
        params.describe({**bounds_of(params), "grouped": True})


@pytest.mark.parametrize(
    ("code", "shift", "message"),
    [
        (-128, 0, "a code of the activations is -128; -127 to 127 are allowed"),
        (0, 17, "a shift of the activations is 17; 0 to 16 are allowed"),
        (1, 16, "codes of the activations are not all 0 in a group whose shift is 16"),
    ],
)
def test_bad_activations(code, shift, message):
    x = np.zeros((1, 32), formats.MX)
    x["code"], x["shift"] = code, shift
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        accumulate(x, np.zeros((2, 32), np.int8), None)


@pytest.mark.slow
@pytest.mark.parametrize("draw", sampled(range(6), [0]))
def test_long_random_sequences(params, draw):
    rng = np.random.default_rng([12, draw])
    cases = [(b, operands(params, b, rng)) for b in (random_bounds(params, rng) for _ in range(20))]
    stalls = Stalls(seed=draw, sources=rng.choice([0, 0.2, 0.6]), sinks=rng.choice([0, 0.2, 0.6]))
    check_golden(params, cases, stalls)
    check_promises(params, *cases[0])
