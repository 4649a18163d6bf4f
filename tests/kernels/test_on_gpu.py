"""What only CUDA can get wrong: large tensors, streams, compiled models, training. Sizes are tiny without CUDA."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch._dynamo.utils import counters

import actfit
from actfit import compress
from actfit.kernels.activation import activation
from actfit.kernels.generated.functions import FUNCTIONS
from actfit.kernels.stock import STOCK
from tests.kernels.compression import graphs, models
from tests.kernels.compression.cuts import full_width

CUDA = torch.cuda.is_available()
PLACE = "cuda" if CUDA else "cpu"
METHODS: dict[str, dict[str, object]] = {
    "forward-ad": {"method": "forward-ad"},
    "fewbit": {"method": "fewbit", "bits": 3},
    "invact": {"method": "invact"},
}
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("ignore:Logical operators:UserWarning")]
each_method = pytest.mark.parametrize("method", METHODS)


def both(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


@each_method
@pytest.mark.parametrize("name", FUNCTIONS)
def test_devices_agree_in_float32(name: str, method: str) -> None:
    """To 4 eps, a rounding of each value, one for a branch bit and one to spare; and 2**-17, where f' is about 1."""
    x, grad = (torch.randn(10_007, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    options = METHODS[method]
    if options["method"] == "fewbit" and not FUNCTIONS[name].bounded_derivative:
        pytest.skip("its f' has no bound: no table serves every x")
    on_gpu = both(lambda x: activation(name, x, **options), x.to(PLACE), grad.to(PLACE))
    on_cpu = both(lambda x: activation(name, x, **options), x, grad)
    for got, expected, scale in zip(on_gpu, on_cpu, (1.0, 1.0 + grad.abs()), strict=True):
        limit = 4 * torch.finfo(torch.float32).eps * expected.abs() + 2.0**-17 * scale
        # Next to a border, x may select another branch or step; other tests compare the codes bit for bit.
        assert ((got.cpu() - expected).abs() <= limit).float().mean() > 0.999
    y = STOCK[name](x.double(), *FUNCTIONS[name].parameters.values())
    assert ((on_gpu[0].cpu() - y).abs() <= 1e-5 * (1 + y.abs())).all()


@each_method
def test_more_elements_than_31_bits_count(method: str) -> None:
    count = (1 << 31) + 4096 if CUDA else 70_000  # 4 GiB each in bfloat16
    if CUDA and torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of the GPU's memory")
    x = torch.zeros(count, dtype=torch.bfloat16, device=PLACE)
    head = torch.linspace(-4, 4, 4096, device=PLACE).to(torch.bfloat16)
    x[:4096], x[-4096:] = head, head
    y, dx = both(lambda x: activation("gelu", x, **METHODS[method]), x, torch.ones(1, device=PLACE).to(x).expand(count))
    expected = both(lambda x: activation("gelu", x, **METHODS[method]), head, torch.ones_like(head))
    for got, small in zip((y, dx), expected, strict=True):
        assert torch.equal(got[:4096], small)
        assert torch.equal(got[-4096:], small)


@each_method
def test_twice_the_same(method: str) -> None:
    """In many runs, a race would show."""
    x, grad = (torch.randn(1 << (22 if CUDA else 12), device=PLACE).bfloat16() for _ in range(2))
    first = both(lambda x: activation("silu", x, **METHODS[method]), x, grad)
    for _ in range(20 if CUDA else 2):
        assert all(map(torch.equal, first, both(lambda x: activation("silu", x, **METHODS[method]), x, grad)))


def net(**options: Any) -> nn.Module:
    """With activations of ours where there are options."""
    torch.manual_seed(0)
    acts = (actfit.nn.GELU(**options), actfit.nn.SiLU(**options)) if options else (nn.GELU(), nn.SiLU())
    return nn.Sequential(nn.Linear(64, 256), acts[0], nn.Linear(256, 256), acts[1], nn.Linear(256, 8)).to(PLACE)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().mean(), [*model.parameters()]))


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_compiled_as_in_eager(options: dict[str, object]) -> None:
    torch._dynamo.reset()
    x, model = torch.randn(32, 64, device=PLACE), net(**options)
    expected = gradients(model, x)
    got = gradients(torch.compile(model, dynamic=False, backend="inductor" if CUDA else "aot_eager"), x)
    # Products of matrices may be summed in another order, so of 8192 activations some next to a border of few bits
    # take the other step, which is 0.3 at most. Eight of them move a gradient by 0.3 * sqrt(8 / 8192) of its size.
    limit = 0.01 if options["method"] == "fewbit" else 1e-4
    for gradient, exact in zip(got, expected, strict=True):
        assert (gradient - exact).norm() <= limit * exact.norm()


def coded_error(bits: int, dtype: torch.dtype, place: str, generates: bool = CUDA) -> float:
    """The gradient's error of a model compiled with codes: by Inductor if it `generates`, or operation by operation."""
    torch.manual_seed(0)
    blocks = [models.Llama()] * (CUDA or not generates)  # Inductor takes long to compile it for a CPU
    model, x = nn.Sequential(*blocks, models.mlp(64)).to(place, dtype), torch.randn(2, 64, 64).to(place, dtype)
    expected = gradients(model, x)
    options = actfit.options(bits=bits)
    torch._dynamo.reset()
    with inductor_config.patch(force_disable_caches=True):  # caches would not distinguish codes of full width
        if generates:
            run = torch.compile(model, options=options)
        else:
            run = graphs.compiled(model, options["custom_partitioner_fn"])
        return graphs.error(gradients(run, x), expected)


a_compiler_may_warn = pytest.mark.filterwarnings("ignore::UserWarning")


@a_compiler_may_warn
def test_coded_partitions_have_the_right_places() -> None:
    """With codes that hold all bits, the gradient is eager's."""
    with full_width():
        assert coded_error(4, torch.float32, PLACE, generates=True) < 1e-5


@a_compiler_may_warn
@pytest.mark.parametrize(("bits", "dtype", "rel"), [(8, torch.float32, 0.1), (4, torch.bfloat16, 0.2)])
def test_coded_partitions_err_as_on_a_cpu(bits: int, dtype: torch.dtype, rel: float) -> None:
    """Rounding moves few codes by a step, so the sizes of the errors agree."""
    error = coded_error(bits, dtype, PLACE)
    assert not CUDA or error == pytest.approx(coded_error(bits, dtype, "cpu", generates=False), rel=rel)
    assert 0 < error < 2 * 2.0**-bits


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@a_compiler_may_warn
def test_coded_partitions_replay_as_graphs_of_cuda() -> None:
    """Codes live in the pool of a graph between forward and backward; each replay must find its own."""
    options = actfit.options(bits=4)
    model, inputs = blocks(), [torch.randn(2, 64, 64, device=PLACE) for _ in range(4)]
    torch._dynamo.reset()
    plain = [gradients(torch.compile(model, options=options), x) for x in inputs]
    torch._dynamo.reset()
    run = torch.compile(model, options={**options, "triton.cudagraphs": True})
    counters.clear()
    for _ in range(3):  # the first runs warm up and record
        for x, expected in zip(inputs, plain, strict=True):
            torch.compiler.cudagraph_mark_step_begin()
            assert graphs.error(gradients(run, x), expected) < 1e-4
    assert not counters["inductor"]["cudagraph_skips"]  # else Inductor ran without graphs, in silence


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_captured_in_a_graph_of_cuda() -> None:
    x = torch.randn(4096, device=PLACE, requires_grad=True)
    act = actfit.nn.GELU(method="fewbit", bits=3)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (expected,) = torch.autograd.grad(act(x).sum(), x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(act(x).sum(), x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(gradient, expected)


def blocks() -> nn.Module:
    """Attention, gates, norms and layers, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(models.Llama(), models.mlp(64)).to(PLACE)


def test_captured_exact() -> None:
    """Forward bit for bit; CUDA adds gradients in no fixed order."""
    x, exact, model = torch.randn(2, 64, 64, device=PLACE), blocks(), blocks()
    handle = compress(model)
    assert torch.equal(model(x), exact(x))
    for got, expected in zip(gradients(model, x), gradients(exact, x), strict=True):
        torch.testing.assert_close(got, expected)
    assert handle.report.graphs
    assert not handle.stock


@pytest.mark.parametrize("bits", [8, 4])
def test_captured_in_few_bits_trains(bits: int) -> None:
    """As in float32 on the same device: forward exactly, an approximate gradient."""
    x, exact, model = torch.randn(2, 64, 64, device=PLACE), blocks(), blocks()
    compress(model, bits=bits)
    assert torch.equal(model(x), exact(x))
    error = graphs.error(gradients(model, x), gradients(exact, x))
    assert 0 < error <= 4 * 2.0**-bits


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("bits", [None, 8])
def test_a_captured_step_replays_as_a_graph_of_cuda(bits: int | None) -> None:
    """A whole step, recorded by torch.cuda.graph after some steps beside, with the next batch in place of the first."""
    batches = [torch.randn(2, 64, 64, device=PLACE) for _ in range(3)]
    exact, model, x = blocks(), blocks(), batches[0].clone()
    compress(model, bits=bits)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().sum().backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        exact.zero_grad(set_to_none=True)
        exact(batch).square().sum().backward()
        got, expected = ([p.grad for p in each.parameters() if p.grad is not None] for each in (model, exact))
        assert len(got) == len(expected) > 0
        assert graphs.error(got, expected) <= (1e-4 if bits is None else 4 * 2.0**-bits)


def test_a_model_under_autocast_takes_a_step() -> None:
    model, x = net(), torch.randn(16, 64, device=PLACE)
    compress(model, bits=8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for _ in range(5):
        with torch.autocast(PLACE, torch.bfloat16):
            result = model(x).float().square().mean()
        result.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        losses.append(float(result.detach()))
    assert losses[-1] < losses[0]
