"""Arguments that are masks or lengths, in the forms of many authors."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph.interpret import reference
from streamgen.model.nests import Interface
from streamgen.model.operations import Attention
from tests.shared.sequences import results_of

F, T, HEADS, VOCABULARY = 8, 6, 2, 20
Form = Callable[[torch.Tensor], torch.Tensor]


class Masked(nn.Module):
    """Attention that sees what `seen` makes of a mask, with a mean over the tokens or without; or logits."""

    def __init__(self, seen: Form, *, pooled: bool = False, logits: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.rows, self.places, self.qkv = (
            nn.Embedding(VOCABULARY, F),
            nn.Embedding(9, F),
            nn.Linear(F, 3 * F),
        )
        self.head = nn.Linear(F, VOCABULARY) if logits else nn.Identity()
        self.seen, self.pooled = seen, pooled

    def attended(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.rows(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (
            t.view(*ids.shape, HEADS, F // HEADS).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        seen = self.seen(mask)
        scores = q @ k.transpose(-2, -1) / 2
        scores = scores.masked_fill(~seen, -1e9) if seen.dtype == torch.bool else scores + seen
        y: torch.Tensor = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        return self.head(x + y)

    def result(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.attended(ids, mask)
        if not self.pooled:
            return y
        shown = self.seen(mask).reshape(len(ids), -1, 1).float()
        return (y * shown).sum(1) / shown.sum(1)


class Named(Masked):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.result(ids, mask)


class Padded(Masked):
    def forward(self, ids: torch.Tensor, key_padding: torch.Tensor) -> torch.Tensor:
        return self.result(ids, key_padding)


class Counted(Masked):
    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.result(ids, torch.arange(ids.shape[1]) < lengths[:, None])


class Unnamed(Masked):
    def forward(self, ids: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        return self.result(ids, extra)


LOW = float("-inf")
OF_TOKENS: dict[str, tuple[type[Masked], Form, Form]] = {
    # a module, a mask of the tokens that are shown, and what attention sees by that mask
    "integers": (Named, lambda s: s.long(), lambda m: m[:, None, None] == 1),
    "bool": (Named, lambda s: s, lambda m: m[:, None, None]),
    "bool, any name": (Unnamed, lambda s: s, lambda m: m[:, None, None]),
    "hides": (Padded, lambda s: ~s, lambda m: ~m[:, None, None]),
    "hides, int32": (Padded, lambda s: (~s).int(), lambda m: (m == 0)[:, None, None]),
    "floats": (Named, lambda s: s.float(), lambda m: (m > 0.5)[:, None, None]),
    "four dimensions": (Named, lambda s: s[:, None, None], lambda m: m),
    "lengths": (Counted, lambda s: s.sum(1), lambda m: m[:, None, None]),
    "lengths, int32": (Counted, lambda s: s.sum(1).int(), lambda m: m[:, None, None]),
}
OF_SCORES: dict[str, tuple[type[Masked], Form, Form]] = {
    # the same of [T, T], True where a token sees another
    "bool shows": (Named, lambda s: s, lambda m: m),
    "bool hides": (Unnamed, lambda s: ~s, lambda m: ~m),
    "added": (Named, lambda s: torch.zeros(s.shape).masked_fill(~s, LOW), lambda m: m),
    "added, finite": (Named, lambda s: torch.zeros(s.shape).masked_fill(~s, -1e9), lambda m: m),
    "three dimensions": (Named, lambda s: s[None].long(), lambda m: (m == 1)[:, None]),
    "four dimensions": (Unnamed, lambda s: s[None, None], lambda m: m),
}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(5))


def shows(*lengths: int, tokens: int) -> torch.Tensor:
    """bool [sequences, tokens] for sequences of these lengths."""
    return torch.arange(tokens) < torch.tensor(lengths)[:, None]


def found_of(module: nn.Module, example: tuple[torch.Tensor, ...]) -> Callable[..., np.ndarray]:
    graph, interface = import_any(module.eval(), example, longest=9)
    assert interface is not None and Interface.from_json(interface.to_json()) == interface
    run = reference(graph)
    return lambda *given: results_of(run, graph, interface, [x.numpy() for x in given])


@pytest.mark.parametrize(
    ("form", "pooled", "padded_example"),
    # a mask of floats in an example shows all tokens
    [(form, pooled, not pooled and form != "floats") for form in OF_TOKENS for pooled in (False, True)],
)
def test_masks_of_tokens(form: str, pooled: bool, padded_example: bool) -> None:
    """Shown rows are those of torch; hidden ones are NaN. The example may have padding."""
    kind, mask_of, seen = OF_TOKENS[form]
    module = kind(seen, pooled=pooled)
    example = shows(T, T - 2, tokens=T) if padded_example else shows(T, tokens=T)
    found = found_of(module, (drawn(*example.shape), mask_of(example)))
    for shown in (shows(4, tokens=4), shows(1, tokens=1), shows(5, 2, 1, tokens=5)):
        given = drawn(*shown.shape), mask_of(shown)
        with torch.no_grad():
            wanted = module(*given).numpy()
        if not pooled:
            wanted = np.where(shown.numpy()[..., None], wanted, np.nan)
        np.testing.assert_allclose(found(*given), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "causal"),
    # zeros that are added to all scores are an input of floats
    [(form, causal) for form in OF_SCORES for causal in (False, True) if causal or "added" not in form],
)
def test_masks_of_scores(form: str, causal: bool) -> None:
    """The mask of a run must be that of the example, for its own number of tokens."""
    kind, mask_of, seen = OF_SCORES[form]
    module = kind(seen)
    pattern = (lambda n: torch.ones(n, n, dtype=torch.bool).tril()) if causal else _all
    found = found_of(module, (drawn(1, T), mask_of(pattern(T))))
    for tokens in (2, 4, 9):
        given = drawn(2, tokens), mask_of(pattern(tokens))
        with torch.no_grad():
            np.testing.assert_allclose(found(*given), module(*given).numpy(), atol=1e-5)
    other = _all if causal else (lambda n: torch.ones(n, n, dtype=torch.bool).tril())
    sees = "each token sees itself and those before it" if causal else "each token sees all"
    with pytest.raises(ValueError, match=f"the module was compiled with a mask by which {sees}. Compile it"):
        found(drawn(1, 4), mask_of(other(4)))


def _all(tokens: int) -> torch.Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool)


@pytest.mark.parametrize("form", OF_SCORES)
def test_masks_of_language_models(form: str) -> None:
    """A model that is given its causal mask continues texts by itself."""
    kind, mask_of, seen = OF_SCORES[form]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    graph, interface = import_any(kind(seen, logits=True).eval(), (drawn(1, T), mask_of(causal)))
    assert interface is None and is_language_model(graph)
    assert all(o.op.causal for o in graph.operations if isinstance(o.op, Attention))


@pytest.mark.parametrize("batch_first", [True, False])
def test_layers_of_torch(batch_first: bool) -> None:
    """nn.TransformerEncoder, with both of its masks; tokens first, padding is refused."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            layer = nn.TransformerEncoderLayer(F, HEADS, 16, batch_first=batch_first)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)

        def forward(
            self, x: torch.Tensor, mask: torch.Tensor, src_key_padding_mask: torch.Tensor
        ) -> torch.Tensor:
            y: torch.Tensor = self.layers(x, mask=mask, src_key_padding_mask=src_key_padding_mask)
            return y

    def placed(x: torch.Tensor) -> torch.Tensor:
        return x if batch_first else x.transpose(0, 1)

    module = Encoder().eval()
    hides = torch.ones(T, T, dtype=torch.bool).triu(1)
    found = found_of(module, (placed(torch.randn(1, T, F)), hides, torch.zeros(1, T, dtype=torch.bool)))
    shown = shows(4, 2 if batch_first else 4, tokens=4)[: 2 if batch_first else 1]
    given = placed(torch.randn(len(shown), 4, F)), hides[:4, :4], ~shown
    with torch.no_grad():
        wanted = np.where(placed(shown).numpy()[..., None], module(*given).numpy(), np.nan)
    np.testing.assert_allclose(found(*given), wanted, atol=1e-5)
    if not batch_first:
        with pytest.raises(ValueError, match=r"'src_key_padding_mask'\[0, 3\] is True and hides a token"):
            found(given[0], given[1], ~shows(3, tokens=4))


@pytest.mark.parametrize("dims", ["[]", "[0, -1]", "[-2, 1]"])
def test_wrong_files(dims: str) -> None:
    kind, mask_of, seen = OF_TOKENS["bool"]
    _, interface = import_any(kind(seen).eval(), (drawn(1, T), mask_of(shows(T, tokens=T))))
    assert interface is not None
    text = interface.to_json()
    assert '"dims": [0, 1]' in text
    with pytest.raises(ValueError, match="are no dimensions of a mask"):
        Interface.from_json(text.replace('"dims": [0, 1]', f'"dims": {dims}'))


class Leaks(Padded):
    def forward(self, ids: torch.Tensor, key_padding: torch.Tensor) -> torch.Tensor:
        return self.attended(ids, key_padding).mean(1)


class Chooses(Padded):
    def forward(self, ids: torch.Tensor, key_padding: torch.Tensor) -> torch.Tensor:
        return self.attended(ids, key_padding).argmax(-1)


@pytest.mark.parametrize("kind", [Leaks, Chooses])
def test_padding_that_cannot_be_left_out(kind: type[Masked]) -> None:
    """A result that depends on hidden tokens, and integers for each token, which cannot be NaN."""
    module = kind(lambda m: ~m[:, None, None]).eval()
    shown = shows(T, tokens=T)
    found = found_of(module, (drawn(1, T), ~shown))
    with torch.no_grad():
        wanted = module(drawn(2, 4), torch.zeros(2, 4, dtype=torch.bool)).numpy()
    np.testing.assert_allclose(found(drawn(2, 4), torch.zeros(2, 4, dtype=torch.bool)), wanted, atol=1e-5)
    with pytest.raises(ValueError, match=r"'key_padding'\[0, 3\] is True and hides a token; padding can be"):
        found(drawn(1, 4), ~shows(3, tokens=4))
    with pytest.raises(ValueError, match=r"^example input 1 \(key_padding\) hides tokens, and a result dep"):
        import_any(module, (drawn(1, T), ~shows(T - 1, tokens=T)))


@pytest.mark.parametrize(
    ("form", "mask", "message"),
    [
        ("hides", torch.tensor([[False, True, False]]), "[0, 2] is False; a mask is zeros for the tokens"),
        ("hides", torch.ones(1, 3, dtype=torch.bool), "[0, 0] is True; a mask is zeros for the tokens of a"),
        ("hides", torch.zeros(1, 2, dtype=torch.bool), " has shape (1, 2); (1, 3) is needed"),
        ("integers", torch.tensor([[1, 2, 1]]), "[0, 1] is 2; a mask is ones for the tokens of a sequence"),
        ("lengths", torch.tensor([4]), "[0] is 4; a length is at least 1, and at most the number of tokens"),
        ("lengths", torch.tensor([0]), "[0] is 0; a length is at least 1, and at most the number of tokens"),
        ("lengths", torch.tensor([2, 3]), " has shape (2,); (1,) is needed"),
    ],
)
def test_bad_masks(form: str, mask: torch.Tensor, message: str) -> None:
    kind, mask_of, seen = OF_TOKENS[form]
    found = found_of(kind(seen), (drawn(1, T), mask_of(shows(T, tokens=T))))
    with pytest.raises(ValueError, match=re.escape(message)):
        found(drawn(1, 3), mask)


def test_a_mask_with_holes() -> None:
    flags = torch.tensor([[True, False, True, True, False, True]])
    with pytest.raises(UnsupportedOperationError, match="only scores of an attention can be masked"):
        import_any(Unnamed(lambda m: m[:, None, None]).eval(), (drawn(1, T), flags))


@pytest.mark.slow
def test_on_hardware(tmp_path: Path) -> None:
    """A row for each token with padding, and lengths, on the written Verilog, also of a loaded folder."""
    config = streamgen.CompileConfig(name="masked", max_tokens=6, weights="w8", goal="small")
    shown = shows(4, 2, tokens=4)
    for form in ("hides", "lengths"):
        kind, mask_of, seen = OF_TOKENS[form]
        module = kind(seen).eval()
        accelerator = streamgen.compile(module, (drawn(1, T), mask_of(shows(T, tokens=T))), config)
        given = drawn(2, 4), mask_of(shown)
        wanted = accelerator.golden(*given)
        with torch.no_grad():
            near = np.where(shown.numpy()[..., None], module(*given).numpy(), np.nan)
        np.testing.assert_allclose(wanted, near, atol=0.05)
        loaded = streamgen.load(accelerator.write(tmp_path / form.replace(",", "")))
        assert accelerator.run(*given).tobytes() == wanted.tobytes() == loaded.run(*given).tobytes()
