"""No page and no screen says what only a program can read, or counts one thing of two totals: of
recorded runs and of made-up fleets with faults."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.verdict.model import Verdict
from reports.console import terminal, tour
from reports.pages import banner, dossier
from reports.pages.artefacts import Artefacts
from tests.selftests import genuine_runs, judged_runs, support
from tests.selftests.fabric_loads import fabric_load
from tests.selftests.page_texts import faults, visible
from tests.tools.fleet_faults import Planter
from tests.tools.fleet_run import Fleet

pytestmark = pytest.mark.cpu

RECORDED = sorted(path.parent.name for path in support.DATA.glob("*/run.json"))
QUICK = "h200-2x1-scaling"
DOSSIERS = 3
"""Most nodes of a run with a dossier here."""


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of all that a person reads of a run that was judged."""
    directory = RunDirectory(root)
    verdict = read_verdict(directory)
    made = Artefacts(directory, verdict)
    for page in ("report.html", "certificate.html"):
        if page in made.names:
            yield page, visible(made.make(page).decode())
    for name in ("node-reasons.txt", "bad-nodes.txt"):
        yield name, made.make(name).decode()
    criteria = verdict["criteria"]
    lines = terminal.summary(made, 80) + terminal.not_applicable(criteria, 80)
    yield "the last screen", "\n".join(lines)
    yield "pytest's lines", "\n".join(Verdict.from_json(row).line for row in criteria)
    screen = io.StringIO()
    tour.show(Console(file=screen, width=140), directory)
    yield "the tour", screen.getvalue()
    limits = support.limits_of(root)
    for node in (made.lists.bad or verdict["scope"]["nodes"])[:DOSSIERS]:
        page, _ = dossier.fitted(dossier.of(root, verdict, limits, node))
        yield f"the dossier of {node}", visible(page)


def found(root: Path) -> list[str]:
    return [f"{name}: {fault}" for name, text in texts(root) for fault in faults(text)]


@pytest.mark.parametrize(
    "run",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RECORDED],
)
def test_all_that_is_said_of_a_recorded_run_is_for_people(run, tmp_path):
    judged_runs.judged_run(support.DATA / run, tmp_path / "run")
    assert found(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("leaves", "rails", "never"), [(2, 1, 1), (8, 1, 56), (32, 8, 1), (65, 1, 0)]
)
def test_all_that_is_said_of_a_fabric_under_load_is_for_people(leaves, rails, never):
    load = fabric_load(leaves, rails=rails, never=never)
    load |= {"matrix": [[h and h / 1e5 for h in line] for line in load["matrix"]]}
    for annex in (False, True):
        page = banner.fabric({"fabric_load": load}, annex=annex)
        assert list(faults(visible(page))) == []


@pytest.mark.slow
@pytest.mark.parametrize("base", genuine_runs.BASES)
def test_all_that_is_said_of_a_small_fleet_with_a_fault_is_for_people(base, tmp_path):
    with genuine_runs.tools(tmp_path):
        assert found(genuine_runs.Genuine.make(base, tmp_path / "fleet").root) == []


@pytest.mark.slow
def test_all_that_is_said_of_a_large_fleet_with_ten_faults_is_for_people(tmp_path):
    Fleet(tmp_path / "fleet", 32, 8).write()
    Planter(tmp_path / "fleet").plant(rack=4)
    support.judged(tmp_path / "fleet", tmp_path / "run")
    assert found(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("4 units; {'gradients': 0}", "{'"), ("at most 2e+07", "2e+07"), ("6e-05 s", "6e-05"),
        ("margin -5901%", "5901%"), ("12,494.0 %", "12,494.0 %"), ("1 Xids, limit <= 0", "1 Xids"),
        ("2 of 593 criteria failed\n350 of 350 judged", "counted of ['350', '593']"),
    ],
)  # fmt: skip
def test_what_is_for_programs_is_found(text, fault):
    assert [line for line in faults(text) if fault in line]


def test_what_a_script_or_a_style_says_is_not_seen():
    page = """<style>{'a'}</style><script>{'b'}</script><p>1 <b>x</b></p><p aria-label="c">d</p>
        <div data-jsonblob='{"tests": {"t": [{"resultsTableRow": ["<td>e</td>"], "log": "f"}]}}'>"""
    assert visible(page).split("\n") == ["1 x", "c", "d", "e", "f"]


def test_names_and_verbs_are_no_faults():
    sound = "GPU-8e-12, dcgmi diag -r 1 asks for it; 1 is, 1 GB/s, 1 TFLOPS, 999 %, 1 of 3 checks"
    assert list(faults(sound)) == []
