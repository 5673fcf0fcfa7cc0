"""Record runs on the simulated device: the memory that the host wrote, and the memory after the run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamgen.runtime.arrays import image_bytes
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Execution, Launch


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One run. table, inputs: images of memory before the run. outputs: images after it."""

    launch: Launch
    table: bytes
    inputs: Mapping[str, bytes]
    outputs: Mapping[str, bytes]


@contextmanager
def record(execution: Execution) -> Iterator[list[Recorded]]:
    """Record the runs of an execution inside the context; yields the list that they are added to."""
    runs: list[Recorded] = []
    before, alone = execution.observer, execution.alone

    @contextmanager
    def observer(device: Device, images: Mapping[str, bytes], launch: Launch) -> Iterator[None]:
        manifest = execution.manifest
        chosen = manifest.variant(launch.variant)
        with before(device, images, launch):
            yield
        outputs = {
            info.name: device.allocate(info.name).read(image_bytes(info, launch.tiles))
            for info in execution.buffers("output")
            if info.name in chosen.outputs
        }
        table = chosen.program.pack(launch.source)
        runs.append(Recorded(launch=launch, table=table, inputs=dict(images), outputs=outputs))

    execution.observer, execution.alone = observer, True
    try:
        yield runs
    finally:
        execution.observer, execution.alone = before, alone


def write_recording(runs: list[Recorded], path: Path) -> None:
    """Write a file of numpy arrays: `runs`, the number of runs, and for run k the integers `k/tiles` and
    `k/position` and the bytes `k/table`, `k/in/NAME` and `k/out/NAME`."""
    arrays: dict[str, np.ndarray] = {"runs": np.array(len(runs))}
    for k, run in enumerate(runs):
        arrays |= {
            f"{k}/tiles": np.array(run.launch.tiles),
            f"{k}/position": np.array(run.launch.position),
            f"{k}/table": np.frombuffer(run.table, np.uint8),
        }
        for side, images in (("in", run.inputs), ("out", run.outputs)):
            arrays |= {f"{k}/{side}/{name}": np.frombuffer(image, np.uint8) for name, image in images.items()}
    np.savez(path, allow_pickle=False, **arrays)
