"""thresholds.yaml: what gets in, and in one line what does not."""

# Length: one table of mistakes, each with its line.

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.errors import ConfigError, UnknownGpu
from fixtures.paths import THRESHOLDS
from fixtures.slurm.hostlist import expand_hostlist
from fixtures.thresholds import definitions, lint, loader, site_facts
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.criteria import CriterionBody
from fixtures.thresholds.loader import Thresholds
from fixtures.wording import digits
from tests.selftests.small_thresholds import SMALL, load, write

pytestmark = pytest.mark.cpu


# --- what does not get in

LIMIT = "{model: H200 SXM, expect: 660, fail_below: 605, source: measured}"

BAD = {
    # name: (text to replace, its replacement, what the one line must say)
    "unknown key": ("fail_below: 605", "fail_blow: 605", [
        ":14: criteria.gemm.bf16.limits[0]: unknown key 'fail_blow', did you mean 'fail_below'?",
    ]),
    "unknown key at the top": ("waivers:", "waiver:", [
        ":48: unknown key 'waiver', did you mean 'waivers'?",
    ]),
    "unknown key of a criterion": ("title: Fast\n", "titel: Fast\n", [
        ":6: criteria.gemm.bf16: unknown key 'titel', did you mean 'title'?",
    ]),
    "missing key": ("    title: Fast\n", "", [":4: criteria.gemm.bf16", "missing key 'title'"]),
    "duplicate key": ("    per: node\n    unit: TFLOPS", "    per: node\n    per: pair", [
        ":8: criteria.gemm.bf16.per: duplicate key 'per', first given in line 7",
    ]),
    "duplicate criterion": ("  inventory.gpus:", "  gemm.bf16:", [
        ":15: criteria.gemm.bf16: duplicate key", "line 4",
    ]),
    "anchor": (f"- {LIMIT}", f"- &a {LIMIT}", [":14: 'a': anchors and aliases are not allowed"]),
    "alias": ("cluster: {}", "cluster: *a", [":2: 'a': anchors and aliases are not allowed"]),
    "merge": ("cluster: {}", "cluster: {<<: {}}", [":2: cluster.<<: a key must be text"]),
    "object": ("title: Fast\n", "title: !!python/none x\n", [":6: criteria.gemm.bf16.title: tag"]),
    "wrong unit of a family": ("unit: TFLOPS", "unit: GB/s", [
        ":8: criteria.gemm.bf16.unit: gemm.bf16 is in TFLOPS, not in GB/s",
    ]),
    "unknown unit": ("unit: TFLOPS", "unit: TFLOP", [
        ":8: criteria.gemm.bf16.unit: gemm.bf16 is in TFLOPS, not in TFLOP",
    ]),
    "unit against the ceiling": ("ceiling: gemm", "ceiling: hbm", ["hbm is in GB/s"]),
    "unknown ceiling": ("ceiling: gemm", "ceiling: gem", ["did you mean 'gemm'?"]),
    "unknown per": ("per: node\n    unit: TFLOPS", "per: nodes\n    unit: TFLOPS", [
        ":7: criteria.gemm.bf16.per", "did you mean 'node'?",
    ]),
    "unknown fact": ("when: order", "when: [ordered]", ["did you mean 'order'?"]),
    "unknown spread": ("spread: gemm", "spread: gem", [
        ":12: criteria.gemm.bf16.spread: no class 'gem' in spread:, did you mean 'gemm'?",
    ]),
    "spread of a latency": ("    unit: us\n", "    unit: us\n    spread: gemm\n", [
        "criteria.allreduce.latency.spread: goes with rates only: here a higher value is worse",
    ]),
    "spread of a latency without a number": (
        "    ceiling: latency\n    loose: a small test\n    limits:\n"
        "      - {model: H200 SXM, when: {gpus: 4}, expect: 42, "
        "fail_above: 84, source: measured}\n",
        "    spread: gemm\n    limits:\n      - {calibrate: true, source: nobody yet}\n",
        ["criteria.allreduce.latency.spread: goes with rates only"],
    ),
    "missing limit": ("expect: 660, fail_below: 605, ", "", [
        ":14: criteria.gemm.bf16.limits[0]: no limit; a row has exactly one of",
    ]),
    "no limits": (f"limits:\n      - {LIMIT}", "limits: []", [":13: criteria.gemm.bf16.limits"]),
    "two limits": ("expect: 660, fail_below", "fail_above: 700, fail_below", [
        "has fail_below and fail_above",
    ]),
    "missing source": (", source: measured}\n  inventory", "}\n  inventory", ["key 'source'"]),
    "missing expect": ("expect: 660, ", "", ["missing key 'expect'"]),
    "toothless": ("fail_below: 605", "fail_below: 300", [
        ":14: criteria.gemm.bf16.limits[0]: toothless: fail_below 300 is under half of expect 660",
    ]),
    "toothless here": ("expect: 660, fail_below: 605", "expect: 30, fail_below: 20", [
        "toothless: fail_below 20 is under 0.3 of the physical ceiling 1071",
    ]),
    "Gbit/s for GB/s": ("expect: 475, fail_below: 445", "expect: 59, fail_below: 55", [
        "toothless: fail_below 55 is under 0.3 of the physical ceiling",
    ]),
    "toothless spread": ("delta: 0.08", "delta: 0.98", [
        "spread.gemm: toothless: delta 0.98 is over 0.25 (or give 'loose: reason')",
    ]),
    "toothless spread of a model": ("delta: 0.67, loose: x", "delta: 0.67", [
        "spread.gemm.models.cpu: toothless: delta 0.67 is over 0.25",
    ]),
    "a row asks for less": (
        "source: measured}\n  inv",
        "source: measured, valid: {overlap: [0, 1]}}\n  inv",
        ["limits[0].valid: toothless: overlap asks for less than the criterion"],
    ),
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
        ":14: criteria.gemm.bf16.limits[0].fail_below: '1e3' is read as text: write 1000 or 1.0e+3",
    ]),
    "1e3 elsewhere": ("overlap: [0.8, null]", "overlap: [1e3, null]", ["write 1000 or 1.0e+3"]),
    "1e-2 of a class": ("delta: 0.08", "delta: 8e-2", [":51: spread.gemm.delta", "write 8.0e-2"]),
    "text for a number": ("fail_below: 605", "fail_below: fast", ["expected a number or"]),
    "NaN": ("fail_below: 605", "fail_below: .nan", [":14: ", ".nan is not a finite number"]),
    "NaN as text": ("fail_below: 605", "fail_below: NaN", [":14: ", "got 'NaN'"]),
    "infinite": ("overlap: [0.8, null]", "overlap: [0.8, .inf]", [":11: ", "not a finite number"]),
    "huge": ("fail_below: 605", "fail_below: 1.0e+999", ["not a finite number"]),
    "octal": ("fail_below: 605", "fail_below: 0605", ["0605 is not a plain decimal number"]),
    "base 60": ("fail_below: 605", "fail_below: 1:30", ["1:30 is not a plain decimal number"]),
    "null": ("fail_below: 605", "fail_below: null", ["got None"]),
    "two alike": (f"- {LIMIT}", f"- {LIMIT}\n      - {LIMIT}", [
        ":15: criteria.gemm.bf16.limits[1]: the same conditions as a row above: model=H200 SXM",
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
        ":47: not_applicable[0].criteria: no criterion 'gemm.bf17', did you mean 'gemm.bf16'?",
    ]),
    "exempted nothing": ("criteria: [gemm.bf16]", "criteria: []", ["or a list of names, got []"]),
    "exempted a number": ("criteria: [gemm.bf16]", "criteria: [3]", ["or a list of names, got [3"]),
    "exempted a mapping": ("criteria: [gemm.bf16]", "criteria: {a: 1}", ["or a list of names"]),
    "no points": ("at: {size: [256MiB, 1GiB]}", "at: {size: []}", ["size: expected a value or"]),
    "an empty point": ("at: {size: [256MiB, 1GiB]}", "at: {to: null}", ["to: expected a value"]),
    "points of no name": ("at: {size: [256MiB, 1GiB]}", "at: [1]", ["expected a mapping like"]),
    "two sweeps": ("at: {size: [256MiB, 1GiB]}", "at: {size: [1MiB, 1GiB], to: [1, 2]}", [
        ": criteria.allreduce.node.at: only one of size, to may be a list",
    ]),
    "a class of no steadiness": ("spread: gemm", "tail: gem", ["no class 'gem' in tails:"]),
    "exempted by the record": ("when: {model: cpu}", "when: {nvls: true}", ["from the record"]),
    "unknown waived key": ("criterion: gemm.bf16", "criterion: gemm", [":49: waivers[0]"]),
    "a date unquoted": ('"2026-12-31"', "2026-12-31", [":49: ", "quote it"]),
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
    "not a key": ("  inventory.gpus:", "  inventory/gpus:", [":15: ", "letters, digits"]),
    "a key twice by its size": ("  inventory.gpus:", "  allreduce.node.1GiB:", [
        ":24: criteria.allreduce.node: gives allreduce.node.1GiB a second time",
    ]),
    "an empty reason": ("source: measured}\n  inv", "source: ''}\n  inv", [":14: ", "source"]),
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


# --- what is read

H200 = {"model": "H200 SXM", "gpus": 8, "nodes": 1}


def test_reasons_for_not_running(tmp_path):
    small = load(tmp_path)
    gemm, gpus = small.criteria["gemm.bf16"], small.criteria["inventory.gpus"]
    assert small.not_applicable(gemm, {"model": "cpu"}, set()) == "no such unit"
    assert small.not_applicable(gemm, H200, set()) is None
    assert small.not_applicable(gpus, H200, set()) == site_facts.FACTS["order"].otherwise
    assert small.not_applicable(gpus, H200, {"order"}) is None


def test_waivers_end(tmp_path):
    small = load(tmp_path)
    assert not small.waiver("gemm.bf16", "n1", date(2026, 12, 31)).expired
    assert small.waiver("gemm.bf16", "n1", date(2027, 1, 1)).expired
    assert small.waiver("gemm.bf16", "n2", date(2026, 1, 1)) is None
    assert small.waiver("inventory.gpus", "n1", date(2026, 1, 1)) is None


def test_of_two_waivers_the_one_that_holds_is_taken(tmp_path):
    text = SMALL.replace(
        "waivers:\n",
        "waivers:\n  - {criterion: gemm.bf16, node: n1, owner: B, reason: x, "
        'expires: "2026-11-30"}\n',
    )
    limits = load(tmp_path, text)
    taken = limits.waiver("gemm.bf16", "n1", date(2026, 12, 5))
    assert taken is not None
    assert (taken.owner, taken.expired) == ("A. Name", False)
    late = limits.waiver("gemm.bf16", "n1", date(2027, 12, 5))
    assert late is not None
    assert late.expired


def test_a_waiver_lasts_a_year_at_most(tmp_path):
    for days, refused in ((366, False), (367, True)):
        end = date.today() + timedelta(days)
        text = SMALL.replace('"2026-12-31"', f'"{end}"')
        if refused:
            with pytest.raises(ConfigError, match=r"waivers\[0\]\.expires: .*more than a year"):
                load(tmp_path, text)
        else:
            assert load(tmp_path, text).waivers[0].expires == end


def test_a_criterion_is_read_with_its_definition(tmp_path):
    text = SMALL.replace("    red: look at it\n    title: Quick", "    title: Quick")
    limits = load(tmp_path, text)
    gemm, gpus = limits.criteria["gemm.bf16"], limits.criteria["inventory.gpus"]
    assert (gemm.red, gemm.valid, gemm.spread) == ("look at it", {"overlap": (0.8, None)}, "gemm")
    assert (gemm.per, gemm.statistic, gemm.over, gemm.tier) == (
        "node", "median", "slowest", "standard",
    )  # fmt: skip
    assert gpus.when == ("order",)
    assert limits.criteria["allreduce.latency"].red == ""
    assert limits.cluster is None
    assert limits.exemptions[0].criteria == ("gemm.bf16",)


def test_each_point_of_a_sweep_is_a_criterion(tmp_path):
    limits = load(tmp_path)
    keys = [key for key in limits.criteria if key.startswith("allreduce.node")]
    assert keys == ["allreduce.node.256MiB", "allreduce.node.1GiB"]
    large = limits.criteria["allreduce.node.1GiB"]
    assert (large.title, large.at) == ("Fast at 1GiB", {"size": 2**30})
    assert (large.workload, large.metric) == ("allreduce", "busbw")
    single = load(tmp_path, SMALL.replace("size: [256MiB, 1GiB]", "size: 1GiB"))
    assert single.criteria["allreduce.node"].at == {"size": 2**30}
    counts = load(tmp_path, SMALL.replace("at: {size: [256MiB, 1GiB]}", "at: {to: [1024, 1]}"))
    assert {"allreduce.node.1024", "allreduce.node.1"} <= set(counts.criteria)
    at_size = SMALL.replace("when: {gpus: 8, nvls: true}", "when: {size: 1GiB, gpus: 8}")
    rows = {k: len(c.limits) for k, c in load(tmp_path, at_size).criteria.items()}
    assert (rows["allreduce.node.256MiB"], rows["allreduce.node.1GiB"]) == (1, 2)
    no_row = at_size.replace("- {expect: 0.72", "- {when: {size: 1GiB}, expect: 0.72")
    with pytest.raises(ConfigError, match=r"no limit for allreduce\.node\.256MiB"):
        load(tmp_path, no_row)


def test_the_workload_says_the_unit_and_whether_its_ranks_wait(tmp_path, monkeypatch):
    limits = load(tmp_path)
    gemm, latency = limits.criteria["gemm.bf16"], limits.criteria["allreduce.latency"]
    assert (gemm.synchronous, gemm.of_one_rank, gemm.measured_unit) == (False, False, "TFLOPS")
    assert (latency.synchronous, latency.of_one_rank) == (True, False)
    described = lint.described_workload((), "allreduce")
    assert described is not None
    alone = replace(described, of_one_rank=("busbw",))
    monkeypatch.setattr(lint, "described_workload", lambda location, workload: alone)
    body = CriterionBody.model_validate({
        "title": "x", "unit": "GB/s", "per": "node",
        "limits": [{"fail_below": 1, "source": "x"}],
    })  # fmt: skip
    busbw, other = (next(loader._expand(f"allreduce.{m}", body)) for m in ("busbw", "latency"))
    assert (busbw.synchronous, busbw.of_one_rank) == (False, True)
    assert (other.synchronous, other.of_one_rank) == (True, False)
    for statistic, metric, workload, unit in (
        ("median", "busbw", described, "GB/s"), ("spread", "busbw", described, "GB/s"),
        ("median", "none", described, "x"), ("median", "busbw", None, "x"),
        ("spread", "busbw", None, None), ("dip", "busbw", None, None),
    ):  # fmt: skip
        body = body.model_copy(update={"statistic": statistic, "unit": "x"})
        assert loader._measured_unit(body, metric, workload) == unit
    monkeypatch.setattr(lint, "described_workload", lambda location, workload: None)
    rate = body.model_copy(update={"statistic": "median", "unit": "GB/s"})
    own = next(loader._expand("own.rate", rate))
    assert (own.synchronous, own.of_one_rank, own.measured_unit) == (False, False, "GB/s")


def test_an_exemption_holds_only_where_all_is_known(tmp_path):
    text = SMALL.replace("when: {model: cpu}, reason: no such", "when: {gpus: 8}, reason: no such")
    limits = load(tmp_path, text)
    gemm = limits.criteria["gemm.bf16"]
    for given_, why in (({"gpus": 8}, "no such unit"), ({"gpus": 4}, None), ({}, None)):
        assert limits.not_applicable(gemm, given_, set()) == why
    latency = limits.criteria["allreduce.latency"]
    assert limits.not_applicable(latency, {"gpus": 8}, set()) is None
    always = load(tmp_path, SMALL.replace("when: {model: cpu}, reason", "reason"))
    assert always.not_applicable(always.criteria["gemm.bf16"], {}, set()) == "no such unit"


def test_criteria_that_compare_like_devices_are_counted(tmp_path):
    small = load(tmp_path)
    node = small.criteria["gemm.bf16"]
    for changes, count in (
        ([], 1), ([{}], 1), ([{}, {"per": "rail"}], 2), ([{}, {}, {"per": "cluster"}], 2),
        ([{}, {}, {"spread": None}], 2), ([{}, {}, {"statistic": "spread"}], 2),
    ):  # fmt: skip
        written = {str(k): replace(node, **changed) for k, changed in enumerate(changes)}
        assert replace(small, written=written).compared_criteria == count


def test_limits_are_identified_by_their_file_and_the_definitions(tmp_path):
    small: Thresholds = load(tmp_path)
    identity = small.identity()
    path = tmp_path / "thresholds.yaml"
    assert identity["path"] == str(path)
    assert identity["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert identity["definitions_sha256"] == definitions.shipped().sha256


def test_a_recorded_order_takes_the_place_of_the_files_own(tmp_path):
    path = write(tmp_path, SMALL)
    order = {"nodes": 2, "gpus_per_node": 8, "gpu_model": "H200 SXM"}
    ordered = loader.load_with_contract(path, order)
    assert ordered.cluster == Contract(**order)
    assert loader.load_with_contract(path, None).cluster is None
    assert set(ordered.criteria) == set(loader.load(path).criteria)


def test_an_error_in_a_base_names_the_base(tmp_path):
    write(tmp_path, SMALL.replace("gemm.bf16]", "gemm.bf17]"))
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: thresholds.yaml\ncluster: {}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^thresholds\.yaml:"):
        loader.load(mine)
    write(tmp_path, SMALL)
    mine.write_text(
        "base: thresholds.yaml\ncriteria:\n  gemm.bf16:\n    limits:\n"
        "      - {model: L40S, expect: 250, fail_below: 240, source: x}\n",
        encoding="utf-8",
    )
    both = loader.load(mine)
    assert [row.model for row in both.criteria["gemm.bf16"].limits] == [("L40S",), ("H200 SXM",)]
    assert both.path == mine


# --- names of hosts


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


# --- numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (1.14253e-05, "0.00001143"), (97.16735, "97.17"), (9999.4, "9999"),
        (9999.6, "10000"), (11621.9, "11622"), (-54492.75, "-54493"), (184_415_000.0, "184415000"),
        (2.5e9, "2500000000"), (float("inf"), "inf"), (float("nan"), "nan"), (184_415, "184415"),
        ("reloads", "reloads"),
    ],
)  # fmt: skip
def test_a_figure_is_read_without_an_exponent(value, shown):
    assert digits(value) == shown


def test_an_unknown_gpu_is_a_config_error():
    assert issubclass(UnknownGpu, ConfigError)


def test_files_are_read_at_each_call_and_checked_where_they_are_new(tmp_path):
    """A run loads its limits in many places; a file that was written anew meanwhile counts."""
    path = tmp_path / "own.yaml"

    def order(nodes: int) -> None:
        contract = f"{{nodes: {nodes}, gpus_per_node: 8, gpu_model: H200 SXM}}"
        path.write_text(f"schema: 1\nbase: {THRESHOLDS}\ncluster: {contract}\n")

    order(2)
    first, again = loader.load(path), loader.load(path)
    assert first.written is again.written
    order(3)
    assert loader.load(path).cluster != first.cluster
    order(0)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"own\.yaml:3: cluster.nodes"):
            loader.load(path)
