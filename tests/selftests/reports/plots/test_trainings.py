"""The trainings of a run: what is said of each, and the curve of its loss."""

from __future__ import annotations

from typing import Any

import pytest

from reports.plots.trainings import Training, Trainings
from tests.selftests import support

pytestmark = pytest.mark.cpu

RUN = {
    "strategy": "ddp", "preset": "1b", "ranks": 4, "headings": ["step", "loss"],
    "table": [[1, 12.0], [2, 11.5]], "parameters": 1e9, "tokens_per_s": 54897.0, "steps": True,
    "peak_gib": 100.5,
}  # fmt: skip


def found(*runs: Any, workload: str = "training_ddp", placement: str = "node0", **facts: Any):
    trainings = Trainings()
    rank = support.rank(0, "node0")
    rank.facts.update({"runs": list(runs), **facts})
    trainings.add(support.record(rank, workload=workload, placement=placement))
    return trainings


def test_a_training_has_a_title_its_figures_and_its_steps():
    (training,) = found(RUN).shown
    assert training.title == "ddp 1b, 4 GPUs, node0"
    assert training.figures == {
        "parameters": "1 billion", "tokens/s per GPU": "54897", "peak memory": "100.5 GiB",
    }  # fmt: skip
    assert training.losses == {1: 12.0, 2: 11.5}
    (training,) = found({**RUN, "strategy": None, "parameters": 9.99e8}, placement="all").shown
    assert training.title == " 1b, 4 GPUs, all nodes"
    assert training.figures["parameters"] == "999000000"
    (training,) = found({**RUN, "parameters": 1.5e9}).shown
    assert training.figures["parameters"] == "1.5 billion"


def test_what_is_no_training_is_left_out():
    assert found(RUN, workload="gemm").shown == []
    assert found(5, None).shown == []
    empty = Trainings()
    empty.add(support.record(workload="training_ddp", nodes=["node0"]))
    assert empty.shown == []
    assert len(found(*[RUN] * 41).shown) == 40


@pytest.mark.parametrize(
    "change",
    [
        {"headings": ["step", "rate"]}, {"headings": ["rate", "loss"]}, {"headings": None},
        {"headings": ["step", "loss", "rate"]}, {"table": [["1", 12.0], [2, None]]},
        {"table": {"1": 12.0}}, {"headings": "step loss"},
    ],
)  # fmt: skip
def test_steps_without_a_step_or_a_loss_have_no_curve(change):
    trainings = found({**RUN, **change})
    (training,) = trainings.shown
    assert training.losses == {}
    assert trainings.chart() is None


def test_rows_that_are_no_list_are_not_steps():
    (training,) = found({**RUN, "table": [[1, 12.0], 5], "headings": None}).shown
    assert (training.steps, training.headings) == ([], [])
    (training,) = found({**RUN, "table": [[1, 12.0], 5]}).shown
    assert training.steps == [[1, 12.0]]


def test_a_fine_tuning_is_shown_by_its_time():
    facts = {"default": {"train_s": 30.0, "model": "Qwen"}, "other": {"model": "Qwen"}, "n": 5}
    (training,) = found(workload="training_finetune", **facts).shown
    assert training.title == "fine-tuning default, Qwen, node0"
    assert training.figures == {"time": "30 s"}
    assert found(**facts).shown == []


def test_the_chart_has_at_most_eight_curves_of_several_steps():
    def labels(count: int, steps: int = 2) -> list[str]:
        losses = [[k, 12.0 - k] for k in range(steps)]
        trainings = Trainings(
            [Training(f"n{k}", "ddp", {}, ["step", "loss"], losses) for k in range(count)]
        )
        chart = trainings.chart()
        return [] if chart is None else chart.description.split("; ")

    assert labels(1) == ["ddp, n0 12 to 11"]
    assert labels(1, steps=1) == []
    assert len(labels(9)) == 8
