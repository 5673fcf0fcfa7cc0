"""Softmax: rtl == golden, golden against float64 within a derived bound, promises against measurement."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.softmax.log_softmax import LogSoftmaxParams
from streamgen.kernels.softmax.masked_rows import MaskedRowsParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.numbers.formats import decode_ints, round_f24
from streamgen.testing.bench import Result, Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

Params = AttentionSoftmaxParams | SoftmaxParams

SMALL = [
    AttentionSoftmaxParams(lanes=1, max_length=40),
    pytest.param(AttentionSoftmaxParams(lanes=3, max_length=40, p_bits=16), marks=pytest.mark.slow),
    AttentionSoftmaxParams(lanes=8, max_length=40, p_bits=8),
    pytest.param(SoftmaxParams(lanes=1, max_length=40), marks=pytest.mark.slow),
    SoftmaxParams(lanes=3, max_length=40),
    pytest.param(SoftmaxParams(lanes=8, max_length=40), marks=pytest.mark.slow),
    LogSoftmaxParams(lanes=1, max_length=40),
    LogSoftmaxParams(lanes=4, max_length=40),
]

LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126  # the least value of f24
UNIT = 2.0**-16  # the relative error of a rounding to f24
FUNCTION = 2.0**-14  # of exp and of the reciprocal


@lru_cache(maxsize=len(SMALL))
def simulator_of(params: Params) -> StreamSimulator:
    return StreamSimulator(params.build())


def scores(params: Params, bounds: dict[str, Any], seed: int = 0) -> np.ndarray:
    """Rows of scores, narrow and wide ones; NaN where they are padded."""
    rng = np.random.default_rng(seed)
    shape = params.inputs(bounds)["i"].shape
    x = round_f24(rng.normal(size=shape) * rng.choice([0.1, 1, 8, 1e4], size=(shape[0], 1)))
    x[:, bounds["length"] :] = np.nan
    return x


def random_bounds(rng: np.random.Generator, max_length: int) -> dict[str, Any]:
    """Masks of every kind, all-masked rows among them."""
    length = int(rng.integers(1, max_length + 1))
    bounds: dict[str, Any] = {"rows": int(rng.integers(1, 7)), "length": length}
    if rng.random() < 0.5:
        bounds["start"] = int(rng.integers(0, min(length + 3, max_length + 1)))  # perhaps behind it
    if rng.random() < 0.7:
        bounds |= {"causal": True, "position": int(rng.integers(0, max_length - 6))}
    if rng.random() < 0.5:
        bounds |= {"window": int(rng.integers(1, max_length + 1))}
    if rng.random() < 0.5:
        bounds |= {"rows_per_position": int(rng.integers(1, 4))}
    if rng.random() < 0.5:
        bounds |= {"rows_per_head": int(rng.integers(1, bounds["rows"] + 1))}
    return bounds


def cases_of(params: Params, count: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    several = [random_bounds(rng, params.max_length) for _ in range(count)]
    return [(bounds, {"i": scores(params, bounds, seed + k)}) for k, bounds in enumerate(several)]


def extreme_rows() -> np.ndarray:
    """Rows [12, 9] with what is special in each."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 9))
    x[0] = 5.0
    x[1] = rng.choice([LARGEST, -LARGEST], 9)
    x[2] = [0.0, -0.0, NORMAL, -NORMAL, 0, 0, 0, 0, -0.0]
    x[3, 4] = np.nan
    x[4, 8] = np.inf
    x[5] = -np.inf
    x[6, :8] = -np.inf
    x[7] = -LARGEST
    x[8] = LARGEST
    x[9] = np.arange(9) * -11.0
    x[10, ::2] = -np.inf
    x[11] = -1e-30
    return round_f24(x)


def attended(bounds: dict[str, Any], keys: int) -> np.ndarray:
    """The mask as the definition has it, row by row, key by key."""
    mask = np.zeros((bounds["rows"], keys), bool)
    for row in range(bounds["rows"]):
        of_head = row % bounds.get("rows_per_head", bounds["rows"])
        position = bounds.get("position", 0) + of_head // bounds.get("rows_per_position", 1)
        for key in range(bounds.get("start", 0), bounds["length"]):
            seen = not bounds.get("causal", False) or key <= position
            window = bounds.get("window", 0)
            mask[row, key] = seen and (window == 0 or key > position - window)
    return mask


@pytest.mark.parametrize("params", SMALL)
def test_matches_golden(params: Params) -> None:
    """Random descriptors back to back, all stalls, and a reset in the middle of some."""
    lanes, simulator = params.lanes, simulator_of(params)
    special = ({"rows": 12, "length": 9}, {"i": np.pad(extreme_rows(), ((0, 0), (0, -9 % lanes)))})
    cases = [special, *cases_of(params, 12, seed=lanes), special]
    for seed, (sources, sinks) in enumerate([(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3), (0.8, 0.9)]):
        check_golden(params, cases, Stalls(seed=seed, sources=sources, sinks=sinks), simulator=simulator)
    for cycle in (1, 20, 77, 150):
        check_golden(params, cases, Stalls(seed=1, sinks=0.3), simulator=simulator, reset_at=cycle)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "max_length", "p_bits"),
    sampled([(2, 300, 8), (16, 100, 16), (5, 64, 13), (32, 512, 0)], [(16, 100, 16)]),
)
def test_long_sequences(lanes: int, max_length: int, p_bits: int) -> None:
    form = {"lanes": lanes, "max_length": max_length}
    params = AttentionSoftmaxParams(**form, p_bits=p_bits) if p_bits else SoftmaxParams(**form)
    simulator = StreamSimulator(params.build())
    for seed, sinks in enumerate([0.0, 0.4, 0.9]):
        stalls = Stalls(seed=seed, sources=0.2, sinks=sinks)
        check_golden(params, cases_of(params, 150, seed), stalls, simulator=simulator)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        AttentionSoftmaxParams(lanes=8, max_length=4096, p_bits=16),
        SoftmaxParams(lanes=8, max_length=4096),
    ],
)
def test_longest_rows(params: Params) -> None:
    """Equal rows, which have the greatest sum, and rows of growing length."""
    equal: dict[str, Any] = {"rows": 3, "length": 4096}
    causal: dict[str, Any] = {"rows": 3, "length": 4095, "causal": True, "position": 4093}
    x = np.repeat(round_f24(np.array([[7.0], [-LARGEST], [LARGEST]])), 4096, axis=1)
    cases: list[Case] = [(equal, {"i": x}), (causal, {"i": scores(params, causal)}), (causal, {"i": x})]
    check_golden(params, cases, Stalls(seed=1, sinks=0.2), simulator=StreamSimulator(params.build()))
    if isinstance(params, AttentionSoftmaxParams):
        total = params.golden(equal, {"i": x})["o_sum"]
        assert total.tolist() == round_f24(np.full(3, 4096.0 * 65535)).tolist()


def test_golden_of_extremes() -> None:
    """Written out by hand from the definition."""
    bounds, x = {"rows": 12, "length": 9}, extreme_rows()
    shares = AttentionSoftmaxParams(lanes=3, max_length=9, p_bits=8).golden(bounds, {"i": x})
    p, total = shares["o_p"].tolist(), shares["o_sum"]
    o = SoftmaxParams(lanes=3, max_length=9).golden(bounds, {"i": x})["o"]
    ninth = float(round_f24(np.array(1 / 9)))
    for row in (0, 2, 7, 8, 11):  # all equal, or as good as that
        assert p[row] == [255] * 9
        assert total[row] == round_f24(np.array(9 * 255))
        assert np.abs(o[row] / ninth - 1).max() <= FUNCTION + 2 * UNIT
    assert p[1] == [255 * (value > 0) for value in x[1]]
    for row in (3, 4):  # NaN or +infinity in the row
        assert p[row] == [0] * 9
        assert np.isnan(total[row])
        assert np.isnan(o[row]).all()
    assert p[5] == [0] * 9  # nothing but -infinity
    assert total[5] == 0
    assert not o[5].any()
    assert p[6] == [0] * 8 + [255]
    assert o[6].tolist() == [0.0] * 8 + [1.0]
    assert p[9] == [255] + [0] * 8
    assert p[10][::2] == [0] * 5
    assert not np.signbit(o).any()


def test_masks() -> None:
    """Exactly the keys of the definition are seen, in every mixture of masks."""
    rng = np.random.default_rng(4)
    params = MaskedRowsParams(lanes=4, max_length=50)
    masked_rows = 0
    for _ in range(300):
        bounds = random_bounds(rng, 50)
        keys = params.itensor(bounds).shape[1]
        seen, negated = params.golden(bounds, rng.normal(size=(bounds["rows"], keys)))
        mask = attended(bounds, keys)
        assert np.array_equal(np.isfinite(seen), mask)
        assert np.array_equal(np.isfinite(negated[:, 0]), mask.any(axis=1))
        masked_rows += int((~mask.any(axis=1)).sum())
    assert masked_rows > 20


def exact(params: Params, bounds: dict[str, Any], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In float64: e = exp(x - max), the distance max - x, the mask; torch's softmax has the same e / sum."""
    mask = attended(bounds, x.shape[1])
    values = np.where(mask, x.astype(np.float64), -np.inf)
    greatest = values.max(axis=1, keepdims=True)
    distance = np.where(mask, greatest - values, np.inf)
    return np.exp(-distance), np.where(mask, distance, 0), mask


@pytest.mark.parametrize("p_bits", [8, 12, 16])
def test_shares_near_float64(p_bits: int) -> None:
    """|p - e·full| <= 1/2 + full·(FUNCTION·e + UNIT·d·e): rounding, the exponential, the difference d.

    A relative error UNIT of d = max - x is an absolute one of UNIT·d in the exponent; second orders add less
    than a thousandth. The sum is that of p, rounded once.
    """
    params = AttentionSoftmaxParams(lanes=8, max_length=1000, p_bits=p_bits)
    full = (1 << p_bits) - 1
    for seed, bounds in enumerate([{"rows": 20, "length": 1000}, {"rows": 30, "length": 77, "causal": True}]):
        x = scores(params, bounds, seed)
        e, distance, _ = exact(params, bounds, x)
        out = params.golden(bounds, {"i": x})
        allowed = 0.5 + 1.001 * full * e * (FUNCTION + UNIT * distance)
        assert (np.abs(out["o_p"] - e * full) <= allowed).all()
        assert np.array_equal(out["o_sum"], round_f24(out["o_p"].sum(axis=1, dtype=np.float64)))


def test_normalised_near_torch() -> None:
    """|o - e/s| <= e/s·(r + R + FUNCTION + 2·UNIT) + 2^-126.

    r = FUNCTION + UNIT·d is the relative error of e (see above), R the mean of r weighted with e, that of the
    sum; then the reciprocal, and the roundings of the sum and the product. What is cut off the terms adds
    length·2^-39 to R. Exponentials and results below 2^-126 are zero.
    """
    params = SoftmaxParams(lanes=8, max_length=4000)
    for seed, bounds in enumerate(
        [
            {"rows": 20, "length": 4000},
            {"rows": 30, "length": 77, "causal": True, "position": 5, "window": 20},
        ]
    ):
        x = scores(params, bounds, seed)
        e, distance, mask = exact(params, bounds, x)
        masked = np.where(mask, x, -np.inf).astype(np.float64)
        expected = torch.softmax(torch.from_numpy(masked), dim=1).numpy()
        error = FUNCTION + UNIT * distance
        mean = (e * error).sum(axis=1, keepdims=True) / e.sum(axis=1, keepdims=True)
        mean = mean + bounds["length"] * 2.0**-39
        allowed = 1.01 * expected * (error + mean + FUNCTION + 2 * UNIT) + NORMAL
        assert (np.abs(params.golden(bounds, {"i": x})["o"] - expected) <= allowed).all()


def test_log_softmax_near_torch() -> None:
    """|o - y| <= |y|·(2^-15 + 2·UNIT) + R + UNIT: the difference, log and their sum are rounded; the relative
    error of the sum, R (see above), and its rounding are absolute errors of its logarithm."""
    params = LogSoftmaxParams(lanes=8, max_length=4000)
    for seed, bounds in enumerate([{"rows": 40, "length": 4000}, {"rows": 40, "length": 8}]):
        x = scores(params, bounds, seed)
        e, distance, _ = exact(params, bounds, x)
        expected = torch.log_softmax(torch.from_numpy(x.astype(np.float64)), dim=1).numpy()
        error = e * (FUNCTION + UNIT * distance)
        mean = error.sum(axis=1, keepdims=True) / e.sum(axis=1, keepdims=True) + bounds["length"] * 2.0**-39
        allowed = 1.01 * (np.abs(expected) * (2.0**-15 + 2 * UNIT) + mean + UNIT)
        found = params.golden(bounds, {"i": x})["o"]
        assert (expected < -1000).any()  # whose softmax underflows
        assert (np.abs(found - expected) <= allowed).all()


def test_log_softmax_of_extremes() -> None:
    """As torch has it: NaN for a row of NaN, of infinity or of -infinity alone, -infinity for -infinity."""
    x = extreme_rows()
    found = LogSoftmaxParams(lanes=3, max_length=9).golden({"rows": 12, "length": 9}, {"i": x})["o"]
    expected = torch.log_softmax(torch.from_numpy(x.astype(np.float64)), dim=1).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(round_f24(expected)))
    finite = np.isfinite(expected) & (expected > -1e30)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=2.0**-14, atol=2.0**-14)


def test_lanes_do_not_matter() -> None:
    bounds = {"rows": 6, "length": 37, "causal": True, "position": 30}
    x = scores(SoftmaxParams(lanes=1, max_length=37), bounds)
    padded = {"i": np.pad(x, ((0, 0), (0, 3)))}
    for kind in (SoftmaxParams, AttentionSoftmaxParams):
        narrow = kind(lanes=1, max_length=40).golden(bounds, {"i": x})
        for port, found in kind(lanes=8, max_length=40).golden(bounds, padded).items():
            assert np.array_equal(found[..., :37], narrow[port])


@pytest.mark.parametrize("params", SMALL)
def test_promises(params: Params) -> None:
    """Curves, cycles, latency and II as measured: a token a cycle, for rows of one token too."""
    several: list[dict[str, Any]] = [
        {"rows": 1, "length": 1},
        {"rows": 100, "length": 1},
        {"rows": 3, "length": 40},
        {"rows": 40, "length": 2 * params.lanes, "causal": True},
        {"rows": 7, "length": 5, "window": 2},
    ]
    for bounds in several:
        check_promises(params, bounds, {"i": scores(params, bounds)}, simulator=simulator_of(params))


def test_no_gap_between_descriptors() -> None:
    """The first row of a descriptor follows the last one of another without a gap."""
    params = AttentionSoftmaxParams(lanes=4, max_length=40)
    several: list[dict[str, Any]] = [
        {"rows": 2, "length": 12},
        {"rows": 1, "length": 40, "causal": True, "position": 30},
        {"rows": 3, "length": 9, "start": 1},
    ]
    cases: list[Case] = [(bounds, {"i": scores(params, bounds)}) for bounds in several]
    result = check_golden(params, cases)
    assert np.unique(np.diff(result.cycles["i"])).tolist() == [1]


def run_held(params: Params, bounds: dict[str, Any], held: dict[str, int]) -> Result:
    """Random rows while outputs are not ready in their first cycles; equal to golden."""
    x = scores(params, bounds)
    streams = {
        "i_descriptor": [descriptor_word(params, bounds)],
        "i": encode_port(params.inputs(bounds)["i"], x),
    }
    outputs, golden = params.outputs(bounds), params.golden(bounds, {"i": x})
    counts = {port: itensor.token_count for port, itensor in outputs.items()}
    result = run(params.build(), streams, counts, hold=held)
    assert result.tokens == {port: encode_port(itensor, golden[port]) for port, itensor in outputs.items()}
    return result


def test_a_row_ahead_of_a_waiting_reader() -> None:
    """While nobody takes a row, the next one is taken in; the normalised form holds two more."""
    bounds = {"rows": 8, "length": 128}
    result = run_held(AttentionSoftmaxParams(lanes=2, max_length=128), bounds, {"o_p": 600, "o_sum": 600})
    assert 127 + 30 <= sum(cycle < 600 for cycle in result.cycles["i"]) <= 128 + 32
    result = run_held(SoftmaxParams(lanes=2, max_length=128), bounds, {"o": 900})
    assert 128 + 127 <= sum(cycle < 900 for cycle in result.cycles["i"]) <= 256 + 16


def test_sums_wait_for_their_reader() -> None:
    """o_p runs 60 rows ahead of o_sum; then it waits, too."""
    bounds = {"rows": 90, "length": 2}
    result = run_held(AttentionSoftmaxParams(lanes=2, max_length=16), bounds, {"o_sum": 400})
    assert 60 <= sum(cycle < 400 for cycle in result.cycles["o_p"]) <= 64


def test_subnormals_count_as_zero() -> None:
    """Bits of exponent 0 with a fraction are no value of f24; the hardware reads them as zero."""
    params = AttentionSoftmaxParams(lanes=2, max_length=4)
    word = descriptor_word(params, {"rows": 2, "length": 2})
    tokens = [0x807FFF << 24 | 0x000001, 0xFFC123 << 24 | 0x000001]  # then a NaN that no unit gives
    result = run(params.build(), {"i_descriptor": [word], "i": tokens}, {"o_p": 2, "o_sum": 2})
    assert result.tokens["o_p"] == [0xFFF << 12 | 0xFFF, 0]
    total = decode_ints("f24", result.tokens["o_sum"], (1,))[:, 0]
    assert total[0] == 2 * 4095
    assert np.isnan(total[1])


def test_bad_params() -> None:
    cases = [
        ({"lanes": 0, "max_length": 8}, "lanes is 0; 1 to 64 are allowed"),
        ({"lanes": 65, "max_length": 8}, "lanes is 65; 1 to 64 are allowed"),
        ({"lanes": 1, "max_length": 0}, "max_length is 0; 1 to 1048576 are allowed"),
        ({"lanes": 1, "max_length": (1 << 20) + 1}, "max_length is 1048577; 1 to 1048576 are allowed"),
        ({"lanes": 1, "max_length": 8, "p_bits": 7}, "p_bits is 7; 8 to 16 are allowed"),
        ({"lanes": 1, "max_length": 8, "p_bits": 17}, "p_bits is 17; 8 to 16 are allowed"),
    ]
    for arguments, message in cases:
        for kind in (SoftmaxParams, AttentionSoftmaxParams):
            if kind is AttentionSoftmaxParams or "p_bits" not in arguments:
                with pytest.raises(ValueError) as raised:
                    kind(**arguments)
                assert str(raised.value) == message


def test_bad_bounds() -> None:
    params = SoftmaxParams(lanes=4, max_length=40)
    good = {"rows": 4, "length": 20, "causal": True}
    cases = [
        ({"rows": 0}, "rows is 0; it must be 1 to 65535"),
        ({"rows": 65536}, "rows is 65536; it must be 1 to 65535"),
        ({"length": 0}, "length is 0; it must be 1 to 40"),
        ({"length": 41}, "length is 41; it must be 1 to 40"),
        ({"start": 41}, "start is 41; it must be 0 to 40"),
        ({"start": -1}, "start is -1; it must be 0 to 40"),
        ({"window": 41}, "window is 41; it must be 0 to 40"),
        ({"rows_per_position": 0}, "rows_per_position is 0; it must be 1 to 255"),
        ({"rows_per_head": 5}, "rows_per_head is 5; it must be 1 to 4"),
        ({"causal": 2}, "causal is 2; it must be 0 to 1"),
        ({"position": -1}, "position is -1; it must be 0 to 60, the last row's at most 63"),
        ({"position": 61}, "position is 61; it must be 0 to 60, the last row's at most 63"),
        (
            {"position": 63, "rows_per_position": 2},
            "position is 63; it must be 0 to 62, the last row's at most 63",
        ),
    ]
    for change, message in cases:
        with pytest.raises(ValueError) as raised:
            params.describe({**good, **change})
        assert str(raised.value) == message
    assert params.describe({**good, "position": 60})["position"] == 60
