"""kernels.matmul.quantise: rtl == golden, golden against the definition, promises against measurement."""

import numpy as np
import pytest

from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.numbers import formats
from streamgen.numbers.formats import E_NOT_FINITE, MX_GROUP, round_f24
from streamgen.testing.bench import Result, Stalls, run
from streamgen.testing.kernel import check_golden, check_promises, descriptor_word, encode_port

LANES = (1, 2, 4, 8, 16, 32)
LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126  # the least value of f24


def _rows(rng: np.random.Generator, t: int, k: int, spread: int = 12) -> np.ndarray:
    """Rows whose groups differ by up to 2^±spread, so that many shifts occur, and some groups are lost."""
    scale = np.exp2(rng.integers(-spread, spread + 1, (t, k // MX_GROUP))).repeat(MX_GROUP, axis=1)
    return round_f24(rng.standard_normal((t, k)) * scale)


def _extreme_rows() -> np.ndarray:
    """Rows [10, 96]: zeros, the limits of f24, ties, codes that clamp, groups far apart, NaN, infinities."""
    rng = np.random.default_rng(3)
    x = np.zeros((10, 96))
    x[1] = rng.choice([LARGEST, -LARGEST], 96)
    x[2] = rng.choice([NORMAL, -NORMAL, 3 * NORMAL, 0.0, -0.0], 96)
    x[3, :32] = LARGEST
    x[3, 32:64] = NORMAL
    # With 112 as the greatest, a code is the value: halves are ties, to even.
    x[4] = np.tile(np.concatenate([[112.0], np.arange(31) - 15.5]), 3)
    # 127.5 and more rounds to 128 and clamps; so does the greatest significand.
    x[5] = np.tile(np.concatenate([[127.498046875, 127.5, -127.5, 128 - 2**-8], np.arange(28) / 2]), 3)
    # d of 15 is sent, of 16 is not.
    x[6] = np.repeat([2.0**20, 2.0**5, 2.0**4], 32)
    x[7] = rng.standard_normal(96)
    x[7, 50] = np.nan
    x[8] = rng.standard_normal(96)
    x[8, 95] = -np.inf
    x[9] = np.repeat([0.0, 1.0, 0.0], 32)
    return round_f24(x)


@pytest.mark.parametrize("lanes", LANES)
def test_matches_golden(lanes: int, stalls: Stalls | None) -> None:
    """Random descriptor sequences back to back: rows, lengths and padding change from one to the next."""
    rng = np.random.default_rng(lanes)
    params = QuantiseParams(lanes=lanes, max_k=128, sums=bool(lanes % 3))
    cases = [({"t": 10, "k": 96, "valid_k": 96}, {"i": _extreme_rows()})]
    for _ in range(4):
        t, k = int(rng.integers(1, 4)), MX_GROUP * int(rng.integers(1, 5))
        bounds = {"t": t, "k": k, "valid_k": int(rng.integers(1, k + 1))}
        cases.append((bounds, {"i": _rows(rng, t, k)}))
    check_golden(params, cases, stalls)


def test_golden_of_extremes() -> None:
    """Written out by hand from the definition."""
    params = QuantiseParams(lanes=16, max_k=96, sums=True)
    out = params.golden({"t": 10, "k": 96, "valid_k": 96}, {"i": _extreme_rows()})
    code, shift = out["o_x"]["code"], out["o_x"]["shift"][:, ::MX_GROUP]
    assert out["o_e"].tolist() == [0, 118, -134, 118, -3, -3, 11, E_NOT_FINITE, E_NOT_FINITE, -9]
    assert shift.tolist() == [
        [16, 16, 16],
        [0, 0, 0],
        [0, 0, 0],
        [0, 16, 16],
        [0, 0, 0],
        [0, 0, 0],
        [0, 15, 16],
        [16, 16, 16],
        [16, 16, 16],
        [16, 0, 16],
    ]
    step = out["o_x"]["step"][:, ::MX_GROUP]
    assert step.tolist() == [[0] * 3, [3] * 3, [2] * 3, [3, 0, 0], [3] * 3, [3] * 3, *[[0] * 3] * 4]
    assert set(np.abs(code[1])) == {127}
    assert set(np.abs(code[2])) == {0, 37, 110}
    assert code[4, :6].tolist() == [112, -16, -14, -14, -12, -12]
    assert code[5, :8].tolist() == [127, 127, -127, 127, 0, 0, 1, 2]
    assert code[6, ::MX_GROUP].tolist() == [102, 102, 0]
    assert not code[[0, 7, 8]].any()


def test_golden_is_within_half_a_step() -> None:
    """|code * f * 2^(E - d) - x| is half a step, one where the code clamps (128 -> 127), and what the ratio
    is off."""
    rng = np.random.default_rng(5)
    x = _rows(rng, 40, 256, spread=3).astype(np.float64)
    params = QuantiseParams(lanes=16, max_k=256, sums=True)
    out = params.golden({"t": 40, "k": 256, "valid_k": 256}, {"i": x.astype(np.float32)})
    step = np.exp2(out["o_e"].astype(int)[:, None] - out["o_x"]["shift"]) * (5 + out["o_x"]["step"])
    error = np.abs(out["o_x"]["code"] * step - x)
    clamps = np.abs(x) > 127.5 * step
    assert (out["o_x"]["shift"] < 16).all()
    assert (error <= np.where(clamps, 1.0, 0.51) * step).all()
    assert 0 < clamps.sum() < 40
    groups = np.abs(out["o_x"]["code"].reshape(40, -1, MX_GROUP)).max(axis=2)
    assert groups.min() >= 102 and groups.max() == 127


def test_padding_is_zero() -> None:
    """What lies beyond valid_k changes nothing, not even NaN."""
    rng = np.random.default_rng(6)
    params = QuantiseParams(lanes=8, max_k=96, sums=True)
    bounds = {"t": 3, "k": 96, "valid_k": 37}
    clean = _rows(rng, 3, 96)
    dirty = clean.copy()
    dirty[:, 37:] = np.nan
    clean[:, 37:] = 0
    expected = params.golden({**bounds, "valid_k": 96}, {"i": clean})
    actual = params.golden(bounds, {"i": dirty})
    for port in ("o_x", "o_e"):
        assert np.array_equal(expected[port], actual[port])
    check_golden(params, [(bounds, {"i": dirty})])


def test_subnormals_count_as_zero() -> None:
    """Bits of exponent 0 with a fraction are no value of f24; the hardware reads them as zero."""
    params = QuantiseParams(lanes=2, max_k=32, sums=True)
    bounds = {"t": 1, "k": 32, "valid_k": 32}
    word = descriptor_word(params, bounds)
    subnormal = 0x807FFF << 24 | 0x000001
    result = run(params.build(), {"i_descriptor": [word], "i": [subnormal] * 16}, {"o_x": 1, "o_e": 1})
    assert result.tokens == {"o_x": [formats.MX_MAX_SHIFT << 256], "o_e": [0]}
    least = 0x008000  # the least normal value beside them makes codes of them, of 0
    tokens = [subnormal] * 15 + [0x000001 << 24 | least]
    result = run(params.build(), {"i_descriptor": [word], "i": tokens}, {"o_x": 1, "o_e": 1})
    assert result.tokens == {"o_x": [102 << 264 | 102 << 240], "o_e": [-135 & 0xFFFF]}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("sums", [False, True])
def test_promises(lanes: int, sums: bool) -> None:
    """Curves, cycles, latency and II as measured; a row takes k / lanes cycles."""
    rng = np.random.default_rng(7)
    params = QuantiseParams(lanes=lanes, max_k=128, sums=sums)
    for t, k in ((3, 128), (5, 32)):
        check_promises(params, {"t": t, "k": k, "valid_k": k}, {"i": _rows(rng, t, k)})


@pytest.mark.parametrize(("max_k", "t", "k"), [(32, 60, 32), (1024, 4, 1024), (512, 40, 32)])
def test_full_rate(max_k: int, t: int, k: int) -> None:
    """A group a cycle without a gap, whether rows are one group or fill half the ring."""
    params = QuantiseParams(lanes=32, max_k=max_k, sums=True)
    bounds = {"t": t, "k": k, "valid_k": k - 1}
    check_promises(params, bounds, {"i": _rows(np.random.default_rng(8), t, k)})


def _run_held(params: QuantiseParams, t: int, k: int, held: dict[str, int]) -> Result:
    """Random rows through the hardware while outputs are not ready in their first cycles; equal to golden."""
    bounds = {"t": t, "k": k, "valid_k": k}
    x = _rows(np.random.default_rng(9), t, k)
    outputs = params.outputs(bounds)
    golden = params.golden(bounds, {"i": x})
    inputs = {
        "i_descriptor": [descriptor_word(params, bounds)],
        "i": encode_port(params.inputs(bounds)["i"], x),
    }
    counts = {port: itensor.token_count for port, itensor in outputs.items()}
    result = run(params.build(), inputs, counts, hold=held)
    assert result.tokens == {port: encode_port(itensor, golden[port]) for port, itensor in outputs.items()}
    return result


def test_one_row_ahead_of_a_waiting_reader() -> None:
    """While nobody takes a row, the next one is taken in."""
    params = QuantiseParams(lanes=32, max_k=1024, sums=True)
    result = _run_held(params, 3, 1024, {"o_x": 300, "o_e": 300})
    assert 63 <= sum(cycle < 300 for cycle in result.cycles["i"]) <= 66


@pytest.mark.parametrize("held", ["o_x", "o_e"])
def test_many_short_rows_wait(held: str) -> None:
    """Rows of one group: what is full is the queue of rows, for either output alone."""
    params = QuantiseParams(lanes=32, max_k=1024, sums=True)
    result = _run_held(params, 50, 32, {held: 200})
    assert 14 <= sum(cycle < 200 for cycle in result.cycles["i"]) <= 18


@pytest.mark.slow
@pytest.mark.parametrize("lanes", LANES)
def test_random_bits(lanes: int) -> None:
    """Every pattern of 24 bits may come: random ones, with many zeros, specials and near exponents."""
    rng = np.random.default_rng(100 + lanes)
    params = QuantiseParams(lanes=lanes, max_k=160, sums=True)
    cases = []
    for _ in range(25):
        t, k = int(rng.integers(1, 6)), MX_GROUP * int(rng.integers(1, 6))
        centre = rng.integers(1, 255, (t, 1))
        exponent = np.clip(centre + rng.integers(-20, 4, (t, k)), 1, 254)
        exponent = np.where(rng.random((t, k)) < 0.1, 0, exponent)
        exponent = np.where(
            rng.random((t, 1)) < 0.1, np.where(rng.random((t, k)) < 0.01, 255, exponent), exponent
        )
        fraction = np.where(exponent == 0, 0, rng.integers(0, 1 << 15, (t, k)))
        fraction = np.where(rng.random((t, k)) < 0.2, fraction & ~0xFF, fraction)  # more ties
        bits = rng.integers(0, 2, (t, k)) << 31 | exponent << 23 | fraction << 8
        x = bits.astype(np.uint32).view(np.float32)
        cases.append(({"t": t, "k": k, "valid_k": int(rng.integers(1, k + 1))}, {"i": x}))
    check_golden(params, cases, Stalls(seed=lanes, sources=0.2, sinks=0.4))


def test_bad_params() -> None:
    with pytest.raises(ValueError, match=r"^Quantise\.lanes is 3; 1, 2, 4, 8, 16 and 32 are allowed$"):
        QuantiseParams(lanes=3, max_k=64, sums=True)
    with pytest.raises(ValueError, match=r"^Quantise\.max_k is 40; it must be a multiple of 32$"):
        QuantiseParams(lanes=4, max_k=40, sums=True)
    with pytest.raises(ValueError, match=r"^Quantise\.max_k is 0; it must be a multiple of 32$"):
        QuantiseParams(lanes=4, max_k=0, sums=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 0}, "Quantise: t is 0; it must be 1 to 65535"),
        ({"t": 65536}, "Quantise: t is 65536; it must be 1 to 65535"),
        ({"k": 48}, "Quantise: k is 48; it must be a multiple of 32 up to 128"),
        ({"k": 160}, "Quantise: k is 160; it must be a multiple of 32 up to 128"),
        ({"valid_k": 65}, "Quantise: valid_k is 65; it must be 1 to k = 64"),
        ({"valid_k": 0}, "Quantise: valid_k is 0; it must be 1 to k = 64"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    params = QuantiseParams(lanes=16, max_k=128, sums=True)
    with pytest.raises(ValueError) as caught:
        params.describe({"t": 2, "k": 64, "valid_k": 64} | change)
    assert str(caught.value) == message
