"""The rows of a report: the outcome of each site, and activations that ran where there is no site."""

from kernels.conversion import recognise
from kernels.conversion.changes import Decision, Outcomes
from kernels.conversion.check import UNREACHED
from kernels.conversion.decide import IDLE
from kernels.conversion.derivative_error import error_of
from kernels.conversion.measurement import Measurement
from kernels.conversion.report import Converted
from kernels.conversion.sites import AttributeSite, CallSite, Site, within
from kernels.methods.compressed import Compressed

ELSEWHERE = "it is called where convert does not look: in a helper, another method than forward, or in place"


def rows_of(outcomes: Outcomes, before: Measurement | None, after: Measurement | None) -> list[Converted]:
    """A row for each site, except uncertain calls that never ran, and for activations outside of all sites."""
    rows = [
        _row(site, outcome, before, after)
        for site, outcome in outcomes.items()
        if not (isinstance(site, CallSite) and not site.certain and outcome in (IDLE, UNREACHED))
    ]
    left_alone = [site for site, outcome in outcomes.items() if isinstance(outcome, str)]
    return rows if after is None else rows + _rows_elsewhere(left_alone, after)


def _row(site: Site, outcome: Decision | str, before: Measurement | None, after: Measurement | None) -> Converted:
    """The row of a site that was converted or left alone."""
    first, last = (None if run is None else run.alone.get(site.name) for run in (before, after))
    row = (site.name, site.function_name, site.description)
    if isinstance(outcome, str):
        return Converted(*row, site.description, first, last, reason=outcome)
    dtype = after.dtypes.get(site.name) if after is not None else None
    function = None if isinstance(outcome.method, Compressed) else site.function
    error = None if dtype is None or function is None else error_of(function, dtype, outcome.method)
    return Converted(*row, str(outcome.method), first, last, error)


def _rows_elsewhere(left_alone: list[Site], after: Measurement) -> list[Converted]:
    """Activations that saved something after conversion, but belong to no site that was left alone."""
    functions = recognise.names_in_torch()
    counts: dict[tuple[str, str], int] = {}
    for tensor in after.saved.tensors:
        module, function = tensor.by[0].module, functions.get(tensor.by[0].operation)
        if function is None or any(_belongs(site, module, function) for site in left_alone):
            continue
        name = f"{module}.{function}()" if module else f"{function}()"
        counts[name, function] = counts.get((name, function), 0) + tensor.bytes
    return [Converted(*key, "a call", "a call", count, count, reason=ELSEWHERE) for key, count in counts.items()]


def _belongs(site: Site, module: str, function: str) -> bool:
    """Whether a function that saved in a module belongs to the site: by the module's name, or by the owner's."""
    for name in site.names:
        if isinstance(site, AttributeSite | CallSite) and name.rpartition(".")[0] == module:
            if site.function.torch_name == function:
                return True
        elif within(module, name):
            return True
    return False
