"""Rotary position embedding of the heads of a row.

    halves    y[j] = x[j] cos(p f[j]) - x[j + r/2] sin(p f[j])
              y[j + r/2] = x[j + r/2] cos(p f[j]) + x[j] sin(p f[j])                     j < r/2

Interleaved pairs are neighbours (2j, 2j + 1). p is the position of the row. The first r dimensions of a head
rotate; the others pass unchanged.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.attention.rope_tables import rotation_table
from streamgen.kernels.memory import RowsLoadParams
from streamgen.model.graph.logical import Exact, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.site import Site, Stream, head_lanes


@dataclass(frozen=True)
class Rotary(Operator):
    """frequencies: r / 2 numbers, in radians per position, after any scaling. heads, head_dim: the shape of a
    row."""

    heads: int
    head_dim: int
    frequencies: tuple[float, ...]
    interleaved: bool = False

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} of a rotation is {getattr(self, name)}; at least 1 is needed")
        object.__setattr__(self, "frequencies", tuple(float(f) for f in self.frequencies))
        if not self.frequencies or not np.isfinite(self.frequencies).all():
            raise GraphError("rotary frequencies must all be finite, one or more")
        if self.rotated > self.head_dim:
            raise GraphError(f"{self.rotated} dimensions rotate; a head has {self.head_dim}")

    @property
    def rotated(self) -> int:
        """The number of dimensions of a head that rotate."""
        return 2 * len(self.frequencies)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (x,) = inputs
        if x.features != (needed := self.heads * self.head_dim):
            raise GraphError(
                f"{self.heads} heads of {self.head_dim} rotate, {needed} features; {x.features} are given"
            )
        return (x,)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        x = inputs[0].reshape(run.tokens, self.heads, self.head_dim)
        angles = run.positions[:, None, None] * np.array(self.frequencies)
        cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
        r = self.rotated
        first = slice(0, r, 2) if self.interleaved else slice(0, r // 2)
        second = slice(1, r, 2) if self.interleaved else slice(r // 2, r)
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y.reshape(inputs[0].shape)

    def params(self, lanes: int, rows: int) -> RopeParams:
        """The params of the kernel for passes of `rows` rows."""
        return RopeParams(
            lanes=lanes,
            dims=self.head_dim,
            rotated=self.rotated,
            interleaved=self.interleaved,
            max_heads=rows * self.heads,
        )

    def exact(self) -> Exact:
        frequencies = np.array(self.frequencies)

        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            params = self.params(2 if self.interleaved else 1, run.tokens)
            table = rotation_table(run.positions, frequencies)
            return params.golden({"rows": run.tokens, "heads": self.heads}, {"i": x, "i_table": table})["o"]

        return compute

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        """Cosines and sines come from a table in memory; rotations of one phase share what they
        read from it."""
        lanes = head_lanes(site, self.head_dim, self.rotated if self.interleaved else self.rotated // 2)
        if self.interleaved and lanes % 2:
            if self.head_dim % 2:
                raise GraphError(
                    f"neighbours rotate in pairs, but heads have {self.head_dim} dimensions, an odd number"
                )
            lanes = 2  # of a design with one lane
        pairs = lanes // 2 if self.interleaved else lanes

        def rotations() -> Stream:
            params = RowsLoadParams(
                shape=(2, len(self.frequencies)),
                tile=(2, pairs),
                vocabulary=site.context,
                max_ids=site.tokens,
                **site.memory._asdict(),
            )
            data = _table(site.context, self.frequencies, params.stored[-1])
            table = site.table("table", params.table, data)
            bounds = {"ids": site.tokens, "offset": 0}
            return site.kernel("rotations", params, bounds, behind=[table], i=site.numbers("positions"))["o"]

        table = site.once((self.frequencies, pairs), rotations)
        bounds = {"rows": site.tokens, "heads": self.heads}
        params = self.params(lanes, site.tokens)
        return (site.kernel(site.name, params, bounds, i=inputs[0], i_table=table)["o"],)

    def __str__(self) -> str:
        return f"rotary[{self.heads} x {self.head_dim}, {self.rotated} rotate]"


@lru_cache(maxsize=8)
def _table(positions: int, frequencies: tuple[float, ...], stored: int) -> np.ndarray:
    """Cosines and sines of all positions, and a row of NaN for positions beyond; rows are `stored` pairs
    long."""
    data = rotation_table(positions, np.array(frequencies))
    rows = np.concatenate([data, np.full_like(data[:1], np.nan)])
    return np.pad(rows, ((0, 0), (0, 0), (0, stored - len(frequencies))))
