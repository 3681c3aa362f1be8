"""The session: who owns the run, when it starts, how it is stopped, and its exit status."""

# Length: every hook of a session is called with the same fixture of recorders.

from __future__ import annotations

import datetime
import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError, RunError
from fixtures.plan.items import planned_list
from fixtures.plugin import session as module
from fixtures.plugin.collection import UsageErrorItem
from fixtures.plugin.state import SESSION_STATE, SessionState
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import RunOptions
from tests.selftests import support

pytestmark = pytest.mark.cpu

ExitCode = pytest.ExitCode


class Recorder:
    """An object that keeps every call of what it does not have."""

    def __init__(self, **has: Any) -> None:
        vars(self).update(has)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*given: Any, **more: Any) -> Any:
            self.calls.append((name, *given, *([more] if more else [])))
            return vars(self).get("results", {}).get(name)

        return call

    def named(self, name: str) -> list[Any]:
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def handlers(monkeypatch) -> dict[int, Any]:
    """The signal handlers that are set, without setting them."""
    found: dict[int, Any] = {}
    monkeypatch.setattr(
        module.signal, "signal", lambda number, handler: found.update({number: handler})
    )
    return found


@pytest.fixture
def owner(tmp_path, limits, handlers) -> Any:
    """A session that owns a run of two nodes, with all that it uses as recorders."""
    people = support.population(model="H200 SXM")
    items = planned_list(limits, people)
    verdict = SimpleNamespace(exit_status=7)
    run = Recorder(
        not_covered=[],
        calls=[], results={"finish": verdict, "revoke_verdict": SimpleNamespace(exit_status=2)},
        items=items, jobs=[], scope=[], tier="standard", budgeted=None, thresholds=limits,
        lacks_measurements=False, admitted=None, population=people,
        command=SimpleNamespace(completed=lambda why: f"completed {why}"),
    )  # fmt: skip
    backend = Recorder(
        calls=[],
        results={"stop": ""},
        jobs_at_work=0,
        jobs_left=[],
        left_without_reasons="",
        chosen_because="",
    )
    directory = RunDirectory(tmp_path / "run")
    state = SessionState(
        options=RunOptions(), thresholds=limits, items=items, population=people,
        directory=directory, nonce="x", run=run, backend=backend, started=True, opened=True,
    )  # fmt: skip
    hook = Recorder(calls=[])
    reporter = Recorder(calls=[])
    plugins = {"terminalreporter": reporter}
    config = SimpleNamespace(
        stash={SESSION_STATE: state}, hook=hook, inipath=None,
        option=SimpleNamespace(
            collectonly=False, continue_on_collection_errors=False, keyword="", markexpr=""
        ),
        pluginmanager=SimpleNamespace(
            hasplugin=lambda name: name in plugins, getplugin=plugins.get
        ),
        getoption=lambda name: False,
    )  # fmt: skip
    session = SimpleNamespace(
        config=config, items=[], testsfailed=0, shouldstop=False, shouldfail=False, exitstatus=None
    )
    return SimpleNamespace(
        session=session, config=config, state=state, run=run, backend=backend, hook=hook,
        reporter=reporter, plugins=plugins, items=items,
    )  # fmt: skip


def lines(owner: Any) -> list[str]:
    return [call[1] for call in owner.reporter.named("write_line")]


# --- start of the session


def open_session(owner: Any, monkeypatch, options: RunOptions, run: Any = None) -> Any:
    def choose(given: RunOptions, say: Any) -> Any:
        say("a line of the backend")
        return SimpleNamespace(open_run=lambda: run)

    owner.config.stash = {}
    monkeypatch.setattr(module, "options_of", lambda config: options)
    monkeypatch.setattr(module.backends, "choose", choose)
    module.pytest_sessionstart(owner.session)
    return owner.config.stash[SESSION_STATE]


def test_the_owner_opens_the_run(owner, monkeypatch):
    run = SimpleNamespace(
        thresholds="limits", items=[1], population="people", directory="place", nonce="n",
        command="command", batch="batch",
    )  # fmt: skip
    state = open_session(owner, monkeypatch, RunOptions(), run)
    assert (state.run, state.items, state.nonce, state.batch) == (run, [1], "n", "batch")
    assert lines(owner) == ["a line of the backend"]
    assert open_session(owner, monkeypatch, RunOptions(plan=True), run).run is run
    owner.plugins["dsession"] = object()
    assert open_session(owner, monkeypatch, RunOptions(), run).run is run
    with pytest.raises(pytest.UsageError, match="--plan prints the plan and runs nothing"):
        open_session(owner, monkeypatch, RunOptions(plan=True), run)


def test_a_mistake_in_the_options_ends_the_session_with_a_line(owner, monkeypatch):
    def refuses(*_: Any) -> None:
        raise ConfigError("no such order")

    monkeypatch.setattr(module.backends, "choose", refuses)
    monkeypatch.setattr(module, "options_of", lambda config: RunOptions())
    with pytest.raises(pytest.UsageError, match="no such order"):
        module.pytest_sessionstart(owner.session)


@pytest.mark.parametrize("admitted", [None, {("gemm.bf16", "worker0")}])
def test_a_worker_sees_what_the_controller_sees(owner, monkeypatch, limits, admitted):
    owner.run.admitted = admitted
    future = datetime.date(2091, 1, 1)
    owner.state.thresholds = replace(owner.state.thresholds, newest_evidence=future)
    node = SimpleNamespace(config=owner.config, workerinput={})
    module.pytest_configure_node(node)
    given = node.workerinput["acceptance"]
    monkeypatch.setattr(module, "options_of", lambda config: RunOptions(thresholds=limits.path))
    worker = SimpleNamespace(
        stash={}, workerinput={"acceptance": {**given, "admitted": admitted and [*admitted]}}
    )
    module.pytest_sessionstart(SimpleNamespace(config=worker))
    state = worker.stash[SESSION_STATE]
    assert (state.items, state.population) == (owner.items, owner.state.population)
    assert (state.run, state.nonce, state.admitted) == (None, "x", admitted)
    assert state.directory.root == owner.state.directory.root
    assert state.thresholds.waiver_day() == future


# --- start of the run


def test_the_run_starts_with_all_that_was_selected(owner, monkeypatch):
    started = []
    monkeypatch.setattr(module, "_start_run", lambda session, selected: started.append(selected))
    monkeypatch.setattr(module, "planned_items", lambda item: [item] if item != "mine" else [])
    owner.session.items = [*owner.items[:2], "mine"]
    assert module.pytest_runtestloop(owner.session) is None
    assert started.pop() == [item.key for item in owner.items[:2]]
    owner.config.option.collectonly = True
    assert module.pytest_runtestloop(owner.session) is None
    owner.config.option.collectonly = False
    owner.session.testsfailed = 1
    assert module.pytest_runtestloop(owner.session) is None
    assert started == []
    owner.config.option.continue_on_collection_errors = True
    assert module.pytest_runtestloop(owner.session) is None
    assert len(started) == 1
    for change in ("worker", "controller"):
        if change == "worker":
            owner.config.workerinput = {}
        else:
            del owner.config.workerinput
            owner.plugins["dsession"] = object()
        assert module.pytest_runtestloop(owner.session) is None
        assert len(started) == 1


def test_a_selection_of_nothing_is_said(owner, monkeypatch):
    monkeypatch.setattr(module, "_start_run", lambda *_: None)
    monkeypatch.setattr(module, "planned_items", lambda item: [])
    owner.config.option.keyword = "worker9"
    assert module.pytest_runtestloop(owner.session) is None
    assert "did you mean worker" in lines(owner)[-1]
    owner.reporter.calls.clear()
    owner.session.items = ["mine"]  # a test of another kind is something
    module.pytest_runtestloop(owner.session)
    assert lines(owner) == []
    owner.state.options = RunOptions(plan=True)
    assert module.pytest_runtestloop(owner.session) is True  # and no plan has it
    assert "Nothing selected" in lines(owner)[-1]


def test_a_plan_is_printed_and_nothing_is_run(owner, monkeypatch):
    monkeypatch.setattr(module, "_start_run", lambda *_: pytest.fail("it ran"))
    monkeypatch.setattr(module, "planned_items", lambda item: [item])
    monkeypatch.setattr(module, "summary", lambda *_: ["the jobs"])
    monkeypatch.setattr(module.missing_limits, "lines", lambda *_: ["missing limits"])
    monkeypatch.setattr(module.burn_in, "plan_lines", lambda *_: ["rounds"])
    monkeypatch.setattr(module, "options_of", lambda config: RunOptions())
    owner.state.options = RunOptions(plan=True)
    owner.session.items = owner.items[:1]
    for tier, budgeted, said in (
        ("standard", None, ["", "the jobs", "missing limits"]), ("probe", None, ["", "the jobs"]),
        ("burnin", None, ["", "the jobs", "missing limits", "rounds"]),
        ("probe", SimpleNamespace(line="left out"), ["", "the jobs", "left out"]),
    ):  # fmt: skip
        owner.reporter.calls.clear()
        owner.run.tier, owner.run.budgeted = tier, budgeted
        assert module.pytest_runtestloop(owner.session) is True
        assert lines(owner) == said
    assert owner.run.named("select")[-1] == ("select", [owner.items[0].key])
    owner.plugins.clear()
    assert module.pytest_runtestloop(owner.session) is True  # -p no:terminal
    owner.state.run = None
    assert module.pytest_runtestloop(owner.session) is True


def collected(owner: Any, ids: list[str], worker: str = "gw0") -> Any:
    scheduler = SimpleNamespace(_session=owner.session, shouldstop=False)
    owner.plugins["dsession"] = scheduler
    node = SimpleNamespace(config=owner.config, workerinput={"workerid": worker})
    module.pytest_xdist_node_collection_finished(node, ids)
    return scheduler.shouldstop


def test_under_xdist_the_first_worker_that_has_collected_starts_the_run(owner, monkeypatch):
    started: list[Any] = []
    monkeypatch.setattr(module, "_start_run", lambda session, selected: started.append(selected))
    ids = [f"t.py::t[{owner.items[0].test_id}]", "t.py::t[other-thing]", "t.py::mine"]
    assert collected(owner, ids) is False
    assert started == []  # it has started already
    owner.state.started = False
    owner.config.option.collectonly = True
    collected(owner, ids)
    assert started == []
    owner.config.option.collectonly = False
    collected(owner, ids)
    assert started.pop() == [owner.items[0].key]
    with pytest.raises(pytest.UsageError, match=r"^no criterion gem$"):
        collected(owner, [*ids, f"{UsageErrorItem.PREFIX}no criterion gem"])
    owner.session.testsfailed = 1
    assert collected(owner, ids) == "errors during collection"
    assert started == []


def test_only_the_first_worker_says_that_nothing_was_selected(owner, monkeypatch):
    monkeypatch.setattr(module, "_start_run", lambda *_: None)
    owner.state.started = False
    for worker, ids, said in (("gw0", [], 1), ("gw1", [], 0), ("gw0", ["t.py::mine"], 0)):
        owner.reporter.calls.clear()
        collected(owner, ids, worker)
        assert sum("Nothing selected" in line for line in lines(owner)) == said


def start(owner: Any) -> None:
    owner.state.started = owner.state.opened = False
    module._start_run(owner.session, [owner.items[0].key])


def test_a_run_is_prepared_opened_and_started(owner, handlers):
    start(owner)
    assert (owner.state.started, owner.state.opened) == (True, True)
    assert [call[0] for call in owner.run.calls] == ["select", "open"]
    assert owner.run.calls[1][1]["command"][0] == "pytest"
    assert [call[0] for call in owner.backend.calls] == ["prepare", "start"]
    assert [call[0] for call in owner.hook.calls] == ["pytest_acceptance_started"]
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert owner.session.shouldstop == "interrupted"
    assert owner.state.stop_requested is True
    assert owner.backend.named("interrupt")


def test_nothing_starts_without_a_selection_or_a_run(owner):
    run, backend = owner.state.run, owner.state.backend
    owner.state.started = False
    for selected, owner.state.run, owner.state.backend in (
        ([], run, backend), (["x"], None, backend), (["x"], run, None)
    ):  # fmt: skip
        module._start_run(owner.session, selected)
        assert owner.state.started is False


def test_what_prevents_the_start_is_one_line_and_the_reason_of_the_run(owner, monkeypatch):
    for error, said in (
        (RunError("no Slurm"), "no Slurm"),
        (OSError(28, "No space left on device"), "No space left"),
        (OSError(13, "Permission denied"), None),
    ):  # fmt: skip

        def fails(*_: Any, error: Exception = error) -> None:
            raise error

        owner.backend.prepare = fails
        owner.state.interrupted = ""
        if said is None:
            with pytest.raises(OSError, match="Permission"):
                start(owner)
            assert owner.state.interrupted == ""
        else:
            with pytest.raises(pytest.UsageError, match=said):
                start(owner)
            assert said in owner.state.interrupted
        assert owner.state.opened is False


def test_ctrl_c_before_the_first_test_is_an_interrupt(owner, handlers):
    def interrupts(*_: Any) -> None:
        handlers[signal.SIGINT](signal.SIGINT, None)

    owner.backend.prepare = interrupts
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        start(owner)
    assert owner.backend.named("interrupt")
    owner.state.backend = None
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        module._raise_interrupt(signal.SIGTERM, owner.state)
    module._request_stop(owner.session)
    assert owner.state.stop_requested is True


def test_the_controller_of_xdist_stops_between_events(owner):
    waited = []
    controller = SimpleNamespace(
        queue=SimpleNamespace(get=lambda timeout: waited.append(timeout) or 9)
    )
    owner.plugins["dsession"] = controller
    start(owner)
    get = controller.queue.get
    assert [get(timeout=t) for t in (5.0, 0.1)] == [9, 9]
    assert waited == [0.2, 0.1]  # five times a second it hears of a signal
    owner.state.backend = None
    assert get(timeout=1) == 9
    owner.state.backend = owner.backend
    owner.backend.left_without_reasons = "a record has no reason"
    with pytest.raises(KeyboardInterrupt):
        get(timeout=1)
    assert owner.state.interrupted == "a record has no reason"
    owner.backend.left_without_reasons = ""
    with pytest.raises(KeyboardInterrupt):
        get(timeout=1)  # it was asked to stop


# --- signals


def test_the_end_of_the_terminal_is_heeded_except_under_nohup(handlers, monkeypatch):
    for before, heeded in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
        handlers.clear()
        monkeypatch.setattr(module.signal, "getsignal", lambda number, before=before: before)
        module._handle_signals(lambda number: None)
        assert (signal.SIGHUP in handlers) is heeded
        assert {signal.SIGINT, signal.SIGTERM} <= set(handlers)


def test_after_the_end_of_the_terminal_nothing_is_written_to_it(monkeypatch):
    moved = []
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 1)
    monkeypatch.setattr(os, "dup2", lambda new, old: moved.append(old))
    module._drop_closed_terminal(signal.SIGTERM)
    assert moved == []
    module._drop_closed_terminal(signal.SIGHUP)
    assert moved == [1]


def test_a_second_ctrl_c_is_answered_and_hurries(owner, monkeypatch):
    written = []
    monkeypatch.setattr(os, "write", lambda descriptor, text: written.append((descriptor, text)))
    module._end_sooner(owner.state)
    assert owner.backend.named("hurry")
    owner.state.backend = None
    module._end_sooner(owner.state)
    assert [descriptor for descriptor, _ in written] == [1, 1]
    assert b"still stopping" in written[0][1]


# --- end


def finish(owner: Any, status: int = ExitCode.OK, error: Exception | None = None) -> None:
    hook = module.pytest_sessionfinish(owner.session, status)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(None) if error is None else hook.throw(error)


@pytest.fixture(autouse=True)
def no_freeze(monkeypatch):
    monkeypatch.setattr(module, "gc", SimpleNamespace(freeze=lambda: None, unfreeze=lambda: None))
    monkeypatch.setattr(module, "verdict_json", lambda run, verdict: {"of": verdict})


def written(owner: Any) -> None:
    owner.state.directory.root.mkdir(exist_ok=True)
    owner.state.directory.verdict.touch()


def test_a_run_is_concluded_with_its_exit_status(owner):
    written(owner)
    for status, kept in (
        (ExitCode.OK, False), (ExitCode.TESTS_FAILED, False), (ExitCode.INTERRUPTED, False),
        (ExitCode.NO_TESTS_COLLECTED, False), (ExitCode.USAGE_ERROR, True),
        (ExitCode.INTERNAL_ERROR, True),
    ):  # fmt: skip
        owner.session.exitstatus = status
        owner.state.interrupted = ""
        finish(owner, status)
        assert owner.session.exitstatus == (status if kept else 7), status
    (_, given), *_ = owner.hook.calls
    assert given["verdict"] == {"of": owner.state.run_verdict}
    assert owner.hook.calls[0][0] == "pytest_acceptance_concluded"
    owner.state.other_tests_failed = True
    finish(owner)
    assert owner.session.exitstatus == 1


def test_a_verdict_that_is_not_there_is_said(owner):
    finish(owner)
    assert [call[0] for call in owner.hook.calls] == ["pytest_acceptance_unwritten"]
    assert owner.hook.calls[0][1]["verdict"] is owner.state.run_verdict


def test_reports_without_room_on_the_disk_take_the_verdict_back(owner):
    written(owner)
    finish(owner, error=OSError(28, "No space left"))
    assert owner.session.exitstatus == 2
    assert owner.hook.calls[-1][0] == "pytest_acceptance_unwritten"
    assert owner.hook.calls[-1][1]["verdict"].exit_status == 2
    for change in ("no verdict", "no state"):
        owner.state.started = owner.state.opened = False
        owner.state.run_verdict = None
        owner.config.stash = {SESSION_STATE: owner.state} if change == "no verdict" else {}
        with pytest.raises(OSError, match="No space"):
            finish(owner, error=OSError(28, "No space left"))


def test_nothing_is_concluded_that_was_not_started(owner):
    run, backend = owner.state.run, owner.state.backend
    for started, owner.state.run, owner.state.backend in (
        (False, run, backend), (True, None, backend), (True, run, None)
    ):  # fmt: skip
        owner.state.started = started
        finish(owner)
    owner.state.started, owner.state.run, owner.state.backend = True, run, backend
    owner.config.workerinput = {}
    finish(owner)
    del owner.config.workerinput
    owner.config.stash = {}
    finish(owner)
    assert owner.session.exitstatus is None
    assert (run.calls, backend.calls) == ([], [])


def test_a_run_that_was_never_opened_is_stopped_and_not_concluded(owner):
    owner.state.opened = False
    finish(owner)
    assert [call[0] for call in owner.backend.calls] == ["wait_for_submissions", "stop"]
    assert owner.run.calls == []


def test_submissions_are_waited_for_unless_the_session_ends_early(owner):
    written(owner)
    finish(owner)
    assert len(owner.backend.named("wait_for_submissions")) == 1
    stop = owner.backend.named("wait_for_submissions")[0][1]
    assert stop() is False
    for change in ({"interrupted": "x"}, {"stop_requested": True}, {"shouldstop": "x"},
                   {"shouldfail": "x"}):  # fmt: skip
        owner.backend.calls.clear()
        owner.state.interrupted, owner.state.stop_requested = "", False
        owner.session.shouldstop = owner.session.shouldfail = False
        for name, value in change.items():
            target = owner.state if hasattr(owner.state, name) else owner.session
            setattr(target, name, value)
        finish(owner)
        assert owner.backend.named("wait_for_submissions") == [], change


def reason(owner: Any, status: int = ExitCode.OK) -> tuple[str, str]:
    """What the backend and the run are told of the end."""
    owner.backend.calls.clear()
    owner.run.calls.clear()
    finish(owner, status)
    return owner.backend.named("stop")[0][1], owner.run.named("finish")[0][1]["interrupted"]


def test_the_reason_of_the_end_is_the_first_that_applies(owner):
    written(owner)
    ended = "the session ended before this was measured"
    assert reason(owner) == (ended, "")
    assert reason(owner, ExitCode.INTERNAL_ERROR) == ("internal error of pytest",) * 2
    owner.state.interrupted = "the disk is full"
    assert reason(owner, ExitCode.INTERNAL_ERROR) == ("the disk is full",) * 2
    owner.state.stop_requested = True
    assert reason(owner) == ("the disk is full",) * 2
    owner.state.interrupted = ""
    assert reason(owner) == ("interrupted",) * 2
    owner.state.interrupted, owner.state.stop_requested = "", False

    def interrupts(stop: Any) -> None:
        raise KeyboardInterrupt

    owner.backend.wait_for_submissions = interrupts
    assert reason(owner) == ("interrupted",) * 2
    del owner.backend.wait_for_submissions
    owner.state.interrupted = ""
    owner.state.not_collected = ["a.py", "b.py"]
    assert reason(owner) == (ended, "could not be collected: a.py, b.py")
    owner.state.interrupted = "x"
    assert reason(owner) == ("x", "x")
    owner.state.interrupted, owner.state.not_collected = "", []
    for lacks, broken, said in (
        (True, "jobs were lost", "completed jobs were lost"), (False, "jobs were lost", ""),
        (True, "", ""),
    ):  # fmt: skip
        owner.run.lacks_measurements = lacks
        owner.backend.results["stop"] = broken
        assert reason(owner) == (ended, said)
    owner.run.lacks_measurements, owner.backend.results["stop"] = True, "jobs were lost"
    owner.state.interrupted = "x"
    assert reason(owner) == ("x", "x")


def test_whoever_ends_the_run_is_answered(owner):
    written(owner)
    for jobs, interrupted, said in (
        (0, "", []), (0, "x", ["stopping"]), (1, "", ["stopping, cancelling 1 job"]),
        (2, "x", ["stopping, cancelling 2 jobs"]),
    ):  # fmt: skip
        owner.reporter.calls.clear()
        owner.backend.jobs_at_work, owner.state.interrupted = jobs, interrupted
        finish(owner)
        assert lines(owner) == said
    owner.plugins.clear()
    finish(owner)


def test_jobs_that_may_outlive_the_run_are_said_and_are_not_the_verdict_s(owner):
    written(owner)
    owner.backend.jobs_left = ["7", "8"]
    finish(owner)
    assert (lines(owner)[0][-11:], owner.session.exitstatus) == ("scancel 7 8", 7)


def test_what_the_manifest_does_not_cover_is_said(owner):
    written(owner)
    owner.state.run.not_covered = [f"jobs/{k}: a linked folder" for k in range(22)]
    finish(owner)
    said = lines(owner)
    assert said[0] == "not covered by manifest.sha256: jobs/0: a linked folder"
    assert said[20:] == ["not covered by manifest.sha256: 2 more"]


def test_while_it_ends_a_signal_only_hurries(owner, handlers, monkeypatch):
    monkeypatch.setattr(os, "write", lambda *_: None)
    written(owner)
    finish(owner)
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert owner.backend.named("hurry")


def test_the_backend_is_closed_by_the_owner_alone(owner):
    owner.config.workerinput = {}
    module.pytest_unconfigure(owner.config)
    assert owner.backend.calls == []
    del owner.config.workerinput
    module.pytest_unconfigure(owner.config)
    assert owner.backend.named("close")
    owner.state.backend = None
    module.pytest_unconfigure(owner.config)
    owner.config.stash = {}
    module.pytest_unconfigure(owner.config)


def test_hooks_of_our_own_are_known_to_pytest():
    manager = Recorder(calls=[])
    module.pytest_addhooks(manager)
    assert manager.calls == [("add_hookspecs", module.hookspecs)]
