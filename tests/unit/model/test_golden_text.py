"""The golden model of texts: near float64, the same bits for any split of a text, clear errors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streamgen.base.wording import alternatives
from streamgen.model.golden_text import GoldenModel, GoldenSession, vocabulary_of
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import exact_linear
from streamgen.numbers.quantisation import Numbers
from streamgen.numbers.weights import FORMATS
from streamgen.text.sampling import Sampler
from tests.shared.decoders import assembled, logits_of, random_decoder, random_parts

IDS = np.random.default_rng(11).integers(0, 70, 40)
W8_HEAD = {"logits": "w8"}


@pytest.fixture(scope="module")
def decoder() -> LogicalGraph:
    return random_decoder()


@pytest.fixture(scope="module")
def golden(decoder: LogicalGraph) -> GoldenModel:
    return GoldenModel(decoder.quantised(Numbers(by_layer=W8_HEAD)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interleaved": True, "kv_heads": 1},
        {"windows": (5, None)},
        {"rotated": 16, "kv_heads": 4},
        {"rotated": 0, "bias": True, "norm": "layer", "function": "gelu_tanh"},
        {"plus_one": True, "function": "gelu", "head_dim": 16, "rotated": 16},
        {
            "hidden": 80,
            "wide": 100,
            "head_dim": 20,
            "rotated": 20,
            "function": "relu",
        },  # none a multiple of 32
    ],
)
def test_near_float64(changes: dict[str, Any]) -> None:
    """With int8 weights and 16-bit probabilities what remains is the rounding of activations to 8 bits.

    That is an error of at most 2^-7 of the greatest of 32 elements, some 1 % of the rms, in each of 9 steps
    on the way; errors of single elements are independent, so 5 % of the rms of the logits is ample, and a
    wrong sign, pair, head or mask changes logits by as much as they are.
    """
    parts = random_parts(**changes)
    found = GoldenModel(assembled(parts).quantised(Numbers(weights="w8", p_bits=16))).logits(IDS)
    expected = logits_of(parts, IDS)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    error = np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean())
    assert error < 0.05


def test_any_split_gives_the_same_bits(golden: GoldenModel) -> None:
    whole = golden.logits(IDS)
    for pass_tokens in (1, 2, 7, 39):
        assert np.array_equal(golden.logits(IDS, pass_tokens), whole)
    session = golden.session()
    parts = [session.logits(IDS[:3]), session.last_logits(IDS[3:20])[None], session.logits(list(IDS[20:]))]
    assert session.position == 40
    assert np.array_equal(np.concatenate(parts), np.concatenate([whole[:3], whole[19:]]))
    session.reset()
    assert session.position == 0
    assert np.array_equal(session.logits(IDS[5:9]), golden.logits(IDS[5:9]))


def test_an_interrupted_pass_leaves_the_session(golden: GoldenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = golden.session()
    first = session.logits(IDS[:10])
    once, calls = exact_linear.ExactLinear.__call__, iter(range(100))

    def interrupted(self: Any, x: Any) -> np.ndarray:
        if next(calls) == 9:
            raise KeyboardInterrupt
        return once(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(exact_linear.ExactLinear, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.logits(IDS[20:30])
    assert session.position == 10
    rest = session.logits(IDS[10:])
    assert np.array_equal(np.concatenate([first, rest]), golden.logits(IDS))


def test_generate(golden: GoldenModel) -> None:
    """Greedy is the argmax of each step; a sampler draws from the same logits; a stop id ends it."""
    ids = list(IDS[:5])
    for _ in range(6):
        ids.append(int(golden.logits(ids)[-1].argmax()))
    assert list(golden.generate(IDS[:5], 6)) == ids[5:]
    first = ids.index(ids[7], 5) - 4
    assert list(golden.generate(IDS[:5], 6, stop={ids[7]})) == ids[5 : 5 + first]
    assert list(golden.generate(IDS[:5], 0)) == []

    def draw() -> Iterator[int]:
        return golden.generate(IDS[:5], 6, sampler=Sampler(temperature=2.0, seed=4))

    drawn = list(draw())
    assert drawn == list(draw())
    assert drawn != ids[5:]
    sampler = Sampler(temperature=2.0, seed=4)
    assert drawn == [sampler(golden.logits([*IDS[:5], *drawn[:n]])[-1]) for n in range(6)]


def test_grids_and_configurations_are_used(decoder: LogicalGraph) -> None:
    results = [
        GoldenModel(decoder.quantised(Numbers(**{"by_layer": W8_HEAD, **options}))).logits(IDS[:8])
        for options in (
            {},
            {"weights": "w8"},
            {"by_layer": {}},
            {"by_layer": {**W8_HEAD, "layers[[]0].*": "w8"}},
            {"group": 64},
            {"scale_bits": 12},
            {"minimum": False},
            {"p_bits": 8},
        )
    ]
    for index, one in enumerate(results):
        assert all(not np.array_equal(one, other) for other in results[:index])


def test_bad_ids(golden: GoldenModel) -> None:
    session = golden.session()
    session.logits(IDS[:30])
    for ids, kind, message in (
        ([], ValueError, "ids have the shape [0]; [tokens] with at least one is needed"),
        ([[1, 2]], ValueError, "ids have the shape [1, 2]; [tokens] with at least one is needed"),
        ([1.0], TypeError, "ids are float64; integers are needed"),
        ([3, 70], ValueError, "ids[1] is 70; ids are 0 to 69"),
        ([-1], ValueError, "ids[0] is -1; ids are 0 to 69"),
        ([0] * 35, ValueError, "30 tokens, 35 more and 0 to come are 65; the context is 64"),
    ):
        with pytest.raises(kind) as error:
            session.logits(ids)
        assert str(error.value) == message
        assert session.position == 30
    for call, message in (
        (lambda: golden.generate([1] * 60, 5), "0 tokens, 60 more and 5 to come are 65; the context is 64"),
        (lambda: golden.generate([1], -1), "-1 new tokens are asked for; at least 0 are needed"),
        (lambda: golden.logits([1], pass_tokens=0), "pass_tokens is 0; at least 1 is needed"),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == message
    assert isinstance(session, GoldenSession)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "w2"}, f"Numbers.weights is 'w2'; it must be None, {alternatives(FORMATS)}"),
        (
            {"by_layer": {"head": "f32"}},
            f"Numbers.by_layer is {{'head': 'f32'}}; it must be {alternatives([*FORMATS, 'f24'])} for each",
        ),
        ({"group": 16}, "Numbers.group is 16; it must be 32, 64 or 128"),
        ({"scale_bits": 4}, "Numbers.scale_bits is 4; it must be 8 to 16"),
        ({"p_bits": 17}, "Numbers.p_bits is 17; it must be 8 to 16"),
    ],
)
def test_bad_configurations(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        Numbers(**options)
    assert str(error.value) == message


@pytest.mark.parametrize(("path", "form"), [("embedding", "w4"), ("layers[1].q", "f24")])
def test_a_format_of_the_other_kind(path: str, form: str) -> None:
    with pytest.raises(ValueError) as error:
        random_decoder().quantised(Numbers(by_layer={path: form}))
    allowed = alternatives(["f24", "w8"] if form == "w4" else FORMATS)
    assert str(error.value).startswith(f"weight of {path}")
    assert str(error.value).endswith(f": by_layer gives it '{form}'; it must be {allowed}")


def test_a_bad_weight_is_named() -> None:
    model = random_decoder()
    weight = model.op("layers[1].down").weight
    weight[3, 4] = np.nan
    with pytest.raises(ValueError) as error:
        model.quantised(Numbers())
    assert str(error.value) == "weight of layers[1].down: weight[3, 4] is nan; all must be finite"
    assert vocabulary_of(model) == 70
