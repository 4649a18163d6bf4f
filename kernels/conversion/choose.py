"""Which method keeps least at each site of a model, within a bound on the error of f'."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.conversion.known import Known
from kernels.conversion.sites import Change, Site, put
from kernels.errors import KernelError
from kernels.functional import activation
from kernels.kernel import MAX_BITS
from kernels.memory.saved import Saved

How = dict[str, Any]
POINTS = 4096
# What invact may be exceeded by and still be called as good: its formulas are within 2 % of the floor themselves.
SLACK = 1.1


@cache
def gradient_error(
    function: str, params: tuple[tuple[str, float], ...], dtype: torch.dtype, how: tuple[Any, ...]
) -> float:
    """Root mean square of the error of f'(x) for x from N(0, 1), by running the kernel in that dtype.

    x: 4096 quantiles, rounded to the dtype; f' is compared with PyTorch's in float64.
    """
    normal = torch.special.ndtri((torch.arange(POINTS, dtype=torch.float64, device="cpu") + 0.5) / POINTS).to(dtype)
    slope = _slope(lambda x: activation(function, x, **dict(how), **dict(params)), normal)
    exact = _slope(lambda x: activation(function, x, method="stock", **dict(params)), normal.double())
    return float((slope.double() - exact).square().mean().sqrt())


def _slope(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.clone().requires_grad_()
        y = run(x)
        (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return slope


def error_of(known: Known, dtype: torch.dtype, how: How) -> float:
    """`gradient_error` of a site."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.autocast("cpu", enabled=False):
        return gradient_error(known.function, tuple(known.params.items()), dtype, tuple(how.items()))


def allowed(known: Known, dtype: torch.dtype, bound: float | None) -> float:
    """The bound on the error of f'; by default that of invact, which is on the floor of the dtype, or of forward-ad."""
    if bound is not None:
        return bound
    try:
        return SLACK * error_of(known, dtype, {"method": "invact"})
    except KernelError:
        return SLACK * error_of(known, dtype, {"method": "forward-ad"})


def candidates(known: Known, dtype: torch.dtype, bound: float | None) -> list[How]:
    """What meets the bound: forward-ad, invact, and fewbit with as few bits as do."""
    limit = allowed(known, dtype, bound)
    meeting: list[How] = []
    others: list[How] = [{"method": "forward-ad"}, {"method": "invact"}]
    for how in others:
        if _meets(known, dtype, how, limit):
            meeting.append(how)
    few: list[How] = [{"method": "fewbit", "bits": bits} for bits in range(1, MAX_BITS + 1)]
    return meeting + [how for how in few if _meets(known, dtype, how, limit)][:1]


def _meets(known: Known, dtype: torch.dtype, how: How, limit: float) -> bool:
    try:
        return error_of(known, dtype, how) <= limit
    except KernelError:  # there is no such table, or parameters do not allow it
        return False


@dataclass(frozen=True)
class Trial:
    """How many bytes each site alone keeps, by its name, when all remember in one way; and the dtypes it keeps."""

    saved: Saved
    alone: dict[str, int]
    dtypes: dict[str, torch.dtype]


Measure = Callable[..., Saved]  # of modules' names that the model does not list, and of what to run it under


def try_out(
    sites: Sequence[Site],
    how: Mapping[str, How],
    measure: Measure,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Trial:
    """Measure a model with `how` at its sites, by name; afterwards all is as before."""
    changes: list[Change] = []
    try:
        for site in sites:
            if site.name in how:
                changes += put(site, **how[site.name])
        acts = {site.module: site.name for site in sites if site.kind == "call" and site.module is not None}
        saved = measure(acts, within())
    finally:
        for change in reversed(changes):
            change.undo()
    alone = dict.fromkeys((site.name for site in sites), 0)
    dtypes: dict[str, torch.dtype] = {}
    for kept in saved.tensors:
        owners = {site.name for site in sites for saver in kept.by if _within(saver.module, site.name)}
        for name in owners:
            if kept.dtype in ("float16", "bfloat16", "float32", "float64"):
                dtypes.setdefault(name, getattr(torch, kept.dtype))
        if len(owners) == 1 and all(_within(saver.module, *owners) for saver in kept.by):
            alone[next(iter(owners))] += kept.bytes
    return Trial(saved, alone, dtypes)


def best(
    sites: Sequence[Site],
    stock: Trial,
    measure: Measure,
    bound: float | None,
) -> dict[str, How]:
    """How each site is to remember, by its name; sites that are to stay as they are say why.

    Four runs are enough for any number of sites: in each all of them remember in one way, and what a site alone keeps
    is told apart.
    """
    exact: How = {"method": "forward-ad"}
    forward_ad = try_out(sites, {site.name: exact for site in sites}, measure)
    meeting = {
        site.name: candidates(site.known, forward_ad.dtypes[site.name], bound)
        for site in sites
        if site.known and site.name in forward_ad.dtypes
    }
    runs = [(exact["method"], forward_ad)]
    for method in ("invact", "fewbit"):
        hows = {name: next((how for how in them if how["method"] == method), exact) for name, them in meeting.items()}
        runs.append((method, try_out(sites, hows, measure)))
    chosen = {}
    for site in sites:
        if site.name not in meeting:
            site.why_not = "it keeps nothing for backward with these inputs"
            continue
        alone = {method: trial.alone[site.name] for method, trial in runs}
        least = min(meeting[site.name], key=lambda how: alone[how["method"]], default=exact)
        if alone[least["method"]] < stock.alone[site.name]:
            chosen[site.name] = least
        else:
            site.why_not = "nothing keeps less within the bound on the error of f'"
    return chosen


def _within(module: str, site: str) -> bool:
    return module == site or module.startswith(site + ".")
