"""The first networks of a lesson on their Verilog: bits of golden, near torch, in the module's own shapes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from streamgen.compiler.config import CompileConfig
from tests.shared.first_networks import NETWORKS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NETWORKS)
def test_rtl_is_golden(name: str, tmp_path: Path) -> None:
    module, example = NETWORKS[name]()
    config = CompileConfig(name=name, max_tokens=4, channels=2, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, example, config)
    again = streamgen.load(accelerator.write(tmp_path / name))
    for batch in (3, 5):  # one pass, and two
        x = torch.randn(batch, *example.shape[1:])
        with torch.no_grad():
            wanted = module(x.clone()).numpy()
        found = again.run(x)
        assert found.tobytes() == accelerator.golden(x).tobytes()
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < 0.02 * max(1, np.abs(wanted).max())
    given = accelerator.random_inputs(4, seed=1)
    assert [array.shape[1:] for array in given] == [example.shape[1:]]
    assert again.run(*given).tobytes() == accelerator.golden(*given).tobytes()
    again.close()
