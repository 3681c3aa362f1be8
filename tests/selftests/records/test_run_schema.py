"""Runs of schema 1 are judged no longer; their hashes and signatures are still checked."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from fixtures.records.run_schema import RUN_SCHEMA, refused_schema
from fixtures.run import previous_runs
from reports import __main__ as command
from reports.pages import certificate
from tests.selftests import support
from tests.selftests.judged_runs import key_of
from tests.tools import upgrade_records

pytestmark = pytest.mark.cpu

REFUSED = "no longer judged: the last that does is suite version 0.2.0 of commit 0ba87eb"


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of schema 1 that ended: evidence, manifest, verdict and a certificate of them."""
    directory = support.run_directory(tmp_path / "run", schema=1, id="r", population={})
    root = directory.root
    (root / "records" / "gemm@n0.json").write_text("{}")
    (root / "verdict.json").write_text('{"schema": 1, "verdict": "ACCEPTED"}')
    directory.write_manifest()
    (root / certificate.NAME).write_text(" ".join(certificate.hashes(directory).values()))
    return root


def verified(run: Path, capsys, *options: str) -> tuple[int, str]:
    status = command.main(["verify", str(run), *options])
    return status, capsys.readouterr().out


def test_its_hashes_are_checked_and_its_verdict_is_not_confirmed(run, capsys):
    status, out = verified(run, capsys)
    assert status == command.INCOMPLETE, "a script that asks for 0 must not take it for confirmed"
    assert "evidence: 2 files, all match manifest.sha256" in out
    assert f"not checked: verdict, limits and pages: a run of schema 1 is {REFUSED}" in out
    assert out.splitlines()[-1] == f"NOT VERIFIED: {run}"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("records/gemm@n0.json", "records/gemm@n0.json: changed"),
        ("run.json", "run.json: changed"),
        ("manifest.sha256", "does not state the SHA-256 of manifest.sha256"),
        ("verdict.json", "does not state the SHA-256 of verdict.json"),
    ],
)
def test_what_was_changed_is_found(run, name, what, capsys):
    with (run / name).open("a") as file:
        file.write("\n")
    status, out = verified(run, capsys)
    assert (status, "CHANGED SINCE THE RUN" in out) == (1, True)
    assert what in out


def test_its_signature_is_checked(run, tmp_path, capsys):
    key = key_of(tmp_path)
    page = str(run / certificate.NAME)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", certificate.NAMESPACE, "-f", str(key),
                    page], check=True)  # fmt: skip
    signers = tmp_path / "signers"
    signers.write_text(f"kim@example.org {key.with_suffix('.pub').read_text()}")
    status, out = verified(run, capsys, f"--allowed-signers={signers}")
    assert status == command.INCOMPLETE
    assert "not checked: certificate.html.sig: by kim@example.org, SHA256:" in out
    assert "it covers certificate.html alone, and no other file" in out
    Path(page).write_text(Path(page).read_text() + " ")
    status, out = verified(run, capsys, f"--allowed-signers={signers}")
    assert (status, "is not a signature of this certificate.html" in out) == (1, True)


@pytest.mark.parametrize("name", ["render", "rejudge", "tables", "sign --key=k"])
def test_every_other_command_refuses_it_in_one_line(run, name, capsys):
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    first, *more = name.split()
    assert command.main([first, str(run), *more]) == command.USAGE
    said = capsys.readouterr().err
    assert (said.count("\n"), REFUSED in said) == (1, True)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_replay_refuses_it_in_one_line(run):
    with pytest.raises(ConfigError) as refused:
        previous_runs.load_run_json(run)
    assert str(refused.value) == f"{run}/run.json: a run of schema 1 is {REFUSED}"


@pytest.mark.parametrize("schema", [True, 1.0, 2.0, "1", "2", None, [1], RUN_SCHEMA + 1])
def test_other_schemas_are_no_runs(run, schema):
    (run / "run.json").write_text(json.dumps({"schema": schema, "id": "r"}))
    with pytest.raises(ConfigError, match=f"not a run.json of schema {RUN_SCHEMA}"):
        previous_runs.load_run_json(run)


# --- the tool that rewrote the recorded runs


WHYS = {
    "ecc": "NotSupported", "links": "driver 550 does not have this", "heat": "InvalidArgument; 3",
    "pace": "GpuIsLost", "clock": "drivers differ",
}  # fmt: skip


def as_schema_1(root: Path) -> dict[str, str]:
    """Make a recorded run what its schema 1 was; return the digests of its files."""
    with support.edited(root / "run.json") as run:
        run["schema"] = 1
        run["population"].pop("installed")
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in root.glob("records/*")}


def test_a_recorded_run_is_rewritten_as_it_is_committed(tmp_path):
    source = support.DATA / "h200-2x2-scaling"
    root = Path(shutil.copytree(source, tmp_path / "run"))
    before = as_schema_1(root)
    assert upgrade_records.upgrade(root) == [root / "run.json"]
    assert json.loads((root / "run.json").read_text()) == json.loads(
        (source / "run.json").read_text()
    )
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest()
            for p in root.glob("records/*")} == before  # fmt: skip
    assert upgrade_records.upgrade(root) == [], "once"


def test_what_the_driver_does_not_give_is_told_apart_by_its_words(tmp_path):
    root = Path(shutil.copytree(support.DATA / "h200-1x2-training", tmp_path / "run"))
    as_schema_1(root)
    path = root / "records" / "training_single@worker0.json"
    with support.edited(path) as record:
        record["ranks"][0]["facts"]["not_measured"] = WHYS
    assert upgrade_records.upgrade(root) == [path, root / "run.json"]
    facts = json.loads(path.read_text())["ranks"][0]["facts"]
    assert set(facts["not_offered"]) == {"ecc", "links", "heat"}
    assert facts["not_measured"] == {"pace": "GpuIsLost", "clock": "drivers differ"}


def test_evidence_is_not_rewritten(run):
    with pytest.raises(SystemExit, match="evidence is not rewritten"):
        upgrade_records.upgrade(run)


def test_every_recorded_run_has_the_schema_of_today():
    runs = sorted(support.DATA.glob("*/run.json"))
    assert len(runs) >= 12
    assert {json.loads(path.read_text())["schema"] for path in runs} == {RUN_SCHEMA}


def test_a_run_is_read_by_the_schema_of_today_alone():
    assert RUN_SCHEMA == 2, "what older versions wrote is another layout"
    assert refused_schema({"schema": 2}) == ""
    assert refused_schema({"schema": 1}) == f"a run of schema 1 is {REFUSED}"
    for other in ({"schema": 3}, {"schema": True}, {"schema": 2.0}, {"schema": "2"}, {}, [], None):
        assert refused_schema(other) == "not a run.json of schema 2"
