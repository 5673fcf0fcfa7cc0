"""streamgen.gateware.stream.join: one token of every input, concatenated."""

import pytest

from streamgen.gateware.stream import JoinParams
from streamgen.testing.bench import random_tokens, run


@pytest.mark.parametrize("widths", [(1,), (8, 8), (1, 33, 7), (16,) * 12])
def test_concatenates(widths, stalls):
    inputs = {f"i_{k}": random_tokens(bits, 80, k) for k, bits in enumerate(widths)}
    result = run(JoinParams(bits=widths).build(), inputs, {"o": 80}, stalls=stalls)
    expected = []
    for tokens in zip(*inputs.values(), strict=True):
        word = shift = 0
        for token, bits in zip(tokens, widths, strict=True):
            word |= token << shift
            shift += bits
        expected.append(word)
    assert result.tokens["o"] == expected
    if stalls is None:
        assert result.cycles["o"] == list(range(80))


def test_takes_nothing_until_all_are_there():
    inputs = {"i_0": random_tokens(4, 10), "i_1": random_tokens(4, 10, 1)}
    result = run(JoinParams(bits=(4, 4)).build(), inputs, {"o": 10}, hold={"i_1": 30})
    assert result.cycles["i_0"] == result.cycles["i_1"] == result.cycles["o"] == list(range(30, 40))


@pytest.mark.parametrize("bits", [(), (4, 0)])
def test_bad_params(bits):
    with pytest.raises(ValueError) as error:
        JoinParams(bits=bits)
    assert str(error.value) == f"bits of a join must be a width of at least 1 for each input, not {bits}"
