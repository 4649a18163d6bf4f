"""A converted model wrapped by DDP and FSDP2, before and after."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernels
from kernels import convert
from tests.kernels.conversion.torch_models import MODELS, batch, build, each_model, gradients, near
from tests.kernels.processes import main, needs_distributed, of_two, whole, wrapped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("afresh")]

WRAPPERS = ("ddp", "fsdp2")
ORDERS = ("before", "after")
DISTRIBUTED = {"fewbit": {"method": "fewbit"}, "invact": {"method": "invact"}, "auto": {"method": "auto"}}
# What is sharded runs only where all processes do, with its own state: it is to be measured before.
UNMEASURED = ("fsdp2", "after", "auto")


def converted(model: nn.Module, options: dict[str, Any]) -> kernels.conversion.Report:
    return convert(model, **options, **({"inputs": batch()} if options["method"] == "auto" else {}))


def worker(rank: int, mesh: Any) -> dict[tuple[str, ...], tuple[list[str], list[Tensor]]]:
    """What each of two processes does."""
    outcomes = {}
    for wrapper, order, name, kind in itertools.product(WRAPPERS, ORDERS, DISTRIBUTED, MODELS):
        if (wrapper, order, name) == UNMEASURED:
            continue
        model, options = build(kind).double() if name != "auto" else build(kind), DISTRIBUTED[name]
        if order == "before":
            report = converted(model, options)
        model = wrapped(model, wrapper, mesh)
        if order == "after":
            report = converted(model, options)
        x = batch().to(next(model.parameters()).dtype)
        model(x).square().sum().backward()  # both the same, so that their mean is
        outcomes[wrapper, order, name, kind] = (
            [site.now for site in report.sites],
            [whole(weight.grad) for weight in model.parameters()],
        )
    return outcomes


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[list[str], list[Tensor]]]:
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


@needs_distributed
@each_model
@pytest.mark.parametrize(
    ("wrapper", "order", "name"),
    [case for case in itertools.product(WRAPPERS, ORDERS, DISTRIBUTED) if case != UNMEASURED],
)
def test_wrapped_models_are_converted_before_and_after(results, wrapper: str, order: str, name: str, kind: str) -> None:
    model = build(kind).double() if name != "auto" else build(kind)
    report = converted(model, DISTRIBUTED[name])
    x = batch().to(next(model.parameters()).dtype)
    expected = gradients(model, model, x)[2:]
    now, got = results[wrapper, order, name, kind]
    assert now == [site.now for site in report.sites]
    assert report.converted
    # The same operations on the same numbers; the mean of two equal ones is exact. Products of matrices that are
    # gathered may lie elsewhere in memory, and be summed in another order.
    assert near(
        [gradient.double() for gradient in got],
        [gradient.double() for gradient in expected],
        16 * torch.finfo(x.dtype).eps,
    )


if __name__ == "__main__":
    main(worker)
