"""Written folders of the small kernel, and a cache of simulators that the tests of a session share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sim.add_one import AddOne, manifest
from streamgen.gateware.rtl import to_verilog


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with the Verilog and the manifest of `AddOne(**choices)`."""
    made: dict[str, Path] = {}

    def make(**choices: int) -> Path:
        key = repr(choices)
        if key not in made:
            folder = tmp_path_factory.mktemp("kernel")
            (folder / "design.v").write_text(to_verilog(AddOne(**choices)))
            (folder / "manifest.json").write_text(manifest(choices.get("channels", 1)).to_json())
            made[key] = folder
        return made[key]

    return make
