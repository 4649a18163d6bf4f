"""What plans for compiled models are made by: the tensors that cross in their graphs, and what codes there do.

The model is compiled as torch.compile does it by default, up to the point where Inductor would generate code: graphs
run operation by operation. So the tensors that cross are those of the training to come, and have the same names.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from kernels.compression import codes, forms, private
from kernels.compression.cut import Cut
from kernels.compression.forms import MOST, Groups, bytes_of, coded_bytes
from kernels.compression.partitioner import CodedPartitioner, check_release
from kernels.compression.splice import let_cross
from kernels.errors import KernelError
from kernels.memory.compiled import nodes, saved_of
from kernels.memory.isolated import forget_fakes, on_fakes, train
from kernels.memory.making import line
from kernels.memory.storages import addresses, storages, tensors
from kernels.methods.every_tensor import EveryTensor
from kernels.planning.observe import SavedSite, Step
from kernels.planning.sensitivity import Bits, Gradients, Trials
from kernels.planning.task import Blocks, Task

# Of the sites of a batch, a step of few samples may do without so many: their errors are guessed to be as large as any,
# and are not in what is measured at last. That this stays little is our choice; the networks tried had 1 of 18 or none.
MISSING = 0.1


class TriedGradients(Gradients):
    """As `Gradients`, of the model as it is compiled."""

    def _output(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        return run(model, Trying(self._trials), args, kwargs)

    def _try(self, bits: Bits) -> None:
        self._trials.bits = bits


class CompiledTask(Task):
    """As `Task`, of a model that will be compiled: in whole, with sizes that do not change."""

    compiled: ClassVar[bool] = True
    gradients: ClassVar[type[Gradients]] = TriedGradients

    @property
    def blocks(self) -> Blocks:
        """None: what backward computes again, PyTorch's partitioner says."""
        return ()

    def _observed(self, blocks: Blocks) -> Step:
        check_release()
        cut = Trying(Trials(self.rounding, smallest=forms.SMALLEST))
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
                " of which it makes none; plan for eager mode, without compiled=True"
            )
        return step_of(cut, beside)

    def _miss(self, missing: Set[str], of: int) -> None:
        """Go on if they are few: which tensors PyTorch lets cross goes by their sizes, too."""
        if len(missing) > MISSING * of:
            raise KernelError(
                f"samples must be cut as the whole batch, got none of {len(missing)} of its {of} saved tensors, such as"
                f" {min(missing)!r}; give more samples=, in a plan for a compiled model"
            )

    @contextmanager
    def _gradients(self, *given: Any) -> Iterator[Gradients]:
        try:
            with super()._gradients(*given) as gradients:
                yield gradients
        finally:
            torch.compiler.reset()  # what is compiled next knows nothing of samples


def run(
    model: nn.Module,
    cut: CodedPartitioner,
    args: Any,
    kwargs: Any,
    watch: Callable[[], Callable[[], object]] = lambda: lambda: None,
) -> Any:
    """What a model gives, compiled with a partitioner; its graphs run operation by operation.

    `watch` is as of `private.interpreted`.
    """
    torch.compiler.reset()  # or sizes that differ from those of a run before would count as sizes that change
    with torch.compiler.set_stance("default"), torch.enable_grad():
        return torch.compile(model, backend=private.interpreted(cut, watch), dynamic=False)(*args, **kwargs)


class Trying(CodedPartitioner):
    """Lets tensors cross whole, of which backward sees what would come out of the codes that are tried.

    Attributes
    ----------
    sites
        Of each graph, with their bytes.
    runs
        How often each graph ran forward, by its number, if it was told to `watch`: layers that are alike may share one.
    """

    def __init__(self, trials: Trials) -> None:
        super().__init__(EveryTensor(MOST, trials.rounding))
        self.smallest, self._trials = trials.smallest, trials
        self.sites: list[list[SavedSite]] = []
        self.runs: Counter[int] = Counter()

    def watch(self) -> Callable[[], object]:
        """What counts the runs of the graph that was cut last."""
        return partial(self.runs.update, [len(self.graphs) - 1])

    def _write(self, forward: fx.GraphModule, backward: fx.GraphModule, cut: Cut) -> None:
        last = backward.graph.find_nodes(op="placeholder")[-1]
        found = []
        for node, site in cut.sites.items():
            form, value, placeholder = cut.forms[node], node.meta["val"], cut.pairs[node]
            if not isinstance(form, Groups):
                raise KernelError(f"every site must have codes to be tried, got {site} without; report this")
            self._trials.sites[site] = value.numel()
            found.append(_saved(site, value, form))
            with backward.graph.inserting_after(last):
                seen = backward.graph.call_function(_seen(self._trials, site, form, value), (placeholder,))
            seen.meta = dict(placeholder.meta)
            placeholder.replace_all_uses_with(seen, lambda user, seen=seen: user is not seen)
        self.sites.append(found)
        let_cross(forward, backward, cut.outputs, list(cut.pairs))


def _seen(trials: Trials, site: str, form: Groups, value: Tensor) -> Callable[[Tensor], Tensor]:
    """What makes of a tensor that crosses at a site what backward is to see."""
    places, sizes = form.places, form.places.sizes(value)

    def seen(x: Tensor) -> Tensor:
        bits = trials.bits.get(site)
        if bits is None:
            return x
        groups = places.split(x)
        noise = torch.rand_like(groups, dtype=torch.float32) if trials.rounding == "stochastic" else None
        return places.join(codes.decode(codes.encode(groups, bits, noise), bits, x.dtype), sizes)

    return seen


def _saved(site: str, value: Tensor, form: Groups) -> SavedSite:
    """It is there from the first moment to the last: of when the compiler makes and frees it, nothing is known."""
    one, two = (coded_bytes(value, Groups(bits, form.places)) for bits in (1, 2))
    return SavedSite(site, bytes_of(value), two - one, 2 * one - two, 0, 1)


def saved_beside(output: Any, own: Sequence[Tensor]) -> int:
    """Bytes that autograd saves outside of compiled graphs, without those of `own` and what graphs save, too."""
    kept: tuple[dict[int, int], dict[int, int]] = {}, {}  # outside, and in graphs: by storage
    for node in nodes(output):
        into = kept["CompiledFunction" in node.name()]
        into |= {storage._cdata: storage.nbytes() for x in saved_of(node) for storage in storages(x)}
    known = kept[1].keys() | addresses(own)
    return sum(count for key, count in kept[0].items() if key not in known)


def step_of(cut: Trying, beside: int) -> Step:
    """What crosses in all graphs as often as they run, and bytes beside it; each site once."""
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
    kept = beside + sum(cut.runs[number] * graph.after for number, graph in enumerate(cut.graphs))
    return Step(list(joined.values()), MOST, (), 1, kept)
