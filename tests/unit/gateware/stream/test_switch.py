"""streamgen.gateware.stream.switch: Select (n -> 1) and Route (1 -> n) follow their descriptors."""

from random import Random

import pytest

from streamgen.gateware.stream import RouterParams, SelectorParams, descriptor_layout
from streamgen.testing.bench import Stalls, StuckError, random_tokens, run


def transfers(params, count, seed):
    """Random (port, tokens) pairs, zero and one among them, and their words."""
    random = Random(seed)
    pairs = [(random.randrange(params.ports), random.choice((0, 1, 1, 2, 3, 17))) for _ in range(count)]
    layout = descriptor_layout(params.descriptor_fields())
    return pairs, [layout.const({"port": port, "tokens": tokens}).as_bits() for port, tokens in pairs]


def run_select(params, pairs, words, **options):
    inputs = {}
    cursor = dict.fromkeys(range(params.ports), 0)
    expected = []
    for port in range(params.ports):
        total = sum(tokens for p, tokens in pairs if p == port)
        inputs[f"i_{port}"] = random_tokens(params.bits, total, port)
    for port, tokens in pairs:
        expected += inputs[f"i_{port}"][cursor[port] : cursor[port] + tokens]
        cursor[port] += tokens
    result = run(params.build(), {"i_descriptor": words, **inputs}, {"o": len(expected)}, **options)
    assert result.tokens["o"] == expected
    return result


def run_route(params, pairs, words, **options):
    tokens = random_tokens(params.bits, sum(count for _, count in pairs))
    expected = {f"o_{port}": [] for port in range(params.ports)}
    position = 0
    for port, count in pairs:
        expected[f"o_{port}"] += tokens[position : position + count]
        position += count
    counts = {port: len(part) for port, part in expected.items()}
    result = run(params.build(), {"i_descriptor": words, "i": tokens}, counts, **options)
    assert result.tokens == expected
    return result


@pytest.mark.parametrize(("bits", "ports"), [(1, 2), (24, 3), (64, 9)])
@pytest.mark.parametrize(
    ("params_class", "runner"), [(SelectorParams, run_select), (RouterParams, run_route)]
)
def test_follows_descriptors(params_class, runner, bits, ports, stalls):
    params = params_class(bits=bits, ports=ports, token_bits=5)
    runner(params, *transfers(params, 25, seed=ports), stalls=stalls)


@pytest.mark.parametrize(
    ("params_class", "runner"), [(SelectorParams, run_select), (RouterParams, run_route)]
)
def test_no_cycle_between_transfers(params_class, runner):
    params = params_class(bits=8, ports=2)
    layout = descriptor_layout(params.descriptor_fields())
    pairs = [(0, 1), (1, 1), (0, 5), (1, 3), (1, 2), (0, 1)]
    words = [layout.const({"port": port, "tokens": tokens}).as_bits() for port, tokens in pairs]
    result = runner(params, pairs, words)
    moved = sorted(
        cycle for port, cycles in result.cycles.items() if port.startswith("o") for cycle in cycles
    )
    assert moved == list(range(1, 14))
    assert result.cycles["i_descriptor"] == [0, 1, 2, 7, 10, 12]


@pytest.mark.parametrize(
    ("params_class", "runner"), [(SelectorParams, run_select), (RouterParams, run_route)]
)
def test_reset_forgets_the_choice(params_class, runner):
    params = params_class(bits=8, ports=3)
    for reset_at in (1, 5, 20):
        pairs, words = transfers(params, 12, seed=reset_at)
        runner(params, pairs, words, stalls=Stalls(seed=reset_at, sources=0.3, sinks=0.3), reset_at=reset_at)


def test_port_that_does_not_exist_stops_and_is_reported():
    params = RouterParams(bits=8, ports=3, token_bits=4)
    with pytest.raises(StuckError) as error:
        run(
            params.build(),
            {"i_descriptor": [3 | 1 << 2], "i": [7]},
            {"o_0": 0, "o_1": 0, "o_2": 1},
            watchdog=50,
        )
    assert "i                 1     0  1 of 1          the component does not take the token" in str(
        error.value
    )


@pytest.mark.parametrize(("params_class", "name"), [(SelectorParams, "selector"), (RouterParams, "router")])
@pytest.mark.parametrize(("field", "least"), [("bits", 1), ("ports", 2), ("token_bits", 1)])
def test_bad_params(params_class, name, field, least):
    with pytest.raises(ValueError) as error:
        params_class(**{"bits": 4, "ports": 2, field: least - 1})
    assert str(error.value) == f"{field} of a {name} must be at least {least}, not {least - 1}"
