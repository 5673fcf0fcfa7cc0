"""What the placement of a design says to the tools.

A design that lies on one SLR is kept there by the linker (`slr=`). One that lies on several cannot be, as
that would bind all of it to one region. Its blocks get the property USER_SLR_ASSIGNMENT, a wish that the
placer follows where it can (AMD's UG912), and so do the registers of their resets. Whatever crosses between
two SLRs has registers at both, marked for the wires between them (USER_SLL_REG) in the Verilog. Borders as
hard as those of a pblock are not written: a kernel lies inside a region of the platform, which has its own.
"""

from collections.abc import Mapping

CONSTRAINTS = "placement.xdc"


def only_slr(instances: Mapping[str, str]) -> str | None:
    """The SLR on which all instances lie; None when they lie on several."""
    slrs = set(instances.values())
    return slrs.pop() if len(slrs) == 1 else None


def placement_constraints(instances: Mapping[str, str]) -> str | None:
    """Text of the file of constraints, scoped to the kernel; None when all instances lie on one SLR.

    instances: the SLR of each, by its name in the top of the Verilog.
    """
    if only_slr(instances) is not None:
        return None
    lines = [
        "# Where the compiler has placed the blocks of the kernel, and the registers of their resets.",
    ]
    for slr in sorted(set(instances.values())):
        names = sorted(name for name, place in instances.items() if place == slr)
        lines += [
            f"set_property USER_SLR_ASSIGNMENT {slr} [get_cells {{",
            *(f"    {name}" for name in names),
            "}]",
        ]
    return "\n".join(lines) + "\n"
