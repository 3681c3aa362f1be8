"""The tour leads through a run: what there is of it, a screen at a time."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fixtures.records.run_directory import RunDirectory
from reports.console import tour
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
    with support.edited(run.verdict) as data:
        data["criteria"] = [c for c in data["criteria"] if c["criterion"].startswith("inventory")]
    with support.edited(run.records / "environment@worker0.json") as record:
        for rank in record["ranks"]:
            rank["start"], rank["end"] = rank["start"] + 60, rank["end"] + 60
    out = io.StringIO()
    tour.show(Console(file=out, width=140), run)
    text = out.getvalue()
    there = [w for w in ("1. hardware", "2. health", "3. ") if w in text]
    assert there == ["1. hardware", "2. health"]
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
    for heading in ("1. hardware", "2. health", "3. figures", "4. benchmarks", "5. training"):
        assert heading in text
    assert re.search(r"bf16, slowest GPU +659.9 +TFLOPS", text)
    assert "ddp 1b, 4 GPUs" in text


def gathered(console: Console) -> str:
    return console.file.getvalue()


def a_console() -> Console:
    return Console(file=io.StringIO(), width=140)


def text_of(what: Any) -> str:
    console = a_console()
    console.print(what)
    return gathered(console)


def criterion(key: str, outcome: str, subject: str = "a") -> dict[str, Any]:
    return {"criterion": key, "outcome": outcome, "subject": subject}


def test_an_area_has_its_outcomes_and_its_first_problem():
    verdict = {"criteria": [
        criterion("gemm.bf16", "PASS"), criterion("gemm.fp8", "NOT_MEASURED", "b"),
        criterion("gemm.fp16", "FAIL"), criterion("gemm.tf32", "PASS"),
        criterion("memory.copy", "FAIL"),
    ]}  # fmt: skip
    table = tour.outcomes(verdict, ["compute", "training"])
    assert table.row_count == 1
    text = text_of(table)
    assert "2 pass  1 not measured  1 fail" in text
    assert "b gemm.fp8" in text
    assert "first red check" in text
    assert "gemm" not in text_of(tour.outcomes({"criteria": verdict["criteria"][:1]}, ["compute"]))


def test_hardware_is_that_of_the_records_of_the_environment():
    rank = support.rank(0, "worker0")
    rank.facts.update({"cpu": "EPYC", "gpus": [{"name": "H200"}, {}], "nics": [1, 2, 3]})
    other = support.record(support.rank(0, "worker1"), workload="gemm", placement="worker1")
    records = [other, support.record(rank, workload="environment")]
    table = tour.hardware(records)
    assert table.row_count == 1
    assert text_of(table).split()[-10:] == [
        "worker0", "EPYC", "?", "?", "2", "x", "H200", "3", "none", "?",
    ]  # fmt: skip


def test_figures_are_those_of_the_report():
    row = {
        "criterion": "gemm.bf16", "subject": "a", "value": 650.0, "unit": "TFLOPS", "margin": 0.1,
        "outcome": "PASS", "limit": ">= 605", "worst": None,
    }  # fmt: skip
    table = tour.figures({"criteria": [row]})
    assert table.row_count == 1
    assert "650" in text_of(table)


def test_records_are_in_the_order_of_their_workloads_and_of_the_nodes_and_all_of_them_last():
    def record(workload: str, placement: str) -> Any:
        return support.record(support.rank(0, "a"), workload=workload, placement=placement)

    given = [record("p2p", "n10"), record("gemm", "all"), record("p2p", "n9"), record("gemm", "z")]
    assert [(r.workload, r.placement) for r in tour.by_node(given)] == [
        ("p2p", "n9"), ("p2p", "n10"), ("gemm", "z"), ("gemm", "all"),
    ]  # fmt: skip


def test_benchmarks_are_the_slowest_rate_of_each_metric_and_the_known_tables(monkeypatch):
    monkeypatch.setattr(tour, "table", lambda record: f"table of {record.workload}")
    fast, slow = (support.rank(k, "a", support.bf16([r] * 3)) for k, r in ((0, 660.0), (1, 650.0)))
    slow.measurements.extend([support.value("clock", "TFLOPS", 5.0), support.latency(1.0)])
    records = [support.record(fast, slow, workload=w) for w in ("gemm", "p2p", "drift")]
    assert [text.strip() for text in tour.benchmarks(records)] == [
        "# gemm worker0, slowest of 2, TFLOPS: bf16 650", "table of p2p",
    ]  # fmt: skip
    monkeypatch.setattr(tour, "table", lambda record: "")
    assert list(tour.benchmarks(records[1:])) == []


def test_an_area_is_that_of_the_definition():
    assert tour._area({"criterion": "gemm.bf16"}) == "compute"


def test_only_what_follows_is_waited_for(monkeypatch):
    """The last section ends without a question, and a screen that is not full has one."""
    asked: list[str] = []
    console = Console(file=io.StringIO(), width=80, height=6, force_terminal=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(console, "input", lambda prompt: asked.append(prompt) or "")
    tour.show_section(console, ["a"], "")
    assert asked == []
    tour.show_section(console, [f"{k}" for k in range(5)], "")
    assert ["more" in prompt for prompt in asked] == [True]
    plain = a_console()
    monkeypatch.setattr(plain, "input", lambda prompt: asked.append(prompt) or "")
    tour.show_section(plain, ["a", "b"], "2 health")
    assert len(asked) == 1


# --- the command


@pytest.fixture
def toured(tmp_path, monkeypatch):
    """Runs the tour of a run that exists or not; the run's own command is made up."""
    ran: list[list[str]] = []

    def of(*arguments: str, ends: tuple[int, bool] = (1, False), error: Any = None) -> int:
        def show(*_: Any) -> None:
            if error is not None:
                raise error

        def run(command: list[str], **_: Any) -> tuple[int, bool]:
            ran.append(command)
            return ends

        monkeypatch.setattr(tour, "show", show)
        monkeypatch.setattr(tour, "run_to_its_end", run)
        return tour.main(list(arguments))

    (tmp_path / "verdict.json").write_text("{}")
    monkeypatch.setattr(tour, "LATEST", tmp_path)
    return SimpleNamespace(of=of, ran=ran, root=tmp_path)


def test_the_tour_makes_a_run_unless_one_is_given(toured, capsys):
    assert toured.of("--run", str(toured.root)) == 0
    assert toured.ran == []
    assert toured.of() == 1
    assert toured.of("--quick", "-k", "gemm", ends=(2, False)) == 2
    assert [command[1:4] for command in toured.ran] == [["-m", "fixtures", "-rN"]] * 2
    assert toured.ran[1][4:] == ["--tier", "probe", "-k", "gemm"]
    assert toured.of(error=KeyboardInterrupt()) == 1


def test_a_run_that_was_interrupted_or_has_no_verdict_is_not_toured(toured, capsys):
    assert toured.of(ends=(2, True), error=AssertionError()) == 2
    none = toured.root / "none"
    assert toured.of("--run", str(none)) == 4
    assert "has no verdict.json" in capsys.readouterr().out
    assert toured.of(f"--run-dir={none}", ends=(3, False)) == 3


def test_each_section_announces_the_next_and_the_last_the_summary(tmp_path, monkeypatch):
    announced: list[str] = []
    monkeypatch.setattr(tour, "show_section", lambda _, parts, after: announced.append(after))
    monkeypatch.setattr(tour, "records_of", lambda _: [])
    verdict = {
        "criteria": [criterion("gemm.bf16", "PASS"), criterion("inventory.gpus", "PASS")],
        "counts": {"pass": 2}, "verdict": "PARTIAL", "reasons": [],
    }  # fmt: skip
    verdict["criteria"][0].update(value=650.0, unit="TFLOPS", margin=0.1, limit="", worst=None)
    verdict["criteria"][1].update(value=8, unit="GPUs", margin=None, limit="", worst=None)
    monkeypatch.setattr(tour, "read_verdict", lambda _: verdict)
    tour.show(a_console(), RunDirectory(tmp_path))
    assert announced == ["figures", "summary", ""]
