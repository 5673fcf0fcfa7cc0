"""streamgen package | emulate | cocotb."""

from pathlib import Path
from typing import cast

import click

from streamgen.base.extras import needed
from streamgen.base.files import read_array
from streamgen.base.wording import counted
from streamgen.cli.group import progress_line, streamgen


@streamgen.command(short_help="Turn written folders into kernels for a card.")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="New folder for the package."
)
@click.option("--name", help="Name of the binary.  [default: the name of the model, or card for several]")
@click.option("--files-only", is_flag=True, help="Run neither vivado nor v++, even if they are on PATH.")
def package(folders: tuple[Path, ...], output: Path, name: str | None, files_only: bool) -> None:
    """Write all files that a card and the vendor's tools need: Verilog, kernel.xml, a Vivado script, the
    linker configuration, weights, a Makefile and a host program.

    `streamgen compile` or `streamgen generate -o` wrote each FOLDER. Several folders become kernels of one
    binary and share the card. If vivado and v++ are on PATH, they run next, which takes hours. Otherwise the
    command prints what to run.

    \b
    Examples:
      streamgen package mlp -o mlp-card
      streamgen package mlp -o mlp-card --files-only
      streamgen package mlp smollm2 -o card
    """
    from streamgen import package as packages

    tools = None if files_only else packages.find_tools(packages.board_of_folder(folders[0]))
    place = packages.package(folders, output, name)
    click.echo(f"written to {place}")
    if tools is not None:
        with progress_line() as progress:
            binary = packages.build(place, tools, progress)
        click.echo(f"built {binary}")
        return
    click.echo("To build it with vivado and v++ on PATH, run `make` in that folder, or these commands")
    click.echo("\n".join([f"in {place}:", *(f"  {step.command}" for step in packages.steps_of(place))]))


@streamgen.command(
    short_help="Run a host program on an emulated card.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("package", type=click.Path(path_type=Path))
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def emulate(context: click.Context, package: Path, script: Path, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT, a host program in Python, with its ARGUMENTS. XRT is the real library. The card is the
    simulator of PACKAGE, which `streamgen package` wrote. The program finds the binary in PACKAGE/emulation.
    The exit status is the program's.

    \b
    Examples:
      streamgen emulate mlp-card mlp-card/host.py -i x.npy -o y.npy
    """
    from streamgen.package.emulation import emulate as run_emulated

    if not script.is_file():
        raise FileNotFoundError(f"{script} is not a file; SCRIPT must be a host program in Python")
    with progress_line() as progress:
        progress("building the simulator")
        code = run_emulated(package, [str(script), *arguments], progress=progress)
    context.exit(code)


@streamgen.command(short_help="Write and run a cocotb bench of a package.")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "-i", "--input", "inputs", multiple=True, type=click.Path(path_type=Path),
    help="Array of an input, or the ids of a language model (.npy). Once for each input. The default is "
         "random numbers.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of random inputs and stalls.")
@click.option(
    "--simulator", default="verilator", show_default=True, type=click.Choice(["verilator", "icarus"]),
    help="Simulator that runs the bench. The Makefile of the bench takes every simulator of cocotb.",
)  # fmt: skip
@click.option("--test", metavar="REGEX", help="Run only the tests whose names match.")
@click.option("--files-only", is_flag=True, help="Write the bench and do not run it.")
def cocotb(
    package: Path, inputs: tuple[Path, ...], seed: int, simulator: str, test: str | None, files_only: bool
) -> None:
    """Write a cocotb bench of PACKAGE to PACKAGE/cocotb and run it. `streamgen package` wrote PACKAGE. If the
    folder already has a bench, that bench runs.

    The bench compares the kernel with recorded runs of the simulated device. cocotbext-axi plays the host and
    the memory. `make` in the folder of the bench runs it on your own simulator, also with a netlist that you
    built.

    \b
    Examples:
      streamgen cocotb mlp-card
      streamgen cocotb mlp-card --simulator icarus --test reset --seed 3
    """
    with needed("this command"):
        from streamgen.package.cosim import Simulator, run_bench, write_bench
        from streamgen.package.cosim.folder import BENCH
        from streamgen.package.folder import packaged

    with progress_line() as progress:
        if not any((folder / BENCH).exists() for folder, _ in packaged(package)):
            arrays = [read_array(file) for file in inputs] or None
            progress("building the simulator")
            for place in write_bench(package, arrays, seed, progress):
                progress("")
                click.echo(f"written to {place}")
        elif inputs:
            raise click.UsageError(f"{package} already has a bench; remove it to record other inputs")
        if files_only:
            return
        progress(f"running the bench on {simulator}")
        passed = run_bench(package, cast(Simulator, simulator), seed, test)
    for place, count in passed.items():
        click.echo(f"{place}: {counted(count, 'test')} passed on {simulator}")
