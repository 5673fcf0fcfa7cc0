"""The documentation in a real Chromium: nothing is missing, axe finds no fault, and it goes by keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.external.browser.browsers import axe_faults, messages, seen, served
from tests.shared.campaigns import sampled

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ["search", *sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))]
WIDE, NARROW = 1500, 500
LOOKS = [(page, width, theme) for page in PAGES for width in (WIDE, NARROW) for theme in ("light", "dark")]
FEW = [
    *[("tutorial", WIDE, "light"), ("tutorial", NARROW, "dark"), ("errors/index", WIDE, "dark")],
    *[("glossary", NARROW, "light"), ("search", WIDE, "light")],
]
RULES = {"color-contrast", "region", "landmark-unique", "heading-order", "link-name", "button-name"}
# What the page has loaded, and has failed to show; where it leads, inside the site.
LOADED = "return performance.getEntriesByType('resource').map(one => [one.name, one.responseStatus])"
BROKEN = "return [...document.images].filter(one => !one.naturalWidth).map(one => one.src)"
LINKS = """
    return [...document.querySelectorAll('a[href], link[href]')].map(one => one.href)
        .filter(one => one.startsWith(location.origin))
"""
WIDE_CODE = """
    return [...document.querySelectorAll('article pre')].filter(one => one.scrollWidth > one.clientWidth)
        .map(one => one.textContent)
"""
PLACE = "const one = document.activeElement; return [one.outerHTML, one.closest('article') !== null]"
SCROLLED = """
    return [...document.querySelectorAll('article *')].filter(one => one.scrollWidth > one.clientWidth
        && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX)).map(one => one.outerHTML)
"""
STOPS = """
    return [...document.querySelectorAll('article a[href], article button, article [tabindex="0"]')]
        .filter(one => one.checkVisibility({visibilityProperty: true})).map(one => one.outerHTML)
"""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


@pytest.fixture(scope="module")
def answers() -> dict[str, int]:
    """What addresses have answered that were asked."""
    return {}


def _open(browser: WebDriver, address: str, width: int = WIDE, theme: str = "light") -> None:
    messages(browser)
    browser.set_window_size(width, 1000)
    chosen = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", chosen)  # type: ignore[attr-defined]
    browser.get(address)


def _status(address: str) -> int:
    with urlopen(Request(address, method="HEAD")) as answer:
        return int(answer.status)


@pytest.mark.parametrize(("page", "width", "theme"), sampled(LOOKS, FEW))
def test_a_page(
    browser: WebDriver, address: str, answers: dict[str, int], page: str, width: int, theme: str
) -> None:
    """All of it is there, it says nothing on the console, every link inside the site answers, and axe finds
    no fault in it."""
    _open(browser, f"{address}{page}.html", width, theme)
    seen(browser, f"{page.replace('/', '-')}-{width}-{theme}")
    assert messages(browser) == []
    loaded = browser.execute_script(LOADED)
    assert loaded and {status for name, status in loaded if name.startswith(address)} == {200}
    assert [name for name, _ in loaded if not name.startswith((address, "data:"))] == []
    assert browser.execute_script(BROKEN) == []
    assert width == NARROW or browser.execute_script(WIDE_CODE) == []
    links = {urldefrag(link).url for link in browser.execute_script(LINKS)}
    assert {f"{address}index.html", f"{address}_static/favicon.svg"} <= links
    for link in links - answers.keys():
        answers[link] = _status(link)
    assert {link: answers[link] for link in links if answers[link] != 200} == {}
    assert axe_faults(browser, RULES if page != "search" else {"color-contrast", "region"}) == []


def _pressed(browser: WebDriver, *keys: str) -> Any:
    """Where the keyboard is afterwards: the element, and whether it is in the article."""
    browser.switch_to.active_element.send_keys(*keys)
    return browser.execute_script(PLACE)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_keyboard_alone(browser: WebDriver, address: str, width: int) -> None:
    """Skip to the content; every link and all that scrolls in it is a stop, in order."""
    _open(browser, f"{address}tutorial.html", width)
    place, inside = _pressed(browser, Keys.TAB)
    assert "Skip to content" in place and not inside
    _pressed(browser, Keys.ENTER)
    stops = []
    while True:
        place, inside = _pressed(browser, Keys.TAB)
        if not inside:
            break
        stops.append(place)
    assert stops == browser.execute_script(STOPS)
    scrolled = browser.execute_script(SCROLLED)
    assert set(scrolled) <= set(stops) and bool(scrolled) == (width == NARROW)


def test_keyboard_opens_the_sidebars(browser: WebDriver, address: str) -> None:
    """Where there is no room for them, what is in them is no stop until a button has opened them."""
    _open(browser, f"{address}tutorial.html", NARROW)
    for name, where in (("nav", ".sidebar-drawer"), ("toc", ".toc-drawer")):
        links = browser.find_element(By.CSS_SELECTOR, where).find_elements(By.TAG_NAME, "a")

        def are_seen(_: WebDriver, links: list[WebElement] = links) -> bool:
            return any(link.is_displayed() for link in links)

        assert not are_seen(browser)
        button = browser.find_element(By.CSS_SELECTOR, f".mobile-header .{name}-overlay-icon")
        assert button.aria_role == "button" and button.get_attribute("aria-expanded") == "false"
        for _ in range(5):
            _pressed(browser, Keys.TAB)
            if browser.switch_to.active_element == button:
                break
        for key, shown in ((Keys.ENTER, True), (Keys.SPACE, False)):
            _pressed(browser, key)
            assert button.get_attribute("aria-expanded") == str(shown).lower()
            waiting = WebDriverWait(browser, 20)  # a drawer is drawn in
            (waiting.until if shown else waiting.until_not)(are_seen)


def test_search(browser: WebDriver, address: str) -> None:
    _open(browser, f"{address}index.html")
    browser.find_element(By.NAME, "q").send_keys("watchdog", Keys.ENTER)
    found = "#search-results li a[href*='guide/hardware.html']"
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, found))
    assert messages(browser) == []
