"""Encoders of sentences: accelerators that turn a text into a row of numbers.

model = streamgen.compile("all-MiniLM-L6-v2", config=streamgen.CompileConfig(max_tokens=32))
rows = model.embed(["The sea is calm.", "The water is still."])
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.api.accelerator import Accelerator
from streamgen.api.groups import Group
from streamgen.compiler.plan.record import DesignPlan
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface
from streamgen.runtime.chain import Chain
from streamgen.text.sentences import SentenceTokenizer, embedded


class SentenceEncoder(Accelerator):
    """The accelerator of an encoder of sentences, whose `run` takes ids [texts, tokens]."""

    def __init__(
        self,
        groups: Collection[Group],
        chain: Chain | None,
        interface: Interface | None,
        tokenizer: SentenceTokenizer,
        *,
        plan: DesignPlan | None = None,
        folder: Path | None = None,
        changed_files: bool = False,
    ) -> None:
        super().__init__(
            list(groups), chain, interface, plan=plan, folder=folder, changed_files=changed_files
        )
        self.tokenizer = tokenizer

    def embed(self, texts: str | Sequence[str], *, golden: bool = False, **given: Any) -> np.ndarray:
        """float32 [texts, features]: a row for each text.

        golden: compute the same bits without hardware. given: further arguments of `run`. Each text is run by
        itself, so its row does not depend on the others. Raises the errors of `run`, and TypeError and
        ValueError for no text, other objects, and a text of too many tokens.
        """
        if golden and given:
            raise ValueError(f"{', '.join(given)} has no effect on the golden model")
        return embedded(
            self.tokenizer, texts, lambda ids: self.golden(ids) if golden else self.run(ids, **given)
        )

    def _fill_interface(self, folder: Path) -> None:
        super()._fill_interface(folder)
        self.tokenizer.write(folder)


class GoldenEncoder:
    """The golden model of an encoder of sentences. model: the quantised graph."""

    def __init__(self, model: LogicalGraph, interface: Interface, tokenizer: SentenceTokenizer) -> None:
        self.tokenizer, self._interface, self._compute = tokenizer, interface, exact(model)

    def embed(self, texts: str | Sequence[str]) -> np.ndarray:
        """float32 [texts, features], as `SentenceEncoder.embed`."""
        return embedded(self.tokenizer, texts, self._row)

    def _row(self, ids: np.ndarray) -> np.ndarray:
        taken = self._interface.taken((ids,))
        outputs, _ = self._compute({name: rows.reshape(-1) for name, rows in taken.items()})
        row: np.ndarray = self._interface.rebuilt(outputs, (ids,))
        return row
