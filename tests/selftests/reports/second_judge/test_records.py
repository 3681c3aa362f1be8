"""The second judge's reader: which parts of a record are sound, and of the planned devices."""

# Length: one test for each rule of the module, on the same builders.

from __future__ import annotations

import copy
import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest

from reports.second_judge import records
from reports.second_judge.records import Records
from tests.selftests import support

pytestmark = pytest.mark.cpu

CREATED = "2026-11-20T12:00:00+00:00"
T = datetime.datetime.fromisoformat(CREATED).timestamp()
DAY = 86400.0
PEOPLE = {
    "nodes": ["a", "b"], "gpus_per_node": 2, "gpu_model": "H200 SXM", "ordered": True,
    "origin": "cluster",
}  # fmt: skip
RUN = {"id": "R", "nonce": "N", "origin": "cluster", "created": CREATED, "population": PEOPLE}


def rank(k: int, node: str, **more: Any) -> dict[str, Any]:
    device = {"name": "NVIDIA H200", "uuid": f"GPU-{node}{k % 2}", "pci": f"0{k % 2}"}
    return {
        "rank": k, "local_rank": k % 2, "node": node, "start": T + 60, "end": T + 60, "facts": {},
        "measurements": [{"metric": "bf16", "unit": "TFLOPS", "samples": [1.0]}], **more,
        "device": {**device, **more.get("device", {})},
    }  # fmt: skip


def record(workload: str = "gemm", place: str = "a", ranks: Any = None, **more: Any) -> Any:
    nodes = more.pop("nodes", ["a", "b"] if place == "all" else [place])
    if ranks is None:
        ranks = [rank(k, node) for k, node in enumerate(n for n in nodes for _ in range(2))]
    return {
        "schema": 1, "run_id": "R", "nonce": "N", "workload": workload, "placement": place,
        "attempt": 1, "nodes": nodes, "world_size": 2 * len(nodes), "job": {}, "ranks": ranks,
        "provenance": {}, **more,
    }  # fmt: skip


def write(root: Path, *data: Any) -> None:
    for one in data:
        suffix = f".attempt{one['attempt']}" if one["attempt"] != 1 else ""
        name = f"{one['workload']}@{one['placement']}{suffix}.json"
        (root / "records" / name).write_text(json.dumps(one), encoding="utf-8")


class Runs:
    """Makes run directories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(self, *data: Any, people: Any = None, criteria: Any = (), **run: Any) -> Records:
        self.count += 1
        root = self.folder / str(self.count)
        run = {**RUN, **run, "population": {**PEOPLE, **(people or {})}}
        support.run_directory(root, **run)
        write(root, *data)
        return Records(root, criteria)

    def left(self, *data: Any, **more: Any) -> set[str] | None:
        """The nodes of the first record whose part counts; None where none does."""
        found = self(*data, **more).newest(data[0]["workload"], data[0]["placement"])
        return None if found is None else found["left"] or None


@pytest.fixture
def runs(tmp_path) -> Runs:
    return Runs(tmp_path)


# --- which record


def test_a_gpu_has_an_identity_of_a_device_or_of_a_part_of_one():
    assert records.is_gpu("GPU-1") is True
    assert records.is_gpu("MIG-1") is True
    assert records.is_gpu(None) is False
    cpu = rank(3, "b", device={"uuid": "cpu-0"})
    both = record(ranks=[rank(0, "a"), rank(1, "a"), rank(2, "b"), cpu])
    assert records.gpus(both) == {"GPU-a0", "GPU-a1", "GPU-b0"}
    assert records.gpus(both, "b") == {"GPU-b0"}


def test_the_newest_attempt_counts_and_those_before_it_follow(runs):
    tries = [record(attempt=k) for k in (1, 2, 3)]
    tries[1]["nonce"] = "another"
    read = runs(*tries)
    assert read.newest("gemm", "a")["attempt"] == 3
    assert [r["attempt"] for r in read.attempts("gemm", "a")] == [3, 1]
    assert read.newest("gemm", "b") is None
    assert read.attempts("gemm", "b") == [None]


def test_the_ledgers_say_which_attempts_failed(runs, tmp_path):
    def line(outcome: str, attempt: int = 1, **more: Any) -> str:
        row = {"criterion": "k", "subject": "a", "outcome": outcome, "attempt": attempt}
        return json.dumps({**row, "cause": "", **more}) + "\n"

    def failed(*lines: str) -> set[int]:
        read = runs(record())
        (read.root / "ledger.jsonl").write_text("".join(lines))
        of_row = Records(read.root).failed.get(("k", "a"), {})
        return {attempt for attempt, values in of_row.items() if values}

    assert failed(line("FAIL"), line("PASS", 2)) == {1}
    assert failed(line("WAIVED", 3), '{"event": "end"}\n', "no JSON\n", "[]\n") == {3}
    assert failed(line("FAIL"), line("NOT_MEASURED")) == {1}
    assert failed(line("FAIL"), line("NOT_MEASURED", cause="repetition")) == set()
    assert failed(line("FAIL"), line("PASS")) == set()
    assert failed(line("FAIL", value=5), line("PASS", value=6)) == {1}, "of another record"
    assert failed() == set()


def test_a_record_is_void_where_a_later_attempt_left_none(runs):
    def found(attempt: int, nonce: str = "N") -> bool:
        read = runs(record())
        missing = {"nonce": nonce, "workload": "gemm", "placement": "a", "attempt": attempt}
        lines = ["torn {", json.dumps(missing)]
        (read.root / "jobs" / "missing.jsonl").write_text("\n".join(lines))
        return Records(read.root).newest("gemm", "a") is not None

    assert found(1)
    assert not found(2)
    assert found(2, nonce="another")


def test_an_inventory_that_shows_the_gpus_of_another_node_is_void(runs):
    a, b = record("inventory", "a"), record("inventory", "b")
    healthy = runs(a, b, record(place="all"))
    assert healthy.newest("inventory", "a")["left"] == {"a"}
    assert healthy.newest("gemm", "all")["left"] == {"a", "b"}
    b["ranks"][0]["device"]["uuid"] = "GPU-a1"
    assert runs(a, b).newest("inventory", "a") is None
    assert runs(a, {**b, "nonce": "another"}).newest("inventory", "b") is None


def test_an_earlier_inventory_counts_only_for_the_same_gpus(runs):
    first, second, third = (record("inventory", attempt=k) for k in (1, 2, 3))
    second["ranks"][0]["device"]["uuid"] = "GPU-x"
    read = runs(first, second, third)
    assert [r["attempt"] for r in read.attempts("inventory", "a")] == [3, 1]


def test_records_are_kept_until_they_are_forgotten(runs):
    a, b = record(), record(place="b")

    def left_after(*forgotten: str, inventory: bool = True) -> list[str]:
        read = runs(a, b, *[record("inventory")] * inventory)
        for place in ("a", "b"):
            assert read.newest("gemm", place) is not None
        write(read.root, {**a, "nonce": "other"}, {**b, "nonce": "other"})
        if forgotten != ("nothing",):
            read.forget(*forgotten)
        return [place for place in ("a", "b") if read.newest("gemm", place)]

    assert left_after("nothing") == ["a", "b"]
    assert left_after("gemm", "a") == ["b"]
    assert left_after() == []
    assert left_after("inventory", "a") == []
    assert left_after("gemm", "a", inventory=False) == []


def test_devices_of_a_cpu_or_emulated_ones_are_a_demonstration(runs):
    on_cpu = record(ranks=[rank(k, "a", device={"name": "cpu"}) for k in (0, 1)])
    emulated = record(ranks=[rank(k, "a", facts={"emulated": True}) for k in (0, 1)])
    for data, expected in ((record(), False), (on_cpu, True), (emulated, True)):
        read = runs(data, people={"origin": "sandbox"})
        assert read.is_demonstration("gemm", "a") is expected
    assert read.is_demonstration("gemm", "b") is False
    login = record("slurm", "login", nodes=["a"], ranks=emulated["ranks"])
    assert runs(login).is_demonstration("slurm", "login") is False


def test_the_population_is_what_the_run_says(runs):
    p = runs().population
    assert (p.nodes, p.virtual, p.on_cpu, p.capability, p.nvlink) == (
        ("a", "b"), False, False, 9.0, 450
    )  # fmt: skip
    p = runs(people={"origin": "sandbox", "gpu_model": "cpu"}).population
    assert (p.virtual, p.on_cpu) == (True, True)
    assert runs(people={"gpu_model": None}).population.gpu_model is None


def test_a_run_by_hand_has_installed_what_it_measured(runs):
    criteria = [{"workload": "gemm", "facts": ["zero3"]}, {"workload": "p2p", "facts": ["fabric"]}]
    assert runs(record(), criteria=criteria).population.installed == ["zero3"]
    stated = runs(record(), criteria=criteria, people={"installed": ["finetune"]})
    assert stated.population.installed == ["finetune"]


# --- sound parts


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"nonce": "another"}, {"workload": "p2p"}, {"placement": "b"},
        {"attempt": 2}, {"provenance": {"load": math.nan}}, {"provenance": 5}, {"more": 1},
        {"world_size": "4"}, {"nodes": ["a", "a"], "world_size": 2},
    ],
)  # fmt: skip
def test_a_record_that_is_another_one_or_broken_is_of_no_use(runs, change):
    read = runs(record())
    path = read.root / "records" / "gemm@a.json"
    path.write_text(json.dumps({**record(), **change}))
    assert read.newest("gemm", "a") is None


BROKEN_RANKS: list[dict[str, Any]] = [
    {"start": T + 61}, {"start": math.nan}, {"end": 1e302}, {"other": 1}, {"local_rank": True},
    {"device": {"name": 5}}, {"measurements": [5]}, {"measurements": [{"metric": "bf16"}]},
]  # fmt: skip
BROKEN_MEASUREMENTS: list[dict[str, Any]] = [
    {"metric": 5}, {"other": 1}, {"rounds": [[]]}, {"rounds": [5]},
    {"samples": [], "rounds": [[1.0]]}, {"samples": ["1"]}, {"samples": [True]}, {"ended": [True]},
    {"checks": {"steps": "1"}}, {"rounds": [["1"]]}, {"at": {"size": []}},
    {"conditions": {"nvls": None}}, {"value": 5}, {"notes": [5]},
]  # fmt: skip


def test_a_broken_rank_of_no_node_costs_the_record(runs):
    data = record(place="all")
    data["ranks"][3].update(node=None, start=None)
    assert runs.left(data) is None


@pytest.mark.parametrize("of_rank", BROKEN_RANKS)
def test_a_broken_rank_costs_its_own_node(runs, of_rank):
    only_a_is_left(runs, of_rank, {})


@pytest.mark.parametrize("of_measurement", BROKEN_MEASUREMENTS)
def test_a_broken_measurement_costs_its_own_node(runs, of_measurement):
    only_a_is_left(runs, {}, of_measurement)


def only_a_is_left(runs: Runs, of_rank: dict[str, Any], of_measurement: dict[str, Any]) -> None:
    data = record(place="all")
    data["ranks"][3]["measurements"][0].update(of_measurement)
    data["ranks"][3].update(of_rank)
    found = runs(data).newest("gemm", "all")
    assert found["left"] == {"a"}
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert set(found["of_node"]) == {"a"}


@pytest.mark.parametrize(
    "change",
    [
        {"samples": [1, 2.0], "rounds": [[3.0]], "ended": [1.0]}, {"samples": [], "value": True},
        {"samples": [], "value": None}, {"value": None}, {"started": None, "notes": ["a note"]},
        {"at": {"size": 8}, "conditions": {"nvls": True}, "checks": {"overlap": 0.9}},
    ],
)  # fmt: skip
def test_a_measurement_may_say_what_it_knows(runs, change):
    data = record(place="all")
    data["ranks"][3]["measurements"][0].update(change)
    assert runs.left(data) == {"a", "b"}


def test_ranks_that_are_missing_or_there_twice_cost_their_node(runs):
    def left(numbers: list[int], nodes: str = "aabb") -> set[str] | None:
        ranks = [
            {**rank(k, node), "rank": number, "local_rank": k % 2}
            for k, (node, number) in enumerate(zip(nodes, numbers, strict=True))
        ]
        return runs.left(record(place="all", ranks=ranks))

    assert left([0, 1, 2, 3]) == {"a", "b"}
    assert left([0, 1, 2], "aab") == {"a"}
    assert left([0, 1, 2, 2]) == {"a"}
    assert left([0, 1, 2, 7]) == {"a"}
    assert left([2, 3], "bb") == {"b"}
    assert left([1, 0, 2, 3]) is None  # all are there, and in another order
    assert left([0, 1, 2, 3], "aabz") is None  # a rank of a node that is not in the record
    assert left([0, 1, 2, 3], "aaaa") is None


def test_all_ranks_on_one_of_two_nodes_are_no_sound_part(runs):
    data = record(place="all", ranks=[rank(0, "a"), rank(1, "a")], world_size=2)
    assert runs.left(data) is None


def test_what_slurm_said_may_be_said_by_the_login_node(runs):
    said = record("slurm", "login", nodes=["a"], ranks=[rank(0, "login")], world_size=1)
    found = runs(said).newest("slurm", "login")
    assert (found["left"], [r["node"] for r in found["ranks"]]) == ({"a"}, ["login"])
    assert runs.left({**said, "world_size": 2}) is None
    broken = {**rank(1, "login"), "start": None}
    assert runs.left({**said, "ranks": [rank(0, "login"), broken]}) is None
    of_old = {**said, "run_id": "another", "ranks": [rank(0, "login", start=0.0)]}
    assert runs.left(of_old) == {"a"}


# --- of the planned devices


def test_a_record_of_another_run_or_day_is_of_others(runs):
    assert runs.left(record(run_id="another")) is None
    for start, good in ((T - DAY + 10, True), (T - DAY, True), (T - DAY - 10, False)):
        data = record(ranks=[rank(k, "a", start=start) for k in (0, 1)])
        assert (runs.left(data) is not None) is good, start - T


def test_a_replay_and_a_session_judge_the_records_of_their_source(runs):
    old = record(run_id="S", ranks=[rank(k, "a", start=T - 9 * DAY) for k in (0, 1)])
    made = "2026-11-11T12:00:00+00:00"
    assert runs.left(old, replay_of={"run": "S", "created": made}) == {"a"}
    assert runs.left(old, replay_of={"run": "S"}) is None
    assert runs.left(record(run_id="S"), session={"run_id": "S"}) == {"a"}
    assert runs.left(record(run_id="R"), session={"run_id": "S"}) is None
    assert runs.left(old, created=None, replay_of={"run": "S"}) == {"a"}


@pytest.mark.parametrize(
    ("workload", "place", "ranks", "good"),
    [
        ("gemm", "a", [rank(0, "a")], False),
        ("isolation", "a", [rank(0, "a")], True),
        ("inventory", "a", [rank(0, "a")], True),
        ("gemm", "a", [rank(0, "a"), {**rank(1, "a"), "local_rank": 0}], False),
        ("isolation", "a", [rank(0, "a"), {**rank(1, "a"), "local_rank": 0}], True),
    ],
)
def test_each_gpu_has_a_rank_but_in_small_jobs(runs, workload, place, ranks, good):
    data = record(workload, place, ranks=ranks, world_size=len(ranks))
    assert (runs.left(data) is not None) is good


def test_two_ranks_on_one_gpu_are_broken_unless_the_workload_judges_that(runs):
    twice = [rank(0, "a"), rank(1, "a", device={"uuid": "GPU-a0", "pci": "00"})]
    for workload, good in (("gemm", False), ("training_ddp", True), ("isolation", True)):
        found = runs.left(record(workload, ranks=twice), record("inventory"))
        assert (found is not None) is good, workload
    unnamed = [rank(k, "a", device={"uuid": None, "pci": None}) for k in (0, 1)]
    assert runs.left(record(ranks=unnamed), record("inventory")) == {"a"}


def with_device(**device: Any) -> Any:
    return record(ranks=[rank(0, "a"), rank(1, "a", device=device)])


@pytest.mark.parametrize(
    ("device", "good"),
    [
        ({}, True), ({"uuid": "GPU-other"}, False), ({"uuid": "cpu-0"}, True),
        ({"pci": "07"}, False), ({"pci": None}, True),
    ],
)  # fmt: skip
def test_gpus_are_those_of_the_inventory_and_in_their_place(runs, device, good):
    assert (runs.left(with_device(**device), record("inventory")) is not None) is good


def test_an_inventory_of_several_nodes_says_nothing_of_one(runs):
    odd = record("inventory", nodes=["a", "b"])
    assert runs.left(with_device(uuid="GPU-other"), odd) == {"a"}


def test_without_inventory_the_gpus_of_most_records_are_the_nodes(runs):
    others = [rank(k, "a", device={"uuid": f"GPU-x{k}"}) for k in (0, 1)]
    odd, rest = record("p2p", ranks=others), [record(), record("memory")]
    assert runs.left(odd, *rest) is None
    assert runs.left(*rest, odd) == {"a"}
    one_alike = with_device(uuid="GPU-other")
    assert runs.left(one_alike, record("memory", ranks=[rank(0, "a"), rank(1, "a")])) == {"a"}


def test_older_firmware_than_the_inventory_shows_is_of_before_a_change(runs):
    inventory = record("inventory", ranks=[rank(k, "a", device={"vbios": "2"}) for k in (0, 1)])
    for vbios, start, good in (
        ("1", T + 59, False), ("1", T + 60, True), ("2", T + 59, True), (None, T + 59, True),
    ):  # fmt: skip
        ranks = [rank(k, "a", start=start, device={"vbios": vbios}) for k in (0, 1)]
        assert (runs.left(record(ranks=ranks), inventory) is not None) is good, (vbios, start)


def test_a_changed_nic_voids_what_went_over_the_network(runs):
    def of(workload: str, place: str, nic: str) -> Any:
        data = record(workload, place)
        for entry in data["ranks"]:
            if entry["node"] == "a":
                entry["device"]["nics"] = {"mlx5_0": nic}
        return data

    known, nameless = of("inventory", "a", "new"), record("inventory")
    for data, inventory, left in (
        (of("gemm", "all", "new"), known, {"a", "b"}), (of("gemm", "all", "old"), known, {"b"}),
        (of("gemm", "a", "old"), known, {"a"}), (of("infiniband", "a", "old"), known, None),
        (of("infiniband", "a", "new"), known, {"a"}), (of("gemm", "all", "x"), nameless,
                                                       {"a", "b"}),
    ):  # fmt: skip
        assert runs.left(data, inventory) == left


def test_gpus_of_another_model_a_cpu_or_emulated_ones_are_not_those_of_the_order(runs):
    other = {"name": "NVIDIA H100 NVL"}
    sandbox, on_cpu, unnamed = {"origin": "sandbox"}, {"gpu_model": "cpu"}, {"gpu_model": None}
    for device, people, good in (
        (other, {}, False), (other, sandbox, True), (other, on_cpu, True), (other, unnamed, True),
        ({"name": "cpu"}, {}, False), ({"name": "cpu"}, sandbox, True),
        ({"name": None}, {}, True), ({"name": "unknown"}, {}, True),
    ):  # fmt: skip
        assert (runs.left(with_device(**device), people=people) is not None) is good, device
    emulated = record(ranks=[rank(k, "a", facts={"emulated": True}) for k in (0, 1)])
    assert runs.left(emulated) is None
    assert runs.left(emulated, people={"ordered": False}) == {"a"}
    assert runs.left(record("inventory", ranks=with_device(**other)["ranks"])) == {"a"}


# --- what a repair voids


def repair(run: str = "OLD", nodes: str = "b", *told: str) -> dict[str, Any]:
    return {"run": run, "nodes": list(nodes), "told": list(told), "created": CREATED}


@pytest.mark.parametrize(
    ("repairs", "run_id", "inventory_of", "place", "good"),
    [
        ([repair()], "R", "R", "b", True),
        ([repair()], "OLD", "R", "b", True),
        ([repair()], "OLD", "OLD", "b", False),
        ([repair()], "OLD", "", "b", False),
        ([repair()], "OLD", "OLD", "a", True),
        ([repair("OLD", "b", "firmware")], "OLD", "R", "b", False),
        ([repair("OLD", "b", "firmware")], "R", "R", "b", True),
        ([repair("OLD", "b", "firmware")], "OLD", "R", "a", True),
        ([repair("OLD", "b", "cable")], "OLD", "R", "b", True),
        ([repair("OLD", "b", "firmware"), repair("OLD2", "a")], "OLD2", "R", "b", True),
        ([repair("OLD", "a"), repair("OLD2", "b", "firmware")], "OLD", "R", "b", False),
    ],
)
def test_a_repair_voids_what_was_measured_on_the_node_before(
    runs, repairs, run_id, inventory_of, place, good
):
    given = [record("inventory", n, run_id=inventory_of) for n in "ab" if inventory_of]
    found = runs.left(record(place=place, run_id=run_id), *given, recertifies=repairs)
    assert (found is not None) is good


def test_a_changed_cable_voids_what_went_over_the_network(runs):
    given = [record("inventory", n) for n in "ab"]
    for workload, place, left in (
        ("gemm", "all", {"a"}), ("infiniband", "b", None), ("gemm", "b", {"b"}),
    ):  # fmt: skip
        data = record(workload, place, run_id="OLD")
        assert runs.left(data, *given, recertifies=[repair("OLD", "b", "cable")]) == left


def test_records_of_a_recertified_run_are_as_old_as_that_run(runs):
    old = record(run_id="OLD", ranks=[rank(k, "a", start=T - 9 * DAY) for k in (0, 1)])
    again = {**repair(), "created": "2026-11-11T12:00:00+00:00"}
    assert runs.left(copy.deepcopy(old), recertifies=[again]) == {"a"}
    assert runs.left(old, recertifies=[repair()]) is None
