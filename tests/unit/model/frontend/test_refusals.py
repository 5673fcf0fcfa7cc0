"""model.frontend.refusals, missing_parts: a line first, eight at most, all of it in the exception."""

from pathlib import Path

import pytest
import torch
from torch import nn

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.frontend.refusals import MissingPart, Place, Problem, first_line, is_installed, refusal
from tests.unit.model.frontend.causal_classes import config_of, model_of

LIBRARY = "/usr/lib/python3/dist-packages/library/model.py"
MINE = "/home/me/model.py"


def _problem(path: str, operation: str, reason: str = "") -> Problem:
    place = Place(path=path, kind="Block", lines=((MINE, "3"), (LIBRARY, "70")))
    return Problem(place=place, operation=operation, reason=reason)


def test_what_repeats_from_layer_to_layer_is_said_once() -> None:
    problems = [
        *(_problem(f"layers.{layer}.mlp", "aten.elu.default") for layer in range(3)),
        _problem("head", "aten.sort.default", "it has no order"),
    ]
    error = refusal(problems, "Linear")
    assert str(error).splitlines() == [
        "4 operations are not supported: elu and sort",
        f"  in 3 layers, first in layers.0.mlp (Block), {MINE}:3: aten.elu.default",
        f"  head (Block), {MINE}:3: aten.sort.default: it has no order",
        "Supported: Linear.",
    ]
    assert error.operations == (
        *(f"layers.{layer}.mlp (Block), {LIBRARY}:70: aten.elu.default" for layer in range(3)),
        f"head (Block), {LIBRARY}:70: aten.sort.default: it has no order",
    )


def test_at_most_eight_lines_follow() -> None:
    error = refusal([_problem(f"part{n}", f"aten.op{n}.default") for n in range(20)], "Linear")
    first, *lines = str(error).splitlines()
    assert first == "20 operations are not supported: op0, op1, op2, op3 and 16 more"
    assert len(lines) == 8
    assert lines[-2:] == ["  and 14 more in the error's `operations`", "Supported: Linear."]
    assert len(error.operations) == 20


def test_parts_come_before_operations() -> None:
    """What stands in a part is not said apart from it."""
    experts = MissingPart(name="mixture of experts", modules=tuple(f"layers.{n}.mlp" for n in range(32)))
    problems = [_problem("layers.0.mlp.router", "aten.topk.default"), _problem("head", "aten.sort.default")]
    error = refusal(problems, "Linear", [experts, MissingPart(name="convolution")], "Mixtral, 32 layers")
    assert str(error).splitlines() == [
        "mixture of experts and convolution are not supported yet: Mixtral, 32 layers",
        "  mixture of experts: in 32 layers, first in layers.0.mlp",
        f"  head (Block), {MINE}:3: aten.sort.default",
    ]
    assert error.operations[-1] == f"head (Block), {LIBRARY}:70: aten.sort.default"


@pytest.mark.parametrize(
    ("file", "installed"),
    [(LIBRARY, True), (MINE, False), ("<string>", True), (torch.__file__, True), (__file__, False)],
)
def test_files_of_installed_packages(file: str, installed: bool) -> None:
    assert is_installed(file) == installed


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n  no timm \nmore")) == "no timm"
    assert first_line(KeyError()) == "KeyError"


MODELS = {
    "mixtral": [
        "mixture of experts is not supported yet: Mixtral, 2 layers",
        "  mixture of experts: in 2 layers, first in model.layers.0.mlp",
    ],
    "mamba": [
        "recurrent state is not supported yet: Mamba, 2 layers",
        "  recurrent state: in 2 layers, first in layer 0",
    ],
    "rwkv": [
        "recurrent state is not supported yet: Rwkv, 2 layers",
        "  recurrent state: the model returns state",
    ],
    "minicpm3": [
        "latent attention (MLA) is not supported yet: MiniCPM3, 2 layers",
        "  latent attention (MLA): the configuration has kv_lora_rank 16",
    ],
    "xlnet": [
        "a cache other than keys and values is not supported yet: XLNet, 2 layers",
        "  a cache other than keys and values: the model returns mems",
    ],
    "openai-gpt": [
        "a model without a cache is not supported yet: OpenAIGPT, 2 layers",
        "  a model without a cache: it returns logits alone",
    ],
    "cpmant": [
        "a decision that depends on values is not supported yet: CpmAnt, 2 layers",
        "  a decision that depends on values: what it computes depends on a decision about values, which a "
        "graph cannot take",
    ],
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_parts_of_models(kind: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(model_of(config_of(kind)))
    assert str(caught.value).splitlines()[:2] == MODELS[kind]


class Vision(nn.Module):
    """Its class token and positions are refused by themselves, whatever becomes of the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 8, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.positions = nn.Parameter(torch.randn(1, 50, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token, patches], 1)
        tokens = tokens + self.positions
        return torch.lgamma(tokens)


def test_operations_behind_the_first_that_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(Vision(), torch.zeros(1, 3, 32, 32))
    source = Path(__file__).read_text().splitlines()

    def line(text: str) -> str:
        return f"{__file__}:{next(n for n, line in enumerate(source, 1) if text in line)}"

    forward = line("patches = self.patches(x)")
    assert list(caught.value.operations) == [
        f"patches (Conv2d), {forward}: aten.conv2d.default: the windows of its convolution are 8 x 8 and its "
        "stride is 4 x 4; convolutions whose stride is their window can be compiled",
        f"the module (Vision), {line('torch.cat([self')}: aten.cat.default: it joins a constant to a value "
        "that is computed at run time",
        f"the module (Vision), {line('tokens + self')}: aten.add.Tensor: a constant of shape [1, 50, 16] "
        "differs from token to token",
        f"the module (Vision), {line('torch.lgamma(')}: aten.lgamma.default",
    ]
