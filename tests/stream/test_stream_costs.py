"""What the blocks of streamgen.stream promise to cost covers what synthesis finds."""

from sim.synthesis import synthesise
from streamgen.stream import (
    CountdownParams,
    ForkParams,
    GatherParams,
    JoinParams,
    RegisterSliceParams,
    RouteParams,
    ScatterParams,
    SelectParams,
)

# params, LUT levels allowed
BLOCKS = [
    (RegisterSliceParams(bits=32, stages=2), 2),
    (ForkParams(bits=32, branches=9, fan_out=4), 3),
    (JoinParams(bits=(8,) * 20), 4),
    (CountdownParams(bits=32), 5),
    (SelectParams(bits=32, ports=6), 5),
    (RouteParams(bits=32, ports=6), 5),
    (GatherParams(bits=32, slots=8), 2),
    (GatherParams(bits=32, slots=8, token_bits=16), 5),
    (ScatterParams(bits=32, slots=8), 3),
    (ScatterParams(bits=32, slots=8, token_bits=16), 5),
]


def test_costs_cover_synthesis():
    found = synthesise(*(params.build() for params, _ in BLOCKS))
    for (params, levels), result in zip(BLOCKS, found, strict=True):
        assert result.resources.ff <= params.resources.ff, params
        assert result.resources.lut <= params.resources.lut, params
        assert params.resources.lut <= 2 * result.resources.lut + 16, params
        assert result.levels <= levels, (params, result.path)
