"""Choose the modules that Verilator does not inline, so that their instances share code.

Verilator copies every instance into the top module and optimises the result. Six equal columns become six
copies of the code, which takes six times as long to compile and does not fit a processor's caches. It is
better to translate a larger module with several instances once. This works if its code refers only to its own
variables. Therefore the input ports are made public, so that no instance reads a variable of its parent
instead.
"""

import re
from collections import Counter
from functools import cache

MIN_LINES = 60  # of Verilog, with all modules inside; smaller modules gain nothing

NAME = r"(\\\S+|\w+)"  # of a module; \other.place is a module that belongs to a place inside module `other`
MODULE = re.compile(rf"^module {NAME}(.*?)^endmodule", re.MULTILINE | re.DOTALL)
INSTANCE = re.compile(rf"^ *{NAME} +(?:\\\S+|\w+) +\($", re.MULTILINE)
INPUT = re.compile(r"^ *input (?:wire )?(?:signed )?(?:\[[^\]]*\] )?(\w+);", re.MULTILINE)


def sharing(verilog: str, top: str) -> str:
    """Text of a Verilator configuration file for the modules below `top`.

    It has no rule for a module that is not written as Yosys writes modules.
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
        placed = name.startswith("\\")  # shared together with the module around it
        if name != top and not placed and instances[name] > 1 and lines(name) >= MIN_LINES:
            rules.append(f'no_inline -module "{name}"')
            inputs = [port for port in INPUT.findall(bodies[name]) if port != "clk"]
            rules += [f'public_flat_rd -module "{name}" -var "{port}"' for port in inputs]
    return "\n".join(rules) + "\n"
