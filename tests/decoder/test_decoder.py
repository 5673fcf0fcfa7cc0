"""A language model of two layers on its emitted Verilog: texts, sessions, files, errors, interruptions."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamgen
from streamgen.cli import main
from streamgen.decoder import DecoderAccelerator
from streamgen.errors import CheckpointError, DeviceError, DeviceTimeoutError, GraphError
from streamgen.manifest import Counter, Manifest
from streamgen.profile import instruments, profile_pass
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import BEST, DecoderDevice, Pass
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import SimulatedDevice, simulated
from streamgen.sampling import Sampler
from tests.campaigns import sampled
from tests.decoders import TINY, WORDS, random_decoder, tiny_accelerator
from tests.schedule.features import FEATURES

CONTEXT, VOCABULARY = TINY.context, WORDS.size
PHASES = ("embedding", "attention_norm", "q+k+v", "o", "gate+up", "down", "last", "logits")
IDS = np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT)


@pytest.fixture(scope="module")
def model() -> Iterator[DecoderAccelerator]:
    found = tiny_accelerator()
    yield found
    found.close()


@pytest.fixture(scope="module")
def written(model: DecoderAccelerator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests leave it as it is."""
    return model.write(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(scope="module")
def expected(model: DecoderAccelerator) -> np.ndarray:
    """Logits behind every token of IDS."""
    return model.golden.logits(IDS)


@pytest.mark.timeout(900)
def test_any_split_of_a_text_gives_the_logits_of_golden(
    model: DecoderAccelerator, expected: np.ndarray, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        session, position = model.session(), 0
        while position < CONTEXT:
            count = int(rng.integers(1, min(10, CONTEXT - position) + 1))  # in passes of up to 4 tokens
            found = session.last_logits(IDS[position : position + count])
            position += count
            assert session.position == position
            np.testing.assert_array_equal(found, expected[position - 1])
    np.testing.assert_array_equal(model.logits(IDS[:6]), expected[:6])


def test_texts_are_those_of_golden(model: DecoderAccelerator) -> None:
    for length in (1, 2, 4, 5, 19):
        prompt = [int(i) for i in IDS[:length]]
        assert list(model.generate(prompt, 5)) == list(model.generate(prompt, 5, golden=True)), length
    choice: dict[str, Any] = {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "seed": 7}
    prompt = [3, 1, 4]
    found = list(model.generate(prompt, 12, **choice))
    assert found == list(model.golden.generate(prompt, 12, sampler=Sampler(**choice)))
    assert found != list(model.generate(prompt, 12))


LENGTHS = [range(1, 14), range(14, 30), range(30, 46), range(46, 60), range(60, 65)]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", sampled(LENGTHS, [LENGTHS[0], LENGTHS[-1]]), ids=str)
def test_prompts_of_every_length(model: DecoderAccelerator, lengths: range) -> None:
    for length in lengths:
        prompt = [int(i) for i in IDS[:length]]
        assert list(model.generate(prompt, 4)) == list(model.generate(prompt, 4, golden=True)), length


def test_text_in_text_out(model: DecoderAccelerator) -> None:
    prompt = WORDS.decode(IDS[:5])
    ids = list(model.generate([int(i) for i in IDS[:5]], 6))
    assert "".join(map(str, model.generate(prompt, 6))) == WORDS.decode(ids)


def test_a_stop_ends_a_text(model: DecoderAccelerator) -> None:
    ids = list(model.generate([5, 6], 8))
    stop = ids[3]
    assert list(model.generate([5, 6], 8, stop=[stop])) == ids[: ids.index(stop) + 1]
    assert list(model.generate([5, 6], 0)) == []


def test_sessions_are_kept_apart(model: DecoderAccelerator, expected: np.ndarray) -> None:
    """Two texts in turn: what one has stored survives the other; a reset begins again."""
    other_ids = (IDS[::-1] + 1) % VOCABULARY
    other_expected = model.golden.logits(other_ids)
    one, other = model.session(), model.session()
    for first in range(0, 9, 3):
        for session, ids, logits in ((one, IDS, expected), (other, other_ids, other_expected)):
            found = session.last_logits(ids[first : first + 3])
            np.testing.assert_array_equal(found, logits[first + 2])
    one.reset()
    np.testing.assert_array_equal(one.last_logits(IDS[:2]), expected[1])


def test_memory_may_be_slow(model: DecoderAccelerator, expected: np.ndarray) -> None:
    slow = MemoryModel.of(model.manifest.memory, delays=300, seed=5)
    session = model.device(slow).session()
    for first in range(0, 12, 4):
        found = session.last_logits(IDS[first : first + 4])
        np.testing.assert_array_equal(found, expected[first + 3])
    model.close()


def test_passes_are_counted(model: DecoderAccelerator) -> None:
    device = model.device()
    seen = len(device.passes)
    device.session().last_logits(IDS[:6])
    first, second = device.passes[seen:]
    assert (first.position, first.tokens, second.position, second.tokens) == (0, 4, 4, 2)
    for one in (first, second):
        assert one.cycles > 1000 and one.bytes is not None and one.bytes > 30_000


def test_logits_are_written_when_asked_for(model: DecoderAccelerator) -> None:
    """A greedy text, and all but the last pass of a prompt, leave the logits in memory as they are."""
    device = model.device()
    seen, buffer = len(device.passes), device.execution.device.allocate("logits")
    mark = bytes([0xA5]) * (4 * VOCABULARY)
    buffer.write(mark)
    session = device.session()
    prompt = [int(i) for i in IDS[:6]]
    assert list(session.generate(prompt, 2)) == list(model.golden.generate(prompt, 2))
    assert buffer.read(len(mark)) == mark
    found = session.last_logits(IDS[:1])
    np.testing.assert_array_equal(np.frombuffer(buffer.read(len(mark)), "<f4"), found)
    passes = device.passes[seen:]
    assert [(one.tokens, one.variant) for one in passes] == [(4, BEST), (2, BEST), (1, BEST), (1, None)]


def test_the_report_is_that_of_the_opened_folder(model: DecoderAccelerator, written: Path) -> None:
    model.close()
    model.session().last_logits(IDS[:6])
    report = model.report()
    found = streamgen.open_decoder(written)
    assert found.report().cycles is None
    found.session().last_logits(IDS[:6])
    assert found.report() == report
    found.close()
    assert report.passes == tuple(one.cycles for one in model.device().passes) and len(report.passes) == 2
    for timing, (position, tokens) in zip(report.groups[0].timings, ((0, 4), (4, 2)), strict=True):
        assert (timing.position, timing.tokens) == (position, tokens)
        assert 1 < timing.ratio == timing.cycles / timing.bound < 5
    for kernel in report.kernels:
        assert kernel.busy > 0 and kernel.busy + kernel.stalled + kernel.idle == report.cycles
    assert all(f.greatest is not None and 1 <= f.greatest <= f.depth for f in report.fifos)
    memory = report.memory
    assert 0 < memory.converters < memory.fused < memory.unfused and memory.stored == 0
    text = str(report)
    for part in (
        "tiny: 128 multipliers",
        "of 8 phases are walked 2 times",
        "cycles / bound",
        "kernel",
        "FIFO",
    ):
        assert part in text, part


@pytest.mark.slow  # a simulator of its own
@pytest.mark.timeout(900)
@pytest.mark.parametrize("delays", [0, 300])
def test_a_profile_adds_up(model: DecoderAccelerator, delays: int) -> None:
    """A pass of four tokens and one of one token, held against what hardware and memory count themselves."""
    memory = MemoryModel.of(model.manifest.memory, delays=delays, seed=5)
    found = model.profile(IDS[:5], memory=memory)
    model.close()
    device = model.device(memory)
    device.session().last_logits(IDS[:5])
    for one, plain in zip(found.passes, device.passes, strict=True):
        counted = dict(zip(model.manifest.counters, plain.status.counters, strict=True))
        assert (one.position, one.tokens, one.cycles) == (plain.position, plain.tokens, plain.cycles)
        assert [(phase.name, phase.walks) for phase in one.phases] == [
            (name, 2 if name in PHASES[1:6] else 1) for name in PHASES
        ]
        assert sum(phase.cycles for phase in one.phases) == one.cycles
        assert all(phase.cycles > phase.bound > 0 for phase in one.phases)
        for kernel in one.kernels:
            for kind in ("busy", "stalled"):
                assert sum(getattr(kernel, kind)) == counted[Counter(name=kernel.name, kind=kind)], kernel
            parts = zip(kernel.busy, kernel.stalled, kernel.idle, strict=True)
            assert [sum(part) for part in parts] == [phase.cycles for phase in one.phases]
            assert min(kernel.idle) >= 0
        by_name = {kernel.name: kernel for kernel in one.kernels}
        for name, at in (("scores", "q+k+v"), ("gated", "gate+up"), ("best", "logits")):
            busy = zip(PHASES, by_name[name].busy, strict=True)
            assert [phase for phase, cycles in busy if cycles] == [at]
        for channel, moved in one.moved.items():
            for way, count in zip(("read", "write"), moved, strict=True):
                there = [s for s in one.streams if s.channel == channel and s.way == way]
                assert sum(stream.bytes for stream in there) == count
        streams = [stream for stream in one.streams if stream.phases]
        assert len(one.streams) == len(streams) + 2
        for stream in streams:
            assert sum(stream.phases) == stream.bytes
        assert [phase.bytes for phase in one.phases] == [
            sum(stream.phases[k] for stream in streams) for k in range(len(PHASES))
        ]
    model.close()


@pytest.mark.slow  # a simulator of its own
def test_a_profile_as_text(model: DecoderAccelerator) -> None:
    text = str(model.profile(IDS[:2]))
    for part in (
        "2 tokens at 0: ",
        "cycles / bound",
        "busy+stalled %",
        "% of the channel",
        "cache_values_x_1",
    ):
        assert part in text, part
    assert len(text.splitlines()[0]) < 110 < max(map(len, text.splitlines())) <= 160
    with pytest.raises(ValueError, match=r"^ids\[1\] is 64; ids are 0 to 63$"):
        model.profile([1, 64])


@pytest.mark.slow  # a simulator of its own
def test_a_profile_of_other_tokens_is_refused(model: DecoderAccelerator, written: Path) -> None:
    def open_device(folder: Path, manifest: Manifest) -> SimulatedDevice:
        return simulated(folder, manifest, instruments=instruments(manifest))

    with Execution(written, open_device) as execution:
        device = DecoderDevice(execution, VOCABULARY, CONTEXT)
        simulator = execution.device
        assert isinstance(simulator, SimulatedDevice)

        def run() -> Pass:
            device.session().last_logits(IDS[:3])
            return device.passes[-1]

        for tokens in (2, 4):
            with pytest.raises(DeviceError) as raised:
                profile_pass(model.program.at(tokens), PHASES, simulator, run)
            assert str(raised.value) == "other tokens have passed than those of the graph"
        assert profile_pass(model.program.at(3), PHASES, simulator, run).tokens == 3


def test_the_report_on_the_command_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(written)]) == 0
    assert "5 of 8 phases are walked 2 times" in capsys.readouterr().out
    assert main(["report", str(written), "--channels", "4"]) == 2
    assert "tiny is compiled already" in capsys.readouterr().err


def test_a_folder_of_another_version_is_refused(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["counters"][-1]["depth"] = 7
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError) as raised:
        streamgen.open_decoder(folder).report()
    assert str(raised.value) == (
        f"{folder} is of a streamgen that builds other FIFOs; compile the model again"
    )


def test_an_interrupted_pass_leaves_the_text_as_it_was(
    model: DecoderAccelerator, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    session.last_logits(IDS[:3])
    wait = SimulatedDevice.wait

    def interrupted(self: SimulatedDevice, timeout: float = 600.0) -> None:
        monkeypatch.setattr(SimulatedDevice, "wait", wait)
        self.run(900)  # in the middle of the second layer
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedDevice, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.last_logits(IDS[3:6])
    assert session.position == 3
    np.testing.assert_array_equal(session.last_logits(IDS[3:6]), expected[5])


def test_a_failed_pass_leaves_the_text_as_it_was(model: DecoderAccelerator, expected: np.ndarray) -> None:
    session = model.session()
    session.last_logits(IDS[:3])
    device = model.device()
    device.timeout = 0.0
    simulated = device.execution.device
    assert isinstance(simulated, SimulatedDevice)
    simulated.inject_error("ids", 0)
    with pytest.raises(DeviceError) as raised:
        session.last_logits(IDS[3:6])
    assert not isinstance(raised.value, DeviceTimeoutError) and "m_axi_gmem0" in str(raised.value)
    simulated.inject_error("ids", 0, on=False)
    device.timeout = 600.0
    np.testing.assert_array_equal(session.last_logits(IDS[3:6]), expected[5])


def test_an_interrupted_switch_loses_no_text(
    model: DecoderAccelerator, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while what one text has stored gives way to what another one has."""
    one, other = model.session(), model.session()
    one.last_logits(IDS[:3])
    others = (IDS[::-1] + 1) % VOCABULARY
    other.last_logits(others[:2])
    simulated = model.device().execution.device
    states = model.device().execution.buffers("state")
    buffer = type(simulated.allocate(states[0].name))
    write, count = buffer.write, 0

    def interrupted(self: Any, data: bytes, *given: Any) -> None:
        nonlocal count
        count += 1
        if count == len(states):
            monkeypatch.setattr(buffer, "write", write)
            raise KeyboardInterrupt
        write(self, data, *given)

    monkeypatch.setattr(buffer, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.last_logits(IDS[3:5])
    assert (one.position, other.position) == (3, 2)
    found = other.last_logits(others[2:5])
    np.testing.assert_array_equal(found, model.golden.logits(others[:5])[4])
    np.testing.assert_array_equal(one.last_logits(IDS[3:5]), expected[4])


def test_a_closed_device_has_lost_its_text(model: DecoderAccelerator, expected: np.ndarray) -> None:
    """The text that was on it cannot go on, and says so; one that was put by can."""
    kept, lost = model.session(), model.session()
    kept.last_logits(IDS[:2])
    lost.last_logits(IDS[:3])
    model.close()
    with pytest.raises(ValueError) as raised:
        lost.last_logits(IDS[3:5])
    assert str(raised.value) == ("the device was closed after 3 tokens of this text; reset() begins it anew")
    np.testing.assert_array_equal(kept.last_logits(IDS[2:5]), expected[4])
    lost.reset()
    np.testing.assert_array_equal(lost.last_logits(IDS[:4]), expected[3])


@pytest.mark.parametrize(
    ("choice", "kind", "message"),
    [
        ({"top_k": 0}, ValueError, "top_k is 0; it must be None or at least 1"),
        ({"top_p": -1.0}, ValueError, "top_p is -1.0; it must be above 0 and at most 1"),
        ({"seed": -1}, ValueError, "seed is -1; it must be None or at least 0"),
        ({"temperature": "a"}, TypeError, "temperature is 'a'; a number is needed"),
        ({"max_new_tokens": 2.5}, TypeError, "max_new_tokens is 2.5; an integer is needed"),
        ({"max_new_tokens": None}, TypeError, "max_new_tokens is None; an integer is needed"),
    ],
)
@pytest.mark.parametrize("golden", [False, True])
def test_bad_choices(
    model: DecoderAccelerator, golden: bool, choice: dict[str, Any], kind: type[Exception], message: str
) -> None:
    """Told at once, greedy or not."""
    with pytest.raises(kind) as raised:
        model.generate([1, 2], golden=golden, **{"max_new_tokens": 3, **choice})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([], 3, "ids have the shape [0]; [tokens] with at least one is needed"),
        ([[1, 2]], 3, "ids have the shape [1, 2]; [tokens] with at least one is needed"),
        ([1, 64], 3, "ids[1] is 64; ids are 0 to 63"),
        ([-1], 3, "ids[0] is -1; ids are 0 to 63"),
        ([1.5], 3, "ids are float64; integers are needed"),
        ([1], -1, "-1 new tokens are asked for; at least 0 are needed"),
        ([7] * 70, 5, "0 tokens, 70 more and 5 to come are 75; the context is 72"),
        ("", 3, "the prompt is empty; at least one token is needed"),
    ],
)
def test_bad_prompts(model: DecoderAccelerator, prompt: Any, count: int, message: str) -> None:
    for golden in (False, True):
        with pytest.raises((ValueError, TypeError)) as raised:
            list(model.generate(prompt, count, golden=golden))
        assert str(raised.value) == message


def test_the_context_ends(model: DecoderAccelerator) -> None:
    session = model.session()
    session.last_logits(IDS)
    with pytest.raises(ValueError, match=r"^72 tokens, 1 more and 0 to come are 73; the context is 72$"):
        session.last_logits([1])
    with pytest.raises(ValueError, match="without a tokenizer"):
        streamgen.DecoderAccelerator(TINY, VOCABULARY, None, folder=Path("nowhere")).generate("a", 1)


def test_written_and_opened_again(
    model: DecoderAccelerator, written: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    names = {"decoder.json", "decoder.npz", "design.v", "manifest.json", "notes.json"}
    names |= {"weights_0.bin", "weights_1.bin"}
    assert {file.name for file in written.iterdir()} == names
    found = streamgen.open_decoder(written)
    assert found.config == model.config and found.manifest == model.manifest
    np.testing.assert_array_equal(found.session().last_logits(IDS[:4]), expected[3])
    np.testing.assert_array_equal(found.golden.logits(IDS[:4]), expected[:4])
    copy = streamgen.open_decoder(found.write(tmp_path / "copy"))
    assert list(copy.generate("$%", 3)) == list(model.generate("$%", 3))
    for one in (found, copy):
        one.close()
    with pytest.raises(FileExistsError, match="exists and is not an empty folder"):
        model.write(written)


def test_a_flipped_bit_of_a_weight_is_seen(written: Path, expected: np.ndarray, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    weights = bytearray((folder / "weights_0.bin").read_bytes())
    weights[600] ^= 64
    (folder / "weights_0.bin").write_bytes(weights)
    found = streamgen.open_decoder(folder)
    assert not np.array_equal(found.logits(IDS[:3]), expected[:3])
    found.close()


@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        ("decoder.json", None, ValueError, "holds no written decoder: no decoder.json"),
        ("decoder.json", b"{", ValueError, "decoder.json cannot be read"),
        ("decoder.json", b'{"config": {"no": 1}}', ValueError, "decoder.json cannot be read"),
        ("decoder.npz", None, CheckpointError, "decoder.npz is no stored model"),
        ("decoder.npz", b"PK nothing", CheckpointError, "decoder.npz is no stored model"),
        ("manifest.json", None, ValueError, "no manifest.json"),
        ("notes.json", None, ValueError, "notes.json cannot be read"),
        ("weights_1.bin", b"short", CheckpointError, "weights_1.bin has 5 bytes"),
    ],
)
def test_damaged_folders(
    written: Path, tmp_path: Path, file: str, content: bytes | None, kind: type[Exception], message: str
) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(kind, match=message):
        found = streamgen.open_decoder(folder)
        try:
            list(found.generate([1], 1, golden=file == "decoder.npz"))
        finally:
            found.close()


def test_what_is_stored_is_what_was_compiled(model: DecoderAccelerator, written: Path) -> None:
    notes = json.loads((written / "decoder.json").read_text())
    assert notes["vocabulary"] == VOCABULARY and notes["config"]["channels"] == 2
    assert (written / "design.v").read_text().count("module tiny") == 1


SMALL = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"rotated": 8}, {}, "8 dimensions of a head rotate; a multiple of 16 is needed"),
        (
            {"interleaved": True},
            {"lanes": 1},
            "16 dimensions of a head rotate; a multiple of 16 is needed, and lanes of at least 2 for pairs of"
            " neighbours",
        ),
    ],
)
def test_what_is_not_built(changes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    decoder = random_decoder(**(SMALL | changes))
    with pytest.raises(GraphError) as raised:
        streamgen.compile_decoder(decoder, replace(TINY, **options))
    assert str(raised.value) == message


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_any_sizes_and_features() -> None:
    """Sizes that divide into nothing, biases, windows in turn, soft-caps, norms of heads and behind blocks."""
    sizes = {"hidden": 48, "heads": 3, "kv_heads": 1, "head_dim": 16, "rotated": 16, "wide": 100}
    odd = random_decoder(function="relu", bias=True, layers=4, vocabulary=71, context=24, **sizes)
    for change in FEATURES.values():
        odd = change(odd)
    config = replace(TINY, name="odd", n_lanes=4, lanes=4)
    accelerator = streamgen.compile_decoder(odd, config)
    ids = np.random.default_rng(0).integers(0, 71, 14)
    expected = accelerator.golden.logits(ids)
    np.testing.assert_array_equal(accelerator.logits(ids), expected)
    session = accelerator.session()
    for first in range(0, 14, 4):
        np.testing.assert_array_equal(
            session.last_logits(ids[first : first + 4]), expected[min(first + 3, 13)]
        )
    prompt = [int(i) for i in ids[:5]]
    assert list(accelerator.generate(prompt, 5)) == list(accelerator.generate(prompt, 5, golden=True))
    accelerator.close()
