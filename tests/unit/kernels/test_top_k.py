"""Top-k and argmax: rtl == golden, golden equal to torch, promises against measurement."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.kernels.top_k import TopKParams
from streamgen.numbers.formats import decode_ints, round_f24
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word
from streamgen.testing.stream_simulator import StreamSimulator
from tests.shared.campaigns import sampled

LARGEST = float(round_f24(np.array(3.4e38)))
NORMAL = 2.0**-126  # the least value of f24
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, LARGEST, -LARGEST, NORMAL, -NORMAL, 1.0])


SMALL = [
    (3, 1),
    (3, 4),
    *(pytest.param(lanes, k, marks=pytest.mark.slow) for lanes, k in ((1, 1), (8, 1), (1, 6), (8, 9))),
]


@lru_cache(maxsize=len(SMALL))
def simulator_of(params: TopKParams) -> StreamSimulator:
    return StreamSimulator(params.build())


def values(params: TopKParams, bounds: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Rows with ties, with special values, rising, falling; NaN in the padding."""
    shape = params.inputs(bounds)["i"].shape
    kinds = [
        rng.normal(size=shape) * 100,
        rng.integers(-2, 3, shape).astype(np.float64),
        rng.choice(SPECIAL, shape),
        rng.choice([np.nan, -np.inf], shape, p=[0.1, 0.9]),
        np.broadcast_to(np.arange(shape[1], dtype=np.float64), shape),
        np.broadcast_to(-np.arange(shape[1], dtype=np.float64), shape),
    ]
    x = np.choose(rng.integers(0, len(kinds), (shape[0], 1)), kinds)
    x[:, bounds["length"] :] = rng.choice([np.nan, np.inf, 1e30])
    return round_f24(x)


def cases_of(params: TopKParams, count: int, seed: int) -> list[Case]:
    rng = np.random.default_rng(seed)
    cases: list[Case] = []
    for k in range(count):
        length = (1, params.max_length)[k] if k < 2 else int(rng.integers(1, params.max_length + 1))
        most = min(length, params.max_k)
        bounds = {"rows": int(rng.integers(1, 5)), "length": length, "k": int(rng.integers(1, most + 1))}
        cases.append((bounds, {"i": values(params, bounds, rng)}))
    return cases


@pytest.mark.parametrize(("lanes", "max_k"), SMALL)
def test_matches_golden(lanes: int, max_k: int) -> None:
    """Random descriptors back to back, all stalls, and a reset in the middle of some."""
    params = TopKParams(lanes=lanes, max_length=60, max_k=max_k)
    cases = cases_of(params, 20, seed=lanes)
    simulator = simulator_of(params)
    for seed, (sources, sinks) in enumerate([(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3), (0.8, 0.9)]):
        check_golden(params, cases, Stalls(seed=seed, sources=sources, sinks=sinks), simulator=simulator)
    for cycle in (1, 7, 40, 101):
        check_golden(params, cases, Stalls(seed=1, sinks=0.3), simulator=simulator, reset_at=cycle)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "length", "max_k"),
    sampled(
        [(16, 262144, 1), (8, 49152, 64), (4, 49151, 64), (5, 49152, 2)], [(8, 49152, 64), (5, 49152, 2)]
    ),
)
def test_vocabularies(lanes: int, length: int, max_k: int) -> None:
    """Rows as long as vocabularies, then short ones."""
    params = TopKParams(lanes=lanes, max_length=length, max_k=max_k)
    rng = np.random.default_rng(1)
    several = [{"rows": 2, "length": length, "k": max_k}, {"rows": 200, "length": max_k, "k": max_k}]
    cases: list[Case] = [(bounds, {"i": values(params, bounds, rng)}) for bounds in several]
    simulator = StreamSimulator(params.build())
    check_golden(params, cases, simulator=simulator)
    check_golden(params, cases, Stalls(seed=1, sinks=0.5), simulator=simulator)


def test_golden_is_torch() -> None:
    """The values of torch.topk, the index of torch.argmax; of a stable sort, the order."""
    rng = np.random.default_rng(2)
    params = TopKParams(lanes=4, max_length=60, max_k=8)
    for _ in range(60):
        bounds = {"rows": 6, "length": int(rng.integers(8, 61)), "k": int(rng.integers(1, 9))}
        x = values(params, bounds, rng)
        found = params.golden(bounds, {"i": x})
        row = torch.from_numpy(x[:, : bounds["length"]].astype(np.float64))
        top = torch.topk(row, bounds["k"], dim=1).values.numpy()
        assert np.array_equal(found["o_values"], top.astype(np.float32), equal_nan=True)
        order = torch.sort(row, dim=1, descending=True, stable=True).indices.numpy()
        assert np.array_equal(found["o_indices"], order[:, : bounds["k"]])
        assert np.array_equal(found["o_indices"][:, 0], torch.argmax(row, dim=1).numpy())


def test_golden_of_extremes() -> None:
    params = TopKParams(lanes=1, max_length=6, max_k=6)
    x = round_f24(np.array([[-0.0, np.inf, 0.0, np.nan, -np.inf, np.nan], [3, 3, 3, 3, 3, 3]]))
    found = params.golden({"rows": 2, "length": 6, "k": 6}, {"i": x})
    assert found["o_indices"].tolist() == [[3, 5, 1, 0, 2, 4], [0, 1, 2, 3, 4, 5]]
    assert np.array_equal(
        found["o_values"][0], np.array([np.nan, np.nan, np.inf, 0, 0, -np.inf]), equal_nan=True
    )
    assert not np.signbit(found["o_values"][0, 3:5]).any()


@pytest.mark.parametrize(("lanes", "max_k"), SMALL)
def test_promises(lanes: int, max_k: int) -> None:
    """Argmax takes a token a cycle, rows of one token too; top-k an element a cycle."""
    params = TopKParams(lanes=lanes, max_length=60, max_k=max_k)
    simulator = simulator_of(params)
    rng = np.random.default_rng(3)
    for rows, length, k in ((1, 1, 1), (30, max_k, max_k), (3, 60, max_k), (7, 23, 1)):
        bounds = {"rows": rows, "length": length, "k": k}
        check_promises(params, bounds, {"i": values(params, bounds, rng)}, simulator=simulator)


def test_no_gap_between_descriptors() -> None:
    for max_k, period in ((1, 1), (3, 4)):
        params = TopKParams(lanes=4, max_length=40, max_k=max_k)
        result = check_golden(params, cases_of(params, 6, seed=4)[1:])
        assert set(np.diff(result.cycles["i"])) == {period}


def test_subnormals_count_as_zero() -> None:
    """Bits of exponent 0 with a fraction are no value of f24; a NaN of the other sign is a NaN."""
    params = TopKParams(lanes=2, max_length=4, max_k=4)
    word = descriptor_word(params, {"rows": 1, "length": 4, "k": 4})
    tokens = [0x807FFF << 24 | 0x000001, 0xFFC123 << 24 | 0x800000]
    result = run(params.build(), {"i_descriptor": [word], "i": tokens}, {"o_values": 4, "o_indices": 4})
    assert result.tokens["o_indices"] == [3, 0, 1, 2]
    found = decode_ints("f24", result.tokens["o_values"], (1, 1)).reshape(-1)
    assert np.array_equal(found, np.array([np.nan, 0, 0, 0]), equal_nan=True)


def test_bad_params() -> None:
    good = {"lanes": 4, "max_length": 100, "max_k": 5}
    cases = [
        ({"lanes": 0}, "lanes is 0; 1 to 32 are allowed"),
        ({"lanes": 33}, "lanes is 33; 1 to 32 are allowed"),
        ({"max_length": 0}, "max_length is 0; 1 to 1048576 are allowed"),
        ({"max_length": 1 << 21}, "max_length is 2097152; 1 to 1048576 are allowed"),
        ({"max_k": 0}, "max_k is 0; 1 to 64 are allowed"),
        ({"max_k": 65}, "max_k is 65; 1 to 64 are allowed"),
    ]
    for change, message in cases:
        with pytest.raises(ValueError) as raised:
            TopKParams(**{**good, **change})
        assert str(raised.value) == message


def test_bad_bounds() -> None:
    params = TopKParams(lanes=4, max_length=100, max_k=5)
    good = {"rows": 1, "length": 20, "k": 2}
    cases = [
        ({"rows": 0}, "rows is 0; it must be 1 to 65535"),
        ({"rows": 65536}, "rows is 65536; it must be 1 to 65535"),
        ({"length": 0}, "length is 0; it must be 1 to 100"),
        ({"length": 101}, "length is 101; it must be 1 to 100"),
        ({"k": 0}, "k is 0; it must be 1 to 5"),
        ({"k": 6}, "k is 6; it must be 1 to 5"),
        ({"length": 3, "k": 4}, "k is 4; it must be 1 to 3"),
    ]
    for change, message in cases:
        with pytest.raises(ValueError) as raised:
            params.describe({**good, **change})
        assert str(raised.value) == message
