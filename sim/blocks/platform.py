"""Clients and masters of memory, DMAs, and what controls a run."""

from typing import Any

from sim.blocks.cases import Case
from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.contract import Field
from streamgen.itensor import ITensor
from streamgen.platform.control.control import ControlParams
from streamgen.platform.control.counters import CountersParams
from streamgen.platform.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.platform.control.registers import ControlRegistersParams
from streamgen.platform.control.sequencer import SequencerParams
from streamgen.platform.control.status import StatusWriterParams
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams

__all__ = ["MASTERS", "clients", "control", "dmas"]

MASTERS = ((1, 0), (0, 1), (1, 1), (3, 0), (4, 2), (6, 3), (12, 1), (16, 16))


def clients() -> list[Any]:
    return [
        *(
            ReadClientParams(depth=d, burst=b)
            for d, b in ((16, 1), (64, 16), (64, 64), (512, 64), (4096, 64))
        ),
        *(ReadClientParams(depth=d, burst=64, under_way=u) for d, u in ((512, 139), (1024, 139))),
        *(WriteClientParams(depth=d, burst=b) for d, b in ((16, 8), (64, 64), (128, 64), (512, 16))),
    ]


def dmas() -> list[Case]:
    cases: list[Case] = []
    for dtype, shape in (
        ("f24", (1, 1)),
        ("f24", (1, 3)),
        ("f24", (1, 16)),
        ("i4", (4, 32)),
        ("i4", (16, 32)),
        ("i8", (4, 1, 2)),
        ("i8", (8, 32)),
        ("f24", (2, 16)),
    ):
        layout = MemoryLayout(dtype, shape)
        bounds = {"itensor": ITensor(shape, dtype, (4,), (1,), ((0,), *[()] * (len(shape) - 1))), "offset": 0}
        for tokens in (20, 9000):
            cases += [(LoadParams(layout=layout, max_tokens=tokens, **MEMORY), bounds)]
            cases += [(StoreParams(layout=layout, max_tokens=tokens, **MEMORY), bounds)]
    layout = MemoryLayout("f24", (1, 4))
    bounds = {"itensor": ITensor((1, 4), "f24", (4,), (1,), ((0,), ())), "offset": 0}
    cases += [
        (LoadParams(layout=layout, max_tokens=1 << 20, prefetch=n, **MEMORY), bounds) for n in (64, 2048)
    ]
    cases += [
        (StoreParams(layout=layout, max_tokens=1 << 20, depth=n, burst=16, **MEMORY), bounds)
        for n in (32, 512)
    ]
    return cases


def control() -> list[Any]:
    fields = (Field("offset", 32), Field("tokens", 16), Field("k", 10))
    targets = (
        Target(fields=fields),
        Target(fields=fields, constants=(("k", 5),)),
        Target(fields=fields, constants=(("offset", 0), ("tokens", 3), ("k", 5))),
        Target(fields=fields[:1]),
        Target(fields=fields, depth=1),
        Target(fields=fields, constants=(("offset", 0), ("tokens", 3), ("k", 5)), depth=1),
    )
    names = ("table", "status", "x", "y", *(f"weights_{k}" for k in range(28)))
    return [
        *targets,
        *(DescriptorBusParams(targets=(targets * 40)[:n]) for n in (1, 3, 10, 40, 70)),
        *(CountersParams(nodes=n, depths=d) for n, d in ((1, ()), (6, (1, 16, 500)), (40, (2, 64) * 25))),
        *(ControlRegistersParams(pointers=names[:n]) for n in (2, 6, 16, 32)),
        *(SequencerParams(targets=n, completions=s) for n, s in ((3, 1), (40, 2), (200, 8))),
        *(StatusWriterParams(counters=n, design_hash=0x0123_4567_89AB_CDEF) for n in (0, 30, 400)),
        *(
            ControlParams(
                pointers=names[:pointers],
                targets=targets,
                completions=completions,
                counters=counters,
                channels=channels,
                design_hash=0x0123_4567_89AB_CDEF,
            )
            for pointers, targets, completions, counters, channels in ((4, 5, 1, 12, 1), (12, 60, 3, 250, 9))
        ),
    ]
