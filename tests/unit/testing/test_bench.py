"""The bench and the monitor: right components pass, and every kind of fault is found and named."""

import pytest
from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.fifo.queue import QueueParams
from streamgen.gateware.stream import JoinParams, RegisterSliceParams
from streamgen.testing.bench import BenchError, Simulated, Stalls, StuckError, random_tokens, run
from streamgen.testing.monitor import StreamLawError, StreamMonitor

TOKENS = random_tokens(8, 40)


class Broken(wiring.Component):
    """A register between `i` and `o` with one fault."""

    def __init__(self, fault):
        self._fault = fault
        super().__init__({"i": In(stream.Signature(8)), "o": Out(stream.Signature(8)), "level": Out(1)})

    def elaborate(self, platform):
        m = Module()
        payload = Signal(8)
        count = Signal(8)
        seen_ready = Signal()
        m.d.comb += [
            self.i.ready.eq(~self.level | (self.o.valid & self.o.ready)),
            self.o.valid.eq(self.level),
            self.o.payload.eq(payload),
        ]
        with m.If(self.i.ready):
            m.d.sync += [self.level.eq(self.i.valid), payload.eq(self.i.payload)]
            m.d.sync += count.eq(count + self.i.valid)
        match self._fault:
            case "valid falls":
                with m.If(self.o.valid & ~self.o.ready & (count == 5)):
                    m.d.sync += self.level.eq(0)
            case "payload changes":
                with m.If(self.o.valid & ~self.o.ready & (count == 7)):
                    m.d.sync += payload.eq(payload + 1)
            case "valid waits for ready":
                m.d.comb += self.o.valid.eq(self.level & self.o.ready)
            case "valid waits for a register that waits for ready":
                m.d.sync += seen_ready.eq(self.o.ready)
                m.d.comb += self.o.valid.eq(self.level & seen_ready)
            case "token lost":
                with m.If(self.i.ready & (count == 3)):
                    m.d.sync += self.level.eq(0)
            case "token twice":
                with m.If(self.o.valid & self.o.ready & (count == 39)):
                    m.d.sync += [self.level.eq(1), count.eq(count + 1)]
                    m.d.comb += self.i.ready.eq(0)
            case "token afterwards":
                with m.If(~self.i.valid & (count < 60) & ~self.level):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count == 50):
                        m.d.sync += self.level.eq(1)
        return m


def test_right_component_passes(stalls):
    result = run(Broken(None), {"i": TOKENS}, {"o": 40}, stalls=stalls, probes=["level"])
    assert result.tokens == {"o": TOKENS}
    assert len(result.cycles["i"]) == len(result.cycles["o"]) == 40
    busy = {cycle for start, end in zip(result.cycles["i"], result.cycles["o"], strict=True)
            for cycle in range(start + 1, end + 1)}  # fmt: skip
    assert [cycle for cycle, level in enumerate(result.probes["level"]) if level] == sorted(busy)


def test_without_stalls_a_token_moves_each_cycle():
    result = run(Broken(None), {"i": TOKENS}, {"o": 40})
    assert result.cycles == {"i": list(range(40)), "o": list(range(1, 41))}
    assert result.offered == {"o": list(range(1, 41))}


def test_a_simulated_component_begins_anew_in_each_run():
    """Registers and memory hold what an earlier run has left, also one that was stuck."""
    for make in (lambda: Broken("token lost"), lambda: QueueParams(bits=8, depth=20).build()):
        simulated, several = Simulated(make()), [TOKENS[:9], TOKENS[5:25], TOKENS[:9]]
        for tokens in several:
            arguments = {"i": tokens}, {"o": len(tokens)}
            found = [_outcome(component, *arguments) for component in (simulated, make())]
            assert found[0] == found[1]


def _outcome(component, inputs, outputs):
    """What a run returns, or the message of its error."""
    try:
        return run(component, inputs, outputs, stalls=Stalls(seed=3, sources=0.4, sinks=0.6), watchdog=99)
    except StuckError as error:
        return str(error)


def test_valid_that_falls():
    with pytest.raises(StreamLawError) as error:
        run(Broken("valid falls"), {"i": TOKENS}, {"o": 40}, hold={"o": 0}, stalls=Stalls(seed=5, sinks=1.0))
    assert "stream 'o'" in str(error.value)
    assert "token 4: valid fell before the token was taken (Stalls(seed=5" in str(error.value)


def test_payload_that_changes():
    with pytest.raises(StreamLawError) as error:
        run(Broken("payload changes"), {"i": TOKENS}, {"o": 40}, stalls=Stalls(seed=6, sinks=1.0))
    before, after = TOKENS[6], (TOKENS[6] + 1) & 255
    assert f"token 6: payload changed from {before:#x} to {after:#x} before" in str(error.value)
    assert "seed=6" in str(error.value)


@pytest.mark.parametrize(
    "fault", ["valid waits for ready", "valid waits for a register that waits for ready"]
)
@pytest.mark.parametrize("seed", range(3))
def test_valid_that_waits_for_ready(fault, seed):
    with pytest.raises((StuckError, StreamLawError)) as error:
        run(Broken(fault), {"i": TOKENS}, {"o": 40}, stalls=Stalls(seed=seed, sinks=0.5), watchdog=200)
    if fault == "valid waits for ready":
        assert "the sink waits for valid before it raises ready: valid must not wait for ready" in str(
            error.value
        )


def test_valid_that_waits_for_ready_is_never_offered_to_a_held_sink():
    right = run(Broken(None), {"i": TOKENS}, {"o": 40}, hold={"o": 30})
    wrong = run(Broken("valid waits for ready"), {"i": TOKENS}, {"o": 40}, hold={"o": 30})
    assert right.offered["o"][0] == 1
    assert wrong.offered["o"][0] == 30


def test_lost_token_is_a_stuck_run_and_the_table_says_who_waits():
    with pytest.raises(StuckError) as error:
        run(Broken("token lost"), {"i": TOKENS}, {"o": 40}, stalls=Stalls(seed=9), watchdog=50)
    assert str(error.value).splitlines() == [
        "no token moved for 50 cycles, at cycle 90 (Stalls(seed=9, sources=0.0, sinks=0.0))",
        "stream  valid ready  tokens left",
        "i           0     1  0 of 40         the component waits, and no token is left",
        "o           0     1  1 of 40         the bench waits for the component",
    ]


def test_component_that_does_not_take_is_named():
    with pytest.raises(StuckError) as error:
        run(JoinParams(bits=(8, 8)).build(), {"i_0": [1, 2], "i_1": [3]}, {"o": 2}, watchdog=20)
    assert "i_0         1     0  1 of 2          the component does not take the token" in str(error.value)


@pytest.mark.parametrize("fault", ["token twice", "token afterwards"])
def test_token_too_many(fault):
    with pytest.raises(BenchError) as error:
        run(Broken(fault), {"i": TOKENS}, {"o": 40})
    assert "stream 'o', cycle " in str(error.value)
    assert "a token too many, 40 expected" in str(error.value)


def test_stream_inside_is_watched():
    class Outer(wiring.Component):
        i: In(stream.Signature(8))
        o: Out(stream.Signature(8))

        def __init__(self, fault):
            super().__init__()
            self.inner = Broken(fault)

        def elaborate(self, platform):
            m = Module()
            m.submodules.inner = self.inner
            m.submodules.after = after = RegisterSliceParams(bits=8).build()
            wiring.connect(m, wiring.flipped(self.i), self.inner.i)
            wiring.connect(m, self.inner.o, after.i)
            wiring.connect(m, after.o, wiring.flipped(self.o))
            return m

    outer = Outer("payload changes")
    with pytest.raises(StreamLawError) as error:
        run(
            outer,
            {"i": TOKENS},
            {"o": 40},
            stalls=Stalls(seed=1, sinks=1.0),
            watch={"inner.o": outer.inner.o},
        )
    assert "stream 'inner.o'" in str(error.value)
    outer = Outer("token lost")
    with pytest.raises(StuckError) as error:
        run(outer, {"i": TOKENS}, {"o": 40}, watch={"inner.o": outer.inner.o}, watchdog=30)
    assert "inner.o      0     1  39 moved        the consumer waits for the producer" in str(error.value)


def test_reset_starts_again():
    plain = run(RegisterSliceParams(bits=8).build(), {"i": TOKENS}, {"o": 40})
    reset = run(RegisterSliceParams(bits=8).build(), {"i": TOKENS}, {"o": 40}, reset_at=17)
    assert reset == plain


def test_same_seed_same_run():
    def cycles(seed):
        stalls = Stalls(seed=seed, sources=0.4, sinks=0.4)
        return run(RegisterSliceParams(bits=8).build(), {"i": TOKENS}, {"o": 40}, stalls=stalls).cycles

    assert cycles(3) == cycles(3)
    assert cycles(3) != cycles(4)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, {"o": 1}, "the inputs of RegisterSlice are ['i'], not []"),
        ({"i": [], "x": []}, {"o": 1}, "the inputs of RegisterSlice are ['i'], not ['i', 'x']"),
        ({"i": []}, {}, "the outputs of RegisterSlice are ['o'], not []"),
        ({"i": [3, 256]}, {"o": 2}, "token 1 of 'i' is 0x100; the stream has 8 bits"),
        ({"i": [-1]}, {"o": 1}, "token 0 of 'i' is -0x1; the stream has 8 bits"),
    ],
)
def test_bad_arguments(inputs, outputs, message):
    with pytest.raises(ValueError) as error:
        run(RegisterSliceParams(bits=8).build(), inputs, outputs)
    assert str(error.value) == message


@pytest.mark.parametrize("field", ["sources", "sinks"])
def test_bad_stalls(field):
    with pytest.raises(ValueError) as error:
        Stalls(seed=0, **{field: 1.5})
    assert str(error.value) == f"{field} is 1.5; a probability from 0 to 1 is needed"


def test_monitor_counts_and_forgets_on_reset():
    monitor = StreamMonitor("s")
    assert [monitor.observe(c, v, r, 7) for c, (v, r) in enumerate([(0, 1), (1, 0), (1, 1), (1, 1)])] == [
        False, False, True, True,
    ]  # fmt: skip
    assert monitor.tokens == 2
    assert not monitor.observe(4, 1, 0, 8)
    monitor.reset()
    assert not monitor.observe(0, 0, 1, 9)
    assert monitor.tokens == 0
