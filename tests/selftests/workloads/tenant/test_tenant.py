"""What the next tenant finds: marks that one job leaves, looked for and removed by the next."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.absence import Kind
from fixtures.records.files import write_json
from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from fixtures.run.pending_jobs import SessionPlanner
from fixtures.sandbox.processes import wait_until
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from fixtures.workloads.tenant import tenant, tenant_marks
from tests.selftests import support
from tests.selftests.judging import judged
from tests.selftests.support import SHIPPED, whys

pytestmark = pytest.mark.cpu

LIMITS = loader.load(SHIPPED)
HERE = ("processes", "variables", "shared_memory", "scratch")
NODE = "worker0"


@pytest.fixture
def ranks(tmp_path: Path) -> Any:
    """The first rank of a node, whose scratch is a folder of its own."""
    run = tmp_path / "run"
    for folder in (run / "jobs" / "node-worker0", run / "records", tmp_path / "scratch"):
        folder.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    return SimpleNamespace(
        leads_node=True, local_rank=0, node=NODE, on_gpu=False,
        directory=run / "jobs" / "node-worker0",
        spec={
            "nonce": "n", "run_directory": str(run),
            "host_order": {"scratch": {"path": str(tmp_path / "scratch")}},
        },
    )  # fmt: skip


def leave(ranks: Any, *metrics: str, nonce: str = "n") -> dict[str, Any]:
    """Leave the marks of a job, and the record of it; return its facts."""
    result = tenant_marks.run(ranks, list(metrics))
    record = {
        "nonce": nonce, "job": {"id": "17"},
        "ranks": [{"local_rank": ranks.local_rank, "facts": result.facts}],
    }  # fmt: skip
    path = RunDirectory(Path(ranks.spec["run_directory"])).record("tenant_marks", NODE)
    write_json(path, record)
    return result.facts


def look(ranks: Any, *metrics: str) -> dict[str, Any]:
    """Metric -> what was measured, or why it was not."""
    result = tenant.run(ranks, list(metrics), grace_s=0.0)
    return {found.metric: found for found in (*result.measurements, *result.absent)}


def cleared(facts: dict[str, Any]) -> None:
    """Remove what a job left, as a site does at its end."""
    for path in facts["files"].values():
        Path(path).unlink()
    os.kill(facts["process"], 9)
    assert wait_until(lambda: has_ended(facts["process"]), timeout_s=10)


def test_marks_are_found_named_and_removed(ranks: Any):
    facts = leave(ranks, *HERE)
    found = look(ranks, *HERE)
    assert {name: m.value for name, m in found.items()} == {
        "processes": 1, "variables": 0, "shared_memory": 1, "scratch": 1,
    }  # fmt: skip
    assert f"process {facts['process']} " in found["processes"].notes[0]
    assert "arguments and environment" in found["processes"].notes[0]
    for name in ("shared_memory", "scratch"):
        assert facts["files"][name] in found[name].notes[0]
        assert not Path(facts["files"][name]).exists()
    assert wait_until(lambda: has_ended(facts["process"]), timeout_s=10)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is a zombie: PID 1 of a container need not wait for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("seen", "value"), [([[7], [7], []], 0), ([[7, 8]], 2), ([[]], 0)],
    ids=["ends in time", "stays", "none"],
)  # fmt: skip
def test_a_process_that_leaves_its_gpu_within_the_grace_is_not_found(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, seen: list[list[int]], value: int
):
    answers = itertools.chain(seen, itertools.repeat(seen[-1]))
    monkeypatch.setattr(tenant, "gpu_processes", lambda nvml, handle: next(answers))
    monkeypatch.setattr(
        tenant.devices, "gpu_handle_and_facts",
        lambda node, local_rank: (SimpleNamespace(NVMLError=OSError), object(), "", {}),
    )  # fmt: skip
    leave(ranks, *HERE)
    result = tenant.run(ranks, ["gpu_processes"], grace_s=1.0 if value == 0 else 0.0)
    (found,) = result.measurements
    assert found.value == value


def test_where_a_site_clears_them_nothing_is_found(ranks: Any):
    cleared(leave(ranks, *HERE))
    assert {m.value for m in look(ranks, *HERE).values()} == {0}


def test_what_was_found_and_removed_is_found_again_when_the_job_is_tried_again(ranks: Any):
    leave(ranks, *HERE)
    first = look(ranks, *HERE)
    again = look(ranks, *HERE)
    assert {name: m.to_json() for name, m in again.items()} == {
        name: m.to_json() for name, m in first.items()
    }


def test_a_process_that_was_killed_and_still_ends_counts_once(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
):
    """The kernel takes its environment away before its entry in /proc."""
    leave(ranks, "processes")
    monkeypatch.setattr(os, "kill", lambda pid, signal: None)
    (first,) = look(ranks, "processes").values()
    monkeypatch.undo()
    read = tenant._read
    monkeypatch.setattr(tenant, "_read", lambda p: b"" if p.name == "environ" else read(p))
    (again,) = look(ranks, "processes").values()
    assert again.to_json() == first.to_json()


def test_marks_of_an_earlier_try_are_not_held_against_a_later_one(ranks: Any):
    leave(ranks, "shared_memory")
    assert look(ranks, "shared_memory")["shared_memory"].value == 1
    Path(leave(ranks, "shared_memory")["files"]["shared_memory"]).unlink()
    assert look(ranks, "shared_memory")["shared_memory"].value == 0


def test_a_variable_of_the_job_before_is_found_by_name(ranks: Any, monkeypatch: Any):
    facts = leave(ranks, "variables")
    monkeypatch.setenv("LEFT_OVER", f"x{facts['token']}")
    found = look(ranks, "variables")["variables"]
    assert (found.value, found.notes) == (1, ["variable LEFT_OVER"])


@pytest.mark.parametrize("other", ["nothing", "another run"])
def test_without_a_record_of_marks_nothing_is_measured(ranks: Any, other: str, monkeypatch: Any):
    monkeypatch.setattr(tenant, "is_visible", lambda path: path.exists())
    if other == "another run":
        cleared(leave(ranks, *HERE, nonce="other"))
    found = tenant.run(ranks, [*HERE, "gpu_memory"], grace_s=0)
    assert found.measurements == []
    for why in whys(found, Kind.UNKNOWN).values():
        assert "no record of what the job before on worker0 left" in why


def test_a_mark_that_could_not_be_left_is_not_passed(ranks: Any):
    ranks.spec["host_order"]["scratch"]["path"] = "/no/such/folder"
    facts = leave(ranks, "scratch", "shared_memory")
    assert "/no/such/folder" in facts["not_left"]["scratch"]
    found = tenant.run(ranks, ["scratch", "shared_memory"], grace_s=0)
    assert "/no/such/folder" in whys(found, Kind.UNKNOWN)["scratch"]
    assert [(m.metric, m.value) for m in found.measurements] == [("shared_memory", 1)]


def test_the_process_that_is_left_ends_with_its_run(tmp_path: Path):
    short = "from fixtures.workloads.tenant import tenant_process as t; t.LOOK_S = 0.02; "
    short += f"t.SILENT_S = 0.1; t.main(t.Path({str(tmp_path / 'run.json')!r}))"
    started = subprocess.run(
        [sys.executable, "-c", short], capture_output=True, text=True, check=True, timeout=30,
        cwd=tenant_marks.CHECKOUT,
    )  # fmt: skip
    assert wait_until(lambda: has_ended(int(started.stdout)), timeout_s=30)


# --- memory


def test_memory_of_processes_that_ended_is_searched_for_their_words(ranks: Any):
    leave(ranks, "gpu_memory")
    found = look(ranks, "gpu_memory")["gpu_memory"]
    assert (found.value, found.checks) == (0, {"searched": 1.0, "marked": 1.0})
    assert found.notes == ["0.02 of 0.02 GiB searched, all 0"]


class Uncleared:
    """A search in memory that still has what was written to it."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def __enter__(self) -> Uncleared:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert asked["do"] == "search"
        return self._answer

    def end(self) -> None:
        pass


def searched(ranks: Any, monkeypatch: Any, **answer: Any) -> Measurement:
    leave(ranks, "gpu_memory")
    whole = {"bytes": 100, "total": 100, "found": [0, 0], "not_zero": 0}
    monkeypatch.setattr(tenant, "memory_process", lambda: Uncleared({**whole, **answer}))
    return look(ranks, "gpu_memory")["gpu_memory"]


def verdict_on(found: Measurement) -> Any:
    device = support.rank(0, NODE, found)
    return judged(LIMITS, "tenant.gpu_memory", support.record(device, workload="tenant"))


def test_words_of_a_killed_process_are_a_failure_of_the_gpu(ranks: Any, monkeypatch: Any):
    found = searched(ranks, monkeypatch, found=[0, 3], not_zero=4)
    assert found.value == 3
    assert found.notes[0] == "gpu0: 3 words of the process that was killed"
    verdict = verdict_on(found)
    assert (verdict.outcome, verdict.worst["node"]) == (Outcome.FAIL, NODE)


def test_words_of_others_are_said_and_judged_by_nobody(ranks: Any, monkeypatch: Any):
    found = searched(ranks, monkeypatch, not_zero=4)
    assert found.value == 0
    assert "4 words other than 0" in found.notes[0]
    assert verdict_on(found).outcome is Outcome.PASS


def test_memory_that_was_not_searched_is_not_passed(ranks: Any, monkeypatch: Any):
    assert verdict_on(searched(ranks, monkeypatch, bytes=89)).outcome is Outcome.NOT_MEASURED


class Failing(Uncleared):
    """A search that ends in an error."""

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError(f"{asked['do']}: CUDA error: out of memory")


def test_a_search_that_fails_says_why_and_excuses_no_other_gpu(ranks: Any, monkeypatch: Any):
    leave(ranks, "gpu_memory")
    monkeypatch.setattr(tenant, "memory_process", lambda: Failing({}))
    unknown = look(ranks, "gpu_memory")["gpu_memory"]
    for words_of_another, outcome in ((0, Outcome.NOT_MEASURED), (3, Outcome.FAIL)):
        checks = {"searched": 1.0, "marked": 1.0}
        other = Measurement(
            metric="gpu_memory", unit="words", value=words_of_another, checks=checks
        )
        of_both = support.record(
            support.rank(0, NODE, unknown), support.rank(1, NODE, other), workload="tenant"
        )
        verdict = judged(LIMITS, "tenant.gpu_memory", of_both)
        assert verdict.outcome is outcome
        if outcome is Outcome.NOT_MEASURED:
            said = (
                "gpu0: no gpu_memory: the memory could not be searched: search: CUDA error: out of"
            )
            assert said in verdict.reason
        else:
            assert (verdict.worst["gpu"], verdict.value) == (1, 3)


def test_a_process_that_cannot_do_it_says_why():
    with tenant_marks.memory_process() as child, pytest.raises(RuntimeError, match="fill: "):
        child.ask({"do": "fill", "device": "cpu", "index": 0, "words": [1, 2], "part": 0.5})


# --- what is judged


@pytest.mark.parametrize("name", ["shared_memory", "scratch"])
def test_a_file_is_judged_where_several_tenants_take_turns(name: str):
    order = {"nodes": 1, "gpus_per_node": 8, "gpu_model": "H200 SXM"}
    record = support.record(
        support.rank(0, NODE, support.value(name, "files", 1)), workload="tenant"
    )
    for tenants, outcome in (
        (None, Outcome.RECORDED), ("one", Outcome.RECORDED), ("several", Outcome.FAIL),
    ):  # fmt: skip
        limits = loader.load_with_contract(SHIPPED, {**order, "tenants": tenants})
        assert judged(limits, f"tenant.{name}", record).outcome is outcome, tenants


def test_a_repeated_search_has_new_marks(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    directory.records.mkdir()
    for workload, attempt in (("tenant_marks", 1), ("gemm", 1)):
        directory.record(workload, NODE, attempt).write_text(json.dumps({}))
    people = support.population(1)
    items = [
        support.item(key, LIMITS, people, NODE) for key in ("tenant.shared_memory", "gemm.bf16")
    ]
    planner = SessionPlanner(
        directory=directory, nonce="n", thresholds=LIMITS, population=people, items=items,
        outcomes_to_repeat=frozenset(), devices=SimpleNamespace(check=lambda record: record),
    )  # fmt: skip
    pending = planner.plan(items, [items[0]])
    assert pending.expected == {("tenant", NODE): 1, ("tenant_marks", NODE): 2}
    assert [[w for w, _ in job.workloads] for job in pending.jobs] == [["tenant_marks"], ["tenant"]]
