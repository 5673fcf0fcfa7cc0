"""What holds of every format of weights, in numbers and in the hardware of a lane."""

import re
from dataclasses import replace

import numpy as np
import pytest

from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers, QuantisedWeight, quantise, row_sum, scale_bits
from streamgen.numbers.weights import BYTES, DEFAULT, FORMATS, WeightFormat
from streamgen.testing.kernel import check_golden, check_promises
from tests.unit.kernels.matmul.matmul_cases import bounds_of, column, operands, random_bounds

FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)


def weight(seed: int, N: int = 12, K: int = 200) -> np.ndarray:
    """Groups far apart, some zero; the last one is short."""
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.integers(-4, 5, (N, -(-K // 32)))).repeat(32, axis=1)[:, :K]
    found = rng.standard_normal((N, K)) * spread
    found[0, :32] = 0
    found[1] = 0
    return found.astype(np.float32)


def columns_of(form: WeightFormat) -> list[ColumnParams]:
    """Columns of the format alone and, where it is narrow, beside bytes; with minimums where it has them."""
    own = {"formats": (form.name,), "scale_bits": 8 if form.groups else 0, "minimum": form.minimums}
    found = [column(**own), column(**{**own, "n_lanes": 3, "t_lanes": 2})]
    if form.is_narrow:
        both = (form.name, BYTES.name)
        found += [column(**{**own, "formats": both, "n_lanes": 4}), column(**{**own, "scale_bits": 16})]
        found += [column(formats=both, scale_bits=0, n_lanes=1, t_lanes=2)]
    return found


@FORMS
def test_says_what_it_is(form: WeightFormat) -> None:
    assert FORMATS[form.name] is form and form.title
    codes = np.arange(1 << form.code_bits).astype(np.int8 if form.code_bits == 8 else np.int64)
    codes = (codes.astype(np.int64) << 64 - form.code_bits >> 64 - form.code_bits).astype(np.int8)
    integers = form.integers(codes).astype(int)
    assert np.abs(integers).max() == form.greatest
    assert form.multiplicands or np.array_equal(integers, codes)
    assert form.bits(group=32, scale_bits=8, minimum=False) == form.code_bits + (0.25 if form.groups else 0)


def test_tables_have_an_integer_for_each_code() -> None:
    with pytest.raises(ValueError, match=r"^w4 has 3 multiplicands; codes of 4 bits need 16$"):
        replace(DEFAULT, multiplicands=(0, 1, 2))


@FORMS
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_rounded_weights_keep_the_laws_of_the_hardware(form: WeightFormat, bits: int) -> None:
    given = weight(1)
    q = quantise(given, form=form.name, scale_bits=bits)
    assert q.format == form.name and q.codes.dtype == np.int8 and q.codes.shape == given.shape
    assert np.array_equal(q.row_scale, round_f24(q.row_scale.astype(np.float64)))
    low, high = -(1 << form.code_bits - 1), (1 << form.code_bits - 1) - 1
    assert low <= q.codes.min() and q.codes.max() <= high
    assert (q.scale is not None) == bool(form.groups) == (q.group is not None)
    assert (q.minimum is not None) == form.minimums
    for part in (q.scale, q.minimum):
        if part is not None:
            assert q.group is not None and part.shape == (12, -(-200 // q.group))
            assert np.abs(part).max() < 1 << bits - 1 and scale_bits([q]) <= bits
    assert not q.dequantise()[1].any()
    assert row_sum([q]) == np.abs(q.integers()).sum(1).max()
    assert np.array_equal(q.read(slice(3, 5)).integers(), q.integers()[3:5])
    error = np.abs(q.dequantise() - given).max(1)
    # half a step of 127, or of some 8, whose greatest may lie a third above the greatest code
    assert (error <= np.abs(given).max(1) * (0.25 if form.is_narrow else 1 / 250)).all()


@FORMS
def test_numbers_without_a_spread_are_rounded_once(form: WeightFormat) -> None:
    """A view of one number is the weight that its copy is."""
    alike = np.broadcast_to(np.float32(0.3), (4, 100))
    one, other = quantise(alike, form=form.name, group=64), quantise(alike.copy(), form=form.name, group=64)
    assert one.group == other.group
    for name in ("codes", "scale", "minimum", "row_scale"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None and b is None) or np.array_equal(a, b), name


@FORMS
def test_columns_are_golden(form: WeightFormat) -> None:
    """Verilog of the lanes, every code at random and at both ends."""
    for k, params in enumerate(columns_of(form)):
        rng = np.random.default_rng(k)
        cases = []
        for _ in range(2):
            bounds = random_bounds(params, rng)
            cases.append((bounds, operands(params, bounds, rng)))
        bounds = bounds_of(params)
        for sign in (1, -1):
            case = operands(params, bounds, rng)
            integers = form.integers(np.arange(-128, 128).astype(np.int8))
            code = int(np.argmax(sign * integers[128 - (1 << form.code_bits - 1) :][: 1 << form.code_bits]))
            case["i_w"][:] = code - (1 << form.code_bits - 1)
            case["i_x"]["shift"], case["i_x"]["step"], case["i_x"]["code"] = 0, 3, 127
            if "i_s" in case:
                case["i_s"][:] = (1 << params.scale_bits - 1) - 1
            cases.append((bounds, case))
        check_golden(params, cases)
        check_promises(params, *cases[0])


@FORMS
def test_options(form: WeightFormat) -> None:
    assert Numbers(weights=form.name).weight_format("any") == form.name
    assert Numbers(by_layer={"a": form.name}).weight_format("a", "w8") == form.name
    told = ", ".join(map(repr, FORMATS)).rpartition(", ")
    with pytest.raises(ValueError, match=rf"must be None, {re.escape(told[0])} or {told[2]}$"):
        Numbers(weights="w2")


def test_a_column_takes_one_narrow_format() -> None:
    message = f"formats of a column must be one of {', '.join(FORMATS)}, or a narrow one and w8 in this order"
    for formats in ((), ("w3",), ("w8", "w4"), ("w8", "w8"), ("w4", "w4")):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            column(formats=formats)


def test_integers_are_exact() -> None:
    """scale * multiplicand + minimum of w4, in Python's integers."""
    q = quantise(weight(3), form="w4")
    assert isinstance(q, QuantisedWeight) and q.scale is not None and q.minimum is not None
    for n, k in ((0, 0), (3, 199), (11, 64)):
        expected = int(q.codes[n, k]) * int(q.scale[n, k // 32]) + int(q.minimum[n, k // 32])
        assert q.integers()[n, k] == expected
