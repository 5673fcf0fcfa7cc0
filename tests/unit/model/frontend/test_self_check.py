"""streamgen.model.frontend.self_check: a graph that is not its module is refused, and the operation named."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import streamgen
from streamgen import cli
from streamgen.base.errors import ImportMismatchError
from streamgen.compiler.config import CompileConfig
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend import (
    checking,
    decoder,
    import_decoder,
    import_module,
    import_structured,
    self_attention,
    self_check,
    shapes_of,
)
from streamgen.model.frontend.difference import ComparedPass, require_equal
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.eager import EagerText
from streamgen.model.frontend.rotary import _Rotation
from streamgen.model.frontend.self_attention import Scores
from streamgen.model.frontend.self_check import require_equal_text
from streamgen.model.frontend.trace import SPELLINGS, aten
from streamgen.model.graph.interpret import Interpreter, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Binary, Constant, Linear, Norm, Rotary, Scalar, Unary
from tests.unit.model.frontend.causal_classes import config_of, model_of
from tests.unit.model.frontend.families import family
from tests.unit.model.frontend.plain_decoder import SIZES, Explicit, Plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

ROOT = Path(__file__).parents[4]
Patch = Callable[[pytest.MonkeyPatch], None]
KV_HEADS, HEAD_DIM = 1, 24  # of the families' caches


def _mismatch(module: nn.Module, *example: torch.Tensor, **sizes: int) -> ImportMismatchError:
    with pytest.raises(ImportMismatchError) as caught:
        import_module(module, example) if example else import_decoder(module, **sizes)
    return caught.value


# Importers that are wrong.


def _another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPELLINGS, aten.silu.default, [FUNCTIONS["relu"]])


def _without_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scores, "times", lambda scores, factor: scores)


def _without_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_attention, "_mask", lambda seen, before: (seen is not None, None))


def _without_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_attention, "_mask", lambda seen, before: (False, None))


def _without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Draft.linear

    def linear(draft: Draft, node: Any, wanted: str, op: Linear, source: str) -> str:
        return right(draft, node, wanted, replace(op, bias=None), source)

    monkeypatch.setattr(Draft, "linear", linear)


def _positions_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Rotary.reference

    def reference(op: Rotary, run: Any, x: np.ndarray) -> Any:
        keys = run.path.endswith("rotate_k")
        return right(op, replace(run, position=run.position + keys), x)

    monkeypatch.setattr(Rotary, "reference", reference)


def _other_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Rotation.operation
    monkeypatch.setattr(
        _Rotation,
        "operation",
        lambda self: replace(op := right(self), frequencies=tuple(1.01 * f for f in op.frequencies)),
    )


def _without_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Norm.__post_init__

    def made(norm: Norm) -> None:
        right(norm)
        object.__setattr__(norm, "epsilon", norm.epsilon * 1000)

    monkeypatch.setattr(Norm, "__post_init__", made)


def _without_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scalar, "reference", lambda op, run, x: x if op.function == "scale" else x * 1.0)


@pytest.mark.parametrize(
    ("name", "changes", "wrong", "operation"),
    [
        ("Qwen3", {}, _another_function, "layers[0].gated"),
        ("Qwen3", {}, _positions_from_one, "layers[0].rotate_k"),
        ("Qwen3", {}, _other_frequencies, "layers[0].rotate_k"),
        ("Qwen3", {"rms_norm_eps": 1e-3}, _without_epsilon, "layers[0].attention_norm"),
        ("GPT2", {}, _without_bias, "layers[0].k"),
        ("Gemma2", {}, _without_scale, "layers[0].attention"),
        ("Gemma2", {}, _without_scalars, "scale"),
        ("Mistral", {"sliding_window": 5}, _without_window, "layers[0].attention"),
        ("Mistral", {"sliding_window": 40}, _without_window, "layers[0].attention"),
        ("Mistral", {"sliding_window": None}, _without_mask, "layers[0].attention"),
    ],
)
def test_wrong_decoders(
    name: str, changes: dict[str, Any], wrong: Patch, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = family(name, **changes)
    wrong(monkeypatch)
    error = _mismatch(model)
    assert error.operation == operation
    assert error.difference > 1e-4


@pytest.mark.parametrize(
    ("kind", "wrong", "operation"),
    [
        (Plain, _another_function, "layers[0].gated"),
        (Plain, _without_mask, "layers[0].attention"),
        (Explicit, _without_scale, "layers[0].attention"),
        (Explicit, _other_frequencies, "layers[0].rotate_k"),
    ],
)
def test_wrong_decoders_of_ones_own(
    kind: type[nn.Module], wrong: Patch, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    module = kind().eval()
    wrong(monkeypatch)
    assert _mismatch(module, **SIZES).operation == operation


class Block(nn.Module):
    """Attention, a norm and a gate; two results."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.gate = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * 0.25 + torch.full((x.shape[-2], x.shape[-2]), -torch.inf).triu(1)
        x = self.norm(x + scores.softmax(-1) @ v)
        return functional.silu(self.gate(x)) * x, x


@pytest.mark.parametrize(
    ("wrong", "operation", "shape"),
    [
        (_another_function, "silu", (5, 16)),
        (_without_scale, "matmul_1", (2, 5, 16)),
        (_without_mask, "matmul_1", (2, 1, 16)),
        (_without_bias, "qkv_part", (2, 5, 16)),
        (_without_epsilon, "norm", (5, 16)),
    ],
)
def test_wrong_modules(
    wrong: Patch, operation: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    module = Block().eval()
    module.norm.eps = 1e-3
    wrong(monkeypatch)
    assert _mismatch(module, torch.zeros(shape)).operation == operation


def test_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how much, for which inputs; the operation and its module, without lines of installed packages."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 8), nn.SiLU()).eval()
    _another_function(monkeypatch)
    error = _mismatch(module, torch.zeros(3, 8))
    assert str(error) == (
        "the imported graph does not compute what the module computes: with random inputs of shape [3, 8], "
        f"'silu' differs by {error.difference:.1e} of its norm; 1e-04 is allowed for roundings.\n"
        "The first operation that differs is 'silu' (1 (SiLU)): relu.\n"
        "Please report it with the module. CompileConfig.check_import=False compiles the graph as it is."
    )


def test_another_number_of_tokens() -> None:
    """The graph of a module that does something else with one token more, which no trace has seen."""
    torch.manual_seed(1)
    module = Block().eval()
    found = import_structured(module, torch.zeros(2, 5, 16))
    right = module.forward

    def forward(x: torch.Tensor) -> Any:
        return right(x if x.shape[1] == 5 else x * 1.01)

    module.forward = forward  # type: ignore[method-assign]
    leaves, spec = pytree.tree_flatten(((torch.zeros(2, 5, 16),), {}))
    with pytest.raises(
        ImportMismatchError, match=r"with random inputs of shape \[2, 6, 16\], 'mul_1' differs"
    ):
        self_check.require_equal_module(found, module, leaves, spec, longest=1)


def _require_equal(graph: LogicalGraph, model: nn.Module, layers: int) -> None:
    def eager(floats: dict[str, torch.Tensor], kept: Sequence[int]) -> EagerText:
        return EagerText(model, floats, kept, KV_HEADS, HEAD_DIM)

    require_equal_text(graph, model, eager, layers=layers)


@pytest.mark.parametrize(("context", "tokens"), [(4, [2, 1, 1]), (9, [5, 1, 2, 4]), (48, [7, 1, 4, 4])])
def test_passes_fit_the_context(context: int, tokens: list[int]) -> None:
    """From an empty cache on; then up to the last position, where that is another one."""
    model = family("Qwen3", num_hidden_layers=1)
    with checking(False):
        graph = import_decoder(model, context=context)
    seen: list[tuple[int, int]] = []

    def noted(layer: nn.Module, args: Any, keywords: dict[str, Any], result: Any) -> None:
        positions = keywords["position_ids"][0]
        seen.append((int(positions[0]), len(positions)))

    model.model.layers[0].register_forward_hook(noted, with_kwargs=True)
    _require_equal(graph, model, 1)
    starts = [0, *np.cumsum(tokens[:2]).tolist(), context - 4]
    assert seen == list(zip(starts, tokens, strict=False))


@pytest.mark.parametrize(("tokens", "position"), [(7, 0), (1, 7), (4, 8)])
def test_every_pass_is_compared(tokens: int, position: int) -> None:
    """A module that is another one for so many tokens, a step of one among them."""
    model = family("Qwen3", num_hidden_layers=1)
    with checking(False):
        graph = import_decoder(model)
    right = model.lm_head.forward
    model.lm_head.forward = lambda x: right(x) * (1.01 if x.shape[1] == tokens else 1)
    said = f"with {tokens} token{'s' * (tokens > 1)} at position {position}, 'logits' differs by"
    with pytest.raises(ImportMismatchError, match=said) as caught:
        _require_equal(graph, model, 1)
    assert caught.value.operation == "logits"


def test_a_module_that_changes_is_found() -> None:
    """It is right in the second run, in which the operation is looked for."""
    model = family("Qwen3", num_hidden_layers=1)
    with checking(False):
        graph = import_decoder(model)
    right, calls = model.lm_head.forward, iter(range(99))
    model.lm_head.forward = lambda x: right(x) * (1.01 if next(calls) == 0 else 1)
    with pytest.raises(ImportMismatchError, match="with 7 tokens at position 0"):
        _require_equal(graph, model, 1)


def test_a_module_that_needs_a_cache() -> None:
    class Filled(Plain):
        def mask(self, positions: torch.Tensor, past: int) -> torch.Tensor:
            if past == 0:
                raise AssertionError("there is nothing before")
            return super().mask(positions, past)

    torch.manual_seed(1)
    assert str(_mismatch(Filled().eval(), **SIZES)) == (
        "the imported graph runs on 7 tokens at position 0; the module does not: there is nothing before\n"
        "A text begins with an empty cache and continues in passes of any number of tokens, at positions "
        "0, 1, 2 ...\n"
        "CompileConfig.check_import=False compiles the graph as it is."
    )


def test_positions_of_the_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that begin behind the padding index, and an importer that does not know of them."""
    torch.manual_seed(1)
    config = transformers.XLMRobertaXLConfig(
        **{"vocab_size": 71, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 48, "pad_token_id": 1, "is_decoder": True},
    )
    model = transformers.XLMRobertaXLForCausalLM(config).eval()
    import_decoder(model)
    monkeypatch.setattr(decoder, "offset_of", lambda model, layers: 0)
    error = _mismatch(model)
    assert error.operation == "position_rows_1"  # the other ones are types of tokens
    assert "with 7 tokens at position 0" in str(error)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_formats(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What 16 bits round is no difference; what is dropped is."""
    model = family("Qwen3", num_hidden_layers=1).to(dtype)
    import_decoder(model)
    _another_function(monkeypatch)
    assert _mismatch(model).operation == "layers[0].gated"


def test_large_models_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer of each form, the middle one and the last; the others are not run, and run again
    after."""
    monkeypatch.setattr(self_check, "LARGE", 0)
    model = family("Mistral", num_hidden_layers=9)
    runs: list[int] = []
    for index, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(lambda *_, index=index: runs.append(index))
    with checking(False):
        graph = import_decoder(model)
    runs.clear()
    _require_equal(graph, model, 9)
    assert runs == [0, 4, 8] * 4
    with torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.int64))
    assert runs[12:] == list(range(9))

    def wrong(index: int) -> LogicalGraph:
        path = f"layers[{index}].down"
        return graph.map(lambda own, o: Linear(1.5 * o.op.weight) if own == path else o.op)

    _require_equal(wrong(3), model, 9)
    with pytest.raises(ImportMismatchError) as caught:
        _require_equal(wrong(4), model, 9)
    assert caught.value.operation == "layers[4].down"
    assert "model.layers.4.mlp.down_proj" in str(caught.value)


def test_the_check_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the configuration; there is none of weights without values."""
    torch.manual_seed(1)
    module, example = Block().eval(), torch.zeros(5, 16)
    _another_function(monkeypatch)

    def stop(name: str, made: Any) -> None:
        raise InterruptedError(name)

    with pytest.raises(ImportMismatchError):
        streamgen.compile(module, example, after=stop)
    with pytest.raises(InterruptedError, match=r"^import$"):
        streamgen.compile(module, example, CompileConfig(check_import=False), after=stop)
    with pytest.raises(ImportMismatchError):
        shapes_of(module, example)
    assert "relu" in str(shapes_of(module.to("meta"), example))


def test_the_command_line_names_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _another_function(monkeypatch)
    assert cli.main(["report", f"{ROOT}/examples/mlp.py:mlp"]) == 1
    *_, first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "streamgen: the imported graph does not compute what the module computes: with random inputs"
    )
    assert second.startswith("The first operation that differs is ")
    assert last == "Please report it with the module. --no-check-import compiles the graph as it is."


def _passes(graph: LogicalGraph, noise: float) -> Callable[[Interpreter], Iterator[ComparedPass]]:
    """A module that is the graph in float64, but for noise."""
    x = np.random.default_rng(1).standard_normal((4, 8))

    def passes(interpreter: Interpreter) -> Iterator[ComparedPass]:
        wanted = reference(graph)({"x": x})[0]["y"]
        found = interpreter({"x": x})[0]
        yield ComparedPass(label="x", graph=found, module={"y": wanted * (1 + noise)})

    return passes


def test_roundings_are_no_difference() -> None:
    """As many as eight times what float32 takes from the graph itself, which here is 6e-4."""
    many = [np.full(8, value, np.float32) for value in (1e4, -1e4)]
    operations = (
        Operation("up", Constant(many[0]), ()),
        Operation("large", Binary("add"), ("x", "up")),
        Operation("down", Constant(many[1]), ()),
        Operation("y", Binary("add"), ("large", "down")),
    )
    graph = LogicalGraph((Input("x", 8),), operations, ("y",))
    module = nn.Identity()
    require_equal(graph, _passes(graph, 1e-3), module)
    with pytest.raises(ImportMismatchError, match=r"differs by 1\.\de-01 of its norm; [1-9]e-03 is allowed"):
        require_equal(graph, _passes(graph, 0.1), module)


def test_what_is_not_finite_is_not_compared() -> None:
    graph = LogicalGraph((Input("x", 2),), (Operation("y", Unary("relu"), ("x",)),), ("y",))

    def passes(row: list[float]) -> Any:
        return lambda interpreter: iter(
            [ComparedPass(label="x", graph={"y": np.array([[1.0, 2.0]])}, module={"y": np.array([row])})]
        )

    require_equal(graph, passes([1.0, np.inf]), nn.Identity())
    require_equal(graph, passes([np.nan, 2.0]), nn.Identity())


def test_a_class_that_differs_from_itself_behind_a_cache() -> None:
    """Moshi's takes several tokens behind the cache of its window otherwise than in one run."""
    config = config_of("moshi")
    assert config.sliding_window < sum(self_check.TOKENS)
    model = model_of(config)
    ids = torch.arange(3, 3 + sum(self_check.TOKENS))[None]
    with torch.no_grad():
        cache = model(ids[:, :8]).past_key_values
        behind, whole = model(ids[:, 8:], past_key_values=cache).logits, model(ids).logits
    assert not torch.allclose(behind, whole[:, 8:], atol=0.1)
    import_decoder(model)
