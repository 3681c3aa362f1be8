"""What the plan knows of a workload before it runs, and where its module is."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from fixtures.records.tuning_variables import CUDA, MATH, NCCL
from fixtures.workloads.runtime import spec
from fixtures.workloads.runtime.spec import Workload

pytestmark = pytest.mark.cpu


def workload(**more: Any) -> Workload:
    given: dict[str, Any] = {
        "metrics": {"a": "x"}, "needs_torch": False, "seconds": 3, "cpu_seconds": 1,
        "deadline_s": 60, **more,
    }  # fmt: skip
    return Workload(**given)


def test_settings_that_may_explain_a_figure_are_those_of_what_it_uses():
    for more, kinds in (
        ({}, ()), ({"needs_torch": True}, (CUDA,)), ({"synchronous": True}, (NCCL,)),
        ({"needs_torch": True, "synchronous": True}, (NCCL, CUDA)),
        ({"training": True}, (NCCL, CUDA, MATH)),
        ({"training": True, "settings": ()}, ()), ({"settings": (MATH,)}, (MATH,)),
    ):  # fmt: skip
        assert workload(**more).affected_by == kinds, more


def test_workloads_are_run_in_the_order_of_what_they_need():
    order = [
        {}, {"needs_torch": True}, {"spans_job": True}, {"runs_last": True},
    ]  # fmt: skip
    keys = [workload(**more).run_order for more in order]
    assert keys == sorted(keys)
    assert len(set(keys)) == 4


def test_estimate_and_deadline_are_those_of_the_device():
    one = workload(cpu_deadline_s=20)
    assert (one.estimate("cuda"), one.estimate("cpu")) == (3, 1)
    assert (one.deadline("cuda"), one.deadline("cpu")) == (60, 20)


def test_metrics_without_units_are_refused():
    with pytest.raises(TypeError, match="metric -> unit"):
        workload(metrics=["a"])


def test_a_workload_is_found_in_its_area_in_the_training_or_in_the_table():
    for name, module in (
        ("gemm", "fixtures.workloads.compute.gemm"), ("training_ddp", "training.ddp"),
        ("allgather", "fixtures.workloads.collectives.swept:allgather"),
        ("../x", "fixtures.workloads.collectives.swept:../x"),
    ):  # fmt: skip
        assert spec.module_of(name) == module


def test_a_program_is_a_module_or_a_row_of_one(monkeypatch: pytest.MonkeyPatch):
    program = ModuleType("table")
    program.WORKLOAD = workload()  # type: ignore[attr-defined]
    program.row = ModuleType("row")  # type: ignore[attr-defined]
    program.row.WORKLOAD = "none"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "table", program)
    assert spec.program_of("table") is program
    assert spec.program_of("table:row") is program.row
    assert spec.describe("table") is program.WORKLOAD
    with pytest.raises(TypeError, match=r"table:row\.WORKLOAD is no Workload"):
        spec.describe("table:row")
    with pytest.raises(ModuleNotFoundError) as missing:
        spec.program_of("table:other")
    assert missing.value.name == "table:other"
