"""`compress`: a model whose training saves less, and the handle that tells and undoes it."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

from torch import nn

from actfit.kernels.compression.report import Report
from actfit.kernels.errors import KernelError, shown, warn
from actfit.kernels.graph.capture import RECURRENT, Captured
from actfit.kernels.graph.engine import Engine
from actfit.kernels.graph.install import install, not_compressed, removed
from actfit.kernels.graph.request import check_request, loaded
from actfit.kernels.graph.trials import CapturedGradients
from actfit.kernels.graph.ways.policies import method_of, way_of
from actfit.kernels.head.heads import MANY, WIDER, Head
from actfit.kernels.memory.step import Loss, check_loss
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.planning.batches import call_of
from actfit.kernels.planning.make import plan_to_fit
from actfit.kernels.planning.plan import Plan
from actfit.kernels.planning.safety import Checked, check_model
from actfit.kernels.planning.training import Optimizer


class Handle:
    """A compressed model; `str(handle)` says what is captured, what is saved, and what runs as stock.

    Attributes
    ----------
    names
        The modules that are captured one by one; "" is the model itself.
    report
        The tensors that the graphs save, as of now: a graph is captured at its first call with gradients.
    stock
        Modules that run as stock, with the reason.
    refused
        With a policy: activations that stay exact, with the reason.
    plan
        The plan that it goes by; None: all saved tensors are treated alike.
    watch
        With a plan: errors of decoded tensors, as planned, and as they are seen in training.
    checked
        With inputs, and bits or a plan: the error of the gradient of samples, beside what is predicted.
    """

    def __init__(
        self,
        changed: list[tuple[str, nn.Module]],
        engine: Engine,
        plan: Plan | None = None,
        checked: Checked | None = None,
        cells: Sequence[str] = (),
    ) -> None:
        self._changed, self._engine, self.plan, self.checked = changed, engine, plan, checked
        self.watch, self._cells = engine.watch, cells
        self.heads = [module.forward for _, module in changed if isinstance(module.forward, Head)]

    @property
    def names(self) -> tuple[str, ...]:
        modules = [inner for _, module in self._changed for inner in module.modules()]
        calls = [call for call in (vars(module).get("forward") for module in modules) if isinstance(call, Captured)]
        return tuple(
            call.name for call in calls if not call.is_given_up and (call.kind is not None or not call.is_part)
        )

    @property
    def report(self) -> Report:
        return Report(tuple(self._engine.graphs))

    @property
    def stock(self) -> dict[str, str]:
        cells = dict.fromkeys(self._cells if self._changed else (), RECURRENT)
        return {**cells, **self._engine.skipped, **self._engine.stock}

    @property
    def refused(self) -> dict[str, str]:
        return dict(self._engine.refused)

    def remove(self) -> None:
        """Give back the model as it was: the same objects, with their own forward."""
        removed(self._changed)
        self._changed = []
        self._engine.entries.clear()

    def __reduce__(self) -> Any:
        raise KernelError(
            "a handle must stay with its model, got one to be copied or pickled; copy the model, which stays compressed"
        )

    def __str__(self) -> str:
        method, policy = self._engine.method, self._engine.policy
        if self.plan is not None and not self.plan.needed:
            return f"compress, as planned: {self.plan}"
        exact = "exact" if self.plan is None else "as planned"
        what = policy or (exact if method is None else str(method).removeprefix("compress, "))
        if not self._changed:
            return f"compress, {what}: removed"
        count = len(set(self.names) - set(self.stock))
        lines = [f"compress, {what}: {count} module{'s' * (count != 1)} captured"]
        lines += [f"  {name or 'the model'} runs as stock: {reason}" for name, reason in self.stock.items()]
        lines += [f"  {text}" for text in map(str, self.heads) if text]
        lines += [] if self.plan is None else [f"  {text}" for text in self.plan.summary]
        lines += [] if self.checked is None else [f"  {self.checked}"]
        if not self._engine.graphs:
            none = "no graph yet: each is captured at its first call with gradients"
            lines += [f"  {'the graphs save nothing' if self._engine.runs else none}"] * (count > 0)
            return "\n".join(lines)
        if policy is not None:
            lines.append(f"  activations save {way_of(policy).saves}; the error: {way_of(policy).error}")
        lines += [f"  {place} stays exact: {reason}" for place, reason in self.refused.items()]
        return "\n".join([*lines, str(self.report), *(["", str(self.watch)] if self.watch.seen else [])])


def compress(
    model: nn.Module,
    *,
    bits: int | None = None,
    rounding: str | None = None,
    plan: Plan | str | PathLike[str] | None = None,
    policy: str | None = None,
    chunked_loss: bool | None = None,
    compiled: bool | None = None,
    fit: str | float | None = None,
    inputs: Any = None,
    loss: Loss | None = None,
    targets: Any = None,
    optimizer: Optimizer | None = None,
) -> Handle:
    """Make training save less; what forward computes stays the same, bit for bit, but for a loss in chunks.

    Repeated blocks, as a transformer's layers, are captured one by one as graphs of forward and backward, at their
    first call with gradients. PyTorch's own kernels run the graphs, or with `compiled` those that Inductor generates.
    Without gradients, and where a module cannot be captured, its own forward runs.

    Parameters
    ----------
    model
        Changed in place; the same model may be compressed again after `Handle.remove`.
    bits
        None: gradients are exact; backward computes cheap operations again, and masks take one bit an element. They are
        the same bit for bit, but where several blocks share a tensor, as an encoder's output: there they may be summed
        in another order (3e-7 at most in 42 architectures of transformers). 2 to 8: tensors of floating-point numbers
        are saved in so many bits, too, with half a bit for the range of each group of 64; gradients are approximate.
    rounding
        "nearest", the default, or "stochastic", whose decoded values have the right mean.
    plan
        The result of `actfit.make_plan`, or a file with it: bits for each saved tensor, rounding, and the
        blocks that backward computes again.
    policy
        A paper's method, in place of bits. For activations, where all else is exact: "fewbit-1" to "fewbit-8": a code
        of the input; "invact", "invact-2": the output and a bit or two; "forward-ad": the derivative. Our kernels
        compute activations then, and round their results once. "approximate-activations-2" to
        "approximate-activations-8": as bits, but what a batch norm normalises is saved on a fixed range of standard
        deviations about the mean, without ranges of groups.
    chunked_loss
        Whether F.cross_entropy of the results of a linear layer with many classes, as a language model's head, is
        computed some rows at a time, with its gradients, so that all logits are never in memory. Loss and gradients
        differ from stock by rounding. By default with bits and with plans, where gradients are approximate
        anyway. Logits that something else needs, as a metric, are made whole.
    compiled
        Whether Inductor compiles the graphs, as torch.compile does with each block: steps are shorter, the first one
        takes long, and rounding and random draws are Inductor's. By default as the plan says, or not.
    fit
        A budget of memory for which a plan is made, with `inputs`, `loss`, `targets` and `optimizer`, all as of
        `make_plan`.
    inputs, loss, targets
        With bits or a plan: the error of the gradient of two samples is measured, and a warning names the tensors that
        make it more than three times what is predicted.
    optimizer
        With `fit`: one of torch, or its name, as "adamw"; the budget is then of a whole training.

    Returns
    -------
    Handle
        Says what was captured, and undoes it.

    Raises
    ------
    KernelError
        For other values, for a model that is compressed already, for a plan of another model, and as `make_plan` does.
    """
    if not isinstance(model, nn.Module):
        raise KernelError(f"model must be a torch.nn.Module, got {shown(model)}")
    check_request(bits, rounding, plan, policy, fit, chunked_loss, compiled, optimizer)
    not_compressed(model)
    check_loss(loss, targets)
    if fit is not None:
        plan = _fitting(model, fit, rounding, inputs, loss, targets, bool(compiled), optimizer)
        rounding = inputs = None  # the plan is checked
    elif inputs is None and loss is not None:
        raise KernelError("loss must go with inputs, a batch of training, got none")
    elif inputs is not None and bits is None and plan is None:
        raise KernelError("inputs must go with bits, plan or fit: without codes there is no error to measure")
    if plan is None:
        engine = _engine(bits, rounding, policy, chunked_loss, bool(compiled))
    else:
        plan = loaded(plan, compiled)
        plan.check_model(model)
        method, again = plan.method if plan.sites else None, frozenset(plan.recomputed)
        engine = Engine(method, again, planned=plan.decoded, chunked_loss=True, compiles=plan.compiled)
    checked = None
    if inputs is not None and engine.method is not None:
        planned = None if plan is None else plan.errors.predicted
        given = model, call_of(inputs), loss, targets, engine.method, CapturedGradients, planned
        checked = check_model(*given, engine.compiles)
        checked.tell(strict=False)
    if plan is not None and not plan.needed:
        return Handle([], engine, plan, checked)
    changed = install(model, engine, () if plan is None else plan.unchanged)
    for name, module in changed:
        if not name and isinstance(module.forward, Captured):
            module.forward.split(deeply=True)  # methods other than forward call its parts
    cells = [name for name, module in model.named_modules() if name and isinstance(module, nn.RNNBase)]
    handle = Handle(changed, engine, plan, checked, cells)
    if chunked_loss and not handle.heads:
        warn(
            f"chunked_loss must have a linear layer outside of repeated blocks, with at least {MANY} outputs and"
            f" {WIDER} times its inputs, got none: the loss is computed as it was"
        )
    return handle


def _engine(
    bits: int | None, rounding: str | None, policy: str | None, chunked_loss: bool | None, compiles: bool
) -> Engine:
    """The engine of a model without a plan."""
    method = None if policy is None else method_of(policy)
    if bits is not None:
        method = EveryTensor(bits, rounding or "nearest")
    chunked = bits is not None if chunked_loss is None else chunked_loss
    named = policy if method is None else None
    return Engine(method, policy=named, chunked_loss=chunked, compiles=compiles, shares=True)


def _fitting(
    model: nn.Module,
    fit: str | float,
    rounding: str | None,
    inputs: Any,
    loss: Loss | None,
    targets: Any,
    compiles: bool,
    optimizer: Optimizer | None,
) -> Plan:
    """The plan for a budget."""
    if inputs is None:
        raise KernelError(
            'inputs must be given with fit: a batch of training, as compress(model, fit="24GiB", inputs=x)'
        )
    named: Any = {"loss": loss, "targets": targets, "rounding": rounding or "nearest", "compiles": compiles}
    return plan_to_fit(model, inputs, fit, **named, optimizer=optimizer)
