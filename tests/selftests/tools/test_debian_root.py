"""`make test-trixie` takes this host's settings along, touches only its own root, and cleans up."""

import fcntl
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.sandbox.cleanup import mounts_below
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.tools import check_host
from tests.tools import debian_root, debian_snapshot

pytestmark = pytest.mark.cpu

DEB822 = """\
Types: deb
# URIs: https://old.example/debian
URIs: https://security.example/debian-security https://one.example/mirror/debian
Suites: bookworm
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list.d/x.sources", DEB822, "https://one.example/mirror/debian"),
        ("sources.list", "deb [arch=amd64] http://two.example/debian/ bookworm main\n",
         "http://two.example/debian/"),
        ("sources.list", "# deb http://two.example/debian bookworm main\n", None),
        ("sources.list", "deb http://three.example/ubuntu noble main\n", None),
        ("sources.list.d/x.sources.save", DEB822, None),
    ],
)  # fmt: skip
def test_the_mirror_is_that_of_the_hosts_apt(
    tmp_path: Path, name: str, text: str, expected: str | None
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    assert debian_root.mirror(tmp_path) == expected


def test_pips_settings_become_variables(tmp_path: Path) -> None:
    python = tmp_path / "python"
    lines = [
        ":env:.timeout='9'",
        "global.extra-index-url='file:///a/simple\\nhttps://b.example/simple'",
        "install.no-binary='x'",
        "list.format='json'",
    ]
    text = "\n".join(lines)
    python.write_text(f"#!/bin/sh\ncat <<'end'\n{text}\nend\n")
    python.chmod(0o755)
    assert debian_root.pip_settings(str(python)) == {
        "PIP_EXTRA_INDEX_URL": "file:///a/simple https://b.example/simple",
        "PIP_NO_BINARY": "x",
    }


def test_the_command_gets_what_reaches_the_network_and_nothing_else(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    own = {
        "PIP_FIND_LINKS": str(wheels),
        "https_proxy": "http://proxy.example:3128",
        "TORCH_INDEX": "https://c.example/cpu",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "VIRTUAL_ENV": "/venv",
    }
    pip = {"PIP_INDEX_URL": index.as_uri(), "PIP_FIND_LINKS": "/other"}
    env = debian_root.environment(own, pip, "/bin")
    assert env["PIP_FIND_LINKS"] == str(wheels)
    assert {"https_proxy", "TORCH_INDEX", "PIP_INDEX_URL"} <= set(env)
    assert not {"SLURM_CONF", "VIRTUAL_ENV"} & set(env)
    assert {wheels, index.parent} <= set(debian_root.host_paths(env))


def test_a_folder_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(debian_root.RootError, match="not empty and no root of this tool"):
        debian_root.make_root(tmp_path, "trixie", debian_root.packages())
    assert (tmp_path / "thesis.tex").exists()


def test_a_complete_root_is_used_again(tmp_path: Path) -> None:
    marker = tmp_path / debian_root.COMPLETE
    marker.parent.mkdir()
    marker.write_text(" ".join(["trixie", *debian_root.packages()]) + "\n")
    debian_root.make_root(tmp_path, "trixie", debian_root.packages())
    assert {"slurmctld", "slurmd", "gcc", "python3-venv", "python3-dev"} <= set(
        debian_root.packages()
    )


NOW = datetime(2026, 11, 27, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("Date: Fri, 30 Oct 2026 08:08:01 UTC\nValid-Until: Fri, 06 Nov 2026 08:08:01 UTC\n",
         "sid of 30 Oct 2026: the mirror is out of date, for this was valid until 06 Nov 2026"),
        ("Date: Thu, 26 Nov 2026 08:08:01 UTC\nValid-Until: Thu, 03 Dec 2026 08:08:01 UTC\n",
         "sid of 26 Nov 2026"),
        ("Date: Sat, 11 Jul 2026 08:08:01 UTC\n", "sid of 11 Jul 2026"),
        ("Suite: unstable\n", "sid: its Release file is not there"),
    ],
)  # fmt: skip
def test_a_mirror_that_is_out_of_date_is_said(tmp_path: Path, fields: str, expected: str) -> None:
    lists = tmp_path / "var" / "lib" / "apt" / "lists"
    lists.mkdir(parents=True)
    (tmp_path / "etc" / "apt" / "apt.conf.d").mkdir(parents=True)
    (lists / "mirror_dists_sid_InRelease").write_text(fields)
    line = debian_snapshot.describe(tmp_path, "sid", NOW)
    assert line.startswith(expected)
    assert ("out of date" in line) is ("out of date" in expected)
    debian_snapshot.tolerate_expired(tmp_path)
    settings = tmp_path / "etc" / "apt" / "apt.conf.d" / "90expired"
    if "30 Oct" in expected:
        assert "Check-Valid-Until" in settings.read_text()
    elif "Valid-Until" not in fields:
        assert not settings.exists()


def bare_root(folder: Path) -> Path:
    root = folder / "bare-bookworm"
    (root / "tmp").mkdir(parents=True)
    (root / debian_root.SUITE / ".venv").mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("verdict", "status", "code"),
    [("DEMONSTRATION", 0, 0), ("PARTIAL", 0, 1), ("REJECTED", 2, 2), (None, 0, 1)],
)
def test_a_bare_root_passes_by_a_demonstration_alone_and_stays_bare(
    tmp_path, monkeypatch, capsys, verdict, status, code
) -> None:
    root = bare_root(tmp_path)
    paths = []

    def accept(copy: Path, scripts: object, path: str) -> int:
        paths.append(path)
        (copy / "usr").mkdir()
        if verdict:
            run = copy / debian_root.SUITE / "reports" / "runs" / "latest"
            run.mkdir(parents=True)
            (run / "verdict.json").write_text(f'{{"verdict": "{verdict}"}}')
        assert scripts == [("make accept", [])]
        return status

    monkeypatch.setattr(debian_root, "run_steps", accept)
    monkeypatch.setattr(debian_root, "copy_checkout", lambda _: None)
    assert debian_root.accept_in_copy(root, []) == code
    assert not (root / "usr").exists()
    assert (tmp_path / "bare-bookworm.copy").exists() is (code != 0)
    assert "GB" in capsys.readouterr().out
    assert ".venv" not in paths[0], "a stranger has not activated anything"


def test_a_bare_root_has_four_packages() -> None:
    assert sorted(debian_root.BARE) == ["ca-certificates", "git", "make", "python3"]


def test_its_tests_exist() -> None:
    folder = debian_root.CHECKOUT / "tests" / "selftests"
    assert [name for name in debian_root.TESTS if not (folder / name).exists()] == []


def test_the_copy_is_of_the_checkout_and_keeps_its_environment(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    suite = tmp_path / debian_root.SUITE
    (suite / ".venv").mkdir(parents=True)
    (suite / "stale.py").touch()
    debian_root.copy_checkout(tmp_path)
    assert (suite / ".venv").exists()
    assert not (suite / "stale.py").exists()
    assert not (suite / "reports" / "runs").exists()
    assert (suite / "pyproject.toml").stat().st_mtime == pytest.approx(
        (debian_root.CHECKOUT / "pyproject.toml").stat().st_mtime
    )


def test_inside_the_root_is_a_mount_point_and_afterwards_nothing_is_left(tmp_path: Path) -> None:
    try:
        check_host()
    except SandboxError as error:
        pytest.skip(str(error))
    root = tmp_path / "root"
    for name in ("sys", "dev", "proc", "tmp", "mnt", str(debian_root.SUITE)):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    # A variable that names a folder brings it along: here the programs of this host.
    env = {"PATH": os.environ["PATH"], "PIP_FIND_LINKS": "/usr"}
    script = (
        "flock /tmp/lock sleep 600 & while flock --nonblock /tmp/lock true; do :; done; "
        # Both would fail, or lead out of it, in a root that was entered by chroot alone.
        "unshare --mount true && nsenter --target=$$ --mount test -d /suite || exit 1; "
        'echo "$1" >/tmp/said; exit 7'
    )
    assert debian_root.run_inside(root, script, "a b", env=env) == 7
    assert (root / "tmp" / "said").read_text() == "a b\n"
    assert mounts_below(root) == []
    with (root / "tmp" / "lock").open() as lock:
        # The process that held it is gone; else this raises BlockingIOError.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
