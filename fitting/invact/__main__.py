"""actfit invact --fn silu --dtype bfloat16: f' from the stored output; fit, print, prove and store it."""

from actfit.coefficients import command

if __name__ == "__main__":
    command.exit_on_interrupt()  # before the imports, which take most of the time

from actfit.coefficients.schema import CoefficientError
from actfit.fitting.errors import InputError
from actfit.fitting.invact.arguments import PUBLISHED, check, check_max_error, parser

if __name__ == "__main__":
    command.early("invact", lambda: check(parser().parse_args()), (InputError,))

import argparse
import math
import sys
from contextlib import closing
from pathlib import Path

from tqdm import tqdm

from actfit.coefficients.document import dumps, seal
from actfit.fitting import options as shared
from actfit.fitting.activations import Activation
from actfit.fitting.invact import document, report
from actfit.fitting.invact.engines import DEFAULT, Settings, parse_engines
from actfit.fitting.invact.engines.papers import Template
from actfit.fitting.invact.engines.template import constants_of, parse_template
from actfit.fitting.invact.formats import FORMATS
from actfit.fitting.invact.solve import DEFAULT_WEIGHT, Fit, fit
from actfit.fitting.invact.sweep import shipped, sweep
from actfit.fitting.invact.symbolic.equations import read_hall_of_fame
from actfit.fitting.weights import parse_weight

MAX_SEED = 2**31 - 1
# option -> the engines that use it
USERS = {
    "seed": ("template", "operon", "pysr"),
    "budget": ("template", "operon", "pysr"),
    "timeout": ("pysr",),
    "template": ("template",),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; raises `InputError` for bad input, SystemExit(2) for unknown options."""
    options = parser().parse_args(arguments)
    check(options)
    settings = _settings(options)
    if options.all:
        return _all(options, settings)
    out = None if options.out in (None, "-") else command.output_path("out", options.out)
    if options.plot is not None:
        # Here and not at the top: matplotlib takes as long to import as all the rest.
        from actfit.fitting import plots

        plot = command.output_path("plot", options.plot)
        plots.check_path(plot)
    result = _fit(shared.activation(options), options, settings)
    if options.plot is not None:
        plots.save(plots.invact_figure(result), plot)
    if options.out == "-":
        print(dumps(seal(document.to_document(result), 1)), end="")
        return command.GOOD
    text, where = shared.deliver(document.to_document(result), document.file_name(result), out, options.root)
    if not options.quiet:
        _print(result, options, text, where)
    return command.GOOD


def _fit(activation: Activation, options: argparse.Namespace, settings: Settings) -> Fit:
    """The fit, with a bar that counts the problems that engines have solved."""
    weight = parse_weight(DEFAULT_WEIGHT if options.weight is None else options.weight)
    with tqdm(unit="problem", disable=True if options.quiet else None, leave=False) as bar:

        def progress(done: int, count: int, text: str) -> None:
            bar.total = count
            bar.set_postfix_str(text)
            bar.update(done - bar.n)

        return fit(
            activation,
            options.dtype,
            bits=1 if options.bits is None else int(options.bits),
            engines=_engines(options),
            weight=weight,
            max_error=_max_error(options),
            settings=settings,
            progress=progress,
        )


def _print(result: Fit, options: argparse.Namespace, text: str, where: str) -> None:
    match options.format:
        case "json":
            print(text, end="")
        case "csv":
            print(report.as_csv(result))
        case "latex":
            print(report.as_latex(result))
        case _:
            print(report.as_table(result, options.front))
            print(f"file    {where}")
            if options.plot is not None:
                print(f"plot    wrote {options.plot}")


def _all(options: argparse.Namespace, settings: Settings) -> int:
    jobs = shared.jobs(options.jobs)
    engines, limit = _engines(options), _max_error(options)
    tasks = shipped(tuple(FORMATS) if options.dtype is None else (options.dtype,), engines)
    weight = parse_weight(DEFAULT_WEIGHT if options.weight is None else options.weight)
    written, exact = 0, 0
    no_bar = True if options.quiet else None  # None: where stderr is no terminal
    with (
        closing(sweep(tasks, engines, weight, limit, settings, jobs, options.scheduler)) as fits,
        tqdm(fits, total=len(tasks), unit="file", disable=no_bar, leave=False) as progress,
    ):
        for fitted in progress:
            published = shared.stored(fitted.document, fitted.name, options.root)
            written += published.written
            exact += all(branch["engine"] == "closed" for branch in fitted.document["solution"]["branches"])
            if not options.quiet:
                progress.write(report.as_line(fitted.document, str(published.path)))
    if not options.quiet:
        unchanged = len(tasks) - written
        print(f"{len(tasks)} files: {written} written, {unchanged} unchanged; {exact} of them closed forms")
    return command.GOOD


def _settings(options: argparse.Namespace) -> Settings:
    """The settings of the engines. Raises `InputError` for bad values, and for options that no engine uses."""
    asked = _engines(options)
    seed = 0 if options.seed is None else shared.whole("seed", options.seed)
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
    budget = None if options.budget is None else shared.whole("budget", options.budget)
    if budget is not None and budget < 1:
        raise InputError(f"budget must be at least 1, got {budget}")
    timeout = None if options.timeout is None else shared.number("timeout", options.timeout)
    if timeout is not None and not 0 < timeout < math.inf:
        raise InputError(f"timeout must be positive and finite, got {timeout:g}")
    for name, users in USERS.items():
        if getattr(options, name) not in (None, []) and not {*users} & {*asked}:
            raise InputError(f"--{name} goes with --engine {' or '.join(users)}, got {','.join(asked)}")
    if asked == (PUBLISHED,):
        for name in ("max_error", "import_pysr"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} goes with engines that fit, got {PUBLISHED}")
    imported = None if options.import_pysr is None else Path(options.import_pysr)
    if imported is not None:
        read_hall_of_fame(imported)  # to refuse a bad file before the work
    return Settings(seed, budget, imported, _templates(options), timeout)


def _engines(options: argparse.Namespace) -> tuple[str, ...]:
    """The engines that --engine names."""
    return DEFAULT if options.engine is None else parse_engines(options.engine)


def _templates(options: argparse.Namespace) -> tuple[Template, ...]:
    """The user's templates, each with the --start values of its own constants."""
    start = shared.named_numbers("start", options.start)
    if start and not options.template:
        raise InputError("--start goes with --template")
    templates: list[Template] = []
    used: set[str] = set()
    for number, text in enumerate(options.template, 1):
        own = {key: value for key, value in start.items() if key in constants_of(text)}
        parse_template(text, own, limit=1.0)  # to refuse a bad template before the work
        templates.append(Template(f"template {number}", text, own))
        used |= own.keys()
    for key in start:
        if key not in used:
            raise InputError(f"start must give values to constants of a template, got {key!r}")
    return tuple(templates)


def _max_error(options: argparse.Namespace) -> float | None:
    """The error that --max-error allows; None if the dtype's own rule holds."""
    return shared.checked("max-error", options.max_error, check_max_error)


def run(arguments: list[str] | None = None) -> int:
    """`main` as a command: its exit status, whatever happens."""
    return command.run("invact", lambda: main(arguments), (InputError, CoefficientError))


if __name__ == "__main__":
    sys.exit(run())
