"""The certificate: a body on two sheets of paper, annexes behind a hash, and no broken word."""

from __future__ import annotations

import hashlib
import html
import re
from pathlib import Path

import pytest

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


def test_the_annexes_have_every_row_with_its_command(certificates):
    annexes = plain(parts(certificates["REJECTED", 2])[1])
    for node in ("gpu001", "gpu002"):
        for key in KEYS:
            assert f"pytest -m multinode -k {key}-{node}" in annexes
    assert "541 TFLOPS" in annexes
    assert "-10.6 %" in annexes
    numbers = re.findall(r"Annex (\d): ", annexes)
    assert numbers == sorted(numbers)


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
