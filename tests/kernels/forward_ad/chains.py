"""Programs with a chain of element-wise operations, combined with whatever else torch does with tensors."""

import io
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.kernels.forward_ad.programs import Doubled

Activation = Callable[[Tensor], Tensor]
Program = Callable[[Tensor, Tensor, Tensor, Activation], Tensor]
NEWGELU = math.sqrt(2 / math.pi)


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def newgelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(NEWGELU * (x + 0.044715 * torch.pow(x, 3))))


# name -> the function; activations saved by linear - function - linear, plain and nested, in units of one activation
WRITTEN: dict[str, tuple[Activation, int, int]] = {
    "swish": (lambda x: x * torch.sigmoid(x), 3, 2),
    "swish by division": (lambda x: x / (1 + torch.exp(-x)), 4, 2),
    "mish": (mish, 3, 2),
    "mish by log": (lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))), 5, 2),
    "snake": (lambda x: x + torch.sin(2 * x) ** 2 / 2, 3, 2),
    "erf-gelu": (lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), 4, 2),
    "newgelu": (newgelu, 5, 2),
    "newgelu, then dropout": (lambda x: F.dropout(newgelu(x), 0.1), 6, 2),
    "relu": (torch.relu, 1, 1),
    "tanh": (torch.tanh, 1, 1),
    "gelu of torch": (F.gelu, 2, 2),
    "affine": (lambda x: (x * 2 + 1) / 3, 1, 1),
}


# One program for each case: of x, two weights and an activation. The mode must not change its result.
def consumed_later(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    return (a(h) @ v + h @ v).sum()


def residual(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    return ((h + a(h)) @ v).sum()


def used_three_times(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a(x @ w)
    return (z @ v).sum() + (z @ w).sum() + z.std()


def intermediate_used(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = F.softplus(h)
    return ((h * torch.tanh(y)) @ v + y @ v).sum()


def changed_before_use(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a(x @ w)
    z.mul_(2)
    return (z @ v).sum()


def changed_after_use(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a(x @ w)
    total = z.sum()
    z.mul_(2)
    return (z @ v).sum() + total


def source_changed_within(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = torch.sigmoid(h)
    h.add_(1)
    return ((y * y * 3) @ v + h @ v).sum()


def source_overwritten_later(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = torch.tanh(h)  # saves its output
    z = y * y * y + torch.exp(y)
    total = (z @ v).sum()
    h.zero_()
    return total + h.sum()


def pieces(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    left, right = (x @ w).chunk(2, -1)
    return ((a(left) * right) @ v[: left.shape[1]]).sum()


def views(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a((x @ w).t()).reshape(-1, 4).t()
    return (torch.tanh(z) * z).sum() + z[0].square().sum() + a(x @ w).T.sum()


def detached(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    return ((h * torch.sigmoid(h.detach()) * torch.tanh(h)) @ v).sum()


def without_gradients(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    with torch.no_grad():
        gate = a(x @ w)
    return ((a(x @ w) * gate) @ v).sum()


def own_function(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    y = torch.tanh(x @ w)
    z = y * torch.exp(y)
    first: Tensor = Doubled.apply(y)  # which the mode does not see
    second: Tensor = Doubled.apply(z)
    return (z @ v).sum() + first.sum() + second.square().sum()


def hook_on_every_tensor(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    tensors = [x @ w]
    for function in (F.softplus, torch.tanh, lambda t: t * tensors[0], torch.exp, lambda t: t @ v):
        tensors[-1].register_hook(lambda gradient: gradient * 1.5)
        tensors.append(function(tensors[-1]))
    return tensors[-1].sum()


def hook_within(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = torch.tanh(F.softplus(h))
    z = h * y
    y.register_hook(lambda gradient: gradient * 2)
    return (z @ v).sum()


def hook_on_the_source(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    h.register_hook(lambda gradient: gradient * 2)
    late = x @ v
    z = a(late) * torch.exp(-late * late)
    late.register_hook(lambda gradient: gradient * 3)
    return (a(h) @ v).sum() + (z @ v).sum()


def hook_on_the_end(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    before, after = a(x @ w), a(x @ v)
    before.register_hook(lambda gradient: gradient * 2)
    total = (before @ v).sum() + (after @ v).sum()
    after.register_hook(lambda gradient: gradient * 3)
    return total


def hook_on_the_node(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    y = torch.tanh(F.softplus(x @ w))
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda given, taken: tuple(gradient * 2 for gradient in given))
    return ((y * torch.exp(-y)) @ v).sum()


def gradient_retained(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a(x @ w)
    z.retain_grad()
    total = (z @ v).sum()
    total.backward(retain_graph=True)
    assert z.grad is not None
    return total + (z.grad * a(x @ v)).sum()


def gradient_of_an_end(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    z = a(x @ w)
    total = (z @ v).square().sum()
    (gradient,) = torch.autograd.grad(total, [z], retain_graph=True)
    return total + (gradient @ a(x @ v).t()).sum()


def backward_twice(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    total = (a(x @ w) @ v).sum()
    total.backward(retain_graph=True)
    return total


def checkpoint_of_the_chain(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    inside = checkpoint(a, x @ w, use_reentrant=False)  # the chain leaves the checkpoint unused
    return (a(inside) @ v).sum() + torch.exp(-a(inside)).sum()


def jacobian_vector(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    _, tangent = torch.func.jvp(lambda x: a(x @ w), (x.detach(),), (torch.ones_like(x),))
    return (a(x @ w) * tangent).sum()


def saved_elsewhere(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return (a(x @ w) @ v).sum()


def logged(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = torch.sigmoid(h)
    assert y.shape == h.shape
    assert float(y.detach().amax()) <= 1
    assert bool((y > 0).all())
    torch.save(y, io.BytesIO())
    return ((y * torch.where(y > 0.5, h, -h)) @ v).sum()


def batched_gradients(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    y = a(x @ w)[0] * 1.0
    rows = torch.autograd.grad(y, w, torch.eye(y.numel(), dtype=y.dtype), retain_graph=True, is_grads_batched=True)[0]
    return (y.sum() * rows.square().sum()) + (a(x) @ v).sum()


def anomaly_mode(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    with torch.autograd.set_detect_anomaly(True):
        return (a(x @ w) @ v).sum()


def dual_numbers(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(a(dual @ w.detach())).tangent
    return (a(x @ w) * tangent).sum()


def view_of_what_is_changed(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = (x @ w).clone()
    view = h.t()
    h.mul_(2)  # torch makes a new node of the view when it is read
    return checkpoint(lambda z: (a(z) * 2).sum(), view, use_reentrant=True) + (a(h) @ v).sum()


def selective_checkpoint(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    def run(y: Tensor) -> Tensor:
        q = y @ v
        return ((q * q.sin()) * q.exp()).sum()

    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mul.Tensor])
    return checkpoint(run, a(x @ w), use_reentrant=False, context_fn=contexts)


def looked_at_in_a_checkpoint(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    def run(y: Tensor) -> Tensor:
        assert y.grad_fn is not None or y.requires_grad
        y.register_hook(lambda gradient: gradient * 1.0)
        return (y @ v).sum()

    return checkpoint(run, a(x @ w), use_reentrant=False)


def hook_without_gradients(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    h = x @ w
    y = torch.tanh(F.softplus(h))
    z = h * y
    with torch.no_grad():
        y.register_hook(lambda gradient: gradient * 2)
    return (z @ v).sum()


def hook_on_an_end_that_is_a_source(x: Tensor, w: Tensor, v: Tensor, a: Activation) -> Tensor:
    y = torch.tanh(x @ w)
    total = (y @ v).sum()  # a chain ends here unchanged, and another begins
    total = total + ((y * torch.exp(y) * torch.sin(y)) @ v).sum()
    y.register_hook(lambda gradient: gradient * 2)
    return total


CASES: dict[str, Program] = {
    "two_sources": lambda x, w, v, a: ((a(x @ w) * (x @ v)) @ v).sum(),
    "in_place_by_argument": lambda x, w, v, a: (
        (F.relu(a(x @ w) * 1.0, True) @ v).sum() + (F.relu(a(x @ v), inplace=True) @ w).sum()
    ),
    "constant_operand": lambda x, w, v, a: ((a(x @ w) * (torch.arange(x.shape[1]) % 2)) @ v).sum(),
    "parameter_operand": lambda x, w, v, a: ((a(x @ w) + v[0]) @ v).sum(),
    "leaf_source": lambda x, w, v, a: (a(x) @ a(v)).sum() + a(x).sum(),
    "checkpoint_around": lambda x, w, v, a: checkpoint(lambda x: (a(x @ w) @ v).sum(), x, use_reentrant=False),
    "checkpoint_by_reentering": lambda x, w, v, a: checkpoint(lambda x: (a(x @ w) @ v).sum(), x, use_reentrant=True),
    "checkpoint_of_a_chain_from_outside": lambda x, w, v, a: checkpoint(
        lambda z: (z @ v).square().sum(), a(x @ w), use_reentrant=False
    ),
    "vmapped": lambda x, w, v, a: (torch.func.vmap(a)(x @ w) @ v).sum(),
    "functional_gradient": lambda x, w, v, a: (
        torch.func.grad(lambda x: (a(x @ w) @ v).sum())(x).sum() + (a(x @ w) @ v).sum()
    ),
    **{
        case.__name__: case
        for case in (
            *(consumed_later, residual, used_three_times, intermediate_used, changed_before_use, changed_after_use),
            *(source_changed_within, source_overwritten_later, pieces, views, detached, without_gradients),
            *(own_function, hook_on_every_tensor, hook_within, hook_on_the_source, hook_on_the_end, hook_on_the_node),
            *(gradient_retained, gradient_of_an_end, backward_twice, checkpoint_of_the_chain, jacobian_vector),
            *(saved_elsewhere, logged, batched_gradients, anomaly_mode, dual_numbers, view_of_what_is_changed),
            *(selective_checkpoint, looked_at_in_a_checkpoint, hook_without_gradients),
            hook_on_an_end_that_is_a_source,
        )
    },
}
