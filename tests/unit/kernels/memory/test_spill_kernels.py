"""Values through memory: what is loaded is what was stored, whatever streams and memory delay."""

from random import Random
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from sim.memory import MEMORY
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.memory import SpillLayout, SpillLoadParams, SpillStoreParams
from streamgen.kernels.memory.joints import join
from streamgen.numbers.formats import encode_ints, round_f24
from streamgen.platform.axi import AxiSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.testing.kernel import descriptor_word
from tests.unit.platform.rig import BASE, channel


class Pair(wiring.Component):
    """Store and load on one channel, words between them."""

    def __init__(self, layout: SpillLayout) -> None:
        self.params = SpillStoreParams(layout=layout, **MEMORY), SpillLoadParams(layout=layout, **MEMORY)
        descriptor = descriptor_signature(self.params[0].descriptor_fields())
        token = stream.Signature(layout.token_bits)
        super().__init__(
            {
                **{"i_store": In(descriptor), "i_load": In(descriptor), "i": In(token), "o": Out(token)},
                "m_axi": Out(AxiSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        store, load = (params.build() for params in self.params)
        words = Queue(QueueParams(bits=1, depth=1))
        master = ChannelMasterParams(readers=1, writers=1).build()
        m.submodules += [store, load, words, master]
        wiring.connect(m, store.memory, master.write_0)
        wiring.connect(m, load.memory, master.read_0)
        wiring.connect(m, wiring.flipped(self.m_axi), master.m_axi)
        m.d.comb += [store.base.eq(BASE), load.base.eq(BASE)]
        join(m, self.i_store, store.i_descriptor)
        join(m, self.i_load, load.i_descriptor)
        join(m, self.i, store.i)
        join(m, store.o_stored, words.i)
        join(m, words.o, load.i_stored)
        join(m, load.o, self.o)
        return m


def _order(dtype: str, lanes: int, count: int) -> ITensor:
    return ITensor((1, lanes), dtype, (count,), (1,), ((0,), ()))


def _value(itensor: ITensor, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if itensor.dtype == "f24":
        return round_f24(rng.normal(size=itensor.shape))
    return rng.integers(-(1 << 15), 1 << 15, itensor.shape).astype(np.int16)


CASES = [("f24", 2, 0), ("f24", 16, 1), ("f24", 24, 2), ("i16", 1, 2), ("f24", 1, 1), ("f24", 2, 2)]


@pytest.mark.parametrize(("dtype", "lanes", "seed"), CASES)
def test_values_pass_through_memory(dtype: str, lanes: int, seed: int) -> None:
    """Many values, of one token, of no whole beats, of the most."""
    random = Random(f"{dtype} {lanes} {seed}")
    counts = [1, 37, *(random.randint(1, 37) for _ in range(4))]
    random.shuffle(counts)
    layout = SpillLayout(token_bits=_order(dtype, lanes, 1).token_bits, max_tokens=37, values=len(counts))
    pair = Pair(layout)
    store, load = pair.params
    image = bytearray(random.randbytes(64 * layout.value_beats * len(counts)))
    bench = AxiBench(pair, seed=seed, chance=(0.0, 0.3, 0.8)[seed])
    model = channel({BASE: image}, rate=1, latency=25, delays=seed * 30, seed=seed)
    bench.memory(pair.m_axi, model)
    memory = np.zeros(layout.order.shape, np.uint8)
    tokens, words = [], []
    for place, count in enumerate(counts):
        bounds = {"itensor": _order(dtype, lanes, count), "place": place}
        value = _value(bounds["itensor"], place + seed)
        tokens += encode_ints(dtype, bounds["itensor"].to_tokens(value))
        words.append((descriptor_word(store, bounds), descriptor_word(load, bounds)))
        stored = store.golden(bounds, {"i": value, "memory": memory})
        memory = stored["memory"]
        assert stored["o_stored"].tolist() == [1]
        assert load.golden(bounds, {"memory": memory})["o"].tobytes() == value.tobytes()
    bench.source(pair.i_store, [word for word, _ in words], "stores")
    bench.source(pair.i_load, [word for _, word in words], "loads")
    bench.source(pair.i, tokens, "i")
    sink = bench.sink(pair.o, len(tokens), "o")
    bench.run(watchdog=5000)
    assert sink.tokens == tokens
