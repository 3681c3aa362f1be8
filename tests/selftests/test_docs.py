"""The playbook: its links lead somewhere, its commands exist, its table is the code's."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from fixtures.jobs.failures import REMEDY
from tests.selftests.support import CHECKOUT, DATA, replay

pytestmark = pytest.mark.cpu

DOCS = CHECKOUT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), CHECKOUT / "README.md", CHECKOUT / "deploy" / "README.md"]


def test_the_failure_modes_are_those_of_the_code():
    text = (DOCS / "failure-modes.md").read_text(encoding="utf-8")
    table = text.partition("\n|---")[2].partition("\n\n")[0]  # the first one of the page
    rows = [[c.strip() for c in n.strip("|").split("|")] for n in table.splitlines()[1:]]
    told = {row[0]: row[2] for row in rows}
    assert told == {kind.value: remedy for kind, remedy in REMEDY.items()}
    assert all(row[1] for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        found = page if not path else page.parent / path
        assert found.exists(), f"{page.name}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
            assert heading in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_options_and_make_targets_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", targets, re.MULTILINE), target
    plugins = ("fixtures/plugin/options.py", "reports/plugin.py")
    options = "".join((CHECKOUT / name).read_text(encoding="utf-8") for name in plugins)
    for command in re.findall(r"`pytest ([^`]+)`", text):
        for option in re.findall(r"(--[a-z-]+)", command):
            known = f'"{option}"' in options or option in ("--lf", "--junitxml", "--html")
            assert known, f"{page.name}: {option}"


def test_the_index_names_every_page():
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in text, page.name


def test_the_tour_leads_through_a_recorded_run(tmp_path):
    replay(DATA / "h200-2x2", tmp_path / "run")
    command = [sys.executable, "-m", "reports.tour", "--run", str(tmp_path / "run")]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    text = run.stdout
    places = [text.index(w) for w in ("acceptance", "2 hardware", "3 health", "4 bench", "summary")]
    assert places == sorted(places)
    assert "2 x NVIDIA H200" in text
    assert re.search(r"# gemm worker0, slowest of 2, TFLOPS: bf16 [67]\d\d", text)
    assert "# allreduce worker0: 2 ranks" in text
    assert "DEMONSTRATION" in text


def test_a_tour_of_nothing_is_refused(tmp_path):
    command = [sys.executable, "-m", "reports.tour", "--run", str(tmp_path)]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 4
    assert "no verdict.json" in run.stdout.replace("\n", "")
