"""`make bench-gpu`: what differs from one start to the next is neither met nor missed by chance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import support
from tests.tools import bench_gpu
from tests.tools.figures_in_turns import Figure

pytestmark = pytest.mark.cpu

RECORDED = [
    (session, entry)
    for session in ("bench-h200", "bench-h200-again")
    for entry in json.loads((support.DATA / f"{session}.json").read_text())["figures"]
]
"""Starts of two sessions; in the second a start of reduce-scatter of 4 GiB has one of two rates."""
SERIES = [pytest.param(entry, id=f"{session} {entry['name']}") for session, entry in RECORDED]


def _of(entry: dict[str, Any]) -> Figure:
    return Figure(unit="GB/s", part=str(entry["name"]).split()[0], **entry)


def _drawn(starts: list[float], goal: float, shift: float, chance: random.Random) -> Figure:
    """Starts of one program held against each other, one side SHIFT higher, until it is decided."""
    figure = Figure("drawn", "GB/s", goal, "drawn")
    while len(figure.ours) < 3 or (figure.open and len(figure.ours) < bench_gpu.MOST_ROUNDS):
        figure.ours.append((1 + shift) * chance.choice(starts))
        figure.theirs.append(chance.choice(starts))
    return figure


@pytest.mark.parametrize("entry", SERIES)
def test_a_program_is_not_found_to_differ_from_itself(entry: dict[str, Any]) -> None:
    chance, starts, goal = random.Random(1), entry["theirs"], entry["goal"]
    figures = [_drawn(starts, goal, 0, chance) for _ in range(400)]
    missed = sum(figure.met is False for figure in figures)
    assert missed <= 12, "the medians of three starts alone: up to 230 of 400"


@pytest.mark.parametrize("entry", SERIES)
def test_a_program_that_is_off_by_three_times_the_goal_is_not_called_met(
    entry: dict[str, Any],
) -> None:
    chance, starts, goal = random.Random(2), entry["theirs"], entry["goal"]
    figures = [_drawn(starts, goal, 3 * goal, chance) for _ in range(400)]
    assert sum(figure.met is True for figure in figures) <= 12


def test_the_recorded_rates_agree_with_those_of_nccl_tests() -> None:
    figures = [_of(entry) for _, entry in RECORDED]
    missed = {f.name: f.difference for f in figures if f.met is False}
    decided = [f for f in figures if f.met]
    assert (missed, len(decided)) == ({}, 32)


@pytest.mark.parametrize(
    ("ours", "theirs", "slack", "met"),
    [
        ([100, 100, 100], [100.5, 100.5, 100.5], 0, True),
        ([100, 100, 100], [102, 102, 102], 0, False),
        ([100, 110, 90], [100, 109, 91], 0, None),
        ([100, 110, 90], [300, 310, 290], 0, False),
        ([4.6, 4.6, 4.6], [5.2, 5.2, 5.2], 1, True),
        ([100], [100.5], 0, True),
        ([100, 100], [], 0, None),
    ],
)
def test_met_missed_and_open(
    ours: list[float], theirs: list[float], slack: float, met: bool | None
) -> None:
    figure = Figure("x", "GB/s", 0.01, "x", slack=slack, ours=ours, theirs=theirs)
    assert figure.met is met
    assert figure.open is (met is None and bool(theirs))


def test_only_what_is_open_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[list[str]] = []
    steady, changing = [300.0, 300.0], [300.0, 320.0, 280.0]

    def collectives(figures: dict[str, Figure], gpus: int, *, operations: Iterable[str]) -> None:
        measured.append(list(operations))
        for name in operations:
            figure = figures.setdefault(name, Figure(name, "GB/s", 0.01, name))
            rates = changing if name == "alltoall" else steady
            figure.ours.append(rates[len(figure.ours) % len(rates)])
            figure.theirs.append(300.0)

    monkeypatch.setattr(bench_gpu, "collectives", collectives)
    monkeypatch.setattr(bench_gpu, "_run", lambda command: "GPU 0\nGPU 1\n")
    out = tmp_path / "bench.json"
    bench_gpu.main(["--parts", "collectives", "--most-rounds", "5", "--json", str(out)])
    assert measured == [list(bench_gpu.TOOLS)] * 3 + [["alltoall"]] * 2
    saved = {f["name"]: f for f in json.loads(out.read_text())["figures"]}
    assert (saved["alltoall"]["open"], saved["alltoall"]["met"]) == (True, None)
    assert (saved["allreduce"]["open"], saved["allreduce"]["met"]) == (False, True)
    assert "open" in capsys.readouterr().out


def test_another_checkout_takes_turns_with_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path | None] = []

    def run(*arguments: Any, checkout: Path | None, **more: Any) -> list[dict[str, Any]]:
        ran.append(checkout)
        rate = 400.0 if checkout else 404.0
        metrics = [{"metric": name, "samples": [rate, rate]} for name in ("bf16", "copy", "write")]
        return [{"measurements": metrics}] * 2

    monkeypatch.setattr(bench_gpu, "run_with_torchrun", run)
    monkeypatch.setattr(bench_gpu, "_run", lambda command: "GPU 0\nGPU 1\n")
    out, old = tmp_path / "bench.json", tmp_path / "old"
    bench_gpu.main(["--before", str(old), "--json", str(out)])
    assert ran == [None, old, old, None, None, old]
    figures = json.loads(out.read_text())["figures"]
    assert [(f["ours"], f["theirs"], f["met"]) for f in figures] == [
        ([404] * 3, [400] * 3, False)
    ] * 3
