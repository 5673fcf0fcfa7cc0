"""kernels.matmul.resident: rtl == golden, one read of the weights, clocks, resources, and bad params."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from sim.axi import AxiBench
from streamgen.contract import Bounds
from streamgen.kernels.matmul.quick_dot import QuickDotParams
from streamgen.kernels.matmul.resident import ResidentParams
from streamgen.kernels.matmul.resident_image import pack, unpack
from streamgen.numbers.weights import FORMATS
from streamgen.platform.axi import AxiSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.testing.bench import Simulated
from streamgen.testing.clocks import check_clocks
from streamgen.testing.kernel import descriptor_word, encode_port
from streamgen.testing.synthesis import check_all
from tests.unit.kernels.matmul.matmul_cases import column, operands
from tests.unit.platform.rig import BASE, channel

OFFSET = 3  # beats in front of the weights
SIZES: dict[str, dict[str, Any]] = {
    "jet 0": {"n_lanes": 16, "max_k": 32, "max_n": 64, "minimum": True, "bias": True},
    "two groups": {"n_lanes": 4, "max_k": 64, "max_n": 16, "minimum": True, "bias": True},
    "jet 2": {"n_lanes": 8, "max_k": 64, "max_n": 8, "formats": ("w8",), "scale_bits": 0, "bias": True},
    "one row": {"n_lanes": 1, "max_k": 32, "max_n": 3},
    "one tile": {"n_lanes": 5, "max_k": 32, "max_n": 5, "bias": True},
    "bytes": {"n_lanes": 8, "max_k": 96, "max_n": 16, "formats": ("w8",), "scale_bits": 0, "bias": True},
    "decoded": {"n_lanes": 3, "max_k": 64, "max_n": 6, "formats": ("mxfp4",), "bias": True},
    "no scales": {"n_lanes": 2, "max_k": 64, "max_n": 4, "scale_bits": 0},
    "long rows": {"n_lanes": 2, "max_k": 1056, "max_n": 4, "formats": ("w8",), "scale_bits": 0},
    "groups of 64": {"n_lanes": 2, "max_k": 128, "max_n": 6, "group": 64, "minimum": True},
}
RECTIFIED = ("jet 2", "long rows", "one tile")


def params_of(name: str, **changes: Any) -> ResidentParams:
    chosen = column(max_t=20, **SIZES[name], **changes)
    sums = chosen.minimum or name == "one row"
    return ResidentParams(column=chosen, sums=sums, relu=name in RECTIFIED)


class Alone(wiring.Component):
    """The kernel with a channel master of its own."""

    def __init__(self, params: ResidentParams) -> None:
        self.kernel: Any = params.build()
        super().__init__({"m_axi": Out(AxiSignature())})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.kernel = self.kernel
        m.submodules.master = master = ChannelMasterParams(readers=1, writers=0).build()
        wiring.connect(m, self.kernel.memory, master.read_0)
        wiring.connect(m, wiring.flipped(self.m_axi), master.m_axi)
        m.d.comb += self.kernel.base.eq(BASE)
        return m


class Case:
    """Executions of random rows with one set of weights. rows: of each execution."""

    def __init__(self, params: ResidentParams, rows: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.params = params
        bounds = params.of_column({"t": sum(rows)})
        arrays = operands(params.column, bounds, rng)
        weights = {port[2:]: arrays[port] for port in ("i_w", "i_r", "i_s") if port in arrays}
        self.image = pack(params, **weights)
        for name, array in unpack(params, self.image).items():
            np.testing.assert_array_equal(array, weights[name], err_msg=name)
        self.several: list[tuple[Bounds, Mapping[str, np.ndarray]]] = []
        at = 0
        for t in rows:
            inputs = {port: arrays[port][at : at + t] for port in ("i_x", "i_e")}
            self.several.append(({"t": t, "offset": OFFSET}, {**inputs, "memory": self.image}))
            expected = params.column.golden({**bounds, "t": t}, {**arrays, **inputs})["o_y"]
            if params.relu:
                expected = np.where(expected > 0, expected, np.float32(0))
            golden = params.golden(*self.several[-1])["o"]
            assert golden.tobytes() == expected.tobytes()
            at += t


def run(simulated: Simulated, case: Case, seed: int = 0, chance: float = 0.0) -> int:
    """Beats read in a run, whose results must be those of golden. chance: of a pause of a stream."""
    alone: Any = simulated.component
    params, kernel = case.params, alone.kernel
    bench = AxiBench(simulated, seed=seed, chance=chance)
    image = bytearray(OFFSET * 64) + bytearray(case.image.tobytes())
    memory = bench.memory(alone.m_axi, channel({BASE: image}, rate=Fraction(7, 10), latency=100))
    tokens: dict[str, list[int]] = {"i_descriptor": [], "i_x": [], "i_e": []}
    expected: list[int] = []
    for bounds, inputs in case.several:
        tokens["i_descriptor"].append(descriptor_word(params, bounds))
        for port, itensor in params.inputs(bounds).items():
            tokens[port] += encode_port(itensor, inputs[port])
        expected += encode_port(params.outputs(bounds)["o"], params.golden(bounds, inputs)["o"])
    for port, words in tokens.items():
        bench.source(getattr(kernel, port), words, port)
    found = bench.sink(kernel.o, len(expected), "o")
    bench.run()
    assert found.tokens == expected
    return sum(burst[3] for burst in memory.bursts)


@pytest.mark.parametrize("name", SIZES)
def test_results_are_those_of_golden(name: str) -> None:
    """Four executions, without pauses and with more and more of them, read the weights once."""
    params = params_of(name)
    simulated = Simulated(Alone(params))
    for seed, chance in enumerate((0.0, 0.3, 0.8)):
        assert run(simulated, Case(params, [1, 3, 20, 1], seed), seed, chance) == params.beats


@pytest.mark.parametrize("name", SIZES)
def test_clocks(name: str) -> None:
    for t in (1, 7, 20):
        check_clocks(params_of(name), {"t": t, "offset": 0})


@pytest.mark.slow
def test_resources_of_lanes() -> None:
    table = FORMATS["mxfp4"].multiplicands
    lanes = [
        QuickDotParams(
            weight_bits=bits,
            rows=rows,
            scale_bits=scale,
            minimum=minimum,
            accumulator_bits=wide,
            table=decoded,
        )
        for bits, rows, scale, minimum, wide, decoded in (
            (8, 2, 0, False, 39, ()),
            (8, 1, 0, False, 39, ()),
            (4, 2, 8, True, 46, ()),
            (4, 2, 16, True, 56, ()),
            (4, 2, 0, False, 38, ()),
            (4, 2, 8, False, 46, table),
        )
    ]
    check_all([(lane, None) for lane in lanes])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_resources() -> None:
    sizes = ("jet 0", "jet 2", "two groups", "bytes", "groups of 64")
    check_all([(params_of(name), {"t": 1, "offset": 0}) for name in sizes])


def test_bad_params() -> None:
    with pytest.raises(ValueError) as caught:
        ResidentParams(column=column(t_lanes=2), sums=False)
    assert str(caught.value) == "t_lanes of a matmul with resident weights must be 1, not 2"
    with pytest.raises(ValueError) as caught:
        ResidentParams(column=column(minimum=True), sums=False)
    assert str(caught.value) == "sums of a matmul with minimums must be True, not False"


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"t": 0, "offset": 0}, "t is 0; the matmul takes 1 to 20 rows"),
        ({"t": 21, "offset": 0}, "t is 21; the matmul takes 1 to 20 rows"),
        ({"t": 1, "offset": -1}, "offset must be 0 to 2^32 - 1 beats, not -1"),
    ],
)
def test_bad_bounds(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        params_of("one tile").describe(bounds)
    assert str(caught.value) == message
