"""The cost of factors in closed form: cycles of each matmul, channels, padding, converter memory.

A matmul of C columns x n_lanes rows x t_lanes tokens takes the larger of these two numbers of cycles:

    memory       bits that its level reads from the busiest of its channels / rate of a channel
    multipliers  n-tiles * t-tiles * max(K / 32, t_lanes * n_lanes)

K and the rows include padding. Matmuls of one level of the graph work side by side and share channels. Levels
follow one another, so columns of different levels can share a channel at no cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from streamgen.artifact.packing import BEAT_BITS, MemoryLayout
from streamgen.compiler.budget import Budget
from streamgen.model.graph.plan import LinearPlan, LinearShape, Shape, VectorShape
from streamgen.numbers import formats
from streamgen.numbers.formats import MX_GROUP

WORD_LANES = 16  # 32-bit words of a beat
GAP = 170  # cycles of a level or phase beside its work, measured with `benchmarks/decoder.py`
WORTH = 1 / 8  # doubling the multipliers must save at least this share of the gaps of both passes

Linears = Mapping[str, LinearPlan]


@dataclass(frozen=True)
class Time:
    """Cycles that a matmul needs from the memory and from its multipliers."""

    memory: float
    multipliers: int

    @property
    def cycles(self) -> float:
        return max(self.memory, self.multipliers)

    @property
    def bound(self) -> str:
        """The resource that limits the matmul."""
        return "memory" if self.memory > self.multipliers else "multipliers"


class ClosedForms:
    """The closed forms for one graph and one number of token lanes."""

    def __init__(self, shapes: Sequence[Shape], budget: Budget, lanes: int) -> None:
        self.linears = [shape for shape in shapes if isinstance(shape, LinearShape)]
        self.vectors = [shape for shape in shapes if isinstance(shape, VectorShape)]
        self._budget, self._rate, self.lanes = budget, budget.memory.rate, lanes
        self.fabric = budget.board.fabric
        self.made = {shape.name for shape in shapes}
        self.features: dict[str, int] = {}
        for shape in shapes:
            for operand in (shape.reads,) if isinstance(shape, LinearShape) else shape.operands:
                width = shape.k if isinstance(shape, LinearShape) else shape.features
                self.features.setdefault(operand, width)
            self.features[shape.name] = shape.n if isinstance(shape, LinearShape) else shape.features
        self.inputs = [value for value in self.features if value not in self.made]
        self.classes = self._classes()
        self._class = {value: members for members in self.classes for value in members}

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the passes that count: one token and the largest number of tokens."""
        return 1, self._budget.max_tokens

    def pads(self, linears: Linears, widths: Mapping[str, int]) -> dict[str, int]:
        """Padding: for each value, the number of which its features are a multiple. widths: elements of a
        token of each value."""
        units = {members: lcm(*(widths.get(value, 1) for value in members)) for members in self.classes}

        def pad(value: str, unit: int) -> None:
            units[self._class[value]] = lcm(units[self._class[value]], unit)

        for value in self.inputs:
            pad(value, WORD_LANES)
        for shape in self.linears:
            pad(shape.reads, max(MX_GROUP, shape.group or 0))
            pad(shape.name, linears[shape.name].tile)
        return {value: units[members] for value, members in self._class.items()}

    def place(self, linears: Linears) -> tuple[dict[str, LinearPlan], int, int]:
        """The plans with a channel for each column, the channel of inputs and outputs, and the number of
        channels in use.

        A column gets the channel with the least traffic of its level; among equal ones, the channel with the
        least traffic of all levels. The columns of a matmul get different channels as far as there are
        enough. Inputs and outputs get the channel with the least traffic.
        """
        count = self._budget.channels
        used = [0] * count
        by_level: dict[int, list[int]] = {}
        placed = {}
        pads = self.pads(linears, {})
        for shape in self.linears:
            plan = linears[shape.name]
            bits = self._column_bits(shape, plan, pads)
            level = by_level.setdefault(shape.level, [0] * count)
            channels: list[int] = []
            for _ in range(plan.columns):
                free = [c for c in range(count) if c not in channels] or list(range(count))
                chosen = min(free, key=lambda c: (level[c], used[c], c))
                channels.append(chosen)
                level[chosen] += bits
                used[chosen] += bits
            placed[shape.name] = replace(plan, channels=tuple(channels))
        io_channel = min(range(count), key=lambda c: (used[c], c))
        busy = max([io_channel, *(c for plan in placed.values() for c in plan.channels)])
        return placed, io_channel, busy + 1

    def times(self, linears: Linears, tokens: int) -> dict[str, Time]:
        """Cycles of every matmul in a pass. `linears` need no channels yet."""
        pads = self.pads(linears, {})
        placed, _, _ = self.place(linears)
        load: dict[tuple[int, int], int] = {}
        for shape in self.linears:
            plan = placed[shape.name]
            for channel in plan.channels:
                key = shape.level, channel
                load[key] = load.get(key, 0) + self._column_bits(shape, plan, pads)
        times = {}
        for shape in self.linears:
            plan = placed[shape.name]
            busiest = max(load[shape.level, channel] for channel in plan.channels)
            steps = self._extent(shape.reads, pads) // MX_GROUP
            tiles = self._extent(shape.name, pads) // plan.tile * -(-tokens // self.lanes)
            times[shape.name] = Time(
                busiest / BEAT_BITS / self._rate, tiles * max(steps, self.lanes * plan.n_lanes)
            )
        return times

    def total(self, linears: Linears) -> float:
        """Cycles of all levels, one after the other, summed over both passes that count."""
        total = 0.0
        for tokens in self.tokens:
            times = self.times(linears, tokens)
            levels: dict[int, float] = {}
            for shape in self.linears:
                levels[shape.level] = max(levels.get(shape.level, 0.0), times[shape.name].cycles)
            total += sum(levels.values())
        return total

    @property
    def gaps(self) -> int:
        """Cycles in which levels do no work, in both passes that count."""
        return len(self.tokens) * GAP * len({shape.level for shape in self.linears})

    def multipliers(self, linears: Linears) -> int:
        """Multipliers of all matmuls."""
        return sum(plan.tile for plan in linears.values()) * self.lanes * MX_GROUP

    def converter_bits(self, linears: Linears) -> int:
        """Bits of the converters that grow with the factors, as ping-pong buffers. Each column has its own
        copy of the activations and holds a panel of weights while all tokens pass."""
        pads = self.pads(linears, {})
        tokens = -(-self._budget.max_tokens // self.lanes) * self.lanes
        total = 0
        for shape in self.linears:
            plan = linears[shape.name]
            width = self._extent(shape.reads, pads)
            if self._extent(shape.name, pads) > plan.tile or self.lanes > 1:
                total += plan.columns * 2 * tokens * formats.token_bits("mxi8s", (width,))
            if tokens > self.lanes:
                total += plan.tile * 2 * width * shape.form.code_bits
        return total

    def steps(self, shape: LinearShape, pads: Mapping[str, int]) -> int:
        """Cycles that the multipliers take for a tile."""
        return self._extent(shape.reads, pads) // MX_GROUP

    def _extent(self, value: str, pads: Mapping[str, int]) -> int:
        return -(-self.features[value] // pads[value]) * pads[value]

    def _column_bits(self, shape: LinearShape, plan: LinearPlan, pads: Mapping[str, int]) -> int:
        """Bits that a column reads in a pass."""
        width, rows = self._extent(shape.reads, pads), self._extent(shape.name, pads)
        codes = MemoryLayout(f"i{shape.form.code_bits}", (plan.n_lanes, MX_GROUP))
        bits = codes.token_slot * (width // MX_GROUP) + plan.n_lanes * 32
        if shape.group:
            minimum = self._budget.minimum and shape.form.minimums
            scales = MemoryLayout(f"i{self._budget.scale_bits}", (plan.n_lanes, 1, 1 + minimum))
            bits += scales.token_slot * (width // shape.group)
        return bits * (rows // plan.tile)

    def _classes(self) -> tuple[frozenset[str], ...]:
        """Classes of values that elementwise operations join; the values of a class are padded alike."""
        classes = {value: {value} for value in self.features}
        for shape in self.vectors:
            for operand in shape.operands:
                if classes[operand] is not classes[shape.name]:
                    joined = classes[operand] | classes[shape.name]
                    classes |= dict.fromkeys(joined, joined)
        distinct = {id(members): members for members in classes.values()}
        return tuple(frozenset(members) for members in distinct.values())
