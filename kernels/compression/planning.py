"""The basis of plans for compiled models: the tensors that cross in their graphs, and the errors of codes there.

The model is compiled as torch.compile does by default, up to the point where Inductor would generate code; then graphs
run operation by operation. So the tensors that cross, and their names, are those of later training.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from actfit.kernels.compression import codes, forms, private
from actfit.kernels.compression.cut import Cut
from actfit.kernels.compression.forms import MAX_BITS, Groups, bytes_of, coded_bytes
from actfit.kernels.compression.partitioner import CodedPartitioner
from actfit.kernels.compression.splice import let_cross
from actfit.kernels.errors import KernelError
from actfit.kernels.memory.compiled import nodes, saved_of
from actfit.kernels.memory.isolated import forget_fakes, on_fakes, train
from actfit.kernels.memory.making import line
from actfit.kernels.memory.storages import addresses, storages, tensors
from actfit.kernels.methods.every_tensor import EveryTensor
from actfit.kernels.planning.decoded import relative_error
from actfit.kernels.planning.sensitivity import Gradients, Trials
from actfit.kernels.planning.step import SavedSite, Step
from actfit.kernels.planning.task import Blocks, BlockWays, Task
from actfit.kernels.private import check_release


class CompiledGradients(Gradients):
    """As `Gradients`, of the compiled model."""

    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        return run(model, TrialPartitioner(self._trials), args, kwargs)


class CompiledTask(Task):
    """As `Task`, of a model that will be compiled as a whole, with fixed sizes."""

    compiled: ClassVar[bool] = True
    gradients: ClassVar[type[Gradients]] = CompiledGradients

    @property
    def blocks(self) -> Blocks:
        """None: PyTorch's partitioner decides what backward computes again."""
        return ()

    def _observed(self, ways: BlockWays, whole: Set[str] = frozenset()) -> Step:
        check_release()
        cut = TrialPartitioner(Trials(self.rounding, smallest=forms.SMALLEST))
        try:
            with on_fakes(self.model, *self.call, compiled=True) as (copied, args, kwargs):
                if self.training:
                    train(copied)
                output = run(copied, cut, args, kwargs, cut.watch)
                beside = saved_beside(output, [*copied.parameters(), *copied.buffers(), *tensors((args, kwargs))])
            del copied, args, kwargs, output
        except KernelError:
            raise
        except Exception as error:  # of any kind, as the model or the compiler raises it
            raise KernelError(f"model must compile and run on fake tensors, got {line(error)}") from error
        finally:
            torch.compiler.reset()
            forget_fakes(lambda: True)
        if not cut.graphs:
            raise KernelError(
                f"model must be one that torch.compile makes graphs of for backward, got {type(self.model).__name__},"
                " of which it makes none; plan for compress, without compiled=True"
            )
        return step_of(cut, beside)

    @contextmanager
    def _gradients(self, *given: Any) -> Iterator[Gradients]:
        try:
            with super()._gradients(*given) as gradients:
                yield gradients
        finally:
            torch.compiler.reset()  # or the next compilation would know the samples' sizes


def run(
    model: nn.Module,
    cut: CodedPartitioner,
    args: Any,
    kwargs: Any,
    watch: Callable[[], Callable[[], object]] = lambda: lambda: None,
) -> Any:
    """The output of a model compiled with a partitioner; its graphs run operation by operation.

    `watch` is as in `private.interpreted`.
    """
    torch.compiler.reset()  # or sizes other than those of an earlier run would count as dynamic
    with torch.compiler.set_stance("default"), torch.enable_grad():
        return torch.compile(model, backend=private.interpreted(cut, watch), dynamic=False)(*args, **kwargs)


class TrialPartitioner(CodedPartitioner):
    """Lets tensors cross whole, and backward see their values as decoded from the codes on trial.

    Attributes
    ----------
    sites
        The sites of each graph, with their bytes.
    runs
        How often each graph ran forward, by its number, if `watch` is used: layers that are alike may share a graph.
    """

    def __init__(self, trials: Trials) -> None:
        super().__init__(EveryTensor(MAX_BITS, trials.rounding))
        self.smallest, self._trials = trials.smallest, trials
        self.sites: list[list[SavedSite]] = []
        self.runs: Counter[int] = Counter()

    def watch(self) -> Callable[[], object]:
        """A function that counts the runs of the graph that was cut last."""
        return partial(self.runs.update, [len(self.graphs) - 1])

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut) -> None:
        saved_sites = []
        for node, site in cut.sites.items():
            saved_sites.append(_saved(site, node.meta["val"], cut.forms[node]))
            seen_as(backward.graph, self._trials, site, cut, node)
        self.sites.append(saved_sites)
        let_cross(forward, backward, cut.outputs, list(cut.pairs))


def seen_as(backward: fx.Graph, trials: Trials, site: str, cut: Cut, node: fx.Node, *mark: fx.Node) -> None:
    """Let backward see a tensor that crosses whole as codes on trial would give it.

    mark: where modules share the graph, the number of the one that runs, whose site it is.
    """
    form, value, placeholder = cut.forms[node], node.meta["val"], cut.pairs[node]
    if not isinstance(form, Groups):
        raise KernelError(f"every site must have codes to be tried, got {site} without; report this")
    if not mark:
        trials.sites[site] = value.numel()
    with backward.inserting_after(backward.find_nodes(op="placeholder")[-1]):
        seen = backward.call_function(as_seen(trials, site, form, value), (placeholder, *mark))
    seen.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(seen, lambda user: user is not seen)


def as_seen(trials: Trials, site: str, form: Groups, value: Tensor) -> Callable[..., Tensor]:
    """A function from a tensor that crosses at a site to the one that backward sees."""
    layout, sizes = form.layout, form.layout.sizes(value)

    def seen(x: Tensor, *mark: Tensor) -> Tensor:
        name = trials.name(site, *mark)
        bits = trials.bits.get(name)
        if bits is None:
            return x
        groups = layout.split(x)
        noise = torch.rand_like(groups, dtype=torch.float32) if trials.rounding == "stochastic" else None
        made = codes.encode(groups, bits, noise, of_roots=form.of_roots)
        result = layout.join(codes.decode(made, bits, x.dtype, form.of_roots), sizes)
        error = relative_error(result, x)
        trials.decoded.note(name, bits, error, x.dtype, layout.group, trials.rounding)
        return result

    return seen


def _saved(site: str, value: Tensor, form: Any) -> SavedSite:
    """The site of `Groups`, alive during the whole step: when the compiler makes and frees its tensor is unknown."""
    with_1_bit, with_2_bits = (coded_bytes(value, Groups(bits, form.layout)) for bits in (1, 2))
    return SavedSite(site, bytes_of(value), with_2_bits - with_1_bit, 2 * with_1_bit - with_2_bits, 0, 1)


def saved_beside(output: Any, own: Sequence[Tensor]) -> int:
    """Bytes that autograd saves outside of compiled graphs, except `own` tensors and those that graphs save, too."""
    saved: tuple[dict[int, int], dict[int, int]] = {}, {}  # bytes by storage: outside of graphs, and in them
    for node in nodes(output):
        into = saved["CompiledFunction" in node.name()]
        into |= {storage._cdata: storage.nbytes() for x in saved_of(node) for storage in storages(x)}
    known = saved[1].keys() | addresses(own)
    return sum(count for key, count in saved[0].items() if key not in known)


def step_of(cut: TrialPartitioner, beside: int) -> Step:
    """The step of all graphs, each counted as often as it runs, and the bytes beside them; each site once."""
    joined: dict[str, SavedSite] = {}
    for number, sites in enumerate(cut.sites):
        times = cut.runs[number]
        for site in sites:
            before = joined.get(site.name, replace(site, whole=0, per_bit=0, fixed=0))
            joined[site.name] = replace(
                before,
                whole=before.whole + times * site.whole,
                per_bit=before.per_bit + times * site.per_bit,
                fixed=before.fixed + times * site.fixed,
            )
    saved = beside + sum(cut.runs[number] * graph.after for number, graph in enumerate(cut.graphs))
    return Step(list(joined.values()), MAX_BITS, (), 1, saved)
