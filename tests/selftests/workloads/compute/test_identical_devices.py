"""Identical products on one rank: how often, compared with which devices, and what is reported."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.workloads.compute import identical
from fixtures.workloads.compute.repeatable_kernels import Kernel

pytestmark = pytest.mark.cpu

LIKE = {"name": "any"}


def kernel(name: str, value: float, *, results: int | None = None, error: str | None = None) -> Any:
    operands = (torch.full((4,), 1.0),)
    return Kernel(name, lambda: torch.full((4,), value), lambda: operands, results=results,
                  error=lambda: error)  # fmt: skip


def a_rank(*others: Callable[[Any], Any], on_gpu: bool = False) -> Any:
    """A rank, and what the others say, made of what it says itself."""
    return SimpleNamespace(
        on_gpu=on_gpu, local_rank=0, gather=lambda said: [said, *(other(said) for other in others)]
    )


def started(monkeypatch: pytest.MonkeyPatch, ranks: Any, *made: Any) -> Any:
    monkeypatch.setattr(identical, "kernels", lambda ranks, size: iter(made))
    monkeypatch.setattr(identical, "comparison_class", lambda ranks: LIKE)
    monkeypatch.setattr(identical, "_temperature", lambda ranks: 50)
    result = identical.run(ranks, ["products"])
    (found,) = result.measurements
    return found, result.facts


def altered(name: str, *, result: int = 0, operand: int = 0, like: Any = LIKE) -> Any:
    def other(said: Any) -> Any:
        right = said["votes"][name]
        votes = {**said["votes"], name: [right[0] + result, right[1] + operand]}
        return {"like": like, "votes": votes}

    return other


@pytest.mark.parametrize(("on_gpu", "count"), [(False, 20), (True, 90)])
def test_results_are_repeated_in_two_phases_and_all_kept(monkeypatch, on_gpu, count):
    ranks = a_rank(altered("a"), on_gpu=on_gpu)
    found, facts = started(monkeypatch, ranks, kernel("a", 1.0), kernel("b", 2.0, results=3))
    assert (found.value, found.checks) == (0, {"compared": float(count)})
    assert {name: k["results"] for name, k in facts["kernels"].items()} == {"a": count, "b": 3}
    assert [len(k["checksums"]) for k in facts["kernels"].values()] == [1, 1]
    assert facts["temperatures"] == [50, 50]
    assert (facts["like"], facts["like_devices"]) == (LIKE, 2)
    (note,) = found.notes
    assert f"compared {count} of a (95 %: " in note
    assert "3 of b (95 %: 63 % of the launches)" in note


def test_only_devices_of_the_same_kind_are_compared(monkeypatch):
    strangers = [altered("a", result=1, operand=1, like={"name": "other"})] * 2
    found, facts = started(monkeypatch, a_rank(*strangers), kernel("a", 1.0))
    assert (found.value, len(found.notes), facts["like_devices"]) == (0, 1, 1)
    twins = [altered("a", result=1)] * 2
    found, facts = started(monkeypatch, a_rank(*twins), kernel("a", 1.0), kernel("b", 2.0))
    assert (found.value, facts["like_devices"]) == (20, 3)
    assert found.notes[0].startswith("a: 20 of 20 results differ")
    assert len(found.notes) == 2


def test_operands_that_differ_and_wrong_values_are_said(monkeypatch):
    found, _ = started(monkeypatch, a_rank(*[altered("a", operand=1)] * 2), kernel("a", 1.0))
    assert found.value == 0
    assert found.notes[0] == "a: its operands differ already, before any result"
    found, _ = started(monkeypatch, a_rank(), kernel("a", 1.0, error="off"))
    assert (found.value, found.notes[:2]) == (2, ["a: off", "a: off"]), "once a phase"


def test_the_temperature_is_known_where_the_driver_tells_it(monkeypatch):
    answers: list[Any] = [("handle", ""), 61]
    monkeypatch.setattr(identical.devices, "gpu_handle", lambda local_rank: answers[0])
    monkeypatch.setattr(identical.devices, "query_nvml", lambda *asked: answers[1])
    assert identical._temperature(a_rank(on_gpu=True)) == 61
    assert identical._temperature(a_rank()) is None
    answers[1] = "NotSupported"
    assert identical._temperature(a_rank(on_gpu=True)) is None
    answers[:] = [(None, "no driver"), 61]
    assert identical._temperature(a_rank(on_gpu=True)) is None


def test_devices_are_alike_by_all_that_changes_how_they_round(monkeypatch):
    facts = {"name": "H200", "cpu_name": "Xeon", "sm_count": 132, "vbios": "96.00.A0.00.01"}
    monkeypatch.setattr(identical, "cublas_version", lambda: "12.4.5")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    ranks = SimpleNamespace(device_facts=lambda: facts, on_gpu=False)
    common = {"name": "H200", "torch": str(torch.__version__)}
    assert identical.comparison_class(ranks) == {
        **common, "cpu": "Xeon", "threads": torch.get_num_threads(),
    }  # fmt: skip
    ranks.on_gpu = True
    assert identical.comparison_class(ranks) == {
        **common, "sm_count": 132, "vbios": "96.00", "cublas": "12.4.5", "workspace": "default",
    }  # fmt: skip
