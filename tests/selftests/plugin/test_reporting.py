"""Reports of acceptance tests: they show the verdict, and each is recorded whatever its result."""

# Length: every kind of report of an acceptance test, a few lines each.

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from fixtures.errors import NotMeasured, WrongComparison
from fixtures.plan.items import Item
from fixtures.plugin import reporting
from fixtures.plugin.node_tests import NodeTest
from fixtures.plugin.reporting import WRONG_COMPARISON, VerdictRecorder
from fixtures.plugin.state import SESSION_STATE
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import support

pytestmark = pytest.mark.cpu

ITEM = Item(
    criterion="gemm.bf16", subject="worker0", nodes=("worker0",), workload="gemm",
    placement="worker0",
)  # fmt: skip
OTHER = Item(
    criterion="gemm.fp8", subject="worker0", nodes=("worker0",), workload="gemm",
    placement="worker0",
)  # fmt: skip
KEYS = ("gemm.bf16", "gemm.fp8")
CRITERIA = {key: SimpleNamespace(key=key, title="Fast", unit="TFLOPS") for key in KEYS}
NODEID = "tests/test_compute.py::test_gemm[gemm.bf16-worker0]"


def verdict(outcome: Outcome = Outcome.PASS, criterion: str = "gemm.bf16") -> Verdict:
    return Verdict(criterion=criterion, title="Fast", subject="worker0", outcome=outcome, value=1.5)


def carried(found: Verdict) -> tuple[str, str]:
    return "verdict", json.dumps(found.to_json())


def report(
    outcome: str = "passed", when: str = "call", text: str = "", *properties: tuple[str, str],
    nodeid: str = NODEID, **more: Any,
) -> pytest.TestReport:  # fmt: skip
    made = pytest.TestReport(
        nodeid,
        ("t.py", 1, "t"),
        {},
        outcome,
        None if outcome == "passed" else text,
        when,
        user_properties=[*properties],
    )
    vars(made).update(more)
    return made


def node_test(**more: Any) -> NodeTest:
    made = object.__new__(NodeTest)
    vars(made).update({"user_properties": [], "planned": [ITEM, OTHER], **more})
    return made


# --- the report of one test


def made(item: Any, error: BaseException | None, found: pytest.TestReport) -> tuple[Any, Any]:
    """The report, and where the error is shown to have been raised."""
    item.config = SimpleNamespace(option=SimpleNamespace(usepdb=getattr(item, "pdb", False)))
    call = SimpleNamespace(excinfo=None)
    if error is not None:
        try:
            deep(error)
        except BaseException as raised:
            call.excinfo = pytest.ExceptionInfo.from_exception(raised)
    hook = reporting.pytest_runtest_makereport(item, call)
    next(hook)
    with pytest.raises(StopIteration) as stopped:
        hook.send(found)
    depth = len(call.excinfo.traceback) if call.excinfo is not None else 0
    return stopped.value.value, depth


def deep(error: BaseException) -> None:
    def deeper() -> None:
        raise error

    deeper()


def criterion_test(*properties: tuple[str, str], **more: Any) -> SimpleNamespace:
    return SimpleNamespace(user_properties=[*properties], **more)


def test_a_failed_criterion_shows_its_verdict_and_one_frame():
    failed = verdict(Outcome.FAIL)
    item = criterion_test(("recorded", "x"), carried(failed))
    for error in (AssertionError("assert"), NotMeasured("no record")):
        found, depth = made(item, error, report("failed", "call", "long", carried(failed)))
        assert (found.longrepr, depth) == (failed.line, 1)
    found, depth = made(
        criterion_test(carried(failed), pdb=True), AssertionError("assert"),
        report("failed", "call", "long", carried(failed)),
    )  # fmt: skip
    assert (found.longrepr, depth) == (failed.line, 3)


def test_other_errors_and_other_tests_keep_their_traceback():
    failed = verdict(Outcome.FAIL)
    found, depth = made(
        criterion_test(carried(failed)), ZeroDivisionError("a bug"),
        report("failed", "call", "long", carried(failed)),
    )  # fmt: skip
    assert (found.longrepr, depth) == ("long", 3)
    found, depth = made(
        criterion_test(("other", "x")), AssertionError("a"), report("failed", "call", "long")
    )
    assert (found.longrepr, depth) == ("long", 3)
    item = criterion_test(carried(failed))
    found, _ = made(item, None, report("passed", "call", "", carried(failed)))
    assert (found.outcome, found.longrepr) == ("failed", failed.line), "its assertion did nothing"
    found, _ = made(item, AssertionError("a"), report("skipped", "call", "x", carried(failed)))
    assert found.longrepr == "x"
    found, _ = made(item, AssertionError("a"), report("failed", "call", "long"))
    assert found.longrepr == "long"  # its verdict was not attached


def test_the_test_of_a_node_shows_its_error_and_is_kept_with_its_report():
    item = node_test()
    found, depth = made(item, AssertionError("two lines"), report("failed", "call", "long"))
    assert (found.longrepr, found.node_test, depth) == ("two lines", item, 1)
    found, depth = made(item, ZeroDivisionError("a bug"), report("failed", "call", "long"))
    assert (found.longrepr, depth) == ("long", 3)
    found, _ = made(criterion_test(), None, report())
    assert not hasattr(found, "node_test")


def test_a_wrong_comparison_is_a_property_of_the_report():
    item = criterion_test(carried(verdict()))
    found, _ = made(item, WrongComparison("compares >="), report("failed", "call", "long"))
    assert found.longrepr == "compares >="
    assert dict(found.user_properties)[WRONG_COMPARISON] == "compares >="
    found, _ = made(item, AssertionError("a"), report("failed", "call", "long"))
    assert WRONG_COMPARISON not in dict(found.user_properties)


def test_the_verdict_of_a_report_is_the_one_that_its_fixture_attached():
    failed = verdict(Outcome.FAIL)
    assert (
        reporting.verdict_of(report("failed", "call", "", ("other", "{}"), carried(failed)))
        == failed
    )
    assert reporting.verdict_of(report("failed", "call", "", ("other", "{}"))) is None


def test_a_test_that_died_with_its_worker_is_shown():
    died = report("failed", "???")
    reporting.pytest_handlecrashitem("t", died, None)
    assert (died.worker_crashed, died.when) == (True, "teardown")


def test_only_the_owner_records():
    registered = []
    manager = SimpleNamespace(register=lambda plugin, name: registered.append(name))
    reporting.pytest_configure(SimpleNamespace(pluginmanager=manager))
    assert registered == ["acceptance-verdict-recorder"]
    reporting.pytest_configure(SimpleNamespace(pluginmanager=manager, workerinput={}))
    assert len(registered) == 1


# --- what is recorded


class Run:
    """Keeps what is written into the run; a full disk where it is told so."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.tests: list[tuple[Any, ...]] = []
        self.thresholds = SimpleNamespace(criteria=CRITERIA)
        self.files = self
        self.full = False

    def item_of(self, test_id: str) -> Item | None:
        return {i.test_id: i for i in (ITEM, OTHER)}.get(test_id)

    def append_test(self, *given: Any) -> None:
        self.tests.append(given)

    def record_verdicts(self, *verdicts: Verdict) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.verdicts += verdicts

    def unwritable_reason(self, error: OSError) -> str:
        return f"unwritable: {error.strerror}"


@pytest.fixture
def owner() -> SimpleNamespace:
    """A recorder, its run, its state and pytest's session."""
    run = Run()
    state = SimpleNamespace(
        run=run, started=True, interrupted="", other_tests_failed=False, not_collected=[]
    )
    session = SimpleNamespace(shouldstop=False)
    config = SimpleNamespace(
        stash={SESSION_STATE: state}, option=SimpleNamespace(fulltrace=False),
        pluginmanager=SimpleNamespace(getplugin={"session": session}.get),
    )  # fmt: skip
    return SimpleNamespace(
        recorder=VerdictRecorder(config), run=run, state=state, config=config, session=session
    )


def recorded(owner: SimpleNamespace, found: pytest.TestReport) -> list[Verdict]:
    owner.run.verdicts.clear()
    owner.run.tests.clear()
    owner.recorder.pytest_runtest_logreport(found)
    return list(owner.run.verdicts)


def test_the_decisive_phase_of_a_test_is_recorded_once(owner):
    attached = carried(verdict())
    assert recorded(owner, report("passed", "call", "", attached)) == [verdict()]
    assert owner.run.tests == []
    for when, outcome in (("setup", "passed"), ("teardown", "passed"), ("teardown", "failed")):
        assert recorded(owner, report(outcome, when, "", attached)) == []
    not_measured = verdict(Outcome.NOT_MEASURED)
    failed = report("failed", "setup", not_measured.line, carried(not_measured))
    assert recorded(owner, failed) == [not_measured]
    assert owner.run.tests == []  # the verdict's line says all
    skipped = verdict(Outcome.NOT_APPLICABLE)
    assert recorded(owner, report("skipped", "setup", "", carried(skipped))) == [skipped]


def test_nothing_is_recorded_before_the_run_has_started(owner):
    passed = report("passed", "call", "", carried(verdict()))
    owner.state.started = False
    assert recorded(owner, passed) == []
    owner.state.started, owner.state.run = True, None
    assert recorded(owner, passed) == []
    owner.config.stash = {}
    assert recorded(owner, passed) == []


def test_what_the_verdict_does_not_explain_is_kept_beside_it(owner):
    failed = verdict(Outcome.FAIL)
    found = report("failed", "call", "Traceback of a bug", carried(failed))
    assert recorded(owner, found) == [failed]
    assert owner.run.tests == [(NODEID, "failed", "Traceback of a bug", failed)]
    found = report("failed", "call", f"[gw0] linux\n{failed.line}", carried(failed))
    assert recorded(owner, found) == [failed]
    assert owner.run.tests == []


def test_a_test_without_a_criterion_is_kept_and_its_failure_remembered(owner):
    for outcome, when, kept, remembered in (
        ("passed", "call", "passed", False), ("skipped", "setup", "skipped", False),
        ("failed", "setup", "error", True), ("passed", "call", "passed", True),
        ("failed", "call", "failed", True),
    ):  # fmt: skip
        assert recorded(owner, report(outcome, when, "why", nodeid="t.py::test_mine")) == []
        text = "" if outcome == "passed" else "why"
        assert owner.run.tests == [("t.py::test_mine", kept, text, None)]
        assert owner.state.other_tests_failed is remembered


def test_a_test_whose_worker_died_is_not_measured(owner):
    crashed = report("failed", "teardown", "crashed", carried(verdict()), worker_crashed=True)
    (found,) = recorded(owner, crashed)
    assert found.outcome is Outcome.NOT_MEASURED
    assert found.reason == "the xdist worker that judged it died: crashed"
    assert owner.run.tests == [(NODEID, "error", "crashed", found)]


def test_a_full_disk_ends_the_session_and_keeps_an_earlier_reason(owner):
    owner.run.full = True
    recorded(owner, report("passed", "call", "", carried(verdict())))
    assert owner.state.interrupted == "unwritable: No space left on device"
    assert owner.session.shouldstop == owner.state.interrupted
    owner.state.interrupted = "interrupted"
    owner.config.pluginmanager.getplugin = lambda name: None
    recorded(owner, report("passed", "call", "", carried(verdict())))
    assert owner.state.interrupted == "interrupted"


def test_the_tests_of_a_node_record_all_of_its_verdicts(owner):
    both = [verdict(), verdict(Outcome.FAIL, "gemm.fp8")]
    test = node_test(verdicts=both)
    failed = report("failed", "call", both[1].line, nodeid="t.py::area[worker0]", node_test=test)
    assert recorded(owner, failed) == both
    assert owner.run.tests == []
    failed = report("failed", "call", "a bug", nodeid="t.py::area[worker0]", node_test=test)
    assert recorded(owner, failed) == both
    assert owner.run.tests == [("t.py::area[worker0]", "failed", "a bug", None)]


# --- the outcome of a test and of its verdict


def final(found: Verdict | None, given: pytest.TestReport, *, crashed: bool = False) -> Verdict:
    return reporting._final_verdict(Run(), ITEM, given, found, crashed=crashed)


def test_the_worse_of_verdict_and_test_counts():
    outcomes = {
        (of_verdict, of_test): final(verdict(of_verdict), report(of_test, "call", "a\nb")).outcome
        for of_verdict in Outcome
        for of_test in ("passed", "failed")
    }
    changed = {pair: found for pair, found in outcomes.items() if found is not pair[0]}
    assert changed == {
        (Outcome.PASS, "failed"): Outcome.FAIL,
        (Outcome.RECORDED, "failed"): Outcome.NOT_MEASURED,
    }
    failed = final(verdict(), report("failed", "call", "a\nb"))
    assert failed.reason == "the test itself failed: b"
    assert final(verdict(Outcome.RECORDED), report("failed")).reason.endswith(": no message")


def test_without_a_verdict_the_suite_failed():
    found = final(None, report("failed", "setup", "a bug"))
    assert (found.outcome, found.reason) == (Outcome.NOT_MEASURED, "the suite failed: a bug")
    assert final(verdict(), report("passed"), crashed=True).outcome is Outcome.NOT_MEASURED


def test_a_wrong_comparison_is_no_fault_of_a_node():
    wrong = report("failed", "call", "x", (WRONG_COMPARISON, "compares >="))
    for outcome in (Outcome.PASS, Outcome.RECORDED):
        found = final(verdict(outcome), wrong)
        assert found.reason == "the suite failed: compares >="
        assert found.outcome is Outcome.NOT_MEASURED
    assert final(verdict(Outcome.FAIL), wrong) == verdict(Outcome.FAIL)
    assert final(None, wrong).reason == "the suite failed: x"


def test_verdicts_of_a_node_explain_its_test_or_the_suite_failed():
    good, bad, missing = verdict(), verdict(Outcome.FAIL), verdict(Outcome.NOT_MEASURED)
    for verdicts, given, kept in (
        ([good], report("passed"), True), ([good, bad], report("failed"), True),
        ([good], report("failed"), False), ([good, missing], report("failed", "setup"), True),
        ([good, bad], report("failed", "setup"), False), ([good, missing], report("failed"), False),
        ([], report("skipped"), False),
    ):  # fmt: skip
        found = reporting._node_test_verdicts(Run(), node_test(verdicts=verdicts), given)
        if kept:
            assert found == verdicts
        else:
            assert [v.criterion for v in found] == ["gemm.bf16", "gemm.fp8"]
            assert {v.outcome for v in found} == {Outcome.NOT_MEASURED}
            assert found[0].reason == "the suite failed: no message"


def test_a_test_explains_itself_by_a_line_of_its_verdicts():
    bad = verdict(Outcome.FAIL)
    for verdicts, given, explained in (
        ([bad], report("failed", "call", f"x\n{bad.line}\ny"), True),
        ([bad], report("passed"), True),
        ([bad], report("failed", "call", "x"), False), ([], report("passed"), False),
        ([], report("failed", "call", bad.line), False),
        ([verdict(), bad], report("failed", "call", bad.line), True),
    ):  # fmt: skip
        assert reporting._explains(verdicts, given) is explained


# --- the end of the session


def interrupt(owner: SimpleNamespace) -> Any:
    with pytest.raises(KeyboardInterrupt) as raised:
        deep(KeyboardInterrupt())
    owner.recorder.pytest_keyboard_interrupt(raised)
    return raised


def test_an_interrupt_shows_its_place_alone(owner):
    assert len(interrupt(owner).traceback) == 1
    assert owner.state.interrupted == "interrupted"
    owner.state.interrupted = "the disk is full"
    owner.config.option.fulltrace = True
    assert len(interrupt(owner).traceback) == 3
    assert owner.state.interrupted == "the disk is full"
    owner.config.stash = {}
    interrupt(owner)


def test_files_that_could_not_be_collected_are_remembered_once(owner):
    for nodeid, outcome in (("a", "failed"), ("b", "passed"), ("a", "failed"), ("c", "failed")):
        owner.recorder.pytest_collectreport(pytest.CollectReport(nodeid, outcome, None, None))
    assert owner.state.not_collected == ["a", "c"]
    owner.config.stash = {}
    owner.recorder.pytest_collectreport(pytest.CollectReport("d", "failed", None, None))
    assert owner.state.not_collected == ["a", "c"]


def test_a_report_without_text_has_no_message():
    assert reporting._last_line(SimpleNamespace(longrepr=None)) == "no message"
    assert reporting._last_line(SimpleNamespace(longrepr="a\nb\n")) == "b"


@pytest.mark.parametrize(
    "options",
    [["-p", "tests.selftests.without_assertions"], ["--assert=plain"],
     ["--assert=plain", "-p", "tests.selftests.without_assertions"]],
    ids=["without assertions", "plain", "both"],
)  # fmt: skip
def test_pytests_own_file_has_the_failure_whatever_an_assertion_does(tmp_path, options):
    source = support.DATA / "h200-1x2-neighbour"
    file = tmp_path / "own.xml"
    status, verdict = support.replay(source, tmp_path / "run", f"--junitxml={file}", *options)
    (suite,) = ElementTree.parse(file).getroot()
    assert (status, verdict["verdict"]) == (1, "REJECTED")
    assert (suite.get("failures"), suite.get("errors")) == (str(verdict["counts"]["fail"]), "0")
