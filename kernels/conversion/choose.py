"""Which method keeps least at each site of a model, within a bound on the error of f'."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from kernels.conversion.changes import Change, Decision, fence, put, undo
from kernels.conversion.known import Known
from kernels.conversion.sites import Site, within
from kernels.conversion.together import Trial, choose_for_all, choose_together, groups
from kernels.errors import KernelError
from kernels.functional import activation
from kernels.memory.saved import Saved, like
from kernels.methods.few_bit import MAX_BITS, FewBit
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.from_output import FromOutput
from kernels.methods.method import Method
from kernels.methods.stock import Stock

POINTS = 4096
IDLE = "it keeps nothing for backward with these inputs: it is not called, works in place, or gets no gradient"
UNSEEN = (
    "it did not run so with these inputs: it is not called, works in place, or not with numbers there is a kernel for"
)
IN_PLACE = "its output is changed in place afterwards, and this way to remember needs it"
# What invact may be exceeded by and still be called as good: its formulas are within 2 % of the floor themselves.
SLACK = 1.1
EXACT = ForwardDerivative()
SMALL = 8  # bytes: no activation


@cache
def derivative_error(function: str, params: tuple[tuple[str, float], ...], dtype: torch.dtype, method: Method) -> float:
    """Root mean square of the error of f'(x) for x from N(0, 1), by running the kernel in that dtype.

    x: 4096 quantiles, rounded to the dtype; f' is compared with PyTorch's in float64.
    """
    normal = torch.special.ndtri((torch.arange(POINTS, dtype=torch.float64, device="cpu") + 0.5) / POINTS).to(dtype)
    derivative = _derivative(lambda x: activation(function, x, **method.arguments(), **dict(params)), normal)
    exact = _derivative(lambda x: activation(function, x, **Stock().arguments(), **dict(params)), normal.double())
    return float((derivative.double() - exact).square().mean().sqrt())


def _derivative(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = run(x)
        (derivative,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return derivative


def error_of(known: Known, dtype: torch.dtype, method: Method) -> float:
    """`derivative_error` of a site."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.autocast("cpu", enabled=False):
        return derivative_error(known.function, tuple(known.params.items()), dtype, method)


def allowed(known: Known, dtype: torch.dtype, bound: float | None) -> float:
    """The bound on the error of f'; by default that of invact, which is on the floor of the dtype, or of forward-ad.

    In float64, too, formulas are those of float32: their error is no rounding there.
    """
    if bound is not None:
        return bound
    if dtype == torch.float64:
        return SLACK * error_of(known, dtype, EXACT)
    try:
        return SLACK * error_of(known, dtype, FromOutput())
    except KernelError:
        return SLACK * error_of(known, dtype, EXACT)


def candidates(known: Known, dtype: torch.dtype, bound: float | None) -> list[Method]:
    """What meets the bound: forward-ad, invact, and fewbit with as few bits as do."""
    limit = allowed(known, dtype, bound)
    meeting: list[Method] = [method for method in (EXACT, FromOutput()) if _meets(known, dtype, method, limit)]
    few = map(FewBit, range(1, MAX_BITS + 1))
    return meeting + [method for method in few if _meets(known, dtype, method, limit)][:1]


def _meets(known: Known, dtype: torch.dtype, method: Method, limit: float) -> bool:
    try:
        return error_of(known, dtype, method) <= limit
    except KernelError:  # there is no such table, or parameters do not allow it
        return False


Measure = Callable[..., Saved]  # of modules' names that the model does not list, and of what to run it under


def try_out(sites: Sequence[Site], methods: Mapping[str, Method], measure: Measure) -> Trial:
    """Measure a model with methods at some of its sites, by name; afterwards all is as before."""
    changes: list[Change] = []
    try:
        for site in sites:
            if site.name in methods:
                put(site, Decision(methods[site.name]), changes)
        fence((site for site in sites if site.name not in methods), changes)
        return look(sites, measure)
    finally:
        undo(changes)


def look(sites: Sequence[Site], measure: Measure) -> Trial:
    """Measure a model as it stands."""
    saved = measure({site.placed: site.name for site in sites if site.kind == "call" and site.placed})
    trial = Trial(saved, dict.fromkeys((site.name for site in sites), 0), {}, {}, set(), set(), {})
    for kept in saved.tensors:
        owners = {site.name for site in sites for saver in kept.by if within(saver.module, site.name)}
        for name in owners:
            if kept.dtype in ("float16", "bfloat16", "float32", "float64"):
                trial.dtypes.setdefault(name, getattr(torch, kept.dtype))
            beside = [saver for saver in kept.by if not within(saver.module, name)]
            others = [f"{like(saver.module) or 'the model'} ({saver.operation})" for saver in beside]
            trial.others.setdefault(name, []).extend(others if kept.bytes > SMALL else [])
        if all(any(within(saver.module, owner) for owner in owners) for saver in kept.by):
            if len(owners) == 1:
                trial.alone[next(iter(owners))] += kept.bytes
            elif owners:
                trial.shared[frozenset(owners)] = trial.shared.get(frozenset(owners), 0) + kept.bytes
        trial.ours.update(saver.module for saver in kept.by if saver.method is not None)
    trial.changed.update(saver.module for saver in saved.changed)
    return trial


def best(
    wanted: Sequence[Site],
    sites: Sequence[Site],
    stock: Trial,
    measure: Measure,
    bound: float | None,
) -> dict[str, Method]:
    """The method of each of the sites wanted, by its name; those that are to stay as they are say why.

    Four runs are enough for any number of sites: in each all of them go by one kind of method, and what a site alone
    saves is told apart.
    """
    first = try_out(sites, {site.name: EXACT for site in wanted}, measure)
    meeting = {
        site.name: [EXACT] if site.known is None else candidates(site.known, first.dtypes[site.name], bound)
        for site in wanted
        if site.name in first.ours
    }
    runs: dict[type[Method], Trial] = {ForwardDerivative: first}
    for kind in (FromOutput, FewBit):
        methods = {name: next((one for one in them if type(one) is kind), EXACT) for name, them in meeting.items()}
        runs[kind] = try_out(sites, methods, measure)
    chosen: dict[str, Method] = {}
    for site in wanted:
        options = {type(method): method for method in meeting.get(site.name, ())}
        possible = [kind for kind in options if site.name not in runs[kind].changed]
        least = min(possible, key=lambda kind: runs[kind].alone[site.name], default=None)
        if site.name not in meeting:
            site.why_not = IDLE
        elif least is None:
            site.why_not = "nothing is within the bound on the error of f'" if not options else IN_PLACE
        elif runs[least].alone[site.name] < stock.alone[site.name]:
            chosen[site.name] = options[least]
        else:
            site.why_not = _no_less(list(dict.fromkeys(stock.others.get(site.name, ()))))
    for group in groups(stock.shared):
        if all(name in meeting for name in group):
            choose_together(group, [site for site in wanted if site.name in group], stock, runs, meeting, chosen)
    if not chosen and meeting:
        choose_for_all(wanted, stock, runs, meeting, chosen)
    return chosen


def _no_less(others: Sequence[str]) -> str:
    reason = "nothing keeps less within the bound on the error of f'"
    return f"{reason}: what it keeps is kept by {' and '.join(others)}, too" if others else reason
