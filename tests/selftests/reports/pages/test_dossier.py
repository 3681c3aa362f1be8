"""The dossier of a node: its first lines name the fault, it fits, and it holds no secret."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures import redaction
from fixtures.errors import AcceptanceError
from fixtures.records.files import write_json
from fixtures.records.model import Record
from fixtures.run.judge_item import judge_item
from fixtures.sandbox import Sandbox
from fixtures.verdict.model import Outcome, device_of
from reports import __main__ as command
from reports.evidence.third_parties import VENDOR, Cleaned
from reports.facts.blame import noun_of
from reports.pages import dossier
from tests.selftests import faults, planted, support
from tests.selftests.faults import Fault
from tests.tools import drills

pytestmark = pytest.mark.cpu

OF_40 = 39
"""Of 40 faults so many must be named by the first lines."""
RUN = "sandbox-2x2-cpu"


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("dossier") / "run"
    support.judged(support.DATA / RUN, root)
    return root


@pytest.fixture
def run(judged, tmp_path) -> Path:
    return Path(shutil.copytree(judged, tmp_path / "run"))


def verdict_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "verdict.json").read_text())


def made_of(root: Path, node: str, gpu: str | None = None, **more: Any) -> dict[str, Any]:
    return dossier.of(
        root, more.pop("verdict", verdict_of(root)), support.limits_of(root), node, gpu, **more
    )


def names(lines: list[str], noun: str, *parts: str) -> bool:
    """Whether one of the first lines says what is wrong and where."""
    return any(
        line.startswith(f"FAIL: {noun}: ") and all(part in line for part in parts)
        for line in lines[1:]
    )


def first_of_page(page: str) -> str:
    """The first lines of the page as text: what a person sees without scrolling far."""
    return re.sub(r"<[^>]+>", " ", page.partition("<h2>")[0])


# --- faults planted in records


def planted_faults(root: Path) -> Iterator[tuple[str, Record, str]]:
    """Every criterion of the run under which the figures of a node can be made bad, made bad."""
    for key, criterion in planted.shipped().criteria.items():
        if planted.never_judged(criterion) or criterion.per != "node":
            continue
        for limits, people, item, found in planted._recorded(key):
            if found.run_id != json.loads((support.DATA / RUN / "run.json").read_text())["id"]:
                continue
            healthy = judge_item(item, found, thresholds=limits, population=people)
            if healthy.outcome is not Outcome.PASS:
                continue
            bad, node = planted.spoil(found, criterion, item, healthy)
            verdict = judge_item(item, bad, thresholds=limits, population=people)
            if verdict.outcome is Outcome.FAIL and verdict.worst:
                yield key, bad, node
                break


def test_the_first_lines_name_planted_faults(run):
    sound, thresholds = verdict_of(run), support.limits_of(run)
    named, wrong = 0, []
    faults_planted = list(planted_faults(run))
    for key, bad, node in faults_planted:
        limits, people, items, _ = planted._run(RUN)
        item = next(i for i in items[key] if i.nodes == (node,))
        row = judge_item(item, bad, thresholds=limits, population=people).to_json()
        assert row["outcome"] == "FAIL"
        path = run / "records" / bad.name
        before = path.read_bytes()
        write_json(path, bad.to_json())
        others = [v for v in sound["criteria"] if (v["criterion"], v["subject"]) != item.key]
        verdict = {**sound, "verdict": "REJECTED", "criteria": [*others, row]}
        made = dossier.of(run, verdict, thresholds, node)
        path.write_bytes(before)
        part = Cleaned(VENDOR, {}, ())(device_of(row["worst"]).rpartition(" ")[2])
        noun = noun_of(key)
        found = names(made["first_lines"], noun, node, part)
        found = found and noun in first_of_page(dossier.fitted(made)[0]).replace("&#39;", "'")
        has_samples = any(
            m["samples"] or m["value"] is not None for m in made["rows"][0]["measured"]
        )
        named += found and has_samples
        wrong += [] if found and has_samples else [key]
    assert len(faults_planted) >= 40
    assert 40 * named >= OF_40 * len(faults_planted), wrong


def drilled(
    shapes: list[tuple[Any, list[Fault]]], folder: Path
) -> Iterator[tuple[Fault, list[str]]]:
    """Put each fault into a sandbox, and return the first lines of its culprits' dossiers."""
    for shape, rows in shapes:
        with Sandbox.up(**shape) as sandbox:
            for fault in rows:
                into = folder / f"{rows.index(fault)}-{fault.criterion}"
                faults.drill(sandbox, fault, into)
                lines = []
                for node in fault.culprit.split():
                    with suppress(AcceptanceError):  # the login node has no dossier
                        lines += made_of(into, node)["first_lines"]
                yield fault, lines
                shutil.rmtree(into)


@pytest.mark.slow
@pytest.mark.skipif(Sandbox.refusal() is not None, reason=str(Sandbox.refusal()))
def test_the_first_lines_name_the_sandbox_s_faults(tmp_path):
    shapes = [(s, [f for f in rows if not f.destructive]) for s, rows in drills.fault_lists()]
    named, wrong = 0, []
    for fault, lines in drilled([(s, rows) for s, rows in shapes if rows], tmp_path):
        found = all(
            names(lines, noun_of(fault.criterion), part)
            for part in (*fault.culprit.split(), fault.device)
        )
        named += found
        wrong += [] if found else [f"{fault.criterion}: {fault.name}"]
    count = sum(len(rows) for _, rows in shapes)
    assert count >= 40
    assert 40 * named >= OF_40 * count, wrong


# --- what it holds


@pytest.fixture
def red(run) -> Path:
    """A run of which GPU 1 of worker1 has an Xid, and is slow; the first attempt too."""
    verdict = verdict_of(run)
    uuid = next(
        r["device"]["uuid"]
        for r in json.loads((run / "records/gemm@worker1.json").read_text())["ranks"]
        if r["local_rank"] == 1
    )
    worst = {"node": "worker1", "gpu": 1, "uuid": uuid, "value": 0.001}
    for row in verdict["criteria"]:
        if row["subject"] == "worker1" and row["criterion"] in ("gemm.bf16", "health.xid"):
            row |= {"outcome": "FAIL", "worst": worst, "margin": -0.9}
        if row["subject"] == "worker1" and row["criterion"] == "gemm.bf16":
            row["attempt"], row["record"] = 2, "gemm@worker1.attempt2.json"
    record = json.loads((run / "records/gemm@worker1.json").read_text())
    after = max(r["end"] for r in record["ranks"]) - min(r["start"] for r in record["ranks"]) + 5
    for rank in record["ranks"]:
        rank["start"], rank["end"] = rank["start"] + after, rank["end"] + after
        for m in rank["measurements"]:
            m["samples"] = [sample * 1.001 for sample in m.get("samples", [])]
            m["ended"] = [t + after for t in m.get("ended", [])]
            if m.get("started") is not None:
                m["started"] += after
    (run / "records/gemm@worker1.attempt2.json").write_text(json.dumps({**record, "attempt": 2}))
    (run / "verdict.json").write_text(json.dumps(verdict))
    return run


def test_a_gpu_s_dossier_has_what_a_vendor_asks_for(red):
    made = made_of(red, "worker1", "1")
    assert made["first_lines"][0].startswith("worker1, GPU 1 (Emulated GPU, GPU-")
    assert "serial 1000101" in made["first_lines"][0]
    assert made["gpu"]["pci"]
    assert [r["criterion"] for r in made["rows"]] == ["health.xid", "gemm.bf16"]
    slow = made["rows"][1]
    assert {m["gpu"] for m in slow["measured"]} == {0, 1}, "its sibling is there to compare"
    assert all(m["samples"] for m in slow["measured"])
    assert [a["attempt"] for a in slow["attempts"]] == [1]
    assert list(slow["elsewhere"]) == ["worker0"]
    counted = {v["metric"] for rank in made["counted"]["under_load"] for v in rank["values"]}
    assert {"xid", "ecc_new", "pcie_replays"} <= counted
    assert made["counted"]["nvlink"]
    assert made["system"]["driver"]
    assert any(g["criterion"] == "health.ecc_mode" for g in made["good"])


def test_another_gpu_of_the_node_is_not_accused(red):
    made = made_of(red, "worker1", "0")
    assert made["rows"] == []
    assert "0 criteria failed" in made["first_lines"][0]


def test_another_node_is_not_accused(red):
    assert made_of(red, "worker0")["rows"] == []


@pytest.mark.parametrize(("node", "gpu", "said"), [
    ("worker7", None, "--node worker7: the run has worker0, worker1"),
    ("worker1", "5", "--gpu 5: worker1 has 0 (GPU-"),
])  # fmt: skip
def test_a_part_that_is_not_in_the_run_is_one_line(red, node, gpu, said):
    with pytest.raises(AcceptanceError, match=re.escape(said)):
        made_of(red, node, gpu)


# --- secrets

SECRETS = (
    "hunter2hunter2", "AKIAIOSFODNN7EXAMPLE", "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig", "hf_abcdefghijklmnopqrstuvwx",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj", "c2VjcmV0LXRva2Vu",
)  # fmt: skip
WAYS = (
    f"curl -H 'Authorization: Bearer {SECRETS[6]}' https://user:{SECRETS[0]}@mirror.example.com/",
    f"AWS_SECRET_ACCESS_KEY={SECRETS[0]} HF_TOKEN={SECRETS[4]} pytest --api-key {SECRETS[0]}",
    f'{{"password": "{SECRETS[0]}", "key": "{SECRETS[1]}"}} {SECRETS[2]} {SECRETS[3]}',
    f"-----BEGIN PRIVATE KEY-----\n{SECRETS[5]}\n-----END PRIVATE KEY-----",
)


@pytest.mark.parametrize("text", WAYS)
def test_what_looks_like_a_secret_is_removed(text):
    cleaned = redaction.without_secrets(text)
    assert not [secret for secret in SECRETS if secret in cleaned], cleaned
    assert redaction.REMOVED in cleaned


@pytest.mark.parametrize("text", [
    "training_ddp.tokens: 4800 tokens/s, limit >= 500",
    "gpu0 (GPU-cf623645-9dd1-5868-a085-85317f4f7e77) is part of all 3 slow links",
    "flops_per_token 48000000000, https://example.com/path:80",
])  # fmt: skip
def test_what_is_no_secret_stays(text):
    assert redaction.without_secrets(text) == text


def test_a_dossier_holds_no_secret(red, tmp_path):
    with support.edited(red / "run.json") as run:
        run["commands"] = [WAYS[1]]
    verdict = verdict_of(red)
    for row in verdict["criteria"]:
        if row["outcome"] == "FAIL":
            row["notes"] = [WAYS[0], *row["notes"]]
    (red / "jobs" / "node-worker1").mkdir(parents=True)
    line = {"event": "error", "node": "worker1", "workload": "gemm", "rank": 0, "kind": "raised",
            "error": WAYS[2], "stack": WAYS[3]}  # fmt: skip
    (red / "jobs/node-worker1/rank0.jsonl").write_text(json.dumps(line) + "\n")
    with support.edited(red / "records/environment@worker1.json") as record:
        record["ranks"][0]["facts"] |= {"api_key": SECRETS[0], "note": WAYS[0]}
    report = tmp_path / "nvidia-bug-report.log"
    report.write_text(f"NVRM: Xid (PCI:0000:18:00): 79, HF_TOKEN={SECRETS[4]}\n")
    made = made_of(red, "worker1", verdict=verdict, bug_report=report)
    assert made["errors"], "what the rank said is there"
    for text in dossier.fitted(made):
        assert not [secret for secret in (*SECRETS, run["nonce"]) if secret in text]


# --- size, bug report, command


def test_a_large_node_fits_and_keeps_its_first_lines(red):
    folder = red / "jobs" / "node-worker1"
    folder.mkdir(parents=True)
    uuid = made_of(red, "worker1")["gpus"][1]["uuid"]
    points = ({"t": 1.0 * k, "gpus": {uuid: {"temp_c": 50, "padding": ["x" * 2000] * 20}}}
              for k in range(400))  # fmt: skip
    (folder / "telemetry-worker1.jsonl").write_text("".join(json.dumps(p) + "\n" for p in points))
    with support.edited(red / "records/gemm@worker1.attempt2.json") as record:
        for rank in record["ranks"]:
            rank["measurements"][0]["samples"] = [1.0 + k / 3 for k in range(200_000)]
    made = made_of(red, "worker1")
    assert len(json.dumps(made)) > dossier.MAX_BYTES
    page, text = dossier.fitted(made)
    assert len(page.encode()) + len(text.encode()) <= dossier.MAX_BYTES
    assert json.loads(text)["left_out"] == ["telemetry over time"]
    assert "Left out for the size of this dossier: telemetry over time" in page
    assert json.loads(text)["first_lines"] == made["first_lines"]


@pytest.mark.parametrize("zipped", [False, True])
def test_the_bug_report_s_lines_on_gpus_are_taken_in(red, tmp_path, zipped):
    text = "boring\nNVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\nfine\n" * 3
    report = tmp_path / "nvidia-bug-report.log.gz"
    report.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    found = made_of(red, "worker1", bug_report=report)["bug_report"]
    assert found["name"] == report.name
    assert found["bytes"] == report.stat().st_size
    assert len(found["sha256"]) == 64
    assert set(found["lines"]) == {"NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."}
    with pytest.raises(AcceptanceError, match="no-such-file"):
        made_of(red, "worker1", bug_report=tmp_path / "no-such-file")


def test_without_out_they_lie_beside_the_run_and_not_where_somebody_is(
    judged, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command, "confirmed_verdict", lambda source, *_: verdict_of(source))
    monkeypatch.chdir(tmp_path)
    assert command.main(["dossier", str(judged), "--node", "worker0"]) == 0
    assert f"dossier  {judged.parent}/dossier-" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert len(list(judged.parent.glob("dossier-*-worker0.*"))) == 2


def test_the_command_writes_both_files(judged, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "confirmed_verdict", lambda source, *_: verdict_of(source))
    out = tmp_path / "out"
    part = ["--node", "worker1", "--gpu", "1"]
    assert command.main(["dossier", str(judged), *part, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("worker1, GPU 1 (Emulated GPU")
    run_id = json.loads((judged / "run.json").read_text())["id"]
    assert {p.name for p in out.iterdir()} == {
        f"dossier-{run_id}-worker1-gpu1.{suffix}" for suffix in ("html", "json")
    }
    assert "Nothing failed on it in this run." in next(out.glob("*.html")).read_text()


def test_nothing_is_made_of_a_verdict_that_does_not_follow(judged, tmp_path, capsys):
    root = Path(shutil.copytree(judged, tmp_path / "run"))
    verdict = verdict_of(root)
    verdict["criteria"][0]["outcome"] = "FAIL"
    (root / "verdict.json").write_text(json.dumps(verdict))
    assert command.main(["dossier", str(root), "--node", "worker1", "--out", str(tmp_path)]) == 4
    assert "is not confirmed" in capsys.readouterr().err
    assert not list(tmp_path.glob("dossier-*"))
