"""What a report answers before anybody scrolls, what a print costs, and who can read it.

Five questions: which cluster, accepted or not, what is wrong, where, what to do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from reports.pages import certificate
from reports.pages.page import page
from tests.selftests import judged_runs, support
from tests.selftests.reports.pages.test_page import measured, planned
from tests.tools import browser

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL)),
]

CONTRACT = {"customer": "Example AG", "supplier": "Example Systems", "site": "Frankfurt",
            "order_number": "4711", "nodes": 2, "gpus_per_node": 8,
            "gpu_model": "H200 SXM"}  # fmt: skip
KEYS = ("health.answers", "gemm.bf16", "memory.copy", "allreduce.node.1GiB", "nvlink.links")
VERDICTS = ("REJECTED", "INCOMPLETE", "ACCEPTED")
SIZES = (1, 2, 128)
SCREENS = {"desk": (1280, 900), "phone": (390, 844)}
BAD = "gpu001"
MAX_BYTES = {1: 200_000, 2: 200_000, 128: 2_000_000, 1024: 4_000_000}
"""Most bytes of such a report; a 100 kB of it are style and script."""
PRINTED_PAGES = 12
"""Most sheets of A4 for one node."""


def rows_of(word: str, nodes: Sequence[str]) -> Iterator[Verdict]:
    for node in nodes:
        for key in KEYS:
            if word == "REJECTED" and (key, node) == ("gemm.bf16", BAD):
                yield measured(key, node, Outcome.FAIL, 541.0, next_step="check GPU-8f1c2d")
            elif word == "INCOMPLETE" and node == BAD:
                yield planned(
                    key, node, Outcome.NOT_MEASURED, reason=f"node lost: {BAD} went down",
                    cause=Cause.NODE.value, cause_nodes=[BAD],
                    next_step=f"return {BAD} to service, then --resume",
                )  # fmt: skip
            else:
                yield measured(key, node, Outcome.PASS, 641.2)
        yield planned("gemm.fp8", node, Outcome.NOT_APPLICABLE, reason="no fp8 before Hopper")


def made(root: Path, word: str, count: int) -> Path:
    """The report and certificate of a run with this verdict over so many nodes."""
    nodes = [f"gpu{k:03d}" for k in range(1, count + 1)]
    rows = list(rows_of(word, nodes))
    verdict = judged_runs.verdict_of(rows, nodes=nodes) | {"schema": 2}
    assert verdict["verdict"] == word
    directory = judged_runs.written(
        root, verdict, origin="cluster", planned=len(rows), path="/runs/r",
        created="2026-11-20T14:15:00+00:00", ended="2026-11-20T14:41:00+00:00",
        thresholds={"sha256": "fe2a9ad1" * 8}, contract={**CONTRACT, "nodes": count},
    )  # fmt: skip
    path = root / "report.html"
    path.write_text(page(directory), encoding="utf-8")
    certificate.write(directory)
    return path


SCREEN = """
  var seen = [], shown = function (e) {
    var box = e.getBoundingClientRect();
    return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
  };
  document.querySelectorAll("p, li > b, li > span, h2").forEach(function (e) {
    if (shown(e)) seen.push(e.innerText.replace(/\\s+/g, " ").trim());
  });
  return {text: seen.join(" | "), height: innerHeight, width: innerWidth};
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root = tmp_path_factory.mktemp("pages")
    return {
        (word, count): made(root / f"{word}-{count}", word, count)
        for word in VERDICTS
        for count in SIZES
    }


@pytest.fixture(scope="module")
def screens(pages: dict[tuple[str, int], Path]) -> dict[tuple[str, int, str], Any]:
    found = {}
    for screen, (width, height) in SCREENS.items():
        said = browser.evaluate(list(pages.values()), SCREEN, width=width, height=height)
        found |= {(*key, screen): look for key, look in zip(pages, said, strict=True)}
    return found


def answers(word: str, count: int) -> dict[str, str]:
    cluster = f"Example AG, Example Systems, Frankfurt, 4711, {count} node"
    if word == "REJECTED":
        return {"cluster": cluster, "verdict": word, "wrong": "Usually heat", "where": BAD,
                "blame": f"1 node at fault (1 row): {BAD}",
                "next": "Next: check GPU-8f1c2d"}  # fmt: skip
    if word == "INCOMPLETE":
        return {"cluster": cluster, "verdict": word, "wrong": f"node lost: {BAD} went down",
                "where": f"1 node dead ({len(KEYS)} rows): {BAD}",
                "next": f"Next: return {BAD} to service"}  # fmt: skip
    return {"cluster": cluster, "verdict": word, "next": "Next: Sign the certificate"}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("word", VERDICTS)
def test_five_questions_are_answered_on_the_first_screen(screens, word, count, screen):
    look = screens[word, count, screen]
    assert (look["width"], look["height"]) == SCREENS[screen]
    for question, answer in answers(word, count).items():
        assert answer in look["text"], question


def test_an_accepted_run_blames_nobody(screens):
    for count in SIZES:
        text = screens["ACCEPTED", count, "desk"]["text"]
        assert "at fault" not in text
        assert "dead" not in text
        assert "to look at" not in text


@pytest.mark.parametrize("count", SIZES)
def test_a_report_is_not_larger_than_it_has_to_be(pages, count):
    for word in VERDICTS:
        assert pages[word, count].stat().st_size < MAX_BYTES[count]


@pytest.mark.slow
def test_a_thousand_nodes_answer_the_same_questions(tmp_path):
    count = 1024
    paths = {word: made(tmp_path / word, word, count) for word in VERDICTS}
    for width, height in SCREENS.values():
        looks = browser.evaluate(list(paths.values()), SCREEN, width=width, height=height)
        for word, look in zip(paths, looks, strict=True):
            for question, answer in answers(word, count).items():
                assert answer in look["text"], (word, question)
    assert all(path.stat().st_size < MAX_BYTES[count] for path in paths.values())


# --- the table: by keyboard, by text, by link


TABLE = """
  var rows = function () {
    return Array.from(document.querySelectorAll("#results-table tbody")).filter(function (e) {
      return e.getClientRects().length > 0;
    });
  };
  var found = {all: rows().length, na: document.body.innerText.includes("no fp8 before Hopper")};
  found.shown_na = rows().some(function (row) { return row.innerText.includes("gemm.fp8"); });
  var box = document.querySelector('input[data-test-result="skipped"]');
  found.box = box.checked;
  var find = document.getElementById("find");
  find.value = "nvlink"; find.dispatchEvent(new Event("input"));
  found.filtered = rows().map(function (row) { return row.innerText; });
  found.said = document.getElementById("found").innerText;
  find.value = ""; find.dispatchEvent(new Event("input"));
  var cell = document.querySelector("#results-table tbody.passed .col-result");
  cell.focus();
  found.focused = document.activeElement === cell;
  var id = cell.closest("tbody").id;
  cell.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
  var again = document.getElementById(id);
  found.opened = !again.querySelector(".extras-row").classList.contains("hidden");
  await new Promise(function (done) { setTimeout(done, 0); });
  found.kept = again.contains(document.activeElement);
  var link = document.querySelector("a[data-row]");
  if (link) {
    link.click();
    found.went = document.activeElement.closest("tbody").innerText;
  }
  box.click();
  found.with_na = rows().length;
  return found;
"""


@pytest.fixture(scope="module")
def table(pages: dict[tuple[str, int], Path]) -> Any:
    return browser.evaluate([pages["REJECTED", 2]], TABLE)[0]


def test_rows_that_do_not_apply_are_out_of_the_way_until_asked_for(table):
    assert (table["box"], table["shown_na"]) == (False, False)
    assert table["all"] == 2 * len(KEYS)
    assert table["with_na"] == table["all"] + 2


def test_a_text_finds_its_rows(table):
    assert len(table["filtered"]) == 2
    assert all("nvlink.links" in row for row in table["filtered"])
    assert table["said"] == f"2 of {table['all']} rows"


def test_a_row_is_opened_from_the_keyboard_and_keeps_the_focus(table):
    assert table["focused"]
    assert table["opened"]
    assert table["kept"]


def test_a_failure_leads_to_its_row(table):
    assert "gemm.bf16" in table["went"]
    assert BAD in table["went"]


# --- accessibility


@pytest.fixture(scope="module")
def axe() -> str:
    """The rules of accessibility; a skip says that there are none."""
    script = browser.axe_script()
    if script is None:
        pytest.skip("no npm, or no registry: the pages were not checked by axe-core")
    return script


SPOKEN = (("REJECTED", "report.html"), ("ACCEPTED", "certificate.html"))
"""The fullest report, and the only certificate that is one; the others are parts of these."""
NAMES = ("report.html", "certificate.html")
OTHERS = tuple(at for at in itertools.product(VERDICTS, NAMES) if at not in SPOKEN)


@pytest.mark.waits("for npm, which fetches axe-core")
@pytest.mark.parametrize("width", [width for width, _ in SCREENS.values()])
@pytest.mark.parametrize(
    "chosen", [SPOKEN, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["two", "others"]
)
def test_a_screen_reader_meets_nothing_serious(pages, chosen, width, axe):
    files = [pages[word, 2].with_name(name) for word, name in chosen]
    assert browser.inaccessible(files, axe, width=width) == [[]] * len(files)


@pytest.mark.waits("for npm, which fetches axe-core")
def test_what_a_screen_reader_stumbles_over_would_be_found(tmp_path, axe):
    bad = tmp_path / "page.html"
    bad.write_text("<html><body><img src='data:,'><input></body></html>")
    (found,) = browser.inaccessible([bad], axe)
    assert {"image-alt", "html-has-lang"} <= {rule for _, rule, _ in found}


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb (WCAG 2.1)."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * d for d in digits)
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_colour_of_a_verdict_can_be_read_on_its_ground_in_both_modes():
    """What axe says of the pages of all verdicts in `make soak`."""
    css = (support.CHECKOUT / "reports" / "templates" / "base.css").read_text(encoding="utf-8")
    modes = [dict(re.findall(r"--([\w-]+): (#\w+)", at)) for at in css.split(":root {")[1:]]
    assert len(modes) == 2
    for colours in modes:
        for name in ("red", "amber", "green", "blue", "ink", "soft"):
            for ground in ("paper", "tint", f"{name}-tint"):
                if ground in colours:
                    lights = sorted(luminance(colours[n]) for n in (name, ground))
                    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5, (name, ground)


# --- one recorded node, with all its charts


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "run"
    support.judged(support.DATA / "h200-1x4", root)
    path = root / "report.html"
    path.write_text(page(RunDirectory(root)), encoding="utf-8")
    return path


def test_one_node_prints_on_a_few_sheets(recorded, tmp_path):
    printed = tmp_path / "report.pdf"
    browser.browse(recorded, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    sheets = re.findall(rb"/Type\s*/Page\b", printed.read_bytes())
    assert 2 <= len(sheets) <= PRINTED_PAGES


def test_the_recorded_report_has_hardware_figures_and_losses(recorded):
    text = " ".join(re.sub(r"<[^>]*>", " ", recorded.read_text(encoding="utf-8")).split())
    for said in ("1 node, 4 x NVIDIA H200", "580.159.04", "96.00.A5.00.1A", "1653724027815",
                 "How the GPUs of node0 reach each other", "Recorded figures",
                 "Loss of the trainings, step by step", "gradient norm", "ddp 1b, 4 GPUs",
                 "bf16, slowest GPU 659.9 TFLOPS", "GPUs and criteria: margin to the limit",
                 "Limit: measured for this suite"):  # fmt: skip
        assert said in text, said


@pytest.mark.slow
def test_the_recorded_report_meets_nothing_serious_either(recorded, axe):
    assert browser.inaccessible([recorded], axe) == [[]]


def test_all_that_is_drawn_and_every_part_that_scrolls_has_a_name(recorded):
    """What axe says of them in `make soak`, of the page with all charts."""
    tags = re.findall(r'<\w+[^>]*\srole="(?:img|region)"[^>]*>', recorded.read_text("utf-8"))
    assert {tag.partition(" ")[0] for tag in tags} >= {"<div", "<svg"}
    assert [tag for tag in tags if not re.search(r'\saria-label="[^"]{3,}"', tag)] == []


def test_the_same_evidence_gives_the_same_page(recorded):
    directory = RunDirectory(recorded.parent)
    again = page(directory, read_json(directory.verdict))
    assert again == recorded.read_text(encoding="utf-8")
