"""Placement constraints: the SLR of each block of a design, for the vendor's placer.

If a design lies on one SLR, the linker keeps it there (`slr=`). This does not work for a design on several
SLRs, because `slr=` binds the whole kernel to one of them. Such a design gets the property
USER_SLR_ASSIGNMENT on its blocks and on the registers of their resets; the placer follows this property where
it can (AMD's UG912). Every signal between two SLRs has a register on both sides, and the Verilog marks these
registers for the wires between SLRs (USER_SLL_REG). No pblocks are written: a kernel lies inside a region of
the platform, which has its own pblocks.
"""

from collections.abc import Mapping

CONSTRAINTS = "placement.xdc"


def only_slr(instances: Mapping[str, str]) -> str | None:
    """The SLR on which all instances lie; None if they lie on several SLRs."""
    slrs = set(instances.values())
    return slrs.pop() if len(slrs) == 1 else None


def placement_constraints(instances: Mapping[str, str]) -> str | None:
    """Text of the constraints file, scoped to the kernel; None if all instances lie on one SLR.

    instances: the SLR of each instance, by the name of the instance in the top module of the Verilog.
    """
    if only_slr(instances) is not None:
        return None
    lines = ["# The SLRs of the kernel's blocks and of the registers of their resets."]
    for slr in sorted(set(instances.values())):
        names = sorted(name for name, home in instances.items() if home == slr)
        lines += [
            f"set_property USER_SLR_ASSIGNMENT {slr} [get_cells {{",
            *(f"    {name}" for name in names),
            "}]",
        ]
    return "\n".join(lines) + "\n"
