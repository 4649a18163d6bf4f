"""The callback in two processes: a Trainer by DDP, with one plan for both; and a model that FSDP2 has sharded."""

import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actfit.kernels.errors import KernelError
from tests.integrations.training import losses, model_of, rows, trainer_of
from tests.kernels.processes import main, needs_distributed, of_two

pytestmark = [pytest.mark.slow, needs_distributed]
OPTIONS: dict[str, Any] = {"stock": None, "exact": {}, "fit": {"fit": 0.3}}


def callback_of(options: dict[str, Any] | None) -> Any:
    from actfit.integrations.transformers import ActfitCallback

    return None if options is None else ActfitCallback(**options)


def by_ddp(options: dict[str, Any] | None) -> tuple[list[float], str]:
    """Losses, and the plan as text."""
    callback = callback_of(options)
    found = losses(trainer_of(Path(sys.argv[2]), callback, save_strategy="no"))
    plan = None if callback is None else callback.compression.plan
    return found, "" if plan is None else plan.to_json()


def by_fsdp(options: dict[str, Any] | None, mesh: Any) -> Any:
    """The loss and the norm of the gradient, or the message of a refusal; a Trainer shards on GPUs only."""
    from torch.distributed.fsdp import fully_shard
    from transformers import TrainerState

    model = model_of()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    callback = callback_of(options)
    event = (
        SimpleNamespace(torch_compile=False, n_gpu=0, gradient_accumulation_steps=1, output_dir=sys.argv[2]),
        TrainerState(is_world_process_zero=True),
        None,
    )
    if callback is not None:
        try:
            callback.on_train_begin(*event, model=model.train())
        except KernelError as error:
            return str(error)
    text = torch.stack([row["input_ids"] for row in rows(4)])
    loss = model(input_ids=text, labels=text).loss
    loss.backward()
    result = loss.item(), sum(float(weight.grad.full_tensor().norm()) for weight in model.parameters())
    graphs = 0 if callback is None else len(callback.compression.handle.report.graphs)
    if callback is not None:
        callback.on_train_end(*event, model=model)
    return *result, graphs


def worker(rank: int, mesh: Any) -> dict[str, Any]:
    from torch import distributed

    warnings.simplefilter("ignore")  # those of transformers and accelerate
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    results = {"fsdp": {name: by_fsdp(options, mesh) for name, options in OPTIONS.items()}}
    results["ddp"] = {name: by_ddp(options) for name, options in OPTIONS.items()}
    both: list[Any] = [None, None]
    distributed.all_gather_object(both, results["ddp"])
    return {**results, "ddp of the second": both[1]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    for library in ("accelerate", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    return of_two(__file__, tmp_path_factory.mktemp("processes"), 240)


def test_exact_losses_under_ddp_are_those_of_stock(results: Any) -> None:
    assert results["ddp"]["exact"] == results["ddp"]["stock"]


def test_both_processes_train_by_one_plan(results: Any) -> None:
    (found, plan), (_, second) = results["ddp"]["fit"], results["ddp of the second"]["fit"]
    assert plan == second != ""
    assert found[0] == results["ddp"]["stock"][0][0]  # forward is exact


def test_a_sharded_model_is_compressed(results: Any) -> None:
    *exact, graphs = results["fsdp"]["exact"]
    assert graphs
    assert tuple(exact) == results["fsdp"]["stock"][:2]


def test_a_sharded_model_is_not_planned(results: Any) -> None:
    assert results["fsdp"]["fit"].startswith("fit must be left out under FSDP, which has sharded the model already")


if __name__ == "__main__":
    main(worker)
