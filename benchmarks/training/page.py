"""The results of `benchmarks.training` as Markdown for docs/results/training.md."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from actfit.fitting.words import counted
from benchmarks.pages import line
from benchmarks.rows import RESULTS
from benchmarks.training import rows as training_rows
from benchmarks.training.gradients import NOISE, STATES
from benchmarks.training.rows import TrainingRow
from benchmarks.training.statistics import Comparison
from benchmarks.training.variants import EVERY, STOCK

ROWS = "*/training.jsonl"
SIZES = ("kept", "peak")  # bytes in a row's results; some rows lack the peak
CODED_PICTURES = {
    "peaks": "Peak of a step across, final loss less stock's up; shape: method, number: bits or share, colour: time"
}
PICTURES = {
    "curves": "Loss on what is held out, and the distance from stock",
    "gradients": "The error of gradients beside the noise of batches",
}


def section() -> str:
    """Each device's results for the tasks of activations, and its pictures."""
    return _sections(training_rows.tasks, PICTURES)


def coded_section() -> str:
    """Each device's results for the models that encode every saved tensor, and its pictures."""
    return _sections(training_rows.coded, CODED_PICTURES)


def _sections(tasks_of: Callable[[list[TrainingRow]], list[str]], pictures: Mapping[str, str]) -> str:
    made = []
    for path in sorted(RESULTS.glob(ROWS)):
        rows = training_rows.load(path)
        if tasks := tasks_of(rows):
            made.append(_section(rows, path, tasks, pictures))
    return "\n".join(made)


def _section(rows: Sequence[TrainingRow], path: Path, tasks: Sequence[str], pictures: Mapping[str, str]) -> str:
    lines = []
    for task in tasks:
        lines += [*_head(rows, task), "", *table(rows, task), "", verdicts(training_rows.compared(rows, task)), ""]
        if training_rows.gradients(rows, task, STATES[-1]):
            lines += [_gradients_head(rows, task), "", *gradients_table(rows, task), ""]
    for name, words in pictures.items():
        picture = path.with_name(f"{path.stem}-{name}.png")
        if picture.exists():
            lines += [f"![{words}](../../benchmarks/results/{path.parent.name}/{picture.name})", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _head(rows: Sequence[TrainingRow], task: str) -> list[str]:
    by_seed = training_rows.runs(rows, task)[STOCK]
    row = next(iter(by_seed.values()))
    at, losses = row.settings, [end for end in training_rows.losses(by_seed).values() if end is not None]
    shape = f"{counted(at['layers'], 'layer')}, {at['width']} wide"
    unit = f"{at['batch']} × {at['context']} characters" if at["context"] else f"{at['batch']} images"
    dtype = "bfloat16 by autocast" if at["amp"] else "float32"
    text = f"**{task}**, {at['activation']}, on {row.device}: {shape}, {at['steps']} steps of {unit}, {dtype}."
    if len(losses) > 1:
        text += f" Stock ends at {statistics.fmean(losses):.4f} nats, with a standard deviation of"
        text += f" {statistics.stdev(losses):.4f} between {len(losses)} seeds, which is the margin."
    return [text]


def table(rows: Sequence[TrainingRow], task: str) -> list[str]:
    """A line for each variant: bytes, final loss, its difference from stock in margins, p, verdict, time."""
    by_variant, compared = training_rows.runs(rows, task), training_rows.compared(rows, task)
    first = next(iter(by_variant[STOCK].values()))
    accurate, sizes = not first.settings["context"], [name for name in SIZES if name in first.results]
    head = ["variant", *sizes, "final loss", *(["right"] if accurate else [])]
    head += ["difference from stock / margin, 95 %", "p", "verdict", "time"]
    lines = [line(head), line(["---", *["---:"] * (len(head) - 3), "---", "---:"])]
    for variant, by_seed in by_variant.items():
        results = [row.results for row in by_seed.values()]
        cells = [
            variant,
            *(
                f"{results[0][name] / 1e6:.2f} MB, {100 * results[0][name] / first.results[name]:.0f} %"
                for name in sizes
            ),
            f"{training_rows.mean(result['loss'] for result in results):.4f}",
        ]
        cells += [f"{100 * training_rows.mean(result['accuracy'] for result in results):.2f} %"] if accurate else []
        time = training_rows.time_ratio(by_variant, variant)
        cells += [*_compared(compared.get(variant)), "–" if math.isnan(time) else f"{time:.2f}×"]
        lines.append(line(cells))
    return lines


def verdicts(compared: Mapping[str, Comparison]) -> str:
    """A sentence for each verdict, with its variants."""
    worded: dict[str, list[str]] = {}
    for variant, comparison in compared.items():
        worded.setdefault(comparison.verdict, []).append(variant)
    return " ".join(
        f"{verdict[0].upper()}{verdict[1:]}: {', '.join(variants)}." for verdict, variants in worded.items()
    )


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["–", "–", "what is compared with"]
    if math.isnan(comparison.p):
        return ["–", "–", comparison.verdict]
    values = [
        value / comparison.margin if comparison.margin else 0.0
        for value in (comparison.difference, comparison.low, comparison.high)
    ]
    return [
        "{:+z.3f} ({:+z.3f} to {:+z.3f})".format(*values),
        "< 0.001" if comparison.p < 0.001 else f"{comparison.p:.2g}",
        comparison.verdict,
    ]


def _gradients_head(rows: Sequence[TrainingRow], task: str) -> str:
    seed = next(row.seed for row in rows if row.what == f"{training_rows.GRADIENTS} {task}")
    noise = {state: _known(training_rows.gradients(rows, task, state)[NOISE]["noise"]) for state in STATES}
    said = [f"{min(norms):.2g} to {max(norms):.2g} |g| at the {state} weights" for state, norms in noise.items()]
    return (
        f"Gradients of {task}, seed {seed}, at stock's initial and final weights, in %: median and largest of"
        f" {len(noise[STATES[0]])} tensors. The noise of the batches is {' and '.join(said)}."
    )


def gradients_table(rows: Sequence[TrainingRow], task: str) -> list[str]:
    """A line for each variant: its error of one batch's gradient, error and bias as shares of the noise."""
    columns = ("error of a batch", "error / noise", "bias / noise")
    lines = [line(["variant", *(f"{state}: {name}" for state in STATES for name in columns)])]
    lines.append(line(["---", *["---:"] * (len(STATES) * len(columns))]))
    by_state = [training_rows.gradients(rows, task, state) for state in STATES]
    for variant in (variant for variant in EVERY if all(variant in by_variant for by_variant in by_state)):
        cells = []
        for by_variant in by_state:
            own, noise = by_variant[variant], by_variant[NOISE]["noise"]
            cells.append(_spread(_known(own["of batch"])))
            for name in ("error", "bias"):
                cells.append(_spread([a / b for a, b in zip(own[name], noise, strict=True) if a is not None and b]))
        lines.append(line([variant, *cells]))
    return lines


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _spread(shares: Sequence[float]) -> str:
    """Median, and the largest, in percent."""
    return f"{_percent(statistics.median(shares))}, {_percent(max(shares))}" if shares else "–"


def _percent(share: float) -> str:
    """Two digits, or whole numbers from 100 on."""
    if 0 < share < 1e-5:
        return "< 0.001"
    return f"{100 * share:.0f}" if share >= 0.995 else f"{100 * share:.2g}"


def summary(rows: Sequence[TrainingRow]) -> str:
    """The tables for a terminal, as Markdown."""
    parts = [
        [*_head(rows, task), "", *table(rows, task)]
        for task in (*training_rows.tasks(rows), *training_rows.coded(rows))
    ]
    return "\n\n".join("\n".join(part) for part in parts)
