"""Cycles of a pass in closed form, for designs whose matmuls take turns on one engine.

A pass walks over phases. Each phase has work and weights:

    work       the engine and the operations behind it, then attention, then rows that an operation must hold
               whole; the engine computes a tile of features of all rows before the next tile, so an operation
               that holds whole rows begins with the last tile
    weights    the beats that a column reads; they run ahead of the phase as far as the FIFOs before the
               engine reach

With the times in cycles, and ahead = beats of these FIFOs,

    read  = max(max(read of the phase before, issue) + beats / rate, begin + (beats - ahead) / rate)
    ready = max(begin + engine, read)
    end   = ready + attention + held rows + TAIL

In a section that is walked several times, the weights of a phase are asked for `ISSUE` cycles after those of
the phase before, and not before the walk begins. Attention begins with the first round of heads, or, without
rounds, with `QUERIES` of the queries.

Nothing is bound to kernels, so a design takes milliseconds. `ISSUE`, `QUERIES` and `TAIL` are fitted to
predicted passes of published models; `python benchmarks/closed_form.py` prints the errors.
`ClosedForm.bound` has no such numbers. It is the largest of the times of the memory, of the engine and of
attention, each without any waiting, so no design takes fewer cycles.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from streamgen.artifact.packing import BEAT_BITS
from streamgen.compiler.schedule import HardwarePlan, schedule
from streamgen.compiler.schedule.engine import Engine
from streamgen.compiler.schedule.extents import extents
from streamgen.compiler.schedule.phases import Phase
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.kernels.memory.kv_load import KvLoadParams
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.logical import LogicalGraph
from streamgen.platform.axi import MAX_BURST
from streamgen.platform.boards import Channel

ISSUE = 346  # cycles between the requests for the weights of two phases
QUERIES = 1 / 3  # share of the queries before attention begins, if heads do not come in rounds
TAIL = 122  # cycles from the last result of the engine or of attention to the end of a phase
_STEADY = 2  # walks of a section; further walks take as long as the last of these


@dataclass(frozen=True, kw_only=True)
class _Phase:
    """The work of a phase. section: number of its section. walks: number of walks. one_row: whether the
    phase works on one row of a pass. beats: beats of weights of a column. engine: cycles of the engine for a
    row. first: cycles of the engine beside the rows. share: share of the engine's work before attention
    begins. late: share of the engine's work before the first row is whole, if an operation holds whole rows
    of results. attention: its heads, or None. source: rows of a source that attention reads; 0 for none.
    held: elements of rows that operations hold whole. widest: elements of the widest row."""

    section: int
    walks: int
    one_row: bool
    beats: int = 0
    engine: int = 0
    first: int = 0
    share: float = 1.0
    late: float = 0.0
    attention: AttentionHeads | None
    source: int = 0
    held: int
    widest: int


def _lanes(op: AttentionHeads, plan: HardwarePlan) -> int:
    """Positions of an attention per cycle."""
    return 1 if op.takes_one_position else plan.attention_lanes


class ClosedForm:
    """The cycles of a model whose matmuls take turns on the engine of a plan. memory: a memory channel."""

    def __init__(self, model: LogicalGraph, plan: HardwarePlan, memory: Channel) -> None:
        scheduled = schedule(model, (), early_last_rows=True)
        self._plan, self._memory, self._source = plan, memory, model.source
        self.engine = Engine(scheduled, plan, extents(scheduled, plan))
        self.weights = self.engine.weights
        self._sections = [
            [self._phase(phase, number, section.walks) for phase in section.phases]
            for number, section in enumerate(scheduled.sections)
        ]

    def beats(self) -> int:
        """Beats of weights that a column reads in a pass of one token."""
        return sum(phase.walks * phase.beats for phases in self._sections for phase in phases)

    def cycles(
        self, tokens: int, position: int, plan: HardwarePlan | None = None, *, logits: bool = True
    ) -> float:
        """Cycles of a pass of `tokens` tokens from `position` on. plan: with other lanes of attention, other
        channels of caches or another prefetch. logits: whether the pass computes logits."""
        plan = plan or self._plan
        rate = min(self._memory.rate, plan.prefetch / (self._memory.latency + MAX_BURST / self._memory.rate))
        ahead = plan.prefetch + self._replayed
        now = read = 0.0
        for phases in self._sections:
            walks = phases[0].walks
            last = 0.0
            for _ in range(min(walks, _STEADY)):
                begin = issue = now
                for phase in phases:
                    if phase.one_row and not logits:
                        continue
                    if walks > 1:
                        issue += ISSUE
                        read = max(read, issue)
                    rows = 1 if phase.one_row else tokens
                    engine = phase.first + rows * phase.engine
                    work = max(engine, phase.late * engine + rows * phase.widest / plan.lanes)
                    attention, beats = self._attention(phase, plan, tokens, position)
                    ready = now + work
                    if phase.beats:
                        read = max(read + (phase.beats + beats) / rate, now + (phase.beats - ahead) / rate)
                        ready = max(ready, read)
                    end = ready
                    if phase.attention is not None:
                        heads = tokens * phase.attention.heads
                        end = max(ready + attention / heads, now + phase.share * (ready - now) + attention)
                    now = end + TAIL + phase.held / plan.lanes
                last = now - begin
            more = max(0, walks - _STEADY) * last
            now, read = now + more, read + more
        return now

    def bound(self, tokens: int, position: int, plan: HardwarePlan | None = None) -> float:
        """A number of cycles that no pass is below: all weights at the rate of a channel, or all products of
        the engine, or all of attention."""
        plan = plan or self._plan
        engine = attention = 0.0
        for phase in (phase for phases in self._sections for phase in phases):
            engine += phase.walks * (1 if phase.one_row else tokens) * phase.engine
            if (heads := phase.attention) is not None:
                tiles = -(-(phase.source or position + tokens) // _lanes(heads, plan))
                attention += phase.walks * tokens * heads.heads * tiles
        return max(self.beats() / self._memory.rate, engine, attention)

    @cached_property
    def _replayed(self) -> float:
        """Beats that fit into the ring of words that are sent several times."""
        return self.weights.held_bits / BEAT_BITS

    def _attention(
        self, phase: _Phase, plan: HardwarePlan, tokens: int, position: int
    ) -> tuple[float, float]:
        """Cycles of attention, and beats of its caches that a channel reads."""
        op = phase.attention
        if op is None:
            return 0.0, 0.0
        length, held = (phase.source, phase.source) if phase.source else (position + tokens, position)
        tiles = -(-length // _lanes(op, plan))
        period = max(tiles, op.head_dim // min(plan.lanes, op.head_dim))
        codes = op.kv_heads * -(-op.head_dim * 8 // BEAT_BITS) + -(-op.kv_heads * SCALE.size // BEAT_BITS)
        channels = plan.cache_channels or plan.kv_channels
        each = held * codes / channels  # of keys, and of values
        beats = each if 2 * channels <= plan.kv_channels else 2 * each
        rate = self._memory.rate
        load = KvLoadParams.prefetch / (self._memory.latency + KvLoadParams.burst / rate)
        return max(tokens * op.heads * period, each / min(rate, load), beats / rate), beats

    def _phase(self, phase: Phase, section: int, walks: int) -> _Phase:
        values = [value for step in phase.steps for value in step.outputs if value.shape.rows != "positions"]
        plain = [step for step in phase.steps if step.op.matmul is None and step.op.attention is None]
        common: dict[str, Any] = {
            "section": section,
            "walks": walks,
            "one_row": all(value.shape.rows == "one" for value in values),
            "attention": next((op for step in phase.steps if (op := step.op.attention) is not None), None),
            "source": self._source if any(step.op.reads_source for step in phase.steps) else 0,
            "held": sum(step.op.held(step.inputs[0].shape.features) for step in plain if step.inputs),
            "widest": max((v.shape.features for s in plain for v in s.outputs), default=0),
        }
        if (matmul := self.engine.matmuls.get(phase.number)) is None:
            return _Phase(**common)
        bounds = self.engine.bounds(phase.number, 1)
        several = [self.engine.params.cost({**bounds, "t": rows}).cycles for rows in (2, 3)]
        engine, total = several[1] - several[0], sum(matmul.rows)
        early: float = total
        if matmul.whole:
            early = total / matmul.rounds if matmul.rounds > 1 else total - (1 - QUERIES) * max(matmul.rows)
        tiles = total // self._plan.unit
        whole = any(step.op.held(n := step.inputs[0].shape.features) == n for step in plain if step.inputs)
        return _Phase(
            **common,
            beats=self.weights.layout(self.engine.weight_bounds(phase.number, 1)).beats,
            engine=engine,
            first=max(0, several[0] - 2 * engine),
            share=early / total,
            late=(tiles - 1) / tiles if whole else 0.0,
        )
