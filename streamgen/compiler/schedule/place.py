"""The site of an operation in a phase: `operations.site.Site`, implemented with `Uses`."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd
from typing import Any

import numpy as np

from streamgen.artifact.kv_layout import KvLayout
from streamgen.compiler.lower.columns import in_tokens_of
from streamgen.compiler.schedule.phases import Phase, Schedule
from streamgen.compiler.schedule.steps import Step
from streamgen.compiler.schedule.uses import Uses
from streamgen.contract import Bounds, KernelParams
from streamgen.itensor import ITensor, without_reuse
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Operator
from streamgen.model.operations.site import Behind, Bound, Fixed, Source, Stream, of_stream

_UNEVEN = 1 / 8  # extra beats for scales that some channels may have, as a share of their keys and values


@dataclass(frozen=True)
class CachePlace:
    """The place of a cache in the memory of all caches of its kind. layer: its layer in the first walk. step:
    number of layers from walk to walk. layers: number of layers of all caches. index: index among the caches
    of its phase."""

    layer: int
    step: int
    layers: int
    index: int


class PhaseSite:
    """The site of a phase. step: the operation that is bound now. matmul: function that binds a matmul."""

    def __init__(
        self,
        uses: Uses,
        places: Mapping[Step, CachePlace],
        phase: Phase,
        matmul: Callable[["PhaseSite", Bound], Stream],
    ) -> None:
        self._uses, self._places, self.phase, self._matmul = uses, places, phase, matmul
        self.step: Step | None = None
        self._once: dict[Hashable, Any] = {}
        self._tables: dict[Operator, int] = {}
        self.tokens, self.position = uses.tokens, uses.position
        self.context, self.lanes, self.memory = uses.plan.context, uses.plan.lanes, uses.memory
        self.source, self.most_source = uses.source, uses.plan.source
        self.attention_lanes = uses.plan.attention_lanes
        self.most, self.quick = uses.plan.largest, uses.plan.resident
        self.rows, self.count = uses.rows, uses.count

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def ops(self) -> Sequence[Operator]:
        return self.own.ops

    @property
    def waits(self) -> bool:
        rows = [{value.shape.rows for value in step.inputs} for step in self.phase.steps if step.op.row_wise]
        return any(kinds >= {"one", "tokens"} for kinds in rows)

    @property
    def extent(self) -> int:
        return self._uses.extent[self.own.outputs[0]]

    @property
    def own(self) -> Step:
        """The operation that is bound now, in all walks."""
        assert self.step is not None
        return self.step

    def kernel(
        self,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        *,
        steps: Mapping[str, int] | None = None,
        behind: Sequence[Behind] = (),
        unasked: Bounds | None = None,
        alone: bool = False,
        **inputs: Source,
    ) -> dict[str, Stream]:
        return self._uses.use(self.phase, name, params, bounds, steps or {}, behind, inputs, unasked, alone)

    def matmul(self, x: Bound) -> Stream:
        return self._matmul(self, x)

    def order(self, stream: Stream) -> ITensor:
        width, itensor = self._uses.plan.width(self.own.path), stream.itensor
        lanes = of_stream(stream)["lanes"]
        if width is None or (lanes % width and itensor.tripcounts[-1] * lanes % width):
            return itensor
        return in_tokens_of(itensor, width)

    def fit(
        self, stream: Stream, extent: int, first: int = 0, lanes: int | None = None, alone: bool = False
    ) -> Stream:
        if stream.extent == extent:
            return stream
        rows = self.count(stream.shape)
        lanes = gcd(lanes or of_stream(stream)["lanes"], stream.extent, extent, first)
        most = rows * max(stream.extent, extent) // lanes
        params = FitRowsParams(dtype="f24", lanes=lanes, max_tokens=most)
        bounds = {"rows": rows, "features": stream.extent, "fitted": extent, "first": first}
        return replace(self.kernel("fit", params, bounds, alone=alone, i=stream)["o"], shape=stream.shape)

    def fixed(self, itensor: ITensor, walks: np.ndarray) -> Fixed:
        padded = np.zeros((len(walks), *without_reuse(itensor).shape), walks.dtype)
        padded[:, :, : walks.shape[2]] = walks
        return Fixed(itensor, list(padded))

    def table(self, name: str, itensor: ITensor, data: np.ndarray | LateArray) -> Behind:
        # rows that are read at the same time, such as those of tokens and of positions, share no channel
        number = self._tables.setdefault(self.own.op, len(self._tables))
        channel = self._uses.plan.constant_channel(number)
        return Behind(port="memory", name=name, channel=channel, itensor=itensor, data=data)

    def numbers(self, name: str) -> Stream:
        return self._uses.numbers(name, self.phase)

    def caches(
        self, width: int, dtype: str, heads: int, beside: KvLayout | None = None, *, source: int | None = None
    ) -> tuple[KvLayout, int, int, int]:
        place = self._places[self.own]
        plan = self._uses.plan
        index = place.index if source is None else source
        layout = KvLayout(
            dtype=dtype,
            width=width,
            heads=heads,
            layers=place.layers,
            positions=self.context if source is None else self.most_source,
            channels=plan.cache_channels or plan.kv_channels,
        )
        if beside is not None:
            # keys lie on one half of the channels, values on the other; a channel has as many beats as before
            channels = max(plan.attention_lanes, plan.kv_channels // 2)
            own, others = layout.row_beats * heads, 2 * beside.row_beats * beside.heads / plan.kv_channels
            while channels > plan.attention_lanes and own / (channels // 2) <= _UNEVEN * others:
                channels //= 2
            layout = replace(layout, channels=channels)
        first = index * layout.channels % plan.kv_channels
        return layout, first, place.layer, place.step

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]


def cache_places(schedule: Schedule) -> dict[Step, CachePlace]:
    """The place of each cache. Caches of different phases share memory. Caches of different sections share
    memory if their layers advance equally from walk to walk; a section with a single walk fits any."""
    kinds: dict[tuple[Operator, int], dict[int, list[Step]]] = {}
    for phase in schedule.phases:
        own = [step for step in phase.steps if step.op.keeps_state or step.op.reads_source]
        for index, step in enumerate(own):
            kinds.setdefault((step.op, index), {}).setdefault(phase.section, []).append(step)
    places: dict[Step, CachePlace] = {}
    for (_, index), sections in kinds.items():
        walked = {len(steps) for section, steps in sections.items() if schedule.sections[section].walks > 1}
        shared = [sections] if len(walked) <= 1 else [{section: steps} for section, steps in sections.items()]
        for some in shared:
            sizes = [len(steps) * schedule.sections[section].walks for section, steps in some.items()]
            for base, (section, steps) in zip(accumulate(sizes, initial=0), some.items(), strict=False):
                stride = len(steps) if schedule.sections[section].walks > 1 else max(walked, default=1)
                for layer, step in enumerate(steps, base):
                    places[step] = CachePlace(layer, stride, sum(sizes), index)
    return places
