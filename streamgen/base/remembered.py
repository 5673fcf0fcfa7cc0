"""Numbers measured on this machine, such as the seconds of a step, kept between runs."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from streamgen.base.folders import new_file

_KEPT = 200  # numbers; the oldest ones are dropped first


def remembered(name: str) -> float | None:
    """The number last kept under this name; None if there is none."""
    value = _all().get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def remember(name: str, value: float) -> None:
    """Keep a number. If it cannot be written, it is not kept, and no error is raised."""
    numbers = _all()
    numbers.pop(name, None)
    numbers[name] = round(value, 3)
    file = _file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as part:
            part.write(json.dumps(dict([*numbers.items()][-_KEPT:])).encode())


def _all() -> dict[str, Any]:
    try:
        numbers = json.loads(_file().read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return numbers if isinstance(numbers, dict) else {}


def _file() -> Path:
    return user_cache_path("streamgen") / "measured.json"
