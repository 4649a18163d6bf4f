"""What a conversion did at each site, and how to undo it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from kernels.conversion.changes import Change, undo
from kernels.eager.watch import Watch
from kernels.eager.whole import WholeTensor
from kernels.memory.saved import Saved, common, like, size
from kernels.planning.plan import Plan
from kernels.planning.safety import Checked
from kernels.planning.sensitivity import like_site

SHOWN = 0.02  # share of all saved bytes above which an operation gets a line


@dataclass(frozen=True)
class Converted:
    """What became of one site.

    Attributes
    ----------
    name
        Its name in the model.
    function
        The catalogue's name; "" if it has none, as a layer.
    was
        The module or function before.
    now
        The method by which it saves now.
    before, after
        Bytes that only it saves for backward; None if not measured.
    derivative_error
        Root mean square error of f'(x) for x from N(0, 1); None if not measured.
    reason
        Why it was left alone, or "".
    """

    name: str
    function: str
    was: str
    now: str
    before: int | None = None
    after: int | None = None
    derivative_error: float | None = None
    reason: str = ""


@dataclass
class Report:
    """All sites of a model, as `convert` left them. `str(report)` is a table.

    Attributes
    ----------
    sites
        All sites.
    before, after
        What the model saves for backward; None if no inputs were given.
    whole
        With compress: the tensors that are saved whole, without parameters and inputs; None likewise.
    plan
        The plan, if the conversion was by one.
    checked
        With compress and inputs, without a budget: the error of the gradient of two samples, beside what is predicted.
    watch
        With a plan: the errors of decoded tensors, as they are seen in training.
    """

    sites: Sequence[Converted]
    before: Saved | None = None
    after: Saved | None = None
    whole: Sequence[WholeTensor] | None = None
    plan: Plan | None = None
    checked: Checked | None = None
    watch: Watch | None = None
    _changes: list[Change] = field(default_factory=list, init=False, repr=False)
    _reverted: bool = field(default=False, init=False, repr=False)

    @property
    def converted(self) -> list[Converted]:
        """The sites that were changed."""
        return [site for site in self.sites if not site.reason]

    @property
    def left(self) -> list[Converted]:
        """The sites that were left alone, each with its reason."""
        return [site for site in self.sites if site.reason]

    def revert(self) -> None:
        """Undo the conversion: restore the original objects. A second call does nothing.

        Raises
        ------
        KernelError
            After the rest is restored, if an object was replaced again since.
        """
        self._reverted = True
        undo(self._changes)

    def __str__(self) -> str:
        back = " (and put back since)" * self._reverted
        what = "layers and activations" if any(not site.function for site in self.converted) else "activations"
        what = "modules" if self.whole is not None else what
        lines = [f"{len(self.converted)} of {len(self.sites)} {what} converted{back}"]
        if self.before is not None and self.after is not None:
            share = 1 - self.after.total / self.before.total if self.before.total else 0.0
            change = f"{abs(share):.2%} {'less' if share >= 0 else 'more'}"
            lines[0] += (
                f"; kept for backward: {size(self.before.total)} before, {size(self.after.total)} after ({change})"
                if self.before.total
                else "; nothing is kept for backward, before or after, as where all weights are frozen"
            )
        if self.converted:
            has_errors = any(site.derivative_error is not None for site in self.converted)
            lines += ["", "| site | was | now | sites | before | after |" + " error of f' |" * has_errors]
            lines += ["|---|---|---|---:|---:|---:|" + "---:|" * has_errors]
            lines += [_row(group, has_errors) for group in _groups(self.converted)]
        if self.left:
            lines += ["", "Left alone:"]
            for group in _groups(self.left):
                times = f" ({len(group)} times)" if len(group) > 1 else ""
                lines.append(f"- {_name(group)}{times}, {group[0].was}: {group[0].reason}")
        lines += self._saved_whole()
        lines += ["", str(self.checked)] if self.checked is not None else []
        lines += ["", "The plan:", str(self.plan)] if self.plan is not None else []
        lines += self._seen()
        return "\n".join(lines)

    def _seen(self) -> list[str]:
        """Lines for errors of decoded tensors that were seen in training; of tensors that are alike, the largest."""
        if self.watch is None or not self.watch.seen:
            return []
        kinds: dict[str, list[tuple[float, float | None]]] = {}
        for site, error in self.watch.seen.items():
            kinds.setdefault(like_site(site), []).append((error, self.watch.planned.get(site)))
        rows = [(kind, *max(errors, key=lambda pair: pair[0])) for kind, errors in kinds.items()]
        texts = [
            f"| {kind} | {error:.2%} | {'–' if planned is None else f'{planned:.2%}'} |"
            for kind, error, planned in rows
        ]
        return ["", "| decoded tensor, relative error | seen last | planned |", "|---|---:|---:|", *texts]

    def _saved_whole(self) -> list[str]:
        """Lines for operations without a rule, which save whole tensors, after a conversion that changes layers too."""
        if self.whole is not None:
            return self._saved_whole_with_reasons()
        if self.after is None or not any(not site.function for site in self.converted):
            return []
        ours = {like(site.name) for site in self.converted}
        whole = [group for group in self.after.groups() if group.method is None and group.module not in ours]
        large = [group for group in whole if group.bytes >= SHOWN * self.after.total]
        rows = [f"- {group.module or '(model)'}, {group.operation}: {size(group.bytes)}" for group in large]
        rest = sum(group.bytes for group in whole) - sum(group.bytes for group in large)
        rows += [f"- others: {size(rest)}"] if rest and rows else []
        return ["", "Kept whole, by operations without a rule:", *rows] if rows else []

    def _saved_whole_with_reasons(self) -> list[str]:
        """Lines for tensors that compress saves whole, with reasons."""
        sums: dict[tuple[str, str], list[int]] = {}
        for tensor in self.whole or ():
            sums.setdefault((tensor.operation, tensor.reason), []).append(tensor.bytes)
        rows = [
            f"- {operation or 'an operation'} ({len(counts)} tensors): {size(sum(counts))}, {reason}"
            for (operation, reason), counts in sorted(sums.items(), key=lambda item: -sum(item[1]))
        ]
        return ["", "Kept whole:", *rows] if rows else []

    def to_json(self) -> str:
        """The sites and, if inputs were given, the bytes in all."""
        totals = {
            name: None if saved is None else saved.total
            for name, saved in (("before", self.before), ("after", self.after))
        }
        published = {"derivative_error": "gradient_error"}  # the name in published files
        sites = [{published.get(key, key): value for key, value in asdict(site).items()} for site in self.sites]
        return json.dumps({**totals, "sites": sites}, indent=1) + "\n"


def revertible(report: Report, changes: list[Change]) -> Report:
    """The report, with `revert` undoing these changes."""
    report._changes = changes
    return report


def _groups(sites: Sequence[Converted]) -> list[list[Converted]]:
    groups: dict[tuple[str, ...], list[Converted]] = {}
    for site in sites:
        groups.setdefault((like(site.name), site.was, site.now, site.reason), []).append(site)
    return list(groups.values())


def _name(group: Sequence[Converted]) -> str:
    return common(site.name for site in group)


def _row(group: Sequence[Converted], has_error: bool) -> str:
    first = group[0]
    before, after = ([getattr(site, name) for site in group] for name in ("before", "after"))
    error = "" if first.derivative_error is None else f"{max(site.derivative_error or 0.0 for site in group):.1e}"
    row = f"| {_name(group)} | {first.was} | {first.now} | {len(group)} | {_sum(before)} | {_sum(after)} |"
    return f"{row} {error} |" if has_error else row


def _sum(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return size(sum(known)) if known else ""
