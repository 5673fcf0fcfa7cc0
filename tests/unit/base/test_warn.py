"""streamgen.base.warn: warnings name the innermost line outside of streamgen, however deep the call is."""

import warnings

import pytest

from streamgen.base.warn import PACKAGE, warn

INSIDE = {"warn": warn}
exec(  # functions whose code seems to lie in the package
    compile(
        "def first():\n    warn('too small', FutureWarning)\n\ndef second():\n    first()\n",
        str(PACKAGE / "made.py"),
        "exec",
    ),
    INSIDE,
)


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_line_of_the_user(name: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        INSIDE[name]()  # type: ignore[operator]
    (one,) = found
    assert (one.filename, one.category, str(one.message)) == (__file__, FutureWarning, "too small")
    assert one.lineno == test_the_line_of_the_user.__code__.co_firstlineno + 4
