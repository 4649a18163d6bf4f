"""The picture of README: the peak of a step against its time, for whole models on a GPU, from their rows."""

from pathlib import Path

from matplotlib.figure import Figure

from actfit.fitting.plots.files import save
from benchmarks.gpu.models_page import BRIEF, EAGER, MODELS, medians
from benchmarks.pages import Rows, on_gpus, place

PICTURE = Path(__file__).parents[1] / "docs" / "peak-against-time.png"
GIB = 2**30
LABELS = {
    EAGER: "PyTorch",
    "checkpoint": "checkpoint of each layer",
    "compress exact": "compress(model)",
    "compress 8 bits": "compress(model, bits=8)",
    "compress 4 bits": "compress(model, bits=4)",
    "compiled": "layers compiled",
    "compiled checkpoint": "layers compiled, checkpointed",
    "compress 8 bits compiled": "compress(model, bits=8, compiled=True)",
}


def _rows() -> Rows:
    """Those of the first GPU that has timed whole models."""
    return next(iter(on_gpus("gpu-models").values()))


def points() -> dict[str, dict[str, tuple[float, float, float]]]:
    """By model and way: peak in GiB, milliseconds of a step, and the error of the gradient."""
    return {
        MODELS[model][1]: {
            LABELS[way]: (at["peak"] / GIB, 1000 * at["step"], at["error"])
            for way, at in ways.items()
            if way in LABELS and "step" in at
        }
        for model, ways in medians(_rows()).items()
        if model in BRIEF
    }


def figure() -> Figure:
    """A panel for each model; ways of ours are filled."""
    drawn = Figure(figsize=(10, 4), layout="constrained")
    for axes, (title, ways) in zip(drawn.subplots(1, len(BRIEF)), points().items(), strict=True):
        times = [time for _, time, _ in ways.values()]
        line, free = 0.045 * (max(times) - min(times)), 0.0  # a line of text, and where there is room above the last
        for label, (peak, time, error) in sorted(ways.items(), key=lambda way: way[1][1]):
            ours = label.startswith("compress")
            axes.plot(
                peak, time, "o", color="C0" if ours else "0.4", fillstyle="full" if ours else "none", markersize=9
            )
            text = f"{label}, error {100 * error:.2g} %" if "bits" in label else label
            axes.annotate(text, (peak + 0.5, max(time, free)), fontsize="small", va="center")
            free = max(time, free) + line
        axes.set_title(title, fontsize="medium")
        axes.set_xlim(0, 1.5 * max(peak for peak, _, _ in ways.values()))
        axes.margins(y=0.15)
        axes.set_xlabel("peak memory of a step, GiB over the weights")
        axes.set_ylabel("time of forward and backward, ms")
        axes.spines[["top", "right"]].set_visible(False)
    drawn.suptitle(f"bfloat16 on {place(_rows()[0])}; lower left is better", fontsize="medium")
    return drawn


def draw(path: Path = PICTURE) -> None:
    """Write the picture."""
    save(figure(), path)
