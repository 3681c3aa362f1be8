"""The chart of what comes and goes: it shows what failed, all of it, beside the right others."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.thresholds import loader
from fixtures.thresholds.kinds import KINDS, SPANS
from fixtures.verdict.tails import COMES_AND_GOES
from reports.plots import tail_charts
from reports.plots.charts import Chart
from reports.plots.drawing import PALE_BLUE, RED
from reports.plots.tail_charts import tail_chart
from tests.selftests import support
from tests.selftests.mutations import Json
from tests.selftests.plain_records import reader_of

pytestmark = pytest.mark.cpu

RUN, NODE = "h200-1x4", "node0"


def kind_of(over: str = "slowest", per: str = "node") -> SimpleNamespace:
    """A criterion on the median of a rate."""
    return SimpleNamespace(kind=KINDS["median", over], span=SPANS[per], unit="GB/s")


def charted(
    folder: Path, key: str, change: Callable[[int, Json], None], telemetry: str = ""
) -> Chart:
    """The chart of a criterion's row, after one metric's measurements were changed."""
    criterion = loader.load(support.SHIPPED).criteria[key]
    shutil.copytree(support.DATA / RUN, folder / "run")
    with support.edited(folder / "run" / "records" / f"{criterion.workload}@{NODE}.json") as record:
        for number, rank in enumerate(record["ranks"]):
            for m in rank["measurements"]:
                if m["metric"] == criterion.metric:
                    change(number, m)
    _, verdict = support.judged(folder / "run", folder / "judged")
    (row,) = (v for v in verdict["criteria"] if v["criterion"] == key)
    jobs = folder / "judged" / "jobs" / criterion.workload
    jobs.mkdir(parents=True)
    (jobs / f"telemetry-{NODE}.jsonl").write_text(telemetry)
    chart = tail_chart(RunReader.of(RunDirectory(folder / "judged")), row, criterion)
    assert chart is not None, row
    return chart


def test_a_link_is_drawn_beside_the_other_links(tmp_path):
    def one_link(rank: int, m: Json) -> None:
        if (rank, m["at"]["to"]) == (1, 0):
            m["samples"] = [x * (0.5 if k % 7 == 3 else 1) for k, x in enumerate(m["samples"])]
        if (rank, m["at"]["to"]) == (2, 3):  # another is less steady, and within what is allowed
            m["samples"] = [m["samples"][0] * 0.7, *m["samples"][1:]]

    chart = charted(tmp_path, "p2p.write", one_link)
    assert "28 samples over time (red) beside 11 other links of the node" in chart.description
    assert ": 197." in chart.description


def test_all_rounds_of_a_gpu_are_drawn(tmp_path):
    def third_round(rank: int, m: Json) -> None:
        clean = list(m["samples"])
        burst = [x * 0.8 if 3 <= k < 8 else x for k, x in enumerate(clean)]
        m["rounds"] = [clean, burst if rank == 1 else clean]

    chart = charted(tmp_path, "memory.copy", third_round)
    assert "78 samples over time (red) beside 3 other GPUs of the node" in chart.description
    assert ": 3440 to 4301 GB/s" in chart.description


def test_of_ranks_that_are_judged_together_their_mean_is_drawn(tmp_path):
    def every_fifth(rank: int, m: Json) -> None:
        if rank == 3:
            m["samples"] = [x * (0.3 if k % 5 == 4 else 1) for k, x in enumerate(m["samples"])]

    chart = charted(tmp_path, "allreduce.node.1GiB", every_fifth)
    assert "of all ranks together, beside 4 ranks: " in chart.description


@pytest.mark.parametrize(
    "line", ['{"t": 1, "gpus": {"UUID": null}}', '{"t": 1, "gpus": {"UUID": "x"}}', "[1]", "{",
             '{"t": "x", "gpus": {"UUID": {"sm_mhz": "x"}}}', '{"t": 1, "gpus": null}'],
)  # fmt: skip
def test_telemetry_of_another_form_is_left_out(tmp_path, line):
    record = json.loads((support.DATA / RUN / "records" / f"memory@{NODE}.json").read_text())[
        "ranks"
    ][0]
    good = {"t": record["start"] + 1, "gpus": {record["device"]["uuid"]: {"sm_mhz": 1980}}}
    odd = line.replace('"t": 1', f'"t": {record["start"] + 2}')
    odd = odd.replace("UUID", record["device"]["uuid"])

    def burst(rank: int, m: Json) -> None:
        if rank == 0:
            m["samples"] = [x * (0.8 if 3 <= k < 8 else 1) for k, x in enumerate(m["samples"])]

    chart = charted(tmp_path, "memory.copy", burst, f"{json.dumps(good)}\n{odd}\n")
    assert "; below it SM MHz: " in chart.description


# --- parts of it


def test_only_a_failure_that_comes_and_goes_has_a_chart(tmp_path):
    reader = reader_of(RunDirectory(tmp_path))
    assert tail_chart(reader, {"reason": "too slow"}, kind_of()) is None
    assert tail_chart(reader, {"reason": COMES_AND_GOES}, None) is None


def test_of_a_node_its_own_points_are_drawn_and_else_those_of_all(monkeypatch):
    asked: list[list[str]] = []
    reader: Any = SimpleNamespace(of_row=lambda _: SimpleNamespace(nodes=["a", "b"]))
    monkeypatch.setattr(
        tail_charts, "points_of", lambda criterion, record, nodes, subject: asked.append(nodes)
    )
    row = {"reason": COMES_AND_GOES, "record": "x", "subject": "a", "worst": {"node": "a"}}
    for per in ("node", "pair"):
        assert tail_chart(reader, row, kind_of(per=per)) is None
    assert asked == [["a"], ["a", "b"]]


def test_what_failed_is_the_named_device_or_part_else_the_worst(monkeypatch):
    monkeypatch.setattr(tail_charts, "whole_series", lambda _, points: [points[0][1].series])

    def point(name: str, node: str, uuid: str, ratio: float, part: str = "p"):
        series = SimpleNamespace(name=name, ratio=ratio)
        rank = SimpleNamespace(node=node, device={"uuid": uuid})
        return rank, SimpleNamespace(at={"part": part}, series=series)

    points = [
        point("worst", "b", "u0", 0.1), point("other", "a", "u0", 0.3, "q"),
        point("named", "a", "u1", 0.5),
    ]  # fmt: skip
    criterion = kind_of()
    for worst, name in (
        ({"node": "a", "uuid": "u1"}, "named"), ({"node": "a"}, "other"),
        ({"node": "a", "part": "p"}, "named"), ({"node": "c"}, "worst"), ({}, "worst"),
    ):  # fmt: skip
        red, others = tail_charts._lines(criterion, points, worst)
        assert red.name == name
        assert name not in [s.name for s in others]
        assert len(others) == 2


def test_telemetry_is_of_the_gpu_while_it_was_measured_and_not_of_a_huge_file(tmp_path):
    directory = RunDirectory(tmp_path)
    path = directory.job("j") / "telemetry-a.jsonl"
    path.parent.mkdir(parents=True)
    lines = [{"t": t, "gpus": {"u": {"power_w": t}}} for t in (9, 12, 10, 13)]
    lines += [{"t": 11, "gpus": {"other": {}}}, {"t": 11, "gpus": {"u": 5}}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "torn {\n")
    spans = [SimpleNamespace(start=10, end=11), SimpleNamespace(start=10.5, end=12)]
    points = [(span, None) for span in spans]
    found = tail_charts._telemetry(directory, "a", "u", points)
    assert found == [(10.0, {"power_w": 10}), (12.0, {"power_w": 12})]
    os.truncate(path, 64_000_001)
    assert tail_charts._telemetry(directory, "a", "u", points) == []


def test_the_words_say_what_stands_beside_it():
    others = [SimpleNamespace()] * 15
    for over, per, count, words in (
        ("slowest", "node", 0, "of the only GPU"), ("links", "node", 0, "of the only link"),
        ("slowest", "node", 15, "beside 15 other GPUs of the node"),
        ("links", "pair", 1, "beside 1 other link"),
        ("slowest", "node", 16, "beside 15 of 16 other GPUs of the node"),
        ("ranks", "node", 2, "of all ranks together, beside 2 ranks"),
    ):  # fmt: skip
        shown = tail_charts._beside(kind_of(over, per), (others * 2)[:count])
        assert shown == words


def test_what_failed_is_red_and_samples_without_their_times_are_counted():
    def series(*ended: float):
        return SimpleNamespace(samples=[1.0, 2.0], ended=list(ended))

    named, criterion = series(5.0, 6.0), kind_of()
    row = {"criterion": "x", "subject": "a"}

    def drawn(*others) -> str:
        return tail_charts._draw(row, criterion, named, others, [(5.5, {"power_w": 9.0})])

    timed = drawn(series(5.0, 6.0), series(5.0, 6.0))
    assert timed.svg.count(RED) < timed.svg.count(PALE_BLUE)
    assert "below it W" in timed.description
    assert "1 to 2 GB/s" in timed.description
    for other in (series(), series(5.0)):
        assert "below it" not in drawn(other).description
