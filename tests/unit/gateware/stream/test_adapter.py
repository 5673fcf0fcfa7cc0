"""streamgen.gateware.stream gather and scatter: narrow to wide and back, with and without descriptors."""

import pytest

from streamgen.gateware.stream import GatherParams, ScatterParams
from streamgen.testing.bench import Stalls, random_tokens, run

WIDTHS = [(1, 1), (8, 1), (1, 5), (24, 2), (32, 16)]
TRANSFERS = [1, 0, 5, 16, 3, 32, 0, 0, 17, 2, 1]


def pack(tokens, bits):
    return sum(token << bits * k for k, token in enumerate(tokens))


def chunks(tokens, slots):
    return [tokens[k : k + slots] for k in range(0, len(tokens), slots)]


def gather_words(params, tokens, transfers):
    """Words that Gather must give, transfer by transfer."""
    words = []
    for count in transfers:
        for chunk in chunks(tokens[:count], params.slots):
            if len(chunk) == params.slots or params.partial == "emit":
                words.append(pack(chunk, params.bits))
        tokens = tokens[count:]
    return words


def scatter_tokens(params, tokens, transfers):
    """Words for Scatter whose dropped part is ones, and the tokens it must give."""
    words = []
    for count in transfers:
        for chunk in chunks(tokens[:count], params.slots):
            padding = [(1 << params.bits) - 1] * (params.slots - len(chunk))
            words.append(pack(chunk + padding, params.bits))
        tokens = tokens[count:]
    return words


@pytest.mark.parametrize(("bits", "slots"), WIDTHS)
def test_gather_endless(bits, slots, stalls):
    params = GatherParams(bits=bits, slots=slots)
    tokens = random_tokens(bits, 12 * slots)
    result = run(params.build(), {"i": tokens}, {"o": 12}, stalls=stalls)
    assert result.tokens["o"] == [pack(chunk, bits) for chunk in chunks(tokens, slots)]
    if stalls is None:
        assert result.cycles["i"] == list(range(12 * slots))
        assert result.cycles["o"] == [(k + 1) * slots - 1 + params.latency for k in range(12)]


@pytest.mark.parametrize(("bits", "slots"), WIDTHS)
@pytest.mark.parametrize("partial", ["emit", "drop"])
def test_gather_transfers(bits, slots, partial, stalls):
    params = GatherParams(bits=bits, slots=slots, token_bits=6, partial=partial)
    tokens = random_tokens(bits, sum(TRANSFERS))
    words = gather_words(params, tokens, TRANSFERS)
    result = run(params.build(), {"i_descriptor": TRANSFERS, "i": tokens}, {"o": len(words)}, stalls=stalls)
    assert result.tokens["o"] == words


def test_gather_loses_no_cycle_between_transfers():
    params = GatherParams(bits=8, slots=4, token_bits=8)
    result = run(params.build(), {"i_descriptor": [6, 1, 4], "i": random_tokens(8, 11)}, {"o": 4})
    assert result.cycles["i"] == list(range(1, 12))
    assert result.cycles["o"] == [5, 7, 8, 12]


@pytest.mark.parametrize(("bits", "slots"), WIDTHS)
def test_scatter_endless(bits, slots, stalls):
    params = ScatterParams(bits=bits, slots=slots)
    tokens = random_tokens(bits, 12 * slots)
    words = [pack(chunk, bits) for chunk in chunks(tokens, slots)]
    result = run(params.build(), {"i": words}, {"o": len(tokens)}, stalls=stalls)
    assert result.tokens["o"] == tokens
    if stalls is None:
        assert result.cycles["o"] == [k + params.latency for k in range(12 * slots)]


@pytest.mark.parametrize(("bits", "slots"), WIDTHS)
def test_scatter_transfers(bits, slots, stalls):
    params = ScatterParams(bits=bits, slots=slots, token_bits=6)
    tokens = random_tokens(bits, sum(TRANSFERS))
    words = scatter_tokens(params, tokens, TRANSFERS)
    result = run(params.build(), {"i_descriptor": TRANSFERS, "i": words}, {"o": len(tokens)}, stalls=stalls)
    assert result.tokens["o"] == tokens


def test_scatter_loses_no_cycle_between_transfers():
    params = ScatterParams(bits=8, slots=4, token_bits=8)
    tokens = random_tokens(8, 11)
    words = scatter_tokens(params, tokens, [6, 1, 4])
    result = run(params.build(), {"i_descriptor": [6, 1, 4], "i": words}, {"o": 11})
    assert result.cycles["o"] == list(range(1, 12))
    assert result.cycles["i"] == [0, 4, 6, 7]


@pytest.mark.parametrize("params_class", [GatherParams, ScatterParams])
def test_offers_without_ready_and_forgets_on_reset(params_class):
    params = params_class(bits=8, slots=2, token_bits=4)
    tokens = random_tokens(8, 9)
    if params_class is GatherParams:
        inputs, expected = tokens, gather_words(params, tokens, [4, 5])
    else:
        inputs, expected = scatter_tokens(params, tokens, [4, 5]), tokens
    streams = {"i_descriptor": [4, 5], "i": inputs}
    held = run(params.build(), streams, {"o": len(expected)}, hold={"o": 40})
    assert held.offered["o"][0] < 4
    assert held.tokens["o"] == expected
    for reset_at in range(1, 12, 2):
        stalls = Stalls(seed=reset_at, sinks=0.5)
        result = run(params.build(), streams, {"o": len(expected)}, stalls=stalls, reset_at=reset_at)
        assert result.tokens["o"] == expected


@pytest.mark.parametrize(("params_class", "name"), [(GatherParams, "gather"), (ScatterParams, "scatter")])
@pytest.mark.parametrize(("field", "least"), [("bits", 1), ("slots", 1), ("token_bits", 0)])
def test_bad_params(params_class, name, field, least):
    with pytest.raises(ValueError) as error:
        params_class(**{"bits": 4, "slots": 2, field: least - 1})
    assert str(error.value) == f"{field} of a {name} must be at least {least}, not {least - 1}"


def test_bad_partial():
    with pytest.raises(ValueError) as error:
        GatherParams(bits=4, slots=2, partial="keep")
    assert str(error.value) == "partial of a gather must be 'emit' or 'drop', not 'keep'"
