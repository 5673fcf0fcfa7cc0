"""kernels.attention.kv_cache: rtl == golden, promises."""

from typing import Any

import numpy as np
import pytest

from streamgen.artifact.kv_layout import KvLayout
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import KvAppendParams, KvReadParams
from streamgen.numbers import formats
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word

LAYOUTS = [
    KvLayout(dtype="i8", width=64, heads=1, layers=3, positions=37, channels=1),
    KvLayout(dtype="i8", width=20, heads=3, layers=3, positions=37, channels=2),
    KvLayout(dtype="i8", width=70, heads=2, layers=3, positions=40, channels=4),
    KvLayout(dtype="i24", width=3, heads=1, layers=2, positions=9, channels=8),
]


PIECES = [*((layout, 1) for layout in LAYOUTS), (LAYOUTS[1], 3), (LAYOUTS[2], 2)]
PIECES.append((KvLayout(dtype="i8", width=8, heads=6, layers=2, positions=37, channels=4), 3))


def _append(layout: KvLayout, layer: int, position: int, rows: int, pieces: int = 1) -> Case:
    rng = np.random.default_rng([layer, position, rows])
    bounds = {"layer": layer, "position": position, "rows": rows}
    ports = KvAppendParams(layout=layout, pieces=pieces).inputs(bounds)
    bits = formats.bits(layout.dtype)
    values = rng.integers(-1 << bits - 1, 1 << bits - 1, ports.pop("i").shape)
    done = {name: np.ones(itensor.shape, np.uint8) for name, itensor in ports.items()}
    return bounds, {"i": values.astype(formats.numpy_dtype(layout.dtype)), **done}


def _read(layout: KvLayout, layer: int, rows: int) -> Case:
    return {"layer": layer, "rows": rows}, {}


@pytest.mark.parametrize(("layout", "pieces"), PIECES, ids=str)
def test_appends_match_golden(layout: KvLayout, pieces: int, stalls: Stalls | None) -> None:
    """Descriptors back to back: the whole cache, single rows, the first and the last position."""
    end = layout.positions
    places = ((0, 0, end), (1, end - 1, 1), (1, 0, 1), (0, 3, 5), (1, 5, 1), (1, 6, 3))
    cases = [_append(layout, *place, pieces) for place in places]
    check_golden(KvAppendParams(layout=layout, pieces=pieces), cases, stalls)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_reads_match_golden(layout: KvLayout, stalls: Stalls | None) -> None:
    end = layout.positions
    places = ((0, end), (1, 1), (1, 0), (1, end - 1), (0, 2), (1, 8), (0, 0), (0, 5), (0, 6))
    check_golden(KvReadParams(layout=layout), [_read(layout, *place) for place in places], stalls)


@pytest.mark.parametrize(("layout", "pieces"), PIECES, ids=str)
def test_promises(layout: KvLayout, pieces: int) -> None:
    for position, rows in ((0, layout.positions), (1, 8)):
        params = KvAppendParams(layout=layout, pieces=pieces)
        check_promises(params, *_append(layout, 1, position, rows, pieces))
    for rows in (layout.positions, 8):
        check_promises(KvReadParams(layout=layout), *_read(layout, 1, rows))


def test_reset_in_mid_run() -> None:
    layout = LAYOUTS[1]
    stalls = Stalls(seed=1, sources=0.3, sinks=0.3)
    appends = [_append(layout, *place, 3) for place in ((0, 0, 7), (1, 3, 4))]
    reads = [_read(layout, *place) for place in ((0, 9), (1, 30))]
    for cycle in (6, 17, 33):
        check_golden(KvAppendParams(layout=layout, pieces=3), appends, stalls, reset_at=cycle)
        check_golden(KvReadParams(layout=layout), reads, stalls, reset_at=cycle)


def test_nothing_appended_before_it_is_done() -> None:
    """No token until the last response; while tokens wait, a limit of descriptors is taken."""
    layout = LAYOUTS[0]
    params = KvAppendParams(layout=layout)
    cases = [_append(layout, 0, position, 1) for position in range(14)]
    streams = {
        "i_descriptor": [descriptor_word(params, bounds) for bounds, _ in cases],
        "i": [1] * 14,
        "i_done_0": [1] * 14,
    }
    counts = {"o_0": 14, "o_descriptor_0": 14, "o_appended": 14}
    late = run(params.build(), streams, counts, hold={"i_done_0": 200})
    assert min(late.cycles["o_appended"]) > 200
    assert sum(cycle < 200 for cycle in late.cycles["i"]) == 2  # one gives rows, one is on its way
    held = run(params.build(), streams, counts, hold={"o_appended": 200})
    assert 8 <= sum(cycle < 200 for cycle in held.cycles["i"]) <= 10


def test_the_layout_is_what_it_says() -> None:
    """Every row has a place of its own; pack and unpack are inverse and agree with `place`."""
    for layout in LAYOUTS:
        rng = np.random.default_rng(layout.width)
        shape = (layout.layers, layout.heads, layout.positions, layout.width)
        array = rng.integers(-128, 128, shape).astype(formats.numpy_dtype(layout.dtype))
        images = layout.pack(array)
        assert [len(image) for image in images] == [64 * layout.beats] * layout.channels
        assert np.array_equal(layout.unpack(images), array)
        row = ITensor(layout.memory.element_shape, layout.dtype, (1,), (1,), ((0,), ()))
        places = set()
        for layer, head, position in np.ndindex(shape[:3]):
            c, beat = layout.place(layer, head, position)
            places.add((c, beat))
            stored = layout.memory.unpack(row, images[c][64 * beat : 64 * (beat + layout.row_beats)])
            assert stored[0, : layout.width].tolist() == array[layer, head, position].tolist()
            assert not stored[0, layout.width :].any()
        assert len(places) == np.prod(shape[:3])
        assert sum(layout.rows(layout.positions)) == layout.positions


def test_rows_read_are_one_piece() -> None:
    """The first n rows of a head lie in each channel from the begin of its stripe on, without a hole."""
    layout = LAYOUTS[2]
    for count in (1, 3, 4, 39, 40):
        for c, here in enumerate(layout.rows(count)):
            places = [layout.place(1, 1, position) for position in range(count)]
            mine = [beat for channel, beat in places if channel == c]
            begin = layout.place(1, 1, 0)[1]
            assert mine == list(range(begin, begin + here * layout.row_beats, layout.row_beats))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "KvLayout.width is 0; at least 1 is needed"),
        ({"heads": 0}, "KvLayout.heads is 0; at least 1 is needed"),
        ({"positions": -1}, "KvLayout.positions is -1; at least 1 is needed"),
        ({"channels": 12}, "KvLayout.channels is 12; it must be a power of two"),
        ({"layers": 1 << 30}, "the cache has 10737418240 beats a channel; 2^32 - 1 are allowed"),
    ],
)
def test_bad_layouts(change: dict[str, int], message: str) -> None:
    choices: dict[str, Any] = {"width": 70, "heads": 1, "layers": 2, "positions": 20, "channels": 4}
    with pytest.raises(ValueError) as caught:
        KvLayout(dtype="i8", **choices | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.place(3, 0, 0), "layer is 3; the cache has 3"),
        (lambda x: x.place(0, 3, 0), "head is 3; the cache has 3"),
        (lambda x: x.place(0, 0, 37), "position is 37; the cache has 37"),
        (lambda x: x.place(0, 0, -1), "position is -1; the cache has 37"),
        (
            lambda x: x.pack(np.zeros((3, 3, 37, 21), np.int8)),
            "the cache has shape (3, 3, 37, 20); the array has shape (3, 3, 37, 21)",
        ),
        (lambda x: x.unpack([b""]), "the cache lies in 2 channels; there are 1 images"),
    ],
)
def test_bad_places(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(LAYOUTS[1])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("params", "bounds", "message"),
    [
        (KvAppendParams, {"layer": 3}, "KvAppend: layer is 3; it must be 0 to 2"),
        (KvAppendParams, {"position": 37}, "KvAppend: position is 37; it must be 0 to 36"),
        (KvAppendParams, {"rows": 0}, "KvAppend: rows is 0; it must be 1 to 36"),
        (KvAppendParams, {"rows": 37}, "KvAppend: rows is 37; it must be 1 to 36"),
        (KvReadParams, {"layer": -1}, "KvRead: layer is -1; it must be 0 to 2"),
        (KvReadParams, {"rows": -1}, "KvRead: rows is -1; it must be 0 to 37"),
        (KvReadParams, {"rows": 38}, "KvRead: rows is 38; it must be 0 to 37"),
    ],
)
def test_bad_bounds(params: Any, bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        params(layout=LAYOUTS[1]).describe({"layer": 0, "position": 1, "rows": 1} | bounds)
    assert str(caught.value) == message
