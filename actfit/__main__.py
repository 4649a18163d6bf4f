"""actfit COMMAND …: all commands of the project by one name."""

import argparse
import os
import runpy
import sys
from difflib import get_close_matches

from actfit.coefficients import command

# name -> the module that it runs, the words before the user's, and what it does
COMMANDS = {
    "fewbit": ("fitting.fewbit", (), "fit a few-bit table of an activation's derivative, with a proof"),
    "invact": ("fitting.invact", (), "fit formulas of the derivative in the output"),
    "list": ("coefficients", ("list",), "show the stored fits"),
    "check": ("coefficients", ("check",), "verify stored fits"),
    "emit": ("codegen", ("emit",), "write a Triton or PyTorch module of a function"),
    "inspect": ("codegen", ("inspect",), "compile a kernel without a GPU: instructions, registers"),
    "memory": ("kernels.memory", (), "count what a model saves for backward, plan a budget, see what fits a GPU"),
    "record": ("kernels.record", (), "sample what a model's activations are given"),
}


def main() -> None:
    """Run the command that the first word names."""
    name, words = (sys.argv[1] if sys.argv[1:] else "--help"), sys.argv[2:]
    if name not in COMMANDS:
        _other(name)
    module, before, _ = COMMANDS[name]
    sys.path.append(os.getcwd())  # for --model mymodel:build, as of `python -m`; last, so that it hides no library
    sys.argv[1:] = [*before, *words]
    runpy.run_module(f"actfit.{module}", run_name="__main__", alter_sys=True)


def _other(name: str) -> None:
    """Answer help, version, and words that are no command; ends the process."""
    lines = [f"  {name:8} {what}" for name, (_, _, what) in COMMANDS.items()]
    parser = command.Parser(
        prog="actfit",
        usage="actfit COMMAND ...",
        description="\n".join(["commands, each with a --help of its own:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", help=argparse.SUPPRESS)
    parser.parse_args([name])
    near = "".join(f"; did you mean {close}?" for close in get_close_matches(name, COMMANDS, 1))
    parser.error(f"command must be one of {', '.join(COMMANDS)}, got {name!r}{near}")


if __name__ == "__main__":
    main()
