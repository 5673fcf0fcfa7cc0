"""What tests of pages in a real Chromium share; `make chromium` installs it. The fixture `browser` opens one.

`STREAMGEN_SCREENSHOTS=folder pytest` keeps what is seen.
"""

import base64
import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from selenium.webdriver.remote.webdriver import WebDriver

__all__ = ["HOST", "axe_faults", "messages", "seen", "served", "shot"]

HOST = "127.0.0.1"  # the one host that the browser finds


def messages(browser: WebDriver) -> list[str]:
    """What the console has said since they were asked for."""
    return [entry["message"] for entry in browser.get_log("browser")]


def seen(browser: WebDriver, name: str) -> None:
    """Keep what is seen, where that is wanted."""
    if folder := os.environ.get("STREAMGEN_SCREENSHOTS"):
        browser.save_screenshot(str(Path(folder, f"{name}.png")))


def shot(browser: WebDriver, name: str) -> None:
    """Keep a picture of the whole page, where that is wanted."""
    if folder := os.environ.get("STREAMGEN_SCREENSHOTS"):
        given = {"captureBeyondViewport": True, "format": "png"}
        found = browser.execute_cdp_cmd("Page.captureScreenshot", given)  # type: ignore[attr-defined]
        Path(folder, f"{name}.png").write_bytes(base64.b64decode(found["data"]))


def axe_faults(browser: WebDriver, looked_at: set[str]) -> list[Any]:
    """What axe finds. looked_at: rules that there must have been something for."""
    package = importlib.util.find_spec("axe_playwright_python")
    assert package is not None and package.origin is not None, "axe is missing: make chromium"
    browser.execute_script(Path(package.origin).with_name("axe.min.js").read_text("utf-8"))
    found = browser.execute_async_script("axe.run().then(arguments[0])")
    assert looked_at <= {one["id"] for kind in ("passes", "violations") for one in found[kind]}
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]


@contextmanager
def served(folder: Path, others: Mapping[str, Path] | None = None) -> Iterator[str]:
    """The address at which the files of a folder are found. others: those at other places, by their path."""
    handler = partial(_Handler, directory=str(folder), others=others or {})
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}/"
        server.shutdown()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *given: Any, others: Mapping[str, Path], **named: Any) -> None:
        self._others = others
        super().__init__(*given, **named)

    def translate_path(self, path: str) -> str:
        return str(self._others[path]) if path in self._others else super().translate_path(path)

    def log_message(self, *given: Any) -> None:
        """Say nothing."""
