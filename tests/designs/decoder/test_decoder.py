"""A language model of two layers on its emitted Verilog: texts, sessions, files, errors, interruptions."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.api.language_model import LanguageModel
from streamgen.artifact.roles import BEST, KEEP
from streamgen.base.errors import CheckpointError, DeviceError, DeviceTimeoutError
from streamgen.observe.waves import Waves
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.simulator import SimulatedDevice
from streamgen.text.sampling import Sampler
from tests.shared.campaigns import sampled
from tests.shared.decoders import (
    TINY,
    WORDS,
    compiled_model,
    opened_model,
    random_decoder,
    tiny_decoder,
)
from tests.unit.compiler.schedule.features import FEATURES

# schedule/test_derive.py has the same bits without hardware, in a few seconds
pytestmark = [pytest.mark.slow, pytest.mark.long_runs]

CONTEXT, VOCABULARY = TINY.context, WORDS.size
IDS = np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT)


@pytest.fixture(scope="module")
def expected(model: LanguageModel) -> np.ndarray:
    """Logits behind every token of IDS."""
    return model.golden.logits(IDS)


@pytest.mark.timeout(900)
def test_any_split_of_a_text_gives_the_logits_of_golden(
    model: LanguageModel, expected: np.ndarray, seed: int
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


@pytest.mark.campaign
def test_fifos_of_kernels_at_their_own_rates(model: LanguageModel, expected: np.ndarray) -> None:
    """Depths of the other strategy: other storage, the same bits."""
    other = compiled_model(tiny_decoder(), replace(TINY, sizing="normal"))
    assert other.manifest.counters != model.manifest.counters
    np.testing.assert_array_equal(other.session().last_logits(IDS[:6]), expected[5])
    other.close()


def test_keys_and_values_on_channels_of_their_own(expected: np.ndarray) -> None:
    other = compiled_model(tiny_decoder(), replace(TINY, cache_channels=1))
    states = [buffer.channel for buffer in other.manifest.buffers if buffer.role == "state"]
    assert sorted(set(states)) == [0, 1]
    session = other.session()
    for first, last in ((0, 4), (4, 5), (5, 9), (9, 10)):
        np.testing.assert_array_equal(session.last_logits(IDS[first:last]), expected[last - 1])
    for one in other.device().passes:
        predicted = other.predict(one.tokens, one.position, one.variant)
        assert abs(predicted / one.cycles - 1) < 0.05
    other.close()


def test_texts_are_those_of_golden(model: LanguageModel) -> None:
    for length in (1, 2, 4, 5, 19):
        prompt = [int(i) for i in IDS[:length]]
        assert list(model.generate(prompt, 5)) == list(model.generate(prompt, 5, golden=True)), length
    choice: dict[str, Any] = {"temperature": 2.0, "top_k": 30, "top_p": 0.9, "seed": 7}
    prompt = [3, 1, 4]
    found = list(model.generate(prompt, 12, **choice))
    assert found == list(model.golden.generate(prompt, 12, sampler=Sampler(**choice)))
    assert found != list(model.generate(prompt, 12))


LENGTHS = [range(1, 14), range(14, 30), range(30, 46), range(46, 60), range(60, 65)]


@pytest.mark.parametrize("lengths", sampled(LENGTHS, [LENGTHS[0]]), ids=str)
def test_prompts_of_every_length(model: LanguageModel, lengths: range) -> None:
    for length in lengths:
        prompt = [int(i) for i in IDS[:length]]
        assert list(model.generate(prompt, 4)) == list(model.generate(prompt, 4, golden=True)), length


def test_text_in_text_out(model: LanguageModel) -> None:
    prompt = WORDS.decode(IDS[:5])
    ids = list(model.generate([int(i) for i in IDS[:5]], 6))
    assert "".join(map(str, model.generate(prompt, 6))) == WORDS.decode(ids)


def test_a_stop_ends_a_text(model: LanguageModel) -> None:
    ids = list(model.generate([5, 6], 8))
    stop = ids[3]
    assert list(model.generate([5, 6], 8, stop=[stop])) == ids[: ids.index(stop) + 1]
    assert list(model.generate([5, 6], 0)) == []


def test_sessions_are_kept_apart(model: LanguageModel, expected: np.ndarray) -> None:
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


def test_memory_may_be_slow(model: LanguageModel, expected: np.ndarray) -> None:
    slow = MemoryModel(delays=300, seed=5)
    session = model.device(slow).session()
    for first in range(0, 12, 4):
        found = session.last_logits(IDS[first : first + 4])
        np.testing.assert_array_equal(found, expected[first + 3])
    model.close()


def test_logits_are_written_when_asked_for(model: LanguageModel) -> None:
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
    assert [(one.tokens, one.variant) for one in passes] == [(4, KEEP), (2, BEST), (1, BEST), (1, None)]


def test_an_interrupted_pass_leaves_the_text_as_it_was(
    model: LanguageModel, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.session()
    session.last_logits(IDS[:3])
    wait = SimulatedDevice.wait

    def interrupted(self: SimulatedDevice, timeout: float = 600.0, slot: int = 0) -> None:
        monkeypatch.setattr(SimulatedDevice, "wait", wait)
        self.run(900)  # in the middle of the second layer
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedDevice, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.last_logits(IDS[3:6])
    assert session.position == 3
    np.testing.assert_array_equal(session.last_logits(IDS[3:6]), expected[5])


def test_a_failed_pass_leaves_the_text_as_it_was(model: LanguageModel, expected: np.ndarray) -> None:
    session = model.session()
    session.last_logits(IDS[:3])
    device = model.device()
    device.timeout = 0.0
    simulated = device.execution.device
    assert isinstance(simulated, SimulatedDevice)
    simulated.inject("ids", 0, Fault("SLVERR"))
    with pytest.raises(DeviceError) as raised:
        session.last_logits(IDS[3:6])
    assert not isinstance(raised.value, DeviceTimeoutError) and "m_axi_gmem0" in str(raised.value)
    simulated.inject("ids", 0, None)
    device.timeout = 600.0
    np.testing.assert_array_equal(session.last_logits(IDS[3:6]), expected[5])


def test_an_interrupted_switch_loses_no_text(
    model: LanguageModel, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
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


def test_a_closed_device_has_lost_its_text(model: LanguageModel, expected: np.ndarray) -> None:
    """The text that was on it cannot go on, and says so; one that was put by can."""
    kept, lost = model.session(), model.session()
    kept.last_logits(IDS[:2])
    lost.last_logits(IDS[:3])
    model.close()
    with pytest.raises(ValueError) as raised:
        lost.last_logits(IDS[3:5])
    assert str(raised.value) == (
        "the device was closed after 3 tokens of this text; reset() starts the text again"
    )
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
    model: LanguageModel, golden: bool, choice: dict[str, Any], kind: type[Exception], message: str
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
        ("", 3, "the prompt is empty; it needs at least one token"),
    ],
)
def test_bad_prompts(model: LanguageModel, prompt: Any, count: int, message: str) -> None:
    for golden in (False, True):
        with pytest.raises((ValueError, TypeError)) as raised:
            list(model.generate(prompt, count, golden=golden))
        assert str(raised.value) == message


def test_the_context_ends(model: LanguageModel) -> None:
    session = model.session()
    session.last_logits(IDS)
    with pytest.raises(ValueError, match=r"^72 tokens, 1 more and 0 to come are 73; the context is 72$"):
        session.last_logits([1])


def test_chats(model: LanguageModel) -> None:
    """The template of the tokenizer makes a text of the messages, which is answered with text."""
    chat = [{"role": "user", "content": "AB"}, {"role": "assistant", "content": "CD"}]
    assert [*model.generate(chat, 6, golden=True)] == [*model.generate("ABCD", 6, golden=True)]
    for messages, message in (
        ([*chat, 3], 'messages[2] is a int; "role" and "content" are needed'),
        ([{"role": "user", "content": ""}], "the prompt is empty; it needs at least one token"),
    ):
        with pytest.raises(ValueError) as raised:
            model.generate(messages, 1)
        assert str(raised.value) == message


def test_a_tokenizer_that_is_missing_leaves_ids(model: LanguageModel, written: Path, tmp_path: Path) -> None:
    """Text is refused with the reason; ids go on."""
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    notes = json.loads((folder / "model.json").read_text())
    notes |= {"missing": "the tokenizer is of the kind 'bert'"}
    (folder / "model.json").write_text(json.dumps(notes))
    found = opened_model(folder, changed_files=True)
    with pytest.raises(ValueError, match=r"^the tokenizer is of the kind 'bert': give ids, or a tokenizer"):
        found.generate("a", 1)
    with pytest.raises(ValueError, match=r"give ids, or a tokenizer to compile$"):
        found.generate([{"role": "user", "content": "a"}], 1)
    assert list(found.generate([5, 6], 2)) == list(model.generate([5, 6], 2))
    found.close()


def test_run_mirrors_golden(model: LanguageModel, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(model.run(IDS[:6]), expected[5])
    np.testing.assert_array_equal(model.golden(IDS[:6]), expected[5])
    (ids,) = model.random_inputs(7, seed=3)
    assert ids.shape == (7,) and ids.max() < VOCABULARY
    with pytest.raises(TypeError, match="run takes the ids of a text; 2 inputs are given"):
        model.run(IDS[:2], IDS[:2])


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_probes_and_waves(model: LanguageModel, expected: np.ndarray, tmp_path: Path) -> None:
    """Every token of two passes is golden's, with what the first has left in the cache. Of a folder with
    changed weights, both have these."""
    waves = Waves(tmp_path / "waves.fst", 100, 200, run=2)
    session = model.session()
    session.last_logits(IDS[:3])
    found = model.run(IDS[:6], probe=True, waves=waves)
    np.testing.assert_array_equal(found, expected[5])
    assert model.probed is not None and model.probed.difference is None
    assert model.probed.runs == 2 and model.probed.tokens > 10_000
    assert model.probed.edges == len(model.graph.edges)
    assert (tmp_path / "waves.fst").stat().st_size > 1000
    np.testing.assert_array_equal(session.last_logits(IDS[3:5]), expected[4])
    folder = model.write(tmp_path / "spoilt")
    weights = bytearray((folder / "weights_0.bin").read_bytes())
    weights[len(weights) // 2] ^= 64
    (folder / "weights_0.bin").write_bytes(weights)
    spoilt = opened_model(folder, changed_files=True)  # its golden model reads the same weights
    np.testing.assert_array_equal(spoilt.run(IDS[:3], probe=True), spoilt.golden(IDS[:3]))
    assert not np.array_equal(spoilt.golden(IDS[:3]), expected[2])
    spoilt.close()
    with pytest.raises(CheckpointError, match=r"weights_0\.bin is not the file that was written"):
        opened_model(folder).golden(IDS[:3])


def test_written_and_opened_again(
    model: LanguageModel, written: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    names = {"model.json", "model.npz", "design.v", "manifest.json", "notes.json", "plan.json"}
    names |= {"weights_0.bin", "weights_1.bin"}
    names |= {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {file.name for file in written.iterdir()} == names
    found = opened_model(written)
    assert found.config == model.config and found.manifest == model.manifest
    np.testing.assert_array_equal(found.session().last_logits(IDS[:4]), expected[3])
    np.testing.assert_array_equal(found.golden.logits(IDS[:4]), expected[:4])
    copy = opened_model(found.write(tmp_path / "copy"))
    assert list(copy.generate("$%", 3)) == list(model.generate("$%", 3))
    for one in (found, copy):
        one.close()
    assert model.write(written) == written, "the same again"


def test_a_flipped_bit_of_a_weight_is_seen(written: Path, expected: np.ndarray, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    weights = bytearray((folder / "weights_0.bin").read_bytes())
    weights[600] ^= 64
    (folder / "weights_0.bin").write_bytes(weights)
    with pytest.raises(CheckpointError, match=r"weights_0\.bin is not the file that was written"):
        opened_model(folder).logits(IDS[:3])
    found = opened_model(folder, changed_files=True)
    assert not np.array_equal(found.logits(IDS[:3]), expected[:3])
    found.close()


@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        (
            "model.json",
            None,
            ValueError,
            "is the folder of a language model, but it has no model.json; write it again",
        ),
        ("model.json", b"{", ValueError, "model.json cannot be read"),
        ("model.json", b'{"config": {"no": 1}}', ValueError, "model.json cannot be read"),
        ("model.npz", None, ValueError, "model.npz is missing or cannot be read"),
        ("model.npz", b"PK nothing", CheckpointError, "model.npz is not a stored model"),
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
        found = opened_model(folder, changed_files=True)
        try:
            list(found.generate([1], 1, golden=file == "model.npz"))
        finally:
            found.close()


def test_what_is_stored_is_what_was_compiled(model: LanguageModel, written: Path) -> None:
    notes = json.loads((written / "model.json").read_text())
    assert notes["vocabulary"] == VOCABULARY and notes["config"]["channels"] == 2
    assert (written / "design.v").read_text().count("module tiny") == 1


SMALL = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64}


@pytest.mark.timeout(1500)
def test_any_sizes_and_features() -> None:
    """Sizes that divide into nothing, biases, windows in turn and a layer behind the last whole body,
    soft-caps, norms of heads, behind blocks."""
    sizes = {"hidden": 48, "heads": 3, "kv_heads": 1, "head_dim": 24, "rotated": 20, "wide": 100}
    odd = random_decoder(function="relu", bias=True, layers=5, vocabulary=71, context=24, **sizes)
    for change in FEATURES.values():
        odd = change(odd)
    config = replace(TINY, name="odd", n_lanes=4, lanes=4)
    accelerator = compiled_model(odd, config)
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
