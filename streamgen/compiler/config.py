"""What a user chooses for a compilation; everything has a default that needs no thought."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from streamgen.base.wording import alternatives
from streamgen.numbers.quantisation import Numbers
from streamgen.numbers.weights import BYTES, FORMATS
from streamgen.platform.boards import DEFAULT_BOARD, Board, Channel, board_of

__all__ = ["VECTOR_LANES", "CompileConfig", "checked_config"]

MULTIPLIERS = 1024  # of a model that is not small
MOST_TOKENS = 1 << 24  # of a pass and of a context: what a register holds, with room for addresses
VECTOR_LANES = (1, 2, 4, 8, 16, 32)  # elements a cycle of what is no matmul, up to the group of a quantiser


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Choices of `streamgen.compile`: budgets, formats, and factors that are fixed where they should not be
    chosen.

    name: of the accelerator, the kernel's name on the card; a Verilog identifier, none of the words that
        (System)Verilog keeps for itself and none of a kernel's pins.
    board: what it is built for: the name of a known board, or a `streamgen.platform.boards.Board`.
    max_tokens: the largest number of tokens (product of the leading dimensions) of one pass; longer
        inputs run as several passes.
    context: positions of a text of a language model, at most those of the model.
    multipliers: budget of weight x activation multipliers over all matmuls. None: 1,024, or fewer
        for a small model none of whose factors are fixed: the power of two with which the products of a token
        take 512 cycles at most, and 32 for each matmul (`streamgen.compiler.plan.policy.sized`).
    channels: budget of memory channels, up to those of the board (32), one AXI master each.
    converter_bits: budget of layout converters. A module whose converters hold more becomes several
        accelerators that run one after the other and meet in memory; the budgets above are those of each.
        None: half of the board's block memory.
    fill: share of each SLR that the design may fill, up to 1; None: that of the board, beyond which designs
        are not routed at speed.
    policy: "spatial" gives every matmul columns of its own, "shared" has all take turns on one engine, a
        column a memory channel; "mixed" gives columns to some, as long as that saves cycles, and to those
        that `fixed` names. None: spatial for modules of matmuls and elementwise operations, shared for the
        rest.
    weights: format of the weights of all matmuls, by its name; None: what the checkpoint has for each matmul,
        "w4" where it has floats.
    head: format of the weights that compute the logits of a language model.
    formats: formats by layer, a path or a pattern of paths, the first that fits: {"layers[[]0].*": "w8"};
        tables ("embedding") may be "f24" or "w8", and are "w8" where they would fill half a memory channel.
    group: weights along K that share one integer scale, in formats that have a choice (w4): 32, 64 or 128.
    scale_bits: bits of the integer group scales and minimums: 8 to 16.
    minimum: keep an integer minimum beside each group scale, in formats that have them (asymmetric groups).
    p_bits: bits of the integers of a softmax in attention: 8 to 16.
    token_lanes: spatial: tokens that one weight meets in a cycle; None lets the explorer choose.
    fixed: spatial and mixed: factors that the explorer must take, by layer (path of the module, or name of
        the operation in the report): of a matmul `columns`, `n_lanes` (output rows a column computes side by
        side), `quantise_lanes` (of the quantiser before it) and `lanes` (of the addition of its bias); of an
        elementwise operation `lanes`. {"layers.0.down": {"columns": 2, "n_lanes": 4}}
    n_lanes: shared and mixed: output rows that a column of the engine computes side by side, 32 multipliers
        each, within `multipliers` where these are given; None: shared the greatest power of two that the
        multipliers allow, mixed that or a smaller one.
    lanes: elements a cycle of norms, additions and what else passes rows, a power of two up to 32; None: as
        `n_lanes`, and where there is no engine what keeps up with the slowest matmul, up to 16 either way.
        Rotations, caches and attention take 16 of a head at most; the quantiser before an engine takes as
        many as columns send, up to 32, where these are more.
    attention_lanes: with a cache: positions of a text that attention over it takes in a cycle, a power of
        two, at most the channels of the cache; None: as many as its channels give, while attention has no
        more multipliers than `multipliers`, and no more of the board than its share (`attention_width`).
    cache_channels: with a cache: memory channels that its keys lie on, and its values on others where there
        are as many more: a power of two, at least `attention_lanes`; None: all of them, a power of two. Each
        has a load and a store for whole rows; a step waits for fewer where attention could take more.
    prefetch_beats: depth of the prefetch FIFO of each weight stream whose tokens take a whole beat of
        512 bits, in beats; thinner streams have 64. None: 512, of an engine 1024, or less where those of all
        columns would take more than a fifth of the board's block RAM.
    hold_bits: budget of values that a phase leaves for a later one, on the chip; the largest lie in
        memory until the others keep within it. None: an eighth of the board's block and ultra RAM.
    clock_mhz: kernel clock that memory rates and reports are computed for.
    sizing: FIFO sizing strategy: "conservative" keeps the schedule in which every kernel starts as soon as it
        can, "normal" lets kernels run at their own rates.
    check_import: hold the imported graph to the module in torch, on random inputs, before anything is built.
    """

    name: str = "accelerator"
    board: str | Board = DEFAULT_BOARD.name
    max_tokens: int = 16
    context: int = 2048
    multipliers: int | None = None
    channels: int = 8
    converter_bits: int | None = None
    fill: float | None = None
    policy: Literal["spatial", "shared", "mixed"] | None = None
    weights: str | None = None
    head: str = BYTES.name
    formats: Mapping[str, str] = field(default_factory=dict, hash=False)
    group: int = 32
    scale_bits: int = 8
    minimum: bool = True
    p_bits: int = 12
    token_lanes: int | None = None
    fixed: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    n_lanes: int | None = None
    lanes: int | None = None
    attention_lanes: int | None = None
    cache_channels: int | None = None
    prefetch_beats: int | None = None
    hold_bits: int | None = None
    clock_mhz: float = 300.0
    sizing: Literal["conservative", "normal"] = "conservative"
    check_import: bool = True

    def __post_init__(self) -> None:
        for name, kinds in _plain_fields().items():
            object.__setattr__(self, name, _plain(name, getattr(self, name), kinds))
        object.__setattr__(self, "board", _known(self.board))
        most = board_of(self.board).hbm.channels
        for name, law, holds in (
            ("name", "a Verilog identifier, no keyword and no pin of a kernel", _is_free(self.name)),
            ("max_tokens", "1 to 2^24", 1 <= self.max_tokens <= MOST_TOKENS),
            ("context", "1 to 2^24", 1 <= self.context <= MOST_TOKENS),
            ("multipliers", "None or at least 32", self.multipliers is None or self.multipliers >= 32),
            ("channels", f"1 to {most}", 1 <= self.channels <= most),
            ("converter_bits", "None or at least 1", self.converter_bits is None or self.converter_bits >= 1),
            ("fill", "None or above 0, up to 1", self.fill is None or 0 < self.fill <= 1),
            (
                "policy",
                "None, 'spatial', 'shared' or 'mixed'",
                self.policy in (None, "spatial", "shared", "mixed"),
            ),
            ("weights", f"None, {alternatives(FORMATS)}", self.weights in (None, *FORMATS)),
            ("head", alternatives(FORMATS), self.head in FORMATS),
            ("group", "32, 64 or 128", self.group in (32, 64, 128)),
            ("scale_bits", "8 to 16", 8 <= self.scale_bits <= 16),
            ("p_bits", "8 to 16", 8 <= self.p_bits <= 16),
            ("token_lanes", "None or a power of two", _power_of_two_or_none(self.token_lanes)),
            ("n_lanes", "None or at least 1", self.n_lanes is None or self.n_lanes >= 1),
            ("lanes", "None or a power of two up to 32", self.lanes in (None, *VECTOR_LANES)),
            (
                "attention_lanes",
                "None or a power of two up to 32",
                self.attention_lanes in (None, 1, 2, 4, 8, 16, 32),
            ),
            ("cache_channels", "None or a power of two", _power_of_two_or_none(self.cache_channels)),
            (
                "prefetch_beats",
                "None or at least 64 (one burst)",
                self.prefetch_beats is None or self.prefetch_beats >= 64,
            ),
            ("hold_bits", "None or at least 0", self.hold_bits is None or self.hold_bits >= 0),
            ("clock_mhz", "1 to 1000", 1 <= self.clock_mhz <= 1000),
            ("sizing", "'conservative' or 'normal'", self.sizing in ("conservative", "normal")),
        ):
            if not holds:
                raise ValueError(f"CompileConfig.{name} is {getattr(self, name)!r}; allowed is {law}")
        if not isinstance(self.formats, Mapping):
            raise TypeError(
                f"CompileConfig.formats is {self.formats!r}; a mapping from layers to formats is needed"
            )
        if wrong := [layer for layer in self.formats if not isinstance(layer, str)]:
            raise TypeError(f"CompileConfig.formats names {wrong[0]!r}; a text is needed, a layer's path")
        _check_fixed(self.fixed)
        # copies: what the caller does to its own mappings later changes nothing here
        object.__setattr__(self, "fixed", {layer: dict(factors) for layer, factors in self.fixed.items()})
        object.__setattr__(self, "formats", dict(self.formats))
        self.numbers(False)  # which checks the formats

    def numbers(self, language: bool) -> Numbers:
        """The numbers that the accelerator of a language model, or of another module, computes with."""
        head = {"logits": self.head, "head": self.head} if language else {}  # the latter is soft-capped
        return Numbers(
            weights=self.weights,
            by_layer={**self.formats, **head},
            table_bytes=self.card.hbm.channel_bytes // 2,
            group=self.group,
            scale_bits=self.scale_bits,
            minimum=self.minimum,
            p_bits=self.p_bits,
        )

    @property
    def most_multipliers(self) -> int:
        """The budget of multipliers, of which a small model takes a part."""
        return MULTIPLIERS if self.multipliers is None else self.multipliers

    @property
    def card(self) -> Board:
        """The board, also where it is given by name, with the share of it that the design may fill."""
        board = board_of(self.board)
        return board if self.fill is None else replace(board, fill=self.fill)

    @property
    def memory(self) -> Channel:
        """A memory channel of the board at the clock of the design."""
        return self.card.channel(self.clock_mhz)

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))


def checked_config(given: Any, **defaults: Any) -> CompileConfig:
    """What a user gives as a configuration; `defaults` where it is None. TypeError for anything else."""
    if given is None:
        return CompileConfig(**defaults)
    if not isinstance(given, CompileConfig):
        raise TypeError(
            f"config is {type(given).__name__}; a CompileConfig is needed, as in CompileConfig(max_tokens=8)"
        )
    return given


_PINS = re.compile(r"ap_clk|ap_rst_n|interrupt|[ms]_axi_.*")


def _is_free(name: str) -> bool:
    """Whether a module can be called so."""
    if not (name.isidentifier() and name.isascii()) or _PINS.fullmatch(name):
        return False
    # late: a host of a board makes no config
    from pygments.lexers.hdl import SystemVerilogLexer  # type: ignore[import-untyped]
    from pygments.token import Keyword  # type: ignore[import-untyped]

    kind, _ = next(iter(SystemVerilogLexer().get_tokens(name)))
    return kind not in Keyword


_PLAIN = {bool: "True or False", int: "an integer", float: "a finite number", str: "a text", NoneType: "None"}


@cache
def _plain_fields() -> dict[str, tuple[type, ...]]:
    """The types of the fields that are nothing but numbers and texts."""
    hints = get_type_hints(CompileConfig).items()
    found = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints}
    return {name: kinds for name, kinds in found.items() if _PLAIN.keys() >= set(kinds)}


def _plain(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value as Python's own type, also where it is numpy's. TypeError when it is of another type."""
    if isinstance(value, bool | np.bool_):
        if bool in kinds:
            return bool(value)
    elif int in kinds and isinstance(value, Integral):
        return int(value)
    elif float in kinds and isinstance(value, Real) and isfinite(value):
        return float(value)
    elif isinstance(value, kinds) and not isinstance(value, Real):
        return value
    wanted = " or ".join(_PLAIN[kind] for kind in kinds)
    raise TypeError(f"CompileConfig.{name} is {value!r}; {wanted} is needed")


def _known(board: str | Board) -> str | Board:
    """The board, restored where a file has kept it. ValueError that names the field for what is none."""
    try:
        found = board_of(board)
    except ValueError as error:
        raise ValueError(f"CompileConfig.board: {error}") from error
    return board if isinstance(board, str) else found


def _power_of_two_or_none(value: int | None) -> bool:
    return value is None or (value >= 1 and value & (value - 1) == 0)


def _check_fixed(fixed: Mapping[str, Mapping[str, int]]) -> None:
    """TypeError or ValueError unless every factor of every layer is a positive integer."""
    if not isinstance(fixed, Mapping):
        raise TypeError(f"CompileConfig.fixed is {fixed!r}; a mapping from layers to factors is needed")
    for layer, factors in fixed.items():
        if not isinstance(layer, str) or not isinstance(factors, Mapping):
            raise TypeError(
                f"CompileConfig.fixed[{layer!r}] is {factors!r}; a mapping like {{'columns': 2}} is needed"
            )
        for factor, value in factors.items():
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"CompileConfig.fixed[{layer!r}][{factor!r}] is {value!r}; "
                    "allowed is an integer of at least 1"
                )
