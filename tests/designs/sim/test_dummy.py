"""sim.dummy: golden, curves and cost hold; everything due in a cycle waits for everything else."""

from random import Random

import numpy as np
import pytest

from sim.dummy import DummyParams, Piece
from streamgen.testing.bench import random_tokens
from streamgen.testing.conformance import check
from streamgen.testing.kernel import Case, check_golden, check_promises
from streamgen.testing.stream_simulator import StreamSimulator

PARAMS = DummyParams(inputs_bits=(13, 64), outputs_bits=(48, 1, 32))


@pytest.fixture(scope="module")
def simulator() -> StreamSimulator:
    return StreamSimulator(PARAMS.build())


def random_piece(random: Random) -> Piece:
    longest = {"wait": 40, "bursts": 4, "pitch": 20, "length": 5, "period": 7}
    return Piece(**{name: random.randint(1, random.choice((1, most))) for name, most in longest.items()})


def random_bounds(random: Random) -> dict[str, list[Piece]]:
    return {port: [random_piece(random) for _ in range(random.randint(1, 3))] for port in PARAMS.widths}


def case_of(bounds: dict[str, list[Piece]]) -> Case:
    """The case with random tokens; ports without pieces move one token."""
    bounds = {port: bounds.get(port, [Piece()]) for port in PARAMS.widths}
    return bounds, {
        port: np.array(random_tokens(PARAMS.widths[port], itensor.token_count), np.uint64)
        for port, itensor in PARAMS.inputs(bounds).items()
    }


def test_matches_golden(simulator, stalls, seed):
    random = Random(seed)
    check_golden(PARAMS, [case_of(random_bounds(random)) for _ in range(40)], stalls, simulator=simulator)


@pytest.mark.parametrize("number", range(20))
def test_promises(simulator, number, seed):
    bounds = random_bounds(Random(100 * seed + number))
    bounds["i_1"] = bounds["i_1"][:2]
    last = {port: int(curve.cycles()[-1]) for port, curve in PARAMS.curves(bounds).items()}
    # the last token is one taken: the next descriptor comes with it
    bounds["i_1"].append(Piece(wait=max(1, max(last.values()) - last["i_1"])))
    check_promises(PARAMS, *case_of(bounds), simulator=simulator)


def test_extremes(simulator):
    """The longest of everything: the descriptor's fields and the counters hold it."""
    longest = Piece(wait=255, bursts=127, pitch=127, length=127, period=7)
    case = case_of({"i_0": [longest], "o_1": [Piece(), Piece(wait=255), longest]})
    assert PARAMS.cost(case[0]).cycles == 1 + 255 + 255 + 126 * (126 * 7 + 127) + 126 * 7 + 1
    check_golden(PARAMS, [case, case_of({})], simulator=simulator)


def test_conforms():
    random = Random(5)
    params = DummyParams(inputs_bits=(8,), outputs_bits=(8, 33), pieces=2)
    cases: list[Case] = []
    for _ in range(2):
        # what comes last is a token taken, so that the next descriptor comes in time
        bounds = {
            "i_0": [Piece(wait=3, bursts=4, pitch=random.randint(1, 9)), Piece(wait=200)],
            "o_0": [random_piece(random)],
            "o_1": [Piece(wait=9, length=random.randint(1, 5))],
        }
        cases.append((bounds, {"i_0": np.array(random_tokens(8, 5), np.uint64)}))
    check(params, cases, aspects=["golden", "reset", "promises", "verilog"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Piece(wait=0), "wait of a piece must be 1 to 255, not 0"),
        (lambda: Piece(period=8), "period of a piece must be 1 to 7, not 8"),
        (
            lambda: DummyParams(inputs_bits=(), outputs_bits=(8,)),
            "a dummy has at least one input and one output",
        ),
        (
            lambda: DummyParams(inputs_bits=(8,), outputs_bits=(65,)),
            "bits of a dummy's port must be 1 to 64, not 65",
        ),
        (
            lambda: DummyParams(inputs_bits=(8,), outputs_bits=(8,), pieces=0),
            "pieces of a dummy must be at least 1, not 0",
        ),
        (
            lambda: PARAMS.describe(dict.fromkeys(PARAMS.widths, [Piece()] * 4)),
            "i_0 of a dummy has 1 to 3 pieces, not 4",
        ),
    ],
)
def test_bad_params(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
