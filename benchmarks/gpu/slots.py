"""Issue slots, predicted against measured: whether the model of docs/slack.md says how long kernels take."""

from statistics import median

from benchmarks.pages import Rows, on_gpus, place, table
from codegen.machine import GPUS

NOISE = 0.15  # of the time predicted: bandwidth is a tenth below the nominal, and rounds differ
HOLDS = 0.9  # of the kernels, within NOISE, for the model to be called good
WORST = 6


def slots_lines() -> list[str]:
    """Predicted against measured."""
    lines: list[str] = []
    for device, rows in on_gpus("issue-slots").items():
        pairs = [(key, _predicted(key[-1]), measured) for key, measured in _pairs(rows)]
        if len(pairs) < 3:
            continue
        misses = {key: measured / predicted - 1 for key, predicted, measured in pairs}
        half = 100 * median(abs(miss) for miss in misses.values())
        near = sum(abs(miss) <= NOISE for miss in misses.values())
        holds = "The model holds" if near >= HOLDS * len(misses) else "The model does not hold"
        bound = [predicted > 1 for _, predicted, _ in pairs]
        ranks = _correlation([_rank([key[-1] for key, *_ in pairs]), _rank([measured for *_, measured in pairs])])
        lines += [
            f"Issue slots, predicted against measured, on {place(rows[0])}, as {_modelled(device)}: a kernel is to take"
            " the time of a copy of its bytes, or, where it needs more issue slots than there are in that time, its"
            " share of them.",
            "",
            f"{holds}: {near} of {len(misses)} kernels are within {100 * NOISE:.0f} % of what it says (the goal is"
            f" {100 * HOLDS:.0f} %), half within {half:.0f} %. It says of {sum(bound)}"
            f" that arithmetic takes the time. The shares and the times rank alike by {ranks:.2f} (1: the same"
            " order, 0: none).",
            "",
        ]
        worst = sorted(pairs, key=lambda pair: -abs(misses[pair[0]]))[:WORST]
        cells = [
            [f"{what}, {method}, {dtype}, {mode}", f"{100 * share:.0f} %", f"{predicted:.2f}", f"{measured:.2f}"]
            for (what, method, mode, dtype, share), predicted, measured in worst
        ]
        lines += [*table(["the worst", "share of issue slots", "predicted, × copy", "measured, × copy"], cells), ""]
    return lines


Key = tuple[str, str, str, str, float]  # function, method, mode, dtype, predicted share


def _pairs(rows: Rows) -> list[tuple[Key, float]]:
    """Each kernel and its time beside the copy."""
    key = ("what", "implementation", "mode", "dtype")
    shares = {tuple(row[field] for field in key): row["median"] for row in rows if row["unit"] == "predicted share"}
    pairs = []
    for row in rows:
        if row["unit"] == "ratio of times":
            name = (row["what"], row["implementation"].removesuffix(" / copy"), row["mode"], row["dtype"])
            pairs.append(((*name, shares[name]), row["median"]))
    return pairs


def _predicted(share: float) -> float:
    return max(1.0, share)


def _modelled(device: str) -> str:
    names = (gpu.name for gpu in GPUS if all(word in device.split("-") for word in gpu.name.lower().split()))
    return f"an {next(names, f'{GPUS[-1].name}, which it is not')}"


def _rank(values: list[float]) -> list[float]:
    """From 0, those that are equal in the middle of their places."""
    return [sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values]


def _correlation(columns: list[list[float]]) -> float:
    centred = [[value - sum(column) / len(column) for value in column] for column in columns]
    norms = [sum(value**2 for value in column) ** 0.5 for column in centred]
    product = sum(first * second for first, second in zip(*centred, strict=True))
    return product / (norms[0] * norms[1]) if all(norms) else 0.0
