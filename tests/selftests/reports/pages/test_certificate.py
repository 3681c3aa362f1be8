"""The certificate: a body on two sheets of paper, annexes behind a hash, and no broken word."""

from __future__ import annotations

import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.paths import THRESHOLDS
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader, overview
from fixtures.verdict.model import Outcome
from reports.pages import certificate
from tests.selftests import derive_runs, support
from tests.selftests.reports.pages.test_page import PLAN, measured
from tests.selftests.reports.test_exports import Page, both, written
from tests.selftests.reports.test_first_screen import KEYS, VERDICTS, made
from tests.tools import browser

pytestmark = pytest.mark.cpu

BODY_SHEETS = 2
SIZES = (2, 128)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root = tmp_path_factory.mktemp("certificates")
    return {
        (word, count): made(root / f"{word}-{count}", word, count).with_name("certificate.html")
        for word in VERDICTS
        for count in SIZES
    }


def parts(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8")
    body, _, rest = text.partition("<!-- annexes begin -->\n")
    return body, rest.partition("<!-- annexes end -->")[0]


def plain(text: str) -> str:
    without = re.sub(r"<wbr>", "", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", without)).split())


def test_the_body_has_what_is_signed(certificates):
    for word in VERDICTS:
        body = plain(parts(certificates[word, 2])[0])
        for said in ("Customer Example AG", "Supplier Example Systems", "Site Frankfurt",
                     "Order number 4711", "Scope all of the standard tier",
                     "Result by area", "SHA-256 of verdict.json", "SHA-256 of the annexes",
                     "GPU model H200 SXM"):  # fmt: skip
            assert said in body, said
        assert ("For the customer: name, date, signature" in body) == (word == "ACCEPTED")
        assert ("What is not accepted" in body) == (word != "ACCEPTED")


def test_the_body_states_the_hash_of_the_annexes(certificates):
    for path in certificates.values():
        body, annexes = parts(path)
        assert len(annexes) > 1000
        assert hashlib.sha256(annexes.encode()).hexdigest() in body
        changed = annexes.replace("641.2", "642.2", 1)
        assert hashlib.sha256(changed.encode()).hexdigest() not in body


def test_the_annexes_have_every_row_and_the_command_that_measures_one_again(certificates):
    annexes = plain(parts(certificates["REJECTED", 2])[1])
    every = annexes.partition("Annex 3")[2].partition("Annex 4")[0]
    assert every.count("pytest -m multinode") == 1
    assert "pytest -m multinode -k CRITERION-SUBJECT" in every
    for key in KEYS:
        assert every.count(key) == 1, "a criterion stands once, with its limit and its source"
    for node in ("gpu001", "gpu002"):
        assert every.count(f"{node}: ") == len(KEYS)
    assert "541 TFLOPS" in annexes
    assert "-10.6 %" in annexes
    numbers = re.findall(r"Annex (\d): ", annexes)
    assert numbers == sorted(numbers)


def test_a_rejected_run_gets_no_certificate_but_a_page_that_says_so(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "NOT ACCEPTED: REJECTED" in page.text
    assert "Certificate of acceptance" not in page.text
    assert "signature" not in page.text.partition("Evidence")[2].partition("Criteria")[0]
    assert "Kim" in page.text
    assert "2027-01-31" in page.text
    assert "-10.6 %" in page.text
    assert "GPU-8f1c2d-worker1" in page.text


def test_what_passed_whole_is_a_certificate_to_sign(tmp_path):
    passed = [v for v in PLAN if v.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)]
    page = Page(certificate.page(written(tmp_path / "run", passed)))
    assert "Certificate of acceptance" in page.text
    assert "NOT ACCEPTED" not in page.text
    assert "For the customer: name, date, signature" in page.text
    for name in ("manifest.sha256", "verdict.json"):
        assert certificate.hashes(RunDirectory(tmp_path / "run"))[name] in page.text


def test_a_second_try_is_no_secret(tmp_path):
    first = measured("gemm.bf16", "worker1", Outcome.FAIL, 541.0)
    second = replace(first, outcome=Outcome.PASS, value=655.5, attempt=2)
    directory = written(tmp_path / "run", [second])
    lines = [{"event": "verdict", **v.to_json()} for v in (first, first, second)]
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(certificate.page(directory))
    said = " ".join(page.text.rpartition("Measured more than once")[2].split())
    assert said.startswith(
        "Criterion Where Before At last gemm.bf16 worker1 attempt 1: FAIL 541 TFLOPS "
        "PASS 655.5 TFLOPS"
    )


def test_what_was_measured_once_has_no_list_of_tries(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "Measured more than once" not in page.text


def test_every_session_of_a_run_is_named(tmp_path):
    directory = written(tmp_path / "run")
    with support.edited(directory.run_json) as run:
        run["commands"] = ["pytest A", "pytest --resume B"]
    assert "pytest A; then by pytest --resume B" in Page(certificate.page(directory)).text


def test_an_interrupted_run_says_how_much_of_it_was_judged(tmp_path):
    plan = [v for v in PLAN if v.outcome is not Outcome.FAIL]
    page = Page(certificate.page(written(tmp_path / "run", plan, interrupted="it was killed")))
    assert "NOT ACCEPTED: INCOMPLETE" in page.text
    assert "3 of 5 verdicts were reached" in page.text


def test_the_annex_has_the_limits_that_held_with_their_sources_and_what_was_not_judged(tmp_path):
    directory = written(tmp_path / "run")
    assert "Annex 4" not in Page(certificate.page(directory)).text, "before 0.2.0"
    held = overview.limit_rows(
        loader.load(THRESHOLDS),
        overview.OrderedSite(gpu_model="H200 SXM", nodes=("n",)),
        sized=True,
    )
    directory.limits.write_text(overview.csv_text(held), encoding="utf-8")
    text = Page(certificate.page(directory)).text
    (bf16,) = (row for row in held if row.criterion == "gemm.bf16" and row.limit == ">= 605")
    assert bf16.source in text.partition("Annex 3")[2]
    unjudged = [row for row in held if row.not_judged]
    assert unjudged
    annex = text.partition("Annex 4: what was not judged")[2]
    assert all(r.criterion in annex and r.not_judged in annex for r in unjudged)
    assert directory.limits in directory.evidence()[0]


def test_the_certificate_lists_gpus_by_uuid_and_serial(tmp_path):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "unchanged")
    with support.edited(tmp_path / "run" / "records" / "inventory@worker0.json") as data:
        data["ranks"][0]["device"]["serial"] = "1652023004711"
    made = written(tmp_path / "other")
    verdict, _ = both(made)
    page = Page(certificate.page(RunDirectory(tmp_path / "run"), {
        **verdict, "scope": {**verdict["scope"], "nodes": ["worker0", "worker1"]}}))  # fmt: skip
    for rank in data["ranks"]:
        assert rank["device"]["uuid"] in page.text
    assert "serial 1652023004711" in page.text
    assert "4 x NVIDIA H200" in page.text


# --- in a browser


WORDS = """
  var broken = [];
  document.querySelectorAll("th, td, dt, li, p").forEach(function (cell) {
    var walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), node;
    while ((node = walker.nextNode())) {
      var word, words = /[A-Za-z0-9]{2,24}/g;
      while ((word = words.exec(node.data))) {
        var range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        var tops = new Set(Array.from(range.getClientRects()).map(function (box) {
          return Math.round(box.top);
        }));
        if (tops.size > 1) broken.push(word[0]);
      }
    }
  });
  return broken.slice(0, 5);
"""
needs_browser = pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL))


@needs_browser
@pytest.mark.parametrize("width", [1000, 696])
def test_no_word_is_broken(certificates, width):
    files = list(certificates.values())
    assert browser.evaluate(files, WORDS, width=width) == [[]] * len(files)


@needs_browser
def test_a_broken_word_would_be_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<html><body><p style='width:2em;overflow-wrap:anywhere'>availability</p>")
    page.write_text(page.read_text() + "</body></html>")
    assert browser.evaluate([page], WORDS) == [["availability"]]


@needs_browser
@pytest.mark.parametrize("word", VERDICTS)
def test_the_body_prints_on_two_sheets(certificates, tmp_path, word):
    body, _ = parts(certificates[word, 128])
    alone = tmp_path / "body.html"
    alone.write_text(body + "</body></html>", encoding="utf-8")
    printed = tmp_path / "body.pdf"
    browser.browse(alone, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes())) <= BODY_SHEETS
