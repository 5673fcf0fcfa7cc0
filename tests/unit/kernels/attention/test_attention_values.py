"""streamgen.kernels.attention.values: rtl == golden, golden against exact sums, promises as measured."""

from fractions import Fraction

import numpy as np
import pytest

from streamgen.itensor import same_stream
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.row_codes import E_ZERO, join_scale, split_scale
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.numbers.formats import E_NOT_FINITE, round_f24
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

LARGEST = (2 - 2.0**-15) * 2.0**127
SUMS = (0.0, -0.0, 1.0, 4095.0, 65535.0, 2.0**20, 2.0**-126, LARGEST, np.inf, np.nan)


def _params(dims: int, lanes: int, **changes: int) -> AttentionValuesParams:
    fields = {"group": 1, "max_length": 24, "max_rows": 63, "p_bits": 12, "width": 1}
    return AttentionValuesParams(dims=dims, lanes=lanes, **fields | changes)


def _exponents(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Around one size for each head: differences of 0 to 20 places; rarely far away or not finite."""
    base = rng.integers(-60, 30, (1, shape[1]))
    e = base - rng.integers(0, 21, shape)
    far = rng.choice((E_ZERO, -32768, 100, 113, 32766, E_NOT_FINITE), shape)
    return np.where(rng.random(shape) < 0.3 / len(e), far, e)


def _case(params: AttentionValuesParams, rng: np.random.Generator, heads: int, t: int, length: int) -> Case:
    """The padding of the last tile holds anything, large scales among it."""
    bounds = {"heads": heads, "t": t, "length": length}
    shapes = {port: itensor.shape for port, itensor in params.inputs(bounds).items()}
    p = rng.integers(0, 1 << params.p_bits, shapes["i_p"])
    p = np.where(rng.random(p.shape) < 0.3, 0, p)
    p = np.where(rng.random((len(p), 1)) < 0.1, 0, p)  # of rows that attend to nothing
    total = round_f24(p[:, :length].sum(axis=1).astype(np.float64))
    special = rng.random(total.shape) < 0.15
    total = np.where(special, rng.choice(SUMS, total.shape), total).astype(np.float32)
    e = _exponents(rng, shapes["i_v_scale"])
    e[length:] = rng.integers(-32768, 32768, e[length:].shape)
    return bounds, {
        "i_p": p.astype(np.uint16 if params.p_bits > 8 else np.uint8),
        "i_sum": total,
        "i_v": rng.integers(-128, 128, shapes["i_v"]).astype(np.int8),
        "i_v_scale": join_scale(rng.integers(128, 256, e.shape), e),
    }


def _cases(params: AttentionValuesParams, rng: np.random.Generator, count: int) -> list[Case]:
    """The longest, the shortest, several contexts of few tiles, random ones."""
    limit = params.max_rows // params.group
    several = [
        (1, 1, params.max_length),
        (1, 1, 1),
        (min(6, limit), 1, 1),
        (min(3, limit), 1, params.max_length),
    ]
    for _ in range(count):
        heads = int(rng.integers(1, 1 + min(4, limit)))
        t = int(rng.integers(1, 1 + min(4, limit // heads)))
        several.append((heads, t, int(rng.integers(1, 1 + min(params.max_length, 6 * params.lanes)))))
    return [_case(params, rng, *shape) for shape in several]


@pytest.mark.parametrize(
    ("dims", "lanes", "changes"),
    [
        (4, 1, {"group": 2}),
        (3, 2, {"width": 3, "p_bits": 8}),
        (6, 3, {"width": 2, "p_bits": 16, "group": 2}),
        (1, 4, {"p_bits": 14}),
        (2, 8, {"max_length": 8, "p_bits": 10}),
        (2, 16, {"max_length": 100, "group": 3}),
    ],
)
def test_matches_golden(dims: int, lanes: int, changes: dict[str, int]) -> None:
    """Random descriptors back to back under random stalls of all kinds."""
    params = _params(dims, lanes, **changes)
    cases = _cases(params, np.random.default_rng(dims), 2)
    for sources, sinks in ((0.0, 0.0), (0.2, 0.4)):
        check_golden(params, cases, Stalls(seed=lanes, sources=sources, sinks=sinks))


def test_reset_in_mid_run() -> None:
    params = _params(4, 2, group=2)
    cases = _cases(params, np.random.default_rng(4), 2)
    for cycle in (33, 80):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


def test_greatest_sums() -> None:
    """All terms at their greatest for the longest row: no sum leaves its bits."""
    for p_bits in (8, 11, 12, 13, 16):
        params = _params(2, 1, p_bits=p_bits, max_length=33)
        cases = []
        for code in (-128, 127):
            bounds, inputs = _case(params, np.random.default_rng(0), 1, 1, 33)
            ends = {
                "i_p": np.full_like(inputs["i_p"], (1 << p_bits) - 1),
                "i_v": np.full_like(inputs["i_v"], code),
                "i_v_scale": np.full_like(inputs["i_v_scale"], join_scale(255, -9)),
                "i_sum": np.ones_like(inputs["i_sum"]),
            }
            cases.append((bounds, ends))
            exact = Fraction(33 * ((1 << p_bits) - 1) * 255 * code, 512)
            golden = params.golden(bounds, ends)["o"]
            np.testing.assert_array_equal(golden, round_f24(np.full(golden.shape, float(exact))))
        check_golden(params, cases)


def test_every_distance() -> None:
    """One position sets E, the other lies d = 0 ... 20 below: from d = 16 on nothing is left of it."""
    for p_bits in (8, 12, 16):
        params = _params(1, 1, p_bits=p_bits)
        cases = []
        for distance in range(21):
            inputs = {
                "i_p": np.array([[0, (1 << p_bits) - 1]]).astype(np.uint16 if p_bits > 8 else np.uint8),
                "i_sum": np.ones(1, np.float32),
                "i_v": np.array([[1], [-77]], np.int8),
                "i_v_scale": join_scale(np.array([[128], [201]]), np.array([[3], [3 - distance]])),
            }
            bounds = {"heads": 1, "t": 1, "length": 2}
            cases.append((bounds, inputs))
            exact = ((1 << p_bits) - 1) * 201 * -77 * 2.0 ** (3 - distance) if distance <= 15 else 0.0
            assert params.golden(bounds, inputs)["o"][0, 0] == round_f24(np.array(exact))
        check_golden(params, cases)


def test_special_rows() -> None:
    """Sum 0 gives 0, sum NaN gives NaN; a position that is not finite spoils its own context only."""
    params = _params(2, 1, group=2)
    bounds = {"heads": 2, "t": 2, "length": 2}
    one, nan = join_scale(128, -7), join_scale(128, E_NOT_FINITE)
    inputs = {
        "i_p": np.array([[1, 0]] * 8, np.uint16),
        "i_sum": np.array([1, 0, np.nan, -2, 1, 0, np.nan, np.inf], np.float32),
        "i_v": np.array([[3, -5, 3, -5], [0, 0, 0, 0]], np.int8),
        "i_v_scale": np.array([[one, one], [one, nan]]),
    }
    out = params.golden(bounds, inputs)["o"].reshape(2, 2, 2, 2)  # t, head, member
    nans = [np.nan, np.nan]
    np.testing.assert_array_equal(out[:, 0], [[[3, -5], [0, 0]], [nans, [-1.5, 2.5]]])
    np.testing.assert_array_equal(out[:, 1], [[nans, [0, 0]], [nans, nans]])
    assert not np.signbit(out[0, :, 1]).any()
    check_golden(params, [(bounds, inputs)])


def test_golden_is_rounded_twice() -> None:
    """By fractions: the exact sum to f24, divided by the sum to f24; in the order of rows and heads."""
    params = _params(3, 2, group=2)
    rng = np.random.default_rng(5)
    bounds, inputs = _case(params, rng, 2, 5, 9)
    e = rng.integers(-20, 1, inputs["i_v_scale"].shape)
    inputs["i_v_scale"] = join_scale(rng.integers(128, 256, e.shape), e)
    inputs["i_sum"] = round_f24(rng.uniform(1, 9999, len(inputs["i_sum"])))
    out = params.golden(bounds, inputs)["o"]
    assert out.shape == (5, 12)
    m, e = (part[:9].tolist() for part in split_scale(inputs["i_v_scale"]))
    p, v = inputs["i_p"].tolist(), inputs["i_v"].tolist()
    for t, query, j in np.ndindex(5, 4, 3):
        head, member = divmod(query, 2)
        row = (head * 5 + t) * 2 + member
        greatest = max(e[s][head] for s in range(9))
        exact = sum(
            p[row][s] * m[s][head] * v[s][3 * head + j] * Fraction(2) ** e[s][head]
            for s in range(9)
            if greatest - e[s][head] <= 15
        )
        total = Fraction(float(inputs["i_sum"][row]))
        expected = f24_of(f24_of(exact) / total)
        assert Fraction(float(out[t, 3 * query + j])) == expected


def f24_of(value: Fraction) -> Fraction:
    """The nearest f24, ties to even, for what is neither too large nor too small."""
    if value == 0:
        return value
    top = abs(value).numerator.bit_length() - abs(value).denominator.bit_length()
    top -= abs(value) < Fraction(2) ** top
    assert -126 <= top < 127
    unit = Fraction(2) ** (top - 15)
    return round(value / unit) * unit


def test_golden_matches_real_arithmetic() -> None:
    """Behind softmax: |o - attention| is at most what the codes, the p and the dropped terms make.

    Weights w' = p / sum add up to 1 within 2^-16. Each differs from softmax's by at most a half of full scale
    over sum for p, the rounding of sum, and the exponential's 2^-13; a code is off by half a scale. A dropped
    term is below 2^-15 of the greatest value.
    """
    params = _params(16, 1, group=2, p_bits=16)
    softmax = AttentionSoftmaxParams(lanes=1, max_length=40, p_bits=16)
    rng = np.random.default_rng(6)
    bounds = {"heads": 2, "t": 3, "length": 12}
    scores = round_f24(rng.normal(size=(12, 12)) * 2)
    shares = softmax.golden({"rows": 12, "length": 12}, {"i": scores})
    x = round_f24(rng.normal(size=(12, 32)))
    quantiser = QuantiseRowsParams(lanes=1, max_d=16, max_tokens=1 << 20)
    found = quantiser.golden({"t": 12, "features": 32, "d": 16}, {"i": x})
    inputs = {
        "i_p": shares["o_p"],
        "i_sum": shares["o_sum"],
        "i_v": found["o_x"],
        "i_v_scale": found["o_scale"],
    }
    out = params.golden(bounds, inputs)["o"].reshape(3, 2, 2, 16)
    wide = scores.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    exact = np.einsum("htgl,lhd->thgd", weights.reshape(2, 3, 2, 12), x.reshape(12, 2, 16).astype(np.float64))
    m, e = split_scale(found["o_scale"])
    greatest = np.abs(x).max()
    bound = (m * 2.0**e).max() / 2 + greatest * (12 * 0.5 / 65535 + 2.0**-13 + 2.0**-14 + 12 * 2.0**-15)
    assert np.abs(out - exact).max() <= bound


def test_the_streams_are_those_of_softmax_and_quantiser() -> None:
    params = _params(8, 4, group=3, width=2)
    bounds = {"heads": 2, "t": 3, "length": 10}
    softmax = AttentionSoftmaxParams(lanes=4, max_length=40)
    given = softmax.outputs({"rows": 18, "length": 10})
    taken = params.inputs(bounds)
    assert same_stream(taken["i_p"], given["o_p"])
    assert same_stream(taken["i_sum"], given["o_sum"])
    quantiser = QuantiseRowsParams(lanes=2, max_d=8, max_tokens=99)
    step = {"heads": 2, "t": 1, "length": 10}
    assert same_stream(params.outputs(step)["o"], quantiser.inputs({"t": 1, "features": 48, "d": 8})["i"])


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (4, 1, 1), (1, 2, 3), (3, 2, 5), (4, 1, 7), (2, 2, 24), (5, 1, 2)]
)
@pytest.mark.parametrize(("dims", "changes"), [(4, {"group": 2}), (8, {"width": 1}), (2, {"width": 2})])
def test_promises(dims: int, changes: dict[str, int], shape: tuple[int, int, int]) -> None:
    """Rows shorter and longer than their results; contexts of one row and of several."""
    params = _params(dims, 2, **changes)
    check_promises(params, *_case(params, np.random.default_rng(8), *shape))


def test_a_long_context_takes_a_tile_a_cycle() -> None:
    """Tiles follow one another without a gap over rows, contexts and descriptors."""
    params = _params(4, 1, group=2)
    cases = [_case(params, np.random.default_rng(9), 2, 2, 24) for _ in range(2)]
    result = check_golden(params, cases)
    assert np.diff(result.cycles["i_v"]).max() == np.diff(result.cycles["i_p"]).max() == 1


@pytest.mark.parametrize(("held", "port"), [("o", "i_v"), ("i_v", "i_p"), ("i_p", "i_v_scale")])
def test_waits(held: str, port: str) -> None:
    """While one port does not move, others move as far as there is room, no further."""
    params = _params(4, 1)
    bounds, inputs = _case(params, np.random.default_rng(10), 4, 10, 8)
    golden = encode_port(params.outputs(bounds)["o"], params.golden(bounds, inputs)["o"])
    streams = {name: encode_port(it, inputs[name]) for name, it in params.inputs(bounds).items()}
    streams["i_descriptor"] = [descriptor_word(params, bounds)]
    result = run(params.build(), streams, {"o": len(golden)}, hold={held: 300})
    assert result.tokens["o"] == golden
    # All tiles but the last of the row behind those whose results have room; places for p; two contexts.
    rows = params.queue.depth // 4
    count = {"i_v": 8 * rows + 7, "i_p": 32, "i_v_scale": 2 * 8}[port]
    assert sum(cycle < 300 for cycle in result.cycles[port]) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "lanes", "changes"),
    sampled(
        [
            (64, 1, {"group": 3}),
            (64, 2, {"group": 3, "width": 4}),
            (16, 4, {"width": 16, "p_bits": 16}),
            (12, 3, {}),
        ],
        [(64, 2, {"group": 3, "width": 4}), (16, 4, {"width": 16, "p_bits": 16})],
    ),
)
def test_long_sweeps(dims: int, lanes: int, changes: dict[str, int]) -> None:
    """In Verilator: many descriptors, long rows, random stalls."""
    params = _params(dims, lanes, **{"max_length": 300} | changes)
    simulator = StreamSimulator(params.build())
    rng = np.random.default_rng(10 + lanes)
    for turn, (sources, sinks) in enumerate(((0.0, 0.0), (0.1, 0.1), (0.5, 0.0), (0.0, 0.5))):
        cases = _cases(params, rng, 20)
        check_golden(params, cases, Stalls(seed=turn, sources=sources, sinks=sinks), simulator=simulator)
    for length in (299, 20):
        check_promises(params, *_case(params, rng, 3, 3, length), simulator=simulator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": 0}, "AttentionValues.dims is 0; 1 to 1024 are allowed"),
        ({"p_bits": 7}, "AttentionValues.p_bits is 7; 8 to 16 are allowed"),
        ({"p_bits": 17}, "AttentionValues.p_bits is 17; 8 to 16 are allowed"),
        ({"width": 0}, "AttentionValues.width is 0; it must be a divisor of dims, 4"),
        ({"width": 3}, "AttentionValues.width is 3; it must be a divisor of dims, 4"),
        (
            {"p_bits": 16, "max_length": 1 << 18},
            "AttentionValues.max_length is 262144; sums of p_bits = 16 then have 65 bits, 64 are allowed",
        ),
    ],
)
def test_bad_params(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _params(**{"dims": 4, "lanes": 2} | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 0}, "AttentionValues: heads is 0; it must be at least 1"),
        ({"t": 17}, "AttentionValues: t is 17; it must be 1 to 63 rows, not 68"),
        ({"length": 25}, "AttentionValues: length is 25; it must be 1 to 24"),
    ],
)
def test_bad_bounds(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _params(4, 2, group=2).describe({"heads": 2, "t": 1, "length": 5} | change)
    assert str(caught.value) == message
