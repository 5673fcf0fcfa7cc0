"""SmolLM2-135M-Instruct to Verilog: from its torch module, from its checkpoint. `make demo` has its cycles.

    python benchmarks/decoder.py

Seconds depend on the machine and on what else it does; processor time less so.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import streamgen
from sim.smollm2 import eager_smollm2
from streamgen.model.frontend import default_checkpoint

LIMIT = 60  # seconds from a model to Verilog


def main() -> None:
    """Print every figure."""
    report("torch module", eager_smollm2())
    report("checkpoint", default_checkpoint())


def report(name: str, model: Any) -> None:
    """Compile and write a model, as the demo does."""
    config = streamgen.CompileConfig(
        name="smollm2", goal="small", max_tokens=16, context=256, channels=4, multipliers=512
    )
    with tempfile.TemporaryDirectory() as place:
        start, busy = time.perf_counter(), time.process_time()
        accelerator = streamgen.compile(model, config=config)
        accelerator.write(Path(place, "smollm2"))
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
    print(
        f"{name} -> Verilog: {seconds:.1f} s (to be under {LIMIT}), {busy:.1f} s of processor time, "
        f"{seconds / LIMIT:.2f} of the limit"
    )


if __name__ == "__main__":
    main()
