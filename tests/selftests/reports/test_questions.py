"""The last screen and the first page answer who, which part, what decides, and what to do next.

One fault at a time: the truth of each drill and of each recorded failure says what must stand there
(tests/selftests/questions.py). Many at a time: all nodes as a host list, three causes in full.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.slurm.hostlist import hostlist
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from reports.pages import page
from tests.selftests import faults, planted, questions
from tests.selftests.questions import Case
from tests.selftests.sandboxes import refuse
from tests.selftests.support import run_pytest
from tests.tools import browser, drills
from tests.tools.fleet_run import Fleet
from tests.tools.mixed_fleet import Mixture

pytestmark = pytest.mark.cpu

PAGES = 8
"""One in so many cases is also made into a page by `make test`."""


def unanswered(folder: Path, cases: Sequence[Case], pages: int = 1) -> list[str]:
    """What is wrong with the screen or the page of a case: mostly a question without an answer."""
    found = []
    for k, case in enumerate(cases):
        made = questions.run_of(folder / str(k), case)
        shown = {"terminal": questions.last_screen(made)}
        found += [f"{case.name}: {text}" for text in ill_said(case, shown["terminal"])]
        if k % pages == 0:
            shown["report"] = questions.first_page(made)
        found += [
            f"{case.name}: {where}: {asked}: {case.answers[asked]}"
            for where, text in shown.items() for asked in case.missing(text)
        ]  # fmt: skip
    return found


def ill_said(case: Case, screen: str) -> Iterator[str]:
    lines = screen.splitlines()
    steps = [number for number, line in enumerate(lines) if line.lstrip().startswith("next:")]
    if len(steps) != 1:
        yield f"{len(steps)} next steps"
    uuid = str((case.rows[0].worst or {}).get("uuid") or "")
    if uuid and any(uuid in line for line in lines[: steps[0] if steps else None]):
        yield "the UUID of the GPU before what is to be done"


def test_each_drill_is_answered_on_the_last_screen_and_the_first_page(tmp_path):
    cases = questions.of_drills()
    assert len(cases) > 150
    assert sum(len(case.answers) for case in cases) > 600
    assert unanswered(tmp_path, cases, PAGES) == []


@pytest.mark.slow
def test_each_failure_that_can_be_planted_in_a_record_is_answered(tmp_path):
    criteria = planted.shipped().criteria
    keys = [key for key, c in criteria.items() if not planted.never_judged(c)]
    cases = [*map(questions.without_empty, questions.of_records(keys))]
    assert len(cases) > 300
    assert unanswered(tmp_path, cases) == []


@pytest.mark.parametrize("name", [
    "h200-2x2-scaling",
    *(pytest.param(name, marks=pytest.mark.slow) for name in questions.RECORDED
      if name != "h200-2x2-scaling"),
])  # fmt: skip
def test_each_recorded_failure_is_answered(tmp_path, name):
    ((case, root),) = questions.of_runs([name], tmp_path)
    made = questions.judged_here(root)
    assert case.missing(questions.last_screen(made)) == []
    assert case.missing(questions.first_page(made)) == []


LIVE = {
    "health.xid": "Xid 79: the GPU fell off the bus", "health.answers": "GpuIsLost",
    "health.foreign_processes": "4711", "nvlink.links": "link 3 of 18 down",
    "inventory.nics": "3 NICs", "host.mounts": "tmpfs was ordered",
    "scheduler.node_state": "bad DIMM",
    "connectivity.peers": "worker0 by name", "isolation.shared": "both hold",
}  # fmt: skip
"""Criterion of a drill -> what decides in it. Each runs on two nodes of a real Slurm."""


@pytest.mark.slow
@pytest.mark.parametrize("criterion", LIVE)
def test_a_drill_on_two_nodes_is_answered(request, tmp_path, monkeypatch, criterion):
    refuse(request, drills.Sandbox.refusal())
    monkeypatch.setenv("COLUMNS", str(questions.WIDTH))
    shape, fault = next(
        (shape, fault) for shape, rows in drills.fault_lists() for fault in rows
        if fault.criterion == criterion
    )  # fmt: skip
    with drills.Sandbox.up(**shape) as sandbox:
        done = faults.drill(sandbox, fault, tmp_path / "run")
    asked = {questions.WHERE: fault.culprit, questions.DECIDES: LIVE[criterion]}
    case = Case(fault.name, (), asked)
    screen = [
        line[k : k + questions.WIDTH] for line in done.said.rstrip().splitlines()
        for k in range(0, max(1, len(line)), questions.WIDTH)
    ]  # fmt: skip
    assert case.missing("\n".join(screen[1 - questions.HEIGHT :])) == []
    assert case.missing(questions.first_page(questions.judged_here(tmp_path / "run"))) == []


# --- the page, measured


MEASURED = """
  var seen = [];
  var walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    var range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    var box = range.getBoundingClientRect();
    if (box.height > 0 && box.bottom <= innerHeight) seen.push(walk.currentNode.textContent);
  }
  return seen.join(" ");
"""


@pytest.mark.slow
@pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL))
def test_the_first_page_is_no_longer_than_what_a_browser_shows(tmp_path):
    cases = questions.of_drills()[::12]
    made = [questions.run_of(tmp_path / str(k), case) for k, case in enumerate(cases)]
    paths = []
    for artefacts in made:
        path = artefacts.directory.root / page.NAME
        path.write_text(page.page(artefacts.directory, artefacts.verdict), encoding="utf-8")
        paths.append(path)
    looks = browser.evaluate(paths, MEASURED, width=1280, height=round(questions.SCREEN_PX))
    for case, look in zip(cases, looks, strict=True):
        assert case.missing(look) == []


# --- many faults


def of_many(nodes: int) -> tuple[Case, dict[str, list[str]]]:
    """A fleet in which five things are wrong, and the nodes of each."""
    names = [f"gpu{k:04d}" for k in range(1, nodes + 1)]
    where = {"dead": names[:4], "xid": [names[8]], "slow": [names[9]], "heat": names[12:15],
             "cable": [names[20]]}  # fmt: skip
    rows = questions.passed(nodes=[n for n in names if n not in where["dead"]])
    for node in where["dead"]:
        rows += [
            Verdict(criterion=key, title="", subject=node, outcome=Outcome.NOT_MEASURED,
                    reason=f"node lost: {node} went down", cause=Cause.NODE.value,
                    cause_nodes=[node], next_step=f"return {node} to service")
            for key in questions.HEALTHY
        ]  # fmt: skip
    for key, kind, value, note in (
        ("health.xid", "xid", 1, "Xid 79: the GPU fell off the bus"),
        ("infiniband.state", "cable", "DOWN", ""), ("health.thermal", "heat", 4.0, ""),
        ("gemm.bf16", "slow", 541.0, ""), ("gemm.fp16", "slow", 520.0, ""),
    ):  # fmt: skip
        exact = not isinstance(value, float)
        worst: dict[str, Any] = {"part": "mlx5_3"} if kind == "cable" else {"gpu": 3}
        rows += [
            Verdict(criterion=key, title="", subject=node, outcome=Outcome.FAIL, value=value,
                    unit=planted.shipped().criteria[key].unit, limit="<= 0" if exact else ">= 605",
                    margin=None if exact else -0.1, worst={"node": node, **worst},
                    notes=[note] if note else [], next_step=f"look at {node}")
            for node in where[kind]
        ]  # fmt: skip
    return Case("many", rows, {}, tuple(names)), where


@pytest.mark.parametrize("nodes", [32, pytest.param(512, marks=pytest.mark.slow)])
def test_of_many_faults_all_nodes_are_named_and_three_causes_in_full(tmp_path, nodes):
    case, where = of_many(nodes)
    made = questions.run_of(tmp_path / "run", case)
    screen, first = questions.last_screen(made), questions.first_page(made)
    for text in map(questions.plain, (screen, first)):
        for part in (
            "4 nodes dead (20 rows): gpu0001, gpu0002, gpu0003, gpu0004",
            "6 nodes at fault (7 rows): gpu0009, gpu0010, gpu0013, gpu0014, gpu0015, gpu0021",
            "gpu0009 gpu3: Xid 79: the GPU fell off the bus",
            "gpu0021 mlx5_3: DOWN",
            "node lost: gpu[0001-0004] went down",
        ):
            assert part in text
    assert "and 2 more: in the report" in screen
    assert screen.count("next:") == 1
    (line,) = [line for line in made_lines(made) if line.startswith("to drain")]
    bad = sorted(node for nodes in where.values() for node in nodes)
    command = shlex.split(line.removeprefix("to drain"))
    assert command[2] == f"NodeName={hostlist(bad)}"
    assert "health.xid" in command[4]


def made_lines(made: Any) -> list[str]:
    return questions.terminal.summary(made, questions.WIDTH)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [32, 512])
def test_a_fleet_with_all_kinds_of_faults_names_its_nodes(tmp_path, nodes):
    Fleet(tmp_path / "source", nodes, 2).write()
    faulty = Mixture(tmp_path / "source").mix()
    done = run_pytest(
        "--cluster", "replay", f"--from={tmp_path / 'source'}", f"--run-dir={tmp_path / 'run'}",
        timeout_s=600,
    )  # fmt: skip
    screen = done.stdout.rstrip().splitlines()[1 - questions.HEIGHT :]
    bad = (tmp_path / "run" / "bad-nodes.txt").read_text(encoding="utf-8").split()
    assert set(faulty.bad) <= set(bad)
    assert any(re.match(r" +and \d+ more: in the report", line) for line in screen)
    assert sum(line.lstrip().startswith("next:") for line in screen) == 1
