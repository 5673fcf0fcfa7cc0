"""Instruments of a simulator for debugging: visible pins of FIFOs for probes and profiles, and waves in a
file.

Instruments cost speed. A simulator with instruments is therefore a separate library beside the plain one.
"""

import re
from dataclasses import dataclass

from streamgen.base.errors import StreamgenError

HANDSHAKE = ("valid", "ready")
PINS = (*HANDSHAKE, "payload")
COUNTING = "counters__enable"  # wire in the top module: high while the counters of the status block count


@dataclass(frozen=True, kw_only=True)
class Instruments:
    """Instruments to build in. streams: FIFOs in the top module whose tokens are watched, each given by the
    instances with the pins of its input and its output (`Stream.sides`). profile: FIFOs at which tokens are
    counted, given in the same way. waves: whether the simulator can write FST files."""

    streams: tuple[tuple[str, str], ...] = ()
    profile: tuple[tuple[str, str], ...] = ()
    waves: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for Verilator. By its default, waves leave out memories of more than 32 words."""
        return ("--trace-fst", "--trace-max-width", "0") if self.waves else ()

    def rules(self, verilog: str, top: str) -> list[str]:
        """Lines of a Verilator configuration file that keep the pins visible. Raises StreamgenError for a
        FIFO that the Verilog does not have."""
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
        lines = [f'public_flat_rd -module "{module}" -var "{pin}"' for module, pin in kept]
        if self.profile:
            if not re.search(rf"^ *wire {COUNTING};", body, re.MULTILINE):
                raise StreamgenError(f"the Verilog of {top!r} has no wire {COUNTING!r} to profile by")
            lines.append(f'public_flat_rd -module "{top}" -var "{COUNTING}"')
        return lines
