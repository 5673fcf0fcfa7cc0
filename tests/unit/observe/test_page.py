"""Pages and pictures: the same bytes, nothing from outside, names as they are, whole files or none."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
from lxml import etree, html

from streamgen import cli
from streamgen.api.accelerator import Accelerator
from streamgen.artifact.manifest import Buffer
from streamgen.compiler.lower import GraphBuilder
from streamgen.contract.cost import Resources
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams
from streamgen.model.graph import Graph
from streamgen.model.graph.plan import Tried
from streamgen.observe import drawing
from streamgen.observe.drawing import picture, svg, write_picture
from streamgen.observe.estimate import PassEstimate, PhaseEstimate
from streamgen.observe.page import page
from streamgen.observe.report import (
    FifoReport,
    GroupReport,
    IntermediateMemory,
    KernelReport,
    Report,
    ResourceReport,
)
from streamgen.observe.view import GroupView, RunPass, node_resources
from streamgen.platform.boards import DEFAULT_BOARD
from tests.shared.damage import full_disk

NASTY = "</script><img src=x onerror=alert(1)> & \"quotes\" '{{ 7 * 7 }}' \\ 𝛴"
SVG = "{http://www.w3.org/2000/svg}"


@cache
def _graph(sums: int = 4) -> Graph:
    """Sums beside one another; four memory channels are read, one is written."""
    builder = GraphBuilder("sums")
    tiles = ITensor((1, 16), "f24", (2, 1), (1, 16), ((0,), (1,)))
    for number in range(sums):
        x = builder.load(f"x{number}", tiles, shape=(2, 16), channel=number % 4)
        params = BinaryParams(operation="add", lanes=16, max_tokens=2)
        y = builder.kernel(f"sum{number}", params, {"itensor": tiles}, i_a=x, i_b=x)
        builder.store(f"y{number}", y["o"], shape=(2, 16), channel=4)
    return builder.build()


def _report(name: str = "sums", *, run: bool = True, sums: int = 4) -> Report:
    graph = _graph(sums)
    slrs = {node.name: "SLR1" if node.name == "sum3" else "SLR0" for node in graph.nodes}
    phase = PhaseEstimate(
        name=name,
        walks=3,
        cycles=90,
        memory_cycles=40.0,
        product_cycles=0.0,
        products=640,
        bytes=4096,
        limit="latency",
    )
    moved = {0: (4000, 96), 3: (0, 0)}
    predicted = PassEstimate(group=name, tokens=2, position=0, phases=(phase,), moved=moved)
    runs = [RunPass(tokens=2, tiles=1, position=0, variant=None, cycles=95)] if run else []
    view = GroupView(
        name=name,
        graph=graph,
        phase_names=(name,),
        board=DEFAULT_BOARD,
        slrs=slrs,
        resources=node_resources(graph),
        buffers=[Buffer(name=f"x{k}", role="input", channel=k, bytes=128) for k in range(4)],
        rate=44.0,
        multipliers=32,
        predicted=[predicted],
        measured=[],
        runs=runs,
        expected=[(ran, predicted) for ran in runs],
    )
    group = GroupReport(
        name=name,
        units=(name,),
        ended=name,
        converter_bits=10,
        converter_budget=None,
        multipliers=32,
        choices=(name,),
        resources=ResourceReport(
            parts={"Binary": Resources(lut=1234.5, ff=10), "control and masters": Resources(lut=900, ff=10)},
            board=DEFAULT_BOARD.name,
            available=DEFAULT_BOARD.resources,
            slrs={slr.name: (Resources(lut=2134.5, ff=20), slr.resources) for slr in DEFAULT_BOARD.slrs},
            fill=0.75,
            crossings={},
        ),
        fifos=tuple(
            FifoReport(name=edge.name, bits=384, depth=7, greatest=3 if run else None) for edge in graph.edges
        ),
        kernels=tuple(
            KernelReport(name=node.name, kind="Binary", busy=2, stalled=1, idle=87) for node in graph.nodes
        )
        if run
        else (),
        channels={0: {"input": 128}},
        channel_bytes=1 << 29,
        tried=(Tried(group="1 token lane", what=name, multipliers=32, cycles=90.0),),
    )
    memory = IntermediateMemory(unfused=100, converters=10, constants=5, fifos=20, stored=0)
    return Report(
        name=name, clock_mhz=300.0, groups=(group,), memory=memory, page=partial(page, views=[view])
    )


def test_a_picture_gathers_what_is_alike() -> None:
    drawn = picture(_graph())
    texts = {box.lines for box in drawn.boxes}
    assert ("sum0..3", "Binary[add] × 4") in texts and ("HBM 0-3", "input") in texts
    assert ("HBM 4", "output") in texts and len(drawn.boxes) == 5
    full = picture(_graph(), full=True)
    assert {box.members for box in full.boxes if box.role != "memory"} == {
        (node.name,) for node in _graph().nodes
    }
    for one in (drawn, full):
        root = etree.fromstring(svg(one).encode())
        found = {part.get("id") for part in root.iter(f"{SVG}g")}
        assert found >= {box.id for box in one.boxes} | {wire.id for wire in one.wires}
        shown = {text.text for text in root.iter(f"{SVG}text")}
        assert shown >= {line for box in one.boxes for line in box.lines}
        assert "1×16 f24" in shown  # the tile of a stream stands beside it
        names = {edge.name for wire in one.wires for edge in wire.edges}
        assert names == {edge.name for edge in _graph().edges}


def test_a_picture_has_names_as_they_are() -> None:
    drawn = picture(_graph())
    boxes = (replace(drawn.boxes[0], lines=(NASTY, "\\N \\l %s")), *drawn.boxes[1:])
    root = etree.fromstring(svg(replace(drawn, boxes=boxes)).encode())
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert NASTY in shown and "\\N \\l %s" in shown


def test_a_picture_is_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "sums.svg"
    write_picture(_graph(), path)
    first = path.read_bytes()
    assert etree.fromstring(first).tag == f"{SVG}svg"
    write_picture(_graph(), path)
    assert path.read_bytes() == first and [*tmp_path.iterdir()] == [path]
    write_picture(_graph(), tmp_path / "SUMS.SVG")
    assert (tmp_path / "SUMS.SVG").read_bytes() == first


@pytest.mark.parametrize("name", ["a.bmp", "a", "svg", "a.svg.png"])
def test_a_picture_is_nothing_but_svg(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other endings are refused before anything is drawn, on the command line before a model is read."""
    monkeypatch.setattr(drawing, "svg", lambda _: pytest.fail("is drawn"))
    said = f"{tmp_path / name}: pictures are SVG files; the name must end in .svg"
    with pytest.raises(ValueError) as caught:
        write_picture(_graph(), tmp_path / name)
    assert str(caught.value) == said
    assert cli.main(["draw", "x:y", "-o", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err == f"streamgen: {said}\n" and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("run", [False, True])
def test_a_page_needs_nothing_from_outside(tmp_path: Path, run: bool) -> None:
    path = _report(run=run).html(tmp_path / "sums.html")
    text = path.read_text("utf-8")
    root = html.fromstring(text)
    policy = root.xpath("//meta[@http-equiv]/@content")[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy and "http" not in policy
    run_ones = [script for script in root.iter("script") if script.get("type") != "application/json"]
    for script in run_ones:
        digest = base64.b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(run_ones) == policy.count("sha256-") == 1
    links = root.xpath("//@src | //@href | //@*[name()='xlink:href']")
    assert links and all(value.startswith("#") for value in links)
    ids = root.xpath("//@id")
    assert len(ids) == len(set(ids)) and all(link[1:] in ids for link in links)
    assert not root.xpath("//@onclick | //@onload | //iframe | //link | //form")
    for heading in (
        "Graph",
        "Roofline",
        "FIFOs",
        "Resources on the card",
        "Memory by channel",
        "Exploration",
    ):
        assert heading in root.xpath("//h2/text()")
    assert ("most that was held" in text) == ("held 3 of 7 tokens" in text) == run


def test_the_first_line_is_the_result(tmp_path: Path) -> None:
    for run, cycles, how in (
        (False, 90, "in one pass, predicted"),
        (True, 95, "in 1 pass of the last run, measured"),
    ):
        root = html.fromstring(_report(run=run).html(tmp_path / "a.html").read_text("utf-8"))
        (said,) = root.xpath("//main/*[1]/text()")
        assert said == (
            f"2 tokens take 0.3 µs, which is {2 * 300e6 / cycles:,.0f} tokens per second ({cycles} cycles at "
            f"300 MHz {how}). The design takes 0 % of the LUTs and 0 % of the DSPs of a u55c."
        )
        tiles = [part.text for part in root.xpath("//dl[@class='tiles']/div/dt")]
        assert ("2 tokens at position 0, measured" in tiles) == run
        assert "2 tokens at position 0, predicted" in tiles
        options = root.xpath("//select[@data-choice='g0-phases']/option/text()")
        measured = "2 tokens at position 0, measured: 95 cycles; phases are predicted"
        assert (options[:1] == [measured]) == run
        passes = root.xpath("//table[.//th='pass']/tbody/tr")
        assert [row.text_content() for row in passes] == (["102950.3"] if run else [])


def test_a_page_grows_with_its_tables_alone(tmp_path: Path) -> None:
    """Of a thousand kernels more than of twelve: rows of the tables of FIFOs, and what a box lists."""
    sizes = []
    for sums in (4, 340):
        path = _report(sums=sums).html(tmp_path / "sums.html")
        root = html.fromstring(path.read_text("utf-8"))
        elements = [part for part in root.iter() if isinstance(part.tag, str)]
        fifos = root.xpath("//*[starts-with(@id, 'g0-fifo')]//details//tr")
        sizes.append((path.stat().st_size, len(elements) - 5 * len(fifos), len(fifos)))
    (small, few, _), (large, many, rows) = sizes
    assert rows == 1 + 3 * 340
    assert many < few, "so many kernels have no second drawing with a box for each"
    assert large - small < 500 * 2 * 340


def test_a_page_has_the_same_bytes_again(tmp_path: Path) -> None:
    first = _report().html(tmp_path / "a.html").read_bytes()
    assert _report().html(tmp_path / "b.html").read_bytes() == first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_a_page_has_names_as_they_are(tmp_path: Path) -> None:
    root = html.fromstring(_report(NASTY).html(tmp_path / "a.html").read_text("utf-8"))
    assert root.xpath("//h1")[0].text == NASTY and not root.xpath("//img")
    assert NASTY in [part.text for part in root.xpath("//ul[@class='choices']/li")]
    assert NASTY in json.dumps(json.loads(root.get_element_by_id("data").text), ensure_ascii=False).replace(
        '\\"', '"'
    ).replace("\\\\", "\\")


@pytest.mark.parametrize("before", [None, b"of yesterday"])
def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "a.html"
    if before is not None:
        path.write_bytes(before)
    with full_disk(1 << 15), pytest.raises(OSError, match="File too large"):
        _report().html(path)
    assert [file.name for file in tmp_path.iterdir()] == ([] if before is None else ["a.html"])
    assert before is None or path.read_bytes() == before


def test_places_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IsADirectoryError, match=re.escape(f"{tmp_path} is a folder; a file is needed")):
        _report().html(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        _report().html(tmp_path / "none" / "a.html")
    with pytest.raises(ValueError, match="this report was not made by an accelerator, so it has no page"):
        Report(name="a", clock_mhz=300.0, groups=(), memory=_report().memory).html(tmp_path / "a.html")
    for command in (
        ["report", "x:y", "--html", f"{tmp_path}/none/a.html"],
        ["draw", "x:y", "-o", f"{tmp_path}"],
    ):
        assert cli.main(command) == 2  # before anything is compiled
        assert re.search("there is no folder|is a folder; a file is needed", capsys.readouterr().err)


def test_a_report_has_no_page_in_its_json() -> None:
    assert "page" not in json.loads(_report().to_json())
    assert _report().to_json() == _report().to_json() and callable(Accelerator.report)
