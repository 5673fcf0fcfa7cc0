"""Resources promised against synthesised, and the deepest path, for every kind of block over its sweep.

    python benchmarks/resources.py [--each] [kind ...]

Per kind: how far the promises are off, least and most, in per cent of what synthesis finds (differences
within the slack of small blocks count as none), and the deepest path, in LUT levels, by its nets. `--each`
also prints every block. Synthesis is Yosys `synth_xilinx -family xcup`; see `streamgen.testing.synthesis`.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from sim.blocks import Case, sweep
from streamgen.contract.cost import Resources
from streamgen.testing.synthesis import SLACK, Synthesis, promised, synthesise

NAMES = [field.name for field in fields(Resources)]
AT_A_TIME = 12  # blocks in one run of Yosys


def measure(cases: list[Case]) -> list[Synthesis]:
    """Two runs of Yosys at a time."""
    parts = [cases[k : k + AT_A_TIME] for k in range(0, len(cases), AT_A_TIME)]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda part: synthesise(*(params.build() for params, _ in part)), parts)
        return [result for part in found for result in part]


def error(name: str, said: Resources, found: Resources) -> float:
    """By how many per cent the promise of one resource is off."""
    difference = getattr(said, name) - getattr(found, name)
    if abs(difference) <= getattr(SLACK, name):
        return 0.0
    return 100 * difference / (getattr(found, name) or 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = sweep()
    parser.add_argument("--each", action="store_true", help="print every block")
    parser.add_argument("kind", nargs="*", choices=[[], *kinds], help="kinds of blocks; all by default")
    chosen = parser.parse_args()
    console = Console(width=150, highlight=False)
    table = Table("kind", "blocks", *(f"{name.upper()} %" for name in NAMES), "levels", "deepest path")
    for kind in chosen.kind or kinds:
        cases = kinds[kind]
        promises = [promised(params, bounds) for params, bounds in cases]
        results = measure(cases)
        off = {
            name: [error(name, said, found.resources) for said, found in zip(promises, results, strict=True)]
            for name in NAMES
        }
        deepest = max(results, key=lambda found: found.levels)
        spans = [
            f"{min(values):+.0f} to {max(values):+.0f}" if any(values) else "0" for values in off.values()
        ]
        table.add_row(kind, str(len(cases)), *spans, str(deepest.levels), " > ".join(deepest.path))
        if chosen.each:
            for (params, _), said, found in zip(cases, promises, results, strict=True):
                figures = ", ".join(
                    f"{name} {getattr(said, name):g}/{getattr(found.resources, name):g}" for name in NAMES
                )
                console.print(f"{params}\n    {figures}, {found.levels} levels", soft_wrap=True)
    console.print(table)


if __name__ == "__main__":
    main()
