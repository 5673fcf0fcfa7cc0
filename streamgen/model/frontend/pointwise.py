"""Calls that compute element by element, as expressions: comparisons, choices, quotients, roundings and more.

A rule is given the arguments of a call and puts the expression together. Values of one call become one
operation; `fuse` joins adjacent ones. A truth value is 1 or 0. Parameters are combined by feature."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from streamgen.gateware.functions import FUNCTIONS
from streamgen.gateware.pointwise import POINTWISE, FormulaBuilder
from streamgen.model.frontend import activations, arithmetic, index_moves, self_attention
from streamgen.model.frontend.arithmetic import Operand, compute, leading, operand_of
from streamgen.model.frontend.cube import CUBIC
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.trace import Unsupported, arguments, aten
from streamgen.model.operations import Expression

Rule = Callable[[FormulaBuilder, Mapping[str, Any]], int]
"""Of the arguments of a call by name: numbers of the builder for tensors and numbers, others as they are."""
Handler = Callable[[Draft, Node], None]
CONSTANT = "its result does not depend on the inputs of the module"


def express(draft: Draft, node: Node, rule: Rule) -> None:
    """Add the expression of a call."""
    builder = FormulaBuilder()
    given = {name: _argument(draft, builder, value) for name, value in arguments(node).items()}
    found = builder.formula(rule(builder, given))
    if isinstance(found, float):
        raise Unsupported(CONSTANT)
    formula, nodes = found
    known = [source for source in nodes if draft.knows(source)]
    if not known:
        raise Unsupported(CONSTANT)
    lead, order, columns = leading(draft, node, known)
    operands = [
        Operand(columns) if source is lead else operand_of(draft, node, source, order) for source in nodes
    ]
    compute(draft, node, Expression(formula), order, *operands)


def as_truth(draft: Draft, node: Node) -> None:
    """Add a cast of a number to a truth value."""
    zero = "is_not"
    express(draft, node, lambda f, given: f.apply(zero, f.apply(zero, next(iter(given.values())))))


def _argument(draft: Draft, builder: FormulaBuilder, value: Any) -> Any:
    """A tensor or a number in the expression; anything else as it is."""
    if isinstance(value, Node):
        if value in draft.tables and not draft.tables.is_uniform(value):
            draft.rows_for_positions(value)
        if draft.knows(value) or not _is_number(tensor := draft.constants.tensors[value]):
            return builder.value(value)
        value = float(tensor.reshape(-1)[0])
    if isinstance(value, bool | int | float):
        return builder.constant(_allowed(float(value)))
    return value


def _is_number(constant: torch.Tensor) -> bool:
    """Whether a constant is one number, or holds an infinite number alone."""
    if constant.numel() < 2 or not constant.is_floating_point():
        return constant.numel() == 1
    return bool(constant.isinf().all()) and bool((constant == constant.reshape(-1)[0]).all())


def _allowed(number: float) -> float:
    if math.isnan(number) or (number == 0 and math.copysign(1, number) < 0):
        raise Unsupported(f"one of its numbers is {number}, which no expression holds")
    return number


def _by_name(name: str) -> Rule:
    """An operation on the first arguments."""
    return lambda f, given: f.apply(name, *list(given.values())[: POINTWISE[name].arity])


def _of_numbers(function: str) -> Rule:
    """fmax and fmin: of a number and NaN, the number."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        a, b = list(given.values())[:2]
        a_or_b = f.apply("where", f.apply("is_nan", a), b, a)
        b_or_a = f.apply("where", f.apply("is_nan", b), a, b)
        return f.apply(function, a_or_b, b_or_a)

    return rule


def _clamp(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    value = given["self"]
    for function, name in (("maximum", "min"), ("minimum", "max")):
        if given.get(name) is not None:
            value = f.apply(function, value, given[name])
    return value


def _remainder(rounding: str) -> Rule:
    """a - b · q with q = floor(a / b), or trunc(a / b), of which the product is exact. The rounding of the
    quotient to f24 may lift it to a whole number: then the result lies on the wrong side of 0, and b is
    added back. Where |a / b| is above 2^16, b is less than what f24 tells apart beside a: the result is 0."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        a, b = given["self"], given["other"]
        quotient = f.apply("divide", a, b)
        whole = f.apply(rounding, quotient)
        rest = f.apply("multiply_add", f.apply("negate", whole), b, a)
        rest = f.apply("where", f.apply("is_not", whole), a, rest)  # b may be infinite
        sign = f.apply("sign", b if rounding == "floor" else a)
        wrong = f.apply("lt", f.apply("multiply", f.apply("sign", rest), sign), f.constant(0.0))
        step = b if rounding == "floor" else f.apply("multiply", f.apply("absolute", b), sign)
        mended = f.apply("where", wrong, f.apply("add", rest, step), rest)
        size = f.apply("absolute", quotient)
        known = f.apply("le", size, f.constant(2.0**16))
        far = f.apply("multiply", quotient, f.constant(0.0))  # NaN of infinities
        return f.apply("where", known, mended, far)

    return rule


def _divided(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    mode = given["rounding_mode"]
    if mode == "floor":
        return _floor_divided(f, given)
    quotient = f.apply("divide", given["self"], given["other"])
    return quotient if mode is None else f.apply(mode, quotient)


def _floor_divided(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    """floor(a / b), NaN for infinite a."""
    a, b = given["self"], given["other"]
    nothing = f.apply("multiply", a, f.constant(0.0))
    return f.apply("add", f.apply("floor", f.apply("divide", a, b)), nothing)


def power(f: FormulaBuilder, x: int, exponent: float) -> int:
    """x to a power: products for a whole number up to 16, a root besides for halves, quarters by two roots.

    Roots of -infinity are NaN, as those of all numbers below 0. Raises Unsupported for other powers.
    """
    size = abs(exponent)
    if exponent == 0 or size > 16 or size * 4 % 1:
        raise Unsupported(f"its power is {exponent}; multiples of 1/4 up to 16, without 0, can be compiled")
    result: int | None = None
    root = x
    for part in (0.5, 0.25):
        if size % 1 >= 0.25:
            root = f.apply("sqrt", root)
        if size % (2 * part) >= part:
            result = root if result is None else f.apply("multiply", result, root)
    square, whole = x, int(size)
    while whole:
        if whole & 1:
            result = square if result is None else f.apply("multiply", result, square)
        whole >>= 1
        if whole:
            square = f.apply("multiply", square, square)
    assert result is not None
    return result if exponent > 0 else f.apply("divide", f.constant(1.0), result)


def _to_the_power(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    """number ** x as exp2(x · log2(number)): the product's rounding is one of x."""
    base, x = given["self"], given["exponent"]
    number = f.number(base)
    if number is None or not 0 < number < math.inf:
        raise Unsupported("its base must be a number above 0")
    return f.apply("exp2", f.apply("multiply", x, f.constant(math.log2(number))))


def _round(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    decimals = f.number(given["decimals"])
    if decimals:
        raise Unsupported(f"it rounds to {decimals:g} decimals; only whole numbers can be compiled")
    return f.apply("round", given["self"])


def _fraction(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    return f.apply("subtract", given["self"], f.apply("trunc", given["self"]))


def _sum(operation: str) -> Rule:
    """self + alpha · other, or - ."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        other = given["other"]
        if f.number(given["alpha"]) != 1:
            other = f.apply("multiply", other, given["alpha"])
        return f.apply(operation, given["self"], other)

    return rule


def _addc(operation: str) -> Rule:
    """self + value · (tensor1 · tensor2), or / ."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        both = f.apply(operation, given["tensor1"], given["tensor2"])
        if f.number(given["value"]) != 1:
            both = f.apply("multiply", both, given["value"])
        return f.apply("add", given["self"], both)

    return rule


def _lerp(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    """From the end that is nearer, as torch: self + weight · (end - self), or end - (1 - weight) · (...)."""
    start, end, weight = given["self"], given["end"], given["weight"]
    difference = f.apply("subtract", end, start)
    rest = f.apply("subtract", f.constant(1.0), weight)
    near = f.apply("add", start, f.apply("multiply", weight, difference))
    far = f.apply("subtract", end, f.apply("multiply", rest, difference))
    return f.apply("where", f.apply("lt", f.apply("absolute", weight), f.constant(0.5)), near, far)


def _hypot(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    """m · sqrt(1 + (l / m)²) of the greater and the lesser size, which overflows only where it must."""
    a, b = (f.apply("absolute", given[name]) for name in ("self", "other"))
    most, least = f.apply("maximum", a, b), f.apply("minimum", a, b)
    ratio = f.apply("divide", least, most)
    square = f.apply("multiply", ratio, ratio)
    root = f.apply("sqrt", f.apply("add", square, f.constant(1.0)))
    sized = f.apply("where", f.apply("is_not", most), most, f.apply("multiply", most, root))
    endless = f.apply("or", f.apply("is_infinite", a), f.apply("is_infinite", b))
    return f.apply("where", endless, f.constant(math.inf), sized)


def _product_with(function: str) -> Rule:
    """xlogy: self · log(other), 0 where self is 0, unless other is NaN; xlog1py likewise."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        x, y = given["self"], given["other"]
        product = f.apply("multiply", x, f.apply(function, y))
        nothing = f.apply("and", f.apply("is_not", x), f.apply("eq", y, y))
        return f.apply("where", nothing, f.constant(0.0), product)

    return rule


def _log_add_exp(exponential: str, logarithm: str, scale: float) -> Rule:
    """m + log(1 + exp(l - m)) of the greater and the lesser one."""

    def rule(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
        a, b = given["self"], given["other"]
        most = f.apply("maximum", a, b)
        less = f.apply("negate", f.apply("absolute", f.apply("subtract", a, b)))
        term = f.apply(logarithm, f.apply(exponential, less))
        if scale != 1:
            term = f.apply("multiply", term, f.constant(scale))
        same = f.apply("and", f.apply("eq", a, b), f.apply("is_infinite", a))
        return f.apply("where", same, a, f.apply("add", most, term))

    return rule


def _copysign(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    size = f.apply("absolute", given["self"])
    return f.apply("where", f.apply("is_negative", given["other"]), f.apply("negate", size), size)


def _heaviside(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    x = given["self"]
    above = f.apply("gt", x, f.constant(0.0))
    return f.apply("where", f.apply("eq", x, f.constant(0.0)), given["values"], above)


def _logit(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    x, one = given["self"], f.constant(1.0)
    if (margin := given["eps"]) is not None:
        x = f.apply("minimum", f.apply("maximum", x, margin), f.apply("subtract", one, margin))
    return f.apply("log", f.apply("divide", x, f.apply("subtract", one, x)))


def _nan_to_num(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    x, greatest = given["self"], f.constant((2 - 2.0**-15) * 2.0**127)
    numbers = {name: given[name] for name in ("nan", "posinf", "neginf")}
    if numbers["nan"] is None:
        numbers["nan"] = f.constant(0.0)
    if numbers["posinf"] is None:
        numbers["posinf"] = greatest
    if numbers["neginf"] is None:
        numbers["neginf"] = f.apply("negate", greatest)
    infinite = f.apply("where", f.apply("is_negative", x), numbers["neginf"], numbers["posinf"])
    finite = f.apply("where", f.apply("is_infinite", x), infinite, x)
    return f.apply("where", f.apply("is_nan", x), numbers["nan"], finite)


def _scaled_by(factor: float) -> Rule:
    return lambda f, given: f.apply("multiply", given["self"], f.constant(factor))


def _atan2(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    """atan(y / x), and half a turn by the sign of y where x is below 0."""
    y, x = given["self"], given["other"]
    ratio = f.apply("divide", y, x)
    sized = f.apply("and", f.apply("is_infinite", y), f.apply("is_infinite", x))
    ones = f.apply("multiply", f.apply("sign", y), f.apply("sign", x))
    none = f.apply("and", f.apply("is_not", y), f.apply("is_not", x))
    ratio = f.apply("where", sized, ones, f.apply("where", none, y, ratio))
    angle = f.apply("atan", ratio)
    half = f.constant(math.pi)
    turned = f.apply("where", f.apply("is_negative", y), f.apply("negate", half), half)
    behind = f.apply("where", none, turned, f.apply("add", angle, turned))
    return f.apply("where", f.apply("is_negative", x), behind, angle)


def _where(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    return f.apply("where", given["condition"], given["self"], given["other"])


def _masked_fill(f: FormulaBuilder, given: Mapping[str, Any]) -> int:
    return f.apply("where", given["mask"], given["value"], given["self"])


def _handled(rule: Rule) -> Handler:
    return lambda draft, node: express(draft, node, rule)


def _of_scores(rule: Rule) -> Handler:
    """where and masked_fill, which also mask the scores of an attention."""

    def handle(draft: Draft, node: Node) -> None:
        masks = any(source in draft.partial for source in node.all_input_nodes)
        if masks or not any(draft.knows(source) for source in node.all_input_nodes):
            return self_attention.filled(draft, node)
        try:
            return express(draft, node, rule)
        except Unsupported:
            if any(source in draft.tables for source in node.all_input_nodes):
                raise Unsupported(self_attention.MASK) from None
            mask: Any = arguments(node).get("mask", arguments(node).get("condition"))
            if draft.knows(mask):
                raise
        return index_moves.masked(draft, node)  # the mask tells places apart, not features

    return handle


def _of_truths(rule: Rule) -> Handler:
    """Bitwise calls, of truth values alone."""

    def handle(draft: Draft, node: Node) -> None:
        if node.meta["val"].dtype != torch.bool:
            raise Unsupported("it changes bits of integers; only truth values can be compiled")
        return express(draft, node, rule)

    return handle


def _bounded(rule: Rule) -> Handler:
    """clamp, maximum and minimum: with numbers alone as operations of their own."""

    def handle(draft: Draft, node: Node) -> None:
        x, *others = node.args
        bounds = [*others, *node.kwargs.values()]
        numbers = (
            not isinstance(bound, Node)
            or (bound in draft.constants.tensors and draft.constants.tensors[bound].numel() == 1)
            for bound in bounds
        )
        plain = _PLAIN.get(node.target, node.target)
        if draft.knows(x) and all(numbers) and plain in activations.CALLS:
            return activations.CALLS[plain](draft, node)
        return express(draft, node, rule)

    return handle


def _quotient(draft: Draft, node: Node) -> None:
    """A quotient of two values, if it is not half of an operation; other quotients are products."""
    a, b = node.args[:2]
    halves = a in draft.partial or b in draft.partial
    if halves or (not draft.knows(b) and b not in draft.tables):
        return arithmetic.CALLS[aten.div.Tensor](draft, node)
    if b not in draft.tables and arithmetic.is_softsign(draft, a, b):
        return arithmetic.CALLS[aten.div.Tensor](draft, node)
    return express(draft, node, _by_name("divide"))


def _powers(draft: Draft, node: Node) -> None:
    """Squares and the cube of a GELU are operations of their own; other powers are expressions."""
    x, exponent = node.args[:2]
    if not isinstance(exponent, int | float):
        raise Unsupported("its power is computed at run time; only a number can be compiled")
    cubes = exponent == 3 and any(
        user.target in arithmetic.PRODUCTS and _is_near(user.args, CUBIC) for user in node.users
    )
    if x in draft.partial or exponent == 2 or cubes:
        return arithmetic.CALLS[aten.pow.Tensor_Scalar](draft, node)
    return express(draft, node, lambda f, given: power(f, given["self"], exponent))


def _is_near(values: Any, number: float) -> bool:
    return any(isinstance(value, float) and abs(value / number - 1) < 1e-6 for value in values)


def _overloads(name: str, *kinds: str) -> list[Any]:
    """The overloads of a call, in place too, that torch has."""
    packets = [getattr(aten, spelling, None) for spelling in (name, f"{name}_")]
    found = []
    for packet in packets:
        for kind in kinds or (packet.overloads() if packet is not None else ()):
            if packet is not None and kind in packet.overloads() and "out" not in kind:
                found.append(getattr(packet, kind))
    return found


_PLAIN = {
    aten.max.other: aten.maximum.default,
    aten.min.other: aten.minimum.default,
    aten.clip.default: aten.clamp.default,
    aten.clip_.default: aten.clamp_.default,
    aten.clip.Tensor: aten.clamp.Tensor,
}
_RULES: dict[str, Rule] = {
    **{name: _by_name(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{"not_equal": _by_name("ne"), "less": _by_name("lt")},
    **{"less_equal": _by_name("le"), "greater": _by_name("gt"), "greater_equal": _by_name("ge")},
    **{f"logical_{name}": _by_name(name) for name in ("and", "or", "xor")},
    "logical_not": _by_name("is_not"),
    **{name: _by_name(name) for name in ("sign", "floor", "ceil", "trunc")},
    **{"sgn": _by_name("sign"), "fix": _by_name("trunc"), "round": _by_name("round"), "frac": _fraction},
    **{"isnan": _by_name("is_nan"), "isinf": _by_name("is_infinite"), "isfinite": _by_name("is_finite")},
    "signbit": _by_name("is_negative"),
    **{"fmax": _of_numbers("maximum"), "fmin": _of_numbers("minimum")},
    **{"remainder": _remainder("floor"), "fmod": _remainder("trunc")},
    "floor_divide": _floor_divided,
    **{"addcmul": _addc("multiply"), "addcdiv": _addc("divide"), "lerp": _lerp, "hypot": _hypot},
    **{"xlogy": _product_with("log"), "special_xlogy": _product_with("log")},
    "special_xlog1py": _product_with("log1p"),
    "logaddexp": _log_add_exp("exp", "log1p", 1.0),
    "logaddexp2": _log_add_exp("exp2", "log1p", 1 / math.log(2)),
    **{"copysign": _copysign, "heaviside": _heaviside, "logit": _logit, "special_logit": _logit},
    **{"nan_to_num": _nan_to_num, "atan2": _atan2, "arctan2": _atan2},
    **{"deg2rad": _scaled_by(math.pi / 180), "rad2deg": _scaled_by(180 / math.pi)},
    **{
        alias: _by_name(name)
        for name in FUNCTIONS
        for alias in (f"special_{name}", f"arc{name[1:]}" if name.startswith("a") else "")
        if alias and hasattr(aten, alias)
    },
    "special_expit": _by_name("sigmoid"),
}
CALLS: dict[Any, Handler] = {
    **{call: _handled(rule) for name, rule in _RULES.items() for call in _overloads(name)},
    **dict.fromkeys(_overloads("round", "decimals"), _handled(_round)),
    **dict.fromkeys(
        [
            *_overloads("div", "Tensor_mode", "Scalar_mode"),
            *_overloads("divide", "Tensor_mode", "Scalar_mode"),
        ],
        _handled(_divided),
    ),
    **dict.fromkeys(_overloads("pow", "Tensor_Scalar", "Tensor_Tensor", "Tensor"), _powers),
    **dict.fromkeys(_overloads("add", "Scalar"), _handled(_sum("add"))),
    **dict.fromkeys(_overloads("sub", "Scalar"), _handled(_sum("subtract"))),
    **dict.fromkeys(_overloads("mul", "Scalar"), _handled(_by_name("multiply"))),
    **dict.fromkeys(_overloads("div", "Scalar"), _handled(_by_name("divide"))),
    **{aten.pow_.Scalar: _powers, aten.pow.Scalar: _handled(_to_the_power)},
    **dict.fromkeys(arithmetic.QUOTIENTS, _quotient),
    **dict.fromkeys(
        [*_overloads("where", "self", "ScalarSelf", "ScalarOther", "Scalar")], _of_scores(_where)
    ),
    **dict.fromkeys(_overloads("masked_fill", "Scalar", "Tensor"), _of_scores(_masked_fill)),
    **dict.fromkeys(
        [call for name in ("clamp", "clamp_min", "clamp_max", "clip") for call in _overloads(name)],
        _bounded(_clamp),
    ),
    **dict.fromkeys([aten.maximum.default, aten.max.other], _bounded(_by_name("maximum"))),
    **dict.fromkeys([aten.minimum.default, aten.min.other], _bounded(_by_name("minimum"))),
    **{
        call: _of_truths(_by_name(name))
        for name in ("and", "or", "xor")
        for call in (*_overloads(f"bitwise_{name}", "Tensor", "Scalar"), *_overloads(f"__{name}__", "Tensor"))
    },
    **dict.fromkeys(_overloads("bitwise_not", "default"), _of_truths(_by_name("is_not"))),
}
