"""The page that a run leaves; test_browser.py looks at it as a reader does."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.paths import CHECKOUT
from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader, devices_of
from fixtures.verdict.model import Outcome, Verdict
from reports.console.plugin import Writer
from reports.pages import figures
from reports.pages.artefacts import NAMES
from reports.pages.page import TOOLS, generator, other_tools, read_ledger
from reports.pages.page import page as made_page
from tests.selftests import judged_runs
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu

HOSTILE = "<img src=x onerror=document.title=1>"

CONFTEST = """
    import json
    from pathlib import Path

    import pytest
    from fixtures.plugin import hookspecs
    from fixtures.records.run_directory import RunDirectory
    from fixtures.verdict.model import Outcome, Verdict

    pytest_plugins = ["reports.console.plugin"]
    RUN = RunDirectory(Path(__file__).parent / "run")
    SAID = json.loads((Path(__file__).parent / "said.json").read_text())

    def pytest_addhooks(pluginmanager):
        pluginmanager.add_hookspecs(hookspecs)

    def start(session):
        session.config.hook.pytest_acceptance_started(session=session, directory=RUN)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(session):
        config = session.config
        if not hasattr(config, "workerinput") and not config.pluginmanager.hasplugin("dsession"):
            start(session)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(node, ids):
        start(node.config.pluginmanager.getplugin("dsession")._session)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_handlecrashitem(crashitem, report, sched):
        report.when = "teardown"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        if report.failed and item.user_properties:
            report.longrepr = Verdict.from_json(json.loads(item.user_properties[0][1])).line
        return report

    @pytest.fixture
    def verdict(request):
        found = Verdict.from_json(request.param)
        if found.reason == "crash":
            import os
            os._exit(1)
        request.node.user_properties.append(("verdict", json.dumps(found.to_json())))
        if found.outcome is Outcome.NOT_MEASURED:
            raise RuntimeError("not measured")
        if found.outcome is Outcome.NOT_APPLICABLE:
            pytest.skip(found.reason)
        if found.outcome is Outcome.WAIVED:
            pytest.xfail(found.reason)
        return found

    def pytest_sessionfinish(session):
        if hasattr(session.config, "workerinput") or SAID["killed"]:
            return
        RUN.verdict.write_text(json.dumps(SAID["verdict"]))
        session.config.hook.pytest_acceptance_concluded(
            session=session, directory=RUN, verdict=SAID["verdict"]
        )
"""

TESTS = """
    import json
    from pathlib import Path

    import pytest

    SAID = json.loads((Path(__file__).parent / "said.json").read_text())

    @pytest.mark.parametrize("verdict", SAID["run"], ids=SAID["ids"], indirect=True)
    def test_it(verdict):
        assert verdict.ok
"""


def planned(criterion: str, subject: str, outcome: Outcome, **more) -> Verdict:
    return Verdict(
        criterion=criterion, title="Every GPU of a node reaches the agreed rate",
        subject=subject, outcome=outcome, **more,
    )  # fmt: skip


def measured(criterion: str, subject: str, outcome: Outcome, value: float, **more) -> Verdict:
    worst = {"node": subject, "gpu": 3, "uuid": f"GPU-8f1c2d-{subject}", "value": value}
    given = {"limit": ">= 605", "ceiling": 989.0, "margin": value / 605 - 1, "worst": worst,
             "devices": {"planned": 8, "measured": 8}, "record": f"gemm@{subject}.json",
             "job": "4242", "unit": "TFLOPS"}  # fmt: skip
    return planned(criterion, subject, outcome, value=value, **{**given, **more})


PLAN = [
    measured("gemm.bf16", "worker0", Outcome.PASS, 641.2, notes=["power limit lowered to 600 W"]),
    measured(
        "gemm.bf16", "worker1", Outcome.FAIL, 541.0, reason=HOSTILE,
        next_step="check airflow of GPU-8f1c, then `pytest -m multinode --retest RUN -k worker1`",
    ),
    measured(
        "gemm.fp16", "worker0", Outcome.PASS, 2.1, margin=2.5,
        limit=">= 0.01 (loose: demonstration)",
    ),
    measured(
        "gemm.fp16", "worker1", Outcome.WAIVED, 540.0,
        reason="waived by Kim, until 2027-01-31: heat sink on order",
    ),
    planned(
        "allreduce.cluster.1GiB", "cluster", Outcome.NOT_MEASURED, unit="GB/s",
        reason=f"node lost: {HOSTILE}", next_step="repair worker2, then run again with --resume",
        devices={"planned": 32, "measured": 0},
    ),
    planned("gemm.bf16", "worker2", Outcome.NOT_MEASURED, unit="TFLOPS", reason="never judged"),
    planned("gemm.fp8", "worker0", Outcome.NOT_APPLICABLE, reason="no fp8 before Hopper"),
]  # fmt: skip
NEVER = ("gemm.bf16", "worker2")


def session(
    root: Path,
    *options: str,
    plan: list[Verdict] = PLAN,
    killed: bool = False,
    nodes: Sequence[str] = ("worker0", "worker1", HOSTILE),
    **more: Any,
) -> Path:
    """A pytest session in a process of its own that judges `plan`; report.html of its run.

    `more`: what its verdict.json says besides.
    """
    (root / "run").mkdir()
    verdict = judged_runs.verdict_of(plan, nodes=list(nodes)) | more
    ran = [v for v in plan if (v.criterion, v.subject) != NEVER]
    said = {"verdict": verdict, "run": [v.to_json() for v in ran], "killed": killed,
            "ids": [f"{v.criterion}-{v.subject}" for v in ran]}  # fmt: skip
    contract = {"nodes": 3, "gpus_per_node": 8, "gpu_model": "H200 SXM", "nics_per_node": 8,
                "nic_gbps": 400.0, "driver": HOSTILE}  # fmt: skip
    run = {"schema": 2, "id": verdict["run_id"], "origin": "cluster",
           "created": "2026-11-20T14:15:00+00:00", "ended": "2026-11-20T14:41:00+00:00",
           "commit": "6a4fe2a1" * 5,
           "thresholds": {"sha256": "fe2a9ad1" * 8},
           "contract": contract, "versions": {"python": "3.11.7", "platform": HOSTILE},
           "planned": len(plan)}  # fmt: skip
    (root / "run" / "run.json").write_text(json.dumps(run))
    (root / "said.json").write_text(json.dumps(said))
    (root / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (root / "test_it.py").write_text(textwrap.dedent(TESTS))
    (root / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=root, capture_output=True, text=True,
        env={**env, "PYTHONPATH": str(CHECKOUT)},
    )  # fmt: skip
    assert "INTERNALERROR" not in done.stdout, done.stdout
    return root / "run" / "report.html"


class Blob(HTMLParser):
    """The table's data as pytest-html stores it in the page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tests: dict[str, list[dict]] = {}
        self.data: dict = {}
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        if found := dict(attrs).get("data-jsonblob"):
            self.data = json.loads(found)
            self.tests = self.data["tests"]

    def outcomes(self) -> list[str]:
        cells = [row["resultsTableRow"][0] for found in self.tests.values() for row in found]
        return [re.sub("<[^>]*>", "", cell) for cell in cells]


@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["alone", "xdist"])
def test_the_run_directory_gets_page_junit_and_spreadsheet(tmp_path, options):
    page = session(tmp_path, *options)
    text = page.read_text()
    assert '<title id="head-title">GPU cluster acceptance: REJECTED</title>' in text
    assert "<b>4 of 6</b> judged" in text
    # What failed comes first; what was never run has a row as well.
    assert Blob(page).outcomes() == [
        "FAIL", "NOT MEASURED", "NOT MEASURED", "WAIVED", "PASS", "PASS", "NOT APPLICABLE",
    ]  # fmt: skip
    assert "GPU-8f1c2d-worker1" in (tmp_path / "run" / "results.csv").read_text()
    junit = (tmp_path / "run" / "junit.xml").read_text()
    assert (junit.count("<testcase"), junit.count("<failure")) == (7, 1)
    assert "Traceback" not in text
    assert str(Path.home()) not in text


def test_reports_that_the_user_asked_for_are_left_alone(tmp_path):
    page = session(tmp_path, "--html=own/my.html", "--junitxml=own/my.xml")
    assert "REJECTED" in page.read_text()
    assert "REJECTED" in (tmp_path / "own" / "my.html").read_text()
    assert (tmp_path / "own" / "assets" / "style.css").exists()
    # pytest's own has the tests of the session, that of the run its verdicts.
    cases = {"own/my.xml": 6, "run/junit.xml": 7}
    assert {n: (tmp_path / n).read_text().count("<testcase") for n in cases} == cases


def test_what_no_verdict_explains_stands_in_the_ledger_and_on_the_page(tmp_path):
    page = session(tmp_path)
    lost = replace(
        PLAN[0], outcome=Outcome.NOT_MEASURED, reason="the xdist worker died", value=None
    )
    directory = RunDirectory(page.parent)
    verdict = json.loads(directory.verdict.read_text())
    verdict["criteria"][0] = lost.to_json()
    key = {"criterion": lost.criterion, "subject": lost.subject}
    crash = {"event": "test", "outcome": "error", "text": "worker 'gw0' <crashed>"}
    lines = [
        {**crash, "test": "tests/test_compute.py::test_it[gemm.bf16-worker0]", **key},
        {"event": "verdict", **lost.to_json()},
        {**crash, "test": "tests/test_own.py::test_own"},
        {**crash, "test": "tests/test_own.py::test_own", "outcome": "passed", "text": ""},
        {**crash, "test": "tests/test_own.py::test_other", "outcome": "failed"},
    ]
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page.write_text(made_page(directory, verdict))
    rows = Blob(page).tests
    assert "NOT MEASURED" in rows["[gemm.bf16-worker0]"][0]["resultsTableRow"][0]
    assert "worker 'gw0' <crashed>" in html.unescape(rows["[gemm.bf16-worker0]"][0]["log"])
    own, other = (rows[f"tests/test_own.py::test_{n}"][0] for n in ("own", "other"))
    assert ("NO VERDICT" in own["resultsTableRow"][0], own["result"]) == (True, "Passed")
    assert (other["result"], "crashed" in other["log"]) == ("Failed", True)
    # Judged again since, the row has a verdict that says all.
    directory.ledger.write_text(
        directory.ledger.read_text() + json.dumps({"event": "verdict", **lost.to_json()}) + "\n"
    )
    page.write_text(made_page(directory, verdict))
    assert "crashed" not in Blob(page).tests["[gemm.bf16-worker0]"][0]["log"]


def test_a_session_without_a_verdict_is_incomplete(tmp_path):
    all_passed = [v for v in PLAN if v.outcome is Outcome.PASS]
    text = session(tmp_path, plan=all_passed, killed=True).read_text()
    assert "GPU cluster acceptance: INCOMPLETE" in text
    assert "the run ended without a verdict" in text


def test_what_a_reader_needs_stands_there_without_a_script(tmp_path):
    text = re.sub(r"<script.*?</script>", "", session(tmp_path).read_text(), flags=re.DOTALL)
    static = text.partition('<table id="results-table">')[0]
    for said in ("REJECTED", "of 6</b> judged", "gemm.bf16", "541 TFLOPS",
                 "check airflow of GPU-8f1c", "node lost", "1 failed", "not measured"):  # fmt: skip
        assert said in static, said
    # Text beside colour, and a head for every column.
    matrix = static[static.index('<table id="coverage"') :].partition("</table>")[0]
    assert matrix.count('scope="col"') == matrix.partition("</tr>")[0].count("<th ")
    assert not re.findall(r"<button[^>]*></button>", matrix)


def test_a_page_says_in_its_head_what_made_it(tmp_path):
    """Other versions may make other bytes of the same run, without a forger."""
    directory = RunDirectory(tmp_path)
    directory.run_json.write_text("{}")
    text = made_page(directory, judged_runs.verdict_of([]))
    made = html.unescape(re.findall('<meta name="generator" content="([^"]*)">', text)[0])
    assert made == generator()
    assert re.fullmatch(r"gpu-cluster-acceptance \S+(; [\w-]+ \d\S*)+", made)
    assert [part.split()[0] for part in made.split("; ")[1:]] == [*TOOLS]


def test_other_tools_than_here_are_named_with_both_versions():
    versions = dict.fromkeys(TOOLS, "1.0")
    of_run = f"gpu-cluster-acceptance 9; {'; '.join(f'{name} 1.0' for name in TOOLS)}"
    run = {"suite_version": "9", "versions": versions}
    assert generator(run) == of_run
    assert other_tools(run) == f"{of_run}, here {generator()}"
    assert generator({"suite_version": "9"}) == of_run.replace(" 1.0", " None")
    here = [part.split() for part in generator().split("; ")]
    own = {"suite_version": here[0][1], "versions": dict(here[1:])}
    assert other_tools(own) == ""


def test_beside_a_failure_stand_the_gpus_of_its_node():
    directory = RunDirectory(DATA / "h200-1x2-neighbour")
    stated = directory.read_run()
    run = RunReader(directory, devices_of(directory, stated), stated)
    row = {"record": "training_single@node0.json", "subject": "node0", "worst": {"node": "node0"}}
    found = figures._telemetry(run, row)
    assert [of_gpu["GPU"] for of_gpu in found] == ["gpu0", "gpu1"]
    assert all("Node" not in of_gpu and of_gpu["SM MHz"] for of_gpu in found)
    assert figures._telemetry(run, {**row, "record": "gone@node0.json"}) == []


def test_what_was_made_of_a_verdict_goes_when_it_does_not_hold(tmp_path):
    """A certificate that says ACCEPTED must not stay beside a report that could not be written."""
    said: list[str] = []
    reporter = SimpleNamespace(
        _tw=SimpleNamespace(fullwidth=80),
        write_line=said.append,
        write_sep=lambda sep, word, **style: said.append(word),
    )
    plugins = SimpleNamespace(getplugin=lambda name: reporter)
    writer = Writer(SimpleNamespace(pluginmanager=plugins))
    directory = RunDirectory(tmp_path)
    directory.run_json.write_text("{}")
    accepted = judged_runs.concluded([])
    row = {"verdict": "ACCEPTED", "counts": {}, "reasons": [], "criteria": [], "scope": {}}
    writer.pytest_acceptance_concluded(None, directory, row)
    for name in NAMES:
        (tmp_path / name).write_text("ACCEPTED")
    held = replace(accepted, verdict="INCOMPLETE", reasons=["no space left"])
    writer.pytest_acceptance_unwritten(None, directory, held)
    writer.print_verdict()
    assert not [name for name in NAMES if (tmp_path / name).exists()]
    assert "INCOMPLETE" in said
    assert "no space left" in said
    assert "ACCEPTED" not in said


def test_the_ledger_keeps_every_attempt_of_a_row_that_was_judged_again_and_the_text_of_the_last(
    tmp_path,
):
    run = RunDirectory(tmp_path / "run")
    run.make()
    once, twice = ("a.once", "n0"), ("a.twice", "n0")

    def wrote(row: tuple[str, str], attempt: int, text: str = "") -> dict[str, Any]:
        named = {"criterion": row[0], "subject": row[1]}
        append_line(run.ledger, {"event": "test", **named, "text": text})
        line = {"event": "verdict", **named, "attempt": attempt}
        append_line(run.ledger, line)
        return line

    wrote(once, 1, "read the log")
    first = wrote(twice, 1, "torn")
    second = wrote(twice, 2)
    append_line(run.ledger, {"event": "test", "test": "tests/test_a.py::test_b", "criterion": None})
    rows = [
        {"criterion": once[0], "subject": once[1]},
        {"criterion": twice[0], "subject": twice[1], "attempt": 2},
    ]
    found = read_ledger(run, rows)
    assert list(found.attempts) == [twice]
    kept = {n: line["attempt"] for n, line in found.attempts[twice].items()}
    assert kept == {1: first["attempt"], 2: second["attempt"]}
    assert found.texts == {once: "read the log"}
    assert list(found.tests) == ["tests/test_a.py::test_b"]
