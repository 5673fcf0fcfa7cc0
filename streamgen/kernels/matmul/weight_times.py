"""When the beats, tokens and row scales of `weights` move: nothing stalling, and for predictions.

a beat a cycle, and a cycle for a token of codes that needs none        slots
word j begins when word j - depth has been read the last time           room
a word is read 2 cycles after its slot, a row 1 cycle after its beat
"""

from dataclasses import dataclass

import numpy as np

from streamgen.artifact.weight_layout import ROWS, WeightLayout
from streamgen.contract.cost import Curve
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.kernels.matmul.replay import ReplayParams
from streamgen.kernels.matmul.row_scales import RowScalesParams

_FREED = 2  # cycles from the last read of a place to the slot that fills it
_READ = 2  # cycles from a word's slot to its read
_ROW_READ = 1


@dataclass(frozen=True, eq=False)
class WeightTimes:
    """ports: for each port, the cycle of each token. curves, clocks: derived from these."""

    ports: dict[str, np.ndarray]
    curves: dict[str, Curve]
    clocks: Clocks


def times_of(
    layout: WeightLayout,
    replay: ReplayParams,
    row_scales: RowScalesParams,
    *,
    passes: int,
    tokens: int,
    grouped: bool,
) -> WeightTimes:
    """The cycles of weights in this layout that are sent in `passes` passes, with row scales for each token.

    replay, row_scales: the rings that hold words and row scales. grouped: whether group scales are sent too.
    """
    run = _Sending(layout, replay, row_scales, passes, tokens)
    run.walk()
    ports = {"i": run.taken, "o_w": run.read + replay.latency, "o_r": run.rows + 1}
    if grouped:
        ports["o_s"] = ports["o_w"]
    curves = {port: Curve.at(cycles) for port, cycles in ports.items()}
    return WeightTimes(ports, curves, run.clocks(ports))


class _Sending:
    """One execution."""

    def __init__(
        self,
        layout: WeightLayout,
        replay: ReplayParams,
        row_scales: RowScalesParams,
        passes: int,
        tokens: int,
    ) -> None:
        self.layout, self.passes = layout, passes
        self.again = tokens  # of row scales
        self.tiles, self.words = layout.tiles, layout.words
        self.needs = layout.needs
        self.latency, self.depth, self.row_depth = replay.latency, replay.depth, row_scales.depth
        self.beat_rows = row_scales.beat_rows

    def walk(self) -> None:
        """Tile by tile, or all at once if neither ring can become full."""
        needs, words, rows = self.needs, self.words, self.layout.tile_rows
        own = np.maximum(1, needs[:, ROWS + 1 :].sum(1))  # slots of a word beside beats of row scales
        row_beats = needs[::words, ROWS]
        loads = np.cumsum(row_beats)
        count = self.tiles * words
        done, taken_rows = np.zeros(count, np.int64), np.zeros(int(loads[-1]), np.int64)
        read = np.zeros((self.tiles, self.passes, words), np.int64)
        row = np.zeros((self.tiles, self.again, rows), np.int64)
        places = np.arange(words)
        begins = np.arange(self.tiles) * rows // self.beat_rows  # the oldest beat of each tile
        slot, last_read, last_row = 0, 0, 0
        for tile in range(self.tiles):
            first = tile * words
            room = np.zeros(words, np.int64)
            if self.passes > 1 and first + words > self.depth:
                room = self._freed(read, first) - 1
            for beat in range(int(loads[tile] - row_beats[tile]), int(loads[tile])):
                slot = max(slot + 1, int(room[0]) + 1, self._row_room(beat, begins, row))
                taken_rows[beat] = slot
            took = np.cumsum(own[first : first + words])
            free = np.maximum.accumulate(np.maximum(room - np.concatenate([[0], took[:-1]]), slot))
            done[first : first + words] = ends = free + took
            slot = int(ends[-1])
            there = np.maximum.accumulate(np.maximum(ends + _READ - places, last_read + 1)) + places
            read[tile, 0] = there
            again = np.arange(1, (self.passes - 1) * words + 1).reshape(self.passes - 1, words)
            read[tile, 1:] = there[-1] + again
            last_read = int(read[tile, -1, -1])
            own_rows = np.arange(rows)
            beats = taken_rows[(tile * rows + own_rows) // self.beat_rows]
            sent = np.maximum.accumulate(np.maximum(beats + _ROW_READ - own_rows, last_row + 1)) + own_rows
            row[tile, 0] = sent
            row[tile, 1:] = sent[-1] + np.arange(1, (self.again - 1) * rows + 1).reshape(-1, rows)
            last_row = int(row[tile, -1, -1])
        self.done, self.taken_rows, self.begins = done, taken_rows, begins
        self.read, self.rows = read.reshape(-1), row.reshape(-1)
        self.taken = self._beats(own)

    def _freed(self, read: np.ndarray, first: int) -> np.ndarray:
        """The first cycle in which each word of a tile may begin, for room in the ring."""
        numbers = np.arange(first, first + self.words) - self.depth
        last = read[:, -1].reshape(-1)
        return np.where(numbers >= 0, last[np.maximum(numbers, 0)] + _FREED, 0)

    def _row_room(self, beat: int, begins: np.ndarray, row: np.ndarray) -> int:
        """The first cycle in which a beat of row scales may be taken."""
        oldest = beat - self.row_depth + 1
        if oldest <= 0:
            return 0
        tile = int(np.searchsorted(begins, oldest))
        return int(row[tile - 1, -1, -1]) + _FREED

    def _beats(self, own: np.ndarray) -> np.ndarray:
        """The cycle of every beat: the beats of a word end in its last slot."""
        needs = self.needs[:, ROWS + 1 :].sum(1)
        word = np.repeat(np.arange(len(own)), needs)
        left = needs[word] - 1 - (np.arange(len(word)) - np.repeat(np.cumsum(needs) - needs, needs))
        taken = np.empty(self.layout.beats, np.int64)
        is_row = self.layout.kinds == ROWS
        taken[is_row] = self.taken_rows
        taken[~is_row] = self.done[word] - left
        return taken

    def clocks(self, ports: dict[str, np.ndarray]) -> Clocks:
        """Beats are taken, words made of them, read and sent; row scales go their own way."""
        words, layout, latency = self.words, self.layout, self.latency
        take, make = KernelSide("take", self.taken), KernelSide("make", self.done)
        send, scale = KernelSide("send", ports["o_w"]), KernelSide("scale", ports["o_r"])
        number = np.arange(len(self.done))
        other = np.cumsum(self.needs.sum(1)) - 1  # by word, the last beat it needs
        some = self.needs.sum(1) > 0
        before = np.flatnonzero(some[1:])  # words after which a beat is taken
        tile, place = np.divmod(number, words)
        base = tile * self.passes * words + place
        final = base + (self.passes - 1) * words
        streams = [
            take.to(make, other[some], number[some], latency=0),
            make.to(take, before, other[before] + 1, latency=1),
            make.to(send, number, base, latency=_READ + latency),
        ]
        late = number[self.depth :]
        for part, few, moved in (
            (take, late[some[late]], other - self.needs.sum(1) + 1),
            (make, late[~some[late]], number),
        ):
            if len(few):
                freed = final[few - self.depth]
                streams.append(send.to(part, freed, moved[few], latency=_FREED - latency))
        rows = layout.tile_rows
        beats = np.flatnonzero(layout.kinds == ROWS)
        firsts = np.arange(len(beats)) * self.beat_rows  # the first row of each beat
        row_tile, row_place = np.divmod(firsts, rows)
        streams.append(take.to(scale, beats, row_tile * self.again * rows + row_place, latency=_ROW_READ + 1))
        held = np.arange(self.row_depth, len(beats))
        if len(held):
            until = np.searchsorted(self.begins, held - self.row_depth + 1)
            until, of_tile = np.unique(until, return_index=True)  # beats of a tile: the first waits for all
            last = until * self.again * rows - 1
            streams.append(scale.to(take, last, beats[held[of_tile]], latency=_FREED - 1))
        moves = {"i": (take, np.arange(len(self.taken))), "o_w": (send, np.arange(len(send.cycles)))}
        moves["o_r"] = scale, np.arange(len(scale.cycles))
        if "o_s" in ports:
            moves["o_s"] = moves["o_w"]
        return Clocks((take, make, send, scale), moves, tuple(streams))
