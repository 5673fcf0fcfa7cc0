"""`streamgen generate`: the text, the choice of tokens, and the printed costs; errors are messages."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Library
from tokenizers import decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from streamgen import cli
from streamgen.api.language_model import LanguageModel
from streamgen.base.wording import alternatives, counted
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import default_checkpoint
from streamgen.model.operations import Linear
from streamgen.numbers.weights import FORMATS
from streamgen.runtime.generation import Pass
from tests.shared.decoders import TINY, WORDS, opened_model, tiny_accelerator, tiny_decoder
from tests.shared.generating import CHOICE, CHOSEN, PROMPT, Call, caller, golden_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny decoder, written. Tests do not change it."""
    return tiny_accelerator().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[LanguageModel]:
    opened_folder = opened_model(folder)
    yield opened_folder
    opened_folder.close()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(tmp_path, monkeypatch, capsys)


def changed(folder: Path, place: Path, **notes: Any) -> Path:
    """A copy with other notes."""
    copy = Path(shutil.copytree(folder, place))
    fields = json.loads((copy / "model.json").read_text()) | notes
    (copy / "model.json").write_text(json.dumps(fields))
    return copy


def costs(what: str, passes: list[Pass], model: LanguageModel) -> str:
    """A line of costs at 300 MHz, with the manifest's memory rate on every channel."""
    tokens, cycles = sum(run.tokens for run in passes), sum(run.cycles for run in passes)
    moved = sum(run.bytes or 0 for run in passes)
    memory = model.manifest.memory
    most = TINY.channels * 64 * cycles * memory.beats / memory.cycles
    return (
        f"{what}: {counted(tokens, 'token')} in {counted(len(passes), 'pass', 'passes')}, "
        f"{cycles / tokens:,.0f} cycles a token, "
        f"{300e6 / (cycles / tokens):,.1f} tokens/s at 300 MHz, {moved / tokens / 1e3:,.1f} kB a token, "
        f"{100 * moved / most:.0f}% of the memory limit"
    )


def test_greedy_text_and_costs(call: Call, folder: Path, opened: LanguageModel) -> None:
    """The text equals golden. The figures equal those of the same passes, counted independently."""
    code, out, err = call(folder, "--prompt", PROMPT, "--max-new-tokens", 5, "--compare")
    assert (code, err) == (0, "")
    device = opened.device()
    before = len(device.passes)
    list(opened.generate(PROMPT, 5))
    passes = device.passes[before:]
    assert [run.tokens for run in passes] == [4, 2, 1, 1, 1, 1]
    assert out.splitlines() == [
        PROMPT + golden_text(5),
        costs("prompt", passes[:2], opened),
        costs("each token after it", passes[2:], opened),
        "5 tokens equal the golden model's",
    ]


def test_costs_are_those_of_the_weights(call: Call, folder: Path) -> None:
    """A pass reads the codes of all matmuls, and little more than the images. A single pass has one line."""
    code, out, err = call(folder, "--prompt", PROMPT[:4], "--max-new-tokens", 1)
    assert (code, err) == (0, "")
    _, line = out.splitlines()
    cost = re.fullmatch(
        r"prompt: 4 tokens in 1 pass, .* ([\d.]+) kB a token, (\d+)% of the memory limit", line
    )
    assert cost is not None and 0 < int(cost[2]) < 100
    matmuls = {path: o.op.weight.size for path, o in tiny_decoder().walk() if isinstance(o.op, Linear)}
    head = matmuls.pop("logits")
    images = sum(file.stat().st_size for file in folder.glob("weights_*.bin"))
    assert sum(matmuls.values()) / 2 + head < 4e3 * float(cost[1]) < 1.2 * images


def test_weights_are_read_back(call: Call, folder: Path) -> None:
    code, out, err = call(folder, "--prompt", PROMPT, "--max-new-tokens", 1, "--check-weights")
    assert (code, err) == (0, "") and out.endswith("\nThe weights on the device equal the written weights.\n")


def test_a_trace_of_a_text(call: Call, folder: Path, tmp_path: Path) -> None:
    """All passes, also if a stop text ends the text early; its own text and costs are those without it."""
    given = (folder, "--prompt", PROMPT, "--max-new-tokens", 5, "--stop", golden_text(5)[2])
    plain = call(*given)
    trace = tmp_path / "t.json"
    code, out, err = call(*given, "--trace", trace, "--check-weights")
    *shown, checked, said = out.splitlines()
    assert (code, shown, err) == (0, plain[1].splitlines(), "")
    assert said == f"timeline -> {trace}; https://ui.perfetto.dev shows it" and checked.startswith("The weig")
    events = json.loads(trace.read_text())["traceEvents"]
    runs = [e["args"]["tokens"] for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert runs == [4, 2, 1, 1]


def test_choice_among_tokens(call: Call, folder: Path) -> None:
    """temperature, top_k, top_p and seed all have an effect, and a seed fixes the text."""
    expected = golden_text(5, **CHOICE)
    for arguments, same in (
        ([*CHOSEN, "--compare"], True),
        ([*CHOSEN, "--seed=8"], False),
        ([*CHOSEN, "--top-k=2"], False),
        ([*CHOSEN, "--top-p=0.1"], False),
        ([*CHOSEN, "--temperature=0.1"], False),
    ):
        code, out, err = call(folder, "--prompt", PROMPT, "--max-new-tokens", 5, *arguments)
        assert (code, err) == (0, "")
        assert (out.splitlines()[0] == PROMPT + expected) == same, arguments
    assert golden_text(5) != expected


def test_the_end_of_a_text(call: Call, folder: Path, tmp_path: Path) -> None:
    """The end token of the tokenizer ends the text and is not printed."""
    text = golden_text(8)
    end = WORDS.encode(text[3])[0]
    copy = Path(shutil.copytree(folder, tmp_path / "ends"))
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    code, out, err = call(copy, "--changed-files", "--prompt", PROMPT, "--max-new-tokens", 8, "--compare")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == PROMPT + text[: text.index(text[3])]
    assert lines[-1] == f"{text.index(text[3]) + 1} tokens equal the golden model's"


def test_an_answer(call: Call, folder: Path) -> None:
    """The prompt is a message. The template of the test gives the same text for it."""
    code, out, err = call(folder, "--prompt", PROMPT, "--max-new-tokens", 3, "--chat")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [PROMPT, golden_text(3)]


def test_wrong_weights_are_seen(call: Call, folder: Path, tmp_path: Path) -> None:
    """Golden and hardware read the same weight files, so their digests find a change."""
    copy = Path(shutil.copytree(folder, tmp_path / "spoilt"))
    for file in copy.glob("weights_*.bin"):
        image = np.fromfile(file, np.uint8)
        image[: image.size // 2] ^= 0x11
        image.tofile(file)
    for place in ("golden", "simulator"):
        code, out, err = call(copy, "--prompt", PROMPT, "--max-new-tokens", 8, "--on", place)
        assert code == 1, out
        assert re.match(r"streamgen: .*weights_\d\.bin is not the file that was written", err)


def test_no_tokens(call: Call, folder: Path) -> None:
    assert call(folder, "--prompt", PROMPT, "--max-new-tokens", 0) == (0, f"{PROMPT}\n", "")


def test_compiles_writes_and_opens_again(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--output writes the same folder as the API, and options reach the compiler."""
    seen: list[tuple[object, CompileConfig | None]] = []

    def compiled(
        model: object, inputs: None, config: CompileConfig, *_: object, **__: object
    ) -> LanguageModel:
        seen.append((model, config))
        return tiny_accelerator()

    monkeypatch.setattr("streamgen.cli.texts.compile", compiled)
    monkeypatch.setattr("streamgen.cli.texts.load_tokenizer", lambda source: WORDS)
    options = ["--name=tiny", "--max-tokens=4", "--context=72", "--channels=2", "--n-lanes=2", "--lanes=2"]
    text = PROMPT + golden_text(2)
    Path("model.gguf").write_text("compiled below, in name only")
    for model, given in (("model.gguf", options), ("default", ["--no-minimum", "--clock-mhz=250"])):
        place = tmp_path / f"written by {model}"
        code, out, err = call(model, "--prompt", PROMPT, "--max-new-tokens", 2, "-o", place, *given)
        assert (code, err, out.splitlines()[0]) == (0, "", text)
        for file in folder.iterdir():
            assert (place / file.name).read_bytes() == file.read_bytes(), file.name
    assert seen == [
        ("model.gguf", replace(TINY, goal="small")),
        (default_checkpoint(), CompileConfig(goal="small", minimum=False, clock_mhz=250.0)),
    ]
    code, out, err = call("model.gguf", "--prompt", PROMPT, "-o", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"streamgen: {tmp_path} exists and is not an empty folder; give a new name or remove it\n"


def checkpoint(folder: Path, tokens: int = 64) -> Path:
    """The tiny decoder and its tokenizer, in the files of transformers. tokens: size of the vocabulary; the
    model has 64."""
    decoder = tiny_decoder()
    layers = decoder.by_name["layers"].op.layers
    attention, table = layers[0].op("attention"), decoder.op("embedding").table
    config = {
        "model_type": "llama",
        "hidden_size": table.shape[1],
        "intermediate_size": layers[0].features("gate"),
        "num_hidden_layers": len(layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": decoder.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "vocab_size": len(table),
    }
    tensors = {
        "model.embed_tokens": table,
        "model.norm": decoder.op("norm").weight,
        "lm_head": decoder.op("logits").weight,
    }
    names = {
        "input_layernorm": "attention_norm",
        **{f"self_attn.{name}_proj": name for name in "qkvo"},
        "post_attention_layernorm": "feed_forward_norm",
        **{f"mlp.{name}_proj": name for name in ("gate", "up", "down")},
    }
    for index, layer in enumerate(layers):
        for name, ours in names.items():
            tensors[f"model.layers.{index}.{name}"] = layer.op(ours).weight
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({f"{name}.weight": array for name, array in tensors.items()}, folder / "model.safetensors")
    words = Library(BPE(vocab={chr(ord("!") + i): i for i in range(tokens)}, merges=[]))
    words.pre_tokenizer, words.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_a_folder_of_safetensors_with_its_tokenizer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text equals that of the same weights from another source. The model has no end token."""
    options = ["--name=tiny", "--max-tokens=4", "--context=72", "--channels=2", "--n-lanes=2", "--lanes=2"]
    place = checkpoint(tmp_path / "small")
    code, out, err = call(place, "--prompt", PROMPT, "--max-new-tokens", 2, "--compare", *options)
    assert (code, err, out.splitlines()[0]) == (0, "", PROMPT + golden_text(2))
    monkeypatch.setenv("PATH", "")  # the golden model needs no compiler, and nothing is compiled for it
    monkeypatch.setattr("streamgen.cli.texts.compile", None)
    golden = call(place, "--prompt", PROMPT, "--max-new-tokens", 2, "--on", "golden", *options)
    assert golden == (0, f"{PROMPT}{golden_text(2)}\n", "")


def test_a_tokenizer_of_another_model(call: Call, tmp_path: Path) -> None:
    """Model and tokenizer do not belong together."""
    options = ["--name=tiny", "--max-tokens=4", "--context=72", "--channels=2", "--n-lanes=2", "--lanes=2"]
    place = checkpoint(tmp_path / "foreign", 70)
    code, out, err = call(place, "--prompt", "A", *options)
    assert (code, out) == (1, "")
    assert err == (f"streamgen: {place}: the tokenizer has 70 tokens, the vocabulary of the model 64\n")


def gguf_file(path: Path, **fields: int) -> Path:
    """A GGUF file of the architecture llama with few fields and a tokenizer of three tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in {
        "context_length": 96,
        "embedding_length": 64,
        "attention.head_count": 4,
        **fields,
    }.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("", 2, "Missing argument 'SOURCE'"),
        ("{folder} --prompt ''", 2, "the prompt is empty; it needs at least one token"),
        ("{folder}", 2, "the prompt is missing; give --prompt TEXT, --prompt-file FILE, or a text on stan"),
        (
            "nowhere --prompt A",
            2,
            "'nowhere' is not a folder, a GGUF file, a config.json or module:function",
        ),
        (
            "empty --prompt A",
            2,
            "the folder empty has neither a written accelerator nor a checkpoint with config.json",
        ),
        ("text --prompt A", 1, "text: not a GGUF file; it starts with b'no m', not b'GGUF'"),
        ("short.gguf --prompt A", 1, "short.gguf: truncated or corrupt GGUF"),
        ("experts.gguf --prompt a", 1, "llama.expert_count is 8, which is not supported"),
        ("{folder} --prompt A --context 8", 2, "{folder} is already compiled; --context cannot change it"),
        (
            "{folder} --prompt A --n-lanes 2 --no-minimum",
            2,
            "{folder} is already compiled; --n-lanes, --minimum cannot change it",
        ),
        (
            "{folder} --prompt AB --max-new-tokens 71",
            2,
            "the prompt has 2 tokens; with --max-new-tokens 71 the text exceeds the context of 72 tokens",
        ),
        ("{folder} --prompt A --max-new-tokens -1", 2, "-1 is not in the range x>=0"),
        ("{folder} --prompt A --temperature hot", 2, "'hot' is not a valid float"),
        ("{folder} --prompt A --temperature -1", 2, "--temperature is -1.0; it must be 0 or a finite number"),
        ("{folder} --prompt A --temperature nan", 2, "--temperature is nan; it must be 0 or a finite number"),
        ("{folder} --prompt A --top-k 0", 2, "--top-k is 0; it must be None or at least 1"),
        ("{folder} --prompt A --top-p 1.5", 2, "--top-p is 1.5; it must be above 0 and at most 1"),
        ("changed --prompt A", 1, "model.json is not the file that was written"),
        ("{folder} --prompt A --seed -3", 2, "--seed is -3; it must be None or at least 0"),
        (
            "{folder} --prompt A --compare --temperature 1",
            2,
            "--compare at a temperature above 0 needs --seed",
        ),
        ("{folder} --prompt A --beams 3", 2, "No such option '--beams'"),
        ("m.gguf --prompt A --sizing tight", 2, "'tight' is not one of 'conservative', 'normal'"),
        ("m.gguf --prompt A --channels 40", 2, "--channels is 40; it must be None or 1 to 32"),
        ("m.gguf --prompt A --weights w2", 2, f"--weights is 'w2'; it must be None, {alternatives(FORMATS)}"),
        (
            "silent --prompt A --changed-files",
            2,
            "this model came without a tokenizer, so the prompt must be ids below",
        ),
        ("damaged --prompt A --changed-files", 2, "model.json cannot be read"),
    ],
)
def test_errors(call: Call, folder: Path, tmp_path: Path, arguments: str, code: int, message: str) -> None:
    """All errors come before anything runs."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no model")
    whole = gguf_file(tmp_path / "experts.gguf", expert_count=8).read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:90])
    if "silent" in arguments:
        changed(folder, tmp_path / "silent", missing="this model came without a tokenizer")
    if arguments.startswith("changed"):
        changed(folder, tmp_path / "changed")
    if "damaged" in arguments:
        changed(folder, tmp_path / "damaged", config={"name": "x", "lanes": 3})
    given = [word if word != "''" else "" for word in arguments.format(folder=folder).split()]
    found, out, err = call(*given)
    assert (found, out) == (code, "")
    assert message.format(folder=folder) in err and "Traceback" not in err
    assert "\n" not in err.removeprefix("Usage:").partition("Error: ")[2].rstrip("\n")


def test_a_prompt_that_is_no_text(call: Call, folder: Path) -> None:
    assert call(folder, "--prompt", "a\udc80") == (2, "", "streamgen: text[1] is the surrogate '\\udc80'\n")


def test_no_compiler(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    message = "streamgen: simulation needs a C++ compiler, and none is on PATH: apt-get install g++\n"
    assert call(folder, "--prompt", PROMPT) == (1, "", message)


def test_interrupted(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a pass prints the text so far, and no traceback."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamgen.runtime.simulator.SimulatedDevice.wait", interrupt)
    assert call(folder, "--prompt", PROMPT) == (130, PROMPT, "\ninterrupted\n")


def test_help_teaches(call: Call) -> None:
    """The examples of the help are valid command lines."""
    code, out, _ = call("--help")
    assert code == 0 and "Examples:" in out
    command = cli.streamgen.commands["generate"]
    for text in (command.help or "", cli.streamgen.help or ""):
        lines = re.findall(r"^ *streamgen generate (.*-p .*)$", text, re.MULTILINE)
        assert lines
        for line in lines:
            arguments = [part.strip('"') for part in re.findall(r'"[^"]*"|\S+', line)]
            with command.make_context("generate", arguments) as context:
                assert context.params["prompt"] and " " not in context.params["source"]
