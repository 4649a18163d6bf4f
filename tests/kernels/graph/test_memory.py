"""Memory of compressed models: nothing is held past its use, models go without the collector, measures agree."""

import gc
import weakref
from collections.abc import Iterator

import pytest
from torch import Tensor, nn
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from actfit import compress
from actfit.kernels.memory.measure import saved_bytes
from actfit.kernels.memory.saved import size
from tests.kernels.graph.nets import Block, assert_same, batch, net, pair

BITS = pytest.mark.parametrize("bits", [None, 8])


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@BITS
@pytest.mark.usefixtures("_without_collector")
def test_a_model_is_freed_with_its_last_reference(bits: int | None) -> None:
    """It, its weights and what it saved; and what was captured with the handle."""
    model = net()
    handle = compress(model, bits=bits)
    model(batch()).sum().backward()
    output = model(batch())
    alive = [weakref.ref(x) for x in (model, model[0], model[0].up.weight, output.grad_fn)]
    del model, output
    handle.remove()
    assert [x() for x in alive[-1:]] == [None]
    engine = weakref.ref(handle._engine)
    del handle
    assert [x() for x in alive] == [None] * 4
    gc.collect()  # Dynamo's own objects refer to each other
    assert engine() is None


class Deciding(Block):
    """Reads numbers of what it computes, as routers do; the graph of the second one has no result with a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        return made if int(made.argmax()) >= 0 and int(made.argmin()) >= 0 else x


@pytest.mark.usefixtures("_without_collector")
def test_graphs_without_gradients_hold_no_graph_before_them() -> None:
    model = nn.Sequential(Deciding(), Deciding())
    compress(model)
    nodes = []
    for block in model:
        block.register_forward_hook(lambda block, given, made: nodes.append(weakref.ref(made.grad_fn)))
    for _ in range(2):
        del nodes[:]
        model(batch())  # whose loss is never computed: backward would free what is saved
    assert [node() for node in nodes] == [None, None]


@BITS
def test_the_peak_is_no_more_than_what_is_saved_and_a_block(bits: int | None) -> None:
    """By the allocator's events: the peak of a deep model is what it saves and what a model of one block needs."""

    def peak(layers: int) -> tuple[int, int]:
        model, x = net(layers=layers), batch(2048).requires_grad_()
        compress(model, bits=bits)
        for _ in range(2):
            model(x).sum().backward()  # gradients exist from then on
        with profile(profile_memory=True) as seen:
            model(x).sum().backward()
        now = most = 0
        for event in sorted(seen.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return most, saved_bytes(model, x).total

    (shallow, saved), (deep, saved_deep) = peak(1), peak(6)
    assert deep - shallow <= saved_deep - saved


def test_within_a_dispatch_mode_stock_runs_and_says_so() -> None:
    stock, ours, _ = pair()
    with FlopCounterMode(display=False) as of_stock:
        stock(batch()).square().sum().backward()
    with pytest.warns(UserWarning, match="ran as stock: within a TorchDispatchMode"):  # noqa: SIM117
        with FlopCounterMode(display=False) as of_ours:
            ours(batch()).square().sum().backward()
    assert of_ours.get_total_flops() == of_stock.get_total_flops()
    assert_same(ours, stock)


def test_a_call_within_a_dispatch_mode_changes_no_later_one() -> None:
    _, ours, _ = pair()
    expected = saved_bytes(ours, batch(), fake=False).total
    with pytest.warns(UserWarning, match="ran as stock"), FlopCounterMode(display=False):
        ours(batch())
    assert saved_bytes(ours, batch(), fake=False).total == expected


def test_a_batch_too_small_for_codes_changes_no_later_one() -> None:
    _, ours, _ = pair(bits=8)
    expected = saved_bytes(ours, batch(), fake=False).total
    for rows in (3, 5, 96, 95):
        ours(batch(rows)).sum().backward()
    assert saved_bytes(ours, batch(), fake=False).total == expected
    assert saved_bytes(ours, batch(80), fake=False).total < expected


def test_blocks_of_two_kinds_have_a_table_each() -> None:
    """Whose operations and sizes are the same."""

    class Other(Block):
        pass

    model = nn.Sequential(Block(), Block(), Other(), Other())
    handle = compress(model)
    model(batch()).sum().backward()
    assert [line.split(":")[0] for line in str(handle).splitlines() if line.startswith("graph ")] == [
        "graph 1",
        "graph 3",
    ]


def test_the_handle_shows_the_largest_of_the_sizes() -> None:
    _, ours, handle = pair(net(layers=1))
    ours(batch(96)).sum().backward()
    once = str(handle)
    for rows in (32, 64, 16):
        handle._engine.entries.clear()  # else two sizes would make one graph for all others
        ours(batch(rows)).sum().backward()
    *rest, told, blank, last = str(handle).splitlines()
    assert [*rest, blank, last] == once.splitlines()
    first, *_, third = (graph.after for graph in sorted(handle.report.graphs[1:], key=lambda graph: graph.after))
    assert told == f"  and 3 more of the same modules, as for other sizes: {size(first)} to {size(third)}"
