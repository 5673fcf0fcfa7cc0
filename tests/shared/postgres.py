"""A PostgreSQL server of Debian's package, started for a test: the binary, a socket, no network, no root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["postgres"]

ROOTS = (
    Path("/"),
    Path(__file__).parents[2] / ".venv" / "postgres",
)  # installed, or unpacked by `make postgres`


def _programs() -> Path:
    found = [folder for root in ROOTS for folder in sorted(root.glob("usr/lib/postgresql/*/bin"))]
    if not found:
        pytest.fail("PostgreSQL's server is missing: make postgres")
    return found[-1]


@contextmanager
def postgres() -> Iterator[str]:
    """URL of an empty database, as SQLAlchemy writes it. The server refuses to run as root: then another user
    owns it."""
    programs, folder = _programs(), Path(tempfile.mkdtemp(prefix="pg"))
    user = None
    if os.geteuid() == 0:
        user = next(n for n in ("postgres", "nobody") if n in {entry.pw_name for entry in pwd.getpwall()})
        shutil.chown(folder, user)
    environment = {**os.environ, "LD_LIBRARY_PATH": _libraries(programs), "LC_ALL": "C"}

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs / program, *arguments],
            user=user,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    data = folder / "data"
    try:
        run("initdb", "-D", str(data), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-D", str(data), "-o", settings, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _libraries(programs: Path) -> str:
    """Where an unpacked server's own libraries lie."""
    root = programs.parents[4]
    return ":".join(str(folder) for folder in root.glob("usr/lib/*-linux-gnu"))
