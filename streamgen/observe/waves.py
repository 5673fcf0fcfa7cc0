"""Waves of a window of cycles: every signal of the written Verilog in an FST file, under its name in the
Verilog.

A cycle is a nanosecond in the file. Cycle c begins at c ns, when all its signals have settled. Its clock edge
is at c + 0.5 ns. GTKWave and Surfer read the file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streamgen.base.wording import counted
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Launch
from streamgen.runtime.simulator import SimulatedDevice


@dataclass(frozen=True)
class Waves:
    """Write the waves of cycles `first` to `last` of a run of the hardware to the file `path`.

    run: number of the run within a call, from 1. Each pass over the tokens is one run for each group.
    """

    path: str | Path
    first: int
    last: int
    run: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"waves of cycles {self.first} to {self.last}; 0 <= first <= last must hold")
        if self.run < 1:
            raise ValueError(f"waves of run {self.run}; runs are counted from 1")


class Recorder:
    """Writes the waves of one call of `Accelerator.run`."""

    def __init__(self, waves: Waves) -> None:
        self._waves = waves
        self._runs = 0

    @contextmanager
    def observe(self, device: Device, images: Mapping[str, bytes], launch: Launch) -> Iterator[None]:
        """An observer of `streamgen.runtime.execution`."""
        self._runs += 1
        if self._runs != self._waves.run:
            yield
            return
        assert isinstance(device, SimulatedDevice)
        path = Path(self._waves.path)
        partial = path.with_name(f".{path.name}.part")
        try:
            device.record(partial, self._waves.first, self._waves.last)
            try:
                yield
            finally:  # waves show why a run failed
                cycles = device.end_record()
        except OSError:  # but not those of a full disk
            partial.unlink(missing_ok=True)
            raise
        finally:
            if partial.exists():
                partial.replace(path)
        if cycles <= self._waves.first:
            path.unlink()
            raise ValueError(
                f"run {self._runs} took {cycles} cycles, but the waves begin at cycle {self._waves.first}"
            )

    def check(self) -> None:
        """Raise ValueError if the run to record did not happen."""
        if self._runs < self._waves.run:
            raise ValueError(
                f"waves of run {self._waves.run}, but the call had only {counted(self._runs, 'run')}"
            )
