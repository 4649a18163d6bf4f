"""Convert the activations of a model in place."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from kernels.approx_backprop.copies import watching
from kernels.approx_backprop.how import How as Copies
from kernels.choice import DEFAULT_BITS, resolved
from kernels.conversion.arguments import check, patterns
from kernels.conversion.changes import Change, fence, put, undo
from kernels.conversion.choose import IDLE, IN_PLACE, UNSEEN, Measure, best, look, try_out
from kernels.conversion.in_place import Rereads
from kernels.conversion.layers import METHOD, OTHERWISE, how_of, is_written, seen, with_layers
from kernels.conversion.report import Report
from kernels.conversion.rows import converted, unreached
from kernels.conversion.sites import Site, chosen, find
from kernels.conversion.together import How, Trial
from kernels.errors import KernelError
from kernels.memory.accounting import CudaLike
from kernels.memory.making import line
from kernels.memory.measure import trial
from kernels.memory.saved import Saved
from kernels.stock import KEEPS_OUTPUT

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, OptimizedModule)


def convert(
    model: nn.Module,
    method: str = "auto",
    *,
    inputs: Any = None,
    bits: int | None = None,
    scheme: str | None = None,
    coefficients: str | PathLike[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    max_gradient_error: float | None = None,
    accounting: str = "as-run",
) -> Report:
    """Make a model's activations remember less, in place.

    method: "auto", which takes at each site what keeps least of invact, fewbit, forward-ad and stock, or one of those
    for all; or "approx-backprop", by which norms, linear layers and convolutions keep few bits, too. inputs: what the
    model is called with: a tensor, a tuple or list of arguments, or a mapping of keyword arguments; auto needs it,
    others measure with it. A copy of the model runs on fake tensors where it can, in training mode. bits: of fewbit
    (default: 3) or approx-backprop (8). coefficients: of fewbit. scheme: of approx-backprop, see
    `kernels.approx_backprop.How` ("robust"). include, exclude: names of sites or modules, or patterns with *.
    max_gradient_error: auto's bound on the root mean square error of f'(x) for x from N(0, 1); by default that of
    invact, which sits on the floor that the output's dtype sets. accounting: as `saved_bytes` has it.

    Raises KernelError for arguments that cannot be honoured. What cannot be done at one site is in the report. Whatever
    is raised, the model is then as it was.
    """
    check(model, method, inputs, bits, scheme, coefficients, max_gradient_error, accounting)
    while isinstance(model, WRAPPERS):
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.module
    measure = None if inputs is None else _measuring(model, inputs, accounting)
    sites = _sites(model, method, measure)
    sites = with_layers(model, sites) if method == METHOD else sites
    wanted = chosen(sites, patterns(include), patterns(exclude))
    wanted = _out_of_place(model, wanted, measure)
    before = None if measure is None else _baseline(sites, wanted, measure)
    if method == "auto" and measure is not None and before is not None:
        hows = best(wanted, sites, before, measure, max_gradient_error)
    else:
        hows = _all(wanted, method, bits, scheme, coefficients)
    changes: list[Change] = []
    try:
        _install(sites, hows, changes)
        if coefficients is not None and wanted and not hows:
            raise KernelError(
                f"coefficients must fit an activation of the model: {wanted[0].name}: {wanted[0].why_not}"
            )
        after = None if measure is None else _mend(sites, wanted, hows, before, measure, changes)
        there = [site for site in sites if not (site.guessed and site.why_not in (IDLE, UNSEEN))]
        rows = [converted(site, hows.get(site.name), before, after) for site in there]
    except BaseException:
        undo(changes)
        raise
    rows += unreached(sites, after)
    totals = (one.saved if one is not None else None for one in (before, after))
    return Report(rows, next(totals), next(totals), changes)


def _measuring(model: nn.Module, inputs: Any, accounting: str) -> Measure:
    """A function that says what training with `inputs` keeps, given modules' names that the model does not list."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(one, fsdp.FSDPModule) for one in model.modules()):
        raise KernelError("inputs must be left out after fully_shard, which cannot be measured: convert before it")
    if torch.is_inference_mode_enabled():
        raise KernelError("convert must measure outside of torch.inference_mode(), where nothing can be kept")
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    training = not model.training  # it comes from a file, then; else modes are as the user has them
    ran = False

    def measure(names: Mapping[nn.Module, str], under: AbstractContextManager[Any] | None = None) -> Saved:
        nonlocal ran
        under = under or (CudaLike() if accounting == "cuda" else None)
        try:
            with torch.compiler.set_stance("force_eager"):
                saved = trial(model, args, kwargs, names, under, training=training)
        except Exception as error:  # of any kind, as the model raises it
            if ran or isinstance(error, KernelError | NotImplementedError | MemoryError | torch.OutOfMemoryError):
                raise
            raise KernelError(f"inputs must be what the model can be called with, got {line(error)}") from error
        ran = True
        return saved

    return measure


def _sites(model: nn.Module, method: str, measure: Measure | None) -> list[Site]:
    """All activations. A module with a function of its own is one where nested forward AD makes it keep less."""
    sites = find(model, lambda _: method in ("auto", "forward-ad"))
    own = [site for site in sites if site.kind == "own" and not site.why_not]
    if not own or measure is None:
        return sites
    stock, nested = look(sites, measure), try_out(own, {site.name: {"method": "forward-ad"} for site in own}, measure)
    less = {site.original for site in own if nested.alone[site.name] < stock.alone[site.name]}
    return find(model, lambda module: module in less)


def _out_of_place(model: nn.Module, sites: list[Site], measure: Measure | None) -> list[Site]:
    """The sites but for those that work in place and of whose input it is not known that nobody reads it again."""
    in_place = [site for site in sites if getattr(site.original, "inplace", False)]
    changes: list[Change] = []
    found: set[str] = set()
    if in_place and measure is not None:
        try:
            for site in in_place:
                put(site, changes, **({"how": Copies()} if site.kind == "layer" else {"method": "forward-ad"}))
            under = Rereads(model, {site.placed: site.name for site in in_place if site.placed is not None})
            measure({}, under)
            found = under.found
        finally:
            undo(changes)
    for site in in_place:
        if measure is None:
            site.why_not = "it works in place: give inputs, so that it can be seen whether its input is read again"
        elif site.name in found:
            site.why_not = "it works in place, and its input is read again"
    return [site for site in sites if not site.why_not]


def _baseline(sites: list[Site], wanted: list[Site], measure: Measure) -> Trial:
    """Before conversion. Functions called are measured as modules, so that what they keep can be told from the rest."""
    named = {site.name: {"method": "stock"} for site in wanted if site.kind in ("attribute", "call")}
    if not named:
        return look(sites, measure)
    return replace(try_out(sites, named, measure), saved=measure({}))


def _all(sites: list[Site], method: str, bits: int | None, scheme: str | None, coefficients: Any) -> dict[str, How]:
    if method == METHOD:
        kept = Copies(Copies.bits if bits is None else bits, Copies.scheme if scheme is None else scheme)
        hows = {site.name: how_of(site, kept) for site in sites}
        return {site.name: hows[site.name] for site in sites if not site.why_not}
    how: How = {"method": method}
    if method == "fewbit":
        how |= {"bits": bits if bits is not None or coefficients is not None else DEFAULT_BITS}
        how |= {"coefficients": resolved(coefficients)} if coefficients is not None else {}
    for site in sites:
        if method.startswith("invact") and site.function in KEEPS_OUTPUT:
            site.why_not = "the stock function keeps no more than its output"
    return {site.name: how for site in sites if not site.why_not}


def _install(sites: list[Site], hows: dict[str, How], changes: list[Change]) -> None:
    """Put what `hows` says at the sites; one that cannot have it says why, and has no `how` any more."""
    for site in sites:
        if site.name in hows:
            try:
                put(site, changes, **hows[site.name])
            except KernelError as error:
                site.why_not = str(error)
                del hows[site.name]
    fence((site for site in sites if site.name not in hows), changes)


def _mend(
    sites: list[Site],
    wanted: list[Site],
    hows: dict[str, How],
    before: Trial | None,
    measure: Measure,
    changes: list[Change],
) -> Trial:
    """What is kept by what was put there; sites that are seen to need it get something else, or back what they had."""
    with watching() as changed:
        after = look(sites, measure)
    failing = _drop_failing(wanted, hows, before, after)
    now_seen = {name: seen(how, changed) for name, how in hows.items()}
    if failing or now_seen != hows:
        hows |= now_seen
        undo(changes)
        _install(sites, hows, changes)
    return look(sites, measure) if failing else after  # what is seen else matters to torch.compile only


def _drop_failing(sites: list[Site], hows: dict[str, How], before: Trial | None, after: Trial) -> bool:
    """Whether there are sites that cannot do as they are to; they say why, and have no `how` any more."""
    failing = len(hows)
    for site in [site for site in sites if site.name in hows]:
        if site.name in after.changed:
            site.why_not = IN_PLACE
        elif site.kind in ("attribute", "call") and site.name not in after.ours:
            site.why_not = UNSEEN
        elif before is not None and _called_otherwise(site, before, after):
            site.why_not = OTHERWISE
        elif before is not None and _lost_in_a_chain(site, hows[site.name], before, after):
            site.why_not = (
                "it is one of a chain of operations, and would keep more by itself; the chain keeps one tensor by"
                " kernels.forward_ad.wrap"
            )
        else:
            continue
        del hows[site.name]
    return len(hows) < failing


def _called_otherwise(site: Site, before: Trial, after: Trial) -> bool:
    """Whether a norm that is written out runs as it did, as one that a gate is given besides."""
    if site.kind != "layer" or not is_written(site.original) or site.name in after.ours:
        return False
    return before.alone[site.name] > 0


def _lost_in_a_chain(site: Site, how: How, before: Trial, after: Trial) -> bool:
    """Whether a function called keeps its derivative, where what it kept before is kept by others, too."""
    lone = site.kind == "call" and how["method"] == "forward-ad"
    return lone and after.alone[site.name] > before.alone[site.name]
