"""Run the accelerator in this folder on a board, with arrays from files and to files.

    python host.py -i x.npy -o y.npy

Arrays have the shape [..., features]. The leading dimensions are tokens, of any number. To write your own
program, follow `main`: open, `run`, close. `make` builds the binary that the program loads onto the board.
"""

from contextlib import closing
from pathlib import Path

import click
import numpy as np

from streamgen.base.errors import StreamgenError
from streamgen.base.files import read_array
from streamgen.runtime.chain import ChainExecution
from streamgen.runtime.xrt import on_board

HERE = Path(__file__).resolve().parent


@click.command()
@click.option(
    "-i",
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Array of an input; once for each input.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File for an output; once for each output.",
)
@click.option("--board", default=0, show_default=True, help="Index of the board in XRT.")
@click.option(
    "--timeout", default=60.0, show_default=True, help="Limit of each run of the hardware, in seconds."
)
def main(inputs: tuple[Path, ...], outputs: tuple[Path, ...], board: int, timeout: float) -> None:
    """Run the accelerator in this folder on a board."""
    try:
        with closing(ChainExecution(HERE, on_board(board))) as accelerator:
            for option, files, wanted in (
                ("--input", inputs, accelerator.inputs),
                ("--output", outputs, accelerator.outputs),
            ):
                if len(files) != len(wanted):
                    names = ", ".join(f"{info.name} {list(info.shape or ())}" for info in wanted)
                    raise click.UsageError(f"{option} must be given once for each of: {names}")
            arrays = [read_array(file) for file in inputs]
            results = accelerator.run(*arrays, timeout=timeout)
            for file, result in zip(outputs, results, strict=True):
                np.save(file, result)
            for group in accelerator.groups:
                cycles, clock = sum(status.cycles for status in group.statuses), group.manifest.clock_mhz
                click.echo(f"{group.manifest.top}: {cycles} cycles, {cycles / clock:.1f} us at {clock:g} MHz")
    except (StreamgenError, ValueError, TypeError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
