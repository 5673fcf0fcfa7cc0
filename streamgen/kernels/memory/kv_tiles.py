"""Tiles of the KV cache: rows of several channels side by side, then those of the pass, sent over again.

    tile k of head h = rows k*lanes ... k*lanes + lanes - 1 of it       zeros behind the last one

Rows of positions before the pass come from the channels' loads, in channel p mod channels, so a tile is a row
each of `lanes` neighbouring channels and is taken in one cycle. Rows of the pass itself come in on `i`,
position by position, head by head, and wait in a memory until the head that they belong to is put together,
one a cycle: nothing is read from memory that this pass has written. A cache that the host writes has no such
rows (`max_new` 0). A row of several `parts` (scales: those of all heads of a position) is sent part by part.

Rows of the pass may come in several `pieces`: of all positions some heads, or some parts of a row, before the
next ones, as a matmul makes them. What needs a piece does not wait for those behind it. Where pieces are of
rows, tiles with rows of the pass are put together piece by piece, each in words of its own.

Tiles go through a ring that holds the longest context once, or more. The last reading of a tile gives its
place free, and a tile can be read as soon as it is written: contexts that are read once pass in three cycles.
Where a tile has many parts, and blocks of memory more rows than a context has tiles, it is written in several
`words`, one a cycle: the first parts of each row in the first word.

    for each head of the layout, each part, `again` times: for each tile, its part
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen.artifact.kv_layout import KvLayout
from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Kind, Queue, QueueParams
from streamgen.gateware.stream import descriptor_layout, descriptor_signature
from streamgen.kernels.row_parts import lanes_before, ring_resources, ring_style, shares, wide_kind
from streamgen.numbers import formats
from streamgen.platform.boards import ULTRASCALE_PLUS


@dataclass(frozen=True, kw_only=True)
class KvTilesParams:
    """layout: the cache. lanes: positions of a tile. parts: of a row. pieces: the pieces in which rows of the
    pass come. max_new: positions of a pass; 0 if all rows lie in memory. max_again: the most times that a
    context is sent."""

    layout: KvLayout
    lanes: int
    parts: int
    pieces: int
    max_new: int
    max_again: int

    def __post_init__(self) -> None:
        lanes, channels, pieces = self.lanes, self.layout.channels, self.pieces
        heads, powers = self.layout.heads, [1 << k for k in range(self.parts.bit_length())]
        if heads > 1:
            cuts, cut = f"a divisor of {heads} heads", pieces > 0 and not heads % pieces
        else:
            cuts = f"a power of two that divides {self.parts} parts"
            cut = pieces in powers and not self.parts % pieces
        for name, value, law, holds in (
            ("lanes", lanes, f"a divisor of the {channels} channels", lanes > 0 and not channels % lanes),
            (
                "parts",
                self.parts,
                f"a divisor of the width, {self.layout.width}",
                self.parts > 0 and not self.layout.width % self.parts,
            ),
            ("pieces", pieces, cuts, cut),
            ("max_new", self.max_new, "at least 0", self.max_new >= 0),
            ("pieces", pieces, "1 without rows of the pass", pieces == 1 or self.max_new > 0),
            ("max_again", self.max_again, "at least 1", self.max_again >= 1),
        ):
            if not holds:
                raise ValueError(f"KvLoad.{name} is {value}; it must be {law}")

    @property
    def row_bits(self) -> int:
        return self.layout.width * formats.bits(self.layout.dtype)

    @property
    def turns(self) -> int:
        """The number of times that rows of all positions of the pass are put into tiles: once for each head
        or piece of a row."""
        return max(self.layout.heads, self.pieces)

    @property
    def row_pieces(self) -> int:
        """The number of pieces of a row; otherwise pieces consist of heads."""
        return self.pieces if self.layout.heads == 1 else 1

    @property
    def own_bits(self) -> int:
        """Bits of an input token of a row of the pass."""
        return self.row_bits // self.row_pieces

    @property
    def out_bits(self) -> int:
        """Bits of a sent tile."""
        return self.lanes * self.row_bits // self.parts

    @property
    def tiles(self) -> int:
        """Tiles of the longest context."""
        return 1 << max(1, ceil_log2(-(-self.layout.positions // self.lanes)))

    @property
    def depth(self) -> int:
        """Tiles of the ring: those of the longest context, or as many as fit its ultra RAM."""
        if self.ring_kind != "uram":
            return self.tiles
        return max(self.tiles, ULTRASCALE_PLUS.uram.rows // self.words)

    @property
    def words(self) -> int:
        """Words of a tile in the ring: the number that needs the fewest blocks, at least one for
        each piece."""
        if wide_kind(1, self.tiles) == "lutram":
            return self.row_pieces
        whole = self.lanes * self.row_bits
        counts = [1 << k for k in range(self.parts.bit_length()) if not self.parts % (1 << k)]
        counts = [count for count in counts if count >= self.row_pieces]
        return min(counts, key=lambda n: (ring_resources(whole // n, n * self.tiles, "bram").bram, n))

    @property
    def piece_words(self) -> int:
        """Words of a piece of a tile."""
        return self.words // self.row_pieces

    @property
    def word_bits(self) -> int:
        return self.lanes * self.row_bits // self.words

    @property
    def ring_kind(self) -> Kind:
        """What the ring is built of."""
        return wide_kind(self.word_bits, self.words * self.tiles)

    @property
    def own_depth(self) -> int:
        """Rows of a pass."""
        return 1 << max(1, ceil_log2(self.max_new * self.turns))

    @property
    def held_bits(self) -> int:
        """The memory of the ring and of the rows of the pass."""
        own = self.own_bits * self.own_depth if self.max_new else 0
        return self.row_bits * self.lanes * self.tiles + own

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Positions before the pass, positions of the pass if it has rows, and the number of times that a
        context is sent."""
        fields = (
            Field("position", bits_for(self.layout.positions)),
            Field("rows", bits_for(self.max_new)),
            Field("again", bits_for(self.max_again)),
        )
        return fields if self.max_new else (fields[0], fields[2])

    @property
    def queues(self) -> tuple[QueueParams, QueueParams]:
        """Queues of descriptors of contexts that must still be joined, and of those that must still
        be sent."""
        bits = sum(field.bits for field in self.descriptor_fields())
        return QueueParams(bits=bits, depth=4), QueueParams(bits=bits, depth=4)

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis: what chooses a bit of a tile, both memories, counters, queues, the part."""
        groups = self.layout.channels // self.lanes
        bits = self.lanes * self.row_bits
        choice = 1 if groups <= 2 else 1 + -(-groups // 4)
        shown = self.parts // self.words
        part = self.out_bits * -(-(shown - 1) // 3) + self.word_bits * -(-(self.words - 1) // 3)
        tile = Resources(lut=bits * choice + part, ff=bits)
        own = ring_resources(self.own_bits, self.own_depth) if self.max_new else Resources(lut=0, ff=0)
        counters = sum(field.bits for field in self.descriptor_fields())
        control = Resources(lut=120 + 6 * counters + 2 * self.lanes, ff=80 + 5 * counters)
        if self.row_pieces > 1:
            control += Resources(lut=self.lanes * self.own_bits + 60, ff=20)
        queues = [queue.resources for queue in self.queues]
        ring = ring_resources(self.word_bits, self.words * self.depth, self.ring_kind)
        return tile + own + ring + control + queues[0] + queues[1]

    def build(self) -> "KvTiles":
        return KvTiles(self)


class KvTiles(wiring.Component):
    """The hardware of a KvTilesParams; `i_<c>`: rows of a channel."""

    def __init__(self, params: KvTilesParams) -> None:
        self._params = params
        row = stream.Signature(params.row_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **({"i": In(stream.Signature(params.own_bits))} if params.max_new else {}),
                **{f"i_{c}": In(row) for c in range(params.layout.channels)},
                "o": Out(stream.Signature(params.out_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.building, m.submodules.sending = queues = [
            Queue(queue_params) for queue_params in p.queues
        ]
        for queue, other in (queues, queues[::-1]):
            m.d.comb += [
                queue.i.valid.eq(self.i_descriptor.valid & other.i.ready),
                queue.i.payload.eq(self.i_descriptor.payload),
            ]
        m.d.comb += self.i_descriptor.ready.eq(queues[0].i.ready & queues[1].i.ready)
        depth = p.words * p.depth
        m.submodules.ring = ring = Memory(
            shape=p.word_bits, depth=depth, init=[], attrs=ring_style(depth, p.ring_kind)
        )
        written, freed = (Signal(range(2 * p.depth), name=name) for name in ("written", "freed"))
        # Where the next tile lies: behind `written`, the whole ones, may be some that are there in pieces.
        at = Signal.like(written, name="at") if p.row_pieces > 1 else written
        word = Signal(range(p.words))  # that is written next, from the first one of the piece on
        room, last = (at - freed)[: len(written)] != p.depth, Signal()
        build = self._build if p.max_new else self._build_of_memory
        valid, rows, piece = build(m, queues[0].o, room & last)
        words = Array(Cat(shares(row, p.words)[n] for row in rows) for n in range(p.words))
        place = Mux(piece.whole, word, Cat(word[: ceil_log2(p.piece_words)], piece.turn))
        write = ring.write_port()
        m.d.comb += [
            last.eq(word == Mux(piece.whole, p.words, p.piece_words) - 1),
            write.en.eq(valid & room),
            write.addr.eq(Cat(place[: len(word)], at)),
            write.data.eq(words[place] if p.words > 1 else Cat(rows)),
        ]
        with m.If(write.en):
            m.d.sync += word.eq(Mux(last, 0, word + 1))
            with m.If(last):
                is_there = piece.whole | (piece.turn == p.row_pieces - 1)
                m.d.sync += written.eq(written + is_there)
                if p.row_pieces > 1:
                    m.d.sync += at.eq(Mux(is_there | ~piece.ends, at + 1, written))
        there = write.en & last & piece.ends & ~piece.whole
        self._send(m, queues[1].o, ring.read_port(), written, freed, there)
        return m

    def _build(self, m: Module, queue: Any, room: Value) -> tuple[Value, list[Signal], SimpleNamespace]:
        """Join tiles; returns (there is one, its rows, which piece of the tile it is: its turn, whether it is
        the last of the turn, whether it is the whole tile). room: the ring has room after this cycle."""
        p = self._params
        split = ceil_log2(p.lanes)
        given = data.View(descriptor_layout(p.descriptor_fields()), queue.payload)
        running, valid, step = Signal(), Signal(), Signal()
        whole, wholes = (Signal(len(given.position), name=n, reset_less=True) for n in ("whole", "wholes"))
        new, rows = (Signal(len(given.rows), name=n, reset_less=True) for n in ("new", "rows"))
        slot, begin = (
            Signal(split, name=n, reset_less=True) for n in ("slot", "begin")
        )  # of the next own row
        is_whole, fresh, edge = (Signal(name=n, reset_less=True) for n in ("is_whole", "fresh", "edge"))
        mask = Signal(p.lanes, reset_less=True)  # rows of memory in the tile where those of the pass begin
        turn = Signal(range(p.turns), reset_less=True)
        in_parts = p.row_pieces > 1
        piece = SimpleNamespace(
            turn=Signal(range(p.row_pieces), name="piece_turn", reset_less=True),
            ends=Signal(name="piece_ends", reset_less=True),
            whole=Signal(name="piece_whole", reset_less=True) if in_parts else Const(1),
        )
        starts, ends, turn_ends = queue.valid & ~running, Signal(), Signal()
        own_there, own = self._own(m, running, starts, given.rows, step & ~is_whole)
        needed = Signal(p.lanes)
        m.d.comb += needed.eq(mask & (edge & fresh).replicate(p.lanes) | is_whole.replicate(p.lanes))
        last, last_turn = new == 1, turn == p.turns - 1
        again = wholes if in_parts else Const(0)  # tiles before the first one of the next turn
        there, memory = self._rows(
            m,
            needed,
            step & (is_whole | last_turn | (not in_parts)),
            ends,
            turn_ends | ~running,
            again & running.replicate(len(again)),
        )
        m.d.comb += [
            queue.ready.eq(~running),
            step.eq(running & (~valid | room) & there & (is_whole | own_there)),
            ends.eq(step & (is_whole | last | (slot == (1 << split) - 1))),
            turn_ends.eq(step & ~is_whole & last),
        ]
        tile = [Signal(p.row_bits, name=f"tile_{n}", reset_less=True) for n in range(p.lanes)]
        for n, lane in enumerate(tile):
            here = Signal(name=f"here_{n}")
            m.d.comb += here.eq(~is_whole & (slot == n))
            with m.If(step & (fresh | here)):
                chosen = memory[n] & needed[n].replicate(p.row_bits)
                m.d.sync += lane.eq(chosen | (own & here.replicate(p.own_bits)).replicate(p.row_pieces))
        with m.If(~valid | room):
            m.d.sync += valid.eq(ends)
        with m.If(step):
            m.d.sync += [fresh.eq(ends), piece.turn.eq(turn), piece.ends.eq(turn_ends)]
            if in_parts:
                m.d.sync += piece.whole.eq(is_whole)
            with m.If(is_whole):
                m.d.sync += [whole.eq(whole - 1), is_whole.eq(whole != 1)]
            with m.Else():
                m.d.sync += [new.eq(new - 1), slot.eq(slot + 1), edge.eq(0)]
        with m.If(turn_ends):
            m.d.sync += [
                *(turn.eq(Mux(last_turn, 0, turn + 1)), running.eq(~last_turn)),
                *(whole.eq(wholes), is_whole.eq(0 if in_parts else wholes != 0)),
                *(new.eq(rows), slot.eq(begin), edge.eq(1)),
            ]
        with m.If(starts):
            many, rest = given.position[split:], given.position[:split]
            m.d.sync += [
                *(running.eq(1), turn.eq(0), fresh.eq(1), edge.eq(1)),
                *(whole.eq(many), wholes.eq(many), is_whole.eq(many != 0)),
                *(new.eq(given.rows), rows.eq(given.rows), slot.eq(rest), begin.eq(rest)),
                mask.eq(lanes_before(Cat(rest, Const(0, 1)), p.lanes)),
            ]
        return valid, tile, piece

    def _build_of_memory(
        self, m: Module, queue: Any, room: Value
    ) -> tuple[Value, list[Signal], SimpleNamespace]:
        """Like `_build`, without rows of the pass: every tile is whole, and the last one of a head may lack
        rows."""
        p = self._params
        split = ceil_log2(p.lanes)
        given = data.View(descriptor_layout(p.descriptor_fields()), queue.payload)
        running, valid, step, last = Signal(), Signal(), Signal(), Signal()
        whole, wholes = (Signal(len(given.position), name=n, reset_less=True) for n in ("whole", "wholes"))
        mask = Signal(p.lanes, reset_less=True)  # rows of the last tile
        head = Signal(range(p.turns), reset_less=True)
        needed = Signal(p.lanes)
        m.d.comb += [last.eq(whole == 1), needed.eq(mask | (~last).replicate(p.lanes))]
        there, memory = self._rows(m, needed, step, step & ~last, (step & last) | ~running, Const(0))
        m.d.comb += [queue.ready.eq(~running), step.eq(running & (~valid | room) & there)]
        tile = [Signal(p.row_bits, name=f"tile_{n}", reset_less=True) for n in range(p.lanes)]
        with m.If(~valid | room):
            m.d.sync += valid.eq(step)
        with m.If(step):
            m.d.sync += [lane.eq(memory[n] & needed[n].replicate(p.row_bits)) for n, lane in enumerate(tile)]
            m.d.sync += whole.eq(whole - 1)
            with m.If(last):
                m.d.sync += [whole.eq(wholes), head.eq(head + 1), running.eq(head != p.turns - 1)]
        with m.If(queue.valid & ~running):
            rest = given.position[:split]
            tiles = given.position[split:] + rest.any()
            m.d.sync += [running.eq(1), head.eq(0), whole.eq(tiles), wholes.eq(tiles)]
            m.d.sync += mask.eq(
                lanes_before(Cat(rest, Const(0, 1)), p.lanes) | ~rest.any().replicate(p.lanes)
            )
        return valid, tile, SimpleNamespace(turn=Const(0), ends=Const(0), whole=Const(1))

    def _rows(
        self, m: Module, needed: Value, take: Value, ends: Value, begins: Value, before: Value
    ) -> tuple[Value, list[Value]]:
        """Rows of memory for a tile; returns (the needed rows are there, the row of each lane). take: they
        are taken; ends: after this cycle the next channels have their turn; begins: the rows after that many
        tiles."""
        p = self._params
        groups = p.layout.channels // p.lanes
        group = Signal(range(groups), reset_less=True)
        with m.If(begins):
            m.d.sync += group.eq(before)
        with m.Elif(ends):
            m.d.sync += group.eq(group + 1)
        there, lanes = [], []
        for n in range(p.lanes):
            mine = [getattr(self, f"i_{n + k * p.lanes}") for k in range(groups)]
            there.append(Array(queue.valid for queue in mine)[group] | ~needed[n])
            lanes.append(Array(queue.payload for queue in mine)[group])
            for k, queue in enumerate(mine):
                m.d.comb += queue.ready.eq(take & needed[n] & (group == k))
        return Cat(there).all(), lanes

    def _own(self, m: Module, running: Value, starts: Value, rows: Value, take: Value) -> tuple[Value, Value]:
        """The rows of the pass, turn by turn; returns (the next one is there, the row). rows: of the
        descriptor that starts; take: the next one is taken."""
        p, turns = self._params, self._params.turns
        together = turns // p.pieces
        m.submodules.own = own = Memory(
            shape=p.own_bits, depth=p.own_depth, init=[], attrs=ring_style(p.own_depth)
        )
        write, read = own.write_port(), own.read_port()
        came = Signal(range(p.own_depth + 1))
        member, piece = Signal(range(together)), Signal(range(p.pieces))  # of the row that comes next
        left, coming = Signal(len(rows)), Signal()  # positions of the piece that are still to come; some are
        at, begin = (Signal(range(p.own_depth + turns), name=n, reset_less=True) for n in ("at", "first"))
        turn, follow, most = Signal(range(turns + 1)), Signal(len(rows)), Signal(len(rows))
        of_piece = Signal(range(together), reset_less=True)  # turns of the piece before this one
        there, fetch = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(coming),
            write.en.eq(self.i.ready & self.i.valid),
            write.addr.eq(came),
            write.data.eq(self.i.payload),
            fetch.eq((turn != turns) & (at < came) & (~there | take) & running),
            read.en.eq(fetch),
            read.addr.eq(at),
        ]
        with m.If(write.en):
            m.d.sync += [came.eq(came + 1), member.eq(Mux(member == together - 1, 0, member + 1))]
            with m.If(member == together - 1):
                m.d.sync += left.eq(left - 1)
                with m.If(left == 1):
                    m.d.sync += [left.eq(most), piece.eq(piece + 1), coming.eq(piece != p.pieces - 1)]
        with m.If(fetch):
            m.d.sync += [there.eq(1), at.eq(at + together), follow.eq(follow - 1)]
            with m.If(follow == 1):
                # The first row of the next turn is the one beside, or behind the last one of this piece.
                last = of_piece == together - 1
                following = Mux(last, at, begin) + 1
                m.d.sync += [at.eq(following), begin.eq(following), of_piece.eq(Mux(last, 0, of_piece + 1))]
                m.d.sync += [turn.eq(turn + 1), follow.eq(most)]
        with m.Elif(take):
            m.d.sync += there.eq(0)
        with m.If(starts):
            m.d.sync += [
                *(came.eq(0), member.eq(0), piece.eq(0), left.eq(rows), coming.eq(1)),
                *(at.eq(0), begin.eq(0), of_piece.eq(0), turn.eq(0), follow.eq(rows), most.eq(rows)),
            ]
        return there, read.data

    def _send(
        self, m: Module, queue: Any, read: Any, written: Value, freed: Signal, piece_there: Value
    ) -> None:
        """Send the tiles of the ring, part by part, repeatedly; the last time places become free.
        piece_there: the ring has one more piece of rows of the pass."""
        p, heads = self._params, self._params.layout.heads
        given = data.View(descriptor_layout(p.descriptor_fields()), queue.payload)
        length_bits = bits_for(p.layout.positions + p.lanes)
        running, valid, step = Signal(), Signal(), Signal()
        at, base = Signal.like(written), Signal.like(written)
        left, length = (Signal(length_bits, name=n, reset_less=True) for n in ("positions", "length"))
        more, again = (Signal(len(given.again), name=n, reset_less=True) for n in ("more", "again"))
        head = Signal(range(heads), reset_less=True)
        word = Signal(range(p.words), reset_less=True)
        part, shown = (Signal(range(p.parts // p.words), name=n, reset_less=True) for n in ("part", "shown"))
        last, last_time = left <= p.lanes, more == 1
        word_ends = part == p.parts // p.words - 1
        last_part = word_ends & (word == p.words - 1)
        final = last_time & last_part
        there = at != written
        if p.row_pieces > 1:
            credit = Signal(range(8 * p.row_pieces))  # pieces there of those that are to be sent
            piece_ends = word_ends & (word[: ceil_log2(p.piece_words)] == p.piece_words - 1)
            m.d.sync += credit.eq(credit + piece_there - (step & last & last_time & piece_ends))
            # The tile that is sent next has rows of the pass; so has the first one; those with more positions
            # behind them have none.
            own, first_own = (Signal(name=n, reset_less=True) for n in ("own", "first_own"))
            behind = Signal(range(p.max_new + 2 * p.lanes + 1), reset_less=True)
            there = Mux(own, credit != 0, there)
            with m.If(step):
                m.d.sync += own.eq(Mux(last, first_own, left < behind))
            with m.If(queue.valid & queue.ready):
                alone = given.position < p.lanes
                m.d.sync += [own.eq(alone), first_own.eq(alone), behind.eq(given.rows + 2 * p.lanes)]
        m.d.comb += [
            step.eq(running & there & (~valid | self.o.ready)),
            read.en.eq(step),
            read.addr.eq(Cat(word, at)),
            queue.ready.eq(~running | (step & last & final & (head == heads - 1))),
            self.o.valid.eq(valid),
            self.o.payload.eq(_part(read.data, p, shown)),
        ]
        with m.If(step | self.o.ready):
            m.d.sync += valid.eq(step)
        with m.If(step):
            m.d.sync += [shown.eq(part), at.eq(at + 1), left.eq(left - p.lanes)]
            with m.If(final):
                m.d.sync += freed.eq(at + 1)
            with m.If(last):
                m.d.sync += [left.eq(length), at.eq(Mux(final, at + 1, base)), more.eq(more - 1)]
                with m.If(last_time):
                    m.d.sync += [more.eq(again), part.eq(Mux(word_ends, 0, part + 1))]
                    m.d.sync += word.eq(Mux(last_part, 0, word + word_ends))
                with m.If(final):
                    m.d.sync += [base.eq(at + 1), head.eq(head + 1), running.eq(head != heads - 1)]
        with m.If(queue.valid & queue.ready):
            positions = given.position + (given.rows if p.max_new else 0)
            m.d.sync += [
                running.eq(1),
                left.eq(positions),
                length.eq(positions),
                more.eq(given.again),
                again.eq(given.again),
                head.eq(0),
                *(part.eq(0), word.eq(0)),
            ]


def _part(word: Value, p: KvTilesParams, part: Value) -> Value:
    """A part of every row of a word."""
    if p.parts == p.words:
        return word
    rows = shares(word, p.lanes)
    return Cat(Array(shares(row, p.parts // p.words))[part] for row in rows)
