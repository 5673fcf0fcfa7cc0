"""Check that the Verilog of a written folder only describes hardware.

A simulator is a program made from Verilog, and Verilog can run commands (`$system`), call C++ (`$c`, DPI) and
read and write files (`$readmemh`, `include`). The text is read token by token, as a preprocessor reads it:
comments, strings, escaped names, directives, words with a dollar sign. A directive or a word with a dollar
sign is allowed only if it is known to compute a value from its arguments, or to have no effect outside of the
text.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from streamgen.base.errors import CheckpointError

FUNCTIONS = (
    *("$bits", "$clog2", "$countones", "$dimensions", "$high", "$increment", "$isunknown", "$left", "$low"),
    *("$onehot", "$onehot0", "$right", "$signed", "$size", "$unpacked_dimensions", "$unsigned"),
)
DIRECTIVES = (
    *("`begin_keywords", "`celldefine", "`default_nettype", "`define", "`else", "`elsif", "`end_keywords"),
    *("`endcelldefine", "`endif", "`ifdef", "`ifndef", "`nounconnected_drive", "`resetall", "`timescale"),
    *("`unconnected_drive", "`undef"),
)
MACRO = re.compile(r"`define[ \t]+([A-Za-z_]\w*)", re.ASCII)
TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?\*/ )
    | (?P<string>  "(?:[^"\\\n]|\\.)*"(?!") )
    | (?P<escaped> \\[^\s]+ )
    | (?P<word>    [A-Za-z_][\w$]* )
    | (?P<number>  \d[\w]* )
    | (?P<dollar>  \$[\w$]* )
    | (?P<tick>    `[\w$]* )
    | (?P<broken>  /\* | " )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def require_harmless(files: Mapping[Path, bytes]) -> None:
    """Raise CheckpointError with file and line of the first word that may do more than describe hardware."""
    texts = {path: content.decode(errors="replace") for path, content in files.items()}
    macros = {f"`{name}" for text in texts.values() for name in MACRO.findall(text)}
    for path, text in texts.items():
        before = ""
        for token in TOKEN.finditer(text):
            kind, word = token.lastgroup, token[0]
            if kind == "comment":
                continue
            if reason := _harm(kind, word, before, macros):
                line = text.count("\n", 0, token.start()) + 1
                raise CheckpointError(
                    f"{path}:{line}: {word[:40]!r} {reason}. The Verilog of a written folder may only "
                    f"describe hardware: allowed are {', '.join(FUNCTIONS)} and its own macros"
                )
            before = word


def _harm(kind: str | None, word: str, before: str, macros: set[str]) -> str:
    if kind == "dollar" and word not in FUNCTIONS:
        return "may run commands, or read and write files"
    if kind == "tick" and word not in DIRECTIVES and word not in macros:
        return "is a directive that may include other text"
    if kind == "string" and before in ("import", "export"):
        return "calls C functions"
    if kind == "broken":
        return "does not end"
    return ""
