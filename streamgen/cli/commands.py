"""The group of commands, with every command in it: a module that adds commands is imported here."""

from streamgen.cli import cards, compiling, embedding, exploration, generation, running  # noqa: F401
from streamgen.cli.group import streamgen as streamgen
