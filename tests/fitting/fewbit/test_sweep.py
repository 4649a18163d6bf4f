"""--all: over this machine's cores and over a Dask cluster; what it shows, and what it leaves after an interrupt."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actfit.coefficients import available
from actfit.fitting.activations import get, names
from actfit.fitting.fewbit import __main__ as command
from actfit.fitting.fewbit import document
from actfit.fitting.fewbit.solve import fit
from actfit.fitting.fewbit.sweep import shipped, sweep
from tests.fitting.commands import python

pytestmark = pytest.mark.usefixtures("folder")
STORED = "actfit/coefficients"  # below the folder that a test runs in
TASKS = [("relu", 1), ("silu", 2), ("relu", 2), ("tanh", 1)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few tables in the sweep."""
    monkeypatch.setattr(command, "shipped", lambda: TASKS)


def again(words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The command in another folder, with data of its own. Its status."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return command.run([*words])


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*.json")}


def test_what_ships() -> None:
    tasks = shipped()
    assert tasks == [(name, bits) for name in names() for bits in (1, 2, 3, 4, 5, 6, 7, 8)]
    files = {(entry.function, entry.name) for entry in available()}
    assert {(name, f"fewbit-{bits}bit") for name, bits in tasks} == {file for file in files if "fewbit" in file[1]}


def test_fits_come_in_order_and_are_those_of_fit() -> None:
    fits = list(sweep(TASKS, "contiguous", None, (-2.0, 3.0)))
    assert [(each.activation.name, each.bits) for each in fits] == TASKS
    for each in fits:
        alone = fit(get(each.activation.name), each.bits, levels="contiguous", domain=(-2.0, 3.0))
        assert document.to_document(each) == document.to_document(alone)


def test_an_interrupted_sweep_keeps_what_is_done_and_is_taken_up_again(
    few: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []
    fsync = os.fsync

    def interrupted(descriptor: int) -> None:
        done.append(descriptor)
        if len(done) == 3:
            raise KeyboardInterrupt
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", interrupted)
    assert command.run(["--all"]) == 130
    assert capsys.readouterr().err == "fewbit: interrupted; files are whole or not there\n"
    first = contents()
    assert set(first) == {f"{STORED}/{name}.v1.json" for name in ("relu/fewbit-1bit", "silu/fewbit-2bit")}
    assert list(Path().rglob("*.tmp")) == []
    assert command.run(["--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 tables: 2 written, 2 unchanged; ")
    assert contents().items() > first.items()


def test_bad_input_in_a_sweep_is_one_line(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--all", "--weight", "norm", "--domain", "100", "200"]) == 2
    assert capsys.readouterr() == ("", "fewbit: weight norm must not be zero on all of [100, 200]\n")


# a Dask cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Address of a scheduler with one worker, in threads of this process."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=None,
        local_directory=tmp_path,
    ) as local:
        yield local.scheduler_address


@pytest.mark.slow
def test_two_workers_and_a_cluster_make_the_same_files(few, cluster, folder, capsys, monkeypatch):
    assert command.run(["--all"]) == 0
    printed, alone = capsys.readouterr().out, contents()
    for name, words in (("two", ("--jobs", "2")), ("cluster", ("--scheduler", cluster))):
        assert again(("--all", *words), folder / name, monkeypatch) == 0
        assert capsys.readouterr() == (printed.replace(str(folder), str(folder / name)), "")
        assert contents() == alone
    done = python(
        "-m", "actfit.fitting.fewbit", "--all", "--scheduler", cluster, "--weight", "norm", "--domain", "100", "200"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fewbit: weight norm must not be zero on all of [100, 200]\n"


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer() -> None:
    pytest.importorskip("distributed")
    address = "tcp://127.0.0.1:1"
    done = python("-m", "actfit.fitting.fewbit", "--all", "--scheduler", address, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"fewbit: scheduler {address!r} does not answer: ")
    assert done.stderr.count("\n") == 1
