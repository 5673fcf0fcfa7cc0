"""Which modules of a design Verilator shall not dissolve, so that their instances share code.

Verilator copies every instance into the top and optimises the whole: six equal columns become six times
the code, which takes that long to compile and does not fit a processor's caches. A module of some size
with several instances is better translated once. That works when the code refers to its own variables
only: the input ports are made public, so that no instance reads its parent's variable in their place.
"""

import re
from collections import Counter
from functools import cache

MIN_LINES = 60  # with all that is inside; smaller modules gain nothing

NAME = r"(\\\S+|\w+)"  # of a module; one that has its place in another is called after it, \other.place
MODULE = re.compile(rf"^module {NAME}(.*?)^endmodule", re.MULTILINE | re.DOTALL)
INSTANCE = re.compile(rf"^ *{NAME} +(?:\\\S+|\w+) +\($", re.MULTILINE)
INPUT = re.compile(r"^ *input (?:wire )?(?:signed )?(?:\[[^\]]*\] )?(\w+);", re.MULTILINE)


def sharing(verilog: str, top: str) -> str:
    """A Verilator configuration file for the modules below `top`.

    A module that is not written as Yosys writes them is left to Verilator.
    """
    bodies = {match[1]: match[2] for match in MODULE.finditer(verilog)}
    children = {
        name: Counter(child for child in INSTANCE.findall(body) if child in bodies)
        for name, body in bodies.items()
    }

    @cache
    def lines(name: str) -> int:
        return bodies[name].count("\n") + sum(n * lines(child) for child, n in children[name].items())

    instances: Counter[str] = Counter()

    def count(name: str, times: int) -> None:
        instances[name] += times
        for child, n in children.get(name, {}).items():
            count(child, times * n)

    count(top, 1)
    rules = ["`verilator_config"]
    for name in sorted(instances):
        placed = name.startswith("\\")  # shared with the module that holds it
        if name != top and not placed and instances[name] > 1 and lines(name) >= MIN_LINES:
            rules.append(f'no_inline -module "{name}"')
            inputs = [port for port in INPUT.findall(bodies[name]) if port != "clk"]
            rules += [f'public_flat_rd -module "{name}" -var "{port}"' for port in inputs]
    return "\n".join(rules) + "\n"
