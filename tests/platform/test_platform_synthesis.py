"""After synthesis no path is longer than 8 LUT levels and no block takes more than it promises."""

import pytest

from sim.synthesis import synthesise
from streamgen.contract import Field
from streamgen.control.control import ControlParams
from streamgen.control.counters import CountersParams
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.itensor import ITensor
from streamgen.packing import MemoryLayout
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams

FIELDS = (Field("offset", 32), Field("tokens", 16), Field("k", 10))
SHELL = [
    ReadClientParams(depth=512),
    ReadClientParams(depth=64),
    WriteClientParams(),
    ChannelMasterParams(readers=1, writers=1),
    ChannelMasterParams(readers=6, writers=3),
    CountersParams(nodes=6, depths=(1, 16, 500)),
    DescriptorBusParams(targets=(Target(fields=FIELDS), Target(fields=FIELDS, constants=(("k", 5),))) * 5),
    ControlParams(
        pointers=("table", "status", "x", "y", "weights_0", "weights_1"),
        targets=40,
        stores=2,
        counters=150,
        channels=8,
        design_hash=0x0123_4567_89AB_CDEF,
    ),
]
DMAS = [
    (kind, dtype, shape)
    for kind in (LoadParams, StoreParams)
    for dtype, shape in (("f24", (1, 16)), ("f24", (1, 1)), ("i4", (16, 32)))
]


@pytest.mark.slow
def test_shell():
    for params, found in zip(SHELL, synthesise(*(params.build() for params in SHELL)), strict=True):
        check(params, params.resources, found)


@pytest.mark.slow
def test_dmas():
    built = [kind(layout=MemoryLayout(dtype, shape), max_tokens=9000) for kind, dtype, shape in DMAS]
    for params, found in zip(built, synthesise(*(params.build() for params in built)), strict=True):
        layout = params.layout
        rank = len(layout.element_shape)
        itensor = ITensor(layout.element_shape, layout.dtype, (4,), (1,), ((0,), *[()] * (rank - 1)))
        check(params, params.cost({"itensor": itensor, "offset": 0}).resources, found)


def check(params, promised, found):
    assert found.levels <= 8, (params, found.path)
    for name in ("lut", "ff", "dsp", "bram", "uram"):
        assert getattr(found.resources, name) <= getattr(promised, name), (params, name, found.resources)
