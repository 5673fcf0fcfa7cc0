"""Cache: the rows of all earlier positions of a text, followed by the rows of this pass.

In the accelerator a row is stored as int8 codes with one scale m·2^e per head (`exact_attention`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamgen.artifact.kv_layout import KvLayout
from streamgen.base.errors import GraphError
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.memory import KvStoreParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.as_made import tile_as_made
from streamgen.model.operations.exact_attention import HeadCodes, joined, quantise_heads
from streamgen.model.operations.site import Behind, Codes, Kept, Site, Stream, head_lanes


@dataclass(frozen=True)
class Cache(Operator):
    """heads, head_dim: the shape of a row."""

    heads: int
    head_dim: int
    keeps_state = True

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} of a cache is {getattr(self, name)}; at least 1 is needed")

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,), needed = inputs, self.heads * self.head_dim
        if x.rows != "tokens" or x.features != needed:
            raise GraphError(
                f"a cache of {self.heads} heads of {self.head_dim} takes {needed} features a token, not {x}"
            )
        return (replace(x, rows="positions"),)

    def _require(self, run: Run, held: int) -> None:
        if held < run.position:
            raise ValueError(f"the state of {run.path} holds {held} positions; {run.position} are needed")

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        held = run.state.get(run.path)
        if held is None:
            held = np.zeros((0, self.heads * self.head_dim), run.dtype)
        self._require(run, len(held))
        run.kept[run.path] = np.concatenate([held[: run.position], inputs[0]])
        return run.kept[run.path]

    def exact(self) -> Exact:
        """Computes `HeadCodes`: codes with their scales."""

        def compute(run: Run, x: np.ndarray) -> HeadCodes:
            held = run.state.get(run.path) or HeadCodes.empty(self.heads, self.head_dim)
            self._require(run, held.codes.shape[1])
            run.kept[run.path] = joined(held, run.position, quantise_heads(x, self.heads))
            return run.kept[run.path]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Kept, ...]:
        """Rows are quantised and appended to a cache in memory; the readers load the rows of
        earlier passes."""
        (x,) = inputs
        name = f"quantise_{site.name}"
        codes = quantise_heads_of(
            site, name, self.heads, self.head_dim, x, lambda tile: self.pieces(tile) > 1
        )
        pieces = 1 if codes.tile is None else self.pieces(codes.tile)
        layouts: list[KvLayout] = []
        behind = []
        for part, source, width, dtype, heads, stored in (
            ("x", codes.x, self.head_dim, "i8", self.heads, pieces),
            ("scale", codes.scale, self.heads, "i24", 1, 1),
        ):
            layout, first, layer, step = site.caches(width, dtype, heads, *layouts)
            name = f"{site.name}_{part}"
            states = states_of(layout, first, f"cache_{name}")
            site.kernel(
                f"store_{name}",
                KvStoreParams(layout=layout, pieces=stored, **site.memory._asdict()),
                {"layer": layer, "position": site.position, "rows": site.tokens},
                steps={"layer": step},
                behind=states,
                i=source,
            )
            layouts.append(layout)
            behind.append(states)
        return (Kept(site.name, codes, tuple(layouts), pieces, layer, step, tuple(behind)),)  # type: ignore[arg-type]

    def pieces(self, tile: int, operand: int = 0) -> int:
        """The number of rows that come in tiles of whole heads, a power of two."""
        pieces, rest = divmod(self.heads * self.head_dim, tile)
        return pieces if not rest and not tile % self.head_dim and not pieces & (pieces - 1) else 1

    def __str__(self) -> str:
        return f"cache[{self.heads} x {self.head_dim}]"


def states_of(layout: KvLayout, first: int, name: str) -> list[Behind]:
    """The contents behind the memory ports of a cache from channel `first` on. name: of its buffers."""
    return [
        Behind(
            port=f"memory_{c}",
            name=f"{c}",
            channel=first + c,
            itensor=layout.order,
            buffer=f"{name}_{c}",
        )
        for c in range(layout.channels)
    ]


def quantise_heads_of(
    site: Site, name: str, heads: int, head_dim: int, x: Stream, as_made: Callable[[int], bool] | None = None
) -> Codes:
    """Add the kernel that quantises rows of heads. as_made: returns whether a matmul's tiles of that many
    features, whole heads, are taken in their order; otherwise rows come one after another."""
    rows, lanes = site.count(x.shape), head_lanes(site, head_dim)
    params = QuantiseRowsParams(lanes=lanes, max_d=head_dim, max_tokens=rows * heads * head_dim // lanes)
    bounds = {"t": rows, "features": heads * head_dim, "d": head_dim}
    if as_made is not None:
        tile = tile_as_made(x.itensor, lambda tile: params.inputs({**bounds, "tile": tile})["i"], head_dim)
        bounds |= {} if tile is None or not as_made(tile) else {"tile": tile}
    ports = site.kernel(name, params, bounds, i=x)
    return Codes(ports["o_x"], ports["o_scale"], bounds.get("tile"))
