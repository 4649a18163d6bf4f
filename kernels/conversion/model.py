"""Convert the activations of a model in place: find, measure, decide, apply, check."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from torch import nn

from kernels import private
from kernels.conversion.arguments import methods_by_pattern, patterns, validated_method
from kernels.conversion.budgeted import check_arguments, check_loss, plan_for
from kernels.conversion.changes import Change, Decision, Outcomes, apply_decisions, undo
from kernels.conversion.check import check
from kernels.conversion.decide import decide_by_measuring
from kernels.conversion.derivative_error import FORWARD_AD
from kernels.conversion.every_tensor import Net, check_once, convert_modules
from kernels.conversion.find import find
from kernels.conversion.in_place import reasons_in_place
from kernels.conversion.layers import decide_by_bits, with_layers
from kernels.conversion.measurement import Measurement, Run, measure, measure_stock, measure_with, runner
from kernels.conversion.report import Report, revertible
from kernels.conversion.rows import rows_of
from kernels.conversion.sites import NestedSite, Site, select_sites, sites_by_pattern
from kernels.errors import KernelError
from kernels.memory.step import Loss
from kernels.methods.auto import Auto
from kernels.methods.compressed import Compressed
from kernels.methods.every_tensor import EveryTensor
from kernels.methods.functions import function_info
from kernels.methods.method import Method
from kernels.planning.goals import Goal
from kernels.planning.plan import Plan
from kernels.planning.task import not_compiled
from kernels.stock import SAVES_OUTPUT

WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
WITHOUT_FILE = "coefficients names no file for it"
STOCK_SAVES_OUTPUT = "the stock function saves no more than its output"


def convert(
    model: nn.Module,
    method: str = Auto.name,
    *,
    inputs: Any = None,
    bits: int | None = None,
    scheme: str | None = None,
    rounding: str | None = None,
    coefficients: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    max_derivative_error: float | None = None,
    accounting: str = "as-run",
    budget: str | float | None = None,
    loss: Loss | None = None,
    targets: Any = None,
    max_gradient_error: float | None = None,
    goal: Goal | None = None,
    plan: Plan | str | PathLike[str] | None = None,
    strict: bool = False,
) -> Report:
    """Make a model's activations save less for backward, in place; `report.revert()` undoes it. See docs/convert.md.

    Parameters
    ----------
    model
        Any module. Its class, torch and other modules are not changed.
    method
        "auto" takes at each site whichever of invact, fewbit, forward-ad and stock saves least; their names take one of
        them everywhere. "approx-backprop" lets norms, linear layers and convolutions save few bits, too. "compress"
        stores few bits of every tensor that autograd saves, in any operation.
    inputs
        Arguments to call the model with: a tensor, a tuple or list, or a mapping of keyword arguments. auto needs them,
        other methods measure with them, on a copy of the model.
    bits
        Of fewbit (default: 3), approx-backprop (8) or compress (4); of invact 2 in 16 bits, beside the output (1).
    scheme
        Of approx-backprop ("robust"), see `kernels.methods.compressed.Compressed`.
    rounding
        Of compress, and of approx-backprop by scheme="group": "nearest", or "stochastic", which is unbiased.
    coefficients
        Of fewbit: a file of your own; or a mapping of names of sites or modules, or patterns with *, to files. A site
        takes the first file whose pattern it matches; sites that match none are left alone.
    include, exclude
        Names of sites or modules, or patterns with *; of compress, of modules.
    max_derivative_error
        auto's bound on the root mean square error of f'(x) for x from N(0, 1); by default that of invact.
    accounting
        As for `saved_bytes`.
    budget, max_gradient_error, goal
        Instead of a method: as of `kernels.planning.make_plan`, by whose plan each saved tensor gets its own bits.
    plan
        Instead of a method: a plan that was made before, or the file that it was saved to.
    loss, targets
        With compress, a budget or a plan, and inputs: as of `kernels.planning.make_plan`. Of this loss's gradient the
        error is measured, on a few samples.
    strict
        Likewise: whether to raise KernelError, not warn, if that error is more than three times what is predicted.

    Returns
    -------
    Report
        Each site: what it was and what it is now, or why it was left alone; and the plan for a budget.

    Raises
    ------
    KernelError
        For invalid arguments, and with strict. If anything is raised, the model is unchanged.
    """
    options = {"bits": bits, "scheme": scheme, "rounding": rounding, "coefficients": coefficients}
    bound = {"max_derivative_error": max_derivative_error}
    by_plan = any(given is not None for given in (budget, max_gradient_error, goal, plan))
    check_loss(loss, targets, strict, inputs, by_plan or method == EveryTensor.name)
    if by_plan:
        not_compiled(model)
        of_methods = {**options, **bound, "rounding": None if plan is None else rounding}
        parts = {"include": include, "exclude": exclude, "accounting": None if accounting == "as-run" else accounting}
        check_arguments(budget, max_gradient_error, goal, plan, inputs, method, {**of_methods, **parts})
        method = EveryTensor.name
    asked = validated_method(model, method, inputs, accounting, **bound, **options)
    model = _unwrapped(model)
    run = None if inputs is None else runner(model, inputs, accounting)
    if isinstance(asked, EveryTensor):
        if budget is not None or plan is not None:
            check_once(model)
        plan = plan_for(model, inputs, budget, loss, targets, plan, rounding, max_gradient_error, goal, strict)
        net = Net(inputs, loss, targets, strict) if inputs is not None and budget is None else None
        return convert_modules(model, asked, patterns(include), patterns(exclude), run, plan, net)
    sites = _find(model, asked, run)
    reasons = select_sites(sites, patterns(include), patterns(exclude))
    reasons |= reasons_in_place(model, [site for site in sites if not reasons[site]], run)
    selected = [site for site in sites if not reasons[site]]
    fitted = [] if coefficients is None else [(asked, selected)]
    if isinstance(coefficients, Mapping):
        fitted = _methods_of_files(methods_by_pattern(method, options), selected, sites)
        selected = [site for _, share in fitted for site in share]
        reasons = {site: reason or ("" if site in selected else WITHOUT_FILE) for site, reason in reasons.items()}
    before = None if run is None else measure_stock(selected, sites, run)
    decided = _decide(selected, sites, asked, before, run)
    for own, share in fitted:
        decided |= {site: Decision(own) for site in share if isinstance(decided[site], Decision)}
    return _applied({**reasons, **decided}, [share for _, share in fitted], before, run)


def _methods_of_files(
    methods: Mapping[str, Method], selected: Collection[Site], sites: Collection[Site]
) -> list[tuple[Method, list[Site]]]:
    """The method of each file, with the selected sites that take it."""
    by_pattern = sites_by_pattern(sites, methods)
    return [(method, [site for site in by_pattern[name] if site in selected]) for name, method in methods.items()]


def _unwrapped(model: nn.Module) -> nn.Module:
    while (compiled := private.is_compiled_module(model)) or isinstance(model, WRAPPERS):
        model = model._orig_mod if compiled else model.module
    return model


def _applied(outcomes: Outcomes, fitted: Sequence[list[Site]], before: Measurement | None, run: Run | None) -> Report:
    """Change the model as decided and check it by a run; undo the changes if anything is raised.

    fitted: the sites of each file, at least one of which must be convertible.
    """
    changes: list[Change] = []
    try:
        outcomes = apply_decisions(outcomes, changes)
        for share in fitted:
            if share and all(isinstance(outcomes[site], str) for site in share):
                reason = outcomes[share[0]]
                raise KernelError(f"coefficients must fit an activation of the model: {share[0].name}: {reason}")
        after = None
        if before is not None and run is not None:
            after, outcomes = check(outcomes, before, run, changes)
        rows = rows_of(outcomes, before, after)
    except BaseException:
        undo(changes)
        raise
    return revertible(Report(rows, before.saved if before else None, after.saved if after else None), changes)


def _find(model: nn.Module, method: Method, run: Run | None) -> dict[Site, str]:
    """All sites. A module with a function that is not in the catalogue is one if nested forward AD saves less there."""
    sites = find(model, lambda _: method.serves_any_function)
    nested = [site for site, reason in sites.items() if isinstance(site, NestedSite) and not reason]
    if nested and run is not None:
        stock, exact = measure(sites, run), measure_with(dict.fromkeys(nested, FORWARD_AD), nested, run)
        less = {site.original for site in nested if exact.alone[site.name] < stock.alone[site.name]}
        sites = find(model, lambda module: module in less)
    return with_layers(model, sites) if isinstance(method, Compressed) else sites


def _decide(
    selected: Collection[Site], sites: Collection[Site], method: Method, before: Measurement | None, run: Run | None
) -> Outcomes:
    """The outcome of each selected site with the method that was asked for."""
    methods: Mapping[Site, Method | str]
    if isinstance(method, Auto) and before is not None and run is not None:
        methods = decide_by_measuring(selected, sites, before, run, method.max_derivative_error)
    elif isinstance(method, Compressed):
        methods = {site: decide_by_bits(site, method) for site in selected}
    else:
        methods = {site: STOCK_SAVES_OUTPUT if _saves_output(site, method) else method for site in selected}
    return {site: outcome if isinstance(outcome, str) else Decision(outcome) for site, outcome in methods.items()}


def _saves_output(site: Site, method: Method) -> bool:
    """Whether both the method and torch's own function save the output."""
    name = site.function_name
    return name in SAVES_OUTPUT and method.storage(function_info(name)).keeps_output
