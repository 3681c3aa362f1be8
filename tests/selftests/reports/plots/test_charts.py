"""Charts of the report: which of them there are, what is drawn in them, and what they say."""

# Length: every kind of chart, as in reports/plots/charts.py.

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import read_json
from fixtures.records.model import Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.kinds import SPANS
from fixtures.thresholds.loader import Thresholds
from reports.plots import charts
from reports.plots.charts import Chart
from reports.plots.drawing import BLUE, RED
from tests.selftests import support

pytestmark = pytest.mark.cpu

LIMITS = """\
schema: 1
cluster: {}
criteria:
  gemm.bf16:
    {title: Fast, per: node, unit: TFLOPS, spread: gemm, loose: a test,
     limits: [{expect: 660, fail_below: 605, source: measured}]}
  gemm.fp16:
    {title: Fast too, per: node, unit: TFLOPS, loose: a test,
     limits: [{expect: 660, fail_below: 605, source: measured}]}
  gemm.spread:
    {title: Alike, per: node, unit: "%", measure: gemm.bf16, statistic: spread, loose: a test,
     limits: [{expect: 5, fail_above: 10, source: published}]}
  memory.copy:
    {title: Copies, per: node, unit: GB/s, spread: gemm, loose: a test,
     limits: [{expect: 10, fail_below: 8, source: measured}]}
  allreduce.errors:
    {title: Right, per: node, unit: elements, statistic: value,
     limits: [{fail_above: 0, source: exact}]}
  allreduce.node.1GiB:
    {title: In a node, per: node, unit: GB/s, measure: allreduce.busbw, at: {size: 1GiB},
     loose: a test, over: ranks, limits: [{expect: 100, fail_below: 80, source: measured}]}
  allreduce.pair:
    {title: Two nodes, per: pair, unit: GB/s, measure: allreduce.busbw, at: {size: 1GiB},
     loose: a test, over: ranks, limits: [{expect: 100, fail_below: 80, source: measured}]}
  allreduce.dip:
    {title: Even, per: node, unit: "%", measure: allreduce.busbw, statistic: dip, loose: a test,
     limits: [{expect: 5, fail_above: 10, source: measured}]}
  allreduce.quick:
    {title: Quick, per: pair, unit: us, measure: allreduce.latency, loose: a test,
     limits: [{expect: 4, fail_above: 8, source: measured}]}
  allreduce.latency:
    {title: Quick, per: node, unit: us, loose: a test,
     limits: [{expect: 4, fail_above: 8, source: measured}]}
spread:
  gemm: {delta: 0.08, device_sigma: 0.018, run_sigma: 0.003, source: measured}
"""
SIZES = (2**20, 2**30)


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    return support.load(tmp_path_factory.mktemp("charts"), LIMITS)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of every figure that is made; it is not rendered, which takes most of the time."""
    found: list[Any] = []
    monkeypatch.setattr(charts, "svg_of", lambda figure: found.append(figure.axes[0]) or "<svg>")
    return found


def row(
    criterion: str, subject: str, value: Any, *, limit: str = "", outcome: str = "PASS", **more: Any
) -> dict[str, Any]:
    made = {"criterion": criterion, "subject": subject, "value": value, "limit": limit,
            "outcome": outcome, "ceiling": None, "unit": "TFLOPS", "title": "Fast"}  # fmt: skip
    return {**made, **more}


def numbers(count: int) -> list[tuple[str, float]]:
    return [(f"gpu{k:03d}", 10.0 + k) for k in range(count)]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def rate(
    metric: str, *samples: float, rounds: Iterable[list[float]] = (), **at: Any
) -> Measurement:
    return Measurement(
        metric=metric, unit="GB/s", samples=list(samples), rounds=list(rounds), at=at
    )


# --- order and limits


def test_what_everyone_asks_for_comes_first():
    first = charts.IMPORTANCE
    for key, place in (
        ("gemm.bf16", "gemm.bf16"), ("allreduce busbw", "allreduce"), ("gemm.fp16", "gemm"),
        ("memory.copy", "memory.copy"), ("training.tokens", "training"),
        ("allreduce_ring busbw", "allreduce_ring"),
    ):  # fmt: skip
        assert charts.importance(key) == first.index(place), key
    assert charts.importance("nothing known") == len(first)


def test_the_number_of_a_limit_is_read_from_its_text():
    for text, value in ((">= 605 (0.6 of ceiling 1008)", 605.0), ("<= 2.5e-06", 2.5e-06),
                        ("== H200", None), ("", None)):  # fmt: skip
        assert charts.limit_value({"limit": text}) == value


def test_rows_without_a_value_are_in_no_chart():
    rows = [row("a", "n0", 1.0), row("a", "n1", None), row("a", "n2", 0.0), row("b", "n0", None)]
    found = charts.values_by_criterion(rows)
    assert {key: [v["subject"] for v in of] for key, of in found.items()} == {"a": ["n0", "n2"]}


# --- bars


def test_a_line_far_off_is_said_and_not_drawn():
    found, limit = [("worker0 gpu0", 10.0)], (8.0, "limit", RED)
    places = []
    for ceiling, words in ((50.0, "ceiling 50"), (50.1, "ceiling 50.1 (far off)")):
        made = charts._bars("memory.copy", "GB/s", found, [limit, (ceiling, "ceiling", "#555")])
        assert made.description == (f"worker0 gpu0 10 GB/s, limit 8, {words}; 0 beyond the limit")
        places.append([mark.at for mark in made.bullet.marks])
    assert places == [[16.0, 100.0], [80.0, None]]
    nothing = charts._bars("memory.errors", "errors", [("worker0", 0.0)], [limit]).bullet
    assert (nothing.at, nothing.marks[0].at) == (0.0, 100.0)


def test_values_beyond_the_limit_are_counted_and_red():
    values = [("gpu0", 7.9), ("gpu1", 8.0), ("gpu2", 8.1)]
    for unit, worst in (("GB/s", "gpu0 7.9"), ("us", "gpu2 8.1")):
        made = charts._bars("key", unit, values, [(8.0, "limit", RED)])
        assert made.title == "key"
        assert made.description == (
            f"3 GPUs, median 8 {unit}, worst {worst}, limit 8; 1 beyond the limit"
        )
        assert made.bullet.bad
        assert f"{made.bullet.where} {made.bullet.value}" == f"{worst} {unit}"
        assert (made.bullet.others, len(made.bullet.siblings)) == (f"3 GPUs, median 8 {unit}", 2)
    assert not charts._bars("key", "GB/s", values, [(7.9, "limit", RED)]).bullet.bad
    without = charts._bars("key", "GB/s", values, [(9.0, "ceiling", "#555")])
    assert "beyond" not in without.description
    assert not without.bullet.bad


def test_many_values_are_a_line_with_points_beyond_the_limit_only(drawn):
    for count, kind in ((16, "bars"), (17, "points"), (64, "points"), (65, "line")):
        made = charts._bars("key", "GB/s", numbers(count), [(11.5, "limit", RED)], "nodes")
        assert (made.bullet is not None) == (kind == "bars"), count
        if kind == "bars":
            assert (made.svg, drawn) == ("", [])
            continue
        axes = drawn[-1]
        curve, beyond, limit = axes.lines
        assert curve.get_marker() == ("." if kind == "points" else "")
        assert (curve.get_color(), len(curve.get_xdata())) == (BLUE, count)
        assert list(beyond.get_ydata()) == [10.0, 11.0]
        assert list(limit.get_ydata()) == [11.5, 11.5]
        assert axes.get_xlabel() == "nodes, by value"


def test_two_values_have_a_median_and_one_has_none(drawn):
    assert charts._bars("key", "GB/s", numbers(2), []).description == (
        "2 GPUs, median 10.5 GB/s, worst gpu000 10"
    )
    assert charts._bars("key", "GB/s", numbers(1), []).description == "gpu000 10 GB/s"


# --- one value per GPU


def gemm(node: str, *rates: float, metric: str = "bf16", **more: Any) -> Record:
    ranks = [
        support.rank(k, node, rate(metric, one, one, one), gpus=len(rates))
        for k, one in enumerate(rates)
    ]
    return support.record(*ranks, placement=node, **more)


def test_a_criterion_that_judges_devices_has_a_bar_for_each(limits, drawn):
    rows = [row("gemm.bf16", "n0", 600.0, limit=">= 605", ceiling=989.0),
            row("gemm.bf16", "n1", 650.0, limit=">= 605", ceiling=989.0, title="")]  # fmt: skip
    values = charts.DeviceValues(limits, charts.values_by_criterion(rows))
    for record in (gemm("n0", 600.0, 640.0), gemm("n1", 650.0, 660.0)):
        values.add(record)
    assert values.by_criterion == {
        "gemm.bf16": [("n0 gpu0", 600.0), ("n0 gpu1", 640.0), ("n1 gpu0", 650.0),
                      ("n1 gpu1", 660.0)]
    }  # fmt: skip
    (made,) = values.charts()
    assert (made.key, made.title) == ("gemm.bf16", "Fast")
    assert made.description == (
        "4 GPUs, median 645 TFLOPS, worst n0 gpu0 600, limit 605, ceiling 989; 1 beyond the limit"
    )


def test_a_chart_without_a_title_has_its_key(limits, drawn):
    values = charts.DeviceValues(limits, {"gemm.bf16": [row("gemm.bf16", "n0", 1.0, title="")]})
    values.add(gemm("n0", 1.0))
    assert [made.title for made in values.charts()] == ["gemm.bf16"]
    (made,) = values.charts()
    assert "limit" not in made.description


def test_only_judged_medians_of_the_slowest_device_are_taken(limits):
    rows = [row(key, "n0", 1.0) for key in
            ("gemm.bf16", "gemm.spread", "allreduce.errors", "allreduce.pair",
             "allreduce.node.1GiB")]  # fmt: skip
    values = charts.DeviceValues(limits, charts.values_by_criterion(rows))
    assert {w: [c.key for c in of] for w, of in values._by_workload.items()} == {
        "gemm": ["gemm.bf16"]
    }


def test_a_record_of_several_nodes_or_with_one_sample_gives_no_bar(limits):
    rows = charts.values_by_criterion([row("gemm.bf16", "n0", 1.0)])
    values = charts.DeviceValues(limits, rows)
    ranks = [support.rank(k, f"n{k}", rate("bf16", 1.0, 1.0, 1.0)) for k in range(2)]
    values.add(support.record(*ranks))
    values.add(support.record(*(
        support.rank(k, f"n{k}", rate("bf16", 1.0, 1.0)) for k in range(3)
    )))  # fmt: skip
    values.add(support.record(support.rank(0, "n0", rate("bf16", 5.0))))
    assert values.by_criterion == {}
    values.add(support.record(support.rank(0, "n0", rate("bf16", 5.0, 7.0))))
    assert values.by_criterion == {"gemm.bf16": [("n0 gpu0", 6.0)]}


def test_the_value_of_a_device_is_the_median_of_its_rounds(limits):
    m = rate("bf16", 1.0, 2.0, 9.0, rounds=[[5.0], [3.0, 3.0, 4.0]])
    assert charts._median_of_rounds(m) == 3.0


def test_what_is_far_on_the_good_side_of_a_limit_has_no_chart(limits, drawn):
    for key, unit, limit, value, count in (
        ("allreduce.latency", "us", "<= 50", 10.0, 1),
        ("allreduce.latency", "us", "<= 51", 10.0, 0), ("allreduce.latency", "us", "", 10.0, 1),
        ("gemm.bf16", "TFLOPS", ">= 50", 10.0, 1), ("gemm.bf16", "TFLOPS", ">= 51", 10.0, 1),
    ):  # fmt: skip
        workload, _, metric = key.partition(".")
        rows = [row(key, "n0", value, limit=limit, unit=unit)]
        values = charts.DeviceValues(limits, charts.values_by_criterion(rows))
        values.add(gemm("n0", value, metric=metric, workload=workload))
        assert len(list(values.charts())) == count, limit


def test_a_rate_that_gpus_have_together_is_a_bar_of_the_node():
    """DDP at 97 %: whose figure is the lowest by its last digit is not the worst GPU."""
    run = support.DATA / "h200-1x4"
    nonce = read_json(run / "run.json")["nonce"]
    records = [
        Record.from_json(read_json(run / "records" / f"{name}@node0.json"), nonce=nonce)
        for name in ("training_ddp", "training_single")
    ]
    rows = [
        row(key, "node0", 1.0, unit=unit)
        for key, unit in (("training_ddp.efficiency", "%"), ("training_single.tokens", "tokens/s"))
    ]
    said = {c.key: c.description
            for c in charts.charts(records, rows, loader.load(support.SHIPPED))}  # fmt: skip
    assert said["training_ddp.efficiency"].startswith("node0 97.17 %")
    assert "4 GPUs, median" in said["training_single.tokens"]
    assert "worst node0 gpu2" in said["training_single.tokens"]


def test_of_a_large_cluster_each_node_s_worst_gpu_is_drawn(limits, drawn):
    rows = [row("memory.copy", f"n{k}", 9.0 + k, limit=f">= {8 + k}", unit="GB/s", title="Copies")
            for k in range(2)]  # fmt: skip
    rows += [row("gemm.bf16", "n0", 600.0), row("gemm.bf16", "n1", None)]
    left_out = [
        row("gemm.fp16", "n0", 600.0), row("gemm.spread", "n0", 5.0),
        row("allreduce.pair", "n0--n1", 90.0), row("allreduce.errors", "n0", 0.0),
        row("not.known", "n0", 1.0), row("allreduce.dip", "n0", 1.0),
    ]  # fmt: skip
    made = charts.charts_of_verdicts([*rows, *left_out], limits)
    assert [(c.key, c.title, c.description) for c in made] == [
        ("gemm.bf16", "Fast", "n0 600 TFLOPS"),
        ("memory.copy", "Copies",
         "2 nodes, median 9.5 GB/s, worst n0 9, limit 8; 0 beyond the limit"),
    ]  # fmt: skip


# --- curves by size


def collective(*rates_by_size: tuple[int, float], node: str = "n0", **more: Any) -> Record:
    ms = [rate("busbw", one, size=size) for size, one in rates_by_size]
    return support.record(
        support.rank(0, node, *ms), workload="allreduce", placement=more.pop("placement", node),
        **more,
    )  # fmt: skip


def test_a_curve_is_the_mean_over_ranks_by_size():
    measured = [
        support.rank(k, "n0", rate("busbw", 10.0 + 2 * k, size=SIZES[0]),
                     rate("busbw", 90.0 + 2 * k, size=SIZES[1]), rate("busbw", 5.0),
                     Measurement(metric="busbw", unit="GB/s", value=1.0, at={"size": 7}),
                     rate("latency", 3.0, size=SIZES[0]))
        for k in range(2)
    ]  # fmt: skip
    record = support.record(*measured, workload="allreduce")
    assert list(charts._size_curves(record)) == [
        ("allreduce busbw", "GB/s", {SIZES[0]: 11.0, SIZES[1]: 91.0})
    ]


def test_a_curve_says_sizes_highest_value_and_limits(limits, drawn):
    rows = [row("allreduce.node.1GiB", "n0", 90.0, limit=">= 80", unit="GB/s"),
            row("allreduce.pair", "n0--n1", 90.0, limit=">= 70", unit="GB/s"),
            row("allreduce.dip", "n0", 1.0, limit="<= 10", unit="%"),
            row("allreduce.node.1GiB", "n1", 90.0, limit="", unit="GB/s")]  # fmt: skip
    key = ("allreduce busbw", "GB/s", SPANS["node"])
    curve = {SIZES[0]: 10.0, SIZES[1]: 90.0}
    by_key = charts.values_by_criterion(rows)
    made = charts._curve_chart(key, [("n0", curve)], by_key, limits)
    assert made == Chart(
        title="All-reduce in a node: bus bandwidth by size",
        description="1MiB to 1GiB; highest n0 90 GB/s; limits 80 at 1GiB",
        svg="<svg>", key="allreduce busbw",
    )  # fmt: skip
    assert [line.get_label() for line in drawn[-1].lines] == ["n0", "limit"]
    without = charts._curve_chart(key, [("n0", curve), ("n1", curve)], {}, limits)
    assert without.description == ("2 nodes, 1MiB to 1GiB; highest n0 90 GB/s, n1 90 GB/s")
    assert len(drawn[-1].lines) == 2


def test_of_more_than_eight_placements_three_curves_are_shown(limits, drawn):
    curves = [(f"n{k}", {SIZES[0]: 1.0 + k, SIZES[1]: 90.0 + k}) for k in range(9)]
    key = ("allreduce busbw", "GB/s", SPANS["pair"])
    charts._curve_chart(key, curves[:8], {}, limits)
    assert len(drawn[-1].lines) == 8
    made = charts._curve_chart(key, curves, {}, limits)
    assert [line.get_label() for line in drawn[-1].lines] == ["n0", "n4", "n8"]
    assert made.description.startswith("9 pairs of nodes, 1MiB to 1GiB; highest n0 90 GB/s")


def test_a_record_is_of_a_node_a_pair_or_the_cluster():
    one, two = collective(node="n0"), support.record(nodes=["n0", "n1"], placement="n0--n1")
    assert charts._span_of_record(one) == SPANS["node"]
    assert charts._span_of_record(two) == SPANS["pair"]
    assert charts._span_of_record(support.record(nodes=["n0"], placement="all")) == SPANS["cluster"]


def test_all_charts_of_a_run_stand_in_the_order_of_importance(limits, drawn):
    rows = [row("memory.copy", "n0", 9.0, unit="GB/s", title="Copies"),
            row("gemm.bf16", "n0", 600.0)]  # fmt: skip
    curve = collective((SIZES[0], 10.0), (SIZES[1], 90.0))
    records = [gemm("n0", 9.0, metric="copy", workload="memory"), curve, gemm("n0", 600.0)]
    given = charts.DeviceValues(limits, charts.values_by_criterion(rows))
    for values in (None, given):
        made = charts.charts(records, rows, limits, values)
        assert [c.key for c in made] == ["gemm.bf16", "allreduce busbw", "memory.copy"]
    assert given.by_criterion["gemm.bf16"] == [("n0 gpu0", 600.0)]


# --- heat maps


def copies(node: str, *rates: float, metric: str = "write") -> Record:
    """Copies from GPU 0 to the others, and one entry that is none."""
    ms = [rate(metric, one, to=k + 1) for k, one in enumerate(rates)]
    other = [rate(metric, 1.0), Measurement(metric=metric, unit="GB/s", value=1.0, at={"to": 7})]
    return support.record(support.rank(0, node, *ms, *other), workload="p2p", placement=node)


def test_copies_between_the_gpus_of_one_node_are_a_map():
    assert list(charts._copy_matrices(copies("n0", 300.0, 200.0))) == [
        ("n0", "p2p.write", {(0, 1): 300.0, (0, 2): 200.0})
    ]
    assert list(charts._copy_matrices(copies("n0", 300.0, metric="both"))) == [
        ("n0", "p2p.both", {(0, 1): 300.0})
    ]
    assert list(charts._copy_matrices(gemm("n0", 600.0))) == []
    for count in (2, 3):
        ranks = [support.rank(k, f"n{k}", rate("write", 1.0, to=1)) for k in range(count)]
        assert list(charts._copy_matrices(support.record(*ranks, workload="p2p"))) == []


def test_a_map_of_copies_names_the_slowest(drawn):
    cells = {(0, 1): 300.0, (1, 0): 210.0}
    for name, ways in (("p2p.write", "one way"), ("p2p.both", "both ways at once")):
        made = charts._heat_map("n0", name, cells)
        assert made.title == f"Copies between the GPUs of n0, {ways}"
        assert made.description.endswith("slowest 1 to 0: 210")
        assert made.key == name
    assert texts(drawn[-1]) == ["", "300", "210", ""]


def test_maps_of_nodes_that_failed_come_first_and_four_are_shown(limits, drawn):
    records = [copies(f"n{k}", 300.0) for k in range(6)]
    rows = [row("p2p.write", f"n{k}", None, outcome="FAIL" if k == 5 else "PASS") for k in range(6)]
    made = charts.charts(records, rows, limits)
    assert [c.title.partition(" of ")[2].partition(",")[0] for c in made] == [
        "n5", "n0", "n1", "n2"
    ]  # fmt: skip


def pairs(count: int, key: str = "allreduce.pair", **more: Any) -> dict[str, list[dict[str, Any]]]:
    """Node 0 with each other one."""
    return {key: [row(key, f"n000--n{k:03d}", 90.0 + k, **more) for k in range(1, count)]}


def test_three_nodes_and_more_have_a_map_of_their_pairs(limits, drawn):
    (made,) = charts._pair_maps(pairs(3, title="Two nodes"), limits)
    assert made == Chart(
        title="Two nodes: pairs of nodes",
        description="2 pairs; slowest n000 and n001: 91 GB/s", svg="<svg>", key="allreduce.pair",
    )  # fmt: skip
    assert texts(drawn[-1]) == ["", "91", "92", "91", "", "", "92", "", ""]
    (untitled,) = charts._pair_maps(pairs(5, title=""), limits)
    assert untitled.title == "allreduce.pair: pairs of nodes"
    for count, maps in ((2, 0), (3, 1), (64, 1), (65, 0)):
        assert len(list(charts._pair_maps(pairs(count), limits))) == maps, count
    for key in ("allreduce.node.1GiB", "allreduce.quick", "gemm.bf16", "not.known"):
        assert list(charts._pair_maps(pairs(3, key), limits)) == [], key


def test_the_map_of_many_nodes_has_no_numbers(limits, drawn):
    for count, written in ((16, 16 * 16), (17, 0)):
        list(charts._pair_maps(pairs(count), limits))
        assert len(drawn[-1].texts) == written


# --- as the page has it


def test_a_chart_keeps_its_text_as_text(tmp_path: Path):
    made = charts._bars("key", "a < b", numbers(charts.MAX_BARS + 1), [])
    assert made.svg.startswith("<svg")
    assert "a < b" in html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)<", made.svg)))
