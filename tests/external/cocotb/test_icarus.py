"""The written Verilog in Icarus, in both languages: a simulator of four values, independent of Verilator.

Results are golden's bit for bit, and no pin of the accelerator is X or Z after reset (`sim.cocotb_top`).
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from sim.cocotb_device import IcarusDevice
from streamgen.api.language_model import LanguageModel
from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError, MissingToolError
from streamgen.compiler.config import CompileConfig
from streamgen.package.cosim.tools import LANGUAGES, Language, require_icarus
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import TextDevice
from streamgen.testing.lint import lint
from tests.shared.accelerators import same, tiny, values
from tests.shared.campaigns import sampled
from tests.shared.decoders import compiled_model, random_decoder

pytestmark = pytest.mark.slow


def opened(folder: Path, language: Language, *, changed_files: bool = False) -> Execution:
    """What is written in the folder, run by Icarus."""

    def device(place: Path, manifest: Manifest) -> IcarusDevice:
        return IcarusDevice(place, manifest, language)

    return Execution(folder, device, changed_files=changed_files)


@pytest.mark.parametrize("language", sampled(LANGUAGES, ["Verilog-2005"]))
def test_module(language: Language, tmp_path: Path) -> None:
    """Two runs: the second finds in the registers what the first has left."""
    with (
        opened(tiny().write(tmp_path / "written"), language) as execution,
        Execution(tmp_path / "written") as device,
    ):
        for seed in range(2):
            x = values(1, 40, seed=seed)
            (result,) = execution.run(x)
            assert same(result, tiny().golden(x))
            device.run(x)
        assert execution.statuses == device.statuses


def test_the_shortest_reset_in_mid_run(tmp_path: Path) -> None:
    """Of registers, beats on their way, masters, table and status: nothing of the runs before is left."""
    with opened(tiny().write(tmp_path / "written"), "SystemVerilog-2012") as execution:
        assert isinstance(execution.device, IcarusDevice)
        execution.device.interruptions = [1, 2, 3, 40, 150, 300]
        x = values(1, 40)
        assert same(execution.run(x)[0], tiny().golden(x))
        assert len(execution.statuses) == 1 and execution.statuses[0].error == 0


@pytest.fixture(scope="module")
def decoder() -> LanguageModel:
    """One layer, one token a pass."""
    sizes = {"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "rotated": 16, "wide": 32}
    model = random_decoder(layers=1, vocabulary=64, context=16, **sizes)
    config = CompileConfig(name="little", max_tokens=1, context=16, channels=2, n_lanes=2, lanes=2)
    return compiled_model(model, config)


@pytest.mark.campaign
def test_decoder(decoder: LanguageModel, tmp_path: Path) -> None:
    """As Verilog-2005; `test_package_bench` runs one as SystemVerilog-2012."""
    with opened(decoder.write(tmp_path / "written"), "Verilog-2005") as execution:
        text = TextDevice(execution, decoder.vocabulary, decoder.config.context)
        logits = text.session().last_logits([5])
        assert logits.shape == (64,) and np.isfinite(logits).all()
        assert same(logits, decoder.golden([5]))


@pytest.mark.campaign  # as every variant of its blocks does
def test_decoder_passes_lint(decoder: LanguageModel) -> None:
    lint(decoder.groups[0].design.verilog, "little")


@pytest.mark.parametrize("pin", sampled(["interrupt", "m_axi_gmem0_arprot"], ["interrupt"]))
def test_an_x_fails_the_run(pin: str, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(tiny().write(tmp_path / "written"), folder)
    design = folder / "design.v"
    text = design.read_text()
    start = text.index("\nmodule tiny(")
    place = text.index("endmodule", start)
    design.write_text(f"{text[:place]}  initial #0.2 force {pin} = 'bx;\n{text[place:]}")
    execution = opened(folder, "SystemVerilog-2012", changed_files=True)
    with execution, pytest.raises(DeviceError, match=f"{pin} is X"):
        execution.run(values(1, 40))


def test_without_icarus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingToolError, match=r"Icarus Verilog: apt-get install iverilog$"):
        require_icarus()
