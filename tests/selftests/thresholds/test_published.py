"""Limits from published figures: the rule for their margin, and what a row becomes."""

from __future__ import annotations

import csv
from contextlib import suppress
from typing import Any

import pytest

from fixtures import hardware
from fixtures.errors import ConfigError
from fixtures.paths import THRESHOLDS
from fixtures.plan.items import facts_of
from fixtures.thresholds import loader, published
from fixtures.thresholds.conditions import unresolved_conditions
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.limits import Limit
from fixtures.thresholds.lint import FRACTION_FLOOR
from fixtures.thresholds.nccl_model import attainable
from fixtures.thresholds.published import Publication, Rule, rule_of
from fixtures.thresholds.references import expand
from fixtures.thresholds.strict_yaml import Document
from tests.selftests import support
from tests.selftests.verdict.made import criterion, row
from tests.tools import gpu_models, published_limits, sections

pytestmark = pytest.mark.cpu

SAID: dict[str, Any] = {
    "title": "A table", "place": "somebody/tables README.md", "date": "2026-08-22",
    "hardware": "one GPU", "software": "CUDA 13", "measured": "best shape",
    "replaced_by": "calibration",
}  # fmt: skip
BOTH: dict[str, Any] = {**SAID, "ours": {"H100 SXM": [800, 640], "H200 SXM": [800, 680]}}
TABLE: dict[str, Any] = {"best": BOTH, "alone": SAID}


def made(text: Any, publications: dict[str, Any] = TABLE, **more: Any) -> Any:
    """What becomes of a row with this figure."""
    rows = {"limits": [{"model": "B200", "published": text, **more}]}
    document = Document("x.yaml", {**rows, "publications": publications}, {(): 1}, "abc")
    return expand(document).data["limits"][0]


def refusal(text: Any, publications: dict[str, Any] = TABLE, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(text, publications, **more)
    return str(caught.value)


def test_the_limit_is_the_figure_times_the_lowest_ratio_less_the_margin():
    found = made("1000 in best")
    assert (found["expect"], found["fail_below"]) == (825, 720), "0.825 and 0.9 x 0.80"
    assert found["published"] == "best"
    assert "loose" not in found, "12.7 % are found"
    for part in ("published figure 1000", "A table", "somebody/tables", "2026-08-22", "one GPU",
                 "CUDA 13", "best shape", "H100 SXM and H200 SXM", "calibration"):  # fmt: skip
        assert part in found["source"]
    fraction = made("1 of ceiling in best")
    assert (fraction["expect"], fraction["fail_below"]) == ("0.825 of ceiling", "0.72 of ceiling")


def test_of_a_publication_without_a_model_of_ours_the_widest_margin_holds():
    found = made("1000 in alone")
    assert (found["expect"], found["fail_below"]) == (1000, 720), "as the lowest of the others"
    assert "a loss of up to 28% passes" in found["loose"], "more than 15 % pass, and it says so"
    assert "all publications" in found["source"]
    assert made("1000 in alone", loose="mine")["loose"] == "mine"


def test_a_bound_has_no_part_in_what_others_may_differ():
    bound = {**SAID, "bound": True, "ours": {"H200 SXM": [1, 0.5]}}
    assert rule_of("alone", {k: Publication(**v) for k, v in (TABLE | {"b": bound}).items()}) == (
        rule_of("alone", {k: Publication(**v) for k, v in TABLE.items()})
    )
    assert made("1 of model in b", TABLE | {"b": bound})["fail_below"] == "0.45 of model"
    alone = {"b": {**SAID, "bound": True}, "best": BOTH}
    assert "was measured on no model" in refusal("1 of model in b", alone)


def test_nothing_is_expected_above_the_figure():
    faster = {"fast": {**SAID, "ours": {"H200 SXM": [100, 110]}}}
    found = made("1000 in fast", faster)
    assert (found["expect"], found["fail_below"]) == (1000, 900)
    assert "a loss of up to 18% passes" in found["loose"], "900 of 1,100, which is usual"


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        (1745, {}, "expected `1745 in NAME`"),
        ("1745", {}, "expected `1745 in NAME`"),
        ("1e3 in best", {}, "expected `1745 in NAME`"),
        ("-3 in best", {}, "expected `1745 in NAME`"),
        ("0 in best", {}, "expected a figure above 0"),
        (f"{'9' * 400} in best", {}, "expected a figure above 0"),
        ("0.5 of cluster.nic_gbps in best", {}, "expected `1745 in NAME`"),
        ("1745 in bset", {}, "no publication 'bset' in publications: - did you mean 'best'?"),
        ("1745 in best", {"fail_below": 3}, "fail_below does not go with published"),
        ("1745 in best", {"source": "me"}, "source does not go with published"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(text, more, why):
    said = refusal(text, **more)
    assert why.partition(" - did")[0] in said
    assert said.startswith("x.yaml:1: ")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({k: v for k, v in SAID.items() if k != "software"}, "software"),
        ({**SAID, "ours": {"H900": [1, 1]}}, "'H900' is not a GPU model"),
        ({**SAID, "ours": {"H200 SXM": [1]}}, "expected [published, ours]"),
        ({**SAID, "ours": {"H200 SXM": [0, 1]}}, "expected [published, ours]"),
        ({**SAID, "ours": {"H200 SXM": [1, "2"]}}, "expected [published, ours]"),
        ({**SAID, "ours": {"H200 SXM": [1, 2.1]}}, "other things"),
        ({**SAID, "ours": 3}, "expected GPU models"),
        ({**SAID, "more": 1}, "more"),
    ],
)
def test_a_publication_without_all_of_its_parts_is_refused(entry, why):
    said = refusal("1 in a", {"a": entry, "best": BOTH})
    assert "a: " in said
    assert why in said


def test_without_any_model_of_ours_there_is_no_rule():
    assert "measured here too" in refusal("1 in alone", {"alone": SAID})


def test_a_rule_says_the_least_loss_that_it_finds():
    assert Rule(0.8, 0.72, ()).least_loss == pytest.approx(0.1)


def test_its_limit_says_what_it_is_wherever_it_is_shown():
    figure = Limit.model_validate({**made("1000 in best"), "model": ["B200"]})
    shown = figure.resolve(None, None).text
    assert shown == ">= 720 (published figure)"
    assert published.is_shown_in(shown)
    assert not published.is_shown_in(">= 720")
    assert published.sentence(0) == ""
    assert published.sentence(1) == "1 limit is a published figure"
    assert published.sentence(12) == "12 limits are published figures"


def test_an_order_of_measured_limits_takes_no_published_figure():
    figure = row(fail_below=720).model_copy(update={"published": "best"})
    of_both = criterion(figure)
    order = {"nodes": 2, "gpus_per_node": 8, "gpu_model": "B200"}
    assert of_both.under(Contract(**order)).limits == (figure,)
    (left,) = of_both.under(Contract(**order, limits="measured")).limits
    assert (left.calibrate, left.published, left.fail_below) == (True, None, None)
    assert "takes measured limits" in str(left.source)
    own = criterion(row(fail_below=720))
    assert own.under(Contract(**order, limits="measured")) is own


# --- the shipped publications, on runs that were recorded


def rows_of(run: str) -> dict[str, dict[str, str]]:
    """What was judged in a recorded run, by criterion."""
    lines = (support.DATA / "verdicts" / f"{run}.txt").read_text().splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith("criterion,"))
    return {row["criterion"]: row for row in csv.DictReader(lines[head:])}


RUNS = [("h200-1x4", "H200 SXM", 4), ("h200-1x2", "H200 SXM", 2), ("h100-1x4", "H100 SXM", 4),
        ("h100-1x4-accepted", "H100 SXM", 4), ("h200-1x2-accepted", "H200 SXM", 2)]  # fmt: skip


@pytest.mark.parametrize(("run", "model", "gpus"), RUNS, ids=[r[0] for r in RUNS])
def test_what_was_published_of_a_model_that_we_measured_is_passed_by_its_healthy_runs(
    run, model, gpus
):
    table, found, judged = published_limits.publications(), rows_of(run), set()
    written = loader.load(THRESHOLDS).written
    for name, publication in table.items():
        if model not in publication.ours:
            continue
        figure = publication.ours[model][0]
        share = rule_of(name, table).fail_below
        for key, limit in published_limits.limits_by(name):
            measured = found.get(key, {"value": ""})
            facts = {"model": model, "gpus": gpus, "nodes": 1, "gpus_per_node": gpus}
            at = {**facts, **written[key].at}
            wanted = {"gpus": limit.when.gpus or gpus}
            if not measured["value"] or unresolved_conditions(wanted, at) is None:
                continue
            whole = 1.0
            if "ceiling" in str(limit.fail_below):
                whole = float(measured["ceiling"])
            if "model" in str(limit.fail_below):
                attained = attainable(written[key].ceiling, at)
                assert attained is not None
                whole = attained.busbw
            judged.add(key)
            assert float(measured["value"]) >= whole * figure * share, (name, key)
    assert len(judged) >= (20 if gpus == 4 else 15), judged


@pytest.mark.parametrize(("run", "model", "gpus"), RUNS, ids=[r[0] for r in RUNS])
def test_our_own_figures_are_those_of_the_recorded_runs(run, model, gpus):
    """Of every publication that is not of a part of something: no figure is better than a run."""
    found = rows_of(run)
    for name, publication in published_limits.publications().items():
        if model in publication.ours and not publication.bound and gpus == 4:
            for key in {key for key, _ in published_limits.rows_by(name)} & found.keys():
                if found[key]["unit"] in ("TFLOPS", "GB/s") and found[key]["ceiling"]:
                    own = publication.ours[model][1]
                    assert own <= 1.03 * float(found[key]["value"]), (name, key)


@pytest.mark.parametrize(("name", "made_by"), published_limits.TABLES, ids=lambda x: str(x)[:12])
def test_the_tables_in_the_docs_are_those_of_the_limits(name, made_by):
    stated = sections.section(published_limits.PAGE, name)
    assert stated == made_by(), "python -m tests.tools.published_limits --write"


def test_a_loss_of_fifteen_per_cent_is_found_or_the_row_says_that_it_passes():
    for name in published_limits.publications():
        for key, limit in published_limits.rows_by(name):
            rule = rule_of(name, published_limits.publications())
            assert rule.fail_below >= 0.85 * rule.typical or limit.loose, (key, limit.text())


def test_every_publication_that_is_shipped_is_used():
    unused = [n for n in published_limits.publications() if not [*published_limits.rows_by(n)]]
    assert unused == []


@pytest.mark.parametrize("model", hardware.GPUS)
def test_no_limit_of_an_order_of_any_model_is_impossible_or_toothless(model):
    """At each point of the plan of four nodes: expected is possible, and the limit is not far
    below it, nor a small part of what physics allows without saying so."""
    items, limits, people = gpu_models.plan(model, 4)
    judged = 0
    for key, nodes in dict.fromkeys((i.criterion, i.nodes) for i in items if not i.not_applicable):
        criterion = limits.criteria[key]
        facts = {"metric": criterion.metric, **criterion.at,
                 **facts_of(criterion, nodes, people), "domains": max(1, len(nodes)),
                 "gpus_per_domain": people.gpus_per_node, "nvls": False}  # fmt: skip
        if not isinstance(criterion.ceiling, str) or criterion.ceiling in hardware.FLOORS:
            continue
        with suppress(hardware.MissingFact, ConfigError, ValueError):
            bound = hardware.datasheet_ceiling(criterion.ceiling, facts)
            limit = criterion.limit_for({**facts, "power_limit": "default"})
            resolved = limit.resolve(bound, limits.cluster, criterion.model_for(limit, facts))
            if resolved.kind != "below" or bound is None:
                continue
            judged += 1
            assert isinstance(resolved.value, float)
            assert resolved.value <= (resolved.expect or resolved.value) <= bound, key
            assert resolved.value >= FRACTION_FLOOR * bound or resolved.loose, key
            assert resolved.value >= 0.5 * (resolved.expect or 0), key
    assert judged >= 8


@pytest.mark.parametrize("model", ["GB200", "GB300"])
def test_a_figure_at_1_gib_judges_no_smaller_size_of_a_rack(model):
    """NCCL's send-receive reaches 298 of 361 GB/s at 256 MiB on a healthy H100, less by size of a
    faster link: a rack held to the figure of 1 GiB there would be accused."""
    facts = {"model": model, "domains": 1}
    criteria = loader.load(THRESHOLDS).criteria
    for key in ("rails.sendrecv.256MiB", "rails.alone"):
        assert criteria[key].limit_for(facts).recorded
    assert criteria["rails.sendrecv.1GiB"].limit_for(facts).published == "nccl-tests-node"
    assert criteria["rails.alone"].limit_for({**facts, "domains": 2}).published == "ring-per-nic"
