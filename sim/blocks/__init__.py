"""Every kind of block that a design is built of, each over a sweep of its parameters.

    sweep()     kind -> [(params, bounds)]; bounds are None for blocks that promise by `resources`

What is checked over it: resources against synthesis, and the depth of paths (`streamgen.testing.synthesis`).
"""

from itertools import product
from typing import Any

from sim.blocks.cases import Case, stream_of_bits
from sim.blocks.computing import (
    attention_blocks,
    attentions,
    column_bounds,
    columns,
    dequantisers,
    distance_rows,
    elementwise,
    norms,
    quantisers,
    ropes,
    row_quantisers,
    softmax_blocks,
    softmaxes,
    top_ks,
)
from sim.blocks.elements import crossings, functions, queues, streams, units
from sim.blocks.memory import caches, kv_tiles, memory_kernels, spills
from sim.blocks.moves import (
    concats,
    converters,
    embeddings,
    forks,
    row_fitters,
    row_joiners,
    row_takers,
    segments,
    switches,
    unzips,
)
from sim.blocks.platform import MASTERS, clients, control, dmas
from streamgen.gateware.arith import BFLOAT16, F24, FLOAT16, FLOAT32
from streamgen.kernels.attention.dequantise import ScaleCodeParams
from streamgen.kernels.attention.row_codes import RowCodeParams
from streamgen.kernels.matmul.group_codes import GroupCodesParams
from streamgen.platform.master import ChannelMasterParams

__all__ = ["Case", "sweep"]


def sweep() -> dict[str, list[Case]]:
    """All cases by kind; kinds are sorted by what they belong to."""
    return {
        "stream": _plain(streams()),
        "queue": _plain(queues()),
        "crossing": _plain(crossings()),
        "arith": _plain(units()),
        "function": _plain(functions(F24)),
        "function in other formats": _plain(functions(FLOAT32, BFLOAT16, FLOAT16)),
        "client": _plain(clients()),
        "master": _plain(ChannelMasterParams(readers=r, writers=w) for r, w in MASTERS),
        "dma": dmas(),
        "control": _plain(control()),
        "elementwise": elementwise(),
        "fork": [(params, {"itensor": stream_of_bits(params.token_bits)}) for params in forks()],
        "concat": concats(),
        "select and route": switches(),
        "take rows": row_takers(),
        "fit rows": row_fitters(),
        "join rows": row_joiners(),
        "segments": segments(),
        "unzip": unzips(),
        "group codes": _plain(
            GroupCodesParams(lanes=n, sums=s) for n, s in product((1, 4, 32), (False, True))
        ),
        "quantise": quantisers(),
        "converter": [(p, {"source": p.source, "target": p.target}) for p in converters()],
        "norm": [(params, {"t": 1, "k": params.lanes, "valid_k": 1, "epsilon": 1e-5}) for params in norms()],
        "embedding": [(params, {"ids": 1, "vocabulary": 1, "offset": 0}) for params in embeddings()],
        "rope": [(params, {"rows": 1, "heads": 1}) for params in ropes()],
        "row codes": _plain((RowCodeParams(), ScaleCodeParams())),
        "quantise rows": row_quantisers(),
        "dequantise": dequantisers(),
        "kv cache": caches(),
        "memory": memory_kernels(),
        "softmax blocks": _plain(softmax_blocks()),
        "softmax": [(params, {"rows": 1, "length": 1}) for params in softmaxes()],
        "attention blocks": _plain(attention_blocks()),
        "attention": attentions(),
        "top k": top_ks(),
        "distance rows": distance_rows(),
        "column": [(params, column_bounds(params)) for params in columns()],
        "spill": spills(),
        "kv tiles": _plain(kv_tiles()),
    }


def _plain(params: Any) -> list[Case]:
    return [(p, None) for p in params]
