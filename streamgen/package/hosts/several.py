"""Runs the models in this folder on a board, which holds all of them.

    python host.py MODEL --help

Each model has a program of its own in its folder. One process can have several of them open: they share the
board, and a model that waits leaves it to the others.
"""

import runpy
from pathlib import Path

import click

from streamgen.runtime.card import Card

HERE = Path(__file__).resolve().parent


@click.group()
def main() -> None:
    """Run a model of this folder on a board."""


for model in Card.read(HERE).models:
    main.add_command(runpy.run_path(str(HERE / model / "host.py"))["main"], model)

if __name__ == "__main__":
    main()
