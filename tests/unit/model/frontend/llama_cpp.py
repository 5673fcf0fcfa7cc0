"""llama.cpp's own answer for a GGUF file, in a process of its own: files that make no sense abort it."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

__all__ = ["LlamaCpp"]

PATIENCE = 60.0  # seconds for an answer; now and then its server waits for ever


class LlamaCpp:
    """A process that loads files and says what it gives behind some ids; started again where it has died."""

    def __init__(self) -> None:
        self._process: Any = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def logarithms(self, path: Path, ids: Sequence[int], vocabulary: int) -> np.ndarray | None:
        """float64 [vocabulary]: logarithms of probabilities behind ids; None for a file that is refused.

        A file without an answer within a minute counts as refused.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        request = json.dumps({"path": str(path), "ids": [*map(int, ids)], "vocabulary": vocabulary})
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        watchdog = Timer(PATIENCE, self._process.kill)
        watchdog.start()
        try:
            for line in self._process.stdout:
                if line.startswith("ANSWER "):
                    answer = json.loads(line.removeprefix("ANSWER "))
                    return None if answer is None else np.array(answer)
        finally:
            watchdog.cancel()
        self.close()
        return None


def _answer(path: str, ids: Sequence[int], vocabulary: int) -> list[float] | None:
    """Of one request, in the process of llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = path, len(ids) + 8, 1, False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cpuparams.n_threads = 1
    try:
        server = xllamacpp.Server(params)
        reply = server.handle_completions(
            {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": vocabulary, "cache_prompt": False}
        )
        (token,) = reply["choices"][0]["logprobs"]["content"]
    except (RuntimeError, KeyError, TypeError, ValueError):
        return None
    known = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    return [known.get(index, -np.inf) for index in range(vocabulary)]


if __name__ == "__main__":
    for request in sys.stdin:
        print(f"\nANSWER {json.dumps(_answer(**json.loads(request)))}", flush=True)
