"""Choose the nodes, streams, clients and channels that are simulated in a predicted run.

Members that do the same at the same time form a class (`fifo.symmetry`), and one member of each class is
simulated for all. Equal nodes, such as the columns of an engine, differ only in the time of their
descriptors, which come one after the other. The node that gets its descriptor last stands for the others,
because other nodes have to wait for it anyway.

Small differences between channels do not separate classes:

* writes, such as those of keys and values, that are less than 1 / `FEW` of the reads from the channel
* reads, such as those of tables and norms, by which channels differ by less than 1 / `LITTLE`
* the length of the first burst of a command of at least `MANY` bursts

The channel with the most traffic stands for its class, with everything that is read from it. Small reads that
only other channels of the class have get a channel of their own.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from streamgen.compiler.explore.layout import OUTSIDE, Client, Descriptors, Layout, Moves
from streamgen.compiler.explore.periods import Cut, Track, cut_of
from streamgen.fifo.symmetry import classes

FEW = 32  # writes of a channel are counted in units of 1 / FEW of its reads
MANY = 16  # bursts of a command from which on the length of its first burst does not matter
LITTLE = 64  # channels may differ by reads of less than 1 / LITTLE of all reads of a channel
TRACK = np.dtype([(name, np.int64) for name in ("clock", "first", "event", "stream", "groups", "mark")])
"""`struct track` of streams.h: addresses of arrays, number of groups, address of the marks."""
_Class = tuple[int, int, Hashable]  # class of a stream: classes of both ends, and what passes


class Acting:
    """The simulated part of a layout.

    nodes, parts, streams, clients, channels: numbers, in the layout, of the members that are simulated. FIFOs
    are the first streams; the client of the table is the last client. fifos: number of streams that are
    FIFOs. of_fifo: for each FIFO of the layout, the index of the stream that has its times. cuts: parts of
    long phases that are left out, by phase. often: number of times that each phase occurs in the run.
    """

    def __init__(self, layout: Layout, descriptors: Descriptors | None, often: Mapping[int, int]) -> None:
        self._layout, self._descriptors = layout, descriptors
        self._kept: list[np.ndarray] = []  # keeps arrays alive that `Known` does not hold
        self.cuts: dict[int, Cut] = {}  # by phase
        clients = [*layout.clients.values()]
        part_nodes = [layout.nodes[node] for node, _ in layout.parts]
        count = len(layout.used)
        counts = (len(layout.nodes), len(layout.parts), len(clients), count, 1, count, count)
        # members: nodes, parts, clients, channels read, sequencer, channels written, channels of small reads
        first = [0, *np.cumsum(counts).tolist()]
        labels = self._labels(clients)
        ends = [
            tuple(
                first[4] if end == OUTSIDE else first[1] + end if end >= 0 else first[2] - 1 - end
                for end in (stream.source, stream.target)
            )
            for stream in layout.streams
        ]
        links: list[_Class] = [(a, b, label) for (a, b), label in zip(ends, labels, strict=True)]
        links += [(n, first[1] + p, layout.intakes[p]) for p, n in enumerate(part_nodes)]
        little = _little(
            clients if descriptors is None else clients[:-1], often
        )  # without the table's client
        starts = [
            first[5 if client.writes else 6 if number in little else 3]
            for number, client in enumerate(clients)
        ]
        ranks = Counter[int]()
        for number, (client, start) in enumerate(zip(clients, starts, strict=True)):
            place = start + client.channel  # the master serves the clients of a channel in turn
            links.append((first[2] + number, place, (client.writes, ranks[place])))
            ranks[place] += 1
        for channel, share in _shares(clients, often).items():
            links.append((first[3] + channel, first[5 if share else 3] + channel, share))
        kinds: list[Hashable] = [kind for kind, count in enumerate(counts) for _ in range(count)]
        lightest_first = _lightest_first(clients, often, count)

        def acts() -> list[int]:
            """For each member, the member that stands for it."""
            of = classes(kinds, links)
            last = {number: member for member, number in enumerate(of)}
            for start in (first[3], first[5], first[6]):
                last |= {of[start + channel]: start + channel for channel in lightest_first}
            return [last[number] for number in of]

        stands = acts()
        if little:  # a channel that stands for others keeps all reads from it
            whole = {
                stands[start + client.channel] - start
                for start, client in zip(starts, clients, strict=True)
                if start == first[3]
            }
            for number in little:
                if (channel := clients[number].channel) in whole:
                    kinds[first[2] + number] = "of", channel
            stands = acts()
        keys = [(stands[a], stands[b], label) for (a, b), label in zip(ends, labels, strict=True)]
        stream_of = {key: number for number, key in enumerate(keys)}
        self.nodes, self.parts, self.clients = (
            sorted({stands[member] - start for member in range(start, end)})
            for start, end in pairwise(first[:4])
        )
        self.streams = sorted(stream_of.values())
        place = {number: k for k, number in enumerate(self.streams)}
        self._stream_at = [place[stream_of[key]] for key in keys]
        self.of_fifo = self._stream_at[: layout.fifos]
        self.fifos = sum(number < layout.fifos for number in self.streams)
        self._node_at = {number: k for k, number in enumerate(self.nodes)}
        part_at, client_at = (
            {number: k for k, number in enumerate(kept)} for kept in (self.parts, self.clients)
        )
        self._part_nodes = [self._node_at[stands[part_nodes[part]]] for part in self.parts]
        acted = []
        for k in self.clients:
            acted.append(stands[starts[k] + clients[k].channel] - starts[k])
        self.channels = sorted(set(acted))
        self._channel_of = [self.channels.index(channel) for channel in acted]

        def end(member: int) -> int:
            """The end of a stream in the numbers of the run."""
            member = stands[member]
            if member == first[4]:
                return OUTSIDE
            if member >= first[2]:
                return -1 - client_at[member - first[2]]
            return part_at[member - first[1]]

        self._ends = [(end(a), end(b)) for a, b in (ends[number] for number in self.streams)]

    def arrays(self, phases: int, long: int | None = None) -> list[np.ndarray]:
        """The arrays of `struct model` after the steps, in order. long: number of groups of a phase from
        which on its middle is left out, if possible (`cuts`)."""
        layout, self.cuts = self._layout, {}
        streams = [layout.streams[number] for number in self.streams]
        everyone = [*layout.clients.values()]
        clients = [everyone[number] for number in self.clients]
        walks = [] if self._descriptors is None else self._descriptors.walks
        items = [item for walk in walks for item in walk]
        arrays: list[Any] = [
            np.searchsorted(self._part_nodes, np.arange(len(self.nodes) + 1)),
            self._part_nodes,
            [layout.intakes[part] for part in self.parts],
            *self._tracks(phases, long),
            *([ends[k] for ends in self._ends] for k in (0, 1)),
            *([getattr(stream, name) for stream in streams] for name in ("depth", "latency", "back")),
            self._channel_of,
            *(
                [getattr(client, name) for client in clients]
                for name in ("writes", "burst", "depth", "under_way")
            ),
            *(
                [-1 if (k := getattr(client, name)) < 0 else self._stream_at[k] for client in clients]
                for name in ("asks", "beats", "done")
            ),
            *_commands(clients, phases, self.cuts),
            [self._node_at.get(layout.nodes[node], -1) for node, _ in items],
            [slots for _, slots in items],
            np.cumsum([0, *map(len, walks)]),
            [0] if self._descriptors is None else self._descriptors.beats,
        ]
        return [np.asarray(array) for array in arrays]

    def tokens(self, steps: Sequence[int]) -> np.ndarray:
        """Index of the first token of each FIFO in the arrays of times; the last element is the number of all
        tokens."""
        counts = np.zeros((2, self.fifos), np.int64)
        times = Counter(steps)
        for part in self.parts:
            for phase in times:
                for cycles, _, event in self._moves(part, phase) or ():
                    if event >> 1 < self.fifos:
                        counts[event & 1, event >> 1] += times[phase] * len(cycles)
        return np.concatenate([[0], np.cumsum(counts.max(axis=0))])

    def _labels(self, clients: Sequence[Client]) -> list[Hashable]:
        """A label for each stream. Streams through which the same tokens pass have equal labels."""
        layout, contents = self._layout, self._layout.known.contents
        said: dict[int, list[Hashable]] = {}
        for (_, phase), several in layout.tracks.items():
            for cycles, clock, event in several:
                said.setdefault(event, []).append((phase, contents.of(cycles), contents.of(clock)))
        roles: dict[int, Hashable] = {}
        for client in clients:
            commands = tuple(
                (phase, tuple(zip(rows[:, 0].tolist(), _begun(rows, client.burst), strict=True)))
                for phase, rows in client.commands.items()
            )
            for role in ("asks", "beats", "done"):
                roles[getattr(client, role)] = role, client.burst, client.depth, client.under_way, commands
        return [
            (
                *(number < layout.fifos, stream.depth, stream.latency, stream.back, roles.get(number)),
                *(tuple(said.get(2 * number + side, ())) for side in (0, 1)),
            )
            for number, stream in enumerate(layout.streams)
        ]

    def _moves(self, part: int, phase: int) -> list[Moves] | None:
        """The moves of a part in a phase, with each stream once; None if the part rests."""
        if (several := self._layout.tracks.get((part, phase))) is None:
            return None
        by_stream: dict[int, Moves] = {}
        for cycles, clock, event in several:
            kept = 2 * self._stream_at[event >> 1] + (event & 1)
            by_stream.setdefault(kept, (cycles, clock, kept))
        return [*by_stream.values()]

    def _tracks(self, phases: int, long: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The number of the track of each part in each phase, and the tracks."""
        number = np.full((len(self.parts), phases), -1)
        tracks: list[tuple[int, ...]] = []
        known = self._layout.known
        for phase in range(phases):
            at_work: dict[int, Track] = {}
            for row, part in enumerate(self.parts):
                if (moves := self._moves(part, phase)) is not None:
                    streams = np.array([event >> 1 for *_, event in moves], np.int32)
                    at_work[row] = known.grouped(moves), streams
            if long is not None and (cut := self._cut(phase, at_work, long)) is not None:
                self.cuts[phase] = cut
            for row, (groups, streams) in at_work.items():
                marks = np.zeros(0, np.int32)
                if phase in self.cuts and row in self.cuts[phase].groups:
                    groups = known.without(groups, *self.cuts[phase].groups[row])
                    marks = self.cuts[phase].marks[row]
                self._kept += [streams, marks]
                number[row, phase] = len(tracks)
                addresses = [array.ctypes.data for array in (*groups, streams)]
                tracks.append((*addresses, len(groups[0]), marks.ctypes.data if len(marks) else 0))
        return number, np.array(tracks, TRACK)

    def _cut(self, phase: int, at_work: Mapping[int, Track], long: int) -> Cut | None:
        """The part of a phase that is left out; None if the phase is shorter than `long` groups or does not
        repeat."""
        if sum(len(groups[0]) for groups, _ in at_work.values()) < long:
            return None
        everyone, at = [*self._layout.clients.values()], self._stream_at
        clients = []
        for client in (everyone[k] for k in self.clients):
            ends = {name: getattr(client, name) for name in ("asks", "beats", "done")}
            clients.append(replace(client, **{name: at[k] for name, k in ends.items() if k >= 0}))
        return cut_of(at_work, self.fifos, clients, phase)


def _begun(rows: np.ndarray, burst: int) -> list[int]:
    """For each command, the beats of its first burst before the command begins; 0 for a command of at least
    `MANY` bursts."""
    return np.where(rows[:, 0] < MANY * burst, rows[:, 1] % burst, 0).tolist()


def _beats(client: Client, often: Mapping[int, int]) -> int:
    """Beats of a client in the whole run."""
    return sum(often[phase] * int(rows[:, 0].sum()) for phase, rows in client.commands.items())


def _little(clients: Sequence[Client], often: Mapping[int, int]) -> set[int]:
    """Numbers of the clients with small reads. Together they may add to a channel at most 1 / `LITTLE` of its
    reads more than to another channel. Clients with equal reads on any channel (`_alike`) are taken together
    or not at all. The clients that read the most are never taken."""
    beats = {number: _beats(client, often) for number, client in enumerate(clients) if not client.writes}
    channels = Counter[int]()
    for number, count in beats.items():
        channels[clients[number].channel] += count
    room = {channel: count / LITTLE for channel, count in channels.items()}
    little: set[int] = set()
    for alike in _alike(clients, beats)[:-1]:
        more = dict.fromkeys(channels, 0)
        for number in alike:
            more[clients[number].channel] += beats[number]
        least = min(more.values())
        if all(count - least < room[channel] for channel, count in more.items() if count > least):
            room = {channel: room[channel] - (count - least) for channel, count in more.items()}
            little |= {*alike}
    return little


def _alike(clients: Sequence[Client], beats: Mapping[int, int]) -> list[list[int]]:
    """Groups of clients that read about as much in the same phases, sorted by their reads."""
    phases = {number: sorted(clients[number].commands) for number in beats}
    groups: list[list[int]] = []
    for number in sorted(beats, key=lambda number: (phases[number], beats[number])):
        last = groups[-1][-1] if groups else number
        if groups and phases[last] == phases[number] and beats[number] <= (1 + 1 / LITTLE) * beats[last]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return sorted(groups, key=lambda alike: beats[alike[-1]])


def _lightest_first(clients: Sequence[Client], often: Mapping[int, int], channels: int) -> list[int]:
    """Numbers of the channels, sorted by their traffic."""
    beats = Counter[int]()
    for client in clients:
        beats[client.channel] += _beats(client, often)
    return sorted(range(channels), key=lambda channel: beats[channel])


def _shares(clients: Sequence[Client], often: Mapping[int, int]) -> dict[int, int]:
    """Writes to each channel in units of 1 / `FEW` of its reads, rounded down."""
    beats = Counter[tuple[int, bool]]()
    for client in clients:
        beats[client.channel, client.writes] += _beats(client, often)
    used = {client.channel for client in clients}
    return {channel: FEW * beats[channel, True] // max(1, beats[channel, False]) for channel in used}


def _commands(clients: Sequence[Client], phases: int, cuts: Mapping[int, Cut]) -> list[np.ndarray]:
    """The number of the first command of each client in each phase, then beats, offset and whether it is the
    last one, for all commands."""
    track = np.full((len(clients), phases), -1)
    rows = [np.zeros((0, 3), np.int64)]
    for number, client in enumerate(clients):
        for phase, commands in client.commands.items():
            track[number, phase] = sum(map(len, rows))
            if phase in cuts:
                commands = commands - [cuts[phase].beats.get(number, 0), 0]
            rows.append(np.column_stack([commands, np.arange(len(commands)) == len(commands) - 1]))
    return [track, *np.concatenate(rows).T]
