"""Masters and registers held to AXI by checkers that are not ours, under stalls, responses in any order."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import sim.axi_traffic
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import DeviceError
from streamgen.package.cosim import Simulator, write_bench
from streamgen.package.cosim.tools import built, run
from streamgen.package.folder import packaged
from tests.shared.accelerators import tiny
from tests.shared.decoders import tiny_accelerator

Traffic = Callable[[str, int, int], str]


def traffic(package: Path, simulator: Simulator = "verilator") -> Traffic:
    """Runs a test of `sim.axi_traffic` on the kernel of a package: its name, COUNT, SEED; what it prints."""
    ((folder, manifest),) = packaged(package)
    sources, work = [folder / name for name in manifest.verilog_files], package.with_name("work")
    runner = built(simulator, sources, manifest.top, work)

    def go(test: str, count: int, seed: int) -> str:
        given = {"COUNT": str(count), "SEED": str(seed)}
        given |= {"STREAMGEN_BENCH": str(folder / "cocotb"), "STREAMGEN_PACKAGE": str(folder)}
        run(runner, manifest.top, sim.axi_traffic.__name__, work, given, test)
        return (work / "run.log").read_text()

    return go


def with_bench(accelerator: Accelerator, place: Path) -> Path:
    """Its package, with runs to repeat."""
    package = accelerator.package(place / "card")
    write_bench(package)
    return package


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    """One channel, three clients."""
    return traffic(with_bench(tiny(), tmp_path_factory.mktemp("rules")))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    """Two layers on two channels: weights, KV cache, tables."""
    return traffic(with_bench(tiny_accelerator(), tmp_path_factory.mktemp("rules")))


def transactions(text: str) -> int:
    """Bursts and accesses of registers that were seen."""
    found = re.search(r"(\d+) bursts, (\d+) accesses", text)
    assert found is not None
    return int(found[1]) + int(found[2])


@pytest.mark.slow
def test_transactions(small: Traffic, seed: int) -> None:
    assert transactions(small("transactions", 80, seed)) >= 80


@pytest.mark.slow
def test_soft_resets(small: Traffic, seed: int) -> None:
    assert " resets have met a run" in small("soft_resets", 10, seed)


@pytest.mark.campaign
@pytest.mark.parametrize("design", ["small", "decoder"])
def test_ten_thousand_transactions(design: str, request: pytest.FixtureRequest, seed: int) -> None:
    go: Traffic = request.getfixturevalue(design)
    assert transactions(go("transactions", 10_000, seed)) >= 10_000


@pytest.mark.campaign
@pytest.mark.parametrize("design", ["small", "decoder"])
def test_two_hundred_soft_resets(design: str, request: pytest.FixtureRequest, seed: int) -> None:
    go: Traffic = request.getfixturevalue(design)
    assert " of 200 resets have met a run" in go("soft_resets", 200, seed)


DROPPED = ".m_axi__arvalid(wanted)"
WIRES = """  wire wanted; reg [1:0] tick = 0;
  always @(posedge ap_clk) tick <= tick + 1;
  assign m_axi_gmem0_arvalid = wanted & tick[1];
"""
READY = ".m_axi__arready(m_axi_gmem0_arready"
LONG = "  assign m_axi_gmem0_arlen = 255;\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "more", "message"),
    [
        (".m_axi__arvalid(m_axi_gmem0_arvalid)", DROPPED, WIRES, "ARVALID deasserted before handshake"),
        (".m_axi__wlast(m_axi_gmem0_wlast)", ".m_axi__wlast()", "  assign m_axi_gmem0_wlast = 0;\n", "last"),
        (
            ".m_axi__arlen(m_axi_gmem0_arlen)",
            ".m_axi__arlen()",
            "  assign m_axi_gmem0_arlen = 255;\n",
            "4 KiB",
        ),
    ],
)
def test_a_breach_is_found(
    tmp_path: Path, old: str, new: str, more: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the tests above say something."""
    package = with_bench(tiny(), tmp_path)
    text = (package / "design.v").read_text()
    assert text.count(old) == 1
    start = text.index("\nmodule tiny(")
    end = text.index("endmodule", start)
    text = (text[:end] + more + text[end:]).replace(old, new)
    if new == DROPPED:  # nobody takes what is not offered
        assert text.count(f"{READY})") == 1
        text = text.replace(f"{READY})", f"{READY} & tick[1])")
    (package / "design.v").write_text(text)
    monkeypatch.setenv("PATIENCE", "5000")
    with pytest.raises(DeviceError, match=message):
        traffic(package, "icarus")("transactions", 20, 1)
