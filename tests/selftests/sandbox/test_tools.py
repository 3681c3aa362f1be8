"""The programs that the sandbox needs: found, or named with the package and the way out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.sandbox import tools
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.tools import ACCOUNTING, PACKAGES, Tools, find
from tests.selftests.sandbox.parts import Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """The only folder in which programs are looked for; empty at first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(tools, "SYSTEM_PATH", str(folder))
    monkeypatch.setenv("PATH", "/nonexistent")
    return folder


def install(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)


def test_missing_packages_are_named(path: Path) -> None:
    with pytest.raises(SandboxError, match="install Slurm with its daemons, munge and iproute2"):
        find()
    (path / "apt-get").touch(mode=0o755)
    with pytest.raises(
        SandboxError, match=r"apt-get install .*munge slurm-client slurmctld slurmd"
    ):
        find()


def test_programs_are_found_and_those_of_the_accounting_where_it_is_wanted(path):
    install(path, *PACKAGES)
    assert find() == {name: str(path / name) for name in PACKAGES}
    assert find().bundle is None
    with pytest.raises(SandboxError, match=r"sacctmgr.* or run it without accounting"):
        find(accounting=True)
    install(path, *ACCOUNTING)
    assert find(accounting=True) == {name: str(path / name) for name in PACKAGES | ACCOUNTING}
    (path / "slurmd").unlink()
    for accounting in (False, True):
        with pytest.raises(SandboxError, match=r"needs slurmd: .* or `up --bundle FILE`"):
            find(accounting=accounting)


def test_programs_of_a_bundle_come_first(path, tmp_path):
    install(path, *PACKAGES)
    bundle = tmp_path / "bundle"
    with pytest.raises(SandboxError, match="is not a bundle of the sandbox"):
        find(bundle=bundle)
    install(bundle / "bin", "slurmctld", "slurmd")
    found = find(bundle=bundle)
    assert found["slurmd"] == str(bundle / "bin" / "slurmd")
    assert found["sinfo"] == str(path / "sinfo")
    assert found.bundle == bundle
    (path / "unshare").unlink()
    with pytest.raises(SandboxError, match=r"needs unshare: .* or another bundle"):
        find(bundle=bundle)


def test_daemons_and_clients_get_the_path_of_a_bundle(monkeypatch):
    monkeypatch.setenv("PATH", "/my/bin")
    own, bundled = Tools(), Tools()
    bundled.bundle = Path("/b")
    assert (own.plugin_dir, own.path, own.env) == (None, tools.SYSTEM_PATH, {})
    assert bundled.plugin_dir == Path("/b/plugins")
    assert bundled.path == f"/b/bin:{tools.SYSTEM_PATH}"
    assert bundled.env == {"PATH": "/b/bin:/my/bin"}
    assert bundled.daemon_env(Path("/home")) == {
        "PATH": bundled.path, "SLURM_CONF": "/home/slurm.conf", "LC_ALL": "C.UTF-8"
    }  # fmt: skip


# --- the host


def test_in_a_chroot_it_says_that_the_root_is_no_mount_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unshare = tmp_path / "unshare"
    said = "unshare: cannot change root filesystem propagation: Invalid argument"
    unshare.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setattr(tools, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SandboxError, match=r"a chroot.*enter it by pivot_root") as caught:
        tools.check_host()
    assert "--privileged" not in str(caught.value)


def test_a_host_needs_root_unshare_and_namespaces(path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SandboxError, match="needs root"):
        tools.check_host()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(SandboxError, match="needs unshare"):
        tools.check_host()
    install(path, "unshare")
    ran = Calls(SimpleNamespace(returncode=0, stderr=""))
    monkeypatch.setattr(tools.subprocess, "run", ran)
    tools.check_host()
    assert ran[0][0][0] == str(path / "unshare")
    ran.returns = [
        SimpleNamespace(returncode=1, stderr="unshare failed: Operation not permitted\n")
    ]
    with pytest.raises(SandboxError, match=r"namespaces \(unshare failed: .*--privileged"):
        tools.check_host()
