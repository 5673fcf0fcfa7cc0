"""Pages in a real Chromium: they open under their policy, go by mouse and keyboard, and pass axe's rules."""

import re
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
from tests.external.browser.browsers import axe_faults, messages, seen
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


def _through(browser: WebDriver, name: str) -> None:
    """Scroll until every chart was in sight, and is drawn."""
    charts = [chart for chart in browser.find_elements(By.CLASS_NAME, "chart") if chart.is_displayed()]
    for number, chart in enumerate(charts):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
        WebDriverWait(browser, 20).until(
            lambda _, chart=chart: chart.find_elements(By.CLASS_NAME, "main-svg")
        )
        seen(browser, f"{name}-{number}")


def _box(browser: WebDriver, title: str) -> WebElement:
    drawing = "//*[@class='drawing' and not(@hidden)]"
    return browser.find_element(By.XPATH, f"{drawing}//*[starts-with(@aria-label, '{title},')]")


def _shown(browser: WebDriver) -> list[float]:
    script = "return document.querySelector('.drawing:not([hidden]) svg').getAttribute('viewBox')"
    return [float(value) for value in browser.execute_script(script).split()]


def test_everything_is_drawn_and_nothing_is_fetched(browser: WebDriver, file: Path) -> None:
    _opened(browser, file)
    _through(browser, "tiny")
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert [one for one in fetched if not one.startswith(("data:", "blob:"))] == []
    assert messages(browser) == []
    text = browser.find_element(By.TAG_NAME, "main").text
    assert "4 tokens at 0, measured" in text and "1 token at 35, predicted" in text
    assert browser.find_elements(By.CSS_SELECTOR, "#g0-kernels-0 .heatmaplayer image")
    held = browser.find_elements(By.CSS_SELECTOR, "#g0-fifos-0 .trace.bars")
    assert len(held) == 2  # depths, and the most that was held
    regions = browser.find_elements(By.CSS_SELECTOR, "#g0-card-0 .treemaplayer .trace")
    assert len(regions) == 3
    points = browser.find_elements(By.CSS_SELECTOR, "#study-0 .scatterlayer .trace .point")
    said = browser.find_element(By.CSS_SELECTOR, "#study figcaption").text
    pruned = int(re.search(r", (\d+) pruned", said)[1])  # type: ignore[index]
    assert said.startswith("Points: study ") and len(points) == 8 - pruned > 1
    front = browser.find_elements(By.CSS_SELECTOR, "#study tbody tr")
    assert said.endswith(f", {len(front)} on the front.") and front


def test_little_is_done_before_it_isseen(browser: WebDriver, file: Path) -> None:
    """Charts are drawn, and their library is read, when one comes into sight."""
    assert opened(browser, file) > 0
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    drawn = browser.find_elements(By.CSS_SELECTOR, ".chart[data-drawn]")
    assert len(charts) > 12 and len(drawn) < 4
    assert browser.execute_script(ELEMENTS) < 4000 and file.stat().st_size < 6 << 20


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
    before = _shown(browser)
    browser.find_element(By.XPATH, "//button[text()='Whole graph']").click()
    whole = _shown(browser)
    assert whole[2] > before[2]  # at first text can be read
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
        assert parts[-1].find_elements(By.CLASS_NAME, "main-svg")


@pytest.mark.parametrize("wide", [1500, 700])
def test_axe_finds_no_fault(browser: WebDriver, file: Path, wide: int) -> None:
    browser.set_window_size(wide, 1000)
    _opened(browser, file)
    _through(browser, f"tiny-{wide}")
    for part in browser.find_elements(By.TAG_NAME, "summary"):
        browser.execute_script("arguments[0].click()", part)
    ActionChains(browser).click(browser.find_element(By.CSS_SELECTOR, "[data-zoom]")).perform()
    browser.execute_script(
        "document.querySelector('.box').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    faults = axe_faults(browser, {"color-contrast", "button-name", "label"})
    browser.set_window_size(1500, 1000)
    assert faults == []


def test_names_run_no_script(browser: WebDriver, tmp_path: Path) -> None:
    _opened(browser, _report(NASTY).html(tmp_path / "nasty.html"))
    _through(browser, "nasty")
    assert browser.find_element(By.TAG_NAME, "h1").text == NASTY
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert messages(browser) == []
