"""streamgen package | emulate | cocotb."""

from pathlib import Path
from typing import cast

import click

from streamgen.base.extras import needed
from streamgen.base.files import read_array
from streamgen.base.wording import counted
from streamgen.cli.group import progress_line, streamgen

__all__: list[str] = []


@streamgen.command(short_help="A written folder to a kernel for the card, in a new folder.")
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="A new folder to write to."
)
@click.option("--name", help="Of the binary.  [default: that of a single model, else card]")
@click.option("--files-only", is_flag=True, help="Run neither vivado nor v++, even where they are on PATH.")
def package(folders: tuple[Path, ...], output: Path, name: str | None, files_only: bool) -> None:
    """Write what a card and the vendor's tools need of each FOLDER, which `compile` or `generate` wrote:
    Verilog, kernel.xml, Vivado's script, the linker's configuration, weights, a Makefile, a host program.
    Several share the card: each is a kernel of one binary, or several kernels where it has groups.

    With vivado and v++ on PATH they are run, which takes hours. Without, it says what to run.

    \b
    examples:
      streamgen package mlp -o mlp-card
      streamgen package mlp -o mlp-card --files-only
      streamgen package mlp smollm2 -o card                two models on one card
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
    click.echo("To build it, where vivado and v++ are on PATH, run `make` there, or")
    click.echo("\n".join([f"in {place}:", *(f"  {step.command}" for step in packages.steps_of(place))]))


@streamgen.command(
    short_help="A package's host program on an emulated card.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("package", type=click.Path(path_type=Path))
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def emulate(context: click.Context, package: Path, script: Path, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT, a host program in Python, with its ARGUMENTS, on the real XRT; the card is the simulator of
    PACKAGE, which `package` wrote. It finds the binary in PACKAGE/emulation. The exit code is the program's.

    \b
    examples:
      streamgen emulate mlp-card mlp-card/host.py -i x.npy -o y.npy
    """
    from streamgen.package.emulation import emulate as run_emulated

    if not script.is_file():
        raise FileNotFoundError(f"{script} is no file; a host program in Python is needed")
    with progress_line() as progress:
        progress("building the simulator")
        code = run_emulated(package, [str(script), *arguments], progress=progress)
    context.exit(code)


@streamgen.command(short_help="A cocotb bench of a package: written, and run.")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "-i", "--input", "inputs", multiple=True, type=click.Path(path_type=Path),
    help="What is run, .npy, once an input; ids for a language model. By default random numbers.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of random inputs, and of the stalls.")
@click.option(
    "--simulator", default="verilator", show_default=True, type=click.Choice(["verilator", "icarus"]),
    help="That runs the bench; its Makefile knows all of cocotb's.",
)  # fmt: skip
@click.option("--test", metavar="REGEX", help="Run only such tests of the bench.")
@click.option("--files-only", is_flag=True, help="Write the bench, do not run it.")
def cocotb(
    package: Path, inputs: tuple[Path, ...], seed: int, simulator: str, test: str | None, files_only: bool
) -> None:
    """Write a cocotb bench of PACKAGE, which `package` wrote, into PACKAGE/cocotb, and run it. cocotbext-axi
    is host and memory. A bench that is there already is run as it is.

    It holds the kernel to runs that are recorded from the simulated device. `make` in that folder runs it on
    your own simulator, and on what you have built of the Verilog.

    \b
    examples:
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
            raise click.UsageError(f"{package} has a bench already; remove it to record other inputs")
        if files_only:
            return
        progress(f"running the bench on {simulator}")
        passed = run_bench(package, cast(Simulator, simulator), seed, test)
    for place, count in passed.items():
        click.echo(f"{place}: {counted(count, 'test')} passed on {simulator}")
