"""Estimates that are kept between runs, by the content of everything that decides them.

The key of an estimate is a digest of the model, the board, all fields of the configuration, the positions and
prompts, all files of streamgen, and the versions of Python and of the packages that streamgen computes with.

    a config.json                    its content, and the name of its folder
    a GGUF file, a folder with       contents of *.json; of all other files, such as weights: name, size and
    weights                          identity (device, inode, times), because reading weights takes long
    a module, a graph                its logical graph with all numbers, after the import

A model that code makes is therefore imported each time: nothing else says what the code would do. A graph
with operations of other packages is not kept, because their code may change.

A kept estimate is JSON, decoded into the types of `Estimate`; nothing in it is run. A file that cannot be
read is as good as missing. BudgetError is kept, too, because it takes as long to find.
"""

import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from streamgen.base.errors import BudgetError
from streamgen.base.files import decode, parsed
from streamgen.base.progress import Progress
from streamgen.base.text_cache import TextCache
from streamgen.compiler.config import CompileConfig
from streamgen.numbers.stored import StoredArray
from streamgen.observe.estimate import Estimate

VARIABLE = "STREAMGEN_ESTIMATES"
"""Variable of the environment: the folder of kept estimates, or `off`."""

PACKAGE = Path(__file__).parents[1]
_OTHER = re.compile(r'extra == "(?!compile"|models")')  # requirements that no estimate needs


class EstimatedModel:
    """A model for estimates on several boards. It is imported once, when the first estimate needs it.

    model, example_inputs: as for `streamgen.estimate`; the path of a file or folder is read only if no
    estimate of it is kept. fresh: estimate again, even if the result is kept.
    """

    def __init__(self, model: Any, example_inputs: Any = None, *, fresh: bool = False) -> None:
        self._model, self._inputs, self._fresh = model, example_inputs, fresh
        self._graphs: dict[object, tuple[Any, float]] = {}

    def estimate(
        self,
        config: CompileConfig,
        progress: Progress,
        *,
        positions: Sequence[int] | None = None,
        prompts: Sequence[int] | None = None,
    ) -> Estimate:
        """The result of `streamgen.estimate`, kept or computed. Raises its errors; a kept BudgetError has the
        message alone."""

        def compute() -> Estimate:
            from streamgen.api.estimation import estimate  # the compiler takes a second to load

            graph, seconds = self._graph(config, progress)
            found = estimate(graph, None, config, progress, positions=positions, prompts=prompts)
            return replace(found, seconds={**found.seconds, "import": seconds})

        place = os.environ.get(VARIABLE) or str(user_cache_path("streamgen") / "estimates")
        if place == "off":
            return compute()
        source = digest_of_files(self._model) if isinstance(self._model, str | Path) else None
        source = source or digest_of(self._graph(config, progress)[0])
        if source is None:
            return compute()
        key = _key(source, config, positions, prompts)
        return _kept(TextCache(Path(place)), key, compute, fresh=self._fresh)

    def _graph(self, config: CompileConfig, progress: Progress) -> tuple[Any, float]:
        """The logical graph, and the processor time of its import in seconds."""
        asked = config.max_tokens, config.context, config.check_import
        if asked not in self._graphs:
            from streamgen.api.estimation import imported

            progress("reading the model")
            start = time.process_time()
            graph = imported(self._model, self._inputs, config)
            self._graphs[asked] = graph, time.process_time() - start
        return self._graphs[asked]


def _kept(texts: TextCache, key: str, compute: Callable[[], Estimate], *, fresh: bool) -> Estimate:
    """The estimate under a key, or else the computed one, which is then kept. Raises its BudgetError."""
    if not fresh and (text := texts.read(key)) is not None:
        try:
            document = parsed(text)
            if "misfit" in document:
                raise BudgetError(decode(str, document["misfit"], "misfit"))
            found: Estimate = decode(Estimate, document["estimate"], "estimate")
            return found
        except (ValueError, TypeError, KeyError):
            pass  # damage: it is computed again
    try:
        estimate = compute()
    except BudgetError as error:
        texts.write(key, json.dumps({"misfit": str(error)}))
        raise
    texts.write(key, json.dumps({"estimate": asdict(estimate)}))
    return estimate


def _key(
    source: str, config: CompileConfig, positions: Sequence[int] | None, prompts: Sequence[int] | None
) -> str:
    asked = {
        "source": source,
        "config": asdict(config),
        "board": asdict(config.card),
        "positions": positions and [*positions],
        "prompts": prompts and [*prompts],
        "program": _program(),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


@cache
def _program() -> str:
    """A digest of streamgen's own files, and of the versions that it computes with."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = hashlib.sha256(file.read_bytes()).digest()
            digest.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + content)
    names = [
        requirement for requirement in metadata.requires("streamgen") or () if not _OTHER.search(requirement)
    ]
    versions = [(name, _version(name)) for name in sorted({re.split(r"[^\w.-]", name)[0] for name in names})]
    digest.update(repr((versions, platform.python_version(), platform.machine())).encode())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def digest_of_files(source: str | Path) -> str | None:
    """A digest of all files that decide what the model of a path is; None if they cannot be read."""
    try:
        path = Path(source).resolve(strict=True)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
        elif path.suffix == ".json":
            files = sorted(path.parent.glob("config*.json"))
        else:  # a GGUF file, and the others if the model is split
            stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
            files = sorted({path, *path.parent.glob(f"{stem}-*-of-*{path.suffix}")})
        known = [(file.name, _content(file)) for file in files]
    except OSError:
        return None
    return hashlib.sha256(repr((path.parent.name, path.name, known)).encode()).hexdigest()


def _content(file: Path) -> object:
    """The digest of a JSON file. The identity of any other file, as git and ninja use it."""
    if file.suffix == ".json":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _NotKeptError(Exception):
    """A value that another package defines, or that has no content of its own."""


def digest_of(graph: Any) -> str | None:
    """A digest of a logical graph with all its numbers; None if a part of it is from another package."""
    digest = hashlib.sha256()
    try:
        for part in _parts(graph):
            digest.update(part)
    except _NotKeptError:
        return None
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """The content of a value, so that different values have different parts."""
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        yield f"{type(value).__name__} {value!r};".encode()
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}:".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, Mapping):
        yield from _parts(sorted(value.items()))
    elif isinstance(value, frozenset):
        yield from _parts(sorted(value))
    elif isinstance(value, np.ndarray | StoredArray):
        yield f"array {value.shape} ".encode()
        yield from _numbers(value)
    elif is_dataclass(value) and type(value).__module__.partition(".")[0] == PACKAGE.name:
        yield f"{type(value).__module__}.{type(value).__qualname__}:".encode()
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
    else:
        raise _NotKeptError(type(value))


def _numbers(array: np.ndarray | StoredArray) -> Iterator[bytes]:
    if isinstance(array, StoredArray):
        yield np.asarray(array).tobytes()
    elif array.dtype.hasobject:
        raise _NotKeptError(array.dtype)
    elif array.size and not any(array.strides):  # a view of one number
        yield f"{array.dtype.str} everywhere ".encode() + array.flat[0].tobytes()
    else:
        yield array.dtype.str.encode()
        yield array.tobytes()
