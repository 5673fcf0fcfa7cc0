"""Single kernels, converters, FIFOs, DMAs under cocotb in Icarus: other hosts, memory and simulator."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

import sim.cocotb_dma
from sim.cocotb_dma import Copy
from sim.cocotb_streams import CocotbSimulator
from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import DeviceError
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.rtl import to_verilog
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.package.cosim.tools import built, run
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.testing.bench import Stalls, random_tokens
from streamgen.testing.kernel import check_golden, descriptor_word
from tests.shared.campaigns import sampled
from tests.unit.kernels.test_kernels_conform import KERNELS

pytestmark = pytest.mark.slow
SAMPLE = ("silu", "column-w4", "rms-norm", "softmax", "pingpong", "route")


@pytest.mark.parametrize("name", sampled(list(KERNELS), SAMPLE))
def test_kernel(name: str, seed: int) -> None:
    """All cases back to back, without pauses and with many, and again after a reset."""
    params, cases, _ = KERNELS[name]
    simulator = CocotbSimulator(params.build(), "icarus")
    check_golden(params, cases, simulator=simulator)
    check_golden(params, cases, Stalls(seed=seed, sources=0.4, sinks=0.4), simulator=simulator, reset_at=40)


@pytest.mark.parametrize("depth", [1, 2, 17])
def test_fifo(depth: int, seed: int) -> None:
    simulator = CocotbSimulator(QueueParams(bits=72, depth=depth).build(), "icarus")
    tokens = random_tokens(72, 100, seed)
    stalls = Stalls(seed=seed, sources=0.5, sinks=0.5)
    assert simulator.run({"i": tokens}, {"o": 100}, stalls=stalls).tokens == {"o": tokens}


def test_a_token_too_many_is_found(seed: int) -> None:
    """So that the tests above say something; and one too few."""
    simulator = CocotbSimulator(QueueParams(bits=8, depth=2).build(), "icarus")
    with pytest.raises(DeviceError, match="1 tokens too many"):
        simulator.run({"i": [1, 2, 3]}, {"o": 2})
    with pytest.raises(DeviceError, match="SimTimeoutError"):
        simulator.run({"i": [1, 2]}, {"o": 3}, watchdog=50)


@pytest.mark.parametrize(("dtype", "shape"), [("f24", (2, 3)), ("i4", (12, 32)), ("i12", (1, 5))])
def test_load_and_store(dtype: str, shape: tuple[int, ...], tmp_path: Path, seed: int) -> None:
    """Transfers of several lengths back to back, the same image behind the store as before the load."""
    layout, random = MemoryLayout(dtype, shape), Random(seed)
    load = LoadParams(layout=layout, max_tokens=1000, prefetch=64, **MEMORY)
    store = StoreParams(layout=layout, max_tokens=1000, depth=64, **MEMORY)
    (tmp_path / "top.v").write_text(to_verilog(Copy(load, store)))
    runner = built("icarus", [tmp_path / "top.v"], "top", tmp_path / "build")
    image, expected, words = bytearray(64 * 512), bytearray(b"\xff" * 64 * 512), []
    first = random.randrange(60)
    for k, count in enumerate((1, 40, random.randrange(2, 60))):
        itensor = ITensor(shape, dtype, (count,), (shape[0],), ((0,),) + ((),) * (len(shape) - 1))
        content = layout.pack(itensor, _values(itensor, seed + k))
        for place in (image, expected):
            place[64 * first : 64 * first + len(content)] = content
        bounds = {"itensor": itensor, "offset": first}
        words.append((descriptor_word(load, bounds), descriptor_word(store, bounds)))
        first += layout.beats(count) + random.choice((0, 7))
    loads, stores = zip(*words, strict=True)
    told = {"source": 4096 * 5, "target": 4096 * 60, "image": image.hex(), "seed": seed}
    (tmp_path / "job.json").write_text(json.dumps(told | {"loads": loads, "stores": stores}))
    given = {sim.cocotb_dma.JOB: str(tmp_path / "job.json")}
    run(runner, "top", sim.cocotb_dma.__name__, tmp_path / "build", given)
    assert (tmp_path / "answer.bin").read_bytes() == bytes(expected)


def _values(itensor: ITensor, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if itensor.dtype == "f24":
        return formats.round_f24(generator.normal(size=itensor.shape))
    half = 1 << formats.bits(itensor.dtype) - 1
    return generator.integers(-half, half, itensor.shape).astype(formats.numpy_dtype(itensor.dtype))
