"""Recorded runs, and runs derived from them, through the real acceptance tests."""

from __future__ import annotations

import functools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import read_json
from fixtures.records.model import SCHEMA, Record
from fixtures.records.run_directory import RunDirectory
from tests.selftests import derive_runs, support
from tests.selftests.derive_runs import VARIANTS, Expected, Row
from tests.selftests.hostile import Hostile
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

BASES = {
    path.parent.name: read_json(path)["population"] for path in sorted(DATA.glob("*/run.json"))
}
BENCHED = {n: people for n, people in BASES.items() if [*(DATA / n / "records").glob("gemm@*")]}
"""Those that are not of the destructive stage alone."""
CPU = DATA / "sandbox-2x2-cpu"
"""For what does not depend on the run, and for every variant."""
STOPPED = "h200-2x1-failures"
"""Ended from outside before its last victim: that one comes out as not measured."""
OVER_SOCKETS = {
    "h200-2x1-scaling": {"training_ddp": (47, 48), "training_fsdp": (15, 16)},
    "h200-2x2-scaling": {"training_ddp": (41, 43)},
    "h100-2x2-fsdp": {"training_fsdp": (10, 11)},
}
"""Training over two nodes with nothing but sockets between them, and what per cent it keeps. The
second timed no FSDP."""
NEIGHBOUR = "h200-1x2-neighbour"
"""Another process computed on GPU 0 all the time."""
HOT = "h100-1x4"
"""One of its GPUs was slowed down by heat, and one core by its host's other work."""
COOL = {"h100-1x4-accepted": 162, "h200-1x2-accepted": 165}
"""A whole order on a host where nothing was wrong, and how many rows pass."""
RED = (STOPPED, NEIGHBOUR, HOT, *OVER_SOCKETS)
LEAST = {"h200-2x1-node-loss": 2}
"""Rows that pass in a recorded run, at the least; of the others 8."""
GPUS_ONLY = ("through-host-memory", "low-clock-work")
GPUS = "h200-2x2"
ON_GPUS = (
    "slow-gpu", "slow-gpu-spread", "slow-workload", "slow-memory", "corrupted-element",
    "above-ceiling", "missing-node", *GPUS_ONLY,
)  # fmt: skip
"""What the figures and limits of GPUs matter for: on one run of them, as the others are judged by
the same limits; that these pass as they are is held for each."""
CASES = [
    (name, variant)
    for name, people in BENCHED.items()
    for variant in VARIANTS
    # The spread within a node is judged of four GPUs, of two nodes of two the GPUs of both.
    if (name in (GPUS, CPU.name) or (name, variant) == ("h200-1x4", "slow-gpu-spread"))
    and variant != "unchanged"
    and (variant in ON_GPUS or name == CPU.name)
    and (variant != "missing-node" or len(people["nodes"]) > 1)
    and (variant not in GPUS_ONLY or people["gpu_model"] != "cpu")
]
Replayed = tuple[int, dict[str, Any]]


def contents(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder with its bytes and time of change."""
    return {
        str(path.relative_to(root)): (
            path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns,
        )
        for path in [root, *root.rglob("*")]
    }  # fmt: skip


def replayed(source: Path, into: Path, *more: str) -> Replayed:
    """Replay a run by the acceptance tests; the source is byte-identical afterwards."""
    before = contents(source)
    result = support.replay(source, into, *more)
    assert contents(source) == before
    return result


def judged(source: Path, into: Path) -> Replayed:
    """The same in this process."""
    before = contents(source)
    result = support.judged(source, into)
    assert contents(source) == before
    return result


def rows(verdict: dict[str, Any]) -> dict[Row, dict[str, Any]]:
    return {(row["criterion"], row["subject"]): row for row in verdict["criteria"]}


Whole = Callable[[str], Replayed]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A recorded run itself, judged once by the limits of today."""

    @functools.cache
    def once(base: str) -> Replayed:
        return judged(DATA / base, tmp_path_factory.mktemp("whole") / "run")

    return once


def test_there_are_recorded_runs():
    assert CPU.name in BASES


@pytest.mark.parametrize("base", BASES)
def test_a_recorded_run_is_small_and_its_records_can_be_trusted(base):
    files = [path for path in (DATA / base).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    nonce = read_json(DATA / base / "run.json")["nonce"]
    records = sorted((DATA / base / "records").iterdir())
    assert records
    for path in records:
        assert Record.from_json(read_json(path), nonce=nonce).name == path.name
    for path in files:
        text = path.read_text(encoding="utf-8")
        owned = [f"/{top}/" for top in ("root", "home", "tmp", "work", "scratch")]
        assert not any(own in text for own in owned), path


@pytest.mark.parametrize("base", [n for n in BASES if n not in RED])
def test_a_recorded_run_passes_with_nothing_unmeasured(base, whole):
    status, verdict = whole(base)
    sandbox = BASES[base]["origin"] == "sandbox"
    wanted = "DEMONSTRATION" if sandbox else "ACCEPTED" if base in COOL else "PARTIAL"
    assert (status, verdict["exit_status"], verdict["verdict"]) == (0, 0, wanted)
    counts = verdict["counts"]
    assert (counts["fail"], counts["not_measured"]) == (0, 0)
    assert counts["pass"] >= LEAST.get(base, 8)
    scope = [tuple(key) for key in read_json(DATA / base / "run.json")["scope"]]
    assert sorted(rows(verdict)) == sorted(scope)


def test_a_recorded_run_that_was_stopped_stays_incomplete(whole):
    status, verdict = whole(STOPPED)
    assert (status, verdict["verdict"]) == (2, "INCOMPLETE")
    counts = verdict["counts"]
    assert (counts["pass"], counts["fail"], counts["not_measured"]) == (84, 0, 2)
    assert "84 of 86 judged" in verdict["reasons"]
    unmeasured = {key for key, row in rows(verdict).items() if row["outcome"] == "NOT_MEASURED"}
    assert {key for key, _ in unmeasured} == {"failures.node.lost", "failures.node.curve"}


def test_a_whole_order_is_rejected_for_the_gpu_that_was_too_hot(whole):
    status, verdict = whole(HOT)
    assert (status, verdict["verdict"], verdict["counts"]["not_measured"]) == (1, "REJECTED", 0)
    red = {key: row["worst"] for (key, _), row in rows(verdict).items() if row["outcome"] == "FAIL"}
    assert {key: worst.get("part", worst["gpu"]) for key, worst in red.items()} == {
        "health.thermal": 0, "host.cores": "cpu51",
    }  # fmt: skip
    passed = {key for (key, _), row in rows(verdict).items() if row["outcome"] == "PASS"}
    assert {"finetune.rate", "finetune.rate_optimised", "tenant.gpu_memory"} <= passed


@pytest.mark.parametrize("base", COOL)
def test_a_whole_order_is_accepted_where_nothing_is_wrong(base, whole):
    status, verdict = whole(base)
    assert (status, verdict["verdict"], verdict["scope"]["whole"]) == (0, "ACCEPTED", True)
    counts = verdict["counts"]
    assert (counts["pass"], counts["fail"], counts["not_measured"]) == (COOL[base], 0, 0)


def test_cores_that_other_processes_keep_busy_are_named_of_a_copy_that_is_slow(tmp_path):
    """By the judge of a run, which keeps few of a rank's facts: they were lost on the way to it."""
    derive_runs.derive(DATA / "h200-1x2-accepted", tmp_path / "source", "unchanged")
    recorded = derive_runs.Recorded(tmp_path / "source")
    data = recorded.read("hostcopy@node0.json")
    data["ranks"][0]["facts"]["telemetry"]["cpu_percent"] = 99.9
    for rank in data["ranks"]:
        for m in rank["measurements"]:
            m["samples"] = [0.6 * x for x in m.get("samples", [])]
    recorded.write("hostcopy@node0.json", data)
    _, verdict = judged(tmp_path / "source", tmp_path / "run")
    red = [row for row in verdict["criteria"] if row["outcome"] == "FAIL"]
    assert {row["criterion"] for row in red} >= {"hostcopy.h2d", "hostcopy.d2h"}
    named = "other processes used 100 % of the cores of node0 meanwhile"
    assert [row["reason"][: len(named)] for row in red] == [named] * len(red)


@pytest.mark.parametrize("base", OVER_SOCKETS)
def test_training_over_sockets_scales_badly_and_the_network_is_named(base, whole):
    status, verdict = whole(base)
    assert (status, verdict["verdict"]) == (1, "REJECTED")
    bad = {key[0]: row for key, row in rows(verdict).items() if row["outcome"] == "FAIL"}
    assert set(bad) == {f"{name}.cluster.efficiency" for name in OVER_SOCKETS[base]}
    for name, (least, most) in OVER_SOCKETS[base].items():
        row = bad[f"{name}.cluster.efficiency"]
        assert least < row["value"] < most
        assert row["notes"] == ["network between the nodes: NET/Socket"]
        assert "compare the rows of nodes and pairs" in row["next_step"]
        # Of two nodes that wait for each other nobody can be accused.
        assert (row["worst"]["node"], row["worst"]["part"]) == (None, "all nodes")
    assert verdict["counts"]["not_measured"] == 0


def test_a_gpu_that_trains_at_half_its_rate_is_named(whole):
    status, verdict = whole(NEIGHBOUR)
    assert (status, verdict["verdict"]) == (1, "REJECTED")
    bad = [row for row in verdict["criteria"] if row["outcome"] != "PASS"]
    assert [(v["criterion"], v["outcome"]) for v in bad] == [("training_single.tokens", "FAIL")]
    assert (bad[0]["worst"]["node"], bad[0]["worst"]["gpu"]) == ("node0", 0)


def test_of_two_nodes_that_are_slow_together_neither_is_good_or_bad(tmp_path):
    replayed(DATA / "h200-2x1-scaling", tmp_path / "run")
    lists = [(tmp_path / "run" / f"{name}-nodes.txt").read_text() for name in ("good", "bad")]
    assert lists == ["", ""]
    # What a customer reads first says what to blame instead.
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    first = page.partition("<h2>Failed</h2>")[2].partition("</section>")[0]
    assert first.count("network between the nodes: NET/Socket") == 2
    # And what the GPUs of both did meanwhile.
    assert [first.count(f"<td>worker{k}</td><td>gpu0</td>") for k in range(2)] == [2, 2]


def test_gpus_that_lose_their_rate_together_are_none_of_them_accused(tmp_path):
    derive_runs.derive(DATA / "h200-1x4", tmp_path / "source", "unchanged")
    derive_runs.lost_together(derive_runs.Recorded(tmp_path / "source"))
    status, verdict = judged(tmp_path / "source", tmp_path / "run")
    assert (status, verdict["verdict"]) == (1, "REJECTED")
    (row,) = [row for row in verdict["criteria"] if row["outcome"] == "FAIL"]
    assert (row["criterion"], row["subject"]) == ("training_ddp.efficiency_slowest", "node0")
    assert 91 < row["value"] < 92
    assert row["notes"] == ["network in the node: P2P"]
    # The four wait for each other: a GPU that is named here would be accused of nothing.
    worst = row["worst"]
    assert (worst["node"], worst["gpu"], worst["uuid"]) == ("node0", None, None)
    assert worst["part"] == "all GPUs"
    assert row["next_step"].startswith("compare allreduce.* and gemm.* of node0")
    assert (verdict["counts"]["pass"], verdict["counts"]["not_measured"]) == (140, 0)


def expect(verdict: dict[str, Any], whole: dict[str, Any], expected: Expected) -> None:
    """The rows that the change concerns are as expected, and all others as they were."""
    before, after = rows(whole), rows(verdict)
    assert set(after) == set(before)
    concerned = expected.rows or {
        key for key, row in before.items() if row["record"] in expected.records
    }
    assert bool(concerned) == bool(expected.outcome)
    for key in concerned:
        row = after[key]
        assert row["outcome"] == expected.outcome, row
        assert expected.reason in row["reason"], row
        assert row["next_step"], "every red row says what to do"
        if expected.device is not None:
            assert (row["worst"]["node"], row["worst"]["gpu"]) == expected.device
    changed = {key for key in after if after[key]["outcome"] != before[key]["outcome"]}
    assert changed == concerned, "nothing else is red"


@pytest.mark.parametrize(("base", "variant"), CASES)
def test_a_run_with_one_change_is_red_where_the_change_is_and_nowhere_else(
    base, variant, whole, tmp_path
):
    source = tmp_path / "source"
    expected = derive_runs.derive(DATA / base, source, variant)
    status, verdict = judged(source, tmp_path / "run")
    assert (verdict["verdict"], verdict["exit_status"]) == (expected.verdict, expected.exit_status)
    assert status == expected.exit_status
    expect(verdict, whole(base)[1], expected)
    if expected.device is not None:
        bad = (tmp_path / "run" / "bad-nodes.txt").read_text().split()
        good = (tmp_path / "run" / "good-nodes.txt").read_text().split()
        assert bad == [expected.device[0]]
        assert sorted(bad + good) == BASES[base]["nodes"]


def test_several_workers_judge_as_one_process_does(whole, tmp_path):
    expected = derive_runs.derive(CPU, tmp_path / "source", "slow-gpu")
    status, verdict = replayed(tmp_path / "source", tmp_path / "run", "-n", "2")
    assert status == expected.exit_status
    expect(verdict, whole(CPU.name)[1], expected)


def test_a_selection_of_a_replay_is_still_over_the_whole_run(tmp_path):
    """What was not judged this time is not measured: a failure cannot be selected away."""
    derive_runs.derive(CPU, tmp_path / "source", "slow-gpu")
    status, verdict = replayed(tmp_path / "source", tmp_path / "run", "-k", "inventory")
    assert (status, verdict["verdict"]) == (2, "INCOMPLETE")
    assert verdict["counts"]["planned"] == len(read_json(CPU / "run.json")["scope"])


def test_a_replay_names_its_source_and_keeps_the_evidence(tmp_path):
    replayed(CPU, tmp_path / "run")
    earlier, now = read_json(CPU / "run.json"), read_json(tmp_path / "run" / "run.json")
    assert now["origin"] == "replay"
    assert now["id"] != earlier["id"]
    assert now["replay_of"]["run"] == earlier["id"]
    assert len(now["replay_of"]["evidence_sha256"]) == 64
    directory = RunDirectory(tmp_path / "run")
    manifest = directory.manifest.read_text()
    for path in sorted((CPU / "records").iterdir()):
        assert (directory.records / path.name).read_bytes() == path.read_bytes()
        assert f"records/{path.name}" in manifest
    ledger = [json.loads(line) for line in directory.ledger.read_text().splitlines()]
    assert [line["event"] for line in ledger].count("verdict") == now["planned"]
    assert ledger[-1]["event"] == "end"


def test_a_hostile_pickle_in_a_run_is_never_loaded(tmp_path):
    derive_runs.derive(CPU, tmp_path / "source", "unchanged")
    trace = tmp_path / "trace"
    job = tmp_path / "source" / "jobs" / "node-worker0" / "submitit"
    job.mkdir(parents=True)
    for name in ("1_0_result.pkl", "1_submitted.pkl"):
        (job / name).write_bytes(pickle.dumps(("success", Hostile(trace))))
    status, _ = replayed(tmp_path / "source", tmp_path / "run")
    assert status == 0
    assert not trace.exists()


def test_a_replay_does_not_write_into_its_source(tmp_path):
    derive_runs.derive(CPU, tmp_path / "source", "unchanged")
    before = contents(tmp_path / "source")
    source = tmp_path / "source"
    run = support.run_pytest("--cluster", "replay", f"--from={source}", f"--run-dir={source}")
    assert run.returncode == 4
    assert "a replay writes nothing into the run that it reads" in run.stderr
    assert contents(source) == before


@pytest.mark.parametrize("base", BENCHED)
def test_the_records_of_a_run_by_hand_are_judged(base, tmp_path):
    """Rank lines and a minimal run.json, as `torchrun -m fixtures.workloads` leaves them."""
    earlier = read_json(DATA / base / "run.json")
    source = tmp_path / "by-hand"
    source.mkdir()
    node = BASES[base]["nodes"][0]
    people = {name: BASES[base][name] for name in ("gpus_per_node", "gpu_model")}
    run = {
        "schema": 2, "id": "by-hand", "nonce": earlier["nonce"], "origin": "by-hand",
        "contract": None, "population": {"nodes": [node], **people},
    }  # fmt: skip
    record = read_json(DATA / base / "records" / f"gemm@{node}.json")
    if people["gpu_model"] != "cpu":  # by hand it is called what the driver calls it
        run["population"]["gpu_model"] = record["ranks"][0]["device"]["name"]
    (source / "run.json").write_text(json.dumps(run))
    shared = {k: record[k] for k in ("nonce", "workload", "placement", "world_size")}
    for rank in record["ranks"]:
        line = {"schema": SCHEMA, **shared, "event": "result", "time": 1.0, "attempt": 1, **rank}
        support.say(source / "jobs" / "gemm" / f"rank{rank['rank']}.jsonl", [line])
    status, verdict = judged(source, tmp_path / "run")
    outcomes = {k: r["outcome"] for k, r in rows(verdict).items()}
    applicable = {k: outcome for k, outcome in outcomes.items() if outcome != "NOT_APPLICABLE"}
    assert set(applicable.values()) <= {"PASS", "RECORDED"}
    assert "PASS" in applicable.values()
    assert {criterion.partition(".")[0] for criterion, _ in applicable} == {"gemm"}
    wanted = "DEMONSTRATION" if people["gpu_model"] == "cpu" else "PARTIAL"
    assert (verdict["verdict"], status) == (wanted, 0)


def test_a_file_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "run.json").write_bytes(os.urandom(64))
    run = support.run_pytest("--cluster", "replay", f"--from={tmp_path}")
    assert run.returncode == 4
    assert "run.json" in run.stderr
