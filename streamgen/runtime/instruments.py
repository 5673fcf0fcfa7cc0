"""What a simulator is built with for debugging: pins of FIFOs that probes can read, waves in a file.

Both cost speed, so they live in libraries of their own beside the plain one of a design.
"""

import re
from dataclasses import dataclass

from streamgen.errors import StreamgenError

__all__ = ["Instruments"]

PINS = tuple(f"{side}__{pin}" for side in "io" for pin in ("valid", "ready", "payload"))


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """streams: instances of FIFOs in the top whose tokens are watched. waves: can write FST files."""

    streams: tuple[str, ...] = ()
    waves: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Of Verilator. Memories of more than 32 words are left out of waves, as it does by default."""
        return ("--trace-fst", "--trace-max-width", "0") if self.waves else ()

    def rules(self, verilog: str, top: str) -> list[str]:
        """Lines of a Verilator configuration file that keep the pins; StreamgenError names a missing FIFO."""
        start = verilog.find(f"\nmodule {top}(")
        body = verilog[start : verilog.find("\nendmodule", start)] if start >= 0 else ""
        modules = {name: module for module, name in re.findall(r"^ *(\w+) (\w+) +\($", body, re.MULTILINE)}
        for stream in self.streams:
            if stream not in modules:
                raise StreamgenError(f"the Verilog of {top!r} has no instance {stream!r} to probe")
        watched = sorted({modules[stream] for stream in self.streams})
        return [f'public_flat_rd -module "{module}" -var "{pin}"' for module in watched for pin in PINS]
