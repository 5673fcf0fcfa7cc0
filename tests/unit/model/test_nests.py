"""Arguments and results of modules come and go as torch nests them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.model.nests import Interface, leading_rule
from tests.shared.accelerators import values
from tests.shared.campaigns import sampled

A, B, C = values(2, 3, 4), values(2, 3, 5), values(6, 4)
NESTED = Interface(
    arguments=({"a": "a", "b": ["b"]}, None),
    results=[{"y": "y", "none": None}, ("z",)],
    leading={"y": None, "z": (-2,)},
    only={},
)


def test_values_by_name_and_back() -> None:
    given = ({"a": A, "b": [B]}, None)
    assert {name: id(array.base) for name, array in NESTED.taken(given).items()}.keys() == {"a", "b"}
    found = NESTED.rebuilt({"y": A, "z": C.reshape(2, 3, 4)}, given)
    assert isinstance(found, list) and isinstance(found[1], tuple) and found[0]["none"] is None
    np.testing.assert_array_equal(found[0]["y"], A)
    np.testing.assert_array_equal(found[1][0], C)


def test_as_text() -> None:
    again = Interface.from_json(NESTED.to_json())
    assert again == NESTED
    for text in ("{}", "[]", "3", '{"arguments": 3}', NESTED.to_json().replace('"leading"', '"lead"')):
        with pytest.raises(ValueError, match=r"^interface[.:]"):
            Interface.from_json(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (({"a": A, "b": [B]},), r"run takes 2 inputs \(a, b\); 1 are given"),
        (({"a": A}, None), r"inputs\[0\] must be dict of a, b; dict of a is given"),
        (({"a": A, "b": B}, None), r"inputs\[0\]\['b'\] must be list of 1; ndarray is given"),
        ((A, B), r"inputs\[0\] must be dict of a, b; ndarray is given"),
    ],
)
def test_other_nests_are_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        NESTED.taken(given)


def test_extents_that_a_module_fixes() -> None:
    found = Interface(arguments=("x",), results="y", leading={"y": None}, only={1: 1})
    assert found.taken((values(5, 1, 4),))["x"].shape == (5, 4)
    assert found.rebuilt({"y": values(5, 7)}, (values(5, 1, 4),)).shape == (5, 1, 7)
    with pytest.raises(ValueError, match="the module fixes dimension 1 at 1"):
        found.taken((values(5, 2, 4),))
    assert found.given({"x": values(5, 4)})[0].shape == (5, 1, 4)
    pairs = Interface(arguments=("x",), results="y", leading={"y": None}, only={0: 2})
    assert pairs.given({"x": values(6, 4)})[0].shape == (2, 3, 4)
    with pytest.raises(ValueError, match="tokens is 5; the module takes multiples of 2"):
        pairs.given({"x": values(5, 4)})


def test_features_of_several_dimensions() -> None:
    images, rows = values(5, 3, 2, 2), values(5, 12)
    found = Interface(
        arguments=("x",),
        results=("y", "z"),
        leading={"y": None, "z": (0,)},
        only={},
        trailing={"x": (3, 2, 2), "y": (6, 2), "z": ()},
    )
    assert Interface.from_json(found.to_json()) == found
    np.testing.assert_array_equal(found.taken((images,))["x"], images.reshape(5, 12))
    assert found.given({"x": rows})[0].shape == images.shape
    y, z = found.rebuilt({"y": rows, "z": values(5, 1)}, (images,))
    assert y.shape == (5, 6, 2) and z.shape == (5,)
    renamed = found.renamed({"x": "a", "y": "b", "z": "c"})
    assert renamed.trailing == {"a": (3, 2, 2), "b": (6, 2), "c": ()}
    for wrong in (rows, images[0], values(5, 2, 3, 2)):
        with pytest.raises(ValueError, match=r"its last dimensions must be \(3, 2, 2\), behind one or more"):
            found.taken((wrong,))
    for trailing, message in (
        ({"w": (2,)}, "names of inputs or results"),
        ({"x": ()}, "extents of 1 or more"),
    ):
        with pytest.raises(ValueError, match=f"interface.trailing: expected {message}"):
            Interface.from_json(replace(found, trailing=trailing).to_json())


@pytest.mark.parametrize(
    ("result", "inputs", "rule"),
    [
        ((6,), (2, 3), (-2,)),
        ((2, 2), (2, 1, 2), (0, 2)),
        ((2, 1, 3), (2, 3), (0, -1, 1)),
        ((1, 3), (3,), (-1, 0)),
        ((3,), (3, 1), (-2,)),
        ((3, 2), (2, 3), None),
        ((2, 3, 2), (2, 3), None),
    ],
)
def test_leading_dimensions(
    result: tuple[int, ...], inputs: tuple[int, ...], rule: tuple[int, ...] | None
) -> None:
    assert leading_rule(inputs, inputs) is None
    if rule is None:
        with pytest.raises(GraphError, match="leading dimensions"):
            leading_rule(result, inputs)
    else:
        assert leading_rule(result, inputs) == rule


class Nested(torch.nn.Module):
    """Two inputs in a dict; results in another, one of them with its tokens in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = torch.nn.Linear(24, 40), torch.nn.LayerNorm(40)

    def forward(self, x: dict[str, torch.Tensor]) -> dict[str, Any]:
        y = self.norm(self.up(x["a"]) + x["b"])
        return {"shares": y.softmax(-1).reshape(-1, 40), "rest": [y, x["a"]]}


BLOCKS: dict[str, tuple[Any, Any, list[int]]] = {
    "nested": (Nested, {"a": (2, 3, 24), "b": (2, 3, 40)}, [6]),
    "encoder layer": (
        lambda: torch.nn.TransformerEncoderLayer(32, 2, 48, batch_first=True),
        (2, 3, 32),
        [3, 3],
    ),
    "parts of rows": (lambda: Parts(), (5, 40), [5]),
    "attention": (lambda: Itself(torch.nn.MultiheadAttention(32, 2)), (3, 1, 32), [3]),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sampled(BLOCKS, ["encoder layer"]))
def test_blocks_of_torch_on_their_verilog(name: str, tmp_path: Path) -> None:
    """Bits of golden, near torch, in torch's nest, in the cycles that are predicted; loaded again."""
    make, shapes, passes = BLOCKS[name]
    torch.manual_seed(0)
    module = make().eval()
    if isinstance(shapes, dict):
        given: Any = {name: torch.from_numpy(values(*shape)) for name, shape in shapes.items()}
    else:
        given = torch.from_numpy(values(*shapes))
    config = CompileConfig(name="block", max_tokens=6, channels=2, multipliers=128, weights="w8")
    accelerator = streamgen.compile(module, (given,), config)
    again = streamgen.load(accelerator.write(tmp_path / "block"))
    found, golden = again.run(given), accelerator.golden(given)
    leaves, spec = torch.utils._pytree.tree_flatten(module(given))
    ours, our_spec = torch.utils._pytree.tree_flatten(found)
    assert our_spec == spec
    for one, expected, eager in zip(ours, torch.utils._pytree.tree_leaves(golden), leaves, strict=True):
        assert one.tobytes() == expected.tobytes() and one.shape == tuple(eager.shape)
        assert np.abs(one - eager.detach().numpy()).max() < 0.1
    cycles = again.report().cycles
    assert cycles is not None
    assert abs(sum(map(again.predict, passes)) / cycles - 1) < 0.05
    again.close()


class Parts(torch.nn.Module):
    """Pieces of rows, put together in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Linear(55, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = x.softmax(-1).chunk(2, -1)
        turned = torch.cat([high * 2, x[..., 7:22], low], -1)
        return self.down(turned), turned


class Itself(torch.nn.Module):
    """Attention of tokens to themselves."""

    def __init__(self, attention: torch.nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]
