"""The boards' numbers against the facts they come from, and boards as values."""

import json
from dataclasses import asdict, replace
from fractions import Fraction

import pytest
import torch

import streamgen
from streamgen import cli
from streamgen.compiler.config import CompileConfig
from streamgen.contract.cost import Resources
from streamgen.platform.boards import BOARDS, DEFAULT_BOARD, ULTRASCALE_PLUS, board_of, shell_of
from streamgen.platform.boards.cards import U50, U55C, U280


def test_sums_over_slrs():
    assert U55C.resources == Resources(lut=1_131_000, ff=2_265_000, bram=1776, uram=960, dsp=8304)
    assert U280.resources == Resources(lut=1_069_000, ff=2_150_000, bram=1487, uram=960, dsp=8490)


def test_a_shell_takes_as_much_of_a_u50_as_of_a_u55c():
    """An assumption: both parts without what their shells leave, to a thousand LUTs and registers an SLR."""
    whole = {U55C: Resources(lut=1_303_680, ff=2_607_360, bram=2016, uram=960, dsp=9024)}
    whole[U50] = Resources(lut=870_720, ff=1_743_360, bram=1344, uram=640, dsp=5952)
    taken, assumed = (total + board.resources * -1 for board, total in whole.items())
    assert (assumed.bram, assumed.uram, assumed.dsp) == (taken.bram, taken.uram, taken.dsp)
    assert abs(assumed.lut - taken.lut) < 2000 and abs(assumed.ff - taken.ff) < 2000


def test_a_u50_gives_a_design_the_same_share_of_its_data_sheet():
    hbm = U50.hbm
    assert hbm.channels * hbm.channel_bytes == 8 << 30 and hbm.data_sheet == 316e9
    assert hbm.rate / hbm.data_sheet == pytest.approx(U280.hbm.rate / U280.hbm.data_sheet, rel=1e-6)


@pytest.mark.parametrize(("board", "size"), [(U55C, 16 << 30), (U280, 8 << 30)])
def test_memory(board, size):
    assert board.hbm.channels * board.hbm.channel_bytes == size
    assert board.hbm.channels * board.hbm.channel_rate == pytest.approx(425e9, rel=0.002)
    assert board.memory_bits == (board.resources.bram * 36 + board.resources.uram * 288) * 1024


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_board(board):
    """What holds of any card."""
    config = CompileConfig(board=board.name)
    assert config.card is board and len({slr.name for slr in board.slrs}) == len(board.slrs)
    assert board.hbm.channels * board.hbm.channel_rate <= 460e9
    assert 0 < board.channel().rate <= 1 and board.room > 0 and board.memory_bits > 0
    assert board.resources.bram * 1024 * 36 < board.memory_bits
    estimated = streamgen.estimate(torch.nn.Linear(64, 64), torch.zeros(1, 64), config)
    assert estimated.board == board.name and estimated.tokens_per_second(estimated.passes[0]) > 0
    if board.shell is not None:
        assert shell_of(board) is board.shell
    else:
        with pytest.raises(ValueError, match=rf"^board '{board.name}' has no shell to link kernels to"):
            shell_of(board)


@pytest.mark.parametrize(("clock", "rate"), [(250.0, 0.83), (300.0, 0.69), (100.0, 1.0)])
def test_memory_rate(clock, rate):
    assert float(U55C.hbm.beats_per_cycle(clock)) == pytest.approx(rate, abs=0.005)


def test_rate_is_exact():
    assert U55C.hbm.beats_per_cycle(300.0) == Fraction(133, 192)
    assert U55C.channel() == (133 / 192, 100)


@pytest.mark.parametrize(("bytes_per_second", "clock"), [(9_136_521_739, 300.0), (13_300_000_000, 300.1)])
def test_rates_are_short_fractions(bytes_per_second, clock):
    """Predictions count in the denominator: with 19,200,000,000 they would not end."""
    rate = replace(U55C.hbm, channel_rate=bytes_per_second).beats_per_cycle(clock)
    assert rate.denominator <= 1 << 20
    assert float(rate) == pytest.approx(bytes_per_second / (64e6 * clock), rel=1e-6)


def test_weights_of_the_fabric_are_those_of_the_default_board():
    offered, (brams, urams) = DEFAULT_BOARD.resources, ULTRASCALE_PLUS.brams_of_urams
    assert offered.bram * urams == offered.uram * brams
    assert round(offered.lut / offered.dsp) == ULTRASCALE_PLUS.luts_of_a_dsp
    assert ULTRASCALE_PLUS.uram_bits == 288 * 1024


@pytest.mark.parametrize("name", ["channels", "channel_bytes", "channel_rate", "latency"])
def test_a_board_has_memory(name):
    with pytest.raises(ValueError, match=rf"^{name} of the memory of a board must be at least 1, not 0$"):
        replace(U55C.hbm, **{name: 0})


def test_bad_clock():
    with pytest.raises(ValueError, match=r"^clock_mhz must be above 0, not 0$"):
        U55C.hbm.beats_per_cycle(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hbm": None}, "board 'u55c' has no memory (hbm); designs read their weights from it"),
        ({"fill": 0}, "fill of board 'u55c' must be above 0 and at most 1, not 0"),
        (
            {"hbm": replace(U55C.hbm, slr="SLR7")},
            "the memory of board 'u55c' lies at SLR7; its SLRs are ['SLR0', 'SLR1', 'SLR2']",
        ),
    ],
)
def test_bad_boards(changes, message):
    with pytest.raises(ValueError) as error:
        replace(U55C, **changes)
    assert str(error.value) == message


def test_by_name():
    assert BOARDS["u55c"] is U55C and BOARDS["u280"] is U280
    for name, board in BOARDS.items():
        assert board.name == name and board_of(name) is board
    mine = replace(U280, name="mine")
    assert board_of(mine) is mine
    with pytest.raises(ValueError, match=rf"^no board is called 'u250'; known are {', '.join(BOARDS)}$"):
        board_of("u250")


def test_config():
    mine = replace(U280, name="mine", hbm=replace(U280.hbm, channels=4))
    assert CompileConfig().card is U55C
    assert CompileConfig(board="u280").card is U280
    assert CompileConfig(board=mine, channels=4).card is mine
    with pytest.raises(ValueError, match=r"^CompileConfig.channels is 6; it must be None or 1 to 4$"):
        CompileConfig(board=mine, channels=6)
    with pytest.raises(ValueError, match=r"^CompileConfig.board: no board is called 'u250'; known are"):
        CompileConfig(board="u250")


@pytest.mark.parametrize("board", ["u280", replace(U280, name="mine", watts=100.0)])
def test_stored(board):
    config = CompileConfig(board=board)
    assert CompileConfig(**json.loads(json.dumps(asdict(config)))) == config


def test_restored():
    for board in BOARDS.values():
        assert board_of(json.loads(json.dumps(asdict(board)))) == board
    with pytest.raises(ValueError, match=r"^board: expected the fields .*: missing .*'slrs'"):
        board_of({"name": "u55c"})


def test_command_line(capsys):
    """A board is given by name; for one that is none, those that are known are named."""
    source = ["examples/mlp.py:mlp", "-o", "mlp"]
    assert cli.main(["compile", *source, "--board", "u250"]) != 0
    assert f"no board is called 'u250'; known are {', '.join(BOARDS)}" in "".join(capsys.readouterr())
    with cli.streamgen.commands["compile"].make_context("compile", [*source, "--board", "u280"]) as context:
        assert context.params["board"] == "u280"
