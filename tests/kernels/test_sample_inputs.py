"""Our functions on PyTorch's own sample inputs: values and gradients are stock's."""

from functools import partial

import pytest
import torch

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing._internal.common_methods_invocations import op_db

from actfit import KernelError, functional

# PyTorch's name of the entry -> ours; where a sample's arguments ask for another function, `ours` says which.
ENTRIES = {
    "nn.functional.relu": "relu",
    "nn.functional.leaky_relu": "leaky_relu",
    "nn.functional.relu6": "relu6",
    "nn.functional.threshold": "threshold",
    "nn.functional.hardtanh": "hardtanh",
    "nn.functional.hardsigmoid": "hardsigmoid",
    "nn.functional.hardshrink": "hardshrink",
    "nn.functional.softshrink": "softshrink",
    "nn.functional.hardswish": "hardswish",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "nn.functional.softplus": "softplus",
    "nn.functional.softsign": "softsign",
    "nn.functional.logsigmoid": "logsigmoid",
    "nn.functional.tanhshrink": "tanhshrink",
    "nn.functional.elu": "elu",
    "nn.functional.celu": "celu",
    "nn.functional.selu": "selu",
    "nn.functional.gelu": "gelu",
    "nn.functional.silu": "silu",
    "nn.functional.mish": "mish",
}
INFOS = [info for info in op_db if info.name in ENTRIES and not info.variant_test_name]
ERROR = {"forward-ad": 0.0, "invact": 2e-5}  # of f' in float32: files err by 2**-20 times |f'| up to 1.13, mish more


def test_every_entry_is_there():
    assert {info.name for info in INFOS} == set(ENTRIES)


@pytest.mark.parametrize("method", ERROR)
@pytest.mark.parametrize("info", INFOS, ids=lambda info: ENTRIES[info.name])
def test_sample_inputs(info, method, device):
    name = ENTRIES[info.name]
    ran = 0
    for sample in info.sample_inputs(torch.device(device), torch.float32, requires_grad=True):
        options = dict(sample.kwargs)
        if options.pop("inplace", False):
            continue  # refused, see test_arguments
        x = sample.input.detach().requires_grad_()
        run = partial(getattr(functional, name), x, *sample.args, **options, method=method)
        below = min((options[key] for key in ("alpha", "negative_slope", "lambd") if key in options), default=1) < 0
        if (method == "invact" and below) or options.get("threshold", 20) < 20:
            with pytest.raises(KernelError, match="must be at least"):
                run()
            ran += name == "softplus"  # the thresholds of all its samples matter
            continue
        y = run()
        stock_x = sample.input.detach().double().requires_grad_()
        expected = info.op(stock_x, *sample.args, **options)
        assert y.shape == expected.shape
        # In float32: 8 units in the last place, of numbers that may be differences of others up to |x|.
        torch.testing.assert_close(y.double(), expected, rtol=2.0**-20, atol=2.0**-20)
        grad = torch.randn_like(y)
        y.backward(grad)
        expected.backward(grad.double())
        error = 2.0**-19 + ERROR[method]
        assert ((x.grad.double() - stock_x.grad).abs() <= error * grad.double().abs() * (1 + x.double().abs())).all()
        ran += 1
    assert ran
