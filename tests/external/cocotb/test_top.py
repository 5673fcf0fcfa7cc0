"""The demo block under cocotb: cocotbext-axi is the host, the Python model is the memory.

The same host code runs on both simulated devices, so results and all that the hardware counted are equal.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from sim.cocotb_device import CocotbDevice
from streamgen.model.frontend import default_checkpoint, load_feed_forward
from streamgen.runtime import Execution


@pytest.mark.campaign  # `test_compiled` holds small designs to the same
def test_feed_forward(tmp_path: Path) -> None:
    """Real weights, one token."""
    module = load_feed_forward(default_checkpoint(), layer=0)
    config = streamgen.CompileConfig(
        name="feed_forward", goal="small", max_tokens=16, multipliers=768, channels=4
    )
    accelerator = streamgen.compile(module, (torch.zeros(16, 576),), config=config)
    folder = accelerator.write(tmp_path / "feed_forward")
    x = np.random.default_rng(0).normal(size=(1, 576)).astype(np.float32)
    statuses = []
    for maker in (None, CocotbDevice):
        with Execution(folder, maker) as execution:
            (y,) = execution.run(x)
            assert y.tobytes() == accelerator.golden(x).tobytes()
            statuses.append(execution.statuses)
    assert statuses[0] == statuses[1]
