"""A record belongs to devices, not to names: what is measured on others never counts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.backends import choose as backends
from fixtures.run.batch_judging import BatchJudge, judge_many
from fixtures.run.evidence import Evidence
from fixtures.run.options import RunOptions
from fixtures.run.run import Run
from fixtures.verdict.causes import NEXT_STEP, Cause
from tests.selftests import support
from tests.selftests.fleets import GPUS, NODES, Data, FleetRun, fleet, names, whole_fleet

__all__ = ["fleet", "whole_fleet"]

pytestmark = pytest.mark.cpu

SICK = NODES[2]


def test_the_fleet_itself_is_judged_whole(fleet, tmp_path):
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert verdict["counts"]["not_measured"] == verdict["counts"]["fail"] == 0
    assert names(tmp_path / "judged" / "good-nodes.txt") == list(NODES)
    assert (tmp_path / "judged" / "node-reasons.txt").read_text() == ""
    assert all((v["cause"], v["cause_nodes"]) == ("", []) for v in rows.values())


# --- one node's record that is not of the planned devices


def _all_on_one_gpu(record: Data) -> None:
    for rank in record["ranks"]:
        rank["device"] = record["ranks"][0]["device"]


def _of_another_node(record: Data) -> None:
    for k, rank in enumerate(record["ranks"]):
        rank["device"]["uuid"] = f"GPU-of-another-node-{k}"


def _another_gpu_twice(record: Data) -> None:
    record["ranks"][3]["device"] = record["ranks"][2]["device"]


def _on_a_cpu(record: Data) -> None:
    record["ranks"][3]["device"]["name"] = "cpu"


def _on_an_emulated_device(record: Data) -> None:
    record["ranks"][3]["facts"]["emulated"] = True


def _of_another_model(record: Data) -> None:
    for rank in record["ranks"]:
        rank["device"]["name"] = "NVIDIA H100 80GB HBM3"


def _eight_ranks(record: Data) -> None:
    doubled = [{**rank, "rank": rank["rank"] + GPUS} for rank in record["ranks"]]
    record["ranks"] += doubled
    record["world_size"] = 2 * GPUS


def _of_three_ranks(record: Data) -> None:
    del record["ranks"][-1]
    record["world_size"] = GPUS - 1


def _same_local_ranks(record: Data) -> None:
    for rank in record["ranks"]:
        rank["local_rank"] = 0


def _names_other_nodes(record: Data) -> None:
    record["nodes"] = [NODES[0], SICK]


def _of_another_run(record: Data) -> None:
    record["run_id"] = "20200101-000000-0000"


def _ends_before_it_starts(record: Data) -> None:
    record["ranks"][0]["end"] = record["ranks"][0]["start"] - 10


def _rank_twice(record: Data) -> None:
    record["ranks"][1] = record["ranks"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_all_on_one_gpu, "measured as 4 devices"),
        (_of_another_node, "which its inventory does not have"),
        (_another_gpu_twice, "measured as 2 devices"),
        (_on_a_cpu, "measured on a CPU, a GPU was planned"),
        (_on_an_emulated_device, "measured on an emulated device"),
        (_of_another_model, "the limits are those of H200 SXM"),
        (_eight_ranks, "measured as 2 devices"),
        (_of_three_ranks, "3 of 4 ranks"),
        (_same_local_ranks, "say they are the local ranks"),
        (_names_other_nodes, "ranks"),
        (_of_another_run, "it is of run 20200101"),
        (_ends_before_it_starts, "ended before it started"),
        (_rank_twice, "are not the 4 that were started"),
    ],
)
def test_a_record_of_other_devices_is_not_measured_and_its_node_is_named(
    change: Callable[[Data], None], reason: str, fleet: FleetRun, tmp_path: Path
):
    fleet.change(f"gemm@{SICK}.json", change)
    verdict, rows = fleet.judged(tmp_path / "judged")
    not_measured = {k: v for k, v in rows.items() if v["outcome"] == "NOT_MEASURED"}
    assert {subject for _, subject in not_measured} == {SICK}
    assert all(key[0].startswith("gemm.") for key in not_measured)
    cause = Cause.RECORD  # of a model that the inventory does not name either
    assert {v["cause"] for v in not_measured.values()} == {cause}
    assert all(v["next_step"].startswith(NEXT_STEP[cause][:60]) for v in not_measured.values())
    assert all(reason in v["reason"] for v in not_measured.values())
    assert ("gemm.bf16", SICK) in not_measured
    assert verdict["verdict"] == "INCOMPLETE"
    assert names(tmp_path / "judged" / "bad-nodes.txt") == [SICK]
    assert names(tmp_path / "judged" / "good-nodes.txt") == [n for n in NODES if n != SICK]


def test_two_nodes_with_the_same_devices_are_not_accepted_and_neither_is_accused(fleet, tmp_path):
    twin = NODES[0]
    shutil.copy(
        fleet.root / "records" / f"inventory@{twin}.json",
        fleet.root / "records" / f"inventory@{SICK}.json",
    )

    def rename(record: Data) -> None:
        record.update(placement=SICK, nodes=[SICK])
        for rank in record["ranks"]:
            rank["node"] = SICK

    fleet.change(f"inventory@{SICK}.json", rename)
    verdict, rows = fleet.judged(tmp_path / "judged")
    assert verdict["verdict"] == "INCOMPLETE"
    for node in (twin, SICK):
        row = rows["inventory.gpus", node]
        assert row["outcome"] == "NOT_MEASURED"
        assert "is in the inventories of gpu0001, gpu0003" in row["reason"]
    assert twin not in names(tmp_path / "judged" / "bad-nodes.txt")
    assert rows["inventory.gpus", NODES[1]]["outcome"] == "PASS"


def test_an_inventory_of_another_model_is_a_failure_and_not_a_broken_record(fleet, tmp_path):
    def other_model(record: Data) -> None:
        _of_another_model(record)
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "gpu_model":
                    m["value"] = "NVIDIA H100 80GB HBM3"

    fleet.change(f"inventory@{SICK}.json", other_model)
    _, rows = fleet.judged(tmp_path / "judged")
    assert rows["inventory.gpu_model", SICK]["outcome"] == "FAIL"


def _as_it_is_now(fleet: FleetRun, **facts: Any) -> None:
    """A second inventory of a node, taken after all else, whose GPU 1 has these facts."""
    path = fleet.root / "records" / f"inventory@{SICK}.json"
    record = json.loads(path.read_text())
    record["attempt"] = 2
    record["ranks"][1]["device"].update(facts)
    for rank in record["ranks"]:
        rank["start"], rank["end"] = rank["start"] + 3000, rank["end"] + 3000
    path.with_name(f"inventory@{SICK}.attempt2.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("facts", "says"),
    [({"pci": "00000000:EE:00.0"}, "was moved"), ({"vbios": "96.00.FF"}, "has new firmware"),
     ({"power_limit": "lowered"}, "had power_limit"), ({"nvlinks": 17}, "had nvlinks 18, now 17")],
)  # fmt: skip
def test_what_changed_between_two_inventories_is_measured_again(fleet, tmp_path, facts, says):
    _as_it_is_now(fleet, **facts)
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["gemm.bf16", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "device replaced"), row["reason"]
    assert says in row["reason"]
    assert not (tmp_path / "judged" / "bad-nodes.txt").read_text().strip()


@pytest.mark.parametrize("facts", [{"pci": "00000000:EE:00.0"}, {"nvlinks": 17},
                                   {"power_limit": "lowered"}])  # fmt: skip
def test_a_change_that_only_the_record_itself_has_excuses_and_accuses_nobody(
    fleet, tmp_path, facts
):
    fleet.change(f"gemm@{SICK}.json", lambda r: r["ranks"][1]["device"].update(facts))
    _, rows = fleet.judged(tmp_path / "judged")
    row = rows["gemm.bf16", SICK]
    assert (row["outcome"], row["cause"]) == ("NOT_MEASURED", "measurement"), row["reason"]
    assert not (tmp_path / "judged" / "bad-nodes.txt").read_text().strip()


# --- a device that was replaced between two sessions


class Resumed:
    """A recorded run that is gone on with: what it would measure again, without measuring."""

    def __init__(self, source: Path, root: Path) -> None:
        self.root = Path(shutil.copytree(source, root))

    def take_inventory(self, replaced: dict[tuple[str, int], str]) -> None:
        """Write a newer inventory of every node, with other UUIDs in some slots."""
        for path in sorted((self.root / "records").glob("inventory@*.json")):
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if ".attempt" in path.name:
                continue
            data["attempt"] = 2
            for rank in data["ranks"]:
                rank["start"] += 1e5
                rank["end"] += 1e5
                if uuid := replaced.get((rank["node"], rank["local_rank"])):
                    rank["device"]["uuid"] = uuid
            name = path.name.replace(".json", ".attempt2.json")
            path.with_name(name).write_text(json.dumps(data), encoding="utf-8")

    @property
    def recorded(self) -> set[tuple[str, str]]:
        names = [p.stem.partition("@") for p in (self.root / "records").glob("*.json")]
        return {(workload, placement) for workload, _, placement in names}

    def measured_again(self) -> set[tuple[str, str]]:
        """Return the records that a session would measure again, the inventory left out."""
        expected = self.run().expected
        again = {key for key, attempt in expected.items() if attempt > 1}
        return {key for key in again if key[0] != "inventory" and key in self.recorded}

    def run(self) -> Run:
        options = RunOptions(
            cluster="replay",
            from_run=self.root,
            run_dir=self.root.parent / "unused",
            thresholds=support.SHIPPED,
        )
        opened = backends.choose(options).open_run()
        # Planned as a live session of this run would plan it.
        opened.replayed = None
        opened.directory = type(opened.directory)(self.root)
        opened.select(item.key for item in opened.items)
        return opened


def _resting_on(root: Path, replaced: set[tuple[str, int]]) -> set[tuple[str, str]]:
    """Return (workload, placement) of the records that a rank on one of these slots wrote."""
    found = set()
    for path in (root / "records").glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["workload"] in ("inventory", "slurm"):
            continue
        slots = {
            (rank["node"], rank["local_rank"])
            for rank in data["ranks"]
            if str(rank["device"].get("uuid")).startswith("GPU-")
        }
        if data["workload"] == "isolation":  # two ranks of local rank 0, on different GPUs
            slots = {(rank["node"], rank["device"]["uuid"]) for rank in data["ranks"]}
            slots = {(node, k) for node, uuid in slots for k in _slot_of(root, node, uuid)}
        if slots & replaced:
            found.add((data["workload"], data["placement"]))
    return found


def _slot_of(root: Path, node: str, uuid: str) -> list[int]:
    data = json.loads((root / "records" / f"inventory@{node}.json").read_text(encoding="utf-8"))
    return [r["local_rank"] for r in data["ranks"] if r["device"]["uuid"] == uuid]


def test_a_replaced_gpu_voids_its_records_and_no_others(tmp_path):
    resumed = Resumed(support.DATA / "h200-2x2", tmp_path / "run")
    resumed.take_inventory({("worker1", 1): "GPU-new"})
    run = resumed.run()
    evidence = Evidence(run.directory, run.nonce, devices=run.devices)
    judge = BatchJudge(evidence.for_batch(), run.thresholds, run.population)
    result = judge_many(judge, run.items, [item.key for item in run.scope])
    recorded = resumed.recorded
    void = {
        i.key
        for i in run.scope
        if result.verdicts[i.key].outcome == "NOT_MEASURED"
        and (i.workload, i.placement) in recorded
        and i.criterion != "health.answer_time"  # not recorded then
    }
    resting = _resting_on(resumed.root, {("worker1", 1)})
    on_it = {i.key for i in run.scope if (i.workload, i.placement) in resting}
    for key in void:
        reason = result.verdicts[key].reason
        if "a GPU was replaced" in reason:  # a small job sees its own GPUs only
            assert key[0].partition(".")[0] in ("isolation", "scheduler")
        else:
            assert "GPU 1 was replaced: measured on GPU-" in reason
            assert reason.count("now GPU-new") == 1
    judged_on_it = {k for k in on_it if result.verdicts[k].outcome != "NOT_APPLICABLE"}
    per_other_node = {k for k in judged_on_it if k[1] == "worker0"}
    assert void == judged_on_it - per_other_node
    planned = {(i.workload, i.placement) for i in run.scope if not i.not_applicable}
    again = resumed.measured_again()
    resumed.take_inventory({})
    anyway = resumed.measured_again()
    assert again - anyway == (resting & planned) - anyway


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_of_random_swaps_nothing_stale_stands_and_nothing_else_is_measured(count, tmp_path):
    stale = needless = swaps = 0
    rng = random.Random(9)
    slots = [(node, k) for node in ("worker0", "worker1") for k in range(2)]
    resumed = Resumed(support.DATA / "h200-2x2", tmp_path / "run")
    planned = {(i.workload, i.placement) for i in resumed.run().scope if not i.not_applicable}
    resumed.take_inventory({})
    anyway = resumed.measured_again()
    while swaps < count:
        replaced = {slot: f"GPU-new-{swaps}-{slot}" for slot in slots if rng.random() < 0.4}
        for path in (resumed.root / "records").glob("*.attempt2.json"):
            path.unlink()
        resumed.take_inventory(replaced)
        again = resumed.measured_again()
        resting = _resting_on(resumed.root, set(replaced)) & planned
        stale += len(resting - again)
        needless += len(again - resting - anyway)
        swaps += max(1, len(replaced))
    assert (stale, needless) == (0, 0)


def test_a_replaced_nic_voids_what_went_over_the_network(tmp_path):
    resumed = Resumed(support.DATA / "h200-2x2", tmp_path / "run")
    for path in (resumed.root / "records").glob("*.json"):
        with support.edited(path) as data:
            for rank in data["ranks"]:
                if rank["local_rank"] == 0 and data["workload"] != "slurm":
                    rank["device"]["nics"] = {"mlx5_0": f"{rank['node']}-a", "eth0": "02:00"}
    resumed.take_inventory({})
    anyway = resumed.measured_again()
    with support.edited(resumed.root / "records" / "inventory@worker1.attempt2.json") as data:
        data["ranks"][0]["device"]["nics"]["mlx5_0"] = "worker1-b"
    again = resumed.measured_again() - anyway
    assert {placement for _, placement in again} == {"all", "worker0--worker1"}
    assert ("allreduce", "all") in again
