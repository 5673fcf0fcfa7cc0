"""`CompileConfig`: the options of a compilation, and the checks of their values."""

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

MULTIPLIERS = 1024  # default limit for a model that is not small
MOST_TOKENS = 1 << 24  # largest pass and context that the registers hold, with room for addresses
GOALS = ("conversation", "decode", "prompt", "latency", "small")
POLICIES = ("spatial", "shared", "mixed", "resident")
SMALL: Mapping[str, int] = {"channels": 8, "max_tokens": 16, "context": 2048}
"""Sizes of a small design."""
VECTOR_LANES = (1, 2, 4, 8, 16, 32)  # elements per cycle outside of matmuls, up to a group of a quantiser


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Options of `streamgen.compile`. Every field has a default that suits most models.

    None means that the compiler plans the value: the best design for `goal` on the whole board. Other values
    are kept, and the compiler plans the rest around them.

    Five fields are budgets: `multipliers`, `channels`, `converter_bits`, `hold_bits` and `fill`. A budget is
    an upper limit. The compiler looks for the fastest design within all budgets. If it splits a model into
    several accelerators, each accelerator has the full budgets.

    name: Name of the accelerator and of its kernel on the card. The name must be a Verilog identifier.
        Keywords of SystemVerilog and names of kernel pins are not allowed.
    board: Card for which the design is built. From Python, a `Board` value describes any other card.
    goal: Time that the design makes as short as possible. "conversation": a prompt of 256 tokens and an
        answer of 256 (the default for language models). "decode": a step at position 512. "prompt": a prompt
        of 1,024 tokens. "latency": the largest pass (the default for other models). "small": none; the design
        is small and simulates soon. A model whose matmuls have at most 2^19 weights is small by default.
    max_tokens: Largest number of tokens in one pass. The number of tokens of an array is the product of its
        leading dimensions. Longer inputs take several passes. The default is 16.
    context: Largest number of tokens in a text, prompt included. It applies to language models and cannot
        exceed the model's own context. The default is the model's own context, or 2,048 if transformers
        reads the model, which is then traced for each position. If that is too long for the card, it is the
        largest half, quarter, eighth, ... that fits. For small designs and for the policies "spatial" and
        "mixed" it is 2,048.
    multipliers: Limit on the weight x activation multipliers of all matmuls together. The default of small
        designs is 1,024. A small model without `fixed` factors gets fewer: the smallest power of two with
        which the products of one token take at most 512 cycles, but at least 32 for each matmul.
    channels: Limit on the memory channels of the card that the design uses. Each channel has one AXI master.
        The default of small designs is 8.
    converter_bits: Limit on the memory of all layout converters, in bits. If the converters of a model need
        more, the model becomes several accelerators that run one after the other and exchange data in memory.
        The default is half of the card's block RAM.
    fill: Largest share of each SLR that the design may fill, above 0 and up to 1. The default depends on the
        card. Fuller designs may not reach the clock.
    policy: Whether matmuls have columns of multipliers of their own. With "spatial", every matmul has its own
        columns. With "shared", all matmuls take turns on one engine, which has one column for each memory
        channel. With "mixed", a matmul gets its own columns if that saves cycles or if `fixed` names it. With
        "resident", every matmul has its own kernel, which reads its weights once after a reset and keeps them
        on the chip. The default is "spatial" for models of matmuls and elementwise operations, and "shared"
        for all others. If the goal "latency" is given, it is "resident" for models whose weights fit.
    weights: Format of the weights of all matmuls. By default, quantised weights of a checkpoint keep their
        format and float weights become "w4"; those of encoders of sentences become "w8".
    head: Format of the weights that compute the logits of a language model.
    formats: Format of the weights of single layers. A key is the path of a layer or a pattern of paths, as in
        {"layers[[]0].*": "w8"}. The first key that matches a layer counts. Lookup tables ("embedding") have
        the format "f24" or "w8". By default a table has "w8" if it would otherwise fill more than half a
        memory channel, else "f24".
    group: Number of weights along K that share one scale, in formats that leave the choice ("w4"): 32, 64 or
        128.
    scale_bits: Number of bits of the integer scales and minimums of groups: 8 to 16.
    minimum: Store an integer minimum beside the scale of each group, in formats that have minimums
        (asymmetric quantisation).
    p_bits: Number of bits of the integers that the softmax of attention computes: 8 to 16.
    token_lanes: Number of tokens that each weight is multiplied with in one cycle. It applies to the policy
        "spatial". By default the compiler chooses it.
    fixed: Factors that the compiler must use for single layers. A key is the path of a module, or the name of
        an operation in the report. A matmul has the factors "columns", "n_lanes" (output rows that a column
        computes side by side), "quantise_lanes" (of the quantiser before the matmul) and "lanes" (of the
        addition of its bias). An elementwise operation has the factor "lanes". Example: {"layers.0.down":
        {"columns": 2, "n_lanes": 4}}. It applies to the policies "spatial" and "mixed".
    n_lanes: Number of output rows that each column of the engine computes side by side. Each row takes 32
        multipliers. It applies to the policies "shared" and "mixed". The default of "shared" is the largest
        power of two within `multipliers`. "mixed" may choose a smaller one.
    lanes: Number of elements that norms, additions and other operations without weights process in a cycle.
        It is a power of two up to 32. The default is `n_lanes`, or, in a design without an engine, enough to
        keep up with the slowest matmul; either way at most 16. Rotations, caches and attention process at
        most 16 elements of a head. The quantiser before an engine processes up to 32, if the columns send as
        many.
    attention_lanes: Number of positions that attention reads in a cycle. It is a power of two and, over a KV
        cache, at most the number of channels of the cache. The default over a cache is as many as these
        channels deliver, within `multipliers` and the share of the card that attention may fill. The default
        without a cache is 1, unless a plan for a card chooses.
    cache_channels: Number of memory channels that hold the keys of a KV cache. It is a power of two and at
        least `attention_lanes`. The values lie on other channels if there are as many more. By default, the
        cache uses the largest power of two of the channels.
    prefetch_beats: Depth of the FIFO that prefetches each weight stream, in beats of 512 bits. It applies to
        streams that read a whole beat for each token; narrower streams have a depth of 64. The default is
        512, or 1024 for an engine, or less if all FIFOs together would exceed a fifth of the card's block
        RAM.
    hold_bits: Limit on the values that wait on the chip for a later phase, in bits. The largest values wait
        in memory until the others fit. The default is an eighth of the card's block RAM and UltraRAM.
    clock_mhz: Clock of the kernel in MHz. Memory rates and reports use it.
    sizing: Strategy of FIFO sizing. With "conservative", a run takes no more cycles than with unlimited
        FIFOs. With "normal", every kernel keeps its own rate from its start on.
    check_import: Compare the imported graph with the torch module on random inputs before building.
    """

    name: str = "accelerator"
    board: str | Board = DEFAULT_BOARD.name
    goal: Literal["conversation", "decode", "prompt", "latency", "small"] | None = None
    max_tokens: int | None = None
    context: int | None = None
    multipliers: int | None = None
    channels: int | None = None
    converter_bits: int | None = None
    fill: float | None = None
    policy: Literal["spatial", "shared", "mixed", "resident"] | None = None
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
            ("name", "a Verilog identifier, and not a keyword or a pin of a kernel", _is_free(self.name)),
            ("goal", f"None, {alternatives(GOALS)}", self.goal in (None, *GOALS)),
            ("max_tokens", "None or 1 to 2^24", _within(self.max_tokens, MOST_TOKENS)),
            ("context", "None or 1 to 2^24", _within(self.context, MOST_TOKENS)),
            ("multipliers", "None or at least 32", self.multipliers is None or self.multipliers >= 32),
            ("channels", f"None or 1 to {most}", _within(self.channels, most)),
            ("converter_bits", "None or at least 1", self.converter_bits is None or self.converter_bits >= 1),
            ("fill", "None, or above 0 and at most 1", self.fill is None or 0 < self.fill <= 1),
            (
                "policy",
                f"None, {alternatives(POLICIES)}",
                self.policy in (None, *POLICIES),
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
                raise ValueError(f"CompileConfig.{name} is {getattr(self, name)!r}; it must be {law}")
        if not isinstance(self.formats, Mapping):
            raise TypeError(
                f"CompileConfig.formats is {self.formats!r}; a mapping from layers to formats is needed"
            )
        if wrong := [layer for layer in self.formats if not isinstance(layer, str)]:
            raise TypeError(
                f"CompileConfig.formats has the key {wrong[0]!r}; the path of a layer as a string is needed"
            )
        _check_fixed(self.fixed)
        # copies, so that later changes of the caller's mappings have no effect here
        object.__setattr__(self, "fixed", {layer: dict(factors) for layer, factors in self.fixed.items()})
        object.__setattr__(self, "formats", dict(self.formats))
        self.numbers(False)  # checks the formats

    def numbers(self, language: bool) -> Numbers:
        """The number formats of an accelerator. language: whether the model is a language model."""
        head = (
            {"logits": self.head, "head": self.head} if language else {}
        )  # "head" if logits are soft-capped
        return Numbers(
            weights=self.weights,
            by_layer={**self.formats, **head},
            table_bytes=self.card.hbm.channel_bytes // 2,
            group=self.group,
            scale_bits=self.scale_bits,
            minimum=self.minimum,
            p_bits=self.p_bits,
        )

    def size(self, name: Literal["channels", "max_tokens", "context"]) -> int:
        """The value of a field; if it is None, its value in a small design."""
        value: int | None = getattr(self, name)
        return SMALL[name] if value is None else value

    @property
    def most_multipliers(self) -> int:
        """Limit on multipliers; a small model gets fewer."""
        return MULTIPLIERS if self.multipliers is None else self.multipliers

    @property
    def card(self) -> Board:
        """The board, even if `board` is a name, with the share that the design may fill."""
        board = board_of(self.board)
        return board if self.fill is None else replace(board, fill=self.fill)

    @property
    def memory(self) -> Channel:
        """A memory channel of the board at the clock of the design."""
        return self.card.channel(self.clock_mhz)

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))


def checked_config(given: Any, **defaults: Any) -> CompileConfig:
    """The given configuration; a configuration with these `defaults` if it is None. Raises TypeError for any
    other value."""
    if given is None:
        return CompileConfig(**defaults)
    if not isinstance(given, CompileConfig):
        raise TypeError(
            f"config is {type(given).__name__}; a CompileConfig is needed, as in CompileConfig(max_tokens=8)"
        )
    return given


_PINS = re.compile(r"ap_clk|ap_rst_n|interrupt|[ms]_axi_.*")


def _is_free(name: str) -> bool:
    """Whether a module may have this name."""
    if not (name.isidentifier() and name.isascii()) or _PINS.fullmatch(name):
        return False
    # imported late, because a host with a board makes no configuration
    from pygments.lexers.hdl import SystemVerilogLexer  # type: ignore[import-untyped]
    from pygments.token import Keyword  # type: ignore[import-untyped]

    kind, _ = next(iter(SystemVerilogLexer().get_tokens(name)))
    return kind not in Keyword


_PLAIN = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    NoneType: "None",
}


@cache
def _plain_fields() -> dict[str, tuple[type, ...]]:
    """The types of the fields that are numbers, strings or None."""
    hints = get_type_hints(CompileConfig).items()
    by_name = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints}
    return {name: kinds for name, kinds in by_name.items() if _PLAIN.keys() >= set(kinds)}


def _plain(name: str, value: Any, kinds: tuple[type, ...]) -> Any:
    """The value as a Python type, also for numpy types. Raises TypeError for a value of any other type."""
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
    """The board; a value that was read from a file becomes a `Board` again. Raises ValueError with the name
    of the field if there is no such board."""
    try:
        restored = board_of(board)
    except ValueError as error:
        raise ValueError(f"CompileConfig.board: {error}") from error
    return board if isinstance(board, str) else restored


def _within(value: int | None, most: int) -> bool:
    return value is None or 1 <= value <= most


def _power_of_two_or_none(value: int | None) -> bool:
    return value is None or (value >= 1 and value & (value - 1) == 0)


def _check_fixed(fixed: Mapping[str, Mapping[str, int]]) -> None:
    """Raise TypeError or ValueError unless every factor of every layer is a positive integer."""
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
                    "it must be an integer of at least 1"
                )
