"""The bundle runs the sandbox on a host that has none of its packages."""

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT
from fixtures.sandbox import SandboxError, elf
from fixtures.sandbox.bundle import HOST_LIBRARIES, make_bundle
from fixtures.sandbox.tools import SYSTEM_PATH, check_host

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

MIB = 1 << 20

HIDE = """
set -e
mount --make-rprivate /
mount --bind "$1" "$2/slurm-wlm" 2>/dev/null || true
for file in "$2"/libhwloc.so* "$2"/libmunge.so* "$2"/libbpf.so* "$2"/libmnl.so* "$2"/libjson-c.so*
do
    if [ -f "$file" ]; then mount --bind /dev/null "$(readlink -f "$file")"; fi
done
shift 2
IFS=:
for folder in $SYSTEM; do
    for name in slurmctld slurmd slurmstepd sinfo sbatch srun squeue scontrol munged ip tc; do
        if [ -x "$folder/$name" ]; then mount --bind /dev/null "$(readlink -f "$folder/$name")"; fi
    done
done
if command -v slurmctld; then exit 99; fi
exec "$@"
"""

USE = """
import subprocess, sys
from pathlib import Path
from fixtures.sandbox import Sandbox, leftovers
with Sandbox.up(nodes=2, gpus=1, bundle=Path(sys.argv[1]), state_dir=Path(sys.argv[2])) as sandbox:
    script = "hostname; echo libraries=$LD_LIBRARY_PATH; command -v srun"
    argv = ["srun", "-N2", "--gres=gpu:1", "sh", "-c", script]
    subprocess.run(argv, env=sandbox.environ, check=True)
    sandbox.kill_node("worker1")
    sandbox.revive("worker1")
    sandbox.slow_link("worker1", "10mbit")
    home = sandbox.state.home
print(leftovers(sandbox.id, registry=home.parent))
"""


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        check_host()
        return make_bundle(tmp_path_factory.mktemp("bundle"))
    except SandboxError as error:
        if request.config.getoption("--require-sandbox", default=False):
            pytest.fail(f"--require-sandbox: {error}")
        pytest.skip(str(error))


def test_it_is_small(bundle: Path) -> None:
    assert bundle.stat().st_size < 20 * MIB


def test_it_needs_nothing_of_the_host_but_the_c_library(bundle: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-x", "-f", bundle, "-C", tmp_path], check=True)
    have = {path.name for path in (tmp_path / "bundle" / "lib").iterdir()}
    for path in (tmp_path / "bundle").rglob("*"):
        found = elf.read(path) if path.is_file() else None
        for name in found.needed if found else ():
            assert name in have or HOST_LIBRARIES.fullmatch(name), (path, name)


def test_the_sandbox_runs_from_it_with_the_packages_hidden(bundle: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    libraries = Path("/usr/lib/x86_64-linux-gnu")
    registry = Path("/tmp") / f"sandbox-bundle-{tmp_path.stat().st_ino}"
    hide = ["unshare", "--mount", "sh", "-c", HIDE, "sh", str(empty), str(libraries)]
    done = subprocess.run(
        [*hide, sys.executable, "-c", USE, str(bundle), str(registry)],
        cwd=CHECKOUT,
        env={"PATH": SYSTEM_PATH, "SYSTEM": SYSTEM_PATH, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert {"worker0", "worker1", "libraries="} <= set(lines)
    assert sum(line.endswith("/bundle/bin/srun") for line in lines) == 2
    assert last == "[]"
