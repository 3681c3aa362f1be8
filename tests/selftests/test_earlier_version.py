"""A run directory that an earlier version wrote is read, judged and verified by this one.

tests/selftests/data/versions/0.1.0 was written by that version, limits included: nothing in it was
made anew since.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from fixtures.paths import version
from reports import __main__ as command
from tests.selftests import support

pytestmark = pytest.mark.cpu

EARLIER = support.DATA / "versions" / "0.1.0"
LIMITS = "thresholds.yaml"


@pytest.fixture
def run(tmp_path) -> Path:
    root = tmp_path / "run"
    shutil.copytree(EARLIER, root, ignore=shutil.ignore_patterns("*.gz"))
    (tmp_path / LIMITS).write_bytes(gzip.decompress((EARLIER / f"{LIMITS}.gz").read_bytes()))
    return root


def verified(run: Path) -> int:
    return command.main(["verify", str(run), "--thresholds", str(run.parent / LIMITS)])


def test_it_is_judged_as_it_was_by_the_version_that_wrote_it(run, tmp_path):
    assert "suite_version" not in json.loads((run / "run.json").read_text())
    _, again = support.judged(run, tmp_path / "again", tmp_path / LIMITS)
    earlier = json.loads((run / "verdict.json").read_text())
    outcomes = {(v["criterion"], v["subject"]): v["outcome"] for v in earlier["criteria"]}
    changed = {
        key: v["outcome"]
        for v in again["criteria"]
        if v["outcome"] != outcomes[key := (v["criterion"], v["subject"])]
    }
    # Schema 1 had no word for what is measured and judged by nobody.
    assert changed == {("training_fsdp.tokens", "worker0"): "RECORDED"}
    assert outcomes["training_fsdp.tokens", "worker0"] == "NOT_APPLICABLE"
    assert again["counts"] == earlier["counts"] | {"not_applicable": 10, "recorded": 1}
    assert len(outcomes) == len(again["criteria"]) == 40


def test_it_is_verified_and_its_text_is_reported_as_not_compared(run, capsys):
    assert verified(run) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert "WRONG" not in out
    assert f"text not compared: written by suite version 0.1.0, this is {version()}" in out
    assert "VERIFIED" in out


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("certificate.html", "NOT ACCEPTED: DEMONSTRATION", "ACCEPTED", "does not say"),
        ("certificate.html", '<dl class="hashes">', '<dl class="x" hidden>', None),
        ("results.csv", ",PASS,", ",FAIL,", "its figures are not those"),
        ("run.json", '"schema"', ' "schema"', "changed"),
    ],
)
def test_changed_figures_are_found_all_the_same(run, name, old, new, what, capsys):
    path = run / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    status = verified(run)
    out = capsys.readouterr().out
    if what is None:
        assert status == 0
        assert "text not compared" in out
    else:
        assert status != 0
        assert f"{name}: {what}" in out


def test_a_certificate_of_other_evidence_is_found(run, capsys):
    page = run / "certificate.html"
    text = page.read_text(encoding="utf-8")
    digest = text.split("SHA-256 of manifest.sha256</dt><dd><code>")[1][:64]
    page.write_text(text.replace(digest, "0" * 64), encoding="utf-8")
    assert verified(run) != 0
    assert "does not state the SHA-256 of manifest.sha256" in capsys.readouterr().out
