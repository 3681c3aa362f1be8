"""thresholds.yaml: what gets in, in one line what does not, and which limit holds."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import hardware
from fixtures.errors import ConfigError, UnknownGpu
from fixtures.slurm.hostlist import expand_hostlist
from fixtures.thresholds import limits, loader
from fixtures.thresholds.conditions import RECORD_ONLY, Range, digits, format_size, parse_size
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.lint import lint_row
from fixtures.thresholds.loader import Criterion, Thresholds
from fixtures.thresholds.strict_yaml import as_number

pytestmark = pytest.mark.cpu

SHIPPED = Path(__file__).parents[2] / "thresholds.yaml"

SMALL = """\
schema: 1
cluster: {}
criteria:
  gemm.bf16:
    id: F1
    title: Fast
    per: node
    unit: TFLOPS
    ceiling: gemm
    valid: {overlap: [0.8, null]}
    spread: gemm
    limits:
      - {model: H200 SXM, expect: 660, fail_below: 605, source: measured}
  inventory.gpus:
    id: A2
    title: All there
    per: node
    unit: GPUs
    statistic: value
    when: order
    limits:
      - {equals: cluster.gpus_per_node, source: the order}
  allreduce.node:
    id: H1
    title: Fast at {size}
    per: node
    unit: GB/s
    measure: allreduce.busbw
    at: {size: [256MiB, 1GiB]}
    over: ranks
    ceiling: all_reduce
    limits:
      - {expect: 0.72 of ceiling, fail_below: 0.60 of ceiling, source: published}
      - {model: H200 SXM, when: {gpus: 8, nvls: true}, expect: 475, fail_below: 445, source: x}
  allreduce.latency:
    id: H1
    title: Quick
    per: node
    unit: us
    ceiling: latency
    limits:
      - {model: H200 SXM, when: {gpus: 4}, expect: 42, fail_above: 84, source: measured}
not_applicable:
  - {criteria: [gemm.bf16], when: {model: cpu}, reason: no such unit}
waivers:
  - {criterion: gemm.bf16, node: n1, owner: A. Name, reason: RMA, expires: "2026-12-31"}
spread:
  gemm: {delta: 0.08, device_sigma: 0.03, run_sigma: 0.003, source: x, models: {cpu: {delta: 0.67}}}
"""


def write(path: Path, text: str) -> Path:
    file = path / "thresholds.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def load(path: Path, text: str = SMALL) -> Thresholds:
    return loader.load(write(path, text))


@pytest.fixture(scope="module")
def shipped() -> Thresholds:
    return loader.load(SHIPPED)


@pytest.fixture
def small(tmp_path: Path) -> Thresholds:
    return load(tmp_path)


# --- what does not get in

LIMIT = "{model: H200 SXM, expect: 660, fail_below: 605, source: measured}"

BAD = {
    # name: (text to replace, its replacement, what the one line must say)
    "unknown key": ("fail_below: 605", "fail_blow: 605", [
        ":13: criteria.gemm.bf16.limits[0]: unknown key 'fail_blow', did you mean 'fail_below'?",
    ]),
    "unknown key at the top": ("waivers:", "waiver:", [
        ":45: unknown key 'waiver', did you mean 'waivers'?",
    ]),
    "unknown key of a criterion": ("title: Fast\n", "titel: Fast\n", [
        ":6: criteria.gemm.bf16: unknown key 'titel', did you mean 'title'?",
    ]),
    "missing key": ("    id: F1\n", "", [":4: criteria.gemm.bf16", "missing key 'id'"]),
    "duplicate key": ("    per: node\n    unit: TFLOPS", "    per: node\n    per: pair", [
        ":8: criteria.gemm.bf16.per: duplicate key 'per', first given in line 7",
    ]),
    "duplicate criterion": ("  inventory.gpus:", "  gemm.bf16:", [
        ":14: criteria.gemm.bf16: duplicate key", "line 4",
    ]),
    "anchor": (f"- {LIMIT}", f"- &a {LIMIT}", [":13: 'a': anchors and aliases are not allowed"]),
    "alias": ("cluster: {}", "cluster: *a", [":2: 'a': anchors and aliases are not allowed"]),
    "merge": ("cluster: {}", "cluster: {<<: {}}", [":2: cluster.<<: a key must be text"]),
    "object": ("title: Fast\n", "title: !!python/none x\n", [":6: criteria.gemm.bf16.title: tag"]),
    "wrong unit of a family": ("unit: TFLOPS", "unit: GB/s", [
        ":8: criteria.gemm.bf16.unit: gemm.bf16 is in TFLOPS, not in GB/s",
    ]),
    "unknown unit": ("unit: TFLOPS", "unit: TFLOP", [
        ":8: criteria.gemm.bf16.unit: unit 'TFLOP' is not known, did you mean 'TFLOPS'?",
    ]),
    "unit against the ceiling": ("ceiling: gemm", "ceiling: hbm", ["hbm is in GB/s"]),
    "unknown ceiling": ("ceiling: gemm", "ceiling: gem", ["did you mean 'gemm'?"]),
    "unknown per": ("per: node\n    unit: TFLOPS", "per: nodes\n    unit: TFLOPS", [
        ":7: criteria.gemm.bf16.per", "did you mean 'node'?",
    ]),
    "unknown fact": ("when: order", "when: [ordered]", ["did you mean 'order'?"]),
    "unknown spread": ("spread: gemm", "spread: gem", [
        ":11: criteria.gemm.bf16.spread: no class 'gem' in spread:, did you mean 'gemm'?",
    ]),
    "spread of a latency": ("    unit: us\n", "    unit: us\n    spread: gemm\n", [
        "criteria.allreduce.latency.spread: goes with rates only: here a higher value is worse",
    ]),
    "spread of a latency without a number": (
        "    ceiling: latency\n    limits:\n      - {model: H200 SXM, when: {gpus: 4}, expect: 42, "
        "fail_above: 84, source: measured}\n",
        "    spread: gemm\n    limits:\n      - {calibrate: true, source: nobody yet}\n",
        ["criteria.allreduce.latency.spread: goes with rates only"],
    ),
    "missing limit": ("expect: 660, fail_below: 605, ", "", [
        ":13: criteria.gemm.bf16.limits[0]: no limit; a row has exactly one of",
    ]),
    "no limits": (f"limits:\n      - {LIMIT}", "limits: []", [":12: criteria.gemm.bf16.limits"]),
    "two limits": ("expect: 660, fail_below", "fail_above: 700, fail_below", [
        "has fail_below and fail_above",
    ]),
    "missing source": (", source: measured}\n  inventory", "}\n  inventory", ["key 'source'"]),
    "missing expect": ("expect: 660, ", "", ["missing key 'expect'"]),
    "toothless": ("fail_below: 605", "fail_below: 300", [
        ":13: criteria.gemm.bf16.limits[0]: toothless: fail_below 300 is under half of expect 660",
    ]),
    "toothless fraction": ("expect: 0.72 of ceiling, fail_below: 0.60", "fail_below: 0.10", [
        "toothless: 0.1 of ceiling",
    ]),
    "toothless above": ("fail_above: 84", "fail_above: 85", [
        "toothless: fail_above 85 is over 2 x expect 42",
    ]),
    "a floor of 0": ("expect: 660, fail_below: 605", "fail_below: 0, loose: demonstration", [
        "a floor of 0 or less cannot fail",
    ]),
    "impossible: over the ceiling": ("expect: 660", "expect: 1100", [
        "impossible: expect 1100 is above the physical ceiling 1071",
    ]),
    "impossible though loose": ("expect: 660, fail_below: 605", "fail_below: 1100, loose: x", [
        "impossible: fail_below 1100 is above the physical ceiling 1071",
    ]),
    "impossible: over expect": ("fail_below: 605", "fail_below: 665", ["above expect 660"]),
    "impossible collective": ("expect: 475", "expect: 715", ["above the physical ceiling 700"]),
    "impossible fraction": ("expect: 0.72", "expect: 1.2", ["impossible: expect 1.2 of ceiling"]),
    "impossible latency": ("expect: 42, fail_above: 84", "expect: 1, fail_above: 2", [
        "below the physical floor 2",
    ]),
    "a fraction of nothing": ("    ceiling: all_reduce\n", "", ["needs the criterion's"]),
    "mixed": ("expect: 660", "expect: 0.72 of ceiling", ["both numbers or both fractions"]),
    "1e3": ("fail_below: 605", "fail_below: 1e3", [
        ":13: criteria.gemm.bf16.limits[0].fail_below: '1e3' is read as text: write 1000 or 1.0e+3",
    ]),
    "1e3 elsewhere": ("overlap: [0.8, null]", "overlap: [1e3, null]", ["write 1000 or 1.0e+3"]),
    "1e-2 of a class": ("delta: 0.08", "delta: 8e-2", [":48: spread.gemm.delta", "write 8.0e-2"]),
    "text for a number": ("fail_below: 605", "fail_below: fast", ["expected a number or"]),
    "NaN": ("fail_below: 605", "fail_below: .nan", [":13: ", ".nan is not a finite number"]),
    "NaN as text": ("fail_below: 605", "fail_below: NaN", [":13: ", "got 'NaN'"]),
    "infinite": ("overlap: [0.8, null]", "overlap: [0.8, .inf]", [":10: ", "not a finite number"]),
    "huge": ("fail_below: 605", "fail_below: 1.0e+999", ["not a finite number"]),
    "octal": ("fail_below: 605", "fail_below: 0605", ["0605 is not a plain decimal number"]),
    "base 60": ("fail_below: 605", "fail_below: 1:30", ["1:30 is not a plain decimal number"]),
    "null": ("fail_below: 605", "fail_below: null", ["got None"]),
    "two alike": (f"- {LIMIT}", f"- {LIMIT}\n      - {LIMIT}", [
        ":14: criteria.gemm.bf16.limits[1]: the same conditions as a row above: model=H200 SXM",
    ]),
    "unknown GPU": ("model: H200 SXM, expect: 660", "model: H200, expect: 660", [
        "limits[0].model: GPU model 'H200' is not known, did you mean 'H200 SXM' or 'H200 NVL'?",
        "--calibrate",
    ]),
    "unknown contract field": ("equals: cluster.gpus_per_node", "equals: cluster.gpu_per_node", [
        "the contract has no field 'gpu_per_node', did you mean 'gpus_per_node'?",
    ]),
    "equals of a median": ("    statistic: value\n", "", ["equals needs", "statistic: value"]),
    "unknown condition": ("when: {gpus: 8, nvls: true}", "when: {gpu: 8, nvls: true}", [
        "limits[1].when", "unknown key 'gpu', did you mean 'gpus'?",
    ]),
    "a flag as text": ("nvls: true", "nvls: 'yes'", ["limits[1].when.nvls", "true or false"]),
    "decimal size": ("size: [256MiB, 1GiB]", "size: [256MB, 1GiB]", ["got '256MB'"]),
    "a range upside down": ("gpus: 8, nvls", "gpus: {min: 9, max: 8}, nvls", ["min 9 is above"]),
    "unreachable row": ("gpus: 8, nvls", "size: 4GiB, nvls", ["at none of the criterion's points"]),
    "unknown exempted key": ("criteria: [gemm.bf16]", "criteria: [gemm.bf17]", [
        ":44: not_applicable[0].criteria: no criterion 'gemm.bf17', did you mean 'gemm.bf16'?",
    ]),
    "exempted by the record": ("when: {model: cpu}", "when: {nvls: true}", ["from the record"]),
    "unknown waived key": ("criterion: gemm.bf16", "criterion: gemm", [":46: waivers[0]"]),
    "a date unquoted": ('"2026-12-31"', "2026-12-31", [":46: ", "quote it"]),
    "no date": ('"2026-12-31"', '"soon"', ["expected a date", "got 'soon'"]),
    "another schema": ("schema: 1", "schema: 2", [":1: schema"]),
    "half a contract": ("cluster: {}", "cluster: {nodes: 2}", [":2: cluster", "missing key"]),
    "a version unquoted": (
        "cluster: {}",
        "cluster: {nodes: 2, gpus_per_node: 8, gpu_model: H200 SXM, driver: 535.10}",
        [":2: cluster.driver: expected text, got 535.1 (quote it)"],
    ),
    "a GPU nobody knows": (
        "cluster: {}",
        "cluster: {nodes: 2, gpus_per_node: 8, gpu_model: H20}",
        [":2: cluster.gpu_model", "'H20' is not known", "--calibrate"],
    ),
    "no nodes": (
        "cluster: {}",
        "cluster: {nodes: 0, gpus_per_node: 8, gpu_model: H200 SXM}",
        [":2: cluster.nodes"],
    ),
    "a hostlist": (
        "cluster: {}",
        "cluster: {nodes: 'gpu[1-', gpus_per_node: 8, gpu_model: H200 SXM}",
        [":2: cluster.nodes", "not a hostlist"],
    ),
    "a flag as key": ("title: Fast\n", "on: Fast\n", [":6: ", "a key must be text, not 'on'"]),
    "a key that is no id": ("  inventory.gpus:", "  inventory/gpus:", [":14: ", "letters, digits"]),
    "a key twice by its size": ("  inventory.gpus:", "  allreduce.node.1GiB:", [
        ":23: criteria.allreduce.node: gives allreduce.node.1GiB a second time",
    ]),
    "an empty reason": ("source: measured}\n  inv", "source: ''}\n  inv", [":13: ", "source"]),
    "a tab": ("  gemm.bf16:", "\tgemm.bf16:", [":4: ", "\\t"]),
    "deep": ("cluster: {}", "cluster: " + "[" * 5000 + "]" * 5000, [":2: nested deeper than"]),
    "two documents": ("schema: 1", "schema: 1\n---", [":2: but found another document"]),
    "not a mapping": (SMALL, "- 1\n", ["expected a mapping"]),
    "empty": (SMALL, "", [":1: is empty"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_that_says_where_and_what(name, tmp_path):
    old, new, said = BAD[name]
    assert old in SMALL
    file = write(tmp_path, SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        loader.load(file)
    line = str(caught.value)
    assert line.startswith("thresholds.yaml:")
    assert "\n" not in line
    assert len(line) < 400
    for words in said:
        assert words in line


def test_a_missing_huge_or_binary_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        loader.load(tmp_path / "none.yaml")
    file = write(tmp_path, "# " + "x" * 1_000_001)
    with pytest.raises(ConfigError, match="1000003 bytes"):
        loader.load(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        loader.load(file)
    file.write_bytes(b"a: \x07")
    with pytest.raises(ConfigError, match=r"thresholds\.yaml:1: "):
        loader.load(file)


@settings(deadline=None)
@given(st.integers(0, len(SMALL) - 1), st.sampled_from(list("{}[]:,'\"&*!|>%@`#\t\n -0a.")))
def test_no_typing_error_escapes_as_anything_but_one_line(tmp_path_factory, position, char):
    text = SMALL[:position] + char + SMALL[position + 1 :]
    file = write(tmp_path_factory.mktemp("typed"), text)
    try:
        loader.load(file)
        said = ""
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said


NUMBERS = st.floats(0.01, 2000, allow_nan=False)


@given(NUMBERS, st.none() | NUMBERS, NUMBERS)
def test_what_the_lint_lets_in_is_possible_and_has_teeth(below, expect, ceiling):
    row = limits.Limit.model_validate(
        {"fail_below": below, "source": "x"} | ({"expect": expect} if expect else {})
    )
    if lint_row(row, [ceiling], "gemm") is None:
        assert 0 < 0.5 * expect <= below <= expect <= ceiling


@given(NUMBERS, st.none() | NUMBERS, NUMBERS)
def test_nor_is_an_upper_limit_below_the_floor_or_out_of_reach(above, expect, floor):
    row = limits.Limit.model_validate(
        {"fail_above": above, "source": "x"} | ({"expect": expect} if expect else {})
    )
    if lint_row(row, [floor], "latency") is None:
        assert floor <= expect <= above <= 2 * expect


# --- which limit holds

H200 = {"model": "H200 SXM", "gpus": 8, "nodes": 1, "power_limit": "default"}


def test_the_most_specific_row_wins(small):
    criterion = small.criteria["allreduce.node.1GiB"]
    assert criterion.limit_for(H200 | {"nvls": True}).fail_below.number == 445
    assert criterion.limit_for(H200 | {"nvls": False}).fail_below.of_ceiling
    assert criterion.limit_for(H200 | {"gpus": 4}).fail_below.of_ceiling


def test_a_weaker_row_never_stands_in_for_one_that_an_unknown_fact_may_select(small):
    criterion = small.criteria["allreduce.node.1GiB"]
    with pytest.raises(limits.OpenFact, match="depends on nvls, which is not known"):
        criterion.limit_for(H200)
    criterion.check_limits(H200)


def test_no_row_is_an_error_that_prints_the_conditions(small):
    with pytest.raises(limits.NoLimit, match=r"no limit for model=L40S \(rows: model=H200 SXM\)"):
        small.criteria["gemm.bf16"].limit_for({"model": "L40S"})
    with pytest.raises(limits.NoLimit):
        small.criteria["gemm.bf16"].check_limits({"model": "L40S"})


TIE = SMALL.replace(
    "      - {expect: 0.72 of ceiling",
    "      - {model: H200 SXM, when: {gpus: {min: 4}, algorithm: ring}, expect: 366,"
    " fail_below: 345, source: x}\n      - {expect: 0.72 of ceiling",
)


def test_two_equally_specific_are_an_error_before_the_run(tmp_path):
    criterion = load(tmp_path, TIE).criteria["allreduce.node.1GiB"]
    said = r"equally specific for .*\(model=H200 SXM, gpus>=4, algorithm=ring\) and \(model=.*nvls"
    with pytest.raises(ConfigError, match=said):
        criterion.limit_for(H200 | {"nvls": True, "algorithm": "ring"})
    with pytest.raises(ConfigError, match=said):
        criterion.check_limits(H200)
    criterion.check_limits(H200 | {"gpus": 2})
    assert criterion.limit_for(H200 | {"nvls": True}).fail_below.number == 445
    assert criterion.limit_for(H200 | {"gpus": 4, "algorithm": "ring"}).fail_below.number == 345


MODELS = ["H200 SXM", "H100 SXM"]
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from([4, 8, {"min": 4}, {"min": 2, "max": 8}]),
        "nodes": st.sampled_from([1, 2, {"max": 3}]),
        "nvls": st.booleans(),
        "algorithm": st.just("ring"),
        "power_limit": st.sampled_from(["default", "lowered"]),
    },
)
ROWS = st.lists(
    st.tuples(st.sampled_from([None, *MODELS, MODELS]), CONDITIONS), min_size=1, max_size=6
)
FACTS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "gpus": st.sampled_from([2, 4, 8, 16]),
        "nodes": st.sampled_from([1, 2, 4]),
        "power_limit": st.sampled_from(["default", "lowered"]),
        "nvls": st.booleans(),
    },
    optional={"algorithm": st.just("ring")},
)


def rows_of(drawn) -> list[limits.Limit]:
    rows = []
    for number, (model, when) in enumerate(drawn):
        data = {"when": when, "fail_below": number + 1.0, "source": "x"}
        rows.append(limits.Limit.model_validate(data | ({"model": model} if model else {})))
    return rows


def outcome(rows, facts):
    try:
        return limits.choose("x", rows, facts)
    except limits.NoLimit:
        return "none"
    except limits.OpenFact:
        return "open"
    except ConfigError:
        return "tie"


@settings(deadline=None)
@given(ROWS, FACTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_never_matters(drawn, facts, random):
    rows = rows_of(drawn)
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert outcome(rows, facts) == outcome(shuffled, facts)


@settings(deadline=None)
@given(ROWS, FACTS)
def test_the_chosen_row_holds_and_no_other_says_more(drawn, facts):
    rows = rows_of(drawn)
    chosen = outcome(rows, facts)
    fitting = [row for row in rows if row.missing(facts) == []]
    if chosen == "none":
        assert not fitting
    elif chosen == "tie":
        most = max(len(row.conditions()) for row in fitting)
        assert sum(len(row.conditions()) == most for row in fitting) > 1
    else:
        assert chosen in fitting
        others = [row for row in fitting if row is not chosen]
        assert all(len(row.conditions()) < len(chosen.conditions()) for row in others)


@settings(deadline=None)
@given(ROWS, FACTS)
def test_a_plan_that_is_accepted_never_ends_in_a_tie(drawn, facts):
    rows = rows_of(drawn)
    known = {k: v for k, v in facts.items() if k not in RECORD_ONLY}
    outcomes = {outcome(rows, more) if isinstance(outcome(rows, more), str) else "one"
                for more in limits.outlooks(rows, known)}  # fmt: skip
    if "tie" not in outcomes:
        assert outcome(rows, facts) != "tie"
    assert "open" not in outcomes


# --- what a limit says


def test_limits_resolve_to_numbers_and_text(small, shipped):
    contract = Contract(nodes="gpu[01-32]", gpus_per_node=8, gpu_model="H200 SXM")
    fixed = small.criteria["gemm.bf16"].limit_for(H200).resolve(1070, None)
    assert (fixed.kind, fixed.value, fixed.expect, fixed.text) == ("below", 605, 660, ">= 605")
    share = small.criteria["allreduce.node.1GiB"].limit_for(H200 | {"gpus": 4})
    assert share.resolve(450, None).value == pytest.approx(270)
    assert share.resolve(450, None).text == ">= 270 (0.6 of ceiling 450)"
    with pytest.raises(ConfigError, match="no ceiling"):
        share.resolve(None, None)
    count = small.criteria["inventory.gpus"].limit_for({})
    assert count.resolve(None, contract).value == 8
    assert count.resolve(None, contract).text == "= 8"
    with pytest.raises(ConfigError, match="cluster: is empty"):
        count.resolve(None, None)
    nodes = shipped.criteria["inventory.nodes"].limit_for({}).resolve(None, contract)
    assert nodes.value == 32
    errors = shipped.criteria["allreduce.node.errors"].limit_for({}).resolve(None, None)
    assert (errors.kind, errors.value, errors.text) == ("above", 0, "<= 0")
    with pytest.raises(ConfigError, match="does not say nics_per_node"):
        shipped.criteria["inventory.nics"].limit_for({}).resolve(None, contract)


def test_a_row_that_a_person_must_fill_in_has_no_number(shipped):
    limit = shipped.criteria["gemm.bf16"].limit_for({"model": "L40S", "power_limit": "default"})
    assert limit.resolve(300, None).kind == "calibrate"
    assert limit.resolve(300, None).value is None


def test_a_lowered_power_limit_leaves_no_limit(shipped):
    with pytest.raises(limits.NoLimit, match="power_limit=lowered"):
        shipped.criteria["gemm.bf16"].limit_for(H200 | {"power_limit": "lowered"})


def test_rows_replace_the_criterions_bounds_of_the_same_name(shipped):
    criterion = shipped.criteria["gemm.fp32"]
    cpu = criterion.valid_for(criterion.limit_for({"model": "cpu"}))
    gpu = criterion.valid_for(criterion.limit_for(H200))
    assert gpu == criterion.valid | {"clock_ceiling": (None, 1.05)}
    assert cpu == criterion.valid | {"batches": (5, None), "overlap": (0.1, None)}
    assert gpu["batches"] == (20, None)
    assert gpu["relative_error"] == (None, 2e-5)


# --- what is not judged


def test_reasons_for_not_running(small, shipped):
    gemm, gpus = small.criteria["gemm.bf16"], small.criteria["inventory.gpus"]
    assert small.not_applicable(gemm, {"model": "cpu"}, set()) == "no such unit"
    assert small.not_applicable(gemm, H200, set()) is None
    assert small.not_applicable(gpus, H200, set()) == loader.WHEN["order"]
    assert small.not_applicable(gpus, H200, {"order"}) is None
    reason = shipped.not_applicable(
        shipped.criteria["allreduce.cluster.8GiB"], {"model": "cpu"}, {"multinode"}
    )
    assert reason == "a demonstration sweeps to 256 MiB"


def test_a_size_without_a_figure_is_recorded_and_not_judged(shipped):
    criterion = shipped.criteria["allreduce.node.256MiB"]
    reason = shipped.not_applicable(criterion, H200, {"multigpu"})
    assert reason.startswith("recorded, not judged")
    assert shipped.not_applicable(criterion, H200 | {"gpus": 4}, {"multigpu"}) is None
    resolved = criterion.limit_for(H200).resolve(450, None)
    assert (resolved.kind, resolved.source) == ("recorded", reason)


def test_waivers_end(small):
    assert not small.waiver("gemm.bf16", "n1", date(2026, 12, 31)).expired
    assert small.waiver("gemm.bf16", "n1", date(2027, 1, 1)).expired
    assert small.waiver("gemm.bf16", "n2", date(2026, 1, 1)) is None
    assert small.waiver("inventory.gpus", "n1", date(2026, 1, 1)) is None


def test_spread_has_figures_of_its_own_for_a_model(small):
    assert small.spread["gemm"].for_model("H200 SXM").delta == 0.08
    assert small.spread["gemm"].for_model("cpu").delta == 0.67
    assert small.spread["gemm"].for_model("cpu").run_sigma == 0.003


# --- the contract


def test_a_contract_is_read(tmp_path):
    text = SMALL.replace(
        "cluster: {}",
        "cluster: {nodes: 'gpu[01-02,7]', gpus_per_node: 8, gpu_model: H200 SXM,"
        " nics_per_node: 8, nic_gbps: 400, driver: '535.10'}",
    )
    contract = load(tmp_path, text).cluster
    assert contract.node_names == ["gpu01", "gpu02", "gpu7"]
    assert contract.node_count == 3
    assert contract.facts() == {
        "model": "H200 SXM", "gpus_per_node": 8, "nics_per_node": 8, "nic_gbps": 400,
    }  # fmt: skip
    assert Contract(**contract.model_dump()) == contract


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]-ib", ["n08-ib", "n09-ib", "n10-ib"]),
        ("a[1,3],b[2]", ["a1", "a3", "b2"]),
        ("gpu[7,01-02]", ["gpu01", "gpu02", "gpu7"]),
        ("rack[1-2]n[8-9]", ["rack1n8", "rack1n9", "rack2n8", "rack2n9"]),
        ("login,r[1,3]n[01-02]-ib", ["login", "r1n01-ib", "r1n02-ib", "r3n01-ib", "r3n02-ib"]),
    ],
)
def test_hostlists(text, names):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,",
        "a[",
        "a[]",
        "a[1-]",
        "a[2-1]",
        "a,a",
        "a[1-9999999]",
        "a[1-2]b[",
        "a[1-999]b[1-999]",
        "a[1,1]",
        "@all",
        "a!b",
        "a[0-8/2]",
    ],
)
def test_what_is_no_hostlist_is_refused(text):
    with pytest.raises(ValueError):
        expand_hostlist(text)


# --- sizes and numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (1.14253e-05, "1.143e-05"), (97.16735, "97.17"), (9999.4, "9999"),
        (9999.6, "10000"), (11621.9, "11622"), (-54492.75, "-54493"), (184_415_000.0, "184415000"),
        (2.5e9, "2.5e+09"), (float("inf"), "inf"), (float("nan"), "nan"), (184_415, "184415"),
        ("reloads", "reloads"),
    ],
)  # fmt: skip
def test_a_figure_is_read_without_an_exponent(value, shown):
    assert digits(value) == shown


@given(st.integers(1, 2**20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_sizes_survive_being_written(count, unit):
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["1GB", "1", "0GiB", "1.5GiB", "-1GiB", "1 gib", ""])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.floats(1e-12, 1e15))
def test_the_proposed_spelling_is_a_number_in_yaml(number):
    import yaml

    for proposal in as_number(f"{number!r}").split(" or "):
        assert isinstance(yaml.safe_load(proposal), (int, float))


def test_a_flag_is_not_a_count():
    row = limits.Limit(when=limits.Conditions(gpus=1), calibrate=True)
    assert row.missing({"gpus": True}) is None
    assert Range(min=1).holds(True) is False


# --- fractions of what was ordered


def of_order(**row: object) -> limits.Limit:
    return limits.Limit.model_validate({"source": "the order", **row})


def test_limit_is_a_fraction_of_what_was_ordered():
    row = of_order(fail_below="0.95 of cluster.shared_tb")
    order = Contract(nodes=1, gpus_per_node=1, gpu_model="cpu", shared_tb=200)
    resolved = row.resolve(None, order)
    assert resolved.value == pytest.approx(190)
    assert resolved.text == ">= 190 (0.95 of cluster.shared_tb)"
    assert lint_row(row, [], None) is None


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (None, "cluster: is empty"),
        (Contract(nodes=1, gpus_per_node=1, gpu_model="cpu"), "does not say shared_tb"),
    ],
)
def test_fraction_of_what_was_not_ordered_is_no_limit(order, says: str):
    with pytest.raises(ConfigError, match=says):
        of_order(fail_below="0.95 of cluster.shared_tb").resolve(None, order)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"fail_below": "1.2 of cluster.shared_tb"}, "impossible"),
        ({"fail_below": "0.1 of cluster.shared_tb"}, "toothless"),
        ({"fail_above": "1 of cluster.shared_tb"}, "plain numbers"),
        ({"fail_below": "0.5 of cluster.shared_tb", "expect": 0.6}, "of the same"),
    ],
)
def test_fraction_of_the_order_is_checked_as_others_are(row, says: str):
    assert says in (lint_row(of_order(**row), [], None) or "")


def test_fraction_of_an_unknown_field_is_refused():
    with pytest.raises(ValueError, match="no field 'shared_tbb'"):
        of_order(fail_below="0.95 of cluster.shared_tbb")


# --- the shipped file


def situations(model: str, gpus: int, nodes: int):
    """Facts before the run, and what a record may add."""
    plan = {
        "model": model, "gpus_per_node": gpus, "nics_per_node": 8, "nic_gbps": 400,
        "cpu_cores": 2, "cpu_max_ghz": 3.0,
    }  # fmt: skip
    for nvls in (True, False):
        for ring in ({}, {"algorithm": "ring"}):
            yield plan, {"nvls": nvls, "sharp": False, "power_limit": "default", **ring}


def around(criterion: Criterion, gpus: int, nodes: int):
    count = {"node": 1, "pair": 2}.get(criterion.per, nodes)
    return {
        "gpus": gpus * count, "nodes": count, "domains": count, "gpus_per_domain": gpus,
    }  # fmt: skip


@pytest.mark.parametrize("model", hardware.MODELS)
@pytest.mark.parametrize(("gpus", "nodes"), [(1, 1), (2, 2), (4, 1), (8, 2), (8, 3), (8, 64)])
def test_every_criterion_has_one_possible_limit_or_a_reason_for_every_model(
    shipped, model, gpus, nodes
):
    gpu = hardware.GPUS.get(model)
    contract = Contract(
        nodes=nodes, gpus_per_node=gpus, gpu_model=model, nics_per_node=8, nic_gbps=400
    )
    holds = {"order", "nics", "own_host"} | ({"gpu"} if gpu else set())
    holds |= {"fp8"} if gpu and gpu.fp8 else set()
    holds |= ({"multigpu"} if gpus > 1 else set()) | ({"multinode"} if nodes > 1 else set())
    holds |= {"several"} if gpus * nodes > 1 else set()
    device = {"flops_per_token": 5e10 if gpu else 6e5}
    if gpu:
        device |= {
            "compute_capability": gpu.compute_capability,
            "sm_count": gpu.sm_count or 150,
            "max_sm_clock_mhz": gpu.max_sm_clock_mhz or 2000,
            "memory_clock_mhz": 2000,
            "memory_bus_bits": 5120,
            "pcie_gen": gpu.pcie_gen,
            "pcie_width": 16,
            "alone_gbps": 50,
        }
    judged = set()
    for criterion in shipped.criteria.values():
        for plan, record in situations(model, gpus, nodes):
            plan = plan | around(criterion, gpus, nodes)
            if reason := shipped.not_applicable(criterion, plan, holds):
                assert "1GiB" not in criterion.key or not reason.startswith("recorded")
                continue
            criterion.check_limits(plan)
            facts = plan | device | record
            resolved = criterion.limit_for(facts).resolve(criterion.bound(facts), contract)
            judged.add(criterion.key)
            bound = criterion.bound(facts)
            if resolved.kind == "below" and bound is not None:
                assert 0 < resolved.value <= (resolved.expect or resolved.value) <= bound
    assert {"environment.versions", "gemm.bf16", "inventory.gpus"} <= judged


def test_the_shipped_keys(shipped):
    keys = set(shipped.criteria)
    assert {f"gemm.{d}" for d in ("bf16", "fp16", "tf32", "fp32", "fp8", "spread")} <= keys
    for where, sizes in (("node", "256MiB 1GiB 4GiB 8GiB"), ("pair", "256MiB 1GiB 8GiB")):
        assert {f"allreduce.{where}.{size}" for size in sizes.split()} <= keys
    assert shipped.cluster is None
    assert shipped.waivers == ()
    assert shipped.criteria["gemm.spread"].measure == "gemm.bf16"
    assert shipped.criteria["allreduce.node.1GiB"].title.endswith("at 1GiB")


def test_every_source_means_something_to_a_customer(shipped):
    for criterion in shipped.criteria.values():
        for row in criterion.limits:
            source = row.source or ""
            assert ".md" not in source or "ml-engineering" in source
            assert "/work" not in source
            assert "section" not in source


def test_an_unknown_gpu_is_a_config_error():
    assert issubclass(UnknownGpu, ConfigError)
