"""The bundle runs the sandbox on a host that has none of its packages."""

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.paths import CHECKOUT
from fixtures.sandbox import SandboxError, bundle, elf
from fixtures.sandbox.bundle import HOST_LIBRARIES, assemble, download, make_bundle, unpacked
from fixtures.sandbox.elf import Elf
from fixtures.sandbox.tools import SYSTEM_PATH, check_host
from tests.selftests.sandbox.parts import Calls

pytestmark = pytest.mark.cpu

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
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        check_host()
        return make_bundle(tmp_path_factory.mktemp("bundle"))
    except SandboxError as error:
        if request.config.getoption("--require-sandbox", default=False):
            pytest.fail(f"--require-sandbox: {error}")
        pytest.skip(str(error))


# --- its parts


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


PROGRAM = Elf(("libone.so.1", "libc.so.6"), "/lib64/ld.so")


@pytest.fixture
def linked(monkeypatch) -> dict[str, Elf | None]:
    """Name of a file -> its linking; all others are libraries that need nothing."""
    found: dict[str, Elf | None] = {}
    monkeypatch.setattr(elf, "read", lambda path: found.get(path.name, Elf((), None)))
    return found


def test_programs_are_wrapped_and_the_libraries_that_they_need_are_in_it(tmp_path, linked):
    root, made = tmp_path / "root", tmp_path / "made"
    put(
        root, "usr/bin/srun", "usr/sbin/slurmd-wlm", "usr/bin/sinfo", "usr/bin/other", "bin/ip",
        "usr/bin/scontrol", "usr/lib/x/libone.so.1", "usr/lib/x/libtwo.so.2", "lib/libthree.so.3",
        "usr/lib/x/libc.so.6", "usr/lib/x/libspare.so", "usr/lib/x/slurm-wlm/select_x.so",
        "usr/lib/x/slurm-wlm/libslurmfull.so", "usr/lib/x/other/plugin.so",
    )  # fmt: skip
    (root / "usr/sbin/slurmd").symlink_to("slurmd-wlm")
    linked |= {
        "srun": PROGRAM, "slurmd-wlm": PROGRAM, "ip": PROGRAM, "other": PROGRAM,
        "sinfo": None, "scontrol": Elf(("libspare.so",), None),  # a script, and a library
        "libone.so.1": Elf(("libtwo.so.2",), None), "libtwo.so.2": Elf(("libc.so.6",), None),
        "select_x.so": Elf(("libthree.so.3", "ld-linux-x86-64.so.2"), None),
    }  # fmt: skip
    assemble(root, made)
    names = {p.name: sorted(f.name for f in p.iterdir()) for p in made.iterdir()}
    assert names == {
        "bin": ["ip", "slurmd", "srun"], "real": ["ip", "slurmd", "srun"],
        "lib": ["libone.so.1", "libthree.so.3", "libtwo.so.2"], "plugins": ["select_x.so"],
    }  # fmt: skip
    assert (made / "real" / "slurmd").read_text() == "usr/sbin/slurmd-wlm"
    wrapper = (made / "bin" / "srun").read_text()
    assert 'exec /lib64/ld.so --library-path "$root/lib"' in wrapper
    assert (made / "bin" / "srun").stat().st_mode & 0o777 == 0o755


def test_a_library_that_no_package_has_is_named(tmp_path, linked):
    put(tmp_path / "root", "usr/bin/srun", "usr/lib/x/libone.so.1")
    linked |= {"srun": PROGRAM, "libone.so.1": Elf(("libzwei.so", "libeins.so"), None)}
    with pytest.raises(SandboxError, match=r"no package of the bundle has libeins\.so, libzwei"):
        assemble(tmp_path / "root", tmp_path / "made")


def test_a_bundle_is_unpacked_unless_it_is_a_folder(tmp_path):
    put(tmp_path / "root", "bundle/bin/srun")
    assert unpacked(tmp_path / "root", tmp_path) == tmp_path / "root" / "bundle"
    assert unpacked(tmp_path / "root" / "bundle", tmp_path) == tmp_path / "root" / "bundle"
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "root" / "bundle", arcname="bundle")
    (tmp_path / "home").mkdir()
    assert unpacked(tmp_path / "x.tar.gz", tmp_path / "home") == tmp_path / "home" / "bundle"
    assert (tmp_path / "home" / "bundle" / "bin" / "srun").read_text() == "bundle/bin/srun"
    (tmp_path / "broken.tar.gz").write_text("no archive")
    with pytest.raises(SandboxError, match=r"broken\.tar\.gz cannot be unpacked"):
        unpacked(tmp_path / "broken.tar.gz", tmp_path / "home")


def test_packages_and_the_libraries_they_depend_on_are_downloaded(tmp_path, monkeypatch):
    listed = "slurmctld\n  Depends: libmunge2\nlibmunge2\nzlib1g\nlibc6\nperl\nlibhwloc15\n"
    done = SimpleNamespace(returncode=0, stdout="", stderr="")
    asked: list[list[str]] = []
    leaves = ["b.deb", "a.deb", "note.txt"]

    def run(command, *, cwd: Path, **more):
        asked.append(command)
        for name in leaves:
            (cwd / name).touch()
        return done

    monkeypatch.setattr(bundle, "run", Calls(listed))
    monkeypatch.setattr(bundle.subprocess, "run", run)
    assert download(tmp_path / "debs") == [tmp_path / "debs" / "a.deb", tmp_path / "debs" / "b.deb"]
    wanted = asked[0][asked[0].index("download") + 1 :]
    assert {"slurmctld", "iproute2", "libmunge2", "zlib1g", "libhwloc15"} <= set(wanted)
    assert not {"libc6", "perl"} & set(wanted)
    done.returncode, done.stderr, done.stdout = 100, "warning\nE: no network\n", "out\n"
    with pytest.raises(SandboxError, match=r"apt-get download failed \(E: no network\)"):
        download(tmp_path / "failed")
    done.returncode, done.stderr = 0, ""
    leaves.clear()
    with pytest.raises(SandboxError, match=r"download failed \(out\)"):
        download(tmp_path / "nothing")


def test_a_mirror_without_an_answer_is_an_error(tmp_path, monkeypatch):
    def never(command, **more):
        raise subprocess.TimeoutExpired(command, more["timeout"])

    monkeypatch.setattr(bundle, "run", Calls(""))
    monkeypatch.setattr(bundle.subprocess, "run", never)
    with pytest.raises(SandboxError, match="no answer in 300 s: a bundle needs a package mirror"):
        download(tmp_path / "debs")


def test_a_bundle_is_an_archive_of_root_with_a_list_of_its_packages(tmp_path, monkeypatch):
    def assembled(root: Path, into: Path) -> None:
        put(into, "bin/srun")

    monkeypatch.setattr(shutil, "which", lambda name: None if name == "dpkg-deb" else name)
    with pytest.raises(SandboxError, match="made from Debian packages and needs dpkg-deb"):
        make_bundle(tmp_path)
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(bundle, "download", lambda folder: [Path("a_1.deb"), Path("b_2.deb")])
    monkeypatch.setattr(bundle, "unpack_package", Calls())
    monkeypatch.setattr(bundle, "assemble", assembled)
    made = make_bundle(tmp_path / "out")
    assert made == tmp_path / "out" / "gpu-acceptance-sandbox-bundle.tar.gz"
    with tarfile.open(made) as archive:
        assert {"bundle/bin/srun", "bundle/MANIFEST"} <= set(archive.getnames())
        assert {(m.uid, m.gid, m.uname, m.gname) for m in archive} == {(0, 0, "root", "root")}
        manifest = archive.extractfile("bundle/MANIFEST")
        assert manifest is not None
        assert manifest.read() == b"a_1.deb\nb_2.deb\n"


def test_a_file_that_is_no_package_is_named(tmp_path, monkeypatch):
    class Source:
        def __init__(self, *_, **__) -> None:
            self.stdout, self.returncode = io.BytesIO(), codes.pop()

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

    codes = [2, 0]
    monkeypatch.setattr(bundle.subprocess, "Popen", Source)
    monkeypatch.setattr(bundle.subprocess, "run", Calls())
    bundle.unpack_package(tmp_path / "a.deb", tmp_path / "root")
    with pytest.raises(SandboxError, match=r"a\.deb is not a package"):
        bundle.unpack_package(tmp_path / "a.deb", tmp_path / "root")


# --- a whole one


@pytest.mark.slow
def test_it_is_small(real: Path) -> None:
    assert real.stat().st_size < 20 * MIB


@pytest.mark.slow
def test_it_needs_nothing_of_the_host_but_the_c_library(real: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-x", "-f", real, "-C", tmp_path], check=True)
    have = {path.name for path in (tmp_path / "bundle" / "lib").iterdir()}
    for path in (tmp_path / "bundle").rglob("*"):
        found = elf.read(path) if path.is_file() else None
        for name in found.needed if found else ():
            assert name in have or HOST_LIBRARIES.fullmatch(name), (path, name)


@pytest.mark.slow
def test_the_sandbox_runs_from_it_with_the_packages_hidden(real: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    libraries = Path("/usr/lib/x86_64-linux-gnu")
    registry = Path("/tmp") / f"sandbox-bundle-{tmp_path.stat().st_ino}"
    hide = ["unshare", "--mount", "sh", "-c", HIDE, "sh", str(empty), str(libraries)]
    done = subprocess.run(
        [*hide, sys.executable, "-c", USE, str(real), str(registry)],
        cwd=CHECKOUT,
        env={"PATH": SYSTEM_PATH, "SYSTEM": SYSTEM_PATH, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert {"worker0", "worker1", "libraries="} <= set(lines)
    assert sum(line.endswith("/bundle/bin/srun") for line in lines) == 2
    assert last == "[]"
