"""One run: its scope, the verdicts as they fall, and its end."""

# Length: a run is one thing from its scope to its end.

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.paths import CHECKOUT
from fixtures.plan.budget import BudgetedPlan
from fixtures.plan.items import Item
from fixtures.records.files import read_json, read_lines
from fixtures.run import run as module
from fixtures.run.guest_results import GuestFiles
from fixtures.run.repairs import Repair
from fixtures.run.run import Run, new_run_id, verdict_json
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests.run.small_run import BEGAN, PEOPLE, RUN_ID, TEXT, small_run
from tests.selftests.support import NONCE, load, node_record, save

pytestmark = pytest.mark.cpu

GEMM = ("gemm.bf16", "worker0")
OTHER = ("gemm.bf16", "worker1")


@pytest.fixture
def make(tmp_path: Path):
    """A run of two nodes by a small contract."""
    limits = load(tmp_path, TEXT)
    return lambda *people, **more: small_run(tmp_path, *people, thresholds=limits, **more)


def earlier(*keys: tuple[str, str], **more: Any) -> dict[str, Any]:
    """run.json of the session before."""
    return {
        "id": "before", "created": "1970-01-01T00:01:00+00:00", "scope": [list(k) for k in keys],
        "path": "/where/it/was", "options": ["--partition=gpu"], "commands": ["first"], **more,
    }  # fmt: skip


def repair(*nodes: str) -> Repair:
    return Repair(
        run="r1", manifest_sha256="aa", verdict="ACCEPTED", created="1970-01-01T00:10:00+00:00",
        nodes=nodes, not_repeated=(("gemm.spread", "worker0", "why"),),
    )  # fmt: skip


def verdict(key: tuple[str, str] = GEMM, outcome: Outcome = Outcome.PASS, **more: Any) -> Verdict:
    return Verdict(criterion=key[0], title="Fast", subject=key[1], outcome=outcome, **more)


def all_keys(run: Run) -> list[tuple[str, str]]:
    return [i.key for i in run.items]


# --- what it is


def test_an_id_is_a_time_and_a_few_letters():
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", new_run_id())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", module._now())


def test_records_are_checked_against_the_run_that_made_them(make):
    own = make()
    assert (own.devices.run_id, own.devices.created) == (RUN_ID, 1.0)
    resumed = make(earlier=earlier())
    assert (resumed.devices.run_id, resumed.devices.created) == ("before", 60.0)
    by_hand = make(earlier={"id": "hand"})
    assert (by_hand.devices.run_id, by_hand.devices.created) == ("hand", None)
    source = {"run": "source", "created": "1970-01-01T00:02:00+00:00"}
    replayed = make(earlier=earlier(replay_of=source))
    assert (replayed.devices.run_id, replayed.devices.created) == ("source", 120.0)
    repaired = make(earlier=earlier(recertifies=[repair("worker1").to_json()]))
    assert repaired.devices.created == 600.0


def test_a_run_knows_the_repairs_that_came_before_it(make):
    assert make().repairs == ()
    assert make(earlier=earlier()).repairs == ()
    known = earlier(recertifies=[repair("worker1").to_json()])
    assert make(earlier=known).repairs == (repair("worker1"),)


def test_what_goes_on_with_a_run_is_its_own_path_and_with_a_replay_that_of_its_source(make):
    run = make(options=("--qos=x",))
    assert (run.command.path, run.command.options) == (str(run.directory.root), ("--qos=x",))
    resumed = make(earlier=earlier(), options=("--qos=x",))
    assert resumed.command == run.command
    assert make(replayed=Path("/source"), options=("--qos=x",)).command == run.command
    replayed = make(earlier=earlier(), replayed=Path("/source"))
    assert (replayed.command.path, replayed.command.options) == (
        "/where/it/was", ("--partition=gpu",),
    )  # fmt: skip


def test_evidence_is_read_in_its_directory(make):
    run = make()
    save(node_record(650, 650), run.directory)
    assert run.evidence().get("gemm", "worker0") is not None
    assert run.files is run.files


# --- scope


def test_a_new_run_measures_what_was_selected(make):
    run = make()
    run.select([GEMM])
    assert [i.key for i in run.scope] == [GEMM]
    assert run.expected == {("gemm", "worker0"): 1}
    assert [j.name for j in run.jobs] == ["node-worker0"]


def test_a_resumed_run_has_the_scope_of_before_whatever_is_selected(make):
    run = make(earlier=earlier(GEMM, OTHER))
    run.select([OTHER])
    assert [i.key for i in run.scope] == [GEMM, OTHER]
    assert run.expected == {("gemm", "worker1"): 1}


def test_a_replay_measures_nothing(make):
    run = make(earlier=earlier(GEMM), replayed=Path("/source"))
    run.select([GEMM])
    assert [i.key for i in run.scope] == [GEMM]
    assert (run.expected, run.jobs) == ({}, [])


def test_a_recertification_measures_on_repaired_nodes_only(make):
    known = earlier(GEMM, OTHER, recertifies=[repair("worker1").to_json()])
    run = make(earlier=known)
    run.select([GEMM, OTHER])
    assert run.expected == {("gemm", "worker1"): 1}
    assert run.planner().repaired == {"worker1"}
    replayed = make(earlier=known, replayed=Path("/source"))
    replayed.select([GEMM, OTHER])
    assert [i.key for i in replayed._selected] == [GEMM, OTHER]


def test_after_the_inventory_it_is_planned_again_from_where_reasons_begin(make):
    run = make(select=[GEMM])
    run.select([GEMM])
    run.directory.missing.write_text('{"a": 1}\n')
    run.plan_after_inventory()
    assert run.missing_from == 1
    assert run.expected == {("gemm", "worker0"): 1}
    assert run.directory.run_json.exists()


def test_a_test_belongs_to_a_new_run_and_of_a_resumed_one_to_its_scope(make):
    run = make()
    one, two = (i for i in run.items if i.criterion == "gemm.bf16")
    assert run.admits(one)
    assert run.admitted is None
    resumed = make(earlier=earlier(OTHER, GEMM))
    assert [resumed.admits(i) for i in (one, two)] == [True, True]
    assert resumed.admitted == [list(GEMM), list(OTHER)]
    part = make(earlier=earlier(OTHER))
    assert [part.admits(i) for i in (one, two)] == [False, True]
    assert make(earlier={"id": "hand"}).admitted == []


def test_a_test_is_found_by_its_id(make):
    run = make()
    found = run.item_of("gemm.bf16-worker1")
    assert found is not None
    assert found.key == OTHER
    assert run.item_of("gemm.bf16-elsewhere") is None
    assert run.item_of("nothing") is None
    assert run._key(*OTHER) is found.key
    assert run._key("gemm.bf16", "elsewhere") == ("gemm.bf16", "elsewhere")


def test_a_scope_is_whole_with_every_applicable_row_on_every_ordered_node(make):
    assert make(select=[]).whole_scope is False
    run = make()
    applicable = [i.key for i in run.items if not i.not_applicable]
    assert len(applicable) < len(run.items)
    assert make(select=applicable).whole_scope is True
    assert make(select=applicable[1:]).whole_scope is False
    assert make(select=applicable, tier="probe").whole_scope is False
    alone = replace(PEOPLE, nodes=("worker0",), ordered=True)
    assert make(alone, select=all_keys(make(alone))).whole_scope is False  # two were ordered
    assert make(replace(alone, ordered=False), select=all_keys(make(alone))).whole_scope is True


def test_smaller_subjects_are_found_once_for_a_scope(make, monkeypatch):
    scopes = []

    def found(scope: list[Item], people: Population) -> dict[str, list[str]]:
        scopes.append(len(scope))
        return {"criterion": [str(len(scope))]}

    monkeypatch.setattr(module, "smaller_subjects", found)
    run = make(select=[GEMM])
    assert run.smaller_subjects == run.smaller_subjects == {"criterion": ["1"]}
    assert scopes == [1]
    run.scope = [*run.scope, *run.scope]
    assert run.smaller_subjects == {"criterion": ["2"]}


# --- run.json


def test_run_json_says_what_the_run_is(make):
    run = make(select=[GEMM], budgeted=BudgetedPlan(budget_s=60, takes_s=1, whole_s=9, left_out={}))
    run.open(command=["pytest", "-m", "multi node"])
    run.write_heartbeat(sandbox={"id": "s"})
    data = read_json(run.directory.run_json)
    assert (data["id"], data["nonce"], data["origin"]) == (RUN_ID, NONCE, "cluster")
    assert (data["created"], data["commands"]) == (BEGAN, ["pytest -m 'multi node'"])
    assert (data["scope"], data["planned"]) == ([list(GEMM)], 1)
    assert data["budget"]["budget_s"] == 60
    assert data["sandbox"] == {"id": "s"}
    assert (data["session"]["run_id"], data["session"]["created"]) == (RUN_ID, 1.0)
    assert bool(data["commit"]) is (CHECKOUT / ".git").exists(), "an image has none"


def test_a_resumed_run_keeps_when_it_was_created_and_by_which_commands(make):
    for more, created, commands in (
        ({}, "1970-01-01T00:01:00+00:00", ["first", "again"]),
        ({"replayed": Path("/source")}, BEGAN, ["again"]),
    ):
        run = make(earlier=earlier(GEMM), select=[GEMM], **more)
        run.open(command=["again"])
        data = read_json(run.directory.run_json)
        assert (data["created"], data["commands"]) == (created, commands)
        assert data["budget"] is None


# --- verdicts


def test_a_verdict_that_falls_counts_and_stands_in_the_ledger_with_a_command(make):
    run = make(select=[GEMM])
    step = verdict(next_step="pytest --resume=RUN")
    run.record_verdicts(step)
    said = f"pytest --resume={run.directory.root}"
    assert run.verdicts[GEMM].next_step == said
    assert [line["next_step"] for line in read_lines(run.directory.ledger)] == [said]
    assert run._judged == {GEMM}
    run.verdicts.clear()
    run.load_ledger()
    assert run.verdicts[GEMM].next_step == said
    replayed = make(replayed=Path("/source"))
    replayed.record_verdicts(verdict())
    assert replayed._judged == set()


def test_a_row_lacks_its_measurement_without_a_verdict_or_with_none_measured(make):
    run = make(select=[GEMM, OTHER])
    run.record_verdicts(verdict())
    assert run.lacks_measurements is True
    run.record_verdicts(verdict(OTHER, Outcome.NOT_MEASURED))
    assert run.lacks_measurements is True
    run.record_verdicts(verdict(OTHER, Outcome.FAIL))
    assert run.lacks_measurements is False


def test_rows_that_are_no_longer_planned_were_not_measured(make):
    gone = ("gemm.old", "worker0")
    run = make(earlier=earlier(GEMM, gone))
    (found,) = run._unplanned
    assert ((found.criterion, found.subject), found.outcome) == (gone, Outcome.NOT_MEASURED)
    assert make()._unplanned == []


def test_results_of_other_tools_on_nodes_outside_of_the_run_are_named(make):
    assert make()._strangers == []
    ending, key = next(iter(module.guest_results.KEY_OF.items()))
    files = GuestFiles({(node, ending): Path("x") for node in ("elsewhere", "worker0")})
    known = earlier(GEMM, (key, "far"), ("gemm.old", "far"))
    assert make(guest_files=files)._strangers == [(key, "elsewhere")]
    assert make(earlier=known)._strangers == [(key, "far")]
    both = make(guest_files=files, earlier=known)
    assert both._strangers == sorted([(key, "elsewhere"), (key, "far")])
    subjects = {v.subject for v in both._unplanned if v.criterion == key}
    assert subjects == {"elsewhere", "far"}


def test_slurm_is_asked_once_where_its_record_is_wanted(make, monkeypatch):
    asked = []
    monkeypatch.setattr(
        module.slurm_survey, "measure", lambda *_, attempt, **__: asked.append(attempt)
    )
    run = make()
    run.measure_login()
    assert asked == []
    run.expected[("slurm", "login")] = 2
    run.measure_login()
    assert asked == [2]
    run.directory.record("slurm", "login", 2).write_text("{}")
    run.measure_login()
    assert asked == [2]


# --- the end


@pytest.fixture
def concluded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What conclude() was told at each end; it is still asked."""
    told: list[dict[str, Any]] = []
    real = module.conclude

    def conclude(verdicts: Any, **facts: Any) -> Any:
        told.append({"verdicts": list(verdicts), **facts})
        return real(told[-1]["verdicts"], **facts)

    monkeypatch.setattr(module, "conclude", conclude)
    return told


def ended(run: Run, **more: Any) -> dict[tuple[str, str], Verdict]:
    run.open(command=["x"])
    run.finish(**more)
    return run.verdicts


def test_at_the_end_every_row_of_the_scope_has_a_verdict(make, concluded):
    run = make()
    away = next(i.key for i in run.items if i.not_applicable)
    run.scope = [i for i in run.items if i.key in (GEMM, OTHER, away)]
    run.record_verdicts(verdict())
    found = ended(run)
    assert found[GEMM].outcome is Outcome.PASS
    assert (found[OTHER].outcome, found[OTHER].reason) == (Outcome.NOT_MEASURED, "never judged")
    assert found[away].outcome is Outcome.NOT_APPLICABLE
    (told,) = concluded
    assert (told["planned"], len(told["verdicts"])) == (3, 3)
    assert (told["interrupted"], told["origin"], told["demonstration"]) == ("", "cluster", False)
    assert told["whole_scope"] is False
    written = read_json(run.directory.root / "verdict.json")
    assert written["run_id"] == RUN_ID
    assert "replay" not in written
    assert (run.directory.root / "good-nodes.txt").exists()
    assert read_json(run.directory.run_json)["ended"]


@pytest.mark.parametrize(
    ("cut_short", "interrupted", "why"),
    [("its source was killed", "", "its source was killed"), ("", "Ctrl-C", "Ctrl-C"),
     ("its source", "Ctrl-C", "Ctrl-C")],
)  # fmt: skip
def test_an_interrupted_run_says_why_at_each_open_row(make, concluded, cut_short, interrupted, why):
    run = make(select=[GEMM], cut_short=cut_short)
    assert ended(run, interrupted=interrupted)[GEMM].reason == why
    assert concluded[0]["interrupted"] == why


def test_a_budget_is_a_reason_where_it_left_something_out(make):
    for left_out in ({}, {"memory": 2}):
        plan = BudgetedPlan(budget_s=60, takes_s=1, whole_s=90, left_out=left_out)
        run = make(select=[GEMM], budgeted=plan)
        run.open(command=["x"])
        assert any("--budget" in r for r in run.finish().reasons) is bool(left_out)


def judged_keys(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, str]]]:
    """The keys of each batch that is judged."""
    batches: list[list[tuple[str, str]]] = []
    real = module.judge_many

    def judge_many(judge: Any, items: Any, keys: Any) -> Any:
        batches.append(list(keys))
        return real(judge, items, keys)

    monkeypatch.setattr(module, "judge_many", judge_many)
    return batches


def test_a_resumed_run_judges_again_what_earlier_sessions_judged(make, monkeypatch):
    batches = judged_keys(monkeypatch)
    run = make(earlier=earlier(GEMM, OTHER, id=RUN_ID, created=BEGAN), select=[GEMM, OTHER])
    save(node_record(650, 650), run.directory)
    save(node_record(500, 500, node="worker1"), run.directory)
    run.verdicts[GEMM] = verdict(outcome=Outcome.FAIL)
    found = ended(run)
    assert batches[0] == [GEMM, OTHER]
    assert [found[key].outcome for key in (GEMM, OTHER)] == [Outcome.PASS, Outcome.FAIL]
    # Only what has changed stands in the ledger again.
    lines = len(list(run.files.ledger()))
    again = make(earlier=run.earlier, select=[GEMM, OTHER])
    again.load_ledger()
    ended(again)
    assert len(list(again.files.ledger())) == lines


def test_what_this_session_judged_is_not_judged_again(make, monkeypatch):
    batches = judged_keys(monkeypatch)
    run = make(earlier=earlier(GEMM, OTHER), select=[GEMM, OTHER])
    run.record_verdicts(verdict())
    ended(run)
    assert batches[0] == [OTHER]


def test_an_interrupted_session_judges_again_only_what_had_a_verdict(make, monkeypatch):
    batches = judged_keys(monkeypatch)
    run = make(earlier=earlier(GEMM, OTHER), select=[GEMM, OTHER])
    run.verdicts[GEMM] = verdict(outcome=Outcome.FAIL)
    ended(run, interrupted="Ctrl-C")
    assert batches[0] == [GEMM]


@pytest.mark.parametrize("more", [{}, {"replayed": Path("/source"), "earlier": earlier(GEMM)}])
def test_a_new_run_and_a_replay_have_nothing_to_judge_again(make, monkeypatch, more):
    run = make(select=[GEMM], **more)
    monkeypatch.setattr(Run, "_judge_again", lambda *_, **__: pytest.fail("judged again"))
    run.record_verdicts(verdict())
    ended(run)


@pytest.mark.parametrize("where", ["_judge_again", "record_verdicts", "_write_end"])
def test_without_room_for_the_evidence_there_is_no_verdict(make, monkeypatch, where, concluded):
    run = make(select=[GEMM, OTHER], earlier=earlier(GEMM, OTHER))
    run.open(command=["x"])
    run.verdicts[GEMM] = verdict()
    (run.directory.root / "verdict.json").write_text("{}")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "ledger")

    if where != "_judge_again":
        monkeypatch.setattr(Run, "_judge_again", lambda *_, **__: None)
    monkeypatch.setattr(Run, where, full)
    found = run.finish()
    assert found.verdict == "INCOMPLETE"
    assert any("No space left" in r for r in found.reasons)
    assert not (run.directory.root / "verdict.json").exists()
    last = concluded[-1]
    assert "No space left" in last["interrupted"]
    settled = {GEMM} if where == "_judge_again" else {GEMM, OTHER}
    assert {(v.criterion, v.subject) for v in last["verdicts"]} == settled


def test_a_replay_that_cannot_be_written_is_given_again_and_a_run_resumed(make):
    error = OSError(28, "No space left on device")
    assert make(replayed=Path("/source")).unwritable_reason(error).endswith(module.AGAIN)
    run = make()
    assert str(run.directory.root) in run.unwritable_reason(error)


def test_a_part_of_the_order_or_of_a_repair_is_said_to_be_one(make, concluded):
    alone = replace(PEOPLE, nodes=("worker0",), ordered=True)
    ended(make(alone, select=[GEMM]))
    assert "1 of 2 ordered nodes" in concluded[-1]["missing_nodes"]
    known = earlier(GEMM, recertifies=[repair("worker0").to_json()])
    ended(make(select=[GEMM], earlier=known))
    assert "not repeated after the repair of worker0" in concluded[-1]["missing_nodes"]
    ended(make(select=[GEMM]))
    assert concluded[-1]["missing_nodes"] == ""


def test_a_burn_in_is_judged_where_it_is_in_the_scope(make, monkeypatch):
    monkeypatch.setattr(module.burn_in, "read", lambda devices, nodes, ended: list(nodes))
    monkeypatch.setattr(module.burn_in, "judge", lambda found, nodes, order: {"hours": len(found)})
    run = make(select=[GEMM])
    burn = replace(run.scope[0], criterion="burnin.rate", workload="burnin")
    assert make(tier="burnin", select=[GEMM])._mtbf() is None
    assert make(tier="standard", scope=[burn])._mtbf() is None
    assert make(tier="burnin", scope=[*run.scope, burn])._mtbf() == {"hours": 2}


# --- what follows from the records


def test_only_what_was_measured_has_figures_each_read_once(make, monkeypatch):
    spread = ("gemm.spread", "worker0")
    errors = ("gemm.spread", "worker1")
    run = make(select=[GEMM, OTHER, spread, errors])
    asked = []

    def figures_of(judge: Any, items: list[Item]) -> dict[tuple[str, str], Any]:
        asked.extend(i.key for i in items)
        return {i.key: f"of {i.subject}" for i in items}

    monkeypatch.setattr(module, "figures_of", figures_of)
    run.batch.figures |= {GEMM: "known", errors: "known"}
    run.record_verdicts(
        verdict(GEMM), verdict(OTHER, Outcome.WAIVED), verdict(spread, Outcome.NOT_MEASURED),
        verdict(errors, Outcome.NOT_MEASURED),
    )  # fmt: skip
    assert run._figures() == {GEMM: "known", OTHER: "of worker1"}
    assert asked == [OTHER]


def test_the_power_of_the_measurements_stands_in_the_verdict(make):
    run = make()
    run.select(all_keys(run))
    for node in PEOPLE.nodes:
        save(node_record(650, 651, node=node), run.directory)
    run.record_verdicts(*(verdict(i.key, record=f"gemm@{i.subject}") for i in run.scope))
    powers, differences = run.statistics
    assert [p.to_json()["criterion"] for p in powers]
    assert isinstance(differences, list)
    assert run.batch.figures == {}


def test_a_demonstration_is_on_virtual_nodes_cpus_or_emulated_devices(make, monkeypatch):
    assert make(replace(PEOPLE, origin="sandbox"))._is_demonstration() is True
    assert (
        make(replace(PEOPLE, gpu_model="cpu", origin="local"), items=[])._is_demonstration() is True
    )
    run = make(select=[GEMM, OTHER])
    assert run._is_demonstration() is False
    asked = []
    batch = SimpleNamespace(has_demonstration=lambda evidence, keys: asked.extend(keys) or True)
    run.batch = batch
    assert run._is_demonstration() is True
    assert asked == [("gemm", "worker0"), ("gemm", "worker1")]


def test_a_replay_names_its_source_in_the_verdict(make):
    run = make(select=[GEMM], replayed=Path("/source"), extra={"replay_of": {"run": "r"}})
    run.record_verdicts(verdict())
    concluded = run._conclude([verdict()], interrupted="")
    data = verdict_json(run, concluded)
    assert data["replay"] == {"run": "r"}
    assert (data["run_id"], len(data["criteria"])) == (RUN_ID, 1)
    assert data["scope"]["nodes"] == list(PEOPLE.nodes)


@pytest.mark.parametrize("workload", ["gemm", "permutations"])
def test_what_a_load_on_the_fabric_showed_stands_in_the_verdict(make, workload, monkeypatch):
    run = make(select=[GEMM, OTHER])
    run.scope[1] = replace(run.scope[1], workload=workload)
    run.record_verdicts(verdict(), verdict(OTHER))
    concluded = run._conclude([verdict(), verdict(OTHER)], interrupted="")
    summary = {"slices": 3}
    monkeypatch.setattr(module.Evidence, "load_on_fabric", lambda evidence: summary)
    data = verdict_json(run, concluded)
    assert data.get("fabric_load") == (summary if workload == "permutations" else None)
    assert ("fabric_load" in data) is (workload == "permutations")
