"""Kernels from packages of their own, one in Amaranth and one in Verilog, in one accelerator.

    y = clip(x, 1.5)                      x: 8 tokens of 32 features
    w[t] = w[t - 1] + z[t], saturated     z: 8 tokens of 32 integers of 16 bits

The packages are found beside this file; installed ones are taken first. To install them:

pip install --no-deps examples/packages/clip examples/packages/verilog
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import streamgen
from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor

TOKENS, FEATURES, LANES = 8, 32, 8
PACKAGES = Path(__file__).parent / "packages"
sys.path += [str(PACKAGES / "clip"), str(PACKAGES / "verilog")]


def rows(dtype: str) -> ITensor:
    """Row-major tiles of 1 x LANES."""
    return ITensor((1, LANES), dtype, (TOKENS, FEATURES // LANES), (1, LANES), ((0,), (1,)))


def build() -> streamgen.Accelerator:
    from streamgen_example_clip import ClipParams  # now that the path has its folder
    from streamgen_example_verilog import RunningSumParams

    builder = GraphBuilder("own_kernels")
    shape = (TOKENS, FEATURES)
    x = builder.load("x", rows("f24"), shape=shape, channel=0)
    clip = ClipParams(lanes=LANES, max_tokens=rows("f24").token_count)
    y = builder.kernel("clip", clip, {"itensor": rows("f24"), "limit": 1.5}, i=x)["o"]
    builder.store("y", y, shape=shape, channel=0)

    # The sums run down the rows, so streamgen puts a converter in front of them.
    z = builder.load("z", rows("i16"), shape=shape, channel=1)
    running = RunningSumParams(lanes=LANES, max_rows=TOKENS, max_panels=FEATURES // LANES)
    bounds = {"rows": TOKENS, "panels": FEATURES // LANES}
    w = builder.kernel("running", running, bounds, i=z)["o"]
    builder.store("w", w, shape=shape, channel=1)
    return streamgen.assemble(builder.build())


def main(folder: Path) -> None:
    written = build().write(folder)
    accelerator = streamgen.load(written, trust=("streamgen_example_clip", "streamgen_example_verilog"))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(TOKENS, FEATURES)).astype(np.float32)
    z = rng.integers(-20_000, 20_000, (TOKENS, FEATURES)).astype(np.int16)
    y, w = accelerator.run(x, z)
    expected = accelerator.golden(x, z)
    assert y.tobytes() == expected[0].tobytes() and w.tobytes() == expected[1].tobytes()
    assert np.abs(y).max() == 1.5 and w.max() == 2**15 - 1
    print(accelerator.report())
    print("files:", *sorted(file.name for file in written.iterdir()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else place) / "own_kernels")
