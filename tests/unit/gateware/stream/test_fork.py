"""streamgen.gateware.stream.fork: every branch gets every token, at its own time."""

import pytest

from streamgen.gateware.stream import FanoutParams
from streamgen.testing.bench import Stalls, random_tokens, run


@pytest.mark.parametrize(
    ("branches", "fan_out", "tree"),
    [
        (1, 2, ((1,),)),
        (2, 8, ((2,),)),
        (8, 8, ((8,),)),
        (9, 8, ((2,), (5, 4))),
        (5, 2, ((2,), (2, 1), (2, 2, 1))),
    ],
)
@pytest.mark.parametrize("bits", [1, 40])
def test_every_branch_gets_every_token(branches, fan_out, tree, bits, stalls):
    params = FanoutParams(bits=bits, branches=branches, fan_out=fan_out)
    assert params.tree == tree
    assert params.latency == params.levels == len(tree)
    tokens = random_tokens(bits, 60)
    outputs = {f"o_{k}": 60 for k in range(branches)}
    result = run(params.build(), {"i": tokens}, outputs, stalls=stalls)
    for port in outputs:
        assert result.tokens[port] == tokens
        if stalls is None:
            assert result.cycles[port] == [t + params.latency for t in range(60)]


@pytest.mark.parametrize("fan_out", [2, 8])
def test_branch_runs_ahead_of_one_that_stops(fan_out):
    params = FanoutParams(bits=8, branches=4, fan_out=fan_out)
    outputs = {f"o_{k}": 20 for k in range(4)}
    result = run(params.build(), {"i": random_tokens(8, 20)}, outputs, hold={"o_3": 50})
    assert result.offered["o_3"][0] == params.latency
    ahead = [sum(cycle < 50 for cycle in result.cycles[f"o_{k}"]) for k in range(3)]
    held = sum(cycle < 50 for cycle in result.cycles["i"])
    assert held == 2 * params.levels
    assert ahead[2] == 1 and ahead[0] == (1 if fan_out == 8 else 3)


def test_reset_forgets_tokens():
    tokens = random_tokens(8, 40)
    outputs = {f"o_{k}": 40 for k in range(3)}
    for reset_at in (2, 3, 11, 30):
        stalls = Stalls(seed=reset_at, sinks=0.6)
        component = FanoutParams(bits=8, branches=3, fan_out=2).build()
        result = run(component, {"i": tokens}, outputs, stalls=stalls, reset_at=reset_at)
        assert all(result.tokens[port] == tokens for port in outputs)


@pytest.mark.parametrize(("field", "least"), [("bits", 1), ("branches", 1), ("fan_out", 2)])
def test_bad_params(field, least):
    with pytest.raises(ValueError) as error:
        FanoutParams(**{"bits": 4, "branches": 2, field: least - 1})
    assert str(error.value) == f"{field} of a fork must be at least {least}, not {least - 1}"
