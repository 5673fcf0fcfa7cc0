"""The register map under a host that separates, delays and strobes its writes."""

from random import Random

import pytest

from sim.axi import AxiBench
from streamgen.artifact.manifest import argument_map
from streamgen.platform.control.registers import ControlRegistersParams

POINTERS = ("table", "status", "x")
PARAMS = ControlRegistersParams(pointers=POINTERS)
CONTROL, ENABLE, IER, ISR = 0x00, 0x04, 0x08, 0x0C
START, DONE, IDLE, READY, CONTINUE = 1, 2, 4, 8, 16


class Kernel:
    """Ends each run some cycles after its start; remembers what it saw."""

    def __init__(self, registers, length):
        self.name, self.signals = "kernel", [registers.start, registers.interrupt]
        self.registers, self.length = registers, length
        self.running, self.runs, self.interrupts = 0, 0, 0

    def step(self, cycle, values, drive):
        start, interrupt = values
        self.interrupts += interrupt
        finish = 0
        if self.running:
            assert start
            self.running -= 1
            finish = int(self.running == 0)
            self.runs += finish
        elif start and not self.done_now:
            self.running = self.length
        self.done_now = finish
        drive(self.registers.finish, finish)
        return False

    done_now = 0

    def left(self):
        return "running" if self.running else ""


def run(program, length=20, seed=0, skew=False, error=0):
    registers = PARAMS.build()
    bench = AxiBench(registers, seed=seed)
    bench.host(registers.s_axi, program(), skew=skew)
    kernel = bench.add(Kernel(registers, length))

    class Error:
        name, signals = "error", ()

        def step(self, cycle, values, drive):
            drive(registers.error, error)
            return False

        def left(self):
            return ""

    bench.add(Error())
    bench.run()
    return kernel


@pytest.mark.parametrize("seed", range(4))
def test_arguments_hold_what_is_written(seed):
    """Random words with random strobes at all argument offsets read back as a byte memory would."""
    random = Random(seed)
    offsets = []
    for argument in argument_map(POINTERS):
        offsets += [argument.offset] + [argument.offset + 4] * (argument.kind == "pointer")
    memory = dict.fromkeys(offsets, 0)

    def program():
        for _ in range(40):
            offset, value, strobe = random.choice(offsets), random.getrandbits(32), random.getrandbits(4)
            for byte in range(4):
                if strobe >> byte & 1:
                    mask = 0xFF << 8 * byte
                    memory[offset] = memory[offset] & ~mask | value & mask
            yield "write", offset, value, strobe
        for offset in offsets:
            assert (yield "read", offset) == memory[offset]

    run(program, seed=seed, skew=True)


def test_odd_addresses_answer():
    def program():
        last = argument_map(POINTERS)[-1]
        for address in (0x14, last.offset + 8, 0x1FC, 0xFFC, 0xFFF):
            yield "write", address, 0xFFFFFFFF
            assert (yield "read", address) == 0
        yield "write", PARAMS.error_offset, 0
        assert (yield "read", PARAMS.error_offset) == 0x1234
        assert (yield "read", PARAMS.error_offset + 2) == 0x1234

    kernel = run(program, error=0x1234)
    assert kernel.runs == 0


@pytest.mark.parametrize("length", [1, 7, 60])
def test_chain_protocol(length):
    """Done stays until continue; a start before continue waits for it; ready falls when read."""

    def poll(bit):
        while True:
            value = yield "read", CONTROL
            if value & bit:
                return value

    def program():
        assert (yield "read", CONTROL) == IDLE
        yield "write", CONTROL, START
        value = yield from poll(DONE)
        assert value & (START | IDLE | DONE) == IDLE | DONE
        assert (yield "read", CONTROL) == IDLE | DONE  # ready has been read
        yield "write", CONTROL, START
        for _ in range(30):
            yield ("wait",)
        assert (yield "read", CONTROL) == START | DONE  # waits
        yield "write", CONTROL, CONTINUE
        value = yield from poll(DONE)
        assert value & START == 0
        yield "write", CONTROL, CONTINUE, 0b1110  # no byte written, no effect
        assert (yield "read", CONTROL) & DONE
        yield "write", CONTROL, CONTINUE
        assert (yield "read", CONTROL) == IDLE

    kernel = run(program, length=length)
    assert kernel.runs == 2


def test_start_during_a_run_is_not_a_second_run():
    def program():
        yield "write", CONTROL, START
        yield "write", CONTROL, START | 128
        while not (yield "read", CONTROL) & DONE:
            pass
        yield "write", CONTROL, CONTINUE
        for _ in range(100):
            yield ("wait",)
        assert (yield "read", CONTROL) == IDLE

    kernel = run(program, length=60)
    assert kernel.runs == 1


@pytest.mark.parametrize(("enables", "expected"), [(1, 1), (2, 2), (3, 3), (0, 0)])
def test_interrupts(enables, expected):
    def program():
        yield "write", ENABLE, 1
        yield "write", IER, enables
        assert (yield "read", IER) == enables
        yield "write", CONTROL, START
        while not (yield "read", CONTROL) & DONE:
            pass
        assert (yield "read", ISR) == expected
        yield "write", ISR, expected  # toggles back
        assert (yield "read", ISR) == 0
        yield "write", ISR, 1  # toggles up
        assert (yield "read", ISR) == 1
        yield "write", ENABLE, 0
        assert (yield "read", ENABLE) == 0

    kernel = run(program)
    assert kernel.interrupts > 0


def test_no_interrupt_without_global_enable():
    def program():
        yield "write", IER, 3
        yield "write", CONTROL, START
        while not (yield "read", CONTROL) & DONE:
            pass
        assert (yield "read", ISR) == 3

    kernel = run(program)
    assert kernel.interrupts == 0


@pytest.mark.parametrize(
    ("pointers", "message"),
    [
        (("a", "a"), "pointers must have different names: ('a', 'a')"),
        (tuple(f"p{k}" for k in range(400)), "400 pointers take 4852 bytes of registers, 4096 are there"),
    ],
)
def test_bad_params(pointers, message):
    with pytest.raises(ValueError) as error:
        ControlRegistersParams(pointers=pointers)
    assert str(error.value) == message
