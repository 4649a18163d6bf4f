"""Names of what is saved: the same in each pass, and of the module that saves."""

import contextlib
import copy
import gc
import pickle
import weakref
from threading import Thread

import torch
from torch import Tensor, nn

from kernels.eager.forward import InFewBits
from kernels.eager.sites import Sites
from kernels.methods.planned import Planned
from kernels.planning.observe import observe
from tests.kernels.planning.nets import text


class Twice(nn.Module):
    """Calls one layer two times, and multiplies itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).sin()).exp() * x.cos()


def names(model: nn.Module, *inputs: Tensor) -> list[str]:
    return [site.name for site in observe(model, inputs, {}).sites]


def test_a_site_is_a_module_and_a_function() -> None:
    model, inputs = text(1)
    sites = names(model, *inputs)
    assert "0: silu" in sites
    assert "0.out: linear" in sites
    attention = [name for name in sites if "attention" in name]
    assert attention == [f"0: scaled_dot_product_attention{number}" for number in ("", " 2", " 3")]


def test_a_second_call_has_a_number_of_its_own() -> None:
    sites = names(Twice(), torch.randn(128, 64, requires_grad=True))
    assert len(sites) == len(set(sites))
    assert all(name.startswith((": ", "layer: ")) for name in sites)


def test_names_are_those_of_the_pass_before() -> None:
    model, inputs = text(2)
    assert names(model, *inputs) == names(model, *inputs) == names(copy.deepcopy(model), *inputs)


def test_modules_that_are_not_named_are_part_of_those_that_call_them() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    with Sites({model[0]: "outer"}) as sites:
        seen = []
        model[0][0].register_forward_hook(lambda *_: seen.append(sites.name("linear")))
        model(torch.ones(2))
        assert seen == ["outer: linear"]
        assert sites.name("end") == ": end"


def test_an_error_in_a_module_leaves_the_names_right() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("on purpose")

    failing = Fails()
    with Sites({failing: "failing"}) as sites:
        with contextlib.suppress(ValueError):
            failing(torch.ones(2))
        assert sites.name("f") == ": f"


def test_no_hooks_are_left() -> None:
    before = (
        dict(torch.nn.modules.module._global_forward_pre_hooks),
        dict(torch.nn.modules.module._global_forward_hooks),
    )
    model, inputs = text(1)
    names(model, *inputs)
    after = dict(torch.nn.modules.module._global_forward_pre_hooks), dict(torch.nn.modules.module._global_forward_hooks)
    assert before == after


def test_a_model_with_a_plan_can_be_pickled() -> None:
    model, inputs = text(1)
    InFewBits(model, Planned(8, "nearest", {"0: silu": 2})).install()
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(*inputs), model(*inputs))


def test_other_threads_do_not_count() -> None:
    """As one that loads data and runs a model of its own."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    with Sites({model[0]: "mine"}) as sites:
        seen = []
        model[0][0].register_forward_hook(lambda *_: seen.append(sites.name("linear")))
        thread = Thread(target=model, args=(torch.ones(2),))
        thread.start()
        thread.join()
        assert seen == [": linear"]
        model(torch.ones(2))
        assert seen == [": linear", "mine: linear"]


def test_a_model_with_a_plan_that_keeps_a_graph_is_freed() -> None:
    """As of an auxiliary loss that backward did not reach: what the graph refers to must not refer to the model."""
    model, inputs = text(1)
    InFewBits(model, Planned(8)).install()
    model.auxiliary = model(*inputs).square().mean()
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None
