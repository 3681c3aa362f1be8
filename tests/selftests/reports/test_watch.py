"""GPUs and links of a run in the terminal."""

from __future__ import annotations

import io
import json
import re
import time
from typing import Any

import pytest
from rich.console import Console

from fixtures.records.files import append_line
from reports import watch
from tests.selftests.reports.test_live import on_a_terminal, piped
from tests.selftests.reports.test_progress import a_run
from tests.selftests.support import DATA

pytestmark = pytest.mark.cpu


def test_watch_shows_every_node_and_gpu_with_rates(tmp_path):
    run = piped("reports", "watch", a_run(tmp_path).root, "--once")
    assert run.returncode == 0, run.stderr
    for k in (0, 1):
        (row,) = [line for line in run.stdout.splitlines() if line.startswith(f"worker{k}")]
        fields = row.split()
        # node, GPU, bar, then the figures
        assert fields[3:12] == [str(90 + k), "2", "60", "650", "1500", "power", "cap", "5.0/1.0",
                                "3.0/0.0"]  # fmt: skip
    assert "2 running" in run.stdout


def test_rates_are_unknown_where_a_counter_began_anew_and_never_negative(tmp_path):
    run = a_run(tmp_path)
    path = run.job("node-worker0") / "telemetry-worker0.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    last["t"], last["gpus"]["GPU-0"]["nvlink_tx"], last["nics"]["mlx5_0"] = 102.0, 0, [0, 0]
    append_line(path, last)
    telemetry = watch.Telemetry(run)
    telemetry.refresh()
    assert telemetry.frame["worker0"].gpus["GPU-0"].nvlink_gb_s is None
    assert telemetry.frame["worker0"].nics_gb_s is None
    assert telemetry.frame["worker1"].gpus["GPU-1"].nvlink_gb_s == (5.0, 1.0)


def test_a_recorded_run_without_telemetry_files_is_shown_from_its_records():
    run = piped("reports", "watch", DATA / "h200-2x2", "--once")
    assert run.returncode == 0, run.stderr
    assert "1 done" in run.stdout
    assert "the highest of" in run.stdout
    assert len([n for n in run.stdout.splitlines() if n.startswith("worker")]) == 4


def test_a_run_is_played_again_frame_by_frame(tmp_path):
    run = piped("reports", "watch", a_run(tmp_path).root, "--speed=1000")
    assert run.stdout.count("power cap") == 4, run.stdout  # two nodes at two seconds


def test_a_terminal_that_watches_ends_with_the_run(tmp_path):
    run = a_run(tmp_path)
    append_line(run.ledger, {"event": "end", "verdict": "REJECTED"})
    _, screen, status = on_a_terminal("reports", "watch", str(tmp_path))
    assert status == 0
    assert any("REJECTED" in line for line in screen)
    assert any(line.startswith("worker1") for line in screen)


def test_hostile_names_stay_text(tmp_path):
    run = a_run(tmp_path)
    name = run.job("node-worker0") / "telemetry-worker0.jsonl"
    name.rename(name.with_name("telemetry-[red]x[:boom:].jsonl"))
    shown = piped("reports", "watch", run.root, "--once")
    assert "[red]x[:boom:]" in shown.stdout


@pytest.mark.parametrize("arguments", [["/nowhere"], [".", "--once"]])
def test_what_is_no_run_is_refused_in_a_line(arguments):
    run = piped("reports", "watch", *arguments)
    assert run.returncode == 4
    assert len(run.stderr.strip().splitlines()) == 1


def frame(names: list[str], gpus: int = 2) -> watch.Frame:
    now = time.time()
    gpu = watch.Gpu(97.0, 120.0, 88.0, 650.0, 1755.0, (12.0, 12.0), "")
    return {
        name: watch.Node(
            now, {f"GPU-{name}-{k}": gpu for k in range(gpus)}, (1.0, 1.0), 3.0, "training_fsdp"
        )
        for name in names
    }


def printed(what: Any, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=False, color_system=None).print(what)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_watch_cuts_no_name_and_fits(width):
    names = ["gpu-cluster-rack07-node001", "gpu-cluster-rack07-node002"]
    text = printed(watch.render(frame(names), None, time.time(), width), width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    for name in names:
        assert text.count(name) == 2, "each GPU has the name of its node"
    assert "..." not in text
    assert "…" not in text
    assert "█" * watch.BAR in text
    assert ("UUID" in text) == (width >= 160)


def test_of_a_run_that_is_over_the_highest_of_each_figure_is_shown():
    """Its last sample is of nodes that have nothing more to do."""
    idle = watch.Gpu(0.0, 1.0, 40.0, 100.0, 1200.0, (0.0, 0.0))
    busy = watch.Gpu(97.0, 120.0, 70.0, 650.0, 1980.0, (210.0, 205.0), "power cap")
    still = watch.Gpu(50.0, None, None, None, None, (0.0, 0.0))
    samples = [
        ("worker0", watch.Node(1.0, {"GPU-a": idle, "GPU-b": still}, (0.0, 0.0), 3.0, "gemm")),
        ("worker0", watch.Node(2.0, {"GPU-a": busy, "GPU-b": still}, (40.0, 39.0), 9.0, "gemm")),
        ("worker0", watch.Node(3.0, {"GPU-a": idle, "GPU-b": still}, (0.0, 0.0), None, "gemm")),
    ]
    found = watch.highest_of(samples)["worker0"]
    assert found.gpus["GPU-a"] == busy
    assert (found.nics_gb_s, found.cpu_percent, found.time) == ((40.0, 39.0), 9.0, 3.0)
    text = printed(watch.render({"worker0": found}, None, time.time(), 160), 160)
    assert "210.0/205.0" in text
    assert "0.0/0.0" not in text.replace("40.0/39.0", "").replace("210.0/205.0", "")
    assert "?" not in text
    assert watch.HIGHEST in text


def test_watch_colours_load_and_heat():
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system="standard").print(
        watch.render(frame(["worker0"]), None, time.time(), 80)
    )
    assert "\x1b[32m█" in out.getvalue()
    assert re.search("\x1b\\[31m *88", out.getvalue())
