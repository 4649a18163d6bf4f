"""Convert the activations of a model in place."""

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from kernels.choice import DEFAULT_BITS
from kernels.conversion.choose import How, Measure, Trial, best, error_of, try_out
from kernels.conversion.in_place import Rereads
from kernels.conversion.report import Converted, Report
from kernels.conversion.sites import Change, Site, chosen, fence, find, put
from kernels.errors import KernelError
from kernels.kernel import MAX_BITS, METHODS
from kernels.memory.isolated import on_copies, unchanged
from kernels.memory.measure import faked, recorded
from kernels.memory.saved import Saved
from kernels.stock import KEEPS_OUTPUT

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, OptimizedModule)


def convert(
    model: nn.Module,
    method: str = "auto",
    *,
    inputs: Any = None,
    bits: int | None = None,
    coefficients: str | PathLike[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    max_gradient_error: float | None = None,
) -> Report:
    """Make a model's activations remember less, in place.

    method: "auto", which takes at each site what keeps least of invact, fewbit, forward-ad and stock, or one of those
    for all. inputs: what the model is called with: a tensor, a tuple, or a mapping of keyword arguments; auto needs it,
    others measure with it. The model runs on fake tensors where it can, in training mode, and is left as it was.
    bits, coefficients: of fewbit. include, exclude: names of sites or modules, or patterns with *. max_gradient_error:
    auto's bound on the root mean square error of f'(x) for x from N(0, 1); by default that of invact, which sits on the
    floor that the output's dtype sets.

    Raises KernelError for arguments that cannot be honoured. What cannot be done at one site is in the report.
    """
    _check(model, method, inputs, bits, coefficients, max_gradient_error)
    while isinstance(model, WRAPPERS):
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.module
    sites = find(model)
    wanted = chosen(sites, _patterns(include), _patterns(exclude))
    measure = None if inputs is None else _measuring(model, inputs)
    wanted = _out_of_place(wanted, measure)
    before = None if measure is None else _baseline(wanted, measure)
    if method == "auto" and measure is not None and before is not None:
        hows = best(wanted, before, measure, max_gradient_error)
    else:
        hows = _all(wanted, method, bits, coefficients)
    changes = _install(sites, hows)
    after = None if measure is None else try_out(wanted, {}, measure)
    rows = [_converted(site, hows.get(site.name), before, after) for site in sites]
    totals = (trial.saved if trial is not None else None for trial in (before, after))
    return Report(rows, next(totals), next(totals), changes)


def _check(model: Any, method: Any, inputs: Any, bits: Any, coefficients: Any, bound: Any) -> None:
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if method not in ("auto", *METHODS):
        raise KernelError(f"method must be one of auto, {', '.join(METHODS)}, got {method!r}")
    if not isinstance(inputs, Tensor | tuple | list | Mapping | None):
        raise KernelError(f"inputs must be a tensor, a tuple or a mapping, got {type(inputs).__name__}")
    if method == "auto" and inputs is None:
        raise KernelError(
            "inputs must be given for method='auto', which measures with them, as convert(model, inputs=x); or name a"
            " method, as convert(model, 'invact')"
        )
    if method != "fewbit" and (bits is not None or coefficients is not None):
        raise KernelError(f"bits and coefficients must go with method='fewbit', got method={method!r}")
    if bits is not None and (not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= MAX_BITS):
        raise KernelError(f"bits must be a whole number from 1 to {MAX_BITS}, got {bits!r}")
    if bound is not None:
        if method != "auto":
            raise KernelError(f"max_gradient_error must go with method='auto', got method={method!r}")
        if isinstance(bound, bool | str) or not 0 <= bound < math.inf:
            raise KernelError(f"max_gradient_error must be a number of 0 or more, got {bound!r}")


def _patterns(given: str | Iterable[str] | None) -> list[str] | None:
    if given is None:
        return None
    patterns = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    for one in patterns:
        if not isinstance(one, str):
            raise KernelError(f"include and exclude must be names or patterns, got {one!r}")
    return patterns


def _measuring(model: nn.Module, inputs: Any) -> Measure:
    """A function that says what training with `inputs` keeps, given modules' names that the model does not list."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(one, fsdp.FSDPModule) for one in model.modules()):
        raise KernelError("inputs must be left out after fully_shard, which cannot be measured: convert before it")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    faking = True

    def measure(names: Mapping[nn.Module, str], within: AbstractContextManager[Any] | None = None) -> Saved:
        nonlocal faking
        with unchanged(model), torch.compiler.set_stance("force_eager"):
            if not model.training:  # as it comes from a file; else it is as the user has it
                model.train()
            if faking:
                try:
                    return faked(model, args, kwargs, names, within)
                except Exception:  # whatever it is, it comes again if it was not for the fakes
                    faking = False
            with on_copies(model):
                return recorded(model, args, kwargs, names, within)

    return measure


def _out_of_place(sites: list[Site], measure: Measure | None) -> list[Site]:
    """The sites but for those that work in place and of whose input it is not known that nobody reads it again."""
    in_place = [site for site in sites if getattr(site.module, "inplace", False)]
    found: set[str] = set()
    if in_place and measure is not None:
        rereads: list[Rereads] = []

        def within() -> Rereads:
            rereads.append(Rereads({one: site.name for site in in_place for one in [site.stands()]}))
            return rereads[-1]

        try_out(in_place, {site.name: {"method": "forward-ad"} for site in in_place}, measure, within)
        found = rereads[0].found
    for site in in_place:
        if measure is None:
            site.why_not = "it works in place: give inputs, so that it can be seen whether its input is read again"
        elif site.name in found:
            site.why_not = "it works in place, and its input is read again"
    return [site for site in sites if not site.why_not]


def _baseline(sites: list[Site], measure: Measure) -> Trial:
    """Before conversion. Functions called are measured as modules, so that what they keep can be told from the rest."""
    named = {site.name: {"method": "stock"} for site in sites if site.kind != "module"}
    trial = try_out(sites, named, measure)
    return Trial(measure({}), trial.alone, trial.dtypes) if named else trial


def _all(sites: list[Site], method: str, bits: int | None, coefficients: Any) -> dict[str, How]:
    how: How = {"method": method}
    if method == "fewbit":
        how |= {"bits": bits if bits is not None or coefficients is not None else DEFAULT_BITS}
        how |= {"coefficients": coefficients} if coefficients is not None else {}
    for site in sites:
        if method.startswith("invact") and site.function in KEEPS_OUTPUT and site.kind != "call":
            site.why_not = "the stock function keeps no more than its output"
    return {site.name: how for site in sites if not site.why_not}


def _install(sites: list[Site], hows: Mapping[str, How]) -> list[Change]:
    """Put what `hows` says at the sites, all or nothing; a site that cannot have it says why."""
    changes: list[Change] = []
    try:
        for site in sites:
            if site.name in hows:
                try:
                    changes += put(site, **hows[site.name])
                except KernelError as error:
                    site.why_not = str(error)
        for change in [one for one in changes if one.kind == "call"]:
            inside = set(change.place.owner.modules()) - {change.place.owner}
            left = [site for site in sites if site.why_not and site.function == change.place.key]
            changes += fence(site for site in left if inside & {site.module, *(place.owner for place in site.places)})
    except BaseException:
        for change in reversed(changes):
            change.undo()
        raise
    return changes


def _converted(site: Site, how: How | None, before: Trial | None, after: Trial | None) -> Converted:
    if site.why_not or how is None:
        return Converted(site.name, site.function, site.was, site.was, reason=site.why_not or "left")
    now = how["method"] + (f", {how['bits']} bit{'s' * (how['bits'] > 1)}" if how.get("bits") else "")
    now += f", {how['coefficients']}" if how.get("coefficients") else ""
    dtype = after.dtypes.get(site.name) if after is not None else None
    error = None if dtype is None or site.known is None else error_of(site.known, dtype, how)
    alone = [None if trial is None else trial.alone.get(site.name) for trial in (before, after)]
    return Converted(site.name, site.function, site.was, now, alone[0], alone[1], error)
