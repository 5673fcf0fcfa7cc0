"""What a simulator is built with for debugging: pins of FIFOs that probes and profiles read, waves in a file.

Both cost speed, so they live in libraries of their own beside the plain one of a design.
"""

import re
from dataclasses import dataclass

from streamgen.errors import StreamgenError

__all__ = ["COUNTING", "Instruments"]

HANDSHAKE = tuple(f"{side}__{pin}" for side in "io" for pin in ("valid", "ready"))
PINS = (*HANDSHAKE, *(f"{side}__payload" for side in "io"))
COUNTING = "counters__enable"  # in the top: high while the counters of the status block count


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """streams: instances of FIFOs in the top whose tokens are watched. profile: those at which tokens are
    counted. waves: can write FST files."""

    streams: tuple[str, ...] = ()
    profile: tuple[str, ...] = ()
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
        rules = {}
        for streams, pins in ((self.profile, HANDSHAKE), (self.streams, PINS)):
            for stream in streams:
                if stream not in modules:
                    raise StreamgenError(f"the Verilog of {top!r} has no instance {stream!r} to probe")
                rules[modules[stream]] = pins
        found = [f'public_flat_rd -module "{m}" -var "{pin}"' for m in sorted(rules) for pin in rules[m]]
        if self.profile:
            if not re.search(rf"^ *wire {COUNTING};", body, re.MULTILINE):
                raise StreamgenError(f"the Verilog of {top!r} has no wire {COUNTING!r} to profile by")
            found.append(f'public_flat_rd -module "{top}" -var "{COUNTING}"')
        return found
