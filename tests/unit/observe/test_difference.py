"""What is said of a token that differs: element, values, and who is at fault."""

import numpy as np
import pytest

from streamgen.api.accelerator import Accelerator
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.observe.difference import Expectation, _compare
from streamgen.observe.probe import _expected
from streamgen.runtime.arrays import packed, padded
from streamgen.runtime.observed import Watched
from tests.shared.accelerators import by_hand, values


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return by_hand()


@pytest.fixture(scope="module")
def expectation(accelerator: Accelerator) -> Expectation:
    """What a run of the hand-made graph puts on its edges."""
    inputs = {
        info.name: padded(info, formats.round_f24(values(*info.shape)), 1)
        for info in accelerator.manifest.buffers
        if info.role == "input"
    }
    edges = accelerator.graph.edges
    expected, _ = _expected(accelerator.graph, inputs, {}, edges)
    return Expectation(accelerator.graph, edges, expected, 2)


def watched(expectation: Expectation, changes: dict[str, tuple[int, int]], difference=None) -> Watched:
    """All tokens passed, but for the edges of `changes`, by name."""
    names = [edge.name for edge in expectation.edges]
    assert set(changes) <= set(names)
    passed = tuple(
        changes.get(name, (len(tokens), len(tokens)))
        for name, tokens in zip(names, expectation.expected, strict=True)
    )
    return Watched(passed=passed, difference=difference)


ADD, STORE = "fork_load_one_o.o_0 -> add.i_a", "add.o -> store_add_result.i"


def index(expectation: Expectation, name: str) -> int:
    return [edge.name for edge in expectation.edges].index(name)


def test_complete(expectation: Expectation) -> None:
    seen = watched(expectation, {})
    assert expectation.complete(seen)
    assert expectation.difference(seen) is expectation.owed(seen) is expectation.absent(seen) is None


@pytest.mark.parametrize("side", ["i", "o"])
def test_other_token(expectation: Expectation, side: str) -> None:
    k = index(expectation, STORE)
    content = expectation.expected[k][9].copy()
    content[4] ^= 1  # the second element, of 24 bits
    golden = formats.decode("f24", expectation.expected[k][9][None], (1, 4))[0, 0, 1]
    wrong = formats.decode("f24", content[None], (1, 4))[0, 0, 1]
    passed = (9, 8) if side == "i" else (10, 9)
    found = expectation.difference(watched(expectation, {STORE: passed}, (k, side, 77, content.tobytes())))
    assert found is not None
    assert (found.kind, found.place, found.run, found.cycle, found.token) == ("edge", STORE, 2, 77, 9)
    assert found.element == (1, 5) and (found.expected, found.seen) == (str(golden), str(wrong))
    assert found.node == ("add" if side == "i" else None)
    verdict = "made by add (Binary)" if side == "i" else "the token entered the FIFO of this edge correctly"
    assert str(found) == (
        f"edge {STORE} differs from the golden model first, at token 9 (of 16), cycle 77 of run 2\n"
        f"  element [1, 5] of f24: expected {golden!s}, got {wrong!s}\n  {verdict}"
    )


def test_one_too_many(expectation: Expectation) -> None:
    k = index(expectation, STORE)
    content = expectation.expected[k][0].tobytes()
    found = expectation.difference(watched(expectation, {STORE: (16, 16)}, (k, "i", 500, content)))
    assert str(found) == (
        f"edge {STORE} differs from the golden model first, at token 16 (of 16), cycle 500 of run 2\n"
        "  expected no token, got an extra token\n  made by add (Binary)"
    )


CASES = {
    "a kernel that gives nothing": ({STORE: (5, 5)}, "add", STORE, 5, "goes into"),
    "its reader waits": ({STORE: (5, 5), ADD: (12, 12)}, "fork_load_one_o", ADD, 12, "goes into"),
    "a store that takes nothing": ({STORE: (16, 14)}, "store_add_result", STORE, 14, "comes out of"),
    "a store that lets its kernel wait": (
        {STORE: (12, 10), ADD: (14, 12)}, "store_add_result", STORE, 10, "comes out of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes, node, edge, token, verb", CASES.values(), ids=CASES)
def test_tokens_that_stop(
    expectation: Expectation,
    changes: dict[str, tuple[int, int]],
    node: str,
    edge: str,
    token: int,
    verb: str,
) -> None:
    assert all(e.depth == 2 for e in expectation.edges if e.name in (ADD, STORE))
    found = expectation.owed(watched(expectation, changes))
    assert found is not None
    assert (found.node, found.place, found.token, found.cycle) == (node, edge, token, None)
    assert (found.expected, found.seen) == ("a token", f"none that {verb} the FIFO")


def test_tokens_that_stop_on_some_edges_only(expectation: Expectation) -> None:
    """Nobody is to blame when not all edges are seen; the first token that is absent is named."""
    k = index(expectation, STORE)
    one = Expectation(expectation.graph, [expectation.edges[k]], [expectation.expected[k]], 1)
    seen = Watched(passed=((16, 3),), difference=None)
    assert one.owed(seen) is None
    found = one.absent(seen)
    assert found is not None and (found.node, found.token) == ("store_add_result", 3)
    found = one.absent(Watched(passed=((4, 3),), difference=None))
    assert found is not None and (found.node, found.token) == ("add", 4)


def test_wrong_memory(accelerator: Accelerator, expectation: Expectation) -> None:
    info = next(b for b in accelerator.manifest.buffers if b.name == "add_result")
    array = padded(info, formats.round_f24(values(2, 30, seed=5)), 1)
    image = packed(info, array, 1)
    wrong = bytearray(image)
    wrong[4 * 33 + 2] ^= 1  # rows of 32 elements lie in tokens of 4
    found = expectation.stored(info, 1, image, bytes(wrong))
    assert (found.kind, found.place, found.node) == ("output", "add_result", "store_add_result")
    assert (found.element, found.token, found.tokens) == ((1, 1), 8, 16)
    assert found.expected == str(array[1, 1]) != found.seen
    assert found.verdict == "all edges are right; store_add_result (Store) wrote the memory"


@pytest.mark.parametrize(
    "byte, element, expected, seen",
    [
        (3, (0, 3), "7", "6"),
        (35 + 31, (0, 63), "7", "6"),
        (32, (0, 0), "shift 2", "shift 3"),
        (35 + 33, (0, 32), "group sum 224", "group sum 225"),
    ],
)
def test_groups_of_codes(byte: int, element: tuple[int, int], expected: str, seen: str) -> None:
    tokens = np.zeros((1, 1, 64), formats.MX)
    tokens["code"], tokens["shift"] = 7, 2
    itensor = ITensor((1, 64), "mxi8s", (1,), (1,), ((0,), ()))
    one = formats.encode("mxi8s", tokens)[0]
    two = one.copy()
    two[byte] ^= 1
    assert _compare(itensor, 0, one, two) == (element, expected, seen)


def test_equal_texts_show_their_bits() -> None:
    itensor = ITensor((1,), "f24", (1,), (1,), ((0,),))
    nan = formats.encode("f24", np.array([[np.nan]], np.float32))[0]
    other = nan | np.array([1, 0, 0], np.uint8)
    assert _compare(itensor, 0, nan, other) == ((0,), "nan (7fc00000)", "nan (7fc00100)")
