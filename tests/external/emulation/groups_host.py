"""A host program of a user: `python groups_host.py PACKAGE TOKENS IDS...`, on whatever card XRT has.

PACKAGE has the models `mlp`, in groups, and `tiny`, a language model; x.npy and golden.npy lie beside it.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from streamgen.runtime import on_board, xrt
from streamgen.runtime.chain import ChainExecution
from streamgen.runtime.execution import Execution
from streamgen.runtime.generation import TextDevice
from streamgen.text.stored import read_text

syncs: Counter[str] = Counter()


def counted(name: str) -> None:
    """Count what the host copies, by buffer."""
    real = getattr(xrt._BoardBuffer, name)

    def call(self, *arguments):
        syncs[self._name] += 1
        return real(self, *arguments)

    setattr(xrt._BoardBuffer, name, call)


def main(package: Path, count: int, prompt: list[int]) -> None:
    for name in ("_write", "_read"):
        counted(name)
    card, x = on_board(), np.load(package.parent / "x.npy")
    groups = ChainExecution(package / "mlp", card)
    text, config = read_text(package / "tiny")
    with Execution(package / "tiny", card) as execution:
        device = TextDevice(execution, text.vocabulary, config["context"])
        session = device.session()
        ids = [*session.generate(prompt, count)]
        groups.run(x[:48])  # so that all has its memory
        results = groups.run(x)
        print("golden:", results[0].tobytes() == np.load(package.parent / "golden.npy").tobytes())
        print("ids:", *ids)
        print("goes on:", *session.generate([5], 1))
        print("copies:", *(syncs[name] for name in ("m_0", "m_2")), "of", syncs["status"])
        cards = {id(group.device._card) for group in (*groups.groups, execution)}
        print("cards:", len(cards), "module:", groups.groups[0].device._pyxrt.__name__, flush=True)
    for group in groups.groups:
        print("cycles:", group.manifest.top, *(status.cycles for status in group.statuses))
    groups.close()
    assert os.environ["XCL_EMULATION_MODE"] == "hw_emu"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [*map(int, sys.argv[3:])])
