"""Decoders as graphs of kernels: one engine for all matmuls, one pass of tokens a run.

Phases of a run, T tokens each (sections in brackets; the middle one is walked once a layer):

    [embed]   residual = table[ids]
    [norm     residual -> norm -> quantiser
     attend   engine(q, k, v) -> rotate, quantise, cache; scores, softmax, values -> quantiser
     project  engine(o) + residual -> norm -> quantiser
     expand   engine(gate, up) -> gated product -> quantiser
     reduce   engine(down) + residual -> residual]
    [last     last row of the residual -> norm -> quantiser
     head     engine(head) -> argmax, and logits for a run that is asked for them]

The engine is a set of matmul columns, a channel each, that read the weights of every phase one after the
other; its operand is what the quantiser made in the phase before. That, the residual and what is added to it
later wait in FIFOs that hold all of it: back edges. Everything else within a phase is a pipeline. Rows of q,
k and v follow one another in one matmul; rows of gate and up alternate, so that one half of the columns
computes the ones, the other half the others.

Attention sees the cache in memory: what a phase appends it reads again, by the tokens of its stores.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from streamgen.contract import Bounds
from streamgen.formats import MX_GROUP, round_f24
from streamgen.graph import Graph, Port
from streamgen.itensor import ITensor, without_reuse
from streamgen.kernels.attention_scores import AttentionScoresParams
from streamgen.kernels.attention_softmax import AttentionSoftmaxParams
from streamgen.kernels.attention_values import AttentionValuesParams
from streamgen.kernels.concat import ConcatParams
from streamgen.kernels.elementwise import BinaryParams
from streamgen.kernels.fork import ForkParams
from streamgen.kernels.matmul import ColumnParams
from streamgen.kernels.norm import NormParams
from streamgen.kernels.quantise import QuantiseParams
from streamgen.kernels.quantise_rows import QuantiseRowsParams
from streamgen.kernels.rope import RopeParams
from streamgen.kernels.rope_tables import rotation_table
from streamgen.kernels.route import RouteParams
from streamgen.kernels.segments import SegmentsParams
from streamgen.kernels.select import SelectParams
from streamgen.kernels.take_rows import TakeRowsParams
from streamgen.kernels.top_k import TopKParams
from streamgen.kernels.unzip import UnzipParams
from streamgen.kv_layout import KvLayout
from streamgen.lower.builder import GraphBuilder
from streamgen.lower.decoder_weights import WORD_LANES, DecoderPlan, DecoderWeights
from streamgen.memory import KvLoadParams, KvStoreParams, RowsLoadParams
from streamgen.operations import Attention, Norm, Rotary

__all__ = ["LAYER", "PHASES", "VARIANTS", "lower_decoder"]

PHASES = ("embed", "norm", "attend", "project", "expand", "reduce", "last", "head")
LAYER = ("norm", "attend", "project", "expand", "reduce")
VARIANTS: Mapping[str, Mapping[str, Bounds]] = {"best": {"take_logits": {"count": 0}}}
"""Of each run, by name, the bounds that are others: `best` writes no logits, just the greatest one."""


def lower_decoder(
    weights: DecoderWeights, plan: DecoderPlan, rate: float, tokens: int, position: int
) -> Graph:
    """The graph of a run of so many tokens from a position on, before forks and converters."""
    return _Lowering(weights, plan, rate, tokens, position).graph()


class _Lowering:
    def __init__(
        self, weights: DecoderWeights, plan: DecoderPlan, rate: float, tokens: int, position: int
    ) -> None:
        self._weights, self._plan = weights, plan
        self._rate, self._tokens, self._position = rate, tokens, position
        layer, self._layers = weights.layers[0], len(weights.layers)
        self._attention: Attention = layer.op("attention")
        self._rotary: Rotary | None = layer.op("rotate_q") if "rotate_q" in layer.by_name else None
        self._function: str = layer.op("gated").gate
        self._hidden = layer.inputs[0].features
        self._wide = layer.features("gate")
        self._heads = self._attention.heads * self._attention.head_dim
        self._kv = self._attention.kv_heads * self._attention.head_dim
        sections = ((1, 1), (len(LAYER), self._layers), (2, 1))
        self._b = GraphBuilder("decoder", rate=rate, sections=sections)

    def graph(self) -> Graph:
        b, T, H = self._b, self._tokens, self._hidden
        rows = self._rows(T, H)
        # What the engine reads, the residual, and what is added to it: ends of back edges.
        y = self._engine()
        residual = self._route("route_residual", 2, {p: (0, rows) for p in ("norm",)} | {"last": (1, rows)})
        embedded = self._embedding()
        keys = self._attend(y[0])
        sums = b.kernel(
            "add",
            BinaryParams(
                operation="add", lanes=self._plan.columns, max_tokens=self._most(H, self._plan.columns)
            ),
            _at(project={"itensor": self._results(H)}, reduce={"itensor": self._results(H)}),
            i_a=y[1],
            i_b=None,
        )["o"]
        after = self._route("route_sum", 2, {"project": (0, rows), "reduce": (1, rows)}, sums)
        kept = self._select(
            "select_kept", {"norm": (0, rows), "project": (1, rows)}, residual["o_0"], after["o_0"]
        )
        b.connect(kept, Port("add", "i_b"), back=self._most(H))
        new = self._select(
            "select_residual", {"embed": (0, rows), "reduce": (1, rows)}, embedded, after["o_1"]
        )
        b.connect(new, Port("route_residual", "i"), back=self._most(H))
        last = b.kernel(
            "take_last",
            TakeRowsParams(dtype="f24", lanes=self._plan.lanes, max_tokens=self._most(H)),
            _at(last={"rows": T, "features": H, "first": T - 1, "count": 1}),
            i=residual["o_1"],
        )["o"]
        row = self._rows(1, H)
        before = self._select(
            "select_norm",
            {"norm": (0, rows), "project": (1, rows), "last": (2, row)},
            residual["o_0"],
            after["o_0"],
            last,
        )
        normed = self._norm(before)
        gated = self._gated(y[2])
        self._quantise(normed, keys, gated)
        self._head(y[3])
        return b.build()

    # Streams.

    def _rows(self, tokens: int, features: int, lanes: int = 0) -> ITensor:
        """Row after row."""
        lanes = lanes or self._plan.lanes
        return ITensor((1, lanes), "f24", (tokens, features // lanes), (1, lanes), ((0,), (1,)))

    def _results(self, features: int, tokens: int = 0) -> ITensor:
        """As results leave the engine."""
        C, N = self._plan.columns, self._plan.n_lanes
        trips = (features // (C * N), tokens or self._tokens, 1, N)
        return ITensor((1, C), "f24", trips, (N * C, 1, 1, C), ((1, 2), (0, 3)))

    def _most(self, features: int, lanes: int = 0) -> int:
        """Tokens of the largest run."""
        return self._plan.max_tokens * features // (lanes or self._plan.lanes)

    def _select(self, name: str, ways: Mapping[str, tuple[int, ITensor]], *inputs: Port) -> Port:
        one = next(iter(ways.values()))[1]
        params = SelectParams(
            token_bits=one.token_bits, ways=len(inputs), max_tokens=self._most(max(self._wide, self._heads))
        )
        bounds = _at(**{phase: {"itensor": it, "way": way} for phase, (way, it) in ways.items()})
        return self._b.kernel(name, params, bounds, **{f"i_{k}": port for k, port in enumerate(inputs)})["o"]

    def _route(
        self, name: str, count: int, ways: Mapping[str, tuple[int, ITensor]], source: Port | None = None
    ) -> Mapping[str, Port]:
        one = next(iter(ways.values()))[1]
        most = max(it.token_count // it.shape[0] * self._plan.max_tokens for _, it in ways.values())
        params = RouteParams(token_bits=one.token_bits, ways=count, max_tokens=most)
        bounds = _at(**{phase: {"itensor": it, "way": way} for phase, (way, it) in ways.items()})
        return self._b.kernel(name, params, bounds, i=source)

    def _constant(
        self,
        name: str,
        streams: Mapping[str, tuple[ITensor, np.ndarray]],
        channel: int,
        prefetch: int,
        burst: int,
    ) -> Port:
        """Constants that one load reads, by phase: their order, and an array of that shape for each walk."""
        b = self._b
        largest = max((it for it, _ in streams.values()), key=lambda it: it.token_count)
        port = b.bare_load(
            name,
            _at(**{phase: it for phase, (it, _) in streams.items()}),
            largest=largest,
            prefetch=prefetch,
            burst=burst,
        )
        place = Port(port.node, "memory")
        for phase, (it, data) in streams.items():
            b.tensor(
                f"{name}_{phase}",
                "constant",
                place,
                shape=it.shape,
                channel=channel,
                itensor=it,
                data=data if len(data) > 1 else data[0],
                phase=PHASES.index(phase),
            )
        return port

    # Parts.

    def _engine(self) -> list[Port]:
        """Columns, fed by back edges of the quantiser; by destination: attention, sums, product, head."""
        b, plan, T = self._b, self._plan, self._tokens
        matmuls = self._weights.phases
        extents = {phase: matmul[0].codes.shape for phase, matmul in matmuls.items()}
        formats = {matmul[0].format for matmul in matmuls.values()}
        grouped = next((m[0] for m in matmuls.values() if m[0].scale is not None), None)
        most_k = max(k for _, k in extents.values())
        params = ColumnParams(
            t_lanes=1,
            n_lanes=plan.n_lanes,
            formats=tuple(name for name in ("w4", "w8") if name in formats),
            group=MX_GROUP if grouped is None or grouped.group is None else grouped.group,
            scale_bits=0 if grouped is None else plan.scale_bits,
            minimum=grouped is not None and grouped.minimum is not None,
            max_k=most_k,
            max_n=max(n for n, _ in extents.values()) // plan.columns,
            max_t=plan.max_tokens,
        )
        bounds: dict[str, Bounds] = {
            phase: {
                "t": 1 if phase == "head" else T,
                "k": extents[phase][1],
                "n": extents[phase][0] // plan.columns,
                "format": matmul[0].format,
                "grouped": matmul[0].scale is not None,
            }
            for phase, matmul in matmuls.items()
        }
        wanted = {phase: params.inputs(one) for phase, one in bounds.items()}
        groups, exponents = (
            b.kernel(
                name,
                ForkParams(
                    token_bits=wanted["attend"][port].token_bits,
                    ways=plan.columns,
                    max_tokens=max(self._largest(w[port], bounds[p]["t"]) for p, w in wanted.items()),
                ),
                _at(**{phase: {"itensor": w[port]} for phase, w in wanted.items()}),
                i=None,
            )
            for name, port in (("engine_x", "i_x"), ("engine_e", "i_e"))
        )
        results = {}
        for c in range(plan.columns):
            streams = {}
            for port in ("i_w", "i_s", "i_r"):
                if any(port in w for w in wanted.values()):
                    streams[port] = self._constant(
                        f"column{c}_{port.removeprefix('i_')}",
                        {
                            phase: (
                                once := without_reuse(w[port]),
                                self._weights.column(phase, port, c, plan.columns, once),
                            )
                            for phase, w in wanted.items()
                            if port in w
                        },
                        channel=c,
                        prefetch=plan.prefetch if port == "i_w" else 64,
                        burst=64 if port == "i_w" else 16,
                    )
            results[f"i_{c}"] = b.kernel(
                f"column{c}",
                params,
                _at(**bounds),
                i_x=groups[f"o_{c}"],
                i_e=exponents[f"o_{c}"],
                **streams,
            )["o_y"]
        outs = {phase: params.outputs(one)["o_y"] for phase, one in bounds.items()}
        most = max(self._largest(it, bounds[phase]["t"]) for phase, it in outs.items())
        concat = ConcatParams(ways=plan.columns, dtype="f24", element_shape=(1, 1), max_tokens=most)
        y = b.kernel("engine_y", concat, _at(**{p: {"itensor": it} for p, it in outs.items()}), **results)[
            "o"
        ]
        ways = {"attend": 0, "project": 1, "expand": 2, "reduce": 1, "head": 3}
        orders = {phase: concat.outputs({"itensor": it})["o"] for phase, it in outs.items()}
        routed = self._route("engine_out", 4, {p: (way, orders[p]) for p, way in ways.items()}, y)
        return [routed[f"o_{way}"] for way in range(4)]

    def _largest(self, itensor: ITensor, tokens: int) -> int:
        """Tokens of a stream in the largest run."""
        return itensor.token_count // tokens * self._plan.max_tokens

    def _embedding(self) -> Port:
        b, T = self._b, self._tokens
        table = self._weights.embedding
        params = RowsLoadParams(
            shape=(self._hidden,),
            tile=(self._plan.lanes,),
            vocabulary=len(table) - 1,
            max_ids=self._plan.max_tokens,
            rate=self._rate,
        )
        ids = self._numbers("ids", "embed")
        rows = b.kernel("embedding", params, _at(embed={"ids": T, "offset": 0}), i=ids)["o"]
        self._table("embedding", params, table)
        return rows

    def _numbers(self, name: str, phase: str) -> Port:
        """An input of a number for each token."""
        orders = [
            ITensor((1,), "u32", (count,), (1,), ((0,),)) for count in (self._tokens, self._plan.max_tokens)
        ]
        return self._b.load(
            name, _at(**{phase: orders[0]}), shape=(self._tokens,), channel=0, largest=orders[1]
        )

    def _table(self, node: str, params: RowsLoadParams, table: np.ndarray) -> None:
        self._b.tensor(
            f"{node}_table",
            "constant",
            Port(node, "memory"),
            shape=table.shape,
            channel=self._plan.columns - 1,
            itensor=params.table,
            data=table,
            own=True,
        )

    def _attend(self, y: Port) -> Port:
        b, plan, a, T = self._b, self._plan, self._attention, self._tokens
        unit = plan.columns * plan.n_lanes
        sizes = (self._heads // unit, self._kv // unit, self._kv // unit)
        order = self._results(self._heads + 2 * self._kv)
        parts = b.kernel(
            "part",
            SegmentsParams(token_bits=order.token_bits, ways=3, max_tokens=self._largest(order, T)),
            _at(attend={"itensor": order, "sizes": sizes}),
            i=y,
        )
        q, k = self._rotated(parts["o_0"], parts["o_1"])
        queries = self._codes("quantise_q", q, self._heads)
        keys, values = (
            self._cached(name, self._codes(f"quantise_{name}", port, self._kv))
            for name, port in (("k", k), ("v", parts["o_2"]))
        )
        length = self._position + T
        group = a.heads // a.kv_heads
        rows: dict[str, int] = {
            "dims": a.head_dim,
            "lanes": 1,
            "group": group,
            "max_length": plan.context,
            "max_rows": plan.max_tokens * a.heads,
        }
        where = {"heads": a.kv_heads, "t": T, "length": length}
        scores = b.kernel(
            "scores",
            AttentionScoresParams(**rows),
            _at(attend={**where, "scale": a.scale}),
            i_q=queries["o_x"],
            i_q_scale=queries["o_scale"],
            i_k=keys[0],
            i_k_scale=keys[1],
        )["o"]
        shares = b.kernel(
            "softmax",
            AttentionSoftmaxParams(lanes=1, max_length=plan.context, p_bits=a.p_bits),
            _at(
                attend={
                    "rows": T * a.heads,
                    "length": length,
                    "causal": True,
                    "position": self._position,
                    "rows_per_position": group,
                    "rows_per_head": T * group,
                }
            ),
            i=scores,
        )
        return b.kernel(
            "values",
            AttentionValuesParams(**rows, p_bits=a.p_bits, width=plan.lanes),
            _at(attend=where),
            i_p=shares["o_p"],
            i_sum=shares["o_sum"],
            i_v=values[0],
            i_v_scale=values[1],
        )["o"]

    def _rotated(self, *parts: Port) -> list[Port]:
        a, b, plan, T = self._attention, self._b, self._plan, self._tokens
        if (rotary := self._rotary) is None:
            return list(parts)
        pairs = plan.lanes // 2 if rotary.interleaved else plan.lanes
        frequencies = np.array(rotary.frequencies)
        rows = RowsLoadParams(
            shape=(2, len(frequencies)),
            tile=(2, pairs),
            vocabulary=plan.context,
            max_ids=plan.max_tokens,
            rate=self._rate,
        )
        positions = self._numbers("positions", "attend")
        table = b.kernel("rotations", rows, _at(attend={"ids": T, "offset": 0}), i=positions)["o"]
        data = rotation_table(plan.context, frequencies)
        self._table("rotations", rows, np.concatenate([data, np.full_like(data[:1], np.nan)]))
        found = []
        for name, port, heads in zip("qk", parts, (a.heads, a.kv_heads), strict=True):
            params = RopeParams(
                lanes=plan.lanes,
                dims=a.head_dim,
                rotated=rotary.rotated,
                interleaved=rotary.interleaved,
                max_heads=plan.max_tokens * heads,
            )
            bounds = _at(attend={"rows": T, "heads": heads})
            found.append(b.kernel(f"rotate_{name}", params, bounds, i=port, i_table=table)["o"])
        return found

    def _codes(self, name: str, source: Port, features: int) -> Mapping[str, Port]:
        dims = self._attention.head_dim
        params = QuantiseRowsParams(lanes=self._plan.lanes, max_d=dims, max_tokens=self._most(features))
        bounds = _at(attend={"t": self._tokens, "features": features, "d": dims})
        return self._b.kernel(name, params, bounds, i=source)

    def _cached(self, name: str, codes: Mapping[str, Port]) -> list[Port]:
        """Codes and scales of the whole context, once for each layer."""
        a, found = self._attention, []
        shapes = {"x": ("i8", a.head_dim, a.kv_heads), "scale": ("i24", a.kv_heads, 1)}
        for part, (dtype, width, heads) in shapes.items():
            layout = KvLayout(
                dtype=dtype,
                width=width,
                heads=heads,
                layers=self._layers,
                positions=self._plan.context,
                channels=self._plan.kv_channels,
            )
            found.append(self._cache(f"{name}_{part}", layout, codes[f"o_{part}"]))
        return found

    def _cache(self, name: str, layout: KvLayout, source: Port) -> Port:
        b, T, position = self._b, self._tokens, self._position
        appended = b.kernel(
            f"store_{name}",
            KvStoreParams(layout=layout, rate=self._rate),
            _at(attend={"layer": 0, "position": position, "rows": T}),
            i=source,
        )["o_appended"]
        rows = b.kernel(
            f"load_{name}",
            KvLoadParams(layout=layout, rate=self._rate),
            _at(attend={"layer": 0, "rows": position + T, "waits": 1}),
            i_appended=appended,
        )["o"]
        for node in (f"store_{name}", f"load_{name}"):
            b.grow(node, layer=1)
            for c in range(layout.channels):
                b.tensor(
                    f"{node}_{c}",
                    "state",
                    Port(node, f"memory_{c}"),
                    shape=layout.order.shape,
                    channel=c,
                    itensor=layout.order,
                    own=True,
                    buffer=f"cache_{name}_{c}",
                )
        return rows

    def _norm(self, source: Port) -> Port:
        weights, H, T = self._weights, self._hidden, self._tokens
        one: Norm = weights.model.op("norm")
        norms: dict[str, list[Norm]] = {
            "norm": [layer.op("attention_norm") for layer in weights.layers],
            "project": [layer.op("feed_forward_norm") for layer in weights.layers],
            "last": [one],
        }
        params = NormParams(
            kind=one.kind,
            lanes=self._plan.lanes,
            max_k=H,
            max_rows=self._plan.max_tokens,
            bias=one.bias is not None,
            plus_one=one.plus_one,
        )
        tokens = {"norm": T, "project": T, "last": 1}
        bounds: dict[str, Bounds] = {
            phase: {"t": t, "k": H, "valid_k": H, "epsilon": norms[phase][0].epsilon}
            for phase, t in tokens.items()
        }
        row = self._rows(1, H)
        rows = {
            f"i_{part}": self._constant(
                f"norm_{part}",
                {
                    p: (row, np.stack([round_f24(getattr(norm, part))[None] for norm in ns]))
                    for p, ns in norms.items()
                },
                channel=0,
                prefetch=64,
                burst=16,
            )
            for part in (("weight", "bias") if params.bias else ("weight",))
        }
        return self._b.kernel("norm", params, _at(**bounds), i=source, **rows)["o"]

    def _gated(self, y: Port) -> Port:
        b, C, F = self._b, self._plan.columns, self._wide
        order = self._results(2 * F)
        params = UnzipParams(ways=2, dtype="f24", lanes=C // 2, max_tokens=self._most(2 * F, C))
        parts = b.kernel("unzip", params, _at(expand={"itensor": order}), i=y)
        part = params.outputs({"itensor": order})["o_0"]
        gate = BinaryParams(
            operation=f"{self._function}_multiply", lanes=C // 2, max_tokens=self._most(2 * F, C)
        )
        return b.kernel("gate", gate, _at(expand={"itensor": part}), i_a=parts["o_0"], i_b=parts["o_1"])["o"]

    def _quantise(self, normed: Port, attended: Port, gated: Port) -> None:
        """What the engine reads in the phase that follows."""
        b, T = self._b, self._tokens
        uses = {
            "norm": (0, T, self._hidden),
            "attend": (1, T, self._heads),
            "project": (0, T, self._hidden),
            "expand": (2, T, self._wide),
            "last": (0, 1, self._hidden),
        }
        most = max(k for _, _, k in uses.values())
        ways = {phase: (way, self._rows(t, k)) for phase, (way, t, k) in uses.items()}
        chosen = self._select("select_operand", ways, normed, attended, gated)
        bounds = {phase: {"t": t, "k": k, "valid_k": k} for phase, (_, t, k) in uses.items()}
        params = QuantiseParams(lanes=self._plan.lanes, max_k=most, sums=True)
        codes = b.kernel("quantise", params, _at(**bounds), i=chosen)
        b.connect(codes["o_x"], Port("engine_x", "i"), back=self._plan.max_tokens * most // MX_GROUP)
        b.connect(codes["o_e"], Port("engine_e", "i"), back=self._plan.max_tokens)

    def _head(self, y: Port) -> None:
        b, C, V = self._b, self._plan.columns, len(self._weights.embedding) - 1
        params = TopKParams(lanes=C, max_length=V, max_k=1)
        best = b.kernel("argmax", params, _at(head={"rows": 1, "length": V, "k": 1}), i=y)
        logits = b.kernel(
            "take_logits",
            TakeRowsParams(dtype="f24", lanes=C, max_tokens=V // C),
            _at(head={"rows": 1, "features": V, "first": 0, "count": 1}),
            i=y,
        )["o"]
        rows = {"logits": (logits, self._rows(1, V, WORD_LANES), (1, V))}
        for name in ("values", "indices"):
            port = best[f"o_{name}"]
            rows[f"best_{name}"] = (port, b.itensor(port), (1, 1))
        for name, (port, order, shape) in rows.items():
            b.store(name, port, itensor=_at(head=order), shape=shape, channel=0)


def _at(**by_phase: Any) -> tuple[Any, ...]:
    """By phase, None where a node rests."""
    return tuple(by_phase.get(phase) for phase in PHASES)
