"""What every unit of `streamgen.gateware.arith` costs by synthesis, beside its promise, and its deepest path.

    python benchmarks/arith.py [name ...]

A unit a line: latency in cycles (each takes operands in every cycle), LUTs, flip-flops and DSPs found and
promised, and the LUT levels of the deepest path, with its nets. All units in f24, those that are exact in
float32, bfloat16 and float16 too. Names choose units by the beginning of their class: `Add Multiply`. Held to
limits are the addition of f24, 420 LUTs, its multiplication, 120 LUTs and one DSP, and 8 levels for all; the
exit status is 1 when one is not kept. Synthesis is Yosys `synth_xilinx -family xcup`; see `sim/synthesis.py`.
"""

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from streamgen.gateware.arith import (
    BFLOAT16,
    F24,
    FLOAT16,
    FLOAT32,
    AddParams,
    CompareParams,
    ConvertParams,
    DivideParams,
    ExpParams,
    Float,
    FloatToIntParams,
    IntToFloatParams,
    MaximumParams,
    MultiplyAddParams,
    MultiplyParams,
    ReciprocalParams,
    SaturatingParams,
    ScaleAccumulatorParams,
    SquareRootParams,
)
from streamgen.gateware.functions import FUNCTIONS
from streamgen.testing.synthesis import MAX_LEVELS, Synthesis, synthesise

FORMS = {"f24": F24, "float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
AT_A_TIME = 12  # units in one run of Yosys
LIMITS = {AddParams(form=F24): (420, 0), MultiplyParams(form=F24): (120, 1)}  # LUTs, DSPs


def units() -> list[Any]:
    """Params of every unit; those that round exactly in all formats."""
    exact = (AddParams, MultiplyParams, MultiplyAddParams, DivideParams, SquareRootParams)
    return [
        *(kind(form=form) for kind in exact for form in FORMS.values()),
        CompareParams(form=F24),
        MaximumParams(form=F24),
        *(ReciprocalParams(form=F24, root=root) for root in (False, True)),
        *(ExpParams(form=F24, base_two=two) for two in (False, True)),
        SaturatingParams(form=F24, function="erf"),
        *(function.unit(F24) for function in FUNCTIONS.values()),
        *(IntToFloatParams(width=width, form=F24) for width in (16, 48, 64)),
        *(FloatToIntParams(width=width, form=F24) for width in (8, 32)),
        *(ConvertParams(source=F24, target=form) for form in (FLOAT32, BFLOAT16, FLOAT16)),
        *(ConvertParams(source=form, target=F24) for form in (FLOAT32, BFLOAT16, FLOAT16)),
        ScaleAccumulatorParams(width=48, form=F24, exponent_bits=16),
    ]


def label(params: Any) -> str:
    """The class and the choices, formats by name."""
    names = {form: name for name, form in FORMS.items()}
    choices = [
        names[value] if isinstance(value, Float) else f"{name}={value}"
        for name, value in vars(params).items()
    ]
    return f"{type(params).__name__.removesuffix('Params')} {' '.join(choices)}"


def broken(params: Any, found: Synthesis) -> list[str]:
    """The limits that a unit does not keep."""
    lut, dsp = LIMITS.get(params, (float("inf"), float("inf")))
    return [
        f"{label(params)}: {value:g} {what}, at most {limit}"
        for what, value, limit in (
            ("LUT", found.resources.lut, lut),
            ("DSP", found.resources.dsp, dsp),
            ("levels", found.levels, MAX_LEVELS),
        )
        if value > limit
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="beginnings of the names of units; all by default")
    names = tuple(parser.parse_args().name) or ("",)
    chosen = [params for params in units() if type(params).__name__.startswith(names)]
    if not chosen:
        parser.error(f"no unit begins with {' or '.join(names)}")
    table = Table("unit", "latency", "LUT", "FF", "DSP", "levels", "deepest path")
    for column in table.columns[1:6]:
        column.justify = "right"
    faults = []
    for first in range(0, len(chosen), AT_A_TIME):
        part = chosen[first : first + AT_A_TIME]
        for params, found in zip(part, synthesise(*(unit.build() for unit in part)), strict=True):
            figures = (
                f"{getattr(found.resources, name):g} ({getattr(params.resources, name):.0f})"
                for name in ("lut", "ff", "dsp")
            )
            table.add_row(
                label(params), str(params.latency), *figures, str(found.levels), " > ".join(found.path)
            )
            faults += broken(params, found)
    console = Console(width=150, highlight=False)
    console.print(table)
    console.print(f"found (promised); {len(chosen)} units, {len(faults)} limits not kept")
    for fault in faults:
        console.print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
