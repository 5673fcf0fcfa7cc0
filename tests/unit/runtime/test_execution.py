"""Host code of a run, on a small device in numpy: packing, tokens, checks, errors, reset."""

import re
from dataclasses import replace

import numpy as np
import pytest

from streamgen.artifact.manifest import (
    STATUS_MAGIC,
    BoardFacts,
    Buffer,
    Counter,
    Manifest,
    MemoryPort,
    MemoryTiming,
)
from streamgen.artifact.packing import MemoryLayout
from streamgen.artifact.phase_table import Descriptor, PhaseTable, TableSection, Word
from streamgen.artifact.written import sealed
from streamgen.base.errors import CheckpointError, DeviceError, DeviceTimeoutError
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.execution import Execution

TILE, MAX_TOKENS, WIDTH, PADDED = 4, 8, 20, 32
ROWS = "itensor<1x16xf24, iter_space: [4,2]*[1,16], iter_map: (d0,d1)->(d0,d1)>"
PANELS = "itensor<1x16xf24, iter_space: [1,2,4]*[4,16,1], iter_map: (d0,d1,d2)->(d0+d2,d1)>"
BIAS = "itensor<32xi8, iter_space: []*[], iter_map: ()->(0)>"
HASH = "0123456789abcdef"

MANIFEST = Manifest(
    board=BoardFacts(name="u55c", channels=32, channel_bytes=512 << 20),
    top="top",
    verilog="design.v",
    design_hash=HASH,
    clock_mhz=300.0,
    tokens_per_tile=TILE,
    max_tokens=MAX_TOKENS,
    ports=(MemoryPort(name="m_axi_gmem0", channel=0, id_bits=1),),
    buffers=(
        Buffer(name="x", role="input", channel=0, bytes=1024, itensor=ROWS, tile_loop=0, shape=(8, WIDTH)),
        Buffer(name="b", role="input", channel=0, bytes=64, itensor=BIAS, shape=(WIDTH,)),
        Buffer(name="w", role="weights", channel=0, bytes=64, file="w.bin"),
        Buffer(name="y", role="output", channel=0, bytes=1024, itensor=PANELS, tile_loop=0, shape=(8, WIDTH)),
        Buffer(name="table", role="table", channel=0, bytes=1024),
        Buffer(name="status", role="status", channel=0, bytes=128),
    ),
    program=PhaseTable(sections=(TableSection(descriptors=(Descriptor(target=0),)),)),
    counters=(
        Counter(name="sum", kind="busy"),
        Counter(name="x -> sum", kind="level", depth=16),
        Counter(name="sum -> y", kind="level", depth=8),
    ),
    memory=MemoryTiming(beats=133, cycles=192, latency=100),
)


class Plain(DeviceBuffer):
    def __init__(self, size):
        self.size, self.content = size, bytearray(b"\xff" * size)

    def _write(self, data, offset):
        self.content[offset : offset + len(data)] = data

    def _read(self, size, offset):
        return bytes(self.content[offset : offset + size])


class Adder(Device):
    """y = x + b + weight, with random bytes in the padding. `fault` spoils the next run."""

    def __init__(self, folder, manifest):
        super().__init__(manifest)
        self.scalars, self.fault, self.resets, self.runs, self.uploads = {}, None, 0, [], 0

    def _allocate(self, info, size):
        return Plain(size)

    def _set_scalar(self, name, value, slot):
        self.scalars[name] = value

    def _reset_hard(self):
        raise AssertionError

    def reset(self):
        self.resets += 1

    def error_word(self):
        return 0x104

    def close(self):
        self._buffers.clear()

    def start(self, slot=0):
        assert self.scalars["command"] == 0 and self.scalars["timeout"] == 1 << 20
        assert self.allocate("table").read() == MANIFEST.program.pack()
        assert self.allocate("status").read() == bytes(128)
        fault, self.fault = self.fault, None
        tiles = self.scalars["tiles"]
        self.runs.append(tiles)
        streams = {}
        for name, text in (("x", ROWS), ("b", BIAS), ("y", PANELS)):
            stream = ITensor.parse(text)
            if name != "b":
                stream = replace(stream, tripcounts=(stream.tripcounts[0] * tiles, *stream.tripcounts[1:]))
            streams[name] = stream, MemoryLayout.of(stream)
        values = {}
        for name in "xb":
            stream, layout = streams[name]
            image = self.allocate(name).read(layout.beats(stream.token_count) * 64)
            values[name] = layout.unpack(stream, image)
        assert (values["x"][:, WIDTH:] == 0).all() and (values["b"][WIDTH:] == 0).all()
        weight = self.allocate("w").read(1)[0]
        result = formats.round_f24(values["x"] + values["b"].astype(float) + weight)
        stream, layout = streams["y"]
        image = bytearray(layout.pack(stream, result))
        image[0] |= fault == "not f24"
        self.allocate("y").write(bytes(image))
        words = np.zeros(32, "<u4")
        codes = {"timeout": 1, "late and hung": 1, "axi": 2}
        words[0], words[1], words[2] = STATUS_MAGIC, codes.get(fault, 0), 1
        words[4:6] = np.frombuffer(bytes.fromhex(HASH)[::-1], "<u4")
        words[6], words[10] = 1234, 3
        words[16:19] = 99, 5 << 16 | 7, 8 << 16 | 8
        if fault == "other design":
            words[4] ^= 1
        if fault not in ("silent", "late and silent"):
            self.allocate("status").write(words.tobytes())
        self.slow = str(fault).startswith("late")

    def done(self, slot=0, wait=False):
        if self.slow:
            raise DeviceTimeoutError("not done")
        return True


@pytest.fixture
def written(tmp_path):
    (tmp_path / "design.v").write_text("module top; endmodule")
    (tmp_path / "w.bin").write_bytes(bytes([3]) + bytes(63))
    (tmp_path / "manifest.json").write_text(sealed(MANIFEST, tmp_path).to_json())
    return tmp_path


@pytest.fixture
def execution(written):
    with Execution(written, Adder) as execution:
        yield execution


@pytest.fixture
def lenient(written):
    with Execution(written, Adder, changed_files=True) as execution:
        yield execution


BIAS_VALUES = np.arange(WIDTH) - 10


def expected(x, weight=3):
    return formats.round_f24(formats.round_f24(x).astype(float) + BIAS_VALUES + weight)


@pytest.mark.parametrize(
    "leading, runs",
    [((), [1]), ((1,), [1]), ((4,), [1]), ((5,), [2]), ((8,), [2]), ((9,), [2, 1]), ((3, 7), [2, 2, 2])],
)
def test_tokens(execution, leading, runs):
    x = np.random.default_rng(0).normal(size=(*leading, WIDTH))
    (y,) = execution.run(x, BIAS_VALUES)
    assert y.dtype == np.float32 and y.shape == x.shape
    assert (y == expected(x)).all()
    assert execution.device.runs == runs
    assert [status.cycles for status in execution.statuses] == [1234] * len(runs)


def test_a_function_in_the_place_of_the_device(execution):
    calls = []

    def compute(arrays, tiles):
        calls.append(tiles)
        assert arrays["x"].shape == (4 * tiles, PADDED) and arrays["b"].shape == (PADDED,)
        return {"y": formats.round_f24(arrays["x"] + arrays["b"].astype(float) + 3)}

    x = np.random.default_rng(0).normal(size=(11, WIDTH))
    (y,) = execution.evaluate(compute, x, BIAS_VALUES)
    assert (y == expected(x)).all() and (y == execution.run(x, BIAS_VALUES)[0]).all()
    assert calls == [2, 1]


def test_no_tokens(execution):
    (y,) = execution.run(np.zeros((0, WIDTH)), BIAS_VALUES)
    assert y.shape == (0, WIDTH) and y.dtype == np.float32
    assert execution.statuses == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_numbers_are_rounded_to_the_port(execution, dtype):
    x = np.full((2, WIDTH), 1 / 3 * 1000).astype(dtype)
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all()


@pytest.mark.parametrize(
    "x, b, error, message",
    [
        (np.zeros((2, 21)), BIAS_VALUES, ValueError, "input 'x' must have shape (..., 20); it has (2, 21)"),
        (np.float64(1), BIAS_VALUES, ValueError, "input 'x' must have shape (..., 20); it has ()"),
        (
            np.zeros((2, 20)),
            np.zeros((1, 20), int),
            ValueError,
            "input 'b' must have shape (20); it has (1, 20)",
        ),
        (np.zeros((2, 20)), np.zeros(20), TypeError, "input 'b' takes i8; numpy's float64 is given"),
        (
            np.zeros((2, 20), complex),
            BIAS_VALUES,
            TypeError,
            "input 'x' takes f24; numpy's complex128 is given",
        ),
        (np.full((1, 20), "1"), BIAS_VALUES, TypeError, "input 'x' takes f24; numpy's <U1 is given"),
        (np.full((1, 20), np.nan), BIAS_VALUES, ValueError, "input 'x' holds NaN or infinite values"),
        (np.full((1, 20), -np.inf), BIAS_VALUES, ValueError, "input 'x' holds NaN or infinite values"),
        (np.full((1, 20), 1e39), BIAS_VALUES, ValueError, "input 'x' holds values too large for f24"),
        (np.zeros((1, 20)), BIAS_VALUES * 100, ValueError, "-1000 is not a i8; it must lie in -128..127"),
    ],
)
def test_bad_inputs(execution, x, b, error, message):
    with pytest.raises(error) as caught:
        execution.run(x, b)
    assert str(caught.value) == message


def test_number_of_inputs(execution):
    with pytest.raises(TypeError, match=r"^run takes 2 inputs \(x, b\); 1 are given$"):
        execution.run(np.zeros((1, WIDTH)))


@pytest.mark.parametrize(
    "fault, kind, message",
    [
        (
            "timeout",
            DeviceTimeoutError,
            "the run ended with an error after 1234 cycles: no token and no beat moved any more; "
            "memory ports at work: m_axi_gmem0\n"
            "  0 descriptors sent, 0 completions awaited\n"
            "  x -> sum: waits, 5 of 16 tokens\n"
            "  sum -> y: full, 8 of 8 tokens",
        ),
        (
            "axi",
            DeviceError,
            "the run ended with an error after 1234 cycles: error response of the memory at m_axi_gmem0",
        ),
        (
            "silent",
            DeviceError,
            "the run wrote no status block (error register: 4, detail 0x1): after an error the memory at "
            "m_axi_gmem0 did not drain: "
            f"status block starts with 0x00000000, not {STATUS_MAGIC:#010x}",
        ),
        (
            "other design",
            DeviceError,
            "the device holds design 0123456789abcdee, the manifest describes 0123456789abcdef",
        ),
        (
            "late",
            DeviceTimeoutError,
            "not done: its status block says that it ended without an error after 1234 cycles, but the host "
            "never saw it done",
        ),
        (
            "late and hung",
            DeviceTimeoutError,
            "not done: it has written its status block: the run ended with an error after 1234 cycles: no "
            "token and no beat moved any more; memory ports at work: m_axi_gmem0\n"
            "  0 descriptors sent, 0 completions awaited\n"
            "  x -> sum: waits, 5 of 16 tokens\n"
            "  sum -> y: full, 8 of 8 tokens",
        ),
        (
            "late and silent",
            DeviceTimeoutError,
            "not done: the run has not written a status block yet; the hardware ends a run in which nothing "
            "moves for 1048576 cycles (0.0035 s at 300 MHz)",
        ),
    ],
)
def test_failed_run(execution, fault, kind, message):
    x = np.ones((2, WIDTH))
    execution.run(x, BIAS_VALUES)
    execution.device.fault = fault
    with pytest.raises(kind) as error:
        execution.run(x, BIAS_VALUES)
    assert str(error.value) == message
    assert execution.device.resets == 1 and execution.device.hung == (fault == "silent")
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all()


def test_a_text_without_its_source(execution):
    """Nothing is started: the hardware would wait for rows that are not there."""
    descriptor = Descriptor(target=0, words=(Word(source=1),))
    table = PhaseTable(sections=(TableSection(descriptors=(descriptor,)),))
    device = execution.device
    execution.manifest = replace(execution.manifest, program=table)
    with pytest.raises(ValueError, match=r"writes texts about a source; a run needs its rows$"):
        execution.submit({}, 1)
    assert not device.runs


def test_what_is_no_number_of_the_format(execution):
    x = np.ones((2, WIDTH))
    execution.run(x, BIAS_VALUES)
    execution.device.fault = "not f24"
    with pytest.raises(DeviceError) as error:
        execution.run(x, BIAS_VALUES)
    assert str(error.value) == (
        "the device wrote values to buffer 'y' that are not f24: np.float32(-6.0000005) is not a number of "
        "f24"
    )
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all()


def test_a_device_that_is_lost(execution, monkeypatch):
    """The error is that of the run and not that of the failed reset. The next run opens another device."""

    def reset(device):
        raise DeviceError("no answer")

    x = np.ones((2, WIDTH))
    execution.run(x, BIAS_VALUES)
    first = execution.device
    first.fault = "late"
    monkeypatch.setattr(first, "reset", reset.__get__(first))
    with pytest.raises(DeviceTimeoutError, match=r"^not done: "):
        execution.run(x, BIAS_VALUES)
    assert not execution.is_open and not first._buffers
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all() and execution.device is not first
    second = execution.device
    monkeypatch.setattr(Adder, "lost", property(lambda device: device is second))
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all() and execution.device is not second


@pytest.mark.parametrize("name", ["w.bin", "design.v"])
def test_changed_files_are_refused(execution, name):
    execution.run(np.ones((2, WIDTH)), BIAS_VALUES)
    content = bytearray((execution.folder / name).read_bytes())
    content[-1] ^= 1
    (execution.folder / name).write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"{name} is not the file that was written: .*--changed-files$"
    ):
        execution.run(np.ones((2, WIDTH)), BIAS_VALUES)
    content[-1] ^= 1
    (execution.folder / name).write_bytes(content)
    assert execution.run(np.ones((2, WIDTH)), BIAS_VALUES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"itensor": ROWS.replace("4,2", "999999999,2")}, "has 1024 bytes; its itensor takes 255999999744"),
        ({"itensor": ROWS.replace("d0,d1)->", "d0)->")}, "the map must start from 2 loops d0, d1"),
        ({"tile_loop": 9}, "tile_loop is 9; its itensor has 2 loops"),
    ],
)
def test_buffers_that_are_none(written, change, message):
    """The error comes before anything is allocated, for any manifest."""
    buffers = tuple(replace(info, **change) if info.name == "x" else info for info in MANIFEST.buffers)
    (written / "manifest.json").unlink()
    (written / "manifest.json").write_text(sealed(replace(MANIFEST, buffers=buffers), written).to_json())
    with pytest.raises(ValueError, match=re.escape(f"{written / 'manifest.json'}: buffer 'x'")) as caught:
        Execution(written, Adder)
    assert message in str(caught.value)


def test_changed_weights_are_used(lenient):
    execution, x = lenient, np.ones((2, WIDTH))
    execution.run(x, BIAS_VALUES)
    first = execution.device
    (execution.folder / "w.bin").write_bytes(bytes([2]) + bytes(63))
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x, weight=2)).all()
    assert execution.device is first


def test_changed_verilog_opens_another_device(lenient):
    execution, x = lenient, np.ones((2, WIDTH))
    execution.run(x, BIAS_VALUES)
    first = execution.device
    (execution.folder / "design.v").write_text("module top; wire a; endmodule")
    assert (execution.run(x, BIAS_VALUES)[0] == expected(x)).all()
    assert execution.device is not first


def test_damaged_folder(execution, tmp_path):
    (execution.folder / "w.bin").write_bytes(bytes(60))
    with pytest.raises(CheckpointError, match=r"w.bin has 60 bytes; buffer 'w' takes 64$"):
        execution.run(np.ones((1, WIDTH)), BIAS_VALUES)
    (execution.folder / "w.bin").unlink()
    with pytest.raises(ValueError, match=r"w.bin is missing or cannot be read$"):
        execution.run(np.ones((1, WIDTH)), BIAS_VALUES)
    with pytest.raises(ValueError, match=r"holds no written accelerator: no manifest.json$"):
        Execution(tmp_path / "nothing")
