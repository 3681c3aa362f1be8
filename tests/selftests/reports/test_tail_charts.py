"""The chart of what comes and goes: it shows what failed, all of it, beside the right others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from reports.charts import Chart
from reports.tail_charts import tail_chart
from tests.selftests import support
from tests.selftests.mutations import Json

pytestmark = pytest.mark.cpu

RUN, NODE = "h200-1x4", "node0"


def charted(
    folder: Path, key: str, change: Callable[[int, Json], None], telemetry: str = ""
) -> Chart:
    """The chart of a criterion's row, after one metric's measurements were changed."""
    criterion = loader.load(support.SHIPPED).criteria[key]
    shutil.copytree(support.DATA / RUN, folder / "run")
    path = folder / "run" / "records" / f"{criterion.workload}@{NODE}.json"
    record = json.loads(path.read_text())
    for number, rank in enumerate(record["ranks"]):
        for m in rank["measurements"]:
            if m["metric"] == criterion.metric:
                change(number, m)
    path.write_text(json.dumps(record))
    _, verdict = support.judged(folder / "run", folder / "judged")
    (row,) = (v for v in verdict["criteria"] if v["criterion"] == key)
    jobs = folder / "judged" / "jobs" / criterion.workload
    jobs.mkdir(parents=True)
    (jobs / f"telemetry-{NODE}.jsonl").write_text(telemetry)
    chart = tail_chart(RunDirectory(folder / "judged"), row, criterion)
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
