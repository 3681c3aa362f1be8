"""What the backends that measure have in common: the run that they open, and its scheduler."""

# Length: the base of all backends, from opening a run to its end.

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import live as module
from fixtures.backends.live import LiveBackend, refuse_nodelist
from fixtures.errors import ConfigError
from fixtures.run.guest_results import KEY_OF, GuestFiles
from fixtures.run.options import RunOptions
from fixtures.run.run import Run
from fixtures.thresholds.loader import Thresholds
from tests.selftests.run.small_run import PEOPLE, TEXT, small_run
from tests.selftests.support import NONCE, load, population

pytestmark = pytest.mark.cpu

ENDING, GUEST = next(iter(KEY_OF.items()))


@pytest.fixture
def limits(tmp_path: Path) -> Thresholds:
    return load(tmp_path, TEXT)


def backend(folder: Path, **options: Any) -> LiveBackend:
    given = {"run_dir": folder / "run", **options}
    return LiveBackend(RunOptions(**given), [].append)


def earlier(**more: Any) -> dict[str, Any]:
    return {
        "id": "before", "nonce": NONCE, "tier": "probe", "destructive": True, "scope": [],
        "population": PEOPLE.to_json(), **more,
    }  # fmt: skip


# --- the run that is opened


def test_a_new_run_has_a_directory_of_its_own(tmp_path, limits, monkeypatch):
    run = backend(tmp_path)._open_run(limits, PEOPLE)
    assert run.directory.root == tmp_path / "run"
    assert (run.earlier, run.tier, run.retest, run.destructive) == (None, "standard", False, False)
    assert run.id
    assert run.nonce != NONCE
    assert run.items
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    by_itself = backend(tmp_path, run_dir=None)._open_run(limits, PEOPLE)
    assert by_itself.directory.root == tmp_path / "runs" / by_itself.id


def test_a_directory_with_a_run_is_not_taken_for_another(tmp_path, limits):
    (tmp_path / "run").mkdir()
    assert backend(tmp_path)._open_run(limits, PEOPLE).directory.root == tmp_path / "run"
    (tmp_path / "run" / "run.json").touch()
    with pytest.raises(ConfigError, match="holds a run already; use --resume="):
        backend(tmp_path)._open_run(limits, PEOPLE)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The run before, and which refusals were asked."""
    known = SimpleNamespace(earlier=earlier(), asked=[])
    runs = module.previous_runs
    monkeypatch.setattr(runs, "load_resumed", lambda root: known.earlier)
    monkeypatch.setattr(runs, "refuse_changed", lambda data, run: known.asked.append("changed"))
    monkeypatch.setattr(runs, "refuse_owned", lambda data, root: known.asked.append("owned"))
    monkeypatch.setattr(
        runs, "refuse_destructive", lambda data, root, allowed: known.asked.append(allowed)
    )
    return known


@pytest.mark.parametrize(("option", "retest"), [("resume", False), ("retest", True)])
def test_a_resumed_run_goes_on_as_it_began(tmp_path, limits, resumed, option, retest):
    given = {option: tmp_path / "before", "run_dir": None}
    run = backend(tmp_path, **given, allow_destructive=True)._open_run(limits, PEOPLE)
    assert (run.id, run.nonce, run.tier, run.destructive) == ("before", NONCE, "probe", True)
    assert (run.directory.root, run.retest) == ((tmp_path / "before").resolve(), retest)
    assert run.earlier is resumed.earlier
    assert resumed.asked == ["changed", "owned", True]


def test_a_recertification_that_is_resumed_has_the_nodes_of_the_accepted_run(
    tmp_path, limits, resumed
):
    people = replace(PEOPLE, nodes=("worker0",))
    given = {"resume": tmp_path / "before", "nodelist": "worker0", "partition": "gpu"}
    run = backend(tmp_path, **given)._open_run(limits, people)
    assert run.population.nodes == ("worker0",)
    assert run.options == ("--partition=gpu", "--nodelist=worker0")
    resumed.earlier = earlier(recertifies=[{"run": "r"}])
    run = backend(tmp_path, **given)._open_run(limits, people)
    assert run.population.nodes == PEOPLE.nodes
    assert run.options == ("--partition=gpu",)


def test_a_recertification_begins_with_the_evidence_of_the_accepted_run(
    tmp_path, limits, monkeypatch
):
    told: dict[str, Any] = {}
    accepted = earlier(id="new", recertifies=[])

    def adopt(source: Path, directory: Any, run_id: str, **more: Any) -> Any:
        told.update(source=source, run_id=run_id, **more)
        return accepted

    monkeypatch.setattr(module.recertification, "adopt", adopt)
    monkeypatch.setattr(module.recertification, "repaired_nodes", lambda nodelist: [nodelist])
    options = {"recertify": tmp_path / "old", "nodelist": "worker1", "moved_cable": True}
    run = backend(tmp_path, **options)._open_run(limits, replace(PEOPLE, nodes=("else",)))
    assert (run.recertifying, run.id, run.population.nodes) == (True, "new", PEOPLE.nodes)
    assert run.directory.root == tmp_path / "run"
    assert (told["source"], told["repaired"]) == ((tmp_path / "old").resolve(), ["worker1"])
    assert told["told"] == module.recertification.told_of(moved_cable=True, new_firmware=False)
    assert [i.key for i in told["items_of"](accepted)] == [i.key for i in run.items]


def test_what_is_installed_is_looked_up_once(tmp_path, limits, resumed, monkeypatch):
    monkeypatch.setattr(module, "installed_here", lambda: ("here",))
    assert backend(tmp_path)._open_run(limits, PEOPLE).population.installed == ("here",)
    given = backend(tmp_path, resume=tmp_path / "before")
    for then, now in ((None, ("here",)), ([], ()), (["then"], ("then",))):
        resumed.earlier["population"]["installed"] = then
        assert given._open_run(limits, PEOPLE).population.installed == now


@pytest.mark.parametrize(
    ("tier", "hours", "taken"),
    [("burnin", 0.5, True), ("burnin", None, True), ("burnin", 0, False), ("burnin", -1, False),
     ("standard", 5, False), ("standard", None, True)],
)  # fmt: skip
def test_hours_are_positive_and_of_a_burn_in(tmp_path, shipped, tier, hours, taken):
    given = backend(tmp_path, tier=tier, hours=hours)
    if taken:
        assert given._open_run(shipped, population(1)).hours == hours
    else:
        with pytest.raises(ConfigError, match="--hours is a positive number"):
            given._open_run(shipped, population(1))


def test_results_of_other_tools_are_planned_as_criteria(tmp_path, shipped, resumed, monkeypatch):
    files = GuestFiles({("worker0", ENDING): Path("x")})
    monkeypatch.setattr(module.guest_results, "find", lambda directory: files)
    run = backend(tmp_path, guest_results=tmp_path)._open_run(shipped, population(1))
    assert run.optional == (GUEST,)
    assert run.guest_files is files
    assert GUEST in {i.criterion for i in run.items}
    none = backend(tmp_path)._open_run(shipped, population(1))
    assert (none.optional, none.guest_files) == ((), None)
    again = backend(tmp_path, guest_results=tmp_path, resume=tmp_path / "before")
    with pytest.raises(ConfigError, match="planned without such files"):
        again._open_run(shipped, population(1))
    resumed.earlier["optional"] = [GUEST]
    assert again._open_run(shipped, population(1)).optional == (GUEST,)
    without = backend(tmp_path, resume=tmp_path / "before")
    assert without._open_run(shipped, population(1)).optional == (GUEST,)


@pytest.mark.parametrize("again", [False, True])
def test_records_that_an_earlier_session_left_in_pieces_are_put_together_first(
    tmp_path, monkeypatch, again
):
    done: list[str] = []
    monkeypatch.setattr(module, "refuse_unshared", lambda root, origin: done.append(origin))
    monkeypatch.setattr(module.previous_runs, "salvage", lambda *_, **__: done.append("salvaged"))
    monkeypatch.setattr(Run, "plan_again", lambda self: done.append("planned"))
    run = small_run(tmp_path, earlier=earlier() if again else None)
    backend(tmp_path).prepare(run)
    assert done == ["cluster", *(["salvaged", "planned"] if again else [])]


def test_what_was_swept_is_said(tmp_path, monkeypatch):
    said: list[str] = []
    asked: list[Any] = []

    def sweep(root: Path, *, slurm: bool) -> list[str]:
        asked.append((root, slurm))
        return ["one", "two"]

    monkeypatch.setattr(module.sweep, "sweep", sweep)
    LiveBackend(RunOptions(), said.append)._sweep(small_run(tmp_path), slurm=True)
    assert (said, asked) == (["one", "two"], [(tmp_path, True)])


# --- its scheduler


class FakeScheduler:
    """Remembers what it was made of; ends after a few questions."""

    made: list[FakeScheduler]
    ends_with: Exception | None = None

    def __init__(self, context: Any, jobs: Any, **parts: Any) -> None:
        self.context, self.jobs = context, list(jobs)
        self.__dict__.update(parts)
        self.attempts = dict(context.attempts)
        self.asked: list[float] = []
        self.started = False
        self.error = self.ends_with
        FakeScheduler.made.append(self)

    def start(self) -> None:
        self.started = True

    def join(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return len(self.asked) == 3


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> list[FakeScheduler]:
    FakeScheduler.made = []
    monkeypatch.setattr(module, "Scheduler", FakeScheduler)
    monkeypatch.setattr(module, "link_latest", lambda root: None)
    monkeypatch.setattr(Run, "measure_login", lambda self: None)
    return FakeScheduler.made


def started(run: Run, people: Any = PEOPLE, given: LiveBackend | None = None) -> LiveBackend:
    given = given or backend(run.directory.root.parent)
    given._start_scheduler(run, "launcher", "watcher", people, "injector")  # type: ignore[arg-type]
    return given


def test_a_new_run_starts_one_scheduler_for_its_jobs(tmp_path, schedulers, monkeypatch):
    asked: list[Any] = []
    monkeypatch.setattr(module, "find_culprits", lambda *given: asked.append(given))
    run = small_run(tmp_path)
    run.select([i.key for i in run.items])
    given = started(run)
    (made,) = schedulers
    assert given.scheduler is made
    assert made.started
    assert made.jobs == run.jobs
    assert made.attempts == run.expected
    assert (made.launcher, made.watcher) == ("launcher", "watcher")
    facts = made.context.spec_facts
    assert facts["token"] == (run.directory.root / "token").read_text()
    assert (facts["device"], facts["gpu_model"]) == ("cuda", "H200 SXM")
    made.callbacks.locate(["a", "b"], "measure")
    assert asked == [(run, ("a", "b"), "measure")]
    assert made.callbacks.gate("worker0") is None


@pytest.mark.parametrize(
    ("people", "srun_args", "demonstration", "bind_cores"),
    [
        (PEOPLE, (), False, True),
        (PEOPLE, ("--mem=1", "--cpu-bind=none"), False, False),
        (replace(PEOPLE, origin="sandbox"), (), True, False),
        (replace(PEOPLE, gpu_model="cpu"), (), True, True),
    ],
)
def test_ranks_are_bound_to_cores_on_real_nodes_unless_it_is_asked_for_otherwise(
    tmp_path, schedulers, people, srun_args, demonstration, bind_cores
):
    started(small_run(tmp_path), people, backend(tmp_path, srun_args=srun_args))
    facts = schedulers[0].context.spec_facts
    assert (facts["demonstration"], facts["bind_cores"]) == (demonstration, bind_cores)


@pytest.mark.parametrize(
    ("asked", "usual", "expected"), [(5, None, 5), (5, 24, 5), (None, 24, 24), (None, None, None)]
)
def test_as_many_jobs_are_queued_as_are_asked_for_or_usual(
    tmp_path, schedulers, asked, usual, expected
):
    given = backend(tmp_path, max_jobs=asked)
    given.max_jobs = usual
    started(small_run(tmp_path), given=given)
    assert schedulers[0].max_jobs == expected


@pytest.mark.parametrize(
    ("run_dir", "again", "recertifying", "linked"),
    [(None, False, False, True), ("run", False, False, False), (None, True, False, False),
     (None, True, True, True), ("run", True, True, False)],
)  # fmt: skip
def test_latest_is_the_newest_run_among_those_without_a_directory_of_choice(
    tmp_path, schedulers, monkeypatch, run_dir, again, recertifying, linked
):
    links: list[Path] = []
    monkeypatch.setattr(module, "link_latest", links.append)
    run = small_run(tmp_path, earlier=earlier() if again else None, recertifying=recertifying)
    started(run, given=backend(tmp_path, run_dir=tmp_path / run_dir if run_dir else None))
    assert links == ([run.directory.root] if linked else [])


def test_results_of_other_tools_are_copied_into_the_run(tmp_path, schedulers):
    copied: list[Any] = []
    run = small_run(tmp_path)
    started(run)
    assert copied == []
    files = SimpleNamespace(copy_into=copied.append, strangers=lambda nodes: [], keys=())
    run.guest_files = files  # type: ignore[assignment]
    started(run)
    assert copied == [run.directory]


INVENTORY = SimpleNamespace(placement="worker0", workloads=(("inventory", ("gpus",)),))


def with_inventory(monkeypatch: pytest.MonkeyPatch, *jobs: Any) -> list[str]:
    planned: list[str] = []

    def inventory_jobs(planned: Iterable[Any], taken: Collection[str]) -> list[tuple[Any, int]]:
        measured = {node for job in planned for node in job.nodes}
        own = [j for j in jobs if not hasattr(j, "beside") or j.placement in measured]
        return [(job, 4) for job in own if job.placement not in taken]

    planner = SimpleNamespace(inventory_jobs=inventory_jobs)
    monkeypatch.setattr(Run, "planner", lambda self: planner)
    monkeypatch.setattr(Run, "plan_after_inventory", lambda self: planned.append("planned"))
    return planned


def test_a_resumed_run_takes_the_inventory_before_it_goes_on(tmp_path, schedulers, monkeypatch):
    planned = with_inventory(monkeypatch, INVENTORY)
    run = small_run(tmp_path, earlier=earlier())
    run.expected["gemm", "worker0"] = 2
    started(run)
    first, second = schedulers
    assert first.jobs == [INVENTORY]
    assert first.attempts["inventory", "worker0"] == 4
    assert first.asked == [0.2] * 3  # an interruption is heard at once
    assert first.callbacks.gate("worker0") is None
    assert planned == ["planned"]
    assert second.attempts["gemm", "worker0"] == 2
    assert second.started


def test_a_node_that_is_measured_beside_a_repaired_one_is_looked_at_too(
    tmp_path, schedulers, monkeypatch
):
    beside = SimpleNamespace(placement="worker1", workloads=INVENTORY.workloads, beside=True)
    planned = with_inventory(monkeypatch, INVENTORY, beside)
    monkeypatch.setattr(Run, "jobs", [SimpleNamespace(nodes=("worker0", "worker1"))], raising=False)
    started(small_run(tmp_path, earlier=earlier()))
    assert [s.jobs for s in schedulers][:2] == [[INVENTORY], [beside]]
    assert len(schedulers) == 3
    assert planned == ["planned"] * 2


def test_a_resumed_run_whose_inventory_broke_does_not_go_on(tmp_path, schedulers, monkeypatch):
    planned = with_inventory(monkeypatch, INVENTORY)
    monkeypatch.setattr(FakeScheduler, "ends_with", ZeroDivisionError())
    started(small_run(tmp_path, earlier=earlier()))
    assert (len(schedulers), planned) == (1, [])


def test_a_resumed_run_without_records_has_no_inventory_to_take(tmp_path, schedulers, monkeypatch):
    planned = with_inventory(monkeypatch)
    started(small_run(tmp_path, earlier=earlier()))
    assert (len(schedulers), planned) == (1, [])


# --- while it measures, and after


def at_work(**known: Any) -> LiveBackend:
    given = LiveBackend(RunOptions(), print)
    facts = {"alive": True, "settled": False, "error": None, "suite_error": "", **known}
    given.scheduler = SimpleNamespace(**facts)  # type: ignore[assignment]
    return given


NOBODY = LiveBackend(RunOptions(), print)


def test_no_more_records_come_once_the_scheduler_has_ended():
    assert NOBODY.no_more_records() is True
    assert at_work().no_more_records() is False
    assert at_work(alive=False).no_more_records() is True


def test_reasons_are_lacking_only_where_the_scheduler_ended_without_them():
    broken = {"suite_error": "a bug of ours"}
    assert NOBODY.left_without_reasons == ""
    assert at_work(**broken).left_without_reasons == ""
    assert at_work(**broken, alive=False, settled=True).left_without_reasons == ""
    assert at_work(**broken, alive=False).left_without_reasons == "a bug of ours"


def test_why_it_ended_names_the_storage_where_that_was_the_reason():
    full = OSError(28, "No space left on device", "missing.jsonl")
    ended = at_work(alive=False, error=full, suite_error="suite error")
    assert "No space left on device" in ended.left_without_reasons
    other = at_work(alive=False, error=ZeroDivisionError(), suite_error="suite error")
    assert other.left_without_reasons == "suite error"


def test_it_waits_for_submissions_until_they_are_done_or_it_is_told_to_stop():
    NOBODY.wait_for_submissions(lambda: pytest.fail("nobody submits"))
    asked: list[float] = []

    def submissions(seconds: float) -> bool:
        asked.append(seconds)
        return len(asked) >= 3

    at_work(wait_for_submissions=submissions).wait_for_submissions(lambda: False)
    assert len(asked) == 3
    asked.clear()
    at_work(wait_for_submissions=submissions).wait_for_submissions(lambda: len(asked) == 2)
    assert len(asked) == 2


def test_it_passes_on_that_a_run_ends():
    assert NOBODY.jobs_at_work == 0
    assert NOBODY.stop("x") == ""
    NOBODY.interrupt()
    NOBODY.hurry()
    reasons: list[str] = []
    given = at_work(jobs_at_work=7, stop=reasons.append, suite_error="a bug")
    assert given.jobs_at_work == 7
    given.interrupt()
    assert given.scheduler.interrupted is True  # type: ignore[union-attr]
    given.hurry()
    assert given.scheduler.hurried is True  # type: ignore[union-attr]
    assert given.stop("Ctrl-C") == "a bug"
    assert reasons == ["Ctrl-C"]


def test_nodes_can_only_be_chosen_on_a_cluster_or_for_a_repair():
    chosen = RunOptions(nodelist="n1")
    with pytest.raises(ConfigError, match=r"a local run uses all nodes$"):
        refuse_nodelist(chosen, "local")
    with pytest.raises(ConfigError, match="a sandbox run uses all nodes: make it smaller"):
        refuse_nodelist(chosen, "sandbox")
    refuse_nodelist(RunOptions(), "local")
    refuse_nodelist(replace(chosen, recertify=Path("/run")), "sandbox")
