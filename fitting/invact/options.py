"""How the command's options for the engines and the rule become values."""

import argparse
import math
from pathlib import Path

from fitting import options as shared
from fitting.errors import InputError
from fitting.invact import hall_of_fame, papers
from fitting.invact.engines import DEFAULT, Settings, chosen
from fitting.invact.template import Template, constants_of, parse_template

MAX_SEED = 2**31 - 1
# option -> the engines that have a use for it
USERS = {
    "seed": ("template", "operon", "pysr"),
    "budget": ("template", "operon", "pysr"),
    "timeout": ("pysr",),
    "template": ("template",),
}


def settings(options: argparse.Namespace) -> Settings:
    """What goes to the engines. Raises `InputError` for what the chosen ones have no use for, too."""
    asked = engines(options)
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
    if asked == (papers.ENGINE,):
        for name in ("max_error", "import_pysr"):
            if getattr(options, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} goes with engines that fit, got {papers.ENGINE}")
    imported = None if options.import_pysr is None else Path(options.import_pysr)
    if imported is not None:
        hall_of_fame.read(imported)  # what is wrong with it is said before the work
    return Settings(seed, budget, imported, _templates(options), timeout)


def engines(options: argparse.Namespace) -> tuple[str, ...]:
    """Those that --engine names."""
    return DEFAULT if options.engine is None else chosen(options.engine)


def _templates(options: argparse.Namespace) -> tuple[Template, ...]:
    """The user's templates; each takes the --start values of the constants that it has."""
    start: dict[str, float] = {}
    for text in options.start:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key in start:
            raise InputError(f"start must be NAME=VALUE, each name once, got {text!r}")
        start[key] = shared.number(f"start {key}", value)
    if start and not options.template:
        raise InputError("--start goes with --template")
    found: list[Template] = []
    used: set[str] = set()
    for number, text in enumerate(options.template, 1):
        own = {key: value for key, value in start.items() if key in constants_of(text)}
        parse_template(text, own, limit=1.0)  # only to see that it can be read
        found.append(Template(f"template {number}", text, own))
        used |= own.keys()
    for key in start:
        if key not in used:
            raise InputError(f"start must give values to constants of a template, got {key!r}")
    return tuple(found)


def max_error(options: argparse.Namespace) -> float | None:
    """What --max-error allows; None where the dtype's own rule holds."""
    if options.max_error is None:
        return None
    limit = shared.number("max-error", options.max_error)
    if not 0 < limit < math.inf:
        raise InputError(f"max-error must be positive and finite, got {limit:g}")
    return limit
