"""What is private in PyTorch is named in one module, touched when it is used, and missed with a clear line."""

import ast
import re
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import actfit
from actfit import KernelError
from actfit.kernels import private
from actfit.kernels.graph import inductor
from actfit.kernels.memory import Recorder, peak_bytes, saved_bytes
from tests.modules import ROOT, Module, read_modules

# Attributes of tensors, storages, modules and nodes that are at hand: touched where they are read, and nowhere else.
OF_OBJECTS = {
    *("_version", "_base", "_is_view", "_cdata", "_indices", "_values", "_backward_hooks", "_saved_"),
    *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_pre_hooks"),
    *("_check_input_dim", "_compiled_call_impl", "_orig_mod", "_schema", "_input_metadata", "_forward_cls"),
    *("_dispatch_cache", "_make_wrapper_subclass", "_new_with_weak_ptr"),
}


def names_of_torch(tree: ast.Module) -> Iterator[str]:
    """Each private name that a module imports from torch, or reads of what it imported from there."""
    torchs = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            torchs |= {alias.asname or alias.name for alias in node.names}
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "torch")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("f_code", "f_locals", "__func__"):
            yield f".{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            text = ast.unparse(node)
            if text.partition(".")[0] in torchs and not text.startswith("torch.ops."):
                yield text


def private_names(modules: list[Module]) -> list[str]:
    """Those of all modules but the one that names them."""
    return [
        f"{module.name} {name}"
        for module in modules
        for name in names_of_torch(module.tree)
        if module.name != private.__name__
        and any((part.startswith(("_", "f_")) and part[:2] != "__") or part == "__func__" for part in name.split("."))
        and name.rpartition(".")[2] not in OF_OBJECTS
    ]


def test_what_is_named_is_used() -> None:
    text = "".join(
        path.read_text() for folder in ("actfit", "kernels", "codegen") for path in (ROOT / folder).rglob("*.py")
    )
    used = set(re.findall(r"private\.(\w+)|_private\(\"(\w+)\"\)", text))
    assert private.NAMES.keys() - {name for pair in used for name in pair} == set()


def test_one_module_names_what_is_private_in_torch() -> None:
    ours = [module for module in read_modules(ROOT) if not module.name.startswith("actfit.kernels.generated")]
    assert private_names(ours) == []


def test_no_module_imports_names_of_torch_from_there() -> None:
    """It would touch them when it is imported."""
    imported = [
        f"{module.name} {alias.name}"
        for module in read_modules(ROOT)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == private.__name__
        for alias in node.names
        if alias.name in private.NAMES
    ]
    assert imported == []


@pytest.mark.parametrize("name", private.NAMES)
def test_this_release_has_every_name(name: str) -> None:
    assert getattr(private, name) is not None


def test_what_is_missing_costs_what_needs_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    monkeypatch.delitem(vars(private), "FakeTensorMode", raising=False)
    monkeypatch.setitem(private.NAMES, "FakeTensorMode", "torch._gone.FakeTensorMode")
    with pytest.raises(KernelError, match=r"^torch must have torch\._gone\.FakeTensorMode for this, got .* has it$"):
        peak_bytes(model, x)
    assert saved_bytes(model, x).inputs == 32
    actfit.nn.GELU(method="fewbit")(x.requires_grad_()).sum().backward()
    assert x.grad is not None


def at_release(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", release)
    monkeypatch.setattr(private, "check_release", private.check_release.__wrapped__)
    monkeypatch.setattr(inductor, "check_release", private.check_release)


@pytest.mark.parametrize("release", ["2.16.0+cu140", "3.0.1"])
def test_a_newer_release_is_tried_with_a_warning(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_release(release, monkeypatch)
    with pytest.warns(UserWarning, match=rf"tested with torch up to 2\.15, not with {release[:4]}"):
        assert "custom_partitioner_fn" in actfit.options()


def test_the_warning_comes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    private.check_release.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            actfit.options()
    private.check_release.cache_clear()
    assert len(caught) == 1


@pytest.mark.parametrize("release", ["2.8.1", "1.13.0"])
def test_a_release_that_is_too_old_is_refused(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_release(release, monkeypatch)
    with pytest.raises(KernelError, match=rf"^torch must be 2\.9 or newer, got {release}; pip install 'torch>=2\.9'$"):
        actfit.options()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_the_function_that_saves_is_known_within_each_other() -> None:
    """And Function.apply is torch's own again afterwards."""
    before = vars(torch.autograd.Function)["apply"]
    x = torch.ones(8, 8, requires_grad=True)
    with Recorder() as outer:
        first = Doubled.apply(x)
        with Recorder() as inner:
            second = Doubled.apply(x)
        third = Doubled.apply(x)
    for recorder, results, count in ((inner, second, 1), (outer, (first, third), 2)):
        saved = recorder.saved(results).tensors
        assert [by.operation for tensor in saved if tensor.seen for by in tensor.by] == ["Doubled"] * count
    assert vars(torch.autograd.Function)["apply"] is before
    with pytest.raises(ZeroDivisionError), Recorder():
        _ = 1 / 0
    assert vars(torch.autograd.Function)["apply"] is before
