"""An accelerator of two kernels, built by hand, kernel by kernel, without torch.

    y = silu(a) * b        a, b: 8 tokens of 64 features, from memory

The two inputs lie in memory in different orders of tiles; the second is re-tiled on the fly by a layout
converter that streamgen infers.
"""

import numpy as np

import streamgen
from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams, UnaryParams

# Row-major tiles of 1 x 16, and the same tensor column panel by column panel.
rows = ITensor.parse("itensor<1x16xf24, iter_space: [8,4]*[1,16], iter_map: (d0,d1)->(d0,d1)>")
panels = ITensor.parse("itensor<1x16xf24, iter_space: [4,8]*[16,1], iter_map: (d0,d1)->(d1,d0)>")


def build() -> streamgen.Accelerator:
    builder = GraphBuilder("gated")
    a = builder.load("a", rows, shape=(8, 64), channel=0)
    b = builder.load("b", panels, shape=(8, 64), channel=1)
    silu = UnaryParams(function="silu", lanes=16, max_tokens=rows.token_count)
    gate = builder.kernel("gate", silu, {"itensor": rows}, i=a)["o"]
    multiply = BinaryParams(operation="multiply", lanes=16, max_tokens=rows.token_count)
    product = builder.kernel("product", multiply, {"itensor": rows}, i_a=gate, i_b=b)["o"]
    builder.store("y", product, shape=(8, 64), channel=0)
    return streamgen.assemble(builder.build())


def main() -> None:
    accelerator = build()
    print(accelerator.graph)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 8, 64)).astype(np.float32)
    y = accelerator.run(a, b)
    assert y.tobytes() == accelerator.golden(a, b).tobytes()
    print(accelerator.report())


if __name__ == "__main__":
    main()
