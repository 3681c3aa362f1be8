"""Return to service: a repair voids what rests on it, that is measured again, both are joined."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.backends import choose as backends
from fixtures.backends import recertification
from fixtures.errors import ConfigError
from fixtures.plan.items import Item, planned_list
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import RunOptions
from fixtures.run.repairs import Repair, repairs_of, voided
from fixtures.run.run import Run, new_run_id
from fixtures.thresholds import loader
from reports import __main__ as command
from reports.evidence import rejudge
from reports.pages.artefacts import Artefacts
from tests.selftests import support
from tests.selftests.fleets import as_attempt
from tests.selftests.judged_runs import made_whole

pytestmark = pytest.mark.cpu

REPAIRED = ("worker1", 1)
NEW = "GPU-of-the-repair"


@pytest.fixture(scope="module")
def accepted(tmp_path_factory) -> Path:
    """The recorded run of two nodes, as if accepted by today's limits: what it measured passed."""
    root = tmp_path_factory.mktemp("recertify") / "accepted"
    shutil.copytree(support.DATA / "h200-2x2", root)
    rows = support.judged(root, root.parent / "judged")[1]["criteria"]
    good = [
        [row["criterion"], row["subject"]]
        for row in rows
        if row["outcome"] not in ("FAIL", "NOT_MEASURED")
    ]
    contract = json.loads((root.parent / "judged" / "run.json").read_text())["contract"]
    (root / "jobs" / "node-worker0").mkdir(parents=True)
    (root / "jobs" / "node-worker0" / "out.txt").write_text("what a rank printed\n")
    assert made_whole(root, scope=good, contract=contract) == 0
    return root


@pytest.mark.parametrize(("ended", "has_manifest"), [("", True), ("2026-11-27", False)])
def test_a_run_that_has_not_ended_or_has_no_manifest_is_not_recertified(
    tmp_path, monkeypatch, ended, has_manifest
):
    run = {"owner": {}, "ended": ended}
    monkeypatch.setattr(recertification.previous_runs, "load_resumed", lambda _: run)
    if has_manifest:
        RunDirectory(tmp_path).manifest.touch()
    with pytest.raises(ConfigError, match="has not ended"):
        recertification.accepted_run(tmp_path, loader.load(support.SHIPPED))


def items_of(run: Any) -> list[Item]:
    limits = loader.load_with_contract(support.SHIPPED, run["contract"])
    people = recertification.Population.from_json(run["population"])
    return planned_list(limits, people, tier=run["tier"])


def adopt(source: Path, into: Path, *, told: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    contract = json.loads((source / "run.json").read_text())["contract"]
    limits = more.pop("limits", loader.load_with_contract(support.SHIPPED, contract))
    directory = RunDirectory(into)
    return dict(
        recertification.adopt(
            source, directory, new_run_id(), told=told, limits=limits, items_of=items_of,
            **{"repaired": (REPAIRED[0],), **more},
        )
    )  # fmt: skip


class Recertification:
    """A session that recertifies, in which copies of the accepted run's records are measured."""

    def __init__(self, root: Path, run_json: dict[str, Any]) -> None:
        self.root, self.id = root, run_json["id"]

    def take_inventory(self, uuid: str = NEW) -> None:
        self._write("inventory", REPAIRED[0], 2, uuid)

    def _write(self, workload: str, placement: str, attempt: int, uuid: str) -> None:
        records = RunDirectory(self.root)
        data = json.loads(records.record(workload, placement).read_text())
        data = as_attempt(data, attempt, seconds=1e5 / max(1, attempt - 1)) | {"run_id": self.id}
        old = self.old_uuid()
        text = json.dumps(data).replace(old, uuid) if uuid else json.dumps(data)
        records.record(workload, placement, attempt).write_text(text)

    def old_uuid(self) -> str:
        data = json.loads((self.root / "records" / f"inventory@{REPAIRED[0]}.json").read_text())
        (uuid,) = [r["device"]["uuid"] for r in data["ranks"] if r["local_rank"] == REPAIRED[1]]
        return str(uuid)

    def opened(self) -> Run:
        options = RunOptions(
            cluster="replay", from_run=self.root, thresholds=support.SHIPPED,
            run_dir=self.root.parent / "unused",
        )  # fmt: skip
        run = backends.choose(options).open_run()
        # Planned as a live session would plan it.
        run.replayed, run.directory, run.cut_short, run.recertifying = (
            None, RunDirectory(self.root), "", True,
        )  # fmt: skip
        run.id = self.id
        run.open(command=["pytest"])
        run.select(item.key for item in run.items)
        return run

    def measured(self, run: Run, uuid: str = NEW) -> set[tuple[str, str]]:
        """Measure what the session plans, and return it."""
        planned = {(w, job.placement) for job in run.jobs for w, _ in job.workloads}
        for key in planned:
            self._write(*key, run.expected[key], uuid)
        return planned

    def concluded(self, run: Run) -> Any:
        verdict = run.finish()
        for name in (artefacts := Artefacts(run.directory, _json(self.root, "verdict"))).names:
            artefacts.write(name)
        return verdict


def _json(root: Path, name: str) -> Any:
    return json.loads((root / f"{name}.json").read_text())


def _resting_on_the_gpu(root: Path, uuid: str) -> set[tuple[str, str]]:
    found = set()
    for path in (root / "records").glob("*@*.json"):
        data = json.loads(path.read_text())
        if any(rank["device"].get("uuid") == uuid for rank in data["ranks"]):
            found.add((data["workload"], data["placement"]))
    return found


def test_one_gpu_of_four_takes_the_voided_rows_only_and_the_joined_certificate_verifies(
    accepted, tmp_path, capsys
):
    before = {p: p.read_bytes() for p in accepted.rglob("*") if p.is_file()}
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    old = session.old_uuid()
    resting = _resting_on_the_gpu(accepted, old)
    session.take_inventory()
    run = session.opened()
    planned = {
        (i.workload, i.placement)
        for i in run.scope
        if not i.not_applicable and i.workload != "inventory"
    }
    assert session.measured(run) == resting & planned
    assert 10 < len(resting & planned) < len(planned)  # the other node's are not among them
    verdict = session.concluded(run)
    assert (verdict.verdict, verdict.counts["not_measured"]) == ("DEMONSTRATION", 0)
    capsys.readouterr()
    assert command.main(["verify", str(session.root)]) == 0
    said = capsys.readouterr().out
    assert f"VERIFIED: {session.root}" in said
    accepted_id = _json(accepted, "run")["id"]
    assert f"recertified: all evidence of {accepted_id} matches its manifest" in said
    page = (session.root / "certificate.html").read_text()
    assert "Returned to service: worker1, after a repair that the inventory shows" in page
    for text in (accepted_id, session.id, "gemm on worker1", NEW):
        assert text in page
    assert "gemm on worker0" not in page
    assert before == {p: p.read_bytes() for p in accepted.rglob("*") if p.is_file()}
    limits = loader.load_with_contract(support.SHIPPED, _json(session.root, "run")["contract"])
    compared = rejudge.compare(session.root, limits)
    assert (compared.wrong, compared.verdict) == ([], "DEMONSTRATION")


def test_what_was_not_measured_again_is_not_accepted(accepted, tmp_path):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    session.take_inventory()
    run = session.opened()
    todo = {(w, job.placement) for job in run.jobs for w, _ in job.workloads}
    verdict = run.finish()
    assert verdict.verdict == "INCOMPLETE"
    unmeasured = {key for key, v in run.verdicts.items() if v.outcome == "NOT_MEASURED"}
    assert {i.key for i in run.scope if (i.workload, i.placement) in todo} >= unmeasured
    assert ("gemm.bf16", "worker1") in unmeasured
    assert ("gemm.bf16", "worker0") not in unmeasured


def test_without_a_new_inventory_nothing_of_the_repaired_node_stands(accepted, tmp_path):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    run = session.opened()
    run.finish()
    outcomes = {key: v.outcome for key, v in run.verdicts.items() if v.outcome == "NOT_MEASURED"}
    assert ("gemm.bf16", "worker1") in outcomes
    assert "its inventory was not taken again" in run.verdicts["gemm.bf16", "worker1"].reason
    assert ("gemm.bf16", "worker0") not in outcomes


def test_the_same_devices_and_nothing_told_is_nothing_to_measure(accepted, tmp_path):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    session.take_inventory(uuid="")
    run = session.opened()
    assert session.measured(run) == set()
    assert session.concluded(run).verdict == "DEMONSTRATION"
    page = (session.root / "certificate.html").read_text()
    assert "inventory on worker1" in page
    assert "gemm on worker1" not in page


def test_other_firmware_is_found_by_the_inventory_and_voids_the_gpu(accepted, tmp_path):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    old = session.old_uuid()
    for path in (session.root / "records").glob("*@*.json"):
        with support.edited(path) as data:
            for rank in data["ranks"]:
                if rank["device"].get("uuid") == old:
                    rank["device"]["vbios"] = "96.00.A5"
    session.take_inventory(uuid="")
    newest = session.root / "records" / "inventory@worker1.attempt2.json"
    newest.write_text(newest.read_text().replace("96.00.A5", "96.00.B1"))
    assert ("gemm", "worker1") in session.measured(session.opened(), uuid="")


@pytest.mark.parametrize(
    ("told", "again", "kept"),
    [
        ("cable", ("allreduce", "all"), ("gemm", "worker1")),
        ("firmware", ("gemm", "worker1"), ("gemm", "worker0")),
    ],
)
def test_what_no_inventory_shows_is_told(told, again, kept, accepted, tmp_path):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again", told=(told,)))
    session.take_inventory(uuid="")
    measured = session.measured(session.opened(), uuid="")
    assert again in measured
    assert kept not in measured


def test_a_repair_voids_what_was_measured_before_it_and_not_what_came_after():
    first = Repair(run="a", manifest_sha256="", verdict="ACCEPTED", created="", nodes=("n1",),
                   told=("firmware",))  # fmt: skip
    second = replace(first, run="b", told=("cable",))
    said = {
        (run, inventory, over): voided(
            (first, second), run_id=run, inventory=inventory, node="n1", over_network=over
        )
        for run in "abc" for inventory in "bc" for over in (False, True)
    }  # fmt: skip
    assert "new firmware" in said["a", "c", False]
    assert said["b", "c", False] == said["c", "c", True] == ""
    assert "cable was moved" in said["b", "c", True]
    assert "not taken again" in said["b", "b", False]
    assert voided((first,), run_id="a", inventory="a", node="n2", over_network=True) == ""


# --- what is refused


def test_other_limits_another_order_and_changed_evidence_are_refused(accepted, tmp_path):
    contract = _json(accepted, "run")["contract"]
    limits = loader.load_with_contract(support.SHIPPED, contract)
    with pytest.raises(ConfigError, match=r"limits \(SHA-256\) changed since that run"):
        adopt(accepted, tmp_path / "1", limits=replace(limits, sha256="0" * 64))
    with pytest.raises(ConfigError, match=r"cluster \(the order\) changed since that run"):
        adopt(accepted, tmp_path / "2", limits=replace(limits, cluster=None))
    with pytest.raises(ConfigError, match=r"worker9: not of the run"):
        adopt(accepted, tmp_path / "3", repaired=("worker9",))
    changed = Path(shutil.copytree(accepted, tmp_path / "changed"))
    with (changed / "records" / "gemm@worker0.json").open("ab") as file:
        file.write(b" ")
    with pytest.raises(ConfigError, match=r"gemm@worker0.json: changed since manifest"):
        adopt(changed, tmp_path / "4")
    assert not [path for path in tmp_path.iterdir() if path != changed]


def test_nodes_have_to_be_named_and_a_run_that_failed_is_for_retest(accepted, tmp_path):
    with pytest.raises(ConfigError, match="name the repaired nodes"):
        recertification.repaired_nodes(None)
    failed = Path(shutil.copytree(accepted, tmp_path / "failed"))
    verdict = _json(failed, "verdict")
    (failed / "verdict.json").write_text(json.dumps({**verdict, "verdict": "REJECTED"}))
    with pytest.raises(ConfigError, match="--retest="):
        adopt(failed, tmp_path / "again")


@pytest.mark.parametrize("given", [{"resume": Path("b")}, {"plan": True}])
def test_what_does_not_go_with_it(given):
    with pytest.raises(ConfigError, match=r"--recertify|--plan"):
        backends.choose(RunOptions(recertify=Path("a"), **given))


# --- rows that take more nodes than were repaired


def test_rows_over_more_nodes_and_bad_partners_are_not_repeated_and_are_named():
    limits = loader.load(support.SHIPPED)
    people = support.population(nodes=6, gpus=2)
    items = planned_list(limits, people)
    said = list(recertification._not_repeated(items, people, {"worker1"}, {"worker0", "worker2"}))
    rows = {row[:2]: row[2] for row in said}
    planned = {i.key: i for i in items if not i.not_applicable}
    assert {s for _, s in rows} >= {"cluster"}
    for key, why in rows.items():
        assert "it takes 6 nodes" in why
        assert planned[key].placement == "all"
    bad_partner = list(recertification._not_repeated(items, people, {"worker1"}, set()))
    whys = {row[:2]: row[2] for row in bad_partner}
    pairs = [key for key in whys if key[1] == "worker0--worker1"]
    assert pairs
    assert all("its partner worker0 did not pass in the accepted run" in whys[key] for key in pairs)


def test_rows_that_are_left_out_make_it_partial_and_stand_on_the_certificate(accepted, tmp_path):
    good = accepted / "good-nodes.txt"
    source = Path(shutil.copytree(accepted, tmp_path / "accepted"))
    (source / good.name).write_text("worker1\n")  # the partner was not good
    session = Recertification(tmp_path / "again", adopt(source, tmp_path / "again"))
    (repair,) = repairs_of(_json(session.root, "run"))
    assert {why for _, _, why in repair.not_repeated} == {
        "its partner worker0 did not pass in the accepted run"
    }
    session.take_inventory()
    run = session.opened()
    assert not any(placement == "all" for _, placement in session.measured(run))
    assert not run.whole_scope
    session.concluded(run)
    page = (session.root / "certificate.html").read_text()
    assert "Not repeated, and no part of the verdict" in page
    assert command.main(["verify", str(session.root)]) == 0


# --- a forged return to service


def test_evidence_of_the_accepted_run_that_was_changed_or_left_out_is_found(
    accepted, tmp_path, capsys
):
    session = Recertification(tmp_path / "again", adopt(accepted, tmp_path / "again"))
    session.take_inventory()
    run = session.opened()
    session.measured(run)
    session.concluded(run)
    kept = session.root / "recertified" / _json(accepted, "run")["id"]
    from reports.facts import recertified

    def wrong() -> list[str]:
        return list(recertified.differences(run.directory, _json(session.root, "run")))

    assert wrong() == []
    out = kept / "jobs" / "node-worker0" / "out.txt"
    printed = out.read_bytes()
    # Not in place: it may be a link to the accepted run's file.
    out.unlink()
    out.write_text("what a rank never printed\n")
    assert any("node-worker0/out.txt: changed" in line for line in wrong())
    out.write_bytes(printed)
    assert wrong() == []
    told = _json(session.root, "run")
    told["scope"] = told["scope"][1:]
    assert any("missing without a reason" in line for line in
               recertified.differences(run.directory, told))  # fmt: skip
    manifest = kept / "manifest.sha256"
    named = manifest.read_text()
    manifest.unlink()
    manifest.write_text(named + "\n")
    assert any("not the file that run.json names" in line for line in wrong())
