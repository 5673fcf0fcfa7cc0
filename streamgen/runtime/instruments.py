"""What a simulator is built with for debugging: pins of FIFOs that probes and profiles read, waves in a file.

Both cost speed, so they live in libraries of their own beside the plain one of a design.
"""

import re
from dataclasses import dataclass

from streamgen.base.errors import StreamgenError

HANDSHAKE = ("valid", "ready")
PINS = (*HANDSHAKE, "payload")
COUNTING = "counters__enable"  # in the top: high while the counters of the status block count


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """streams: FIFOs in the top whose tokens are watched, by the instances with the pins of their inputs and
    outputs (`Stream.sides`). profile: those at which tokens are counted. waves: can write FST files."""

    streams: tuple[tuple[str, str], ...] = ()
    profile: tuple[tuple[str, str], ...] = ()
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
        rules: dict[tuple[str, str], tuple[str, ...]] = {}
        for streams, pins in ((self.profile, HANDSHAKE), (self.streams, PINS)):
            for stream in streams:
                for side, instance in zip("io", stream, strict=True):
                    if instance not in modules:
                        raise StreamgenError(f"the Verilog of {top!r} has no instance {instance!r} to probe")
                    rules[modules[instance], side] = tuple(f"{side}__{pin}" for pin in pins)
        kept = [(module, pin) for module, side in sorted(rules) for pin in rules[module, side]]
        found = [f'public_flat_rd -module "{module}" -var "{pin}"' for module, pin in kept]
        if self.profile:
            if not re.search(rf"^ *wire {COUNTING};", body, re.MULTILINE):
                raise StreamgenError(f"the Verilog of {top!r} has no wire {COUNTING!r} to profile by")
            found.append(f'public_flat_rd -module "{top}" -var "{COUNTING}"')
        return found
