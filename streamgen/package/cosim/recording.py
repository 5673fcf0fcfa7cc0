"""Runs of the hardware, as they were on the simulated device: what the host wrote, what came out."""

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
    """One run. table, inputs, outputs: images of memory, before and after it."""

    launch: Launch
    table: bytes
    inputs: Mapping[str, bytes]
    outputs: Mapping[str, bytes]


@contextmanager
def record(execution: Execution) -> Iterator[list[Recorded]]:
    """The runs of an execution that happen inside the context."""
    found: list[Recorded] = []
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
        table = chosen.program.pack()
        found.append(Recorded(launch=launch, table=table, inputs=dict(images), outputs=outputs))

    execution.observer, execution.alone = observer, True
    try:
        yield found
    finally:
        execution.observer, execution.alone = before, alone


def write_recording(runs: list[Recorded], path: Path) -> None:
    """A file of numpy: of run k `k/tiles`, `k/position`, and bytes `k/table`, `k/in/NAME`, `k/out/NAME`."""
    arrays: dict[str, np.ndarray] = {"runs": np.array(len(runs))}
    for k, one in enumerate(runs):
        arrays |= {
            f"{k}/tiles": np.array(one.launch.tiles),
            f"{k}/position": np.array(one.launch.position),
            f"{k}/table": np.frombuffer(one.table, np.uint8),
        }
        for side, images in (("in", one.inputs), ("out", one.outputs)):
            arrays |= {f"{k}/{side}/{name}": np.frombuffer(image, np.uint8) for name, image in images.items()}
    np.savez(path, allow_pickle=False, **arrays)
