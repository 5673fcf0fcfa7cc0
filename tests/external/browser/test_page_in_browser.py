"""Pages in a real Chromium: they open under their policy, go by mouse and keyboard, and pass axe's rules."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.page import ELEMENTS, opened
from streamgen.api.search import space
from streamgen.api.search.study import Study
from tests.external.browser.browsers import axe_faults, messages, seen, shot
from tests.shared.decoders import TINY, tiny_accelerator, tiny_decoder
from tests.unit.observe.test_page import NASTY, _report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small language model that was profiled, and whose design space was searched."""
    model = tiny_accelerator()
    model.profile(np.arange(4))
    study = Study(space(tiny_decoder(), None, TINY))
    study.run(8)
    path = model.report().with_study(study.report()).html(tmp_path_factory.mktemp("page") / "tiny.html")
    model.close()
    return path


def _opened(browser: WebDriver, path: Path) -> None:
    browser.get("about:blank")
    messages(browser)
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready")
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")


def _look(browser: WebDriver, width: int, theme: str) -> None:
    """Show pages from now on as a screen of this width does. Below 700 pixels it is a phone."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    for command, values in (
        ("setDeviceMetricsOverride", size),
        ("setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}),
    ):
        browser.execute_cdp_cmd(f"Emulation.{command}", values)  # type: ignore[attr-defined]


def _box(browser: WebDriver, title: str) -> WebElement:
    drawing = "//*[@class='drawing' and not(@hidden)]"
    return browser.find_element(By.XPATH, f"{drawing}//*[starts-with(@aria-label, '{title},')]")


def _shown(browser: WebDriver) -> list[float]:
    script = "return document.querySelector('.drawing:not([hidden]) svg').getAttribute('viewBox')"
    return [float(value) for value in browser.execute_script(script).split()]


def test_everything_is_drawn_and_nothing_is_fetched(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in fetched if not one.startswith(("data:", "blob:"))] == []
    assert messages(browser) == []
    main = browser.find_element(By.TAG_NAME, "main")
    assert (
        "4 tokens at position 0, measured" in main.text and "1 token at position 35, predicted" in main.text
    )
    first = main.find_element(By.CSS_SELECTOR, "*").text
    assert re.match(r"4 tokens take [\d.]+ µs, which is [\d,]+ tokens per second \([\d,]+ cycles at", first)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#g0-area .region")) == 5 * 3
    assert browser.find_elements(By.CSS_SELECTOR, ".heat td[style]")
    assert browser.find_elements(By.CSS_SELECTOR, "#g0-fifo .bar.free .c0")
    channels = browser.find_elements(By.CSS_SELECTOR, "#g0-mem .column[title*='GB/s']")
    assert len(channels) == 32 and channels[0].find_elements(By.CSS_SELECTOR, ".c0")
    points = browser.find_elements(By.CSS_SELECTOR, "#study .dot")
    said = browser.find_element(By.CSS_SELECTOR, "#study figcaption").text
    pruned = int(re.search(r", (\d+) pruned", said)[1])  # type: ignore[index]
    assert said.startswith("Points: study ") and len(points) == 8 - pruned > 1
    front = browser.find_elements(By.CSS_SELECTOR, "#study tbody tr")
    assert said.endswith(f", {len(front)} on the front.") and front


def test_a_page_is_small(browser: WebDriver, file: Path) -> None:
    assert opened(browser, file) > 0
    assert browser.execute_script(ELEMENTS) < 9000 and file.stat().st_size < 1 << 20


def test_no_point_lies_above_the_roof(browser: WebDriver, file: Path) -> None:
    """Nor does memory, or do multipliers, work longer than their phase lasts."""
    _opened(browser, file)
    shares = [
        int(re.search(r"(\d+) % of the roof", dot.get_attribute("title") or "")[1])  # type: ignore[index]
        for dot in browser.find_elements(By.CSS_SELECTOR, "#g0-roof .dot")
    ]
    assert len(shares) > 10 and max(shares) <= 100 and max(shares) > 20
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#g0-cycles .bars .row')]"
        ".map(row => [...row.querySelectorAll('.bar')].map(bar => parseFloat(bar.style.width)))"
    )
    assert len(rows) > 20 and all(cycles >= max(others, default=0) for cycles, *others in rows)


def test_the_timeline_is_that_of_the_pass(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    widths = browser.execute_script(
        "return [...document.querySelectorAll('#g0-time .walk')].map(one => parseFloat(one.style.width))"
    )
    assert len(widths) == 3 + 2 * 5 and sum(widths) == pytest.approx(100, abs=0.1)
    names = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#g0-time .row .label")]
    assert {"phases", "scores", "softmax", "channel 0"} <= set(names)
    tracks = browser.find_elements(By.CSS_SELECTOR, "#g0-time svg path")
    assert len(tracks) == 2 * (len(names) - 2)


LOOKS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]
WIDER = """
    return [...document.querySelectorAll('body *')]
        .filter(one => one.getBoundingClientRect().right > innerWidth + 1
            && !one.closest('.scroll, .canvas, .skip'))
        .map(one => one.outerHTML.slice(0, 200))
"""
HIDDEN = """
    const frame = arguments[0].getBoundingClientRect();
    return [...arguments[0].querySelectorAll('.drawing:not([hidden]) .box')]
        .map(box => box.getBoundingClientRect())
        .filter(box => box.left < frame.left || box.right > frame.right
            || box.top < frame.top || box.bottom > frame.bottom).length
"""
SIZE = """
    const text = document.querySelector('.drawing:not([hidden]) .box text');
    return text.getBoundingClientRect().height
"""


@pytest.fixture
def screen(browser: WebDriver) -> Iterator[Callable[[int, str], None]]:
    """Shows pages as another screen does, until the test has ended."""

    yield partial(_look, browser)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_looks(
    browser: WebDriver, screen: Callable[[int, str], None], file: Path, width: int, theme: str
) -> None:
    """Nothing is wider than the screen, the graph can be read, axe finds no fault, and dark is dark."""
    screen(width, theme)
    _opened(browser, file)
    shot(browser, f"page-{width}-{theme}")
    assert browser.execute_script(WIDER) == []
    canvas = browser.find_element(By.CLASS_NAME, "canvas")
    if width < 700:
        assert (
            not canvas.is_displayed() and browser.find_element(By.CSS_SELECTOR, ".items li b").is_displayed()
        )
        browser.find_element(By.CSS_SELECTOR, "[data-draw]").click()
        assert browser.execute_script(SIZE) > 10
        assert browser.execute_script(HIDDEN, canvas) < len(browser.find_elements(By.CSS_SELECTOR, ".box"))
        shot(browser, f"page-{width}-{theme}-drawing")
    else:
        assert browser.execute_script(HIDDEN, canvas) == 0 and browser.execute_script(SIZE) > 8
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, re.findall(r"\d+", colour))) < 3 * 128
    assert dark == (theme == "dark")
    for part in browser.find_elements(By.TAG_NAME, "summary"):
        browser.execute_script("arguments[0].parentElement.open = true", part)
    browser.execute_script(
        "document.querySelector('.box').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    faults = axe_faults(browser, {"color-contrast", "button-name", "select-name"})
    assert faults == []


def test_the_policy_forbids_other_scripts(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.foreign = 1';"
        "document.body.append(s);"
        "fetch('http://localhost:1/').catch(() => { window.refused = 1; });"
    )
    WebDriverWait(browser, 5).until(lambda b: b.execute_script("return window.refused === 1"))
    assert browser.execute_script("return window.foreign === undefined")
    assert any("Content Security Policy" in message for message in messages(browser))


def test_search_and_mouse(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    search = browser.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("column")
    count = browser.find_element(By.CSS_SELECTOR, "[data-count]").text
    boxes = len(browser.find_elements(By.CSS_SELECTOR, ".box.found"))
    assert boxes >= 6 and count.startswith(f"{boxes} boxes, "), count  # loads, weights and columns
    search.send_keys(Keys.ENTER)
    panel = browser.find_element(By.CSS_SELECTOR, ".panel")
    assert "column" in panel.text and "LUT" in panel.text and "busy" in panel.text
    search.clear()
    search.send_keys("no such kernel")
    assert browser.find_element(By.CSS_SELECTOR, "[data-count]").text == "0 boxes, 0 arrows"
    browser.execute_script("arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", search)
    whole = _shown(browser)  # at first all of it
    browser.find_element(By.XPATH, "//button[text()='Zoom out']").click()
    assert _shown(browser)[2] > whole[2]
    browser.find_element(By.XPATH, "//button[text()='Whole graph']").click()
    assert _shown(browser) == whole
    browser.find_element(By.XPATH, "//button[text()='Zoom in']").click()
    assert abs(_shown(browser)[2] - whole[2] / 1.3) < 1
    ActionChains(browser).click(_box(browser, "engine")).perform()
    assert "engine" in panel.text and "column0" in panel.text
    seen(browser, "chosen")
    link = next(button for button in panel.find_elements(By.TAG_NAME, "button") if "column0" in button.text)
    link.click()  # a stream: its itensor in every phase
    assert "itensor<" in panel.text and "column0.o_y -> engine.i_0" in panel.text
    ActionChains(browser).move_to_element(panel).perform()


def test_keyboard_alone(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)

    def press(*keys: str) -> WebElement:
        browser.switch_to.active_element.send_keys(*keys)
        return browser.switch_to.active_element

    assert press(Keys.TAB).text == "Skip to the report"
    browser.execute_script("document.querySelector('input[type=search]').focus()")
    for _ in range(12):
        if press(Keys.TAB).get_attribute("role") == "application":
            break
    canvas = browser.switch_to.active_element
    assert canvas.get_attribute("data-canvas") == "g0"
    wide = _shown(browser)[2]
    press("+")
    assert _shown(browser)[2] < wide
    press("0")
    first = press(Keys.ARROW_RIGHT)
    assert first.get_attribute("role") == "button" and first.get_attribute("aria-label")
    browser.execute_script("arguments[0].focus()", _box(browser, "load_column0_weights"))
    labels = [press(Keys.ARROW_RIGHT).get_attribute("aria-label") or "" for _ in range(3)]
    assert [label.split(",")[0] for label in labels] == ["column0_weights", "column0", "engine"]
    assert (press(Keys.ARROW_LEFT).get_attribute("aria-label") or "").startswith("column")
    below = press(Keys.ARROW_DOWN).get_attribute("aria-label")
    assert below and press(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, ".panel h3").text == below.split(",")[0]
    assert press(Keys.ESCAPE).get_attribute("role") == "application"  # and Tab leads on from there
    assert press(Keys.TAB).get_attribute("data-panel") == "g0"


def test_passes_and_resources_are_chosen(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    for choice, last in (("g0-phases", "4 tokens at position 0, predicted"), ("g0-card", "URAM")):
        select = webdriver.support.ui.Select(
            browser.find_element(By.CSS_SELECTOR, f"[data-choice='{choice}']")
        )
        select.select_by_index(len(select.options) - 1)
        assert select.first_selected_option.text.startswith(last)
        parts = browser.find_elements(By.CSS_SELECTOR, f"[data-of='{choice}']")
        assert [part.is_displayed() for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].find_elements(By.CLASS_NAME, "row")


def test_names_run_no_script(browser: WebDriver, tmp_path: Path) -> None:
    _opened(browser, _report(NASTY).html(tmp_path / "nasty.html"))
    assert browser.find_element(By.TAG_NAME, "h1").text == NASTY
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert messages(browser) == []
