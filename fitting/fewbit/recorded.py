"""actfit fewbit --record MODULE:FUNCTION: a table for each activation of a user's model, from its inputs.

The model runs in a process of its own, `actfit record`: fits need no PyTorch, and this package does not
import `kernels`. What passes from one to the other are files, as --weight takes them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from actfit.coefficients import command
from actfit.coefficients.schema import Document
from actfit.fitting import options as shared
from actfit.fitting.activations import Activation
from actfit.fitting.errors import InputError
from actfit.fitting.fewbit import document, report
from actfit.fitting.fewbit.options import bits, budget, domain, output_weight
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.joint import document as joint_document
from actfit.fitting.joint import report as joint_report
from actfit.fitting.joint.solve import fit_joint
from actfit.fitting.weights import Weight, parse_weight


def tables(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    """Run the command with checked options; `show` prints. Returns its exit status; raises `InputError`."""
    activation, folder = shared.activation(options), Path(options.out)
    recording = subprocess.run(_command(options, activation), stdout=subprocess.PIPE, text=True, check=False)
    if recording.returncode < 0:
        raise InputError(f"record must run to its end, got signal {-recording.returncode} in {options.record}")
    if recording.returncode:
        return recording.returncode  # it has said why
    samples: dict[str, str] = json.loads(recording.stdout)
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with tqdm(samples.items(), unit="table", disable=no_bar, leave=False) as bar:
        for site, path in bar:
            out = folder / f"{site}.json"
            made, line = _fitted(options, activation, parse_weight(str(Path(path).absolute())), out)
            shared.deliver(made, "", out, None)
            if not options.quiet:
                bar.write(line)
    if not options.quiet and not options.joint:
        first = str(folder / f"{next(iter(samples))}.json")  # each serves its own place
        show(f"actfit.functional.activation({activation.name!r}, x, method='fewbit', coefficients={first!r})")
    return command.GOOD


def _command(options: argparse.Namespace, activation: Activation) -> list[str]:
    quiet = ["--quiet"] * options.quiet
    words = [options.record, "--fn", activation.name, "--out", options.out, "--format", "json", *quiet]
    return [sys.executable, "-m", "actfit.kernels.record", *words]


def _fitted(options: argparse.Namespace, activation: Activation, weight: Weight, out: Path) -> tuple[Document, str]:
    """The document of a fit, and a line about it."""
    count, ends = bits(options), domain(options)
    if options.joint:
        code = fit_joint(activation, count, output_weight=output_weight(options), weight=weight, domain=ends)
        return joint_document.to_document(code), joint_report.as_line(code, str(out))
    table = fit(activation, count, levels=options.levels, weight=weight, domain=ends, budget=budget(options))
    return document.to_document(table), report.as_line(table, str(out))
