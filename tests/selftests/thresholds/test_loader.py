"""thresholds.yaml: what gets in, and in one line what does not."""

# Length: one table of mistakes, each with its line.

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.errors import ConfigError, UnknownGpu
from fixtures.slurm.hostlist import expand_hostlist
from fixtures.thresholds import limits, loader
from fixtures.thresholds.conditions import Range, parse_size
from fixtures.thresholds.contract import Contract
from fixtures.thresholds.lint import lint_row
from fixtures.thresholds.strict_yaml import as_number
from fixtures.wording import digits, format_size
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
        "nic_fabric": "InfiniBand",
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
    assert row.unresolved({"gpus": True}) is None
    assert Range(min=1).holds(True) is False


def test_an_unknown_gpu_is_a_config_error():
    assert issubclass(UnknownGpu, ConfigError)


@pytest.mark.parametrize(
    ("limit", "ceiling"), [(100, "statistic: dip"), (200, "statistic: value\n    ceiling: 100")]
)
def test_a_limit_that_nothing_can_exceed_is_refused(limit, ceiling, tmp_path):
    text = (
        f"  own.key:\n    title: x\n    per: node\n    unit: '%'\n    {ceiling}\n"
        f"    limits:\n      - {{expect: {limit}, fail_above: {limit}, source: x}}\n"
    )
    with pytest.raises(ConfigError, match="toothless: nothing is above 100"):
        load(tmp_path, SMALL.replace("not_applicable:", f"{text}not_applicable:"))


OWN = """\
  own.bf16:
    title: x
    per: node
    unit: TFLOPS
    measure: gemm.bf16
    ceiling: gemm
    {valid}
    limits:
      - {{model: H200 SXM, expect: 660, fail_below: 605, source: x}}
"""


@pytest.mark.parametrize(
    ("valid", "says"),
    [
        ("valid: {overlap: [0.8, null]}", r"a rate needs samples: valid: \{batches: \[5, null\]"),
        ("valid: {batches: [1, null]}", "a rate needs samples"),
        ("valid: {batches: [20, null]}", r"may be a wrong one: valid: \{relative_error: \[null,"),
        ("valid: {batches: [20, null], relative_error: [0, null]}", "may be a wrong one"),
    ],
)
def test_a_rate_of_one_s_own_needs_samples_and_a_check_of_its_result(valid, says, tmp_path):
    text = SMALL.replace("not_applicable:", f"{OWN.format(valid=valid)}not_applicable:")
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, text)


def test_a_shipped_criterion_keeps_its_checks_in_a_whole_definition(tmp_path):
    """As a customer's file of before a check was there: it does not get around it."""
    limits = load(tmp_path, SMALL.replace("    loose: a small test\n", "", 1))
    valid = limits.criteria["gemm.bf16"].valid
    assert valid["overlap"] == (0.8, None)
    assert valid["relative_error"] == (0.001, 0.005)
    assert valid["batches"] == (20, None)
