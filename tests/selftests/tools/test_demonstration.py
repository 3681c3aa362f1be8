"""What the README shows of a demonstration is what a demonstration shows today."""

from __future__ import annotations

import re

import pytest

from fixtures.records.files import read_json
from reports.console.terminal import _counts
from tests.selftests.sandboxes import Finished
from tests.tools import browser, demonstration, sections

pytestmark = pytest.mark.cpu

AGAIN = "python -m tests.tools.demonstration --write"
MAX_BYTES = 300_000


def sample() -> list[str]:
    """The code block of the README, without its fences."""
    return sections.section(demonstration.README, "sample").strip().splitlines()[1:-1]


def pattern(line: str) -> str:
    """What a line says, whatever the counts and the place of a run."""
    text = re.escape(line)
    text = re.sub(r"reports/runs/[\d\\-]+[0-9a-f]{4}/", r"\\S*/", text)
    return re.sub(r"\d+", r"\\d+", text)


def test_the_sample_of_the_readme_is_what_a_demonstration_prints(healthy: Finished):
    command, *screen = sample()
    assert command == f"$ {' '.join(demonstration.command())}"
    started = read_json(healthy.directory.run_json)["commands"][0]
    assert started.endswith(" ".join(demonstration.command()[1:]))
    printed = healthy.said.splitlines()
    first = next(k for k, line in enumerate(printed) if re.fullmatch(pattern(screen[0]), line))
    shown = printed[first : first + len(screen)]
    wrong = [
        f"README: {said!r}, printed: {line!r}"
        for said, line in zip(screen, shown, strict=True)
        if not re.fullmatch(pattern(said), line)
    ]
    assert wrong == [], AGAIN


def test_the_counts_of_the_readme_are_those_of_a_run_of_today(healthy: Finished):
    """A host that shows less of its hardware has more rows that do not apply to it."""
    counts, today = demonstration.facts()["counts"], healthy.verdict["counts"]
    assert _counts(counts) in sample(), AGAIN
    assert counts["planned"] == today["planned"], AGAIN
    if counts["not_applicable"] == today["not_applicable"]:
        assert counts == today, AGAIN


@pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL))
def test_the_picture_of_the_readme_shows_the_report_of_today(healthy: Finished):
    seen = demonstration.look(healthy.root / "report.html")
    assert 500 < seen["height"] < demonstration.MAX_HEIGHT
    assert any("DEMONSTRATION" in text for text in seen["texts"])
    assert demonstration.facts()["shows"] == demonstration.digest(seen["texts"]), AGAIN


@pytest.mark.parametrize("name", ["report", *demonstration.MORE])
def test_every_picture_is_there_and_small(name):
    assert demonstration.PICTURE.with_name(f"{name}.png").stat().st_size < MAX_BYTES


def test_when_a_run_was_makes_no_other_picture():
    said = "Measured 2026-11-28 {} UTC to 2026-11-28 {} UTC ({}), run 20261128-180501-{}"
    first = said.format("18:05", "18:11", "6 min", "b1d7")
    other = said.format("09:00", "10:05", "1 h 5 min", "cafe")
    assert demonstration.digest([first]) == demonstration.digest([other])
    assert demonstration.digest([first]) != demonstration.digest(["Measured by hand"])


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("0.7 TFLOPS", False), ("12 TFLOPS", False), ("11 x", False), ("+99 %", False),
        ("12 GB/s", True), ("another heading", True),
    ],
)  # fmt: skip
def test_a_value_makes_no_other_picture_and_a_word_does(text, changes):
    shown = ["Key figures", "0.5849 TFLOPS", "+741 %"]
    other = demonstration.digest([*shown, text])
    assert (other != demonstration.digest(shown)) == changes


def test_another_style_makes_another_picture(tmp_path, monkeypatch):
    before = demonstration.digest(["Key figures"])
    (style := tmp_path / "report.css").write_text("body { color: red }")
    monkeypatch.setattr(demonstration, "STYLE", style)
    assert demonstration.digest(["Key figures"]) != before
