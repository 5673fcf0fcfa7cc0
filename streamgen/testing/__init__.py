"""The test kit: checks kernels, of streamgen and of other packages, against the contract. It runs their
emitted Verilog.

    test_clip_conforms = conformance_tests(PARAMS, cases)    all checks as tests of pytest
    check_golden(params, cases, Stalls(seed=1, sinks=0.5))   hardware against the golden model
    check_promises(params, bounds, inputs)                   measured cycles against `cost` and `curves`
    check_resources(params, bounds)                          synthesis against `cost`, and the depth of paths
    run(component, {"i": tokens}, {"o": count})              run a component with stream ports
    StreamSimulator(component).run(...)                      the same in Verilator, also for black boxes

`pytest_plugins = ["streamgen.testing.pytest_plugin"]` in a conftest adds the fixture `seed` and the option
`--seed`. The kit needs the extra `streamgen[testing]`. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from streamgen.base.extras import late_names

if TYPE_CHECKING:
    from streamgen.testing.bench import BenchError, Result, StuckError, random_tokens, run
    from streamgen.testing.conformance import ASPECTS, ConformanceError, check, conformance_tests
    from streamgen.testing.kernel import Case, check_golden, check_promises
    from streamgen.testing.monitor import StreamLawError
    from streamgen.testing.ports import Stalls
    from streamgen.testing.stream_simulator import StreamSimulator
    from streamgen.testing.synthesis import check_resources

__all__ = [
    "ASPECTS",
    "BenchError",
    "Case",
    "ConformanceError",
    "Result",
    "Stalls",
    "StreamLawError",
    "StreamSimulator",
    "StuckError",
    "check",
    "check_golden",
    "check_promises",
    "check_resources",
    "conformance_tests",
    "random_tokens",
    "run",
]

__getattr__, __dir__ = late_names(
    __name__,
    {
        "ASPECTS": "conformance",
        "BenchError": "bench",
        "Case": "kernel",
        "ConformanceError": "conformance",
        "Result": "bench",
        "Stalls": "ports",
        "StreamLawError": "monitor",
        "StreamSimulator": "stream_simulator",
        "StuckError": "bench",
        "check": "conformance",
        "check_golden": "kernel",
        "check_promises": "kernel",
        "check_resources": "synthesis",
        "conformance_tests": "conformance",
        "random_tokens": "bench",
        "run": "bench",
    },
)
