"""What a reader sees: reports and certificates of whole runs, in headless Chromium."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports.facts import rows
from reports.pages import certificate
from tests.selftests import genuine_runs
from tests.selftests.fabric_loads import fabric_load
from tests.selftests.reports.pages.test_page import HOSTILE, PLAN, measured, planned, session
from tests.tools import browser
from tests.tools.fleet_run import Fleet

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL)),
]

NODES = [f"gpu{k:03d}" for k in range(1, 129)]
LOST = "node lost: gpu007 went down"


def large() -> list[Verdict]:
    """128 nodes: one with a slow GPU, one that is lost, and one waived."""
    plan = []
    for node in NODES:
        for k in range(25):
            verdict = measured(f"gemm.c{k:02d}", node, Outcome.PASS, 641.2)
            if node == "gpu007":
                verdict = planned(
                    verdict.criterion, node, Outcome.NOT_MEASURED, reason=LOST,
                    next_step="repair it", devices={"planned": 8, "measured": 0},
                )  # fmt: skip
            plan.append(verdict)
    worst = NODES.index("gpu101") * 25 + 3
    plan[worst] = measured("gemm.c03", "gpu101", Outcome.FAIL, 541.0, next_step="check airflow")
    plan[worst + 1] = replace(plan[worst + 1], outcome=Outcome.WAIVED, reason="waived by Kim")
    return plan


PLANS = {
    "passing": [v for v in PLAN if v.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)],
    "failing": PLAN,
    "incomplete": [v for v in PLAN if v.outcome is not Outcome.FAIL],
    "large": large(),
}
UNDER_LOAD = {
    "failing": fabric_load(9, never=3, name=HOSTILE), "large": fabric_load(256, rails=8, never=40),
}  # fmt: skip
"""Runs whose fabric was under load: a square for each pair of leaves, and many leaves a line."""
WORD = {"passing": "ACCEPTED", "failing": "REJECTED", "incomplete": "INCOMPLETE",
        "large": "REJECTED"}  # fmt: skip

LOOK = """
  var visible = function (e) { return e !== null && e.getClientRects().length > 0; };
  var text = function (e) { return e === null ? "" : e.innerText.replace(/\\s+/g, " ").trim(); };
  var rows = Array.from(document.querySelectorAll("#results-table tbody.results-table-row"));
  var table = function () { return rows.filter(visible).map(text); };
  var banner = document.querySelector(".banner, .verdict");
  var stops = Array.from(document.querySelectorAll("a[href], button, input, summary, [tabindex]"));
  var first = document.querySelector("#results-table tbody.results-table-row");
  var found = {
    contents: Array.from(document.querySelectorAll("nav.contents a")).map(function (a) {
      return [text(a), visible(document.getElementById(a.hash.slice(1)))];
    }),
    stops: stops.filter(function (e) {
      return visible(e) && e.tabIndex >= 0 && first !== null &&
        (e.compareDocumentPosition(first) & Node.DOCUMENT_POSITION_FOLLOWING);
    }).length,
    title: document.title, heading: text(document.querySelector("h1")),
    banner: visible(banner) ? text(banner) : "", counts: text(document.querySelector(".counts")),
    rows: table(), whole: text(document.body),
    markup: document.querySelectorAll("[onerror], img[src^=x], iframe, object").length,
    top: (document.querySelector("p.verdict") || banner).getBoundingClientRect().top,
  };
  var cell = document.querySelector("#coverage button.fail, #coverage button.not_measured");
  var cells = document.querySelectorAll("#coverage button");
  if (cells.length > 1) {
    cells[0].focus();
    ["ArrowDown", "ArrowRight", "ArrowLeft"].forEach(function (key) {
      document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", {key: key, bubbles: true, cancelable: true}));
    });
    found.walked = document.activeElement.dataset;
    found.walked = [found.walked.node, document.activeElement.tabIndex, cells[0].tabIndex];
    found.below = cells[0].closest("tr").nextElementSibling.querySelector("th").textContent;
  }
  if (cell) {
    cell.click();
    found.filtered = table();
    found.filtered_by = cell.dataset.node;
    document.querySelector("#filtered button").click();
    found.unfiltered = table().length;
  }
  return found;
"""
WIDE = """
  var over = Array.from(document.querySelectorAll("body *")).filter(function (e) {
    return e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, section");
  });
  return {page: document.documentElement.scrollWidth, window: innerWidth,
          over: over.slice(0, 3).map(function (e) { return e.outerHTML.slice(0, 80); })};
"""
PRINT = (
    browser.AS_PRINTED
    + """
  // A sheet of A4 between its margins.
  var shown = function (name) {
    var e = document.querySelector(name);
    return e !== null && getComputedStyle(e).display !== "none" && e.getClientRects().length > 0;
  };
  var scroll = document.querySelector(".scroll");
  return {page: document.documentElement.scrollWidth, window: innerWidth,
          verdict: shown(".verdict"), controls: shown(".controls"),
          table: shown("#results-table, .criteria"),
          cut: scroll !== null && scroll.scrollHeight > scroll.clientHeight + 1};
"""
)


@dataclass
class Seen:
    """The pages, and what was seen of each: by the name of its run and its own."""

    pages: dict[tuple[str, str], Path]
    look: dict[tuple[str, str], Any]
    screen: dict[tuple[str, str], Any]
    phone: dict[tuple[str, str], Any]
    print: dict[tuple[str, str], Any]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Every page is opened once at each width, all of them in one browser."""
    pages = {}
    for name, plan in PLANS.items():
        root = tmp_path_factory.mktemp(name)
        more: dict[str, Any] = {"nodes": NODES} if name == "large" else {}
        if name in UNDER_LOAD:
            more["fabric_load"] = UNDER_LOAD[name]
        report = session(root, plan=plan, **more)
        pages[name, "report"] = report
        pages[name, "certificate"] = report.with_name("certificate.html")
    files = list(pages.values())

    def ask(script: str, width: int) -> dict[tuple[str, str], Any]:
        return dict(zip(pages, browser.evaluate(files, script, width=width), strict=True))

    return Seen(pages, ask(LOOK, 1280), ask(WIDE, 1280), ask(WIDE, 390), ask(PRINT, 696))


@pytest.mark.parametrize("run", PLANS)
def test_a_list_of_contents_leads_to_every_part(seen, run):
    contents = dict(seen.look[run, "report"]["contents"])
    assert all(contents.values()), contents
    assert {"Key figures", "Rows", "The run"} - {*contents} <= {"Key figures"}
    assert ("Failed" in contents) == (WORD[run] == "REJECTED")


@pytest.mark.parametrize("run", PLANS)
def test_a_keyboard_reaches_the_first_row_soon(seen, run):
    assert 0 < seen.look[run, "report"]["stops"] <= 60


def test_the_arrow_keys_go_from_cell_to_cell(seen):
    look = seen.look["large", "report"]
    assert look["walked"] == [look["below"], 0, -1]


@pytest.mark.parametrize("run", PLANS)
def test_the_first_thing_on_a_report_is_the_verdict(seen, run):
    look = seen.look[run, "report"]
    assert look["title"] == f"GPU cluster acceptance: {WORD[run]}"
    # Above it only which cluster it is about.
    assert re.search(rf"^\d+ nodes, \d+ x H200 SXM,[^A-Z]* {WORD[run]}\b", look["banner"])
    assert look["top"] < 120
    judged = sum(v.outcome in (Outcome.PASS, Outcome.FAIL, Outcome.WAIVED) for v in PLANS[run])
    owed = judged + sum(v.outcome is Outcome.NOT_MEASURED for v in PLANS[run])
    assert f"{judged} of {owed} judged" in look["counts"]


@pytest.mark.parametrize(
    ("run", "first"),
    [
        ("passing", "PASS gemm.bf16"),
        ("failing", "FAIL gemm.bf16"),
        ("incomplete", "NOT MEASURED allreduce.cluster.1GiB"),
        ("large", "FAIL gemm.c03"),
    ],
)
def test_the_worst_row_comes_first(seen, run, first):
    assert seen.look[run, "report"]["rows"][0].startswith(first)


def test_a_failure_is_told_with_place_value_limit_and_next_step(seen):
    whole = seen.look["failing", "report"]["whole"]
    assert "worker1 gpu3 gemm.bf16: 541 TFLOPS, limit >= 605" in whole
    assert "GPU-8f1c2d-worker1" in whole
    assert "Next: check airflow of GPU-8f1c" in whole


def test_a_click_on_the_matrix_leaves_the_rows_of_a_node_and_another_brings_all_back(seen):
    for run in ("failing", "incomplete", "large"):
        look = seen.look[run, "report"]
        assert look["filtered"], run
        assert len(look["filtered"]) < len(look["rows"])
        assert look["unfiltered"] == len(look["rows"])
        if look["filtered_by"] != "whole cluster":
            assert all(look["filtered_by"] in row for row in look["filtered"])
    # Nothing failed, so there is nothing to look for.
    assert "filtered" not in seen.look["passing", "report"]


def test_of_many_nodes_a_row_stands_for_what_passed_and_one_for_what_was_lost(seen):
    assert len(PLANS["large"]) > rows.MAX_SINGLE_ROWS
    look = seen.look["large", "report"]
    fail, lost, waived, *rest = look["rows"]
    assert "gpu101" in fail
    assert "541 TFLOPS" in fail
    assert "gpu007" in lost
    assert f"25 not measured {LOST}" in lost
    assert waived.startswith("WAIVED gemm.c04")
    assert len(rest) == len(NODES) - 1
    assert sum("25 passed" in row for row in rest) == len(NODES) - 2
    assert sum("23 passed" in row for row in rest) == 1


@pytest.mark.parametrize("run", PLANS)
def test_a_certificate_says_at_once_whether_it_is_one(seen, run):
    look = seen.look[run, "certificate"]
    if run == "passing":
        assert look["heading"] == "Certificate of acceptance"
        assert "For the customer: name, date, signature" in look["whole"]
    else:
        assert f"NOT ACCEPTED: {WORD[run]}" in look["whole"][:300]
        assert "name, date, signature" not in look["whole"]


def test_foreign_markup_is_text_in_a_browser(seen):
    for page in ("report", "certificate"):
        look = seen.look["failing", page]
        assert HOSTILE in look["whole"]
        assert look["title"] != "1"  # what it would have set
        assert look["markup"] == 0


@pytest.mark.parametrize(("where", "width"), [("screen", 1280), ("phone", 390)])
def test_no_page_is_scrolled_sideways(seen, where, width):
    told_of = getattr(seen, where)
    assert {at: told for at, told in told_of.items() if told["page"] > told["window"]} == {}
    assert all(width - 20 <= told["window"] <= width for told in told_of.values())


@pytest.mark.slow
def test_no_page_breaks_a_serious_rule_of_accessibility(seen):
    axe = browser.axe_script()
    if axe is None:
        pytest.skip("no npm, or no registry, to get the rules from")
    files = list(seen.pages.values())
    for options in ((), (browser.DARK,)):
        for width in (1280, 390):
            of_pages = browser.inaccessible(files, axe, *options, width=width)
            for at, broken in zip(seen.pages, of_pages, strict=True):
                assert broken == [], (at, options, width)


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "most"), [(2, 20), (8, 26)])
def test_a_whole_certificate_has_few_sheets(gpus, most, tmp_path):
    root = accepted_fleet(tmp_path, gpus)
    page = root / "certificate.html"
    page.write_text(certificate.page(RunDirectory(root)), encoding="utf-8")
    body = tmp_path / "body.html"
    text = page.read_text(encoding="utf-8")
    body.write_text(text.partition("<!-- annexes begin -->")[0] + "</body></html>")
    assert "For the customer: name, date, signature" in body.read_text(encoding="utf-8")
    assert browser.sheets(body) == 1
    assert 1 < browser.sheets(page) <= most


def accepted_fleet(folder: Path, gpus: int) -> Path:
    """A whole run of two nodes with nothing wrong."""

    def of_this_size(root: Path, nodes: int, _gpus: int) -> Fleet:
        return Fleet(root, nodes, gpus)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(genuine_runs, "Fleet", of_this_size)
        with genuine_runs.tools(folder):
            return genuine_runs.Genuine.made(
                *genuine_runs.HEALTHY, folder / "run", folder / "none"
            ).root


def test_a_print_holds_the_verdict_and_the_table_and_nothing_to_press(seen):
    for at, told in seen.print.items():
        assert told["page"] <= told["window"], at
        assert told["verdict"], at
        assert told["table"], at
        assert not told["controls"], at
        assert not told["cut"], at


def test_a_print_is_a_file_that_a_printer_takes(seen, tmp_path):
    printed = tmp_path / "certificate.pdf"
    page = seen.pages["passing", "certificate"]
    browser.browse(page, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    sheets = re.findall(rb"/Type\s*/Page\b", printed.read_bytes())
    # A body on at most two sheets (test_certificate.py), and five annexes that begin a sheet each.
    assert 1 <= len(sheets) <= 8


@pytest.mark.parametrize("run", PLANS)
def test_the_fabric_under_load_is_shown_where_it_was_measured(seen, run):
    said = "carried at least 0.9 of the expected load"
    for page in ("report", "certificate"):
        assert (said in seen.look[run, page]["whole"]) is (run in UNDER_LOAD)
        assert ("from leaf" in seen.look[run, page]["whole"]) is (run in UNDER_LOAD)
    assert ("Fabric under load" in dict(seen.look[run, "report"]["contents"])) is (
        run in UNDER_LOAD
    )


def test_no_page_asks_for_anything_outside_itself(seen):
    files = list(seen.pages.values())
    assert browser.requested_urls(files) == []
    for page in files:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:link|script|img|iframe)[^>]*\s(?:src|href)="[^"#]', text), page
        assert not re.findall(r"@import|url\(\s*['\"]?(?!data:|#)", text), page


def test_what_a_page_asks_for_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<html><body><img src='http://example.org/x.png'></body></html>")
    assert browser.requested_urls([page]) == ["http://example.org/x.png"]
