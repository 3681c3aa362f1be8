"""`make test-trixie` takes this host's settings along, touches only its own root, and cleans up."""

import fcntl
import os
from pathlib import Path

import pytest

from fixtures.sandbox.cleanup import mounts_below
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.tools import check_host
from tests.tools import trixie

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
    assert trixie.mirror(tmp_path) == expected


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
    assert trixie.pip_settings(str(python)) == {
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
    env = trixie.environment(own, pip)
    assert env["PIP_FIND_LINKS"] == str(wheels)
    assert {"https_proxy", "TORCH_INDEX", "PIP_INDEX_URL"} <= set(env)
    assert not {"SLURM_CONF", "VIRTUAL_ENV"} & set(env)
    assert {wheels, index.parent} <= set(trixie.host_paths(env))


def test_a_folder_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(trixie.TrixieError, match="not empty and no root of this tool"):
        trixie.make_root(tmp_path, "trixie")
    assert (tmp_path / "thesis.tex").exists()


def test_a_complete_root_is_used_again(tmp_path: Path) -> None:
    marker = tmp_path / trixie.COMPLETE
    marker.parent.mkdir()
    marker.write_text(" ".join(["trixie", *trixie.packages()]) + "\n")
    trixie.make_root(tmp_path, "trixie")
    assert {"slurmctld", "slurmd", "gcc", "python3-venv"} <= set(trixie.packages())


def test_its_tests_exist() -> None:
    folder = trixie.CHECKOUT / "tests" / "selftests"
    assert [name for name in trixie.TESTS if not (folder / f"test_{name}.py").exists()] == []


def test_the_copy_is_of_the_checkout_and_keeps_its_environment(tmp_path: Path) -> None:
    if not (trixie.CHECKOUT / ".git").exists():
        pytest.skip("no git checkout, as in an image")
    suite = tmp_path / trixie.SUITE
    (suite / ".venv").mkdir(parents=True)
    (suite / "stale.py").touch()
    trixie.copy_checkout(tmp_path)
    assert (suite / ".venv").exists()
    assert not (suite / "stale.py").exists()
    assert not (suite / "reports" / "runs").exists()
    assert (suite / "pyproject.toml").stat().st_mtime == pytest.approx(
        (trixie.CHECKOUT / "pyproject.toml").stat().st_mtime
    )


def test_inside_the_root_is_a_mount_point_and_afterwards_nothing_is_left(tmp_path: Path) -> None:
    try:
        check_host()
    except SandboxError as error:
        pytest.skip(str(error))
    root = tmp_path / "root"
    for name in ("sys", "dev", "proc", "tmp", "mnt", str(trixie.SUITE)):
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
    assert trixie.run_inside(root, script, "a b", env=env) == 7
    assert (root / "tmp" / "said").read_text() == "a b\n"
    assert mounts_below(root) == []
    with (root / "tmp" / "lock").open() as lock:
        # The process that held it is gone; else this raises BlockingIOError.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
