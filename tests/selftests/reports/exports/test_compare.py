"""Two runs side by side: what changed, by how much, and whether that is worse."""

# Length: every table of two runs, a few lines each.

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.model import Measurement, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome, Verdict
from reports import __main__ as command
from reports.evidence.run_files import read_verdict
from reports.exports import compare
from reports.exports.compare import Change
from tests.selftests import derive_runs, support
from tests.selftests.reports.pages.test_page import measured
from tests.selftests.reports.test_exports import both, written

pytestmark = pytest.mark.cpu

Json = dict[str, Any]


# --- recorded runs


@pytest.fixture(scope="module")
def limits():
    return loader.load(support.SHIPPED)


def test_the_gpu_that_became_slower_comes_first(tmp_path, limits, capsys):
    source = support.DATA / "h200-2x2"
    device = derive_runs.derive(source, tmp_path / "after", "slow-gpu").device
    found = compare.changes(RunDirectory(source), RunDirectory(tmp_path / "after"), limits)
    first, *others = found
    assert (first.criterion, first.device) == ("gemm.fp32", f"{device[0]} gpu{device[1]}")
    assert first.drift == pytest.approx(-0.9)
    assert first.significant
    assert first.worse
    assert others
    assert not any(change.significant for change in others)


def test_what_differs_on_shared_cores_is_no_drift(limits):
    sigma, _ = compare._sigma_and_direction("gemm.bf16", limits, "cpu")
    assert sigma == limits.spread["gemm"].for_model("cpu").run_sigma > 0.1
    assert compare._sigma_and_direction("gemm.bf16", limits, "H200 SXM")[0] < 0.02


def test_a_lower_latency_is_better(limits):
    made = compare._sigma_and_direction("allreduce.node.latency", limits, "H200 SXM")
    faster = compare.Change("allreduce.node.latency", "w gpu0", "us", 50.0, 25.0, *made)
    assert faster.significant
    assert not faster.worse


def test_twice_the_gpus_are_held_against_twice_the_tokens():
    def of(nodes: int, tokens: float) -> dict:
        row = {"criterion": "training.tokens", "subject": "cluster", "unit": "tokens/s",
               "value": tokens, "margin": None}  # fmt: skip
        return {"scope": {"nodes": list(range(nodes)), "gpus_per_node": 8}, "criteria": [row]}

    (row,) = compare.side_by_side(of(1, 10_000.0), of(2, 18_400.0))
    assert row["efficiency"] == pytest.approx(0.92)


def test_compare_prints_both_and_says_by_its_status_what_became_of_it(
    tmp_path, monkeypatch, capsys
):
    roots = []
    for variant in ("unchanged", "slow-gpu"):
        root = tmp_path / variant
        derive_runs.derive(support.DATA / "h200-2x2", root, variant)
        verdict, _ = both(written(tmp_path / f"of-{variant}"))
        (root / "verdict.json").write_text(json.dumps(verdict))
        roots.append(str(root))
    assert command.main(["compare", roots[0], roots[0]]) == 0
    assert "is not confirmed here: thresholds.yaml" in capsys.readouterr().out
    monkeypatch.setattr(command, "confirmed_verdict", lambda source, *_: read_verdict(source))
    assert command.main(["compare", roots[0], roots[0]]) == 0
    assert "0 changed significantly" in capsys.readouterr().out
    assert command.main(["compare", *roots]) == 1
    out = capsys.readouterr().out
    assert "gemm.fp32" in out
    assert "-90.00 %" in out
    assert "worse" in out


def verdict_of(values: dict[str, float]) -> dict[str, Any]:
    rows: list[Verdict] = [
        measured(key, "worker0", Outcome.PASS, value) for key, value in values.items()
    ]
    return {"criteria": [v.to_json() for v in rows],
            "scope": {"nodes": ["worker0"], "gpus_per_node": 8}}  # fmt: skip


def test_compare_puts_the_largest_change_first():
    before = verdict_of({"gemm.bf16": 600.0, "gemm.fp16": 600.0, "gemm.tf32": 300.0})
    after = verdict_of({"gemm.bf16": 606.0, "gemm.fp16": 300.0, "gemm.tf32": 450.0})
    rows = compare.side_by_side(before, after)
    assert [row["criterion"] for row in rows] == ["gemm.fp16", "gemm.tf32", "gemm.bf16"]


# --- one change


def change(
    after: float, *, before: float = 100.0, sigma: float = 0.01, worse_if: str = "lower"
) -> Change:
    return Change("gemm.bf16", "n0 gpu0", "TFLOPS", before, after, sigma, worse_if)


def test_three_standard_deviations_of_a_difference_are_significant():
    """sqrt(2) x 1 % x 3 = 4.24 %."""
    for after, significant in ((104.23, False), (104.25, True), (95.77, False), (95.75, True)):
        assert change(after).significant is significant, after
    assert change(110.0).drift == pytest.approx(0.1)
    assert change(90.0).z == pytest.approx(0.1 / 0.0141421, rel=1e-4)
    assert change(1.0, before=0.0).drift == math.inf


def test_worse_is_the_direction_in_which_a_criterion_fails():
    for after, worse_if, worse in (
        (90.0, "lower", True), (110.0, "lower", False), (100.0, "lower", False),
        (110.0, "higher", True), (90.0, "higher", False), (90.0, "", False), (110.0, "", False),
        (250.0, "lower", False),
    ):  # fmt: skip
        assert change(after, worse_if=worse_if).worse is worse, (after, worse_if)


def test_sigma_and_direction_are_those_of_the_criterion(limits):
    assert compare._sigma_and_direction("memory.errors", limits, "H200 SXM") == (0.01, "higher")
    bf16 = limits.spread["gemm"].for_model("H200 SXM").run_sigma
    assert compare._sigma_and_direction("gemm.bf16", limits, "H200 SXM") == (bf16, "lower")


# --- the values of every device


def run_dir(root: Path, *records: Record, criteria: list[Json] | None = None) -> RunDirectory:
    directory = support.run_directory(
        root, id=support.RUN_ID, nonce=support.NONCE, origin="cluster",
        population={"gpu_model": "H200 SXM"},
    )  # fmt: skip
    for record in records:
        support.save(record, directory)
    if criteria is not None:
        directory.verdict.write_text(json.dumps(of(criteria)))
    return directory


def of(criteria: list[Json], nodes: int = 1, gpus: int = 8, **scope: Any) -> Json:
    return {"schema": 2, "run_id": "r", "verdict": "ACCEPTED", "criteria": criteria,
            "scope": {"nodes": [f"n{k}" for k in range(nodes)], "gpus_per_node": gpus,
                      **scope}}  # fmt: skip


def row(criterion: str, value: Any, **more: Any) -> Json:
    return {"criterion": criterion, "subject": "n0", "unit": "TFLOPS", "value": value,
            "margin": 0.1, "outcome": "PASS", **more}  # fmt: skip


def pair(rate: float, *, nodes: int = 2) -> Record:
    ranks = [support.rank(k, f"n{k}", support.busbw(rate, size=2**28), gpus=1)
             for k in range(nodes)]  # fmt: skip
    return support.record(*ranks, workload="allreduce", placement="--".join(r.node for r in ranks))


def test_each_device_has_the_value_of_its_newest_record(tmp_path, limits):
    other_unit = Measurement(metric="fp8", unit="TOPS", samples=[1.0])
    empty = Measurement(metric="fp16", unit="TFLOPS", value=1.0)
    ranks = [support.rank(k, "n0", support.bf16([600.0 + k] * 5), other_unit, empty)
             for k in range(2)]  # fmt: skip
    part = Measurement(metric="write", unit="GB/s", samples=[5.0], at={"part": "disk0"})
    files = support.record(support.rank(0, "n0", part), workload="filesystem", placement="n0")
    directory = run_dir(tmp_path / "run", support.record(*ranks), files, pair(90.0))
    found = compare._device_values(directory, limits)
    assert found["gemm.bf16", "n0 gpu0"] == (600.0, "TFLOPS")
    assert found["gemm.bf16", "n0 gpu1"] == (601.0, "TFLOPS")
    assert {key for key, _ in found if key.startswith("gemm")} == {"gemm.bf16"}
    assert {device for key, device in found if key.startswith("filesystem")} <= {"n0 disk0"}
    per = {limits.criteria[key].per for key, _ in found if key.startswith("allreduce")}
    assert "pair" in per
    assert "node" not in per
    assert {limits.criteria[key].statistic for key, _ in found} == {"median"}


def test_a_device_is_its_part_or_its_gpu():
    rank = support.rank(1, "n0")
    record = support.record(rank)
    named = Measurement(metric="m", unit="us", at={"part": "mlx5_0"})
    assert compare._device_name(record, rank, support.bf16()) == "n0 gpu1"
    assert compare._device_name(record, rank, named) == "n0 mlx5_0"


def test_changes_are_of_what_both_runs_measured_the_most_significant_first(tmp_path, limits):
    before = run_dir(tmp_path / "a", support.node_record(600.0, 650.0, 640.0, node="n0"))
    after = run_dir(tmp_path / "b", support.node_record(597.0, 500.0, 642.0, 9.0, node="n0"))
    found = compare.changes(before, after, limits)
    assert [(c.device, c.before, c.after, c.unit, c.worse_if) for c in found] == [
        ("n0 gpu1", 650.0, 500.0, "TFLOPS", "lower"), ("n0 gpu0", 600.0, 597.0, "TFLOPS", "lower"),
        ("n0 gpu2", 640.0, 642.0, "TFLOPS", "lower"),
    ]  # fmt: skip
    assert found[0].sigma == limits.spread["gemm"].for_model("H200 SXM").run_sigma


def test_the_model_of_the_run_gives_the_sigma(tmp_path, limits):
    before = run_dir(tmp_path / "a", support.node_record(600.0))
    after = run_dir(tmp_path / "b", support.node_record(600.0))
    for population, model in (({"gpu_model": "cpu"}, "cpu"), (None, "None")):
        support.change(after.run_json, population=population)
        (found,) = compare.changes(before, after, limits)
        assert found.sigma == limits.spread["gemm"].for_model(model).run_sigma
    assert limits.spread["gemm"].for_model("cpu").run_sigma > 0.1


def test_what_is_only_recorded_in_one_of_the_runs_is_no_regression(tmp_path, limits):
    judged = [row("gemm.bf16", 600.0), row("gemm.bf16", 600.0, outcome="RECORDED")]
    recorded = [row("gemm.bf16", 600.0, outcome="RECORDED"),
                row("gemm.bf16", None, outcome="NOT_APPLICABLE")]  # fmt: skip
    for k, (first, second, worse_if) in enumerate((
        (judged, judged, "lower"), (recorded, judged, ""), (judged, recorded, ""),
        (recorded[:1], None, ""), (None, None, "lower"),
    )):  # fmt: skip
        runs = [run_dir(tmp_path / f"{k}{n}", support.node_record(600.0), criteria=rows)
                for n, rows in enumerate((first, second))]  # fmt: skip
        assert [c.worse_if for c in compare.changes(*runs, limits)] == [worse_if], k


# --- side by side


def test_the_worst_subject_of_each_rate_is_compared():
    rows = [
        row("gemm.bf16", 600.0, margin=0.2), row("gemm.bf16", 550.0, margin=0.01, subject="n1"),
        row("gemm.bf16", 560.0, margin=0.02, subject="n2"),
        row("gemm.fp8", 9.0, margin=None), row("gemm.fp8", 8.0, margin=-0.5, subject="n1"),
        row("a.count", 8.0, unit="GPUs"), row("b.state", "H200"), row("c.whole", 3),
        row("d.recorded", 3, outcome="RECORDED", unit="GPUs", margin=None),
        row("d.recorded", 2, outcome="RECORDED", unit="GPUs", margin=None, subject="n1"),
        row("e.errors", 3, outcome="RECORDED", unit="errors", margin=None),
        row("e.errors", 4, outcome="RECORDED", unit="errors", margin=None, subject="n1"),
        row("f.text", "on", outcome="RECORDED", unit="", margin=None),
    ]  # fmt: skip
    found = compare._worst_by_criterion(rows)
    assert {key: v["value"] for key, v in found.items()} == {
        "gemm.bf16": 550.0, "gemm.fp8": 8.0, "d.recorded": 2, "e.errors": 4
    }  # fmt: skip


def test_a_row_side_by_side_has_ratio_and_place():
    first = of([row("gemm.bf16", 600.0), row("gemm.fp8", 1.0), row("gemm.fp16", 0.0)])
    second = of([row("gemm.bf16", 300.0, subject="n1"),
                 row("gemm.fp16", 5.0, outcome="RECORDED")])  # fmt: skip
    assert compare.side_by_side(first, second) == [
        {"criterion": "gemm.fp16", "unit": "TFLOPS", "a": 0.0, "b": 5.0, "where": "n0",
         "ratio": None, "efficiency": None, "recorded": True},
        {"criterion": "gemm.bf16", "unit": "TFLOPS", "a": 600.0, "b": 300.0, "where": "n0 / n1",
         "ratio": 0.5, "efficiency": None, "recorded": False},
    ]  # fmt: skip


def test_only_tokens_of_the_whole_cluster_scale_with_its_gpus():
    for unit, subject, after, efficiency in (
        ("tokens/s", "cluster", 184.0, 0.92), ("tokens/s", "n0", 184.0, None),
        ("GB/s", "cluster", 184.0, None),
    ):  # fmt: skip
        runs = [of([row("t", value, unit=unit, subject=subject)], nodes=nodes)
                for nodes, value in ((1, 100.0), (2, after))]  # fmt: skip
        (found,) = compare.side_by_side(*runs)
        assert found["efficiency"] == (efficiency and pytest.approx(efficiency))
    zero = of([row("t", 0.0, unit="tokens/s", subject="cluster")])
    assert compare.side_by_side(zero, zero)[0]["efficiency"] is None


def test_half_is_as_far_as_twice():
    assert compare._change({"ratio": 2.0}) == pytest.approx(compare._change({"ratio": 0.5}))
    assert compare._change({"ratio": 0.5}) == pytest.approx(math.log(2))
    for ratio in (None, 0.0, -1.0):
        assert compare._change({"ratio": ratio}) == math.inf


def test_from_one_per_cent_on_a_change_has_a_colour(limits):
    def style(criterion: str, ratio: float, *, recorded: bool = False) -> str:
        return compare._style(
            {"criterion": criterion, "a": 100.0, "b": 100.0 * ratio, "ratio": ratio,
             "recorded": recorded}, limits,
        )  # fmt: skip

    assert (style("gemm.bf16", 0.9), style("gemm.bf16", 1.1)) == ("red", "green")
    latency = "allreduce.node.latency"
    assert (style(latency, 0.9), style(latency, 1.1)) == ("green", "red")
    assert (style("gemm.bf16", 1.009), style("gemm.bf16", 1.011)) == ("", "green")
    assert style("gemm.bf16", 0.5, recorded=True) == ""
    assert style("not.known", 0.5) == ""


# --- what is printed


Shown = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def shown(limits, capsys, monkeypatch) -> Shown:
    """Exit status of a comparison, and its lines with one blank between words."""
    monkeypatch.setattr(compare.loader, "load", lambda path: limits)

    def show(
        before: RunDirectory, after: RunDirectory, *, include_unchanged: bool = False
    ) -> tuple[int, list[str]]:
        status = compare.show(
            before.root, after.root, support.SHIPPED, include_unchanged=include_unchanged
        )
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        return status, [line for line in lines if line]

    return show


def test_both_tables_are_printed_with_the_status(tmp_path, shown):
    before = run_dir(
        tmp_path / "a", support.node_record(600.0, 650.0),
        criteria=[row("gemm.bf16", 600.0), row("gemm.fp16", 0.0),
                  row("training.tokens", 100.0, unit="tokens/s", subject="cluster")],
    )  # fmt: skip
    after = run_dir(
        tmp_path / "b", support.node_record(600.0, 500.0),
        criteria=[row("gemm.bf16", 500.0), row("gemm.fp16", 5.0),
                  row("training.tokens", 92.0, unit="tokens/s", subject="cluster",
                      outcome="RECORDED")],
    )  # fmt: skip
    status, lines = shown(before, after)
    assert status == 1
    assert lines[0] == "A r: ACCEPTED, 1 node x 8 GPUs"
    assert "gemm.bf16 n0 600 500 TFLOPS 0.833" in lines
    assert "gemm.fp16 n0 0 5 TFLOPS" in lines
    assert "training.tokens cluster 100 92 tokens/s 0.920 92.0 % recorded" in lines
    assert any(line.startswith("2 figures of one device in both runs; 1 changed") for line in lines)
    drift = [line for line in lines if line.startswith("gemm.bf16 worker0")]
    assert len(drift) == 1
    assert drift[0].startswith("gemm.bf16 worker0 gpu1 650 500 TFLOPS -23.08 %")
    assert drift[0].endswith(" worse")
    _, lines = shown(before, after, include_unchanged=True)
    unchanged = next(line for line in lines if line.startswith("gemm.bf16 worker0 gpu0"))
    assert unchanged.endswith("+0.00 % 0.0")


def test_a_better_or_recorded_figure_is_no_failure(tmp_path, shown):
    slow, fast = ([support.node_record(rate)] for rate in (500.0, 600.0))
    recorded = [row("gemm.bf16", 1.0, outcome="RECORDED")]
    for k, (first, second, rows, word) in enumerate((
        (slow, fast, [row("gemm.bf16", 1.0)], "better"), (fast, slow, recorded, "recorded"),
    )):  # fmt: skip
        runs = [run_dir(tmp_path / f"{k}{n}", *records, criteria=rows)
                for n, records in enumerate((first, second))]  # fmt: skip
        status, lines = shown(*runs)
        assert status == 0
        (drift,) = [line for line in lines if line.startswith("gemm.bf16 worker0")]
        assert drift.endswith(f" {word}")


def test_names_stand_left_and_numbers_right(tmp_path, limits, capsys, monkeypatch):
    monkeypatch.setattr(compare.loader, "load", lambda path: limits)
    run = run_dir(tmp_path / "a", support.node_record(600.0), criteria=[row("gemm.bf16", 1.0)])
    compare.show(run.root, run.root, support.SHIPPED, include_unchanged=True)
    lines = capsys.readouterr().out.splitlines()
    for heading, left, right in (("criterion", "where", "A"), ("criterion", "device", "A")):
        head = next(line for line in lines if heading in line and left in line)
        body = lines[lines.index(head) + 2]
        place = "n0" if left == "where" else "worker0 gpu0"
        number = "1" if left == "where" else "600"
        assert head.index(heading) == body.index("gemm.bf16")
        assert head.index(left) == body.index(place)
        column = head.index(f" {right} ") + 1
        end = body.index(number, body.index(place) + len(place)) + len(number) - 1
        assert end == column
        unit = head.index("unit")
        assert body.index("TFLOPS") == unit


def test_runs_with_nothing_in_common_have_a_status_of_their_own(tmp_path, shown):
    first = run_dir(tmp_path / "a", criteria=[row("gemm.bf16", 1.0)])
    second = run_dir(tmp_path / "b", criteria=[row("gemm.fp16", 1.0)])
    assert shown(first, second)[0] == 2
    assert shown(first, first)[0] == 0
    devices = [run_dir(tmp_path / n, support.node_record(600.0), criteria=[]) for n in "cd"]
    assert shown(*devices)[0] == 0
    named = run_dir(tmp_path / "e", criteria=[])
    named.verdict.write_text(json.dumps(of([], nodes=2, gpu_model="H200 SXM")))
    status, lines = shown(named, first)
    assert (status, lines[-1]) == (2, "the two runs have no figure in common")
    assert lines[0] == "A r: ACCEPTED, 2 nodes x 8 H200 SXM"
