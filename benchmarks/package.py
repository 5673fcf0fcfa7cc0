"""Seconds and bytes of a whole language model's package, and how long the runtime takes to import.

    python benchmarks/package.py [FOLDER]

FOLDER: a language model as `generate` or `compile` wrote it; without one SmolLM2-135M is compiled first, over
four channels, which takes minutes.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import streamgen
from streamgen.model.frontend import default_checkpoint
from streamgen.package import package

IMPORTS = 5
RUNTIME = "import streamgen.runtime, streamgen.runtime.chain, streamgen.runtime.generation"


def main() -> None:
    """Measure and print."""
    code = f"import time\nbegin = time.perf_counter()\n{RUNTIME}\nprint(time.perf_counter() - begin)"
    once = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(IMPORTS)]
    print(f"the runtime is imported in {min(once):.2f} s, the least of {IMPORTS}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            written = Path(sys.argv[1])
        else:
            config = streamgen.CompileConfig(
                name="smollm2", goal="small", max_tokens=16, context=256, channels=4, multipliers=512
            )
            written = streamgen.compile(default_checkpoint(), config=config).write(Path(place, "smollm2"))
        begin = time.perf_counter()
        card = package(written, Path(place, "card"))
        seconds = time.perf_counter() - begin
        size = sum(file.stat().st_size for file in card.rglob("*") if file.is_file())
        print(f"{written.name} is packaged in {seconds:.1f} s: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
