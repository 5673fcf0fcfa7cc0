"""Frames: inputs of different numbers of tokens, and images, in one graph."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.policy import limited
from streamgen.model.frames import Frame
from streamgen.model.frontend import import_any
from streamgen.model.frontend.frames import frames_of, layouts_of
from streamgen.model.graph.interpret import exact
from streamgen.model.nests import Interface
from streamgen.model.operations import Attention
from tests.shared.framed_modules import HEADS, MODULES, SHAPES, WIDTH, framed_module, of_transformers

CONFIG = CompileConfig(weights="w8")
NEAR = 0.08  # 8-bit weights and activations; small matrices of random numbers hide little of their rounding


def _leaves(nest: Any) -> list[Any]:
    nest = dict(nest) if hasattr(nest, "items") else nest
    return [leaf for leaf in pytree.tree_leaves(nest) if leaf is not None]


def _computed(graph: Any, interface: Interface, given: tuple[Any, ...]) -> Any:
    """The results of the golden model."""
    compute, taken = exact(graph.quantised(CONFIG.numbers(False))), interface.taken(given)
    ids = graph.vocabularies
    by_sequence = {
        name: array.reshape(-1, graph.tokens, *([] if name in ids else array.shape[-1:]))
        for name, array in taken.items()
    }
    count = len(next(iter(by_sequence.values())))
    found = [compute({name: array[n] for name, array in by_sequence.items()})[0] for n in range(count)]
    values = {name: np.concatenate([rows[name] for rows in found]) for name in found[0]}
    return interface.rebuilt(values, given)


def _require_near(found: list[np.ndarray], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted)
    for rows, tensor in zip(found, wanted, strict=True):
        assert rows.shape == tuple(tensor.shape)
        gap = np.linalg.norm(rows - tensor.numpy()) / np.linalg.norm(tensor.numpy())
        assert gap < NEAR, gap


@pytest.mark.parametrize("name", MODULES)
def test_own_modules(name: str) -> None:
    module, example = framed_module(name)
    graph, interface = import_any(module, example)
    assert interface is not None and graph.tokens == max(f.size for f in interface.frames.values())
    other = tuple(x.flip(-1) for x in example)  # other numbers than those of the trace
    with torch.no_grad():
        wanted = _leaves(module(*other))
    again = Interface.from_json(interface.to_json())
    _require_near(_leaves(_computed(graph, again, tuple(x.numpy() for x in other))), wanted)


@pytest.mark.parametrize("family", SHAPES)
def test_models_of_transformers(family: str) -> None:
    model, example = of_transformers(family, SHAPES)
    graph, interface = import_any(model, example)
    assert interface is not None
    with torch.no_grad():
        wanted = model(**example)
    found = _computed(graph, interface, ({name: x.numpy() for name, x in example.items()},))
    names = [name for name, rows in found.items() if rows is not None]
    assert names
    for name in names:
        _require_near(_leaves(found[name]), _leaves(wanted[name]))


def test_a_batch_is_a_loop() -> None:
    """The graph of one image holds for several."""
    module, _ = framed_module("patches")
    example = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    graph, interface = import_any(module, (example,))
    assert interface is not None and interface.only == {1: 10}
    images = torch.cat([example, example.flip(2)])
    with torch.no_grad():
        _require_near([_computed(graph, interface, (images.numpy(),))], [module(images)])


def test_masks_of_ones() -> None:
    """An encoder beside a decoder takes the mask of a tokenizer, as long as it hides nothing."""
    model, example = of_transformers("BART", SHAPES)
    example["attention_mask"] = torch.ones(1, 6, dtype=torch.int64)
    graph, interface = import_any(model, example)
    assert interface is not None and not interface.masks["attention_mask"].pads
    given = {name: x.numpy() for name, x in example.items()}
    with torch.no_grad():
        wanted = model(**example).last_hidden_state
    _require_near([_computed(graph, interface, (given,))["last_hidden_state"]], [wanted])
    drawn = interface.given({name: array[0] for name, array in interface.taken((given,)).items()})
    assert [array.shape for array in drawn] == [x.shape for x in example.values()]
    given["attention_mask"] = np.array([[1, 1, 1, 1, 1, 0]])
    with pytest.raises(
        ValueError, match=r"^input 'attention_mask' hides tokens; the module was compiled for"
    ):
        interface.taken((given,))


def test_relative_places_of_a_text() -> None:
    """With an example they hold for its number of tokens; without one, nobody has said that number."""
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 48, "vocab_size": 50, "max_position_embeddings": 40}
    model = transformers.MPNetModel(transformers.MPNetConfig(**sizes)).eval()
    ids = torch.randint(3, 50, (1, 6))
    graph, interface = import_any(model, ids)
    assert interface is not None and interface.only == {1: 6}
    with torch.no_grad():
        wanted = model(ids).last_hidden_state
    _require_near([_computed(graph, interface, (ids.numpy(),))["last_hidden_state"]], [wanted])
    with pytest.raises(UnsupportedOperationError, match="biases of scores"):
        import_any(model)


def test_places_of_keys() -> None:
    """Shorter keys lie at the end of the frame, and no query sees the places before them."""
    module, example = framed_module("cross, longer queries")
    graph, _ = import_any(module, example)
    (attention,) = (o.op for o in graph.operations if isinstance(o.op, Attention))
    assert (attention.start, attention.causal, attention.biased) == (3, False, False)


def test_a_mask_of_blocks_is_a_bias() -> None:
    graph, _ = import_any(*framed_module("relative places"))
    (attention,) = (o.op for o in graph.operations if isinstance(o.op, Attention))
    assert attention.biased and not attention.causal


class Sum(nn.Module):
    """Neighbours in a sequence, which lie in different rows."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[1:] + x[:-1] + y[:1]


class Begun(nn.Module):
    """A learned first token in front of fewer tokens than the keys that they attend to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        x = x + self.attend(x, x, x)[0]
        return x + self.attend(x, memory, memory)[0]


def test_a_first_token_is_the_neighbour_of_the_others() -> None:
    """Its place is not the first one of the frame, which is longer."""
    torch.manual_seed(2)
    module, example = Begun().eval(), (torch.randn(1, 3, WIDTH), torch.randn(1, 7, WIDTH))
    graph, interface = import_any(module, example)
    assert interface is not None and graph.tokens == 7
    with torch.no_grad():
        wanted = [module(*example)]
    _require_near([_computed(graph, interface, tuple(x.numpy() for x in example))], wanted)


def test_neighbours_are_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="other tokens in its places"):
        import_any(Sum(), (torch.randn(4, 1024), torch.randn(6, 1024)))


@pytest.mark.parametrize(
    ("convolution", "reason"),
    [
        (nn.Conv2d(2, 8, 4, 2), "its stride is 2 x 2"),
        (nn.Conv2d(2, 8, 2, 2, padding=1), "the padding"),
        (nn.Conv2d(2, 8, 2, 2, groups=2), "2 groups"),
        (nn.Conv1d(2, 8, 3), "windows of its convolution are 3 and its stride is 1"),
    ],
)
def test_other_convolutions_are_refused(convolution: nn.Module, reason: str) -> None:
    image = torch.randn(1, 2, 64, 64) if isinstance(convolution, nn.Conv2d) else torch.randn(1, 2, 8192)
    with pytest.raises(UnsupportedOperationError, match=reason):
        import_any(nn.Sequential(convolution, nn.Flatten(2)).eval(), (image,))


def test_constants_beside_ids_are_refused() -> None:
    class Prefixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.first = nn.Embedding(9, 8), torch.tensor([[1]])

        def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.rows(torch.cat([self.first, ids], 1)) + x

    with pytest.raises(UnsupportedOperationError, match="joins constants to ids"):
        import_any(Prefixed().eval(), (torch.zeros(1, 3, dtype=torch.int64), torch.randn(1, 4, 8)))


def test_layouts_of_images() -> None:
    """Patches of a convolution and of views; pixels row by row are a layout, too."""
    module, example = framed_module("patches")
    leaves, spec = pytree.tree_flatten((example, {}))
    found = frames_of(leaves, layouts_of(module, leaves, spec))
    assert found is not None
    (frame,) = found.values()
    assert (frame.tokens, frame.view, frame.order) == (9, (3, 3, 4, 3, 4), (1, 3, 0, 2, 4))


def test_frames_of_arrays() -> None:
    image = np.arange(2 * 3 * 8 * 4, dtype=np.float32).reshape(2, 3, 8, 4)
    frame = Frame(
        size=5, tokens=4, dimension=1, shape=(0, 3, 8, 4), view=(3, 4, 2, 1, 4), order=(1, 3, 0, 2, 4)
    )
    rows = frame.framed("image", image)
    assert rows.shape == (2, 5, 24) and not rows[:, 0].any()
    assert np.array_equal(rows[1, 1].reshape(3, 2, 4), image[1, :, :2])
    assert np.array_equal(frame.own(rows), image)
    with pytest.raises(ValueError, match=r"has shape \(2, 3, 4, 4\); the module was compiled for \(any, 3"):
        frame.framed("image", image[:, :, :4])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 0}, "holds 0"),
        ({"tokens": 6}, "holds 6"),
        ({"view": (2, 2), "order": (0, 0)}, "no order"),
        ({"view": (2, 2), "order": (0, 1)}, "no view"),
    ],
)
def test_no_frames(fields: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"size": 5, "tokens": 4, "dimension": 1, "shape": (0, 4, 8), **fields}
    with pytest.raises(ValueError, match=reason):
        Frame(**given)


def test_a_pass_holds_a_sequence() -> None:
    graph, _ = import_any(*framed_module("patches"))
    assert limited(graph, CompileConfig())[0].max_tokens == 10
    with pytest.raises(ValueError, match=r"max_tokens is 8; the sequences of the module have 10 tokens"):
        limited(graph, CompileConfig(max_tokens=8))
