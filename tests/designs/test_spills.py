"""Whole designs whose phases leave everything to one another in memory, on their Verilog."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.compiler.config import CompileConfig
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.model.operations import Binary, Linear, Norm, Unary
from streamgen.numbers.formats import round_f24
from streamgen.runtime.memory import MemoryModel
from tests.shared.accelerators import values
from tests.shared.decoders import TINY, WORDS, compiled_model, tiny_decoder

SHARE = 0.05  # of the simulated cycles, by which a prediction may be off
SPILLED = CompileConfig(
    name="spilled", max_tokens=5, channels=2, multipliers=64, policy="shared", hold_bits=0
)


def _linear(n: int, k: int, seed: int) -> Linear:
    rng = np.random.default_rng((n, k, seed))
    return Linear((rng.normal(size=(n, k)) * k**-0.5).astype(np.float32), None)


def _block(seed: int) -> LogicalGraph:
    """A pre-norm block, whose input waits until its matmuls are done."""
    norm = Norm("rms", np.random.default_rng(seed).normal(size=24).astype(np.float32), 1e-5)
    return LogicalGraph(
        (Input("x", 24),),
        (
            Operation("n", norm, ("x",)),
            Operation("up", _linear(40, 24, seed), ("n",)),
            Operation("relu", Unary("relu"), ("up",)),
            Operation("down", _linear(24, 40, seed), ("relu",)),
            Operation("y", Binary("add"), ("x", "down")),
        ),
        ("y",),
    )


def _walked() -> LogicalGraph:
    layers = Repeat((_block(0), _block(2)))
    operations = (
        Operation("embedding", _linear(24, 10, 1), ("x",)),
        Operation("layers", layers, ("embedding",)),
        Operation("head", _linear(7, 24, 1), ("layers",)),
    )
    return LogicalGraph((Input("x", 10),), operations, ("head",))


def _check(accelerator: Accelerator, tokens: int, features: int) -> np.ndarray:
    """Its bits are those of golden, its cycles as predicted, for the values given back."""
    x = values(1, tokens, features, seed=tokens)
    assert accelerator.run(x).tobytes() == accelerator.golden(x).tobytes()
    cycles = accelerator.report().cycles
    assert cycles is not None and abs(accelerator.predict(tokens) - cycles) <= SHARE * cycles
    return x


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("policy", "multipliers", "spills"),
    [("shared", 64, 4), pytest.param("spatial", 512, 1, marks=pytest.mark.campaign)],
)
def test_layers_that_are_walked(tmp_path: Path, policy: Any, multipliers: int, spills: int) -> None:
    """The bits that the layers have in numpy, too; memory may answer when it likes; loaded again. A walk of
    one phase reads a value and leaves the next one."""
    config = replace(SPILLED, policy=policy, multipliers=multipliers)
    accelerator = streamgen.compile(_walked(), None, config)
    compute = exact(_walked().quantised(SPILLED.numbers(False)))
    buffers = [buffer.name for buffer in accelerator.manifest.buffers if buffer.role == "spill"]
    said = [line for line in accelerator.groups[0].notes.choices if "waits in memory" in line]
    assert len(said) == len(buffers) == spills
    for tokens in (1, 5, 3):
        x = _check(accelerator, tokens, 10)
        expected = compute({"x": round_f24(x[0])})[0]["head"]
        assert accelerator.golden(x)[0].tobytes() == expected.tobytes()
    x = values(2, 4, 10)
    slow = MemoryModel(delays=90, seed=3)
    y = accelerator.run(x, memory=slow)
    assert y.tobytes() == accelerator.golden(x).tobytes()
    again = streamgen.load(accelerator.write(tmp_path / "spilled"))
    assert str(again.graph) == str(accelerator.graph) and again.golden(x).tobytes() == y.tobytes()


class Blocks(torch.nn.Module):
    """Two layers of torch's, one with norms before, one with norms behind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            torch.nn.TransformerEncoderLayer(32, 2, 48, batch_first=True, norm_first=first)
            for first in (True, False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.campaign
def test_layers_of_torch() -> None:
    """Sequences of several lengths; probed; the streams of memory in the profile."""
    torch.manual_seed(0)
    accelerator = streamgen.compile(Blocks().eval(), torch.zeros(1, 5, 32), SPILLED)
    for tokens in (1, 4, 5):
        _check(accelerator, tokens, 32)
    x = values(1, 5, 32)
    assert accelerator.run(x, probe=True).tobytes() == accelerator.golden(x).tobytes()
    assert accelerator.probed is not None and accelerator.probed.difference is None
    (found,) = accelerator.profile(x).passes
    streams = found.streams
    for channel, moved in found.moved.items():
        for way, count in zip(("read", "write"), moved, strict=True):
            assert sum(s.bytes for s in streams if (s.channel, s.way) == (channel, way)) == count
    buffers = [buffer.name for buffer in accelerator.manifest.buffers if buffer.role == "spill"]
    assert {(name, way) for name in buffers for way in ("read", "write")} <= {
        (stream.buffer, stream.way) for stream in streams
    }


@pytest.mark.campaign
def test_a_text() -> None:
    """A prompt of two passes and two steps, texts in turn; bit for bit what the golden model says."""
    model = compiled_model(tiny_decoder(), replace(TINY, hold_bits=0), tokenizer=WORDS)
    ids = np.random.default_rng(1).integers(0, 64, 7).tolist()
    session, other = model.session(), model.session()
    text = list(session.generate(ids, 2))
    expected = model.golden.logits([*ids, *text])
    assert text == [int(expected[6].argmax()), int(expected[7].argmax())]
    np.testing.assert_array_equal(other.last_logits(ids[2:5]), model.golden.logits(ids[2:5])[2])
    np.testing.assert_array_equal(session.last_logits(text[1:]), expected[8])
    for one in model.device().passes:
        predicted = model.predict(one.tokens, one.position, one.variant)
        assert abs(predicted - one.cycles) <= SHARE * one.cycles
    model.close()
