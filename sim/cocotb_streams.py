"""Any component with stream ports under cocotb: cocotbext-axi feeds and drains its streams.

    simulator = CocotbSimulator(params.build())
    check_golden(params, cases, Stalls(seed=1, sources=0.3, sinks=0.3), simulator=simulator)

It takes and returns what `streamgen.testing.StreamSimulator` does, but the cycles: kernels, converters and
FIFOs are held to golden by hosts that are not ours. The test that runs in the simulator is
`sim.cocotb_stream_bench`.
"""

import json
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

import sim.cocotb_stream_bench
from streamgen.gateware.rtl import Library, to_verilog
from streamgen.package.cosim.tools import Simulator, built, run
from streamgen.testing.bench import Result, Stalls, stream_ports

__all__ = ["CocotbSimulator"]


class CocotbSimulator:
    """A component, built for cocotb. inputs, outputs: names of its streams."""

    def __init__(self, component: wiring.Component, simulator: Simulator = "verilator") -> None:
        self.inputs, self.outputs = stream_ports(component, In), stream_ports(component, Out)
        folder = tempfile.TemporaryDirectory(prefix="cocotb-streams-")
        weakref.finalize(self, folder.cleanup)
        self._place, library = Path(folder.name), Library()
        files = {"top.v": to_verilog(component, "top", library), **library.sources}
        for name, text in files.items():
            (self._place / name).write_text(text)
        sources = [self._place / name for name in files]
        self._runner = built(simulator, sources, "top", self._place / "build", pins=[""])

    def run(
        self,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, int],
        *,
        stalls: Stalls | None = None,
        watchdog: int = 2000,
        reset_at: int | None = None,
    ) -> Result:
        """Send `inputs` (raw tokens by port), collect so many tokens from each output. reset_at: the cycle of
        a reset, after which all tokens are sent again.

        DeviceError when they do not come within so many cycles, more than the watchdog for each token, or
        when more come.
        """
        job, answer = self._place / "job.json", self._place / "answer.json"
        stalls = stalls or Stalls(seed=0)
        most = watchdog * (1 + max([*map(len, inputs.values()), *outputs.values()]))
        told = {"inputs": dict(inputs), "outputs": dict(outputs), "seed": stalls.seed, "most": most}
        told |= {"sources": stalls.sources, "sinks": stalls.sinks, "reset_at": reset_at}
        job.write_text(json.dumps(told))
        given = {sim.cocotb_stream_bench.JOB: str(job)}
        run(self._runner, "top", sim.cocotb_stream_bench.__name__, self._place / "build", given)
        return Result(tokens=json.loads(answer.read_text()), cycles={}, offered={}, probes={})
