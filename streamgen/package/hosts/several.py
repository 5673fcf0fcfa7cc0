"""Run the models in this folder on one board.

    python host.py MODEL --help

Each model has its own program in its folder. One process can open several models. They share the board and
take turns on it.
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
