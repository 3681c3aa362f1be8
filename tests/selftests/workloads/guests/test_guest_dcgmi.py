"""Results of dcgmi, of DCGM 3 and 4: what is read, and what is refused with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.workloads.guests import guest_dcgmi
from fixtures.workloads.guests.guest_files import GuestError
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("text", "version", "tests", "failing", "gpu"),
    [
        (guest_samples.dcgm3(), "3.3.8", 3, [], ""),
        (guest_samples.dcgm3("GPU Memory"), "3.3.8", 3, ["GPU Memory"], "GPU 1"),
        (guest_samples.dcgm4(), "4.5.3", 6, [], ""),
        (guest_samples.dcgm4("pcie"), "4.5.3", 6, ["pcie"], "GPU 1"),
    ],
    ids=map(str, range(4)),
)
def test_dcgmi_of_both_forms_is_read(text, version, tests, failing, gpu):
    found = guest_dcgmi.parse(text)
    assert (found.version, len(found.tests)) == (version, tests)
    assert [t.name for t in found.of("fail")] == failing
    assert all(t.failed == [f"{gpu}: GPU 1 is not well"] for t in found.of("fail"))
    assert found.driver


@pytest.mark.parametrize(
    ("sample", "change", "says"),
    [
        (guest_samples.dcgm4("pcie"), ('"Fail"', '"Fehler"'), "'Fehler' is not one of"),
        (guest_samples.dcgm4(), ('"entity_id": 1', '"entity": 1'), "entity: is not known here"),
        (guest_samples.dcgm4(), ('"test_summary"', '"summary"'), "summary: is not known here"),
        (guest_samples.dcgm3(), ('"3.3.8"', '"3.3.8", "runtime_error": "no GPU"'), "no GPU"),
        (guest_samples.dcgm3(), ('"results"', '"result"'), "has no 'results'"),
        (guest_samples.dcgm3(), ('"PCIe"', '"Denylist"'), "2 times"),
    ],
    ids=map(str, range(6)),
)  # fmt: skip
def test_json_that_is_not_known_is_refused_with_its_line(sample, change, says):
    changed = sample.replace(*change, 1)
    assert changed != sample
    with pytest.raises(GuestError) as refused:
        guest_dcgmi.parse(changed)
    assert says in str(refused.value)
    assert str(refused.value).startswith("line ")


def _line(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_the_line_is_that_of_the_value():
    text = guest_samples.dcgm4("pcie").replace('"Fail"', '"Fehler"', 1)
    with pytest.raises(GuestError, match=rf"line {_line(text, 'Fehler')}: .*\[2\]\.tests\[0\]"):
        guest_dcgmi.parse(text)


def parsed(*tests: Any, root: str = "DCGM Diagnostic", **more: Any) -> guest_dcgmi.Diagnostic:
    body = {"test_categories": [None, {"category": "Hardware", "tests": [None, *tests]}], **more}
    return guest_dcgmi.parse(json.dumps({root: body}))


def one(*results: Any, summary: Any = None) -> Any:
    """The one test with these results, and this summary."""
    given: dict[str, Any] = {"name": "PCIe", "results": [None, *results]}
    if summary is not None:
        given["test_summary"] = summary
    (test,) = parsed(given).tests
    return test


def test_the_worst_result_of_a_test_counts():
    for statuses, worst in (
        (["Pass", "Fail", "Warn"], "fail"), (["Pass", "Warn", "Skip"], "warn"),
        (["Skip", "Pass"], "pass"), (["Not Run", "Skipped"], "skip"), ([" PASS "], "pass"),
    ):  # fmt: skip
        test = one(*({"status": status} for status in statuses))
        assert (test.name, test.category, test.status) == ("PCIe", "Hardware", worst)
    with pytest.raises(GuestError, match="PCIe: no result"):
        one()


def test_failures_say_which_gpu_and_why():
    for result, said in (
        ({"gpu_id": 3, "warnings": ["a", "b"]}, "GPU 3: a; b"), ({"gpu_ids": "1,2"}, "GPU 1,2"),
        ({"entity_id": 1, "entity_group": "CPU"}, "CPU 1"), ({"entity_id": 1}, "entity 1"),
        ({"warnings": [{"warning": "x" * 400, "error_id": 1}]}, "x" * 300), ({}, "PCIe"),
    ):  # fmt: skip
        assert one({"status": "Fail", **result}).failed == [said]
    assert one({"status": "Warn", "gpu_id": 3}).failed == []


def test_a_summary_counts_beside_the_results():
    failed = {"status": "Fail", "warnings": ["why"]}
    assert one({"status": "Pass"}, summary=failed).failed == ["why"]
    assert one({"status": "Pass"}, summary={"status": "Fail"}).failed == ["PCIe"]
    assert one({"status": "Fail", "gpu_id": 0}, summary=failed).failed == ["GPU 0"]
    assert one({"status": "Pass"}, summary={"status": "Pass"}).status == "pass"
    assert one(summary={"status": "Pass"}).status == "pass"
    with pytest.raises(GuestError, match="an object was expected"):
        one(summary=[])


def test_versions_are_of_the_body_or_the_metadata():
    test = {"name": "PCIe", "results": [{"status": "Pass"}]}
    found = parsed(test, version="4.1", **{"Driver Version Detected": "580.1"})
    assert (found.version, found.driver) == ("4.1", "580.1")
    assert parsed(test, **{"DCGM Version": "3.3"}).version == "3.3"
    assert (parsed(test).version, parsed(test).driver) == ("of unknown version", "")
    text = json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": []}, "metadata": {"version": "4.9"}}
    )
    assert guest_dcgmi.parse(text).version == "4.9"


def test_one_diagnostic_with_tests_of_different_names_is_expected():
    with pytest.raises(GuestError, match="has 2 of the keys"):
        guest_dcgmi.parse('{"DCGM GPU Diagnostic": {}, "DCGM Diagnostic": {}}')
    with pytest.raises(GuestError, match="has 0 of the keys"):
        guest_dcgmi.parse("{}")
    test = {"name": "PCIe", "results": [{"status": "Pass"}]}
    with pytest.raises(GuestError, match="has the test 'PCIe' 2 times"):
        parsed(test, test)
