"""`convert(coefficients=...)` with a mapping: each site gets a table of its own in one call."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coefficients.document import dumps, seal
from fitting.activations import get
from fitting.fewbit.document import to_document
from fitting.fewbit.solve import fit
from fitting.weights import from_samples
from kernels import KernelError, convert
from kernels.record import recorded


class Net(nn.Module):
    """Two modules and a call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(8, 16), nn.GELU())
        self.second = nn.Sequential(nn.Linear(16, 16), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.second(self.first(x)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    made = {}
    for label, name, bits in (("three", "gelu", 3), ("two", "gelu", 2), ("silu", "silu", 2)):
        made[label] = folder / f"{label}.json"
        made[label].write_text(dumps(seal(to_document(fit(get(name), bits)), 1)))
    return made


def now(report: Any) -> dict[str, str]:
    return {site.name: site.now for site in report.converted}


def test_each_site_gets_the_first_file_that_fits(files: dict[str, Path]) -> None:
    net = Net()
    report = convert(net, "fewbit", coefficients={"first": files["three"], "*.1": str(files["two"])})
    assert net.first[1].coefficients == str(files["three"])
    assert net.second[1].coefficients == str(files["two"])
    assert {site.name: site.reason for site in report.left} == {"silu()": "coefficients names no file for it"}
    report.revert()
    assert type(net.first[1]) is type(net.second[1]) is nn.GELU
    report = convert(net, "fewbit", coefficients={"silu()": files["silu"], "second.*": files["two"]})
    assert set(now(report)) == {"silu()", "second.1"}


def test_names_are_those_of_what_was_recorded_too(files: dict[str, Path], tmp_path: Path) -> None:
    net, x = Net(), torch.randn(64, 8)
    with recorded(net) as histograms:
        net(x)
    tables = {}
    for place, (name, histogram) in enumerate(histograms.items()):
        tables[name] = tmp_path / f"{place}.json"
        made = fit(get(name.rpartition(".")[2]), 2, weight=from_samples(histogram.samples(1 << 10)))
        tables[name].write_text(dumps(seal(to_document(made), 1)))
    report = convert(net, "fewbit", coefficients=tables, inputs=x)
    assert set(now(report)) == {"first.1", "second.1", "silu()"}
    assert not report.left
    assert net.first[1].coefficients != net.second[1].coefficients


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"coefficients": {}}, "coefficients must name a site or more, each with a file, got an empty mapping"),
        (
            {"coefficients": {"third": "three"}},
            "coefficients must name activations or modules of the model, got 'third'; there are",
        ),
        (
            {"coefficients": {"first": "three", "second": "silu"}},
            "coefficients must fit an activation of the model: second.1: coefficients must be a fewbit file of gelu,"
            " got fewbit of silu",
        ),
        (
            {"coefficients": {"first": "three"}, "bits": 2},
            "coefficients must fit an activation of the model: first.1: bits must be those of the file, 3, got 2",
        ),
        ({"coefficients": {"first": 3}}, "coefficients must map 'first' to the path of a file, got 3"),
        ({"coefficients": {"first": ""}}, "coefficients must map 'first' to the path of a file, got ''"),
        ({"coefficients": {3: "three"}}, "coefficients must map sites, or patterns with \\*, to files, got 3"),
        (
            {"coefficients": {"first": "three"}, "method": "invact"},
            "coefficients must go with method='fewbit', got method='invact'",
        ),
        ({"coefficients": {"first": "none.json"}}, "must be a file that can be read, got .*none.json': No such file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_changes_nothing(
    arguments: dict[str, Any], words: str, files: dict[str, Path]
) -> None:
    net, given = Net(), {"method": "fewbit", **arguments}
    given["coefficients"] = {name: files.get(file, file) for name, file in given["coefficients"].items()}
    with pytest.raises(KernelError, match=words) as refused:
        convert(net, **given)
    assert "\n" not in str(refused.value)
    assert type(net.first[1]) is type(net.second[1]) is nn.GELU
