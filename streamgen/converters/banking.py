"""The geometry of a converter's memory: the atoms that move in a cycle, and their places.

An atom is the smallest unit that is moved: an element, or a group of 32 elements of an `mxi8` format. The
buffer of one window is a grid of words, n[r] atoms along dimension r; a word is the content of one address.
The source writes boxes of x[r] atoms, the target reads boxes of y[r] atoms, and n = lcm(x, y) along every
dimension. Boxes therefore never straddle a word: a write goes to one word, to the banks of its way, and a
read takes one word and selects its way. A box that is smaller than its token is moved piece by piece, in
row-major order, one piece per cycle.

Boxes lie on a grid of their own extents: x divides the source's token and the steps of its loops, y the
target's, and gcd(x, y) divides the distance `lo` between the first atoms of the two sides, so that both grids
can begin at a word. Among all such pairs `choose` takes the pair with the shortest window, then the shortest
sum of filling and draining, then the narrowest word, with at most MAX_WAYS ways of a word on either side and
a word at most MAX_WIDENING times as wide as the wider token.

The origin of the grid of words is a common line of both sides' grids of boxes. An atom of the source at
coordinate o lies in word (o - origin) // n. Words that the target reads have rows from 0 up; boxes of the
source in other words are dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, lcm, prod

MAX_WAYS = 64
MAX_WIDENING = 16


@dataclass(frozen=True)
class Loop:
    """A loop inside a window: its greatest trip count, its step in atoms along `dim` (None: re-use)."""

    trip: int
    step: int
    dim: int | None


@dataclass(frozen=True)
class Nest:
    """One side in a window: its token in atoms, and its loops, outermost first."""

    token: tuple[int, ...]
    loops: tuple[Loop, ...]

    def steps(self, dim: int) -> list[int]:
        """Steps along one dimension."""
        return [loop.step for loop in self.loops if loop.dim == dim]

    def extent(self, dim: int) -> int:
        """The number of atoms along one dimension from the first token's first to the last token's last."""
        return self.token[dim] + sum((loop.trip - 1) * loop.step for loop in self.loops if loop.dim == dim)


@dataclass(frozen=True)
class MemorySide:
    """One side's use of the memory. box: atoms moved per cycle. pieces: boxes in a token, by dimension. ways:
    boxes in a word, by dimension. start: word and way of the first box, by dimension."""

    box: tuple[int, ...]
    pieces: tuple[int, ...]
    ways: tuple[int, ...]
    start: tuple[tuple[int, int], ...]

    def move(self, dim: int, step: int) -> tuple[int, int]:
        """A step in atoms along `dim` as whole words and ways."""
        words, atoms = divmod(step, self.box[dim] * self.ways[dim])
        return words, atoms // self.box[dim]


@dataclass(frozen=True)
class Banking:
    """word: atoms of a word; rows: words of a window; both by dimension. clipped: dimensions along which
    the source leaves the window, so that boxes must be dropped."""

    word: tuple[int, ...]
    rows: tuple[int, ...]
    clipped: tuple[bool, ...]
    source: MemorySide
    target: MemorySide

    @property
    def words(self) -> int:
        """Words of a window."""
        return prod(self.rows)

    @property
    def strides(self) -> tuple[int, ...]:
        """The address distance of neighbouring words along each dimension, row-major."""
        return tuple(prod(self.rows[dim + 1 :]) for dim in range(len(self.rows)))


def choose(source: Nest, target: Nest, lo: Sequence[int]) -> Banking:
    """The geometry for a window. lo: the target's first atom relative to the source's first, by dimension."""
    rank = len(lo)
    fills = prod(loop.trip for loop in source.loops)
    reads = prod(loop.trip for loop in target.loops)
    tokens = (prod(source.token), prod(target.token))

    def price(boxes: tuple[tuple[int, int], ...]) -> tuple[int, int, int]:
        x, y = (prod(pair[side] for pair in boxes) for side in (0, 1))
        filling, draining = fills * (tokens[0] // x), reads * (tokens[1] // y)
        return max(filling, draining), filling + draining, _word(boxes)

    def fits(boxes: tuple[tuple[int, int], ...]) -> bool:
        word = _word(boxes)
        narrow = min(prod(x for x, _ in boxes), prod(y for _, y in boxes))
        return word <= MAX_WIDENING * max(tokens) and word <= MAX_WAYS * narrow

    options = [tuple(_boxes(source, target, dim, lo[dim])) for dim in range(rank)]
    boxes = min(filter(fits, product(*options)), key=price)

    word, rows, clipped, starts = [], [], [], []
    for dim, (x, y) in enumerate(boxes):
        n = lcm(x, y)
        origin = next(o for o in range(0, n, x) if (lo[dim] - o) % y == 0)
        first = (lo[dim] - origin) // n  # the word that is row 0
        last = (lo[dim] + target.extent(dim) - 1 - origin) // n
        begin = -origin - first * n  # of the source, seen from row 0
        end = (begin + source.extent(dim) - 1) // n
        word.append(n)
        rows.append(last - first + 1)
        clipped.append(begin < 0 or end > last - first)
        starts.append(((begin // n, begin % n // x), (0, (lo[dim] + begin) // y)))

    def side(index: int, nest: Nest) -> MemorySide:
        box = tuple(pair[index] for pair in boxes)
        return MemorySide(
            box,
            tuple(t // b for t, b in zip(nest.token, box, strict=True)),
            tuple(n // b for n, b in zip(word, box, strict=True)),
            tuple(start[index] for start in starts),
        )

    return Banking(tuple(word), tuple(rows), tuple(clipped), side(0, source), side(1, target))


def _word(boxes: tuple[tuple[int, int], ...]) -> int:
    return prod(lcm(*pair) for pair in boxes)


def _boxes(source: Nest, target: Nest, dim: int, lo: int) -> Iterator[tuple[int, int]]:
    """The possible pairs of extents of the two boxes along one dimension."""
    greatest = [gcd(nest.token[dim], *nest.steps(dim)) for nest in (source, target)]
    if greatest[0] == greatest[1] and lo % greatest[0] == 0:
        yield greatest[0], greatest[1]  # the best pair, with a word no wider than the tokens
        return
    for x in _divisors(greatest[0]):
        for y in _divisors(greatest[1]):
            if lo % gcd(x, y) == 0:
                yield x, y


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
