"""actfit record mypackage.models:build --out DIR: what each activation of a model is given, as samples."""

from actfit.coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from actfit.kernels.errors import KernelError
from actfit.kernels.record.options import check, parser

if __name__ == "__main__":
    command.early("record", lambda: check(parser().parse_args()), (KernelError,))
    command.exit_without("torch", "record", "pip install torch triton")

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch

from actfit.coefficients import progress
from actfit.kernels.memory.making import line, user_model
from actfit.kernels.record.histograms import Histogram, recorded

SEED = 0  # of the model's weights, its inputs and its dropout, where the function does not set its own


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; raises KernelError for bad input."""
    options = parser().parse_args(arguments)
    check(options)
    with progress.shown(options.quiet) as report:
        histograms = _histograms(options.model, report)
    if options.fn is not None:
        selected = {site: each for site, each in histograms.items() if site.rpartition(".")[2] == options.fn}
    else:
        selected = histograms
    if not selected:
        called = ", ".join(sorted({site.rpartition(".")[2] for site in histograms})) or "none"
        raise KernelError(f"{options.model} must call {options.fn or 'a function of the catalogue'}, got {called}")
    paths = _written(selected, Path(options.out))
    if options.format == "json":
        print(json.dumps(paths, indent=1))
    else:
        width = max(map(len, paths))
        for site, path in paths.items():
            print(f"{site:{width}}  {selected[site].counts.sum():>12,} inputs  {path}")
    return command.GOOD


def _histograms(name: str, report: Callable[[str], object]) -> dict[str, Histogram]:
    """Of all activations that one forward calls, by site."""
    torch.manual_seed(SEED)
    with redirect_stdout(sys.stderr):  # what the user's code prints is no part of the result
        report(f"builds {name}")
        model, args, kwargs = user_model(name, None)
        report("runs the model")
        try:
            with torch.no_grad(), recorded(model) as histograms:
                model(*args, **kwargs)
        except Exception as error:
            raise KernelError(f"{name} must give a model that runs with its inputs, got {line(error)}") from error
    return {site: histogram for site, histogram in histograms.items() if histogram.counts.any()}


def _written(histograms: dict[str, Histogram], folder: Path) -> dict[str, str]:
    """Write a file for each site, and return their paths by site."""
    paths = {site: folder / f"{site}.npy" for site in histograms}
    for site, path in paths.items():
        if path.parent != folder:
            raise KernelError(f"names of modules must do as names of files, got {site!r}; record in Python")
    folder.mkdir(parents=True, exist_ok=True)
    for site, histogram in histograms.items():
        histogram.save(paths[site])
    return {site: str(path) for site, path in paths.items()}


if __name__ == "__main__":
    sys.exit(command.run("record", main, (KernelError,)))
