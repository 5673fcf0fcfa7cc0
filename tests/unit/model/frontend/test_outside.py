"""Operations of packages outside: found by the torch operator, right in every arithmetic, refused by name."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from streamgen.base.errors import CheckpointError, UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.model.calibration import calibrated
from streamgen.model.frontend import import_decoder, import_module, joined
from streamgen.model.graph.interpret import exact
from streamgen.model.operations import LastRow, registry
from streamgen.model.operations.storage import load_graph, save_graph
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from tests.shared.derived import check_derived
from tests.unit.model.frontend.outside_operations import OPERATIONS, Soft, half, product, soft, total
from tests.unit.model.frontend.plain_decoder import SIZES, Plain

TOKENS, FEATURES = 5, 24


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a notebook; forgotten after each test."""
    monkeypatch.setattr(registry, "_REGISTERED", {})
    for name, kind in OPERATIONS.items():
        registry.register(name, kind)
    yield


class Called(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.up = nn.Linear(FEATURES, 42)
        self.gain = nn.Parameter(torch.linspace(-2, 2, FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


MODULES = {
    "rows": lambda m, x: soft(x),
    "between matmuls": lambda m, x: soft(m.up(x)) @ m.up.weight,
    "padded": lambda m, x: soft(m.up(x) * 0.5),
    "fewer features": lambda m, x: half(m.up(x)),
    "an argument by name": lambda m, x: half(x, first=3),
    "a parameter": lambda m, x: product(x, m.gain),
    "a parameter in another layout": lambda m, x: product(x.view(-1, 4, 6), m.gain.view(4, 6)).flatten(1),
    "two inputs": lambda m, x: total(m.up(x), torch.relu(m.up(x))),
    "heads": lambda m, x: (
        total(*(y.view(-1, 4, 6).transpose(0, 1) for y in (x, torch.relu(x)))).transpose(0, 1).flatten(1)
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_same_as_torch_and_as_the_kernels(name: str) -> None:
    """The import compares reference and module; golden and the kernels that are derived are equal."""
    torch.manual_seed(0)
    graph = import_module(Called(MODULES[name]).eval(), torch.randn(TOKENS, FEATURES))
    assert any(type(operation.op) in OPERATIONS.values() for operation in graph.operations)
    given = round_f24(np.random.default_rng(1).normal(size=(TOKENS, FEATURES)))
    check_derived(graph, {graph.inputs[0].name: given})


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: soft(x.view(-1, 2, 12)).flatten(1), "rows must stay whole"),
        (lambda m, x: half(x, 13), "half of 24 features from 13 on cannot be"),
        (lambda m, x: half(x, -1), "first of a half is -1; 0 or more is needed"),
        (lambda m, x: product(x, x[:1].expand(x.shape)), "its arguments  are not the fields of"),
        (lambda m, x: total(x, m.gain), "its arguments 'b' are not the fields of"),
        (lambda m, x: total(x, x.flip(0)), "it joins values that have different tokens in the same places"),
    ],
)
def test_refused_by_name(
    function: Callable[..., torch.Tensor], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    with pytest.raises(UnsupportedOperationError, match=r"^1 operation is not supported: ") as error:
        import_module(Called(function).eval(), torch.randn(TOKENS, FEATURES))
    assert reason in str(error.value)


def test_an_operator_that_nobody_brings() -> None:
    del registry._REGISTERED["streamgen_test.soft"]
    with pytest.raises(UnsupportedOperationError) as error:
        import_module(Called(lambda m, x: soft(torch.lgamma(x))).eval(), torch.randn(TOKENS, FEATURES))
    first, second, *_ = str(error.value).splitlines()
    assert first == "2 operations are not supported: lgamma and streamgen_test.soft.default"
    assert second.endswith("aten.lgamma.default")
    registry._REGISTERED.clear()
    with pytest.raises(UnsupportedOperationError) as error:
        import_module(Called(lambda m, x: soft(x)).eval(), torch.randn(TOKENS, FEATURES))
    assert (
        str(error.value)
        .splitlines()[1]
        .endswith(
            "streamgen_test.soft.default: no package provides 'streamgen_test.soft' as an entry point of the "
            "group 'streamgen.operations'"
        )
    )


class Gated(Plain):
    """A decoder with an operation of a package in each layer, and one before its head."""

    def feed_forward(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block.down(soft(block.gate(x)) * block.up(x))

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return super().head(soft(x))


def test_a_language_model(tmp_path: Path) -> None:
    """Its layers are one body; it is stored by the class's name, and read again where that is trusted."""
    torch.manual_seed(0)
    graph = import_decoder(Gated().eval(), **SIZES).quantised(Numbers())
    (layers,) = (o.op for o in graph.operations if o.name == "layers")
    assert layers.period == 1 and "soft" in str(graph).lower()
    names = [operation.name for operation in graph.operations]
    assert [type(o.op) for o in graph.operations][names.index("last")] is LastRow
    assert isinstance(graph.op("soft"), Soft) and names.index("soft") > names.index("last")
    save_graph(graph, tmp_path / "model.npz")
    found = load_graph(tmp_path / "model.npz", trust=("tests",))
    assert (str(found), found.form()) == (str(graph), graph.form())
    ids = np.arange(9)
    for name, array in exact(graph)({"ids": ids})[0].items():
        assert exact(found)({"ids": ids})[0][name].tobytes() == array.tobytes()
    with pytest.raises(CheckpointError) as error:
        load_graph(tmp_path / "model.npz")
    assert str(error.value) == (
        f"{tmp_path / 'model.npz'} is not a stored model: the model uses Soft of "
        "tests.unit.model.frontend.outside_operations, and loading it runs that module. If you trust "
        "it and whoever wrote the folder, name it: load(folder, trust=('tests',)), or --trust tests"
    )
    with pytest.raises(CheckpointError, match=re.escape("install the package that defines it")):
        _load_changed(tmp_path / "changed.npz", tmp_path / "model.npz")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_language_model_in_hardware(tmp_path: Path) -> None:
    """Compiled, written, loaded: the simulated logits of a text of two passes are golden."""
    torch.manual_seed(0)
    config = CompileConfig(name="gated_text", max_tokens=4, context=24, channels=2, n_lanes=2, lanes=2)
    compiled = streamgen.compile(import_decoder(Gated().eval(), **SIZES), None, config)
    ids = np.array([3, 1, 4, 1, 5, 9])
    wanted = compiled.golden(ids)
    written = compiled.write(tmp_path / "written")
    found = streamgen.load(written, trust=("tests",))
    assert found.golden(ids).tobytes() == wanted.tobytes()
    assert found.run(ids).tobytes() == wanted.tobytes()
    with pytest.raises(CheckpointError, match=r"name it: load\(folder, trust=\('tests',\)\)"):
        streamgen.load(written).golden(ids)


def test_calibration_walks_through_it() -> None:
    """A matmul behind the operation is rounded for what the operation makes of the texts."""
    torch.manual_seed(0)
    graph = import_decoder(Gated().eval(), **SIZES)
    texts = [{"ids": np.random.default_rng(k).integers(0, 37, 16)} for k in range(4)]
    found = calibrated(graph, texts, Numbers())
    plain, fitted = (one.quantised(Numbers()).op("layers[0].linear_2").weight for one in (graph, found))
    assert (plain.codes != fitted.codes).any()


def _load_changed(path: Path, source: Path) -> None:
    """A stored model whose operations are of a package that is not there."""
    with np.load(source) as arrays:
        held = dict(arrays)
    tree = (
        held["tree"].tobytes().replace(b"tests.unit.model.frontend.outside_operations", b"nowhere.operations")
    )
    held["tree"] = np.frombuffer(tree, np.uint8)
    np.savez(path, **held)
    load_graph(path, trust=("nowhere",))
