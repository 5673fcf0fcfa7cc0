"""Kernels that share a card: combinations that are refused, cards that are too small, wires between SLRs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import BudgetError
from streamgen.package import package
from streamgen.package.linkage import LinkedKernel, linked, wires
from streamgen.platform.boards import Board, Slr, board_of
from tests.shared.accelerators import TINY, tiny, tiny_module
from tests.unit.package.packages import pins_of

U55C = board_of("u55c")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written. Tests do not change it."""
    return tiny().write(tmp_path_factory.mktemp("linkage") / "tiny")


def small(**change: object) -> Accelerator:
    """The tiny design with another configuration."""
    return streamgen.compile(tiny_module(), torch.zeros(1, 40), replace(TINY, **change))


@pytest.mark.slow
def test_models_that_cannot_share_a_card(written: Path, tmp_path: Path) -> None:
    def refused(kind: type[Exception], message: str, *models: object) -> None:
        with pytest.raises(kind, match=message):
            package(list(models), tmp_path / "new" / "card")
        assert not (tmp_path / "new").exists()

    refused(ValueError, "a package needs at least one accelerator")
    refused(
        ValueError,
        r"several models are called 'tiny' \(.* and .*\): compile each with its own name",
        written,
        tiny(),
    )
    slow = small(name="slow", clock_mhz=250.0)
    refused(ValueError, "'tiny' is compiled for 300 MHz, 'slow' for 250 MHz: all kernels of", written, slow)
    far = small(name="far", board=replace(U55C, name="other"))
    refused(ValueError, "for board 'u55c', 'far' for board 'other': all kernels of", written, far)


def part(name: str, board: Board, **change: object) -> LinkedKernel:
    """A kernel of the tiny design, with another name."""
    (group,) = tiny().groups
    manifest = replace(tiny().manifest, top=name)
    notes = group.notes
    given = {"slrs": notes.slrs, "instances": notes.instances, "wires": notes.wires, "meets": {}}
    return LinkedKernel(**{"folder": name, "board": board, "manifest": manifest, **given, **change})


def test_kernels_for_which_the_card_is_too_small() -> None:
    """The error of memory channels, memory and logic names the need and the limit."""
    few = replace(U55C, hbm=replace(U55C.hbm, channels=2))
    with pytest.raises(BudgetError) as caught:
        linked("card", ["."], [part(name, few) for name in "abc"])
    assert str(caught.value) == (
        "the kernels have 3 memory ports in all (a 1, b 1, c 1), and each port needs a memory channel; board "
        "'u55c' has 2 channels: compile with fewer channels"
    )
    narrow = replace(U55C, hbm=replace(U55C.hbm, channel_bytes=8192))
    with pytest.raises(BudgetError, match=r"'card' does not fit the memory of board 'u55c'(.|\n)*b\.table"):
        linked("card", ["."], [part(name, narrow) for name in "ab"])
    (group,) = tiny().groups
    own = group.notes.slrs["SLR0"]
    board = replace(U55C, fill=1.0, slrs=tuple(Slr(name=slr.name, resources=own * 1.5) for slr in U55C.slrs))
    card = linked("card", ["."], [part(name, board) for name in "abc"])
    assert [kernel.slr for kernel in card.kernels] == ["SLR0", "SLR1", "SLR2"]
    with pytest.raises(BudgetError) as caught:
        linked("card", ["."], [part(name, board) for name in "abcd"])
    text = str(caught.value)
    assert text.startswith("'card' does not fit the card. Kernels may fill 100% of each SLR")
    assert f"{round(2 * own.lut):,} of {round(1.5 * own.lut):,}!" in text and "most LUT: a " in text
    assert text.endswith("fewer models on the card, or models compiled with fewer multipliers")
    pins = wires(card, [part(name, board) for name in "abc"])[1]
    assert wires(card, [part(name, board) for name in "abc"]) == (2 * pins, pins)
    tight = replace(board, wires=2 * pins, wires_fill=0.75)
    with pytest.raises(BudgetError) as caught:
        linked("card", ["."], [part(name, tight) for name in "abc"])
    assert (
        f"wires between SLRs, of which 75% may be used: {2 * pins:,} of {2 * pins:,} between SLR0 and SLR1, "
        f"{pins:,} of {2 * pins:,} between SLR1 and SLR2\nWhat would help: " in str(caught.value)
    )
    near = [part(name, U55C) for name in "abc"]
    assert wires(linked("card", ["."], near), near) == (0, 0)
    with pytest.raises(ValueError, match="several kernels of the card would be called 'a': compile each"):
        linked("card", ["."], [part("a", U55C), part("a", U55C)])


def test_wires_of_a_kernel_away_from_the_memory(written: Path) -> None:
    """All pins of its ports count, except those that are the same in every transaction."""
    pins = pins_of(written)
    constant = ("size", "burst", "lock", "cache", "prot", "qos", "region")
    moving = {
        name: bits
        for name, bits in pins.items()
        if "_axi_" in name and not name.endswith(tuple(f"a{way}{kind}" for way in "rw" for kind in constant))
    }
    card = linked("card", ["."], [part("a", U55C), part("b", U55C)])
    far = replace(card, kernels=(replace(card.kernels[0], slr="SLR2"), card.kernels[1]))
    assert wires(far, [part("a", U55C), part("b", U55C)]) == (sum(moving.values()),) * 2
    spanned = replace(card, kernels=(replace(card.kernels[0], slr=None), card.kernels[1]))
    assert wires(spanned, [part("a", U55C, wires=(7, 5)), part("b", U55C)]) == (7, 5)
