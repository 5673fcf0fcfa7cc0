"""streamgen.gateware.stream.register_slice: order, throughput, latency, capacity, reset."""

import pytest

from streamgen.gateware.stream import RegisterSliceParams
from streamgen.testing.bench import Stalls, random_tokens, run


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("bits", [1, 24, 512])
def test_passes_every_token(bits, stages, stalls):
    tokens = random_tokens(bits, 200)
    result = run(
        RegisterSliceParams(bits=bits, stages=stages).build(), {"i": tokens}, {"o": 200}, stalls=stalls
    )
    assert result.tokens["o"] == tokens


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_token_a_cycle_at_promised_latency(stages):
    params = RegisterSliceParams(bits=8, stages=stages)
    result = run(params.build(), {"i": random_tokens(8, 50)}, {"o": 50})
    assert params.latency == stages
    assert result.cycles["i"] == list(range(50))
    assert result.cycles["o"] == [k + stages for k in range(50)]


@pytest.mark.parametrize("stages", [1, 4])
def test_holds_two_tokens_a_stage_and_offers_without_ready(stages):
    params = RegisterSliceParams(bits=8, stages=stages)
    result = run(params.build(), {"i": random_tokens(8, 30)}, {"o": 30}, hold={"o": 100})
    assert sum(cycle < 100 for cycle in result.cycles["i"]) == 2 * stages
    assert result.offered["o"][0] == stages


@pytest.mark.parametrize("reset_at", [1, 2, 17, 40])
def test_reset_forgets_tokens(reset_at):
    tokens = random_tokens(8, 60)
    stalls = Stalls(seed=reset_at, sinks=0.7)
    result = run(
        RegisterSliceParams(bits=8).build(), {"i": tokens}, {"o": 60}, stalls=stalls, reset_at=reset_at
    )
    assert result.tokens["o"] == tokens


@pytest.mark.parametrize("field", ["bits", "stages"])
def test_bad_params(field):
    with pytest.raises(ValueError) as error:
        RegisterSliceParams(**{"bits": 4, "stages": 1, field: 0})
    assert str(error.value) == f"{field} of a register slice must be at least 1, not 0"
