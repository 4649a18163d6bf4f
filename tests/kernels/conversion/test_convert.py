"""`convert`: what is put in place, what is left alone and why, how it is undone, and the report."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernels
from coefficients import load
from kernels import KernelError, convert, saved_bytes
from kernels.methods.functions import FUNCTIONS
from kernels.stock import SAVES_OUTPUT, STOCK
from tests.kernels.conversion.models import Everything, X, mlp, reasons
from tests.kernels.saved import bytes_in_graph


@pytest.mark.parametrize("options", [{"method": "invact"}, {"method": "fewbit", "bits": 2}, {"method": "forward-ad"}])
def test_a_module_is_replaced_and_put_back(options: dict) -> None:
    act = nn.GELU()
    net = mlp(act)
    expected = net(X)
    report = convert(net, **options)
    assert isinstance(net[1], kernels.GELU)
    assert (net[1].method, net[1].bits) == (options["method"], options.get("bits"))
    assert bytes_in_graph(net(X), [X, *net.parameters()]) < bytes_in_graph(expected, [X, *net.parameters()]) + 1
    torch.testing.assert_close(net(X), expected)
    (site,) = report.converted
    assert (site.name, site.function, site.was, site.reason) == ("1", "gelu", "GELU", "")
    report.revert()
    assert net[1] is act
    assert torch.equal(net(X), expected)
    report.revert()  # nothing more to do
    assert net[1] is act


def test_parameters_and_mode_are_carried_over() -> None:
    net = mlp(nn.LeakyReLU(0.3), nn.Softplus(beta=2.0), nn.GELU("tanh"), nn.Hardtanh(-2, 2)).eval()
    expected = net(X)
    convert(net, "forward-ad")
    assert [net[1].negative_slope, net[2].beta, net[3].approximate, net[4].max_val] == [0.3, 2.0, "tanh", 2]
    assert not any(module.training for module in net.modules())
    torch.testing.assert_close(net(X), expected)


def test_activations_in_every_place() -> None:
    net = Everything()
    expected, before = net(X), [*net.modules()]
    attributes, names = dict(vars(net)), [name for name, _ in net.named_modules(remove_duplicate=False)]
    report = convert(net, "forward-ad")
    assert [(site.name, site.function) for site in report.converted] == [
        ("act", "silu"),
        ("stack.0", "gelu"),
        ("table.mish", "mish"),
        ("function", "gelu"),
        ("tanhs", "gelu_tanh"),
        ("elu()", "elu"),
        ("gelu()", "gelu"),
    ]
    assert net.act is net.stack[1] is net.table["again"]
    assert [name for name, _ in net.named_modules(remove_duplicate=False)] == [*names, "function", "tanhs"]
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        torch.testing.assert_close(net(X), expected)
    operations = saved_bytes(net, X).by_operation()
    assert {name.partition(", ")[2] for name in operations} == {"forward-ad", ""}
    report.revert()
    assert [*net.modules()] == before
    assert vars(net) == attributes
    assert torch.equal(net(X), expected)


def test_in_place_modules_become_others_and_come_back() -> None:
    act = nn.SiLU(inplace=True)
    net = mlp(act)
    report = convert(net, "fewbit", inputs=X)
    assert not net[1].inplace
    assert report.sites[0].was == "SiLU, in place"
    report.revert()
    assert net[1] is act
    assert act.inplace


class Residual(nn.Module):
    """What is added is the activation's input, or its output, as it works in place."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.up, self.act, self.down, self.read = nn.Linear(24, 24), nn.SiLU(inplace=True), nn.Linear(24, 24), read

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        before = x if self.read == "tensor" else x[0]
        y = self.down(self.act(x))
        return y if self.read == "nothing" else y + before


@pytest.mark.parametrize("read", ["tensor", "view", "nothing"])
@pytest.mark.parametrize("options", [{"method": "fewbit"}, {"max_derivative_error": 1.0}], ids=["fewbit", "auto"])
def test_an_input_that_is_changed_and_then_read_again_must_stay_changed(read: str, options: dict) -> None:
    net = Residual(read)
    expected = net(X)
    report = convert(net, inputs=X, **options)
    torch.testing.assert_close(net(X), expected)
    if read == "nothing":
        assert len(report.converted) == 1
    else:
        assert reasons(report) == {"act": "it works in place, and its input is read again"}


def test_what_works_in_place_needs_inputs_to_be_sure() -> None:
    report = convert(mlp(nn.SiLU(inplace=True)), "fewbit")
    assert reasons(report)["1"].startswith("it works in place: give inputs")


def test_what_is_left_alone_says_why() -> None:
    hooked, replaced = nn.GELU(), nn.GELU()
    hooked.register_forward_hook(lambda *_: None)
    replaced.forward = lambda x: x
    net = nn.Sequential(
        nn.PReLU(), nn.RReLU(), nn.GLU(), nn.Softmax(-1), nn.GRU(4, 4), hooked, replaced, nn.Softplus(threshold=5)
    )
    report = convert(net, "invact")
    assert report.converted == []
    assert reasons(report) == {
        "0": "its slope is learned",
        "1": "its slope is drawn at random",
        "2": "it is gated: kernels.swiglu and its like save less, but must be called instead",
        "3": "it is not element-wise",
        "4": "its activations are computed inside torch's own recurrent kernel",
        "5": "it has hooks, which would not be called any more",
        "6": "its forward was replaced",
        "7": "threshold must be at least 20, where it changes no digit of float32, got 5",
    }


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_keeps_its_output_only_is_what_is_said_to(function: str) -> None:
    x = torch.randn(100, requires_grad=True)
    # The square keeps its input, the activation's output.
    saved = saved_bytes(lambda x: STOCK[function](x, *FUNCTIONS[function].parameters.values()).square(), x)
    assert (saved.inputs == 0 and saved.total == x.nbytes) == (function in SAVES_OUTPUT)


def test_nothing_is_gained_by_invact_where_the_output_is_all_that_is_kept() -> None:
    report = convert(mlp(nn.ReLU(), nn.Tanh(), nn.GELU()), "invact")
    assert [site.name for site in report.converted] == ["3"]
    assert set(reasons(report).values()) == {"the stock function saves no more than its output"}


def test_parameters_without_a_table_are_a_reason() -> None:
    report = convert(mlp(nn.ELU(0.5), nn.GELU()), "fewbit")
    assert [site.name for site in report.converted] == ["2"]
    assert "has tables for the default parameters of elu" in reasons(report)["1"]


def test_own_coefficients_go_to_their_function(tmp_path: Any) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(load("gelu", "fewbit-2bit")), "utf-8")
    net = mlp(nn.GELU(), nn.SiLU())
    report = convert(net, "fewbit", coefficients=path)
    assert net[1].coefficients == str(path)
    assert "coefficients must be a fewbit file of silu, got fewbit of gelu" in reasons(report)["2"]
    for wrong in (tmp_path / "typo.json", tmp_path, path):
        net = mlp(nn.SiLU())
        with pytest.raises(
            KernelError, match="coefficients must fit an activation of the model: 1: coefficients must be"
        ):
            convert(net, "fewbit", coefficients=wrong)
        assert type(net[1]) is nn.SiLU


def test_the_model_itself_cannot_be_replaced() -> None:
    act = nn.GELU()
    report = convert(act, "invact")
    assert "it is the model itself" in reasons(report)[""]


def test_an_empty_model() -> None:
    report = convert(nn.Sequential(), inputs=X)
    assert (report.sites, report.before.total, report.after.total) == ([], 0, 0)
    nothing = "nothing is kept for backward, before or after, as where all weights are frozen"
    assert str(report) == f"0 of 0 activations converted; {nothing}"
    assert convert(nn.Module(), "invact").sites == []


def test_twice_changes_nothing() -> None:
    net = Everything()
    first = convert(net, "fewbit", bits=4)
    modules, forward = [*net.modules()], vars(net)["forward"]
    second = convert(net, "invact")
    assert second.converted == []
    assert "it uses fewbit already; revert that first" in set(reasons(second).values())
    assert [*net.modules()] == modules
    assert vars(net)["forward"] is forward
    second.revert()
    assert [*net.modules()] == modules
    first.revert()
    assert isinstance(net.act, nn.SiLU)
    assert not isinstance(net.act, kernels.SiLU)


def test_reverting_what_was_replaced_since_says_so_and_puts_back_the_rest() -> None:
    net = mlp(nn.GELU(), nn.SiLU())
    second = net[2]
    report = convert(net, "invact")
    net[1] = nn.ReLU()
    with pytest.raises(KernelError, match="1 must be as convert left it, but was replaced since"):
        report.revert()
    assert isinstance(net[1], nn.ReLU)
    assert net[2] is second


def test_include_and_exclude() -> None:
    def names(**options: Any) -> list[str]:
        net = nn.ModuleDict({"a": mlp(nn.GELU()), "b": mlp(nn.SiLU(), nn.GELU())})
        return [site.name for site in convert(net, "invact", **options).converted]

    assert names() == ["a.1", "b.1", "b.2"]
    assert names(include="b") == ["b.1", "b.2"]
    assert names(include=["a.*", "b.2"]) == ["a.1", "b.2"]
    assert names(exclude="*.1") == ["b.2"]
    assert names(include="b", exclude=["b.1"]) == ["b.2"]
    assert names(include=[]) == []


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "inputs must be given for method='auto'"),
        ({"method": "magic"}, "method must be one of auto, .*, got 'magic'"),
        ({"method": "invact", "bits": 3}, "bits must be 1 or 2 for method='invact', got 3"),
        ({"method": "forward-ad", "bits": 3}, "bits must go with .*'fewbit' or .*'compress', got method='forward-ad'"),
        ({"method": "fewbit", "bits": 9}, "bits must be a whole number from 1 to 8, got 9"),
        ({"method": "fewbit", "bits": True}, "bits must be a whole number from 1 to 8, got True"),
        ({"method": "approx-backprop", "bits": 1}, "bits must be a whole number from 2 to 8 .*, got 1"),
        ({"method": "approx-backprop", "scheme": "best"}, "scheme must be one of robust, .*, got 'best'"),
        ({"method": "fewbit", "scheme": "group"}, "scheme must go with method='approx-backprop', got"),
        ({"method": "approx-backprop", "coefficients": "x.json"}, "coefficients must go with method='fewbit', got"),
        ({"method": "invact", "max_derivative_error": 0.1}, "max_derivative_error must go with method='auto'"),
        ({"method": "approx-backprop", "max_derivative_error": 0.1}, "max_derivative_error must go with method='auto'"),
        ({"inputs": X, "max_derivative_error": -1}, "max_derivative_error must be a number of 0 or more, got -1"),
        ({"inputs": X, "max_derivative_error": math.nan}, "max_derivative_error must be .* 0 or more, got nan"),
        ({"method": "invact", "include": "gelu"}, "include must name activations .*, got 'gelu'; there are 1"),
        ({"method": "invact", "exclude": 3}, "include and exclude must be names or patterns, got 3"),
        ({"method": "invact", "inputs": 3}, "inputs must be a tensor, a tuple or a mapping, got int"),
        ({"inputs": {1: X}}, r"inputs must be a mapping of names, .*, got \[1\]"),
    ],
)
def test_bad_arguments_change_nothing(kwargs: dict, message: str) -> None:
    net = mlp(nn.GELU())
    act = net[1]
    with pytest.raises(KernelError, match=f"^{message}") as caught:
        convert(net, **kwargs)
    assert "\n" not in str(caught.value)
    assert net[1] is act


def test_a_model_that_is_none() -> None:
    with pytest.raises(KernelError, match=r"model must be a torch\.nn\.Module, got function"):
        convert(mlp, "invact")


@pytest.mark.parametrize(
    ("inputs", "got"),
    [
        (torch.randn(3, 5), "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ((X, X), "TypeError: Sequential.forward() takes 2 positional arguments but 3 were given"),
        ({"y": X}, "TypeError: Sequential.forward() got an unexpected keyword argument 'y'"),
        ([], "TypeError: Sequential.forward() missing 1 required positional argument"),
    ],
)
@pytest.mark.parametrize("method", ["auto", "fewbit"])
def test_inputs_that_do_not_fit_leave_the_model_as_it_was(method: str, inputs: Any, got: str) -> None:
    net = mlp(nn.GELU())
    before = [*net.modules()]
    with pytest.raises(KernelError) as caught:
        convert(net, method, inputs=inputs)
    text = str(caught.value).replace("addmm: ", "")  # since torch 2.15
    assert text.startswith(f"inputs must be what the model can be called with, got {got}")
    assert "\n" not in str(caught.value)
    assert [*net.modules()] == before


def test_the_report_as_text_and_json() -> None:
    net = nn.Sequential(mlp(nn.GELU()), nn.Linear(16, 24), mlp(nn.GELU()), nn.PReLU())
    report = convert(net, "fewbit", bits=1, inputs=X)
    tensor, bits = 33 * 40 * 4, math.ceil(33 * 40 / 8)
    text = str(report).splitlines()
    assert text[0].startswith("2 of 3 activations converted; kept for backward: ")
    assert "| *.1 | GELU | fewbit, 1 bit | 2 | 10.3 KiB | 330 B | 2.2e-01 |" in text
    assert text[-1] == "- 3, PReLU: its slope is learned"
    assert report.before.total - report.after.total == 2 * (tensor - bits)
    document = json.loads(report.to_json())
    assert (document["before"], document["after"]) == (report.before.total, report.after.total)
    first = document["sites"][0]
    assert (first["name"], first["before"], first["after"]) == ("0.1", tensor, bits)
    assert document["sites"][2]["reason"] == "its slope is learned"
