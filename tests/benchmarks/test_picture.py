"""The picture of README says what the rows say."""

from pathlib import Path

from benchmarks import picture
from benchmarks.gpu.models_page import medians
from benchmarks.pages import on_gpus

ROOT = Path(__file__).parents[2]


def test_points_are_those_of_the_rows() -> None:
    rows = next(iter(on_gpus("gpu-models").values()))
    ways = picture.points()["ViT-L/16"]
    assert set(ways) == set(picture.LABELS.values())
    eager = medians(rows)["vit-l"]["eager"]
    assert ways["PyTorch"] == (eager["peak"] / 2**30, 1000 * eager["step"], 0.0)


def test_each_point_is_drawn_with_its_name() -> None:
    for axes, ways in zip(picture.figure().axes, picture.points().values(), strict=True):
        drawn = {(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines}
        assert drawn == {(peak, time) for peak, time, _ in ways.values()}
        assert {text.get_text().partition(", error")[0] for text in axes.texts} == set(ways)


def test_it_is_written(tmp_path: Path) -> None:
    picture.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert picture.PICTURE.exists()
    assert f"({picture.PICTURE.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text("utf-8")
