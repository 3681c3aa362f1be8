"""deploy/terraform's cloud-init files: rendered as Terraform does, and executed in bare Debians."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.tools import check_host
from tests.tools import cloud_nodes, debian_root
from tests.tools.cloud_nodes import ACCEPT, TERRAFORM, Cloud, given, rendered

pytestmark = pytest.mark.cpu

TEMPLATES = ("login.yaml.tftpl", "gpu.yaml.tftpl")


def text(name: str) -> str:
    return (TERRAFORM / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_filled_in_as_terraform_does(name, tmp_path):
    if (terraform := shutil.which("terraform")) is None:
        pytest.skip("terraform is not on this host")
    shutil.copy(TERRAFORM / name, tmp_path / name)
    question = f"templatefile({json.dumps(name)}, {json.dumps(given())})"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CHECKPOINT_DISABLE": "1"}
    done = subprocess.run(
        [terraform, "console"], input=question, cwd=tmp_path, env=env, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    (theirs,) = re.findall(r"^<<EOT\n(.*)\nEOT$", done.stdout, re.DOTALL | re.MULTILINE)
    assert rendered(text(name), given()) == theirs


def test_a_node_gets_its_file_whole_and_what_only_a_cloud_has():
    """What is changed for this host are values, never the files."""
    assert yaml.safe_load(rendered(text("gpu.yaml.tftpl"), given()))["mounts"]
    values = given(gpus_per_node=4)
    assert values["gpus_per_node"] == 4
    names = re.findall(r"\$\{(\w+)", text("login.yaml.tftpl") + text("gpu.yaml.tftpl"))
    assert set(names) - {"join", "name", "ip", "k"} <= set(values)


@pytest.fixture
def nfs(tmp_path: Path):
    """The stand-in for mount.nfs with stand-ins for what it calls; returns how it answers."""
    table = tmp_path / "10.20.0.5" / "var" / "lib" / "nfs" / "etab"
    table.parent.mkdir(parents=True)
    script = cloud_nodes.MOUNT_NFS.replace(cloud_nodes.SERVERS, str(tmp_path))
    script = script.replace("/usr/share/doc/nfs-common", str(tmp_path / "nfs-common"))
    (tmp_path / "nfs-common").touch()
    (tmp_path / "mount.nfs").write_text(script)
    for name, says in (("ip", "echo '2: eth0 inet 10.20.0.10/24 scope'"), ("mount", 'echo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / name).chmod(0o755)

    def answers(exports: str, path: str) -> tuple[int, str]:
        table.write_text(exports)
        argv = ["sh", str(tmp_path / "mount.nfs"), f"10.20.0.5:{path}", "/there", "-o", "hard"]
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    answers.package = tmp_path / "nfs-common"  # type: ignore[attr-defined]
    return answers


def test_the_stand_in_for_nfs_mounts_what_is_exported_to_this_client_alone(nfs):
    status, said = nfs("/shared\t10.20.0.0/24(rw,sync)\n", "/shared")
    assert (status, said.split()[:3]) == (0, ["--bind", "-o", "bind"])
    status, said = nfs("/srv/munge\t10.20.0.10(ro,sync)\n", "/srv/munge")
    assert (status, said.split()[:3]) == (0, ["--bind", "-o", "bind,ro"])
    for exports, path in (
        ("/srv/munge\t10.20.0.11(ro)\n", "/srv/munge"), ("/srv\t10.20.0.10(ro)\n", "/srv/munge"),
        ("/shared\t10.21.0.0/24(rw)\n", "/shared"),
    ):  # fmt: skip
        status, said = nfs(exports, path)
        assert status == 32
        assert "access denied" in said
    assert "Connection refused" in nfs("", "/shared")[1]
    nfs.package.unlink()
    assert "nfs-common is not installed" in nfs("/shared\t10.20.0.0/24(rw)\n", "/shared")[1]


# --- booted


BOOTED = [pytest.mark.slow, pytest.mark.waits("three Debians boot and install their packages")]


@pytest.fixture(scope="module")
def roots() -> Path:
    """Where `make test-bare` keeps its roots, too."""
    try:
        check_host()
    except SandboxError as error:
        pytest.skip(str(error))
    return debian_root.default_folder(os.environ)


def problems(cloud: Cloud, deadline_s: float = cloud_nodes.BOOT_S) -> list[str]:
    """What is not as it should be once cloud-init has ended."""
    found = [f"{name}: {said}" for name, said in cloud.wait(deadline_s).items()
             if "status: done" not in said]  # fmt: skip
    for name in cloud.given["gpu_names"]:
        if cloud.on(name, "findmnt", "/shared").returncode:
            found.append(f"{name} has no /shared")
        if "/shared" not in cloud.on(name, "cat", "/etc/fstab").stdout:
            found.append(f"{name} has no /shared after its next boot")
        if not cloud.on(name, "findmnt", "/run/munge-key").returncode:
            found.append(f"{name} keeps the folder of the key mounted")
    if not found and not cloud.idle():
        found.append(f"states in Slurm: {cloud.states()}")
    return found


class TestCloud:
    """A few minutes each."""

    pytestmark = BOOTED

    def test_the_nodes_come_up_idle_and_a_probe_tier_passes(self, roots):
        with Cloud(roots) as cloud:
            assert problems(cloud) == [], "\n".join(map(cloud.log, cloud.nodes))
            cloud.install()
            done = subprocess.run(cloud.user(*ACCEPT), capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            run = cloud.home / cloud.login / "shared/suite/reports/runs/latest"
            verdict = json.loads(Path(os.path.realpath(run), "verdict.json").read_text())
            assert verdict["verdict"] == "DEMONSTRATION"
            assert verdict["counts"]["not_measured"] == 0
            home = cloud.home
        assert not home.exists()

    @pytest.mark.parametrize(
        ("name", "old", "new"),
        [
            ("gpu.yaml.tftpl", '  - ["${login_ip}:/shared", /shared, nfs4, "rw,hard,_netdev", '
             '"0", "0"]\n', ""),
            ("gpu.yaml.tftpl", "  - install -o munge -g munge -m 0400 /run/munge-key/munge.key "
             "/etc/munge/munge.key\n", ""),
            ("login.yaml.tftpl", "      /shared ${subnet}(rw,sync,no_subtree_check)\n", ""),
        ],
        ids=["mount", "key", "export"],
    )  # fmt: skip
    def test_a_changed_file_is_seen(self, roots, name, old, new):
        assert text(name).count(old) == 1
        changed = {name: text(name).replace(old, new).replace("mounts:\nruncmd", "runcmd")}
        with Cloud(roots, templates=changed) as cloud:
            assert problems(cloud), "nothing was seen"
