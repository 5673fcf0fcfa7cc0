"""The weights of `resident` in memory, and the cycles of its rows. params: a ResidentParams."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy import ndarray

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.itensor import ITensor
from streamgen.numbers import formats

ISSUED = 1  # cycles from a group taken to its first step, if nothing is before it


def pack(params: Any, w: ndarray, r: ndarray, s: ndarray | None = None) -> ndarray:
    """The image in memory, uint8 [beats, 64], of codes [n, k], row scales [n] or, with biases, [n, 2],
    and group scales [n, k / group, 1 or 2]."""
    streams = _streams(params)
    tokens = {
        name: formats.encode_ints(streams[name].dtype, streams[name].to_tokens(array))
        for name, array in (("w", w), ("r", r), ("s", s))
        if array is not None
    }
    lanes, row_bits = params.column.n_lanes, params.column.results.row_bits
    parts, image = params.parts, bytearray()
    for tile in range(params.tiles):
        rows = tokens["r"][tile * lanes : (tile + 1) * lanes]
        units = [(sum(row << n * row_bits for n, row in enumerate(rows)), parts[0])]
        for word in range(tile * params.groups, (tile + 1) * params.groups):
            scales = tokens["s"][word] << params.code_bits if s is not None else 0
            units.append((tokens["w"][word] | scales, parts[1]))
        for value, beats in units:
            image += value.to_bytes(beats * BEAT_BYTES, "little")
    return np.frombuffer(bytes(image), np.uint8).reshape(-1, BEAT_BYTES)


def unpack(params: Any, image: ndarray) -> dict[str, ndarray]:
    """Inverse of `pack`: codes `w`, row scales `r` and, for weights in groups, group scales `s`."""
    beats, at = np.ascontiguousarray(image).tobytes(), 0
    tokens: dict[str, list[int]] = {name: [] for name in _streams(params)}
    row_bits = params.column.results.row_bits
    rows, word = (part * BEAT_BYTES for part in params.parts)
    for _ in range(params.tiles):
        value, at = int.from_bytes(beats[at : at + rows], "little"), at + rows
        tokens["r"] += [value >> n * row_bits & (1 << row_bits) - 1 for n in range(params.column.n_lanes)]
        for _ in range(params.groups):
            value, at = int.from_bytes(beats[at : at + word], "little"), at + word
            tokens["w"].append(value & (1 << params.code_bits) - 1)
            if "s" in tokens:
                tokens["s"].append(value >> params.code_bits & (1 << params.word_bits - params.code_bits) - 1)
    return {
        name: itensor.from_tokens(formats.decode_ints(itensor.dtype, tokens[name], itensor.element_shape))
        for name, itensor in _streams(params).items()
    }


def _streams(params: Any) -> dict[str, ITensor]:
    """The streams of weights of a column for one token."""
    ports = params.column.inputs({**params.of_column({"t": 1}), "t": 1})
    return {name: ports[f"i_{name}"] for name in "wrs" if f"i_{name}" in ports}


@lru_cache(maxsize=64)
def times(params: Any, rows: int) -> tuple[ndarray, ndarray, ndarray]:
    """The cycles in which groups are taken, steps issued and results sent."""
    groups, tiles, ring = params.groups, params.tiles, params.ring.depth
    take, issue = np.zeros(rows * groups, np.int64), np.zeros((rows, tiles, groups), np.int64)
    at, step = 0, 0
    for row in range(rows):
        for group in range(groups):
            number = row * groups + group
            at += 1
            if number >= ring:  # the place is free when the step of its last tile is fetched
                before, place = divmod(number - ring, groups)
                at = max(at, int(issue[before, -1, place]))
            take[number] = at
            step = issue[row, 0, group] = max(step + 1, at + ISSUED)
        rest = (tiles - 1) * groups
        issue[row, 1:] = (step + 1 + np.arange(rest)).reshape(tiles - 1, groups)
        step += rest
    return take, issue.reshape(-1), issue[:, :, -1].reshape(-1) + params.latency
