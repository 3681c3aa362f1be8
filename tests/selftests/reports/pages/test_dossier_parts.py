"""The parts of a dossier: which GPU, which rows, what the first lines say, what is left out."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import append_line, write_json
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from reports.evidence.run_files import CommandError
from reports.pages import dossier
from tests.selftests import support
from tests.selftests.plain_records import plain_record
from tests.selftests.verdict.made import row_on

pytestmark = pytest.mark.cpu

Json = dict[str, Any]
GPU = {"index": 0, "uuid": "GPU-0"}


def row(subject: str = "n0", outcome: str = "FAIL", **more: Any) -> Json:
    verdict = row_on(subject, outcome, value=541.0, unit="TFLOPS", limit=">= 605", margin=-0.1)
    return {**verdict.to_json(), **more}


def run_of(tmp_path: Path, *rows: Json, **more: Any) -> tuple[Path, Json]:
    """A run directory with nothing but run.json and verdict."""
    directory = RunDirectory(tmp_path / "run")
    directory.records.mkdir(parents=True, exist_ok=True)
    write_json(directory.run_json, {"id": "r1", "nonce": "secret-nonce", "tier": "standard",
                                    "ended": "2026-11-20T14:41:00+00:00", **more})  # fmt: skip
    return directory.root, {
        "verdict": "REJECTED", "scope": {"nodes": ["n0", "n1"]}, "criteria": list(rows)
    }  # fmt: skip


# --- which part


def record_of(workload: str, *ranks: Json) -> list[Record]:
    return [plain_record(f"{workload}@n0.json", *ranks)]


def test_the_inventory_says_which_gpus_there_are():
    listed = record_of(
        "inventory", {"node": "n0", "facts": {"gpus": [{"uuid": "A"}, {"uuid": "B"}]}}
    )
    assert dossier._gpus(listed, "n0") == [{"index": 0, "uuid": "A"}, {"index": 1, "uuid": "B"}]


def test_without_an_inventory_the_devices_of_all_ranks_are_the_gpus():
    bare = record_of("inventory", {"node": "n0", "facts": {}})
    ranks = record_of(
        "gemm", {"node": "n0", "local_rank": 1, "device": {"uuid": "B", "name": "H200"}},
        {"node": "n0", "local_rank": 0, "device": {"uuid": "A"}},
        {"node": "n1", "local_rank": 0, "device": {"uuid": "C"}},
        {"node": "n0", "local_rank": 2, "device": {"name": "cpu"}},
    )  # fmt: skip
    other = record_of(
        "memory", {"node": "n0", "local_rank": 1, "device": {"uuid": "B", "pci": "p"}}
    )
    assert dossier._gpus([*bare, *ranks, *other], "n0") == [
        {"index": 0, "uuid": "A"}, {"index": 1, "uuid": "B", "name": "H200", "pci": "p"}
    ]  # fmt: skip


def test_a_gpu_is_chosen_by_index_or_uuid():
    gpus = [GPU, {"index": 1, "uuid": "GPU-1"}]
    assert dossier._chosen(gpus, None, "n0") is None
    assert dossier._chosen(gpus, "1", "n0") == gpus[1]
    assert dossier._chosen(gpus, "GPU-0", "n0") == gpus[0]
    for known, said in ((gpus, r"n0 has 0 \(GPU-0\), 1 \(GPU-1\)"), ([], "no GPU that was")):
        with pytest.raises(CommandError, match=said):
            dossier._chosen(known, "7", "n0")


# --- which rows

ON_GPU_0 = {"node": "n0", "gpu": 0, "uuid": "GPU-0"}


def test_a_row_concerns_the_node_that_it_names():
    for v, concerns in (
        (row(), True), (row("n1"), False), (row(outcome="PASS"), False),
        (row("n1", worst=ON_GPU_0), True), (row("n1", cause_nodes=["n0"]), True),
        (row("n0--n1"), True), (row("n1--n0", worst={"node": None}), True),
        (row("n0--n1", worst={"node": "n1"}), False), (row("cluster"), False),
        (row(outcome="NOT_MEASURED"), True), (row("n0--n1", "NOT_MEASURED"), False),
        (row("n0--n1", "NOT_MEASURED", cause_nodes=["n0"]), True), (row("n0", "WAIVED"), False),
    ):  # fmt: skip
        assert dossier._concerns(v, "n0", None) is concerns, v


def test_a_row_concerns_a_gpu_unless_it_names_another():
    for worst, concerns in (
        (ON_GPU_0, True), ({"node": "n0", "gpu": 1, "uuid": "GPU-1"}, False),
        ({"node": "n0", "uuid": "GPU-1"}, False), ({"node": "n0", "uuid": "GPU-0"}, True),
        ({"node": "n0", "gpu": 2}, False), (None, True), ({"node": "n0", "part": "mlx5_0"}, True),
    ):  # fmt: skip
        assert dossier._concerns(row(worst=worst), "n0", GPU) is concerns, worst
        assert dossier._concerns(row(worst=worst), "n0", None) is True
    assert dossier._concerns(row("n1"), "n0", GPU) is False
    of_two = row(
        "cluster", worst={"node": "n1", "gpu": 7, "uuid": "GPU-7"}, cause_nodes=["n0", "n1"]
    )
    assert dossier._concerns(of_two, "n0", GPU) is True


def test_a_row_that_names_a_part_comes_before_one_that_names_none():
    for worst, without in (
        (None, True), ({"part": "all GPUs"}, True), ({"part": "all nodes"}, True),
        ({"part": "mlx5_0"}, False), ({"uuid": "GPU-0"}, False),
        ({"uuid": "GPU-0", "part": "all GPUs"}, False),
    ):  # fmt: skip
        assert dossier._without_part(row(worst=worst)) is without, worst


def test_failures_of_the_node_itself_come_first(tmp_path, limits):
    rows = [
        row("n0", "NOT_MEASURED", criterion="a"), row("n0--n1", criterion="b"),
        row(criterion="c"), row(criterion="d", worst=ON_GPU_0), row("n1", criterion="e"),
    ]  # fmt: skip
    made = dossier.of(*run_of(tmp_path, *rows), limits, "n0")
    assert [r["criterion"] for r in made["rows"]] == ["d", "c", "b", "a"]


def test_a_dossier_has_what_passed_and_was_said_on_the_node(tmp_path, limits):
    rows = [row(outcome="PASS", criterion="a"), row("n1", "PASS", criterion="b"), row()]
    source, verdict = run_of(tmp_path, *rows, commands=["pytest with secret-nonce"])
    directory = RunDirectory(source)
    directory.job("j").mkdir(parents=True)
    for node in ("n0", "n1"):
        append_line(directory.missing, {"placement": node, "kind": "hung"})
    for k in range(21):
        append_line(directory.job("j") / "rank0.jsonl", {"event": "error", "node": "n0", "rank": k})
    made = dossier.of(source, verdict, limits, "n0", audience="customer")
    assert [g["criterion"] for g in made["good"]] == ["a"]
    assert made["missing"] == [{"placement": "n0", "kind": "hung"}]
    assert [e["rank"] for e in made["errors"]] == list(range(20)), "twenty are enough"
    assert made["bug_report"] is None
    assert made["gpu"] is None
    assert made["run"]["commands"] == ["pytest with [removed]"]
    nobody = {**verdict, "scope": {"nodes": None}}
    for given, known in ((verdict, "n0, n1"), (nobody, "")):
        with pytest.raises(CommandError, match=f"the run has {known}$"):
            dossier.of(source, given, limits, "n7")


# --- the first lines


def test_the_first_line_names_part_counts_and_run():
    red = [row(), row(), row("n0", "NOT_MEASURED", worst=ON_GPU_0)]
    run = {"id": "r1", "created": "2026-11-20T14:00", "ended": "2026-11-21T14:00"}
    first, *others = dossier._first_lines("n0", None, red, run)
    assert first == "n0: 2 criteria failed, 1 not measured (run r1, 2026-11-21)"
    assert [line.partition(":")[0] for line in others] == ["FAIL", "FAIL", "NOT MEASURED"]
    assert "bf16 rate: n0 gemm.bf16: 541 TFLOPS, limit >= 605" in others[0]
    assert [line.endswith("[GPU-0]") for line in others] == [False, False, True]
    gpu = {**GPU, "name": "H200", "serial": "165", "pci": "0a:00"}
    (line,) = dossier._first_lines("n0", gpu, [], {"created": "2026-11-20T14:00"})
    assert line.startswith("n0, GPU 0 (H200, GPU-0, serial 165, PCI 0a:00): 0 criteria failed")
    assert line.endswith("2026-11-20)")
    assert dossier._first_lines("n0", None, [], {})[0].endswith(", )")


def test_keys_of_another_version_do_not_cost_the_first_lines():
    assert len(dossier._first_lines("n0", None, [row(id="G1")], {})) == 2


def test_twelve_lines_come_first_and_the_others_are_counted():
    for count, last in ((11, "FAIL: "), (12, "and 2 more rows, below")):
        lines = dossier._first_lines("n0", None, [row()] * count, {})
        assert len(lines) == 12
        assert lines[-1].startswith(last)


# --- the files


def test_what_fits_is_left_whole_and_what_does_not_loses_its_least_important_parts(
    tmp_path, limits, monkeypatch
):
    report = tmp_path / "report.log"
    report.write_text("NVRM: Xid 79\n")
    source, verdict = run_of(tmp_path, row())
    made = dossier.of(source, verdict, limits, "n0", bug_report=report)
    page, text = dossier.fitted(made)
    size = len(page.encode()) + len(text.encode())
    assert json.loads(text) == made
    assert made["left_out"] == []
    monkeypatch.setattr(dossier, "MAX_BYTES", size)
    dossier.fitted(made)
    assert made["left_out"] == []
    monkeypatch.setattr(dossier, "MAX_BYTES", size - 1)
    dossier.fitted(made)
    assert made["left_out"]
    monkeypatch.setattr(dossier, "MAX_BYTES", 10)
    dossier.fitted(made)
    assert made["left_out"][-1] == "lines of the bug report"
    assert made["bug_report"]["lines"] == []
    without = dossier.of(source, verdict, limits, "n0")
    dossier.fitted(without)
    assert len(without["left_out"]) == 8


def test_both_files_together_are_at_most_five_megabytes(tmp_path, limits):
    made = dossier.of(*run_of(tmp_path, row()), limits, "n0")
    for more, fits in ((0, True), (1, False)):
        made["telemetry"]["points"], made["left_out"] = {"job": [""]}, []
        page, text = dossier.fitted(made)
        left = 5_000_000 - len(page.encode()) - len(text.encode())
        made["telemetry"]["points"] = {"job": ["x" * (left + more)]}
        dossier.fitted(made)
        assert made["left_out"] == ([] if fits else ["telemetry over time"])


def test_the_files_lie_beside_the_run_or_where_it_is_said(tmp_path, limits, capsys):
    source, verdict = run_of(tmp_path, row())
    directory = RunDirectory(source)
    rank = {"node": "n0", "facts": {"gpus": [GPU]}, "device": {}, "measurements": []}
    inventory = record_of("inventory", rank)
    for record in inventory:
        support.save(replace(record, run_id="r1", nonce="secret-nonce"), directory)
    for gpu, out, name in ((None, None, "dossier-r1-n0"), ("0", tmp_path / "out",
                                                          "dossier-r1-n0-gpu0")):  # fmt: skip
        options = argparse.Namespace(
            node="n0", gpu=gpu, bug_report=None, out=out, audience="vendor",
            without_host_names=False,
        )  # fmt: skip
        assert dossier.write(source, verdict, limits, options) == 0
        folder = out or tmp_path
        assert {p.name for p in folder.glob("dossier-*")} == {f"{name}.html", f"{name}.json"}
        assert str(folder / name) in capsys.readouterr().out


def test_the_command_needs_a_node():
    commands = argparse.ArgumentParser().add_subparsers()
    parser = dossier.add_to(commands)
    options = parser.parse_args(["RUN", "--node", "n0"])
    assert (options.run, options.node, options.gpu, options.out) == (Path("RUN"), "n0", None, None)
