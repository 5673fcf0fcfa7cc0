"""The stream simulator gives the same tokens in the same cycles as the bench, and the same errors."""

from typing import Any

import pytest
from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.kernels.moves.fork import ForkParams
from streamgen.testing.bench import BenchError, Stalls, StuckError, random_tokens, run
from streamgen.testing.monitor import StreamLawError
from streamgen.testing.stream_simulator import StreamSimulator


class Faulty(wiring.Component):
    """A register stage that passes tokens on. The upper bits of its tokens select a law to break."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        passed = Signal(4)
        late = Signal(3)
        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.i.ready):
            m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += passed.eq(passed + 1)
        waits = (passed == 2) & self.o.valid & ~self.o.ready
        with m.Switch(self.i.payload[6:]):
            with m.Case(1), m.If(waits):
                m.d.sync += self.o.valid.eq(0)
            with m.Case(2), m.If(waits):
                m.d.sync += self.o.payload.eq(self.o.payload + 1)
            with m.Case(3), m.If(~self.i.valid & (passed == 5) & (late < 2)):
                m.d.sync += [self.o.valid.eq(1), late.eq(late + 1)]
        return m


@pytest.fixture(scope="module")
def faulty() -> StreamSimulator:
    return StreamSimulator(Faulty())


@pytest.fixture(scope="module")
def fork() -> tuple[ForkParams, StreamSimulator]:
    params = ForkParams(token_bits=70, ways=3, max_tokens=64)
    return params, StreamSimulator(params.build())


INPUTS = {"i_descriptor": [30, 34], "i": random_tokens(70, 64)}
OUTPUTS = {f"o_{way}": 64 for way in range(3)}


def test_the_same_cycles_as_the_bench(fork):
    params, simulator = fork
    assert simulator.run(INPUTS, OUTPUTS) == run(params.build(), INPUTS, OUTPUTS)


@pytest.mark.parametrize("reset_at", [None, 0, 1, 29, 60])
def test_the_same_tokens_under_stalls(fork, stalls, reset_at):
    _, simulator = fork
    result = simulator.run(INPUTS, OUTPUTS, stalls=stalls, reset_at=reset_at)
    assert all(tokens == INPUTS["i"] for tokens in result.tokens.values())
    again = simulator.run(INPUTS, OUTPUTS, stalls=stalls, reset_at=reset_at)
    assert again == result
    assert (max(result.cycles["i"]) > 100) == (stalls is not None)


def tokens(fault: int, count: int = 5) -> list[int]:
    return [64 * fault + k for k in range(count)]


def test_a_sound_stage_passes(faulty, stalls):
    assert faulty.run({"i": tokens(0)}, {"o": 5}, stalls=stalls).tokens == {"o": tokens(0)}


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (1, StreamLawError, "token 2: valid fell before the token was taken (Stalls(seed="),
        (2, StreamLawError, "token 2: payload changed from 0x82 to 0x83 before the token was taken (Stalls("),
        (3, BenchError, ": a token too many, 5 expected (Stalls(seed="),
    ],
)
def test_broken_laws_are_named(faulty, fault, kind, message):
    with pytest.raises(kind) as error:
        for seed in range(20):
            faulty.run({"i": tokens(fault)}, {"o": 5}, stalls=Stalls(seed=seed, sinks=0.6))
    assert str(error.value).startswith("stream 'o', cycle ")
    assert message in str(error.value)


def test_a_stuck_run_prints_a_table(fork):
    _, simulator = fork
    with pytest.raises(StuckError) as error:
        simulator.run({**INPUTS, "i": INPUTS["i"][:-1]}, OUTPUTS, watchdog=50)
    assert str(error.value).splitlines() == [
        "no token moved for 50 cycles, at cycle 114 (Stalls(seed=0, sources=0.0, sinks=0.0))",
        "stream        valid ready  tokens left",
        "i_descriptor      0     0  0 of 2",
        "i                 0     1  0 of 63",
        "o_0               0     1  1 of 64",
        "o_1               0     1  1 of 64",
        "o_2               0     1  1 of 64",
    ]


def test_bad_arguments(faulty):
    with pytest.raises(ValueError, match=r"^the inputs of Faulty are \['i'\], not \['j'\]$"):
        faulty.run({"j": []}, {"o": 1})
    with pytest.raises(ValueError, match=r"^token 1 of 'i' is 0x100; the stream has 8 bits$"):
        faulty.run({"i": [1, 256]}, {"o": 2})
