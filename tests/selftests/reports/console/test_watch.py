"""GPUs and links of a run in the terminal."""

# Length: two sources of figures, live and recorded, and one table of both.

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.console import watch
from reports.console.progress import Progress
from tests.selftests.reports.console.test_live import on_a_terminal
from tests.selftests.reports.console.test_progress import a_run
from tests.selftests.support import DATA, change

pytestmark = pytest.mark.cpu


def watched(capsys: Any, *arguments: str | Path) -> SimpleNamespace:
    """What the command prints where it is not on a terminal."""
    status = command.main(["watch", *map(str, arguments)])
    out, err = capsys.readouterr()
    return SimpleNamespace(returncode=status, stdout=out, stderr=err)


def test_watch_shows_every_node_and_gpu_with_rates(tmp_path, capsys):
    run = watched(capsys, a_run(tmp_path).root, "--once")
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


def test_a_recorded_run_without_telemetry_files_is_shown_from_its_records(capsys):
    run = watched(capsys, DATA / "h200-2x2", "--once")
    assert run.returncode == 0, run.stderr
    assert "1 done" in run.stdout
    assert "the highest of" in run.stdout
    assert len([n for n in run.stdout.splitlines() if n.startswith("worker")]) == 4


def test_a_run_is_played_again_frame_by_frame(tmp_path, capsys):
    run = watched(capsys, a_run(tmp_path).root, "--speed=1000")
    assert run.stdout.count("power cap") == 4, run.stdout  # two nodes at two seconds


def test_a_terminal_that_watches_ends_with_the_run(tmp_path):
    run = a_run(tmp_path)
    append_line(run.ledger, {"event": "end", "verdict": "REJECTED"})
    _, screen, status = on_a_terminal("reports", "watch", str(tmp_path))
    assert status == 0
    assert any("REJECTED" in line for line in screen)
    assert any(line.startswith("worker1") for line in screen)


def test_hostile_names_stay_text(tmp_path, capsys):
    run = a_run(tmp_path)
    name = run.job("node-worker0") / "telemetry-worker0.jsonl"
    other = name.with_name("telemetry-y\x1b[2J.jsonl")  # not one that the suite lists
    other.write_bytes(name.read_bytes())
    name.rename(name.with_name("telemetry-[red]x[:boom:].jsonl"))
    shown = watched(capsys, run.root, "--once")
    assert "[red]x[:boom:]" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize("changed", [{"util": "../.."}, {"power_w": []}, {"temp_c": True}])
def test_a_gauge_that_is_not_a_number_is_not_shown(changed, tmp_path, capsys):
    run = a_run(tmp_path)
    path = run.job("node-worker0") / "telemetry-worker0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for gauges in line["gpus"].values():
            gauges |= changed
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for arguments in ([], ["--once"], ["--speed=1000"]):
        shown = watched(capsys, run.root, *arguments)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "worker0" in shown.stdout


@pytest.mark.parametrize("arguments", [["/nowhere"], [".", "--once"]])
def test_what_is_no_run_is_refused_in_a_line(arguments, capsys):
    run = watched(capsys, *arguments)
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


# --- frames


def sample(t: float, before: Any = None, **more: Any) -> watch.Node:
    gpu = more.pop("gpu", {})
    return watch._node_of_sample({"t": t, "gpus": {"GPU-0": gpu}, **more}, before, "job")


def test_a_gpu_is_what_its_sample_says_and_the_most_severe_reason_slows_it():
    full = {"util": 50, "temp_c": 60, "power_w": 300.0, "sm_mhz": 1500, "mem_mib": 2048}
    node = sample(10, gpu=full)
    assert (node.time, node.activity, node.nics_gb_s, node.cpu_percent) == (10, "job", None, None)
    assert node.gpus["GPU-0"] == watch.Gpu(50, 2.0, 60, 300.0, 1500, None, "")
    assert sample(10).gpus["GPU-0"] == watch.Gpu()
    for reasons, name in ((0x20, "thermal"), (0x44, "thermal"), (0x84, "power brake"),
                          (0x4, "power cap"), (0x1, ""), (None, "")):  # fmt: skip
        assert sample(10, gpu={"reasons": reasons}).gpus["GPU-0"].slowed_by == name


def test_rates_are_of_two_samples_and_of_what_both_have():
    before = {
        "t": 10.0, "gpus": {"GPU-0": {"nvlink_tx": 0, "nvlink_rx": 0}},
        "nics": {"a": [0, 0], "gone": [0, 0]}, "cpu": [10, 100],
    }  # fmt: skip
    totals = {"nvlink_tx": 10**9, "nvlink_rx": 2 * 10**9}
    node = sample(11.0, before, gpu=totals, nics={"a": [10**9, 0], "new": [9, 9]}, cpu=[11, 101])
    assert (node.gpus["GPU-0"].nvlink_gb_s, node.nics_gb_s, node.cpu_percent) == (
        (1.0, 2.0), (1.0, 0.0), 100.0,
    )  # fmt: skip
    same_time = sample(11.0, {**before, "cpu": [10, 101]}, cpu=[10, 101])
    assert (same_time.cpu_percent, same_time.nics_gb_s) == (None, None)
    first = sample(11.0, None, nics={"a": [1, 1]}, cpu=[1, 1])
    assert (first.cpu_percent, first.nics_gb_s) == (None, None)
    assert sample(11.0, {**before, "gpus": {}}, gpu=totals).gpus["GPU-0"].nvlink_gb_s is None


def test_a_rate_needs_time_both_totals_and_a_counter_that_did_not_fall():
    for then, now, seconds, expected in (
        ([0, 0], [10**9, 0], 1, (1.0, 0.0)), ([0, 0], [0, 10**9], 0.5, (0.0, 2.0)),
        ([0, 0], [0, 0], 0, None), ([0, 0], [0, 0], -1, None), ([None, 0], [1, 1], 1, None),
        ([0, 0], [1, None], 1, None), ([5, 0], [1, 1], 1, None), ([0, 5], [1, 1], 1, None),
        ([0, 0], [10**8, 10**8], 1, (0.1, 0.1)),
    ):  # fmt: skip
        assert watch._rates(then, now, seconds) == expected


def test_a_run_is_played_second_by_second(tmp_path):
    run = RunDirectory(tmp_path)
    path = run.job("j") / "telemetry-n.jsonl"
    path.parent.mkdir(parents=True)
    for t in (0.0, 0.5, 1.0, 1.5, 3.0):
        append_line(path, {"t": t, "gpus": {}})
    append_line(path, {"t": "late", "gpus": {}})
    append_line(path, {"t": 2.0})
    assert [f["n"].time for f in watch.frames_of_telemetry(run)] == [0.5, 1.5, 3.0]
    assert list(watch.frames_of_telemetry(RunDirectory(tmp_path / "none"))) == []


def test_of_a_record_the_means_are_shown():
    gpu = {
        "util": {"mean": 90.0}, "mem_mib": {"mean": 1024.0}, "nvlink_tx_gb_s": 5.0,
        "thermal_percent": 12.0, "power_cap_percent": 0.0,
    }  # fmt: skip
    summary = {"gpus": {"GPU-0": {**gpu, "nvlink_rx_gb_s": 1.0}, "GPU-1": gpu}, "cpu_percent": 7.0,
               "nics": {"a": {"tx_gb_s": 1.0, "rx_gb_s": 2.0},
                        "b": {"tx_gb_s": 3.0, "rx_gb_s": 4.0}}}  # fmt: skip
    node = watch._node_of_summary(summary, 5.0, "gemm")
    assert (node.time, node.activity, node.cpu_percent, node.nics_gb_s) == (
        5.0, "gemm (mean)", 7.0, (4.0, 6.0),
    )  # fmt: skip
    assert node.gpus["GPU-0"] == watch.Gpu(90.0, 1.0, None, None, None, (5.0, 1.0), "thermal 12 %")
    assert node.gpus["GPU-1"].nvlink_gb_s is None
    only_in = {"gpus": {"GPU-0": {"nvlink_rx_gb_s": 1.0}}}
    bare = watch._node_of_summary(only_in, 5.0, "gemm")
    assert (bare.gpus["GPU-0"], bare.nics_gb_s) == (watch.Gpu(), None)


def test_the_highest_of_two_figures_is_the_known_one_and_of_pairs_that_of_the_larger_sum():
    assert watch._higher(None, None) is None
    assert watch._higher(None, 3.0) == 3.0
    assert watch._higher(5.0, 3.0) == 5.0
    assert watch._higher((1.0, 5.0), (4.0, 1.0)) == (1.0, 5.0)


# --- what is shown


def text_of(node: watch.Node, *, ended: bool = False) -> list[list[str]]:
    return [[cell.plain for cell in row] for row in watch._rows("n0", node, ended=ended)]


def test_a_node_has_a_row_for_each_gpu_and_its_own_figures_in_the_first():
    gpus = {"GPU-0123456789": watch.Gpu(50, 2.0, 60, 300, 1500, (1, 2)),
            "GPU-1": watch.Gpu(slowed_by="thermal")}  # fmt: skip
    node = watch.Node(1.0, gpus, (3.0, 4.0), None, "gemm")
    assert text_of(node, ended=True) == [
        ["n0", "0", "█████·····  50", "2", "60", "300", "1500", "gemm, ended", "1.0/2.0",
         "3.0/4.0", "01234567"],
        ["n0", "1", "-", "-", "-", "-", "-", "thermal", "-", "", "1"],
    ]  # fmt: skip
    gpus["GPU-1"].slowed_by = ""
    assert [row[7] for row in text_of(node)] == ["gemm", ""]
    node.activity = watch.HIGHEST
    assert text_of(node, ended=True)[0][7] == ""


def test_a_node_without_gpus_shows_its_cpu():
    assert text_of(watch.Node(1.0, {}, None, 100.0, "gemm")) == [
        ["n0", "CPU", "██████████ 100", "", "", "", "", "gemm", "", "-", ""]
    ]  # fmt: skip


def test_load_has_three_colours_and_heat_is_red_from_85_c():
    for percent, colour in ((19, "dim"), (20, "yellow"), (79, "yellow"), (80, "green")):
        assert watch._bar(percent).spans[0].style == colour
    for temp, style in ((84.9, ""), (85, "red"), (None, "")):
        node = watch.Node(1.0, {"GPU-0": watch.Gpu(temp_c=temp)})
        (row,) = watch._rows("n0", node, ended=False)
        assert row[4].style == style


def test_a_node_whose_newest_sample_is_older_than_5_s_has_ended(tmp_path):
    frame = {"n0": watch.Node(100.0, {}, None, 5.0, "gemm"), "long": watch.Node(100.0, {})}
    progress = Progress(a_run(tmp_path))
    progress.refresh()
    for shown_with, now, ended in ((progress, 105.0, False), (progress, 105.1, True),
                                   (None, 999.0, False)):  # fmt: skip
        text = printed(watch.render(frame, shown_with, now), 120)
        assert ("gemm, ended" in text) is ended
        assert ("run r" in text) is (shown_with is not None)
        assert watch.HIGHEST not in text
        assert any(line.startswith("n0 ") for line in text.splitlines())
    assert "no telemetry yet" in printed(watch.render({}, None, 1.0), 120)


def test_columns_are_left_out_from_the_right_and_three_stay():
    assert watch._fitting_columns([], 77) == watch.COLUMNS  # 57 characters, and 2 between each
    assert watch._fitting_columns([], 76) == watch.COLUMNS[:10]
    assert watch._fitting_columns([], 1) == watch.COLUMNS[:3]


def test_where_it_is_no_terminal_lines_have_120_characters(tmp_path, capsys):
    run = a_run(tmp_path)
    path = run.job("node-worker0") / "telemetry-worker0.jsonl"
    path.rename(path.with_name(f"telemetry-{'w' * 50}.jsonl"))
    lines = watched(capsys, run.root, "--once").stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert not any("UUID" in line for line in lines)


# --- on a terminal


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of its own, and the pauses that were made."""
    out, pauses = io.StringIO(), list[float]()

    def console(**options: Any) -> Console:
        return Console(file=out, width=100, height=40, force_terminal=True)

    monkeypatch.setattr(watch, "Console", console)
    monkeypatch.setattr(watch.time, "sleep", pauses.append)
    return SimpleNamespace(out=out, pauses=pauses, console=console())


def test_a_run_is_followed_twice_a_second_until_its_verdict(tmp_path, monkeypatch, terminal):
    run = a_run(tmp_path)

    def pause(seconds: float) -> None:
        terminal.pauses.append(seconds)
        assert len(terminal.pauses) < 3
        if len(terminal.pauses) == 2:
            append_line(run.ledger, {"event": "end", "verdict": "REJECTED"})

    monkeypatch.setattr(watch.time, "sleep", pause)
    assert command.main(["watch", str(run.root)]) == 0
    assert terminal.pauses == [0.5, 0.5]
    assert "REJECTED" in terminal.out.getvalue()


def test_a_frame_that_is_asked_for_once_is_shown_once(tmp_path, terminal):
    assert command.main(["watch", str(a_run(tmp_path).root), "--once"]) == 0
    assert terminal.pauses == []
    assert "worker1" in terminal.out.getvalue()


def test_a_replay_pauses_as_the_run_did_over_its_speed(tmp_path, terminal):
    assert command.main(["watch", str(a_run(tmp_path).root), "--speed", "0.5"]) == 0
    assert terminal.pauses == [0.0, 2.0]


def test_a_speed_is_above_0(tmp_path, capsys):
    run = a_run(tmp_path).root
    assert watched(capsys, run, "--speed=0.5").returncode == 0
    for speed in ("0", "-1"):
        refused = watched(capsys, run, f"--speed={speed}")
        assert (refused.returncode, "--speed must be above 0" in refused.stderr) == (4, True)


def test_without_a_run_it_says_whether_there_is_none_yet(tmp_path, capsys, monkeypatch):
    assert f"{tmp_path} has no run.json" in watched(capsys, tmp_path).stderr
    monkeypatch.setattr(watch, "LATEST", tmp_path)
    assert "there is no run yet" in watched(capsys, tmp_path).stderr


def test_a_run_in_the_middle_shows_its_newest_and_an_ended_one_its_highest(tmp_path, capsys):
    run = a_run(tmp_path)
    assert watch.HIGHEST not in watched(capsys, run.root).stdout
    change(run.run_json, ended="now")
    shown = watched(capsys, run.root).stdout
    assert watch.HIGHEST in shown
    assert "5.0/1.0" in shown


@pytest.mark.parametrize(
    ("seen", "ended", "says"),
    [
        (["worker0"], False, ["no sample of worker1", "no sample of worker0 for 20 min"]),
        ([], False, ["no sample of worker0, worker1"]),
        (["worker0", "worker1"], False, ["no sample of worker0 for 20 min",
                                         "no sample of worker1 for 20 min"]),
        (["worker0", "worker1"], True, []),
        (["worker1"], True, ["no sample of worker0"]),
    ],
)  # fmt: skip
def test_a_node_of_the_run_without_samples_is_named(tmp_path, seen, ended, says):
    progress = Progress(a_run(tmp_path))
    progress.run = {"population": {"nodes": ["worker0", "worker1"]}}
    progress.run |= {"ended": "2026-11-20"} if ended else {}
    now = time.time()
    samples = {name: watch.Node(time=now - 1200.0) for name in seen}
    assert list(watch.silent_nodes(samples, progress, now)) == says
    assert list(watch.silent_nodes(samples, None, now)) == []
