"""The next token from logits: greedy, or drawn at a temperature from the most likely tokens.

    temperature 0      the greatest logit; of equal ones the lowest id
    temperature t      p = softmax(logits / t), in float64; then, in this order,
      top_k            only the k most likely ids
      top_p            of these the fewest, most likely first, whose share of p reaches top_p
                       (Holtzman et al., The curious case of neural text degeneration, 2020)

Equal logits rank by id, the lower first. From the remaining ids one is drawn, with one number per token of a
seeded generator (PCG64 of numpy). A seed, the logits and these rules therefore determine a text.
"""

import numpy as np
from numpy import ndarray


class Sampler:
    """Chooses ids from logits. Raises ValueError or TypeError for an argument out of range.

    temperature: 0 is greedy; top_k, and top_p below 1, then have no effect and are refused. top_k: None for
    all ids. top_p: above 0, at most 1. seed: None for a different one each time.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> None:
        for name, value in (("temperature", temperature), ("top_p", top_p)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}; a number is needed")
        for name, count in (("top_k", top_k), ("seed", seed)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
                raise TypeError(f"{name} is {count!r}; an integer or None is needed")
        for name, given, law, holds in (
            ("temperature", temperature, "0 or a finite number above", 0 <= temperature < float("inf")),
            ("top_k", top_k, "None or at least 1", top_k is None or top_k >= 1),
            ("top_p", top_p, "above 0 and at most 1", 0 < top_p <= 1),
            ("seed", seed, "None or at least 0", seed is None or seed >= 0),
        ):
            if not holds:
                raise ValueError(f"{name} is {given}; it must be {law}")
        if temperature == 0 and (top_k is not None or top_p != 1):
            useless = f"top_k is {top_k}" if top_k is not None else f"top_p is {top_p}"
            raise ValueError(
                f"{useless}; at temperature 0 the likeliest token is taken: give a temperature above 0"
            )
        self._temperature, self._top_k, self._top_p = float(temperature), top_k, float(top_p)
        self._random = np.random.Generator(np.random.PCG64(seed))

    def __call__(self, logits: ndarray) -> int:
        """The id of the next token; logits [vocabulary], the greatest of them finite."""
        logits = np.asarray(logits, np.float64)
        if logits.ndim != 1 or not logits.size:
            raise ValueError(f"logits have the shape {list(logits.shape)}; [vocabulary] is needed")
        greatest = logits.max()
        if not np.isfinite(greatest):
            raise ValueError(f"the greatest logit is {greatest}; it must be finite")
        if self._temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")[: self._top_k]
        with np.errstate(over="ignore"):  # at a tiny temperature all other logits become -inf
            share = np.exp((logits[order] - greatest) / self._temperature)
        total = np.cumsum(share / share.sum())
        count = 1 + int(np.searchsorted(total[:-1], self._top_p))
        total = total[:count]
        return int(order[np.searchsorted(total[:-1], self._random.random() * total[-1], side="right")])
