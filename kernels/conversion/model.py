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

from kernels.approx_backprop.attached import watching
from kernels.conversion.arguments import checked, patterns
from kernels.conversion.changes import Change, Decision, fence, put, undo
from kernels.conversion.choose import EXACT, IDLE, IN_PLACE, UNSEEN, Measure, best, look, try_out
from kernels.conversion.in_place import Rereads
from kernels.conversion.layers import OTHERWISE, is_written, method_at, with_layers
from kernels.conversion.report import Report
from kernels.conversion.rows import converted, unreached
from kernels.conversion.sites import Site, chosen, find
from kernels.conversion.together import Trial
from kernels.errors import KernelError
from kernels.memory.accounting import CudaLike
from kernels.memory.making import line
from kernels.memory.measure import trial
from kernels.memory.saved import Saved
from kernels.methods.auto import Auto
from kernels.methods.compressed import Compressed
from kernels.methods.forward_derivative import ForwardDerivative
from kernels.methods.functions import function_info
from kernels.methods.method import Method
from kernels.methods.stock import Stock
from kernels.stock import KEEPS_OUTPUT

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, OptimizedModule)


def convert(
    model: nn.Module,
    method: str = Auto.name,
    *,
    inputs: Any = None,
    bits: int | None = None,
    scheme: str | None = None,
    coefficients: str | PathLike[str] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    max_derivative_error: float | None = None,
    accounting: str = "as-run",
) -> Report:
    """Make a model's activations save less for backward, in place.

    method: "auto", which takes at each site what keeps least of invact, fewbit, forward-ad and stock, or one of those
    for all; or "approx-backprop", by which norms, linear layers and convolutions keep few bits, too. inputs: what the
    model is called with: a tensor, a tuple or list of arguments, or a mapping of keyword arguments; auto needs it,
    others measure with it. A copy of the model runs on fake tensors where it can, in training mode. bits: of fewbit
    (default: 3) or approx-backprop (8). coefficients: of fewbit. scheme: of approx-backprop, see
    `kernels.approx_backprop.How` ("robust"). include, exclude: names of sites or modules, or patterns with *.
    max_derivative_error: auto's bound on the root mean square error of f'(x) for x from N(0, 1); by default that of
    invact, which sits on the floor that the output's dtype sets. accounting: as `saved_bytes` has it.

    Raises KernelError for arguments that cannot be honoured. What cannot be done at one site is in the report. Whatever
    is raised, the model is then as it was.
    """
    options = {"bits": bits, "scheme": scheme, "coefficients": coefficients}
    asked = checked(model, method, inputs, accounting, max_derivative_error=max_derivative_error, **options)
    while isinstance(model, WRAPPERS):
        model = model._orig_mod if isinstance(model, OptimizedModule) else model.module
    measure = None if inputs is None else _measuring(model, inputs, accounting)
    sites = _sites(model, asked, measure)
    sites = with_layers(model, sites) if isinstance(asked, Compressed) else sites
    wanted = chosen(sites, patterns(include), patterns(exclude))
    wanted = _out_of_place(model, wanted, measure)
    before = None if measure is None else _baseline(sites, wanted, measure)
    if isinstance(asked, Auto) and measure is not None and before is not None:
        methods = best(wanted, sites, before, measure, asked.max_derivative_error)
    else:
        methods = _everywhere(wanted, asked)
    decisions = {name: Decision(method) for name, method in methods.items()}
    changes: list[Change] = []
    try:
        _install(sites, decisions, changes)
        if coefficients is not None and wanted and not decisions:
            raise KernelError(
                f"coefficients must fit an activation of the model: {wanted[0].name}: {wanted[0].why_not}"
            )
        after = None if measure is None else _mend(sites, wanted, decisions, before, measure, changes)
        there = [site for site in sites if not (site.guessed and site.why_not in (IDLE, UNSEEN))]
        methods = {name: decision.method for name, decision in decisions.items()}
        rows = [converted(site, methods.get(site.name), before, after) for site in there]
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


def _sites(model: nn.Module, method: Method, measure: Measure | None) -> list[Site]:
    """All activations. A module with a function of its own is one where nested forward AD makes it keep less."""
    sites = find(model, lambda _: method.serves_any_function)
    own = [site for site in sites if site.kind == "own" and not site.why_not]
    if not own or measure is None:
        return sites
    stock, nested = look(sites, measure), try_out(own, {site.name: EXACT for site in own}, measure)
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
                put(site, Decision(Compressed() if site.kind == "layer" else EXACT, trusted=True), changes)
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
    named = {site.name: Stock() for site in wanted if site.kind in ("attribute", "call")}
    if not named:
        return look(sites, measure)
    return replace(try_out(sites, named, measure), saved=measure({}))


def _everywhere(sites: list[Site], method: Method) -> dict[str, Method]:
    """The method of each site, where one was asked for; sites that cannot have it say why."""
    if isinstance(method, Compressed):
        methods = {site.name: method_at(site, method) for site in sites}
    else:
        methods = dict.fromkeys((site.name for site in sites), method)
        for site in sites:
            if site.function in KEEPS_OUTPUT and method.storage(function_info(site.function)).keeps_output:
                site.why_not = "the stock function keeps no more than its output"
    return {site.name: methods[site.name] for site in sites if not site.why_not}


def _install(sites: list[Site], decisions: dict[str, Decision], changes: list[Change]) -> None:
    """Apply the decisions; a site that cannot have its method says why, and has no decision any more."""
    for site in sites:
        if site.name in decisions:
            try:
                put(site, decisions[site.name], changes)
            except KernelError as error:
                site.why_not = str(error)
                del decisions[site.name]
    fence((site for site in sites if site.name not in decisions), changes)


def _mend(
    sites: list[Site],
    wanted: list[Site],
    decisions: dict[str, Decision],
    before: Trial | None,
    measure: Measure,
    changes: list[Change],
) -> Trial:
    """What is saved after the changes; sites that are seen to need it get another decision, or what they had."""
    with watching() as changed:
        after = look(sites, measure)
    failing = _drop_failing(wanted, decisions, before, after)
    # Under torch.compile nobody will see which results are changed in place: those seen here are not trusted.
    seen = {name: replace(decision, trusted=name not in changed) for name, decision in decisions.items()}
    compressed = any(isinstance(decision.method, Compressed) for decision in decisions.values())
    if failing or compressed:
        decisions |= seen
        undo(changes)
        _install(sites, decisions, changes)
    return look(sites, measure) if failing else after  # what is seen else matters to torch.compile only


def _drop_failing(sites: list[Site], decisions: dict[str, Decision], before: Trial | None, after: Trial) -> bool:
    """Whether there are sites that cannot have their method; they say why, and have no decision any more."""
    count = len(decisions)
    for site in [site for site in sites if site.name in decisions]:
        if site.name in after.changed:
            site.why_not = IN_PLACE
        elif site.kind in ("attribute", "call") and site.name not in after.ours:
            site.why_not = UNSEEN
        elif before is not None and _called_otherwise(site, before, after):
            site.why_not = OTHERWISE
        elif before is not None and _lost_in_a_chain(site, decisions[site.name].method, before, after):
            site.why_not = (
                "it is one of a chain of operations, and would keep more by itself; the chain keeps one tensor by"
                " kernels.forward_ad.wrap"
            )
        else:
            continue
        del decisions[site.name]
    return len(decisions) < count


def _called_otherwise(site: Site, before: Trial, after: Trial) -> bool:
    """Whether a norm that is written out runs as it did, as one that a gate is given besides."""
    if site.kind != "layer" or not is_written(site.original) or site.name in after.ours:
        return False
    return before.alone[site.name] > 0


def _lost_in_a_chain(site: Site, method: Method, before: Trial, after: Trial) -> bool:
    """Whether a function called keeps its derivative, where what it kept before is kept by others, too."""
    lone = site.kind == "call" and isinstance(method, ForwardDerivative)
    return lone and after.alone[site.name] > before.alone[site.name]
