"""Numbers measured on this machine, such as the seconds of a step, kept for the next time."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from streamgen.base.folders import new_file

_KEPT = 200  # numbers; those measured the longest ago go first


def remembered(name: str) -> float | None:
    """The number that was last kept under a name; None when there is none."""
    value = _all().get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def remember(name: str, value: float) -> None:
    """Keep a number; where it cannot be written, the next time has none."""
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
