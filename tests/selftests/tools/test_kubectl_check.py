"""The manifest by kubectl's own eyes, and that they see: without a cluster."""

from __future__ import annotations

import shutil

import pytest

from tests.tools import kubectl_check
from tests.tools.kubectl_check import MANIFEST, document, field, schema

pytestmark = pytest.mark.cpu

TEXT = MANIFEST.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kubectl() -> str:
    if (found := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not on this host")
    return found


def test_kubectl_finds_the_manifest_valid(kubectl):
    status, said = kubectl_check.check(TEXT, kubectl)
    assert status == 0, said
    assert said.splitlines() == [
        "persistentvolumeclaim/acceptance created (dry run)",
        "service/acceptance created (dry run)",
        "job.batch/acceptance created (dry run)",
    ]


def test_kubectl_finds_what_is_wrong_in_it(kubectl):
    changed = TEXT
    for old, new in (
        ("completionMode:", "completionmode:"), ("completions: 2", 'completions: "two"'),
        ("mountPath: /shared", "path: /shared"),
    ):  # fmt: skip
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    status, said = kubectl_check.check(changed, kubectl)
    assert status == 1
    for words in (
        'unknown field "completionmode"', 'got "string", expected "integer"',
        'missing required field "mountPath"',
    ):  # fmt: skip
        assert words in said


def test_a_kind_that_is_not_served_is_refused(kubectl):
    status, said = kubectl_check.check(TEXT.replace("batch/v1", "batch/v9"), kubectl)
    assert status == 1
    assert "batch/v9" in said or "Job" in said


def test_a_schema_in_the_form_that_kubectl_reads():
    assert field(1, "ab") == b"\x0a\x02ab"
    assert field(27, True) == b"\xd8\x01\x01"
    assert field(9, "x" * 300)[1:3] == b"\xac\x02", "lengths above 127 take two bytes"
    assert schema({"$ref": "#/$defs/io.x"}) == field(1, "#/definitions/io.x")
    assert schema({"type": ["string", "null"]}) == field(22, field(1, "string"))
    whole = document({"io.x": {"properties": {"a": {"type": "string"}}, "required": ["a"]}})
    assert b"io.x" in whole
    assert field(19, "a") in whole
