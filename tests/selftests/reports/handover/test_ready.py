"""What is installed on a node: made of a verified run, complete without a checkout."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import EvidenceError
from fixtures.paths import CHECKOUT, THRESHOLDS
from fixtures.ready import certificate
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError, read_run
from reports.handover import ready
from tests.selftests import support

pytestmark = pytest.mark.cpu

H200 = support.DATA / "h200-1x4"
SANDBOX = support.DATA / "sandbox-2x2-cpu"


def made(source: Path, *mounts: str) -> Any:
    root = RunDirectory(source)
    if not root.manifest.exists():
        pytest.fail(f"{source} has no manifest")
    return ready.made_of(source, read_run(source), loader.load(THRESHOLDS), mounts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for source in (H200, SANDBOX):
        found[source.name] = Path(shutil.copytree(source, folder / source.name))
        RunDirectory(found[source.name]).write_manifest()
    return found


def test_the_gpus_of_a_recorded_h200_are_as_they_were_measured(runs):
    data = made(runs["h200-1x4"])
    node = data["nodes"]["node0"]
    assert len({gpu["uuid"] for gpu in node["gpus"]}) == 4
    assert node["gpus"][0] == {
        "uuid": "GPU-b314284d-5d35-d432-30d1-f1997fc3ffde", "pci": "00000000:00:06.0",
        "vbios": "96.00.A5.00.1A", "links": 18, "width": 16, "fabric": "ready",
        "states": {
            "ecc_mode": "enabled", "remap_pending": "none", "remap_failed": "none",
            "recovery_action": "none", "persistence": "enabled", "mig": "disabled",
            "compute_mode": "default", "power_limit": "default",
        },
        "counts": [
            "ecc_uncorrected", "ecc_corrected", "ecc_sram", "remap_headroom", "leaked_memory",
        ],
        "life": {"ecc": {"total": 0}, "pcie_replays": {"total": 0}, "nvlink_errors": {"total": 0}},
    }  # fmt: skip
    assert node["since"] == pytest.approx(1795354892, abs=600)
    assert node["mounts"] == {"/": {"type": "ext4", "writable": True}}
    assert data["limits"] == {
        "ecc_uncorrected": 0, "ecc_corrected": 20000000, "ecc_sram": 0, "ecc_sram_corrected": 10000,
        "remap_headroom": 0, "leaked_memory": 15,
    }  # fmt: skip


def test_the_nics_of_a_node_have_their_guids_and_ports(runs):
    data = made(runs["sandbox-2x2-cpu"], "/shared")
    node = data["nodes"]["worker1"]
    assert [nic["name"] for nic in node["nics"]] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert node["nics"][0]["guid"]
    assert node["nics"][0]["ports"]["1"]["state"] == "ACTIVE"
    assert node["mounts"]["/shared"] == {"type": "", "writable": False}
    # What is made is what a node reads.
    found = certificate.node_of({"parts": [json.loads(json.dumps(data))]}, ("worker1",))
    assert (len(found.gpus), len(found.nics)) == (2, 4)


def test_a_run_without_an_inventory_is_no_certificate(runs, tmp_path):
    source = Path(shutil.copytree(runs["h200-1x4"], tmp_path / "run"))
    (source / "records/inventory@node0.json").unlink()
    with pytest.raises(CommandError, match="no node of it has an inventory"):
        made(source)


def test_a_port_number_of_a_nic_with_several_is_its_own():
    facts: Any = {
        "inventory": {"nics": ["mlx5_0", "mlx5_1"]},
        "infiniband": {"ports": {"mlx5_0:1": {"state": "a"}, "mlx5_0:2": {"state": "b"},
                                 "mlx5_1": {"state": "c"}}},
        "host": {"links": {"mlx5_1": "Gen5 x8", "mlx5_0": "shows no link"}},
    }  # fmt: skip
    first, second = ready._nics(facts)
    assert first["ports"] == {"1": {"state": "a"}, "2": {"state": "b"}}
    assert (first["lanes"], second["lanes"], second["ports"]) == (None, 8, {"1": {"state": "c"}})


def test_the_counters_of_links_are_those_of_each_link_where_records_have_them(runs, tmp_path):
    source = Path(shutil.copytree(runs["h200-1x4"], tmp_path / "run"))
    with support.edited(source / "records/under_load@node0.json") as record:
        record["ranks"][2]["facts"]["life"] = {
            "nvlink_errors": {"parts": 36, "counts": {"link 3 recoveries": 505}}
        }
    gpus = made(source)["nodes"]["node0"]["gpus"]
    assert gpus[2]["life"]["nvlink_errors"] == {"link 3 recoveries": 505}
    assert gpus[1]["life"]["nvlink_errors"] == {"total": 0}


# --- the copy


def test_what_was_waived_at_the_acceptance_is_not_sick_before_each_job(runs, tmp_path):
    source = Path(shutil.copytree(runs["h200-1x4"], tmp_path / "run"))
    with support.edited(source / "records/health@node0.json") as record:
        for m in record["ranks"][1]["measurements"]:
            if m["metric"] == "remap_headroom":
                m["value"] = 3
    counts = [gpu["counts"] for gpu in made(source)["nodes"]["node0"]["gpus"]]
    assert ["remap_headroom" in of_gpu for of_gpu in counts] == [True, False, True, True]


@pytest.mark.parametrize("life", [3, {"nvlink_errors": 3}, {"nvlink_errors": {"counts": [505]}}])
def test_an_odd_record_of_a_node_is_no_counter(runs, tmp_path, life):
    source = Path(shutil.copytree(runs["h200-1x4"], tmp_path / "run"))
    with support.edited(source / "records/under_load@node0.json") as record:
        record["ranks"][2]["facts"] |= {"life": life, "after": [1]}
    assert made(source)["nodes"]["node0"]["gpus"][2]["life"] == {}


def test_the_copy_needs_the_standard_library_and_pynvml_alone():
    """And of the suite nothing that is not copied; torch is imported by what is never called."""
    copied = ready.modules()
    for name, path in copied.items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for imported in ready.imports(path, module, at_start=True):
            top = imported.partition(".")[0]
            if top == "fixtures":
                target = imported.replace(".", "/")
                above = target.rpartition("/")[0]
                assert {f"{target}.py", f"{target}/__init__.py", f"{above}.py",
                        f"{above}/__init__.py"} & copied.keys(), (name, imported)  # fmt: skip
            else:
                assert top in sys.stdlib_module_names, (name, imported)
    later = {
        imported.partition(".")[0]
        for path in copied.values()
        for node in ast.walk(ast.parse(path.read_text()))
        for imported in (
            [a.name for a in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert later - sys.stdlib_module_names <= {"fixtures", "pynvml", "torch"}


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "dest"


def started(dest: Path, *options: str, python: str = sys.executable) -> tuple[int, str]:
    """The installed check, without anything that is installed beside Python."""
    done = subprocess.run(
        [python, "-I", "-S", str(dest / "ready.py"), *options],
        cwd="/", capture_output=True, text=True, timeout=30, env={"PATH": os.defpath},
    )  # fmt: skip
    assert not done.stderr
    return done.returncode, done.stdout


def test_the_copy_runs_without_checkout_and_packages(runs, dest: Path):
    data = {"schema": certificate.SCHEMA, "parts": [made(runs["h200-1x4"])]}
    folder = ready.install(dest, data)
    assert sorted(p.name for p in dest.iterdir()) == sorted(
        [folder.name, "ready.py", "prolog.sh", "healthcheck.sh"]
    )
    assert (folder / "certificate.json").stat().st_mode & 0o777 == 0o644
    assert os.access(dest / "prolog.sh", os.X_OK)
    status, line = started(dest, "--node=node0")
    # No GPU here: it is said, and in one line.
    assert (status, line) == (1, line)
    assert line.startswith("not ready: driver: LibraryNotFound")
    status, line = started(dest, "--node=node9")
    assert status == 2
    assert "has no node node9" in line
    (folder / "fixtures/ready/judge.py").write_text("x = ")
    status, line = started(dest, "--node=node0")
    assert status == 2
    assert line.startswith("could not tell: error of the check: SyntaxError")


def test_the_next_installation_replaces_the_starter_and_keeps_one_before_it(runs, dest: Path):
    data = made(runs["h200-1x4"])
    folders = [ready.install(dest, {**data, "number": k}) for k in range(3)]
    assert len({*folders}) == 3
    there = [folder.exists() for folder in folders]
    assert there == [False, True, True]
    assert f'FOLDER = "{folders[2].name}"' in (dest / "ready.py").read_text()
    assert ready.install(dest, {**data, "number": 2}) == folders[2]
    assert folders[2].exists()


def test_what_others_can_change_is_no_place_for_it(tmp_path: Path):
    place = tmp_path.resolve() / "loose"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(CommandError, match="can be changed by others"):
        ready.refused(place / "dest")
    place.chmod(0o755)
    assert bool(ready.refused(place / "dest")) is (os.geteuid() != 0)
    link = tmp_path.resolve() / "link"
    link.symlink_to(place)
    with pytest.raises(CommandError, match="a link; name"):
        ready.refused(link)
    with pytest.raises(CommandError, match="inside the checkout"):
        ready.refused(CHECKOUT / "dest")


# --- which run


def options(run: Path, dest: Path, *mounts: str) -> Any:
    return SimpleNamespace(runs=[run], dest=dest, mount=[*mounts], thresholds=None)


def test_only_a_run_that_is_verified_and_accepted_is_installed(runs, dest, capsys, monkeypatch):
    run, verdict = runs["sandbox-2x2-cpu"], {"verdict": "REJECTED"}
    monkeypatch.setattr(ready, "read_verdict", lambda source: verdict)
    with pytest.raises(EvidenceError, match="is REJECTED: nodes are compared with"):
        ready.main(options(run, dest), lambda source: Findings())
    verdict["verdict"] = "PARTIAL"
    for found in (Findings(wrong=["records/x: changed"]), Findings(unchecked=["x: not judged"]),
                  Findings(strangers=["x: by an unknown key"])):  # fmt: skip
        with pytest.raises(EvidenceError, match=r"is not installed: .*reports verify"):
            ready.main(options(run, dest), lambda source, found=found: found)
    with pytest.raises(CommandError, match="--mount shared: expected a path"):
        ready.main(options(run, dest, "shared"), lambda source: Findings())
    assert not dest.exists()
    (run / "records/inventory@worker1.json").unlink()
    assert ready.main(options(run, dest), lambda source: Findings()) == 0
    said = capsys.readouterr().out
    assert "(PARTIAL): 1 node, 2 GPUs" in said
    assert "not covered: worker1, of which no inventory counts" in said
