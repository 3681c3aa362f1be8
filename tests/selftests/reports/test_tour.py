"""The tour leads through a run: what there is of it, a screen at a time."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from reports import tour
from tests.selftests import support
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu


def test_the_tour_leaves_out_what_is_empty_and_keeps_the_order_of_the_nodes(tmp_path):
    """As the probe tier leaves it: no figures, no benchmarks, worker1 was the first to end."""
    support.judged(DATA / "h200-2x2", tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    for path in run.records.glob("*.json"):
        if path.name.partition("@")[0] != "environment":
            path.unlink()
    data = read_json(run.verdict)
    data["criteria"] = [c for c in data["criteria"] if c["criterion"].startswith("inventory")]
    run.verdict.write_text(json.dumps(data))
    later = run.records / "environment@worker0.json"
    record = read_json(later)
    for rank in record["ranks"]:
        rank["start"], rank["end"] = rank["start"] + 1e6, rank["end"] + 1e6
    later.write_text(json.dumps(record))
    out = io.StringIO()
    tour.show(Console(file=out, width=140), run)
    text = out.getvalue()
    assert [w for w in ("1 hardware", "2 health", "3 ") if w in text] == ["1 hardware", "2 health"]
    assert "figure" not in text
    assert text.index(" worker0 ") < text.index(" worker1 ")


def test_the_tour_stops_at_each_screen_of_a_terminal(monkeypatch):
    out, asked = io.StringIO(), list[str]()
    console = Console(file=out, width=80, height=6, force_terminal=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(console, "input", lambda prompt: asked.append(prompt) or "")
    tour.show_section(console, [f"line {k}" for k in range(10)], "2 health")
    assert [a.partition(";")[0].removeprefix("[dim]") for a in asked] == [
        "Enter: more", "Enter: more", "Enter: 2 health",
    ]  # fmt: skip
    assert [f"line {k}" in out.getvalue() for k in range(10)] == [True] * 10
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    tour.show_section(console, ["last"], "2 health")
    assert len(asked) == 3


def test_the_tour_shows_key_figures_and_trainings(tmp_path):
    support.judged(DATA / "h200-1x4", tmp_path / "run")
    out = io.StringIO()
    tour.show(Console(file=out, width=140), RunDirectory(tmp_path / "run"))
    text = out.getvalue()
    for heading in ("1 hardware", "2 health", "3 figures", "4 benchmarks", "5 training"):
        assert heading in text
    assert re.search(r"bf16, slowest GPU +659.9 +TFLOPS", text)
    assert "ddp 1b, 4 GPUs" in text
