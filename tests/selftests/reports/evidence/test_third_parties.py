"""What third parties get: no secret, user, home or address, and a list of what was removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reports.__main__ import main
from reports.evidence.third_parties import (
    ADDRESSES,
    CUSTOMER,
    HOSTS,
    PARTIES,
    SECRETS,
    VENDOR,
    Cleaned,
)
from reports.pages import dossier
from tests.selftests import support

pytestmark = pytest.mark.cpu

PLANTED = (
    "alice7", "/home/alice7", "/lustre/projects/secretive", "/users/b/bob_9", "bob_9",
    "10.20.30.40", "192.168.7.9", "fe80::ba59:9fff:fe12:3456", "2001:db8::7", "carol@example.com",
    "b8:59:9f:12:34:56", "hunter2-Correct.Horse", "dave8", "erin9", "frank6",
)  # fmt: skip
TEXT = (
    "open /home/alice7/gpu.log by alice7: /lustre/projects/secretive/run of /users/b/bob_9/x, peer "
    "10.20.30.40:29500 and [192.168.7.9], fe80::ba59:9fff:fe12:3456%ib0, 2001:db8::7, mail "
    "carol@example.com, mac b8:59:9f:12:34:56; bob_9 said password=hunter2-Correct.Horse, "
    "USER=dave8; uid=1000(erin9) gid=1; dave8 and erin9; ~alice7/.cache; "
    "drained [frank6@2026-11-01T10:00:00], [removed]"
)
KEPT = (
    "GPU-cf623645-9dd1-5868-a085-85317f4f7e77 at 0000:1b:00.0, serial 1652922000123, "
    "port b8ce:f603:0012:3456, driver 580.105.08, at 12:34:56, gemm@worker0.json on worker0, "
    "/dev/nvidia0, /sys/class/infiniband/mlx5_0, /opt/site/bin/x, 5/7 of tokens/s, root complex, "
    "std::vector, https://docs.nvidia.com/deploy/xid-errors"
)


def cleaned(audience: str = VENDOR, **more: Any) -> Cleaned:
    run = {"owner": {"host": "login5"}}
    return Cleaned(audience, run, ["worker0", "worker1"], **more)


def test_users_homes_addresses_and_secrets_are_removed_and_the_rest_stays():
    clean = cleaned()
    text = clean({"reason": TEXT, "more": ["said alice7"], "n": 3})
    assert [p for p in PLANTED if p in json.dumps(text)] == []
    assert text["n"] == 3
    assert clean(KEPT) == KEPT
    removed = clean.listed()["removed"]
    assert all(removed[kind] for kind in (SECRETS, ADDRESSES))
    assert any("UUIDs" in what for what in clean.listed()["left_in"])


def test_numbers_of_versions_are_no_addresses():
    versions = {"cudnn_version": "9.1.0.70", "driver": "580.1.2.3", "peer": "9.1.0.70"}
    assert cleaned()(versions) == {**versions, "peer": "[address]"}


def test_host_names_are_replaced_on_request_the_same_by_the_same():
    text = "worker1.site.example and worker0, gemm@worker1.json, worker[0-1], login5, worker10"
    assert cleaned()(text) == text
    clean = cleaned(without_host_names=True)
    assert clean({"worker0": text}) == {
        "node-1": "node-2 and node-1, gemm@node-2.json, [nodes], login-1, worker10"
    }
    assert clean.listed()["removed"][HOSTS] == 6
    assert clean.host("worker0") == "node-1"


def test_a_vendor_gets_no_party_of_the_order_and_a_customer_does():
    data = {"order": {"customer": "ACME", "gpu_model": "H200"}, "commands": ["pytest"]}
    clean = cleaned()
    assert clean(data) == {"order": {"customer": "[removed]", "gpu_model": "H200"}, "commands": []}
    assert clean.listed()["removed"][PARTIES] == 2
    customer = cleaned(CUSTOMER)
    assert customer(data) == data
    assert PARTIES not in customer.listed()["removed"]
    assert "parties of the order, and command lines" in customer.listed()["left_in"]
    assert customer.lines()[0] == "for the customer"


# --- the commands


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run in which nodes and papers name people, homes and addresses."""
    root = tmp_path_factory.mktemp("third") / "run"
    shutil.copytree(support.DATA / "sandbox-2x2-cpu-failures", root)
    with support.edited(root / "run.json") as run:
        run["commands"] = [f"pytest --run-dir=/home/alice7/runs {TEXT}"]
        run["path"] = "/home/alice7/runs/x"
    for record in sorted((root / "records").glob("*.json")):
        with support.edited(record) as data:
            for rank in data["ranks"]:
                rank["facts"]["note"] = TEXT
                for m in rank["measurements"]:
                    m["notes"] = [TEXT]
    missing = root / "jobs" / "missing.jsonl"
    lines = [json.loads(line) for line in missing.read_text().splitlines()]
    missing.write_text("".join(json.dumps({**n, "reason": TEXT}) + "\n" for n in lines))
    into = tmp_path_factory.mktemp("judged") / "run"
    support.judged(root, into)
    return into


def planted_in(*paths: Path) -> list[str]:
    return [f"{path.name}: {p}" for path in paths for p in PLANTED if p in path.read_text()]


def test_a_dossier_holds_no_user_home_or_address_and_lists_what_was_removed(judged, tmp_path):
    verdict = json.loads((judged / "verdict.json").read_text())
    node = verdict["scope"]["nodes"][0]
    limits = support.limits_of(judged)
    made = dossier.of(judged, verdict, limits, node)
    page, text = dossier.fitted(made)
    assert [p for p in PLANTED if p in page + text] == []
    assert made["third_parties"]["removed"][ADDRESSES] > 0
    assert "What is in this dossier, and what was removed" in page
    assert made["run"]["commands"] == []
    customers = dossier.of(judged, verdict, limits, node, audience=CUSTOMER)
    assert customers["run"]["commands"]
    assert [p for p in PLANTED if p in json.dumps(customers)] == []
    nameless = dossier.of(judged, verdict, limits, node, without_host_names=True)
    assert nameless["node"] == "node-1"
    assert f'"{node}"' not in json.dumps(nameless)


@pytest.mark.parametrize("kind", ["csv", "json", "prometheus"])
def test_an_export_for_a_vendor_holds_none_either(judged, tmp_path, kind, monkeypatch, capsys):
    verdict = json.loads((judged / "verdict.json").read_text())
    monkeypatch.setattr("reports.__main__.confirmed_verdict", lambda *_: verdict)
    monkeypatch.setattr("reports.__main__.read_run", lambda _: {"owner": {"host": "login5"}})
    out = tmp_path / f"out.{kind}"
    assert main(["export", str(judged), f"--{kind}", "--for-vendor", "--out", str(out)]) == 0
    contents = tmp_path / f"out.{kind}.contents.txt"
    assert planted_in(out, contents) == []
    assert contents.read_text().startswith("for the vendor\nremoved: secrets (")
    assert main(["export", str(judged), f"--{kind}", "--for-customer"]) == 0
    printed = capsys.readouterr()
    assert [p for p in PLANTED if p in printed.out] == []
    assert "for the customer" in printed.err
    assert main(["export", str(judged), f"--{kind}", "--without-host-names"]) != 0
