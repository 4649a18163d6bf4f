"""Results of `benchmarks.training` for nets whose layers save few bits, as Markdown for docs/training.md."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import line
from benchmarks.training import rows as training_rows
from benchmarks.training.gradients import NOISE, STATES
from benchmarks.training.rows import AS_TRAINED, TrainingRow
from benchmarks.training.statistics import Comparison, compare
from benchmarks.training.variants import EVERY, FUSED, STOCK

BEGIN, END = "<!-- approx:begin -->\n", "<!-- approx:end -->\n"
PICTURE = "approx"
WORDS = "Loss of the batches, test errors, and the error of gradients beside the noise of batches"


def section(rows: Sequence[TrainingRow], path: Path) -> str:
    """One device's results and picture; "" if it has no rows of nets."""
    nets = training_rows.nets(rows)
    if not nets:
        return ""
    lines = []
    for task in nets:
        said = verdicts(rows, task)
        lines += [*of_task(rows, task), "", *([said, ""] if said else [])]
    lines += [*naive(rows, nets), *gradients(rows, nets)]
    picture = path.with_name(f"{path.stem}-{PICTURE}.png")
    if picture.exists():
        lines += [f"![{WORDS}](../benchmarks/results/{path.parent.name}/{picture.name})", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def of_task(rows: Sequence[TrainingRow], task: str) -> list[str]:
    """The settings of a task, and its table."""
    return [_head(rows, task), "", *table(rows, task)]


def _head(rows: Sequence[TrainingRow], task: str) -> str:
    by_seed = training_rows.runs(rows, task)[STOCK]
    row = next(iter(by_seed.values()))
    at = row.settings
    shape = f"{at['layers']} {'layers' if task == 'vit' else 'blocks a stage'}, {at['width']} wide"
    dtype = "bfloat16 by autocast" if at["amp"] else "float32"
    text = f"**{task}**, {at['activation']}, on {row.device}: {shape}, {at['steps']} steps of {at['batch']} images"
    measured = ", ".join(sorted({each.revision for each in rows if each.task == task}))
    margin = training_rows.MARGINS[task]
    return f"{text}, {dtype}, at {measured}. The margin is {margin} points; stock has {len(by_seed)} seeds."


def table(rows: Sequence[TrainingRow], task: str) -> list[str]:
    """A line for each variant: bytes, test error, its difference from stock in points, p, verdict, time."""
    by_variant, compared, errors = (
        training_rows.runs(rows, task),
        training_rows.compared_errors(rows, task),
        training_rows.errors(rows, task),
    )
    stock, fused = by_variant[STOCK], _fused(rows, task)
    head = ["variant", "kept", "stock / it", "fused / it", "test error, %", "difference from stock, points, 95 %"]
    lines = [line([*head, "p", "verdict", "time"]), line(["---", *["---:"] * 6, "---", "---:"])]
    whole = next(iter(stock.values())).results["kept"]
    for name, of_seeds in errors.items():
        variant = name.removesuffix(AS_TRAINED)
        times = [
            row.results["seconds"] / stock[seed].results["seconds"]
            for seed, row in by_variant[variant].items()
            if seed in stock
        ]
        size = None if variant.startswith("naive") else next(iter(by_variant[variant].values())).results["kept"]
        time = "–" if name != variant or not times else f"{statistics.median(times):.2f}×"
        lines.append(line([name, *_sizes(size, whole, fused), _error(of_seeds), *_compared(compared.get(name)), time]))
    if fused:
        lines.append(line([FUSED, *_sizes(fused, whole, fused), "–", "–", "–", "not trained, only counted", "–"]))
    return lines


def _fused(rows: Sequence[TrainingRow], task: str) -> int | None:
    return training_rows.gradients(rows, task, STATES[0]).get(FUSED, {}).get("kept")


def _sizes(size: int | None, stock: int, fused: int | None) -> list[str]:
    if size is None:
        return ["–"] * 3
    return [f"{size / 1e6:.2f} MB", f"{stock / size:.1f}×", f"{fused / size:.1f}×" if fused else "–"]


def _error(of_seeds: Mapping[int, float | None]) -> str:
    """Mean and standard deviation."""
    values = [value for value in of_seeds.values() if value is not None]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}" if values else "–"


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["–", "–", "what is compared with"]
    if math.isnan(comparison.p):
        return ["–", "–", comparison.verdict]
    verdict = "as many errors with each seed" if comparison.low == comparison.high == 0 else comparison.verdict
    return [_points(comparison), "< 0.001" if comparison.p < 0.001 else f"{comparison.p:.2g}", verdict]


def _points(comparison: Comparison) -> str:
    return f"{comparison.difference:+z.2f} ({comparison.low:+z.2f} to {comparison.high:+z.2f})"


def verdicts(rows: Sequence[TrainingRow], task: str) -> str:
    """Which variants have mean test errors at most the margin above stock's."""
    compared = training_rows.compared_errors(rows, task)
    near = [variant for variant, comparison in compared.items() if comparison.difference <= comparison.margin]
    far = [variant for variant, comparison in compared.items() if not comparison.difference <= comparison.margin]
    said = [
        f"{words}: {', '.join(variants)}"
        for variants, words in ((near, "at most the margin above stock's"), (far, "further above"))
        if variants
    ]
    return f"Mean test errors {'; '.join(said)}." if said else ""


def naive(rows: Sequence[TrainingRow], nets: Sequence[str]) -> list[str]:
    """By net: how much worse naive variants, trained with rounding, do if tested without it."""
    said = []
    for task in nets:
        errors = training_rows.errors(rows, task)
        for name in [key for key in errors if key.endswith(AS_TRAINED)]:
            variant = name.removesuffix(AS_TRAINED)
            comparison = compare(errors[variant], errors[name], training_rows.MARGINS[task])
            if not math.isnan(comparison.p):
                said.append(f"{task} {variant} {_points(comparison)}")
    words = "Points by which the test error of naively trained nets is higher without rounding in the test"
    return [f"{words}: {'; '.join(said)}.", ""] if said else []


def gradients(rows: Sequence[TrainingRow], nets: Sequence[str]) -> list[str]:
    """By net and variant: the error of the first layer's gradient, and the noise of batches over the errors."""
    columns = ("error of the stem", "noise² / error², least", "median")
    lines = [line(["net", "variant", *(f"{state}: {name}" for state in STATES for name in columns)])]
    lines.append(line(["---", "---", *["---:"] * (len(STATES) * len(columns))]))
    before = len(lines)
    for task in nets:
        by_state = [training_rows.gradients(rows, task, state) for state in STATES]
        for variant in (variant for variant in EVERY if all(variant in state_of for state_of in by_state)):
            lines.append(line([task, variant, *(cell for state_of in by_state for cell in _cells(state_of, variant))]))
    return [_gradients_head(rows, nets), "", *lines, ""] if len(lines) > before else []


def _gradients_head(rows: Sequence[TrainingRow], nets: Sequence[str]) -> str:
    seed = next(row.seed for row in rows if row.what.startswith(training_rows.GRADIENTS) and row.task in nets)
    return f"Gradients of seed {seed}, at stock's initial and final weights; the stem's error is that of one batch."


def _cells(by_variant: Mapping[str, Any], variant: str) -> list[str]:
    stem, above = stem_error(by_variant, variant), ratios(by_variant, variant)
    error = "–" if stem is None else "< 1e-4" if stem < 1e-4 else f"{stem:.2g}"
    return [error, *(_times(value) for value in (min(above), statistics.median(above)))]


def stem_error(by_variant: Mapping[str, Any], variant: str) -> float | None:
    """The error of the first layer's gradient, as a share of that gradient, mean over batches."""
    share: float | None = by_variant[variant]["of batch"][0]
    return share


def ratios(by_variant: Mapping[str, Any], variant: str) -> list[float]:
    """For each layer, the squared noise of its gradient between batches over the squared error of the variant."""
    pairs = zip(by_variant[NOISE]["noise"], by_variant[variant]["error"], strict=True)
    return [(noise / error) ** 2 for noise, error in pairs if noise is not None and error]


def _times(value: float) -> str:
    return "> 1e6" if value > 1e6 else f"{value:.2g}" if value < 99.5 else f"{value:.0f}"
