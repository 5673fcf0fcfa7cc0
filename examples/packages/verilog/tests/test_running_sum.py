"""The running sum conforms: all that graphs, passes and the emitter ask of a kernel."""

import numpy as np
from streamgen_example_verilog import RunningSumParams

from streamgen.testing import conformance_tests

PARAMS = RunningSumParams(lanes=2, max_rows=12, max_panels=3)


def case(rows: int, panels: int, size: int, seed: int) -> tuple:
    values = np.random.default_rng(seed).integers(-size, size, (rows, 2 * panels)).astype(np.int16)
    return {"rows": rows, "panels": panels}, {"i": values}


test_running_sum_conforms = conformance_tests(
    PARAMS,
    [case(5, 3, 1000, 0), case(1, 1, 1000, 1), case(12, 2, 30000, 2)],
    refused=[{"rows": 13, "panels": 1}, {"rows": 1, "panels": 0}],
)
