"""Pages of reports: bytes, elements, and the seconds that Chromium takes to open one.

    python benchmarks/page.py [smollm2] [gpt2-medium] [--page FILE ...]

SmolLM2 is compiled as `streamgen compile default --channels 8` does it, GPT-2 Medium on all of a U55C
(benchmarks/u55c.py) with random weights. A page is open when it has been read, its graph can be used and a
frame is painted; the least and the most of several times are printed, each in a new tab. Pages that there
are already come by --page. Chromium and its driver: `make chromium`.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver

import streamgen
from benchmarks import u55c
from streamgen.model.frontend import default_checkpoint

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
SECONDS = 1.0  # to be under
TIMES = 5
PAINTED = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
ELEMENTS = "return document.querySelectorAll('*').length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(MODELS)}")
    parser.add_argument("--page", type=Path, action="append", default=[], help="a page that is there already")
    options = parser.parse_args()
    if unknown := set(options.names) - MODELS.keys():
        parser.error(f"no models are called {', '.join(sorted(unknown))}")
    found = Table("page", "s to make it", "MB", "elements", "s to open it", f"most, of {SECONDS:g} s")
    with tempfile.TemporaryDirectory() as place, chromium() as browser:
        pages = [(file.name, "", file) for file in options.page]
        for name in options.names or ([] if pages else MODELS):
            report = MODELS[name]().report()
            start = time.perf_counter()
            file = report.html(Path(place, f"{name}.html"))
            pages.append((name, f"{time.perf_counter() - start:.1f}", file))
        for name, made, file in pages:
            times = [opened(browser, file) for _ in range(TIMES)]
            elements = browser.execute_script(ELEMENTS)
            size = f"{file.stat().st_size / 1e6:.1f}"
            found.add_row(name, made, size, f"{elements:,}", _range(times), f"{max(times) / SECONDS:.2f}")
    Console().print(found)


@contextmanager
def chromium(resolved: str = "") -> Iterator[WebDriver]:
    """A Chromium without a window and without a network. resolved: a host that there is all the same.
    AssertionError where none is installed."""
    assert CHROMIUM.exists() and DRIVER.exists(), "Chromium is missing: make chromium"
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    hosts = "MAP * ~NOTFOUND" + (f", EXCLUDE {resolved}" if resolved else "")
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--window-size=1500,1000", f"--host-resolver-rules={hosts}"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield found
    finally:
        found.quit()


def opened(browser: WebDriver, page: Path) -> float:
    """Seconds until a page has been read and painted."""
    browser.get("about:blank")
    start = time.perf_counter()
    browser.get(page.absolute().as_uri())
    browser.execute_async_script(PAINTED)
    taken = time.perf_counter() - start
    assert browser.execute_script("return document.documentElement.dataset.ready")
    return taken


def _smollm2() -> Any:
    config = streamgen.CompileConfig(name="smollm2", goal="small", channels=8)
    return streamgen.compile(default_checkpoint(), config=config)


def _gpt2_medium() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**u55c.config_json(u55c.SHAPE))
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    return streamgen.compile(model, None, streamgen.CompileConfig(name="gpt2_medium", context=u55c.CONTEXT))


def _range(times: list[float]) -> str:
    return f"{min(times):.2f} to {max(times):.2f}"


MODELS = {"smollm2": _smollm2, "gpt2-medium": _gpt2_medium}

if __name__ == "__main__":
    main()
