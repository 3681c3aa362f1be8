"""The set-up before `.venv`: make, the interpreter, what a host lacks; hosts are stood in for."""

# Length: what a host is and lacks, and make itself, share the stand-ins for a host.

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures import __main__ as accept
from fixtures.errors import RunError
from fixtures.sandbox import tools
from fixtures.setup import command, install, system
from fixtures.setup.environment import Environment
from fixtures.setup.system import SetupError
from fixtures.workloads.host import host as host_rows
from tests.selftests import setup_stubs
from tests.selftests.setup_stubs import small
from tests.selftests.support import CHECKOUT

__all__ = ["small"]

pytestmark = pytest.mark.cpu

TARGETS = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)


# --- what this host is


def device(root: Path, name: str, vendor: str, pci_class: str) -> None:
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{pci_class}\n")


def test_a_gpu_is_a_display_of_nvidia_with_a_driver_or_without(tmp_path):
    for k, (vendor, pci_class, has) in enumerate((
        ("0x10de", "0x030200", True), ("0x10de", "0x0c0330", False), ("0x8086", "0x030000", False)
    )):  # fmt: skip
        root = tmp_path / str(k)
        (root / "sys/bus/pci/devices/broken").mkdir(parents=True)
        device(root, "zz", vendor, pci_class)
        assert system.has_nvidia(root) is has
    assert system.has_nvidia(tmp_path) is False
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert system.has_nvidia(tmp_path) is True
    (tmp_path / "0" / "dev").mkdir()
    (tmp_path / "1" / "dev").mkdir()
    (tmp_path / "1" / "dev" / "nvidiactl").touch()
    assert system.has_nvidia(tmp_path / "1") is True


def test_a_cluster_that_does_not_answer_is_a_cluster(monkeypatch):
    def fails() -> bool:
        raise RunError("no answer")

    for answers, expected in ((lambda: True, True), (lambda: False, False), (fails, True)):
        monkeypatch.setattr(system, "slurm_answers", answers)
        assert system.in_cluster() is expected


def test_debian_is_known_by_its_release_and_apt(monkeypatch):
    monkeypatch.setattr(system, "program", lambda name: "/usr/bin/apt-get")
    for fields, has in (
        ({"ID": "debian"}, True), ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, True),
        ({"ID": "fedora"}, False), ({}, False),
    ):  # fmt: skip
        monkeypatch.setattr(system.platform, "freedesktop_os_release", lambda fields=fields: fields)
        assert system.has_apt() is has
    monkeypatch.setattr(system.platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(system, "program", lambda name: None)
    assert system.has_apt() is False

    def unknown() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(system, "program", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(system.platform, "freedesktop_os_release", unknown)
    assert system.has_apt() is False


def test_root_is_whoever_has_its_number(monkeypatch):
    for number, root in ((0, True), (1, False), (1000, False)):
        monkeypatch.setattr("os.geteuid", lambda number=number: number)
        assert system.is_root() is root


def test_programs_are_looked_for_in_sbin_as_well(monkeypatch, tmp_path):
    for name in ("bin", "sbin"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin" / "mine").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert system.program("mine") is None
    monkeypatch.setattr(system, "SYSTEM_PATH", str(tmp_path / "sbin"))
    assert system.program("mine") == str(tmp_path / "sbin" / "mine")


def test_one_of_ensurepip_and_pip_is_enough(monkeypatch):
    for there, has in (({"pip"}, True), ({"ensurepip"}, True), (set(), False)):
        monkeypatch.setattr(
            system.importlib.util, "find_spec", lambda name, there=there: name in there or None
        )
        assert system.has_pip_for_venv() is has


def test_the_compiler_is_that_of_cc_or_the_first_there_is(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(system, "program", lambda name: f"/bin/{name}" if name in there else None)
    for there, found in (({"gcc", "clang"}, "/bin/gcc"), ({"clang"}, "/bin/clang"), (set(), None)):  # noqa: B007
        assert system.c_compiler() == found
    monkeypatch.setenv("CC", "icc")
    there = {"gcc"}
    assert system.c_compiler() is None
    there = {"icc"}
    assert system.c_compiler() == "/bin/icc"


def test_headers_are_those_that_the_compiler_finds(monkeypatch, tmp_path):
    assert str(system.python_header()).endswith("/Python.h")
    for status, has in ((0, True), (1, False)):
        (tmp_path / "cc").write_text(f"#!/bin/sh\ncat >/dev/null; exit {status}\n")
        (tmp_path / "cc").chmod(0o755)
        assert system.has_c_headers(str(tmp_path / "cc")) is has
    for name, has in (("stdlib.h", True), ("nothing.h", False)):
        (tmp_path / "stdlib.h").touch()
        monkeypatch.setattr(system, "Path", lambda _, name=name: tmp_path / name)
        assert system.has_c_headers(None) is has


def test_packages_of_an_interpreter_are_debian_s_alone(monkeypatch):
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix, default, package in (
        ("/usr", f"/usr/bin/{name}", "python3-venv"),
        ("/usr", "/usr/bin/python3.1", f"{name}-venv"),
        ("/opt", f"/usr/bin/{name}", None),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "base_prefix", prefix)
        monkeypatch.setattr("os.path.realpath", lambda path, default=default: default)
        assert system.python_package("venv") == package


def test_what_is_missing_is_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: True)
    monkeypatch.setattr(system, "program", lambda name: None if name == "slurmd" else "/bin/x")
    programs = {"slurmctld": "a", "slurmd": "b"}
    found = system.lacks(rows=False, judged=False, programs=programs)
    assert found == [system.Need("slurmd", "b", False)]
    (tmp_path / "Python.h").touch()
    compiler: list[str | None] = ["gcc"]
    monkeypatch.setattr(system, "python_header", lambda: tmp_path / "Python.h")
    monkeypatch.setattr(system, "c_compiler", lambda: compiler[0])
    monkeypatch.setattr(system, "has_c_headers", lambda name: name is not None)
    assert system.lacks(rows=True, judged=True, programs={}) == []
    compiler[0] = None
    (tmp_path / "Python.h").unlink()
    monkeypatch.setattr(system, "python_package", lambda suffix: f"p-{suffix}")
    for judged in (True, False):
        needs = system.lacks(rows=True, judged=judged, programs={})
        assert [need.package for need in needs] == ["p-dev", "gcc", "libc6-dev"]
        assert {need.stops for need in needs} == {judged}
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: False)
    (need,) = system.lacks(rows=False, judged=False, programs={})
    assert (need.package, need.stops) == ("p-venv", True)
    assert system.packages_of([need, need, system.Need("x", None, False)]) == ["p-venv"]


def test_root_installs_what_is_missing_and_others_are_told(monkeypatch, capsys):
    gcc, own = system.Need("a compiler", "gcc", False), system.Need("pip", None, False)
    installed: list[list[str]] = []
    asked: list[dict] = []

    def lacks(**given) -> list[system.Need]:
        asked.append(given)
        return [] if installed and clears else [*needs]

    monkeypatch.setattr(system, "lacks", lacks)
    monkeypatch.setattr(system, "install_packages", lambda packages: installed.append(packages))
    for root, apt, offline, needs, clears, said, count in (  # noqa: B007
        (True, True, False, [gcc], True, "", 1), (True, True, False, [], True, "", 0),
        (False, True, False, [gcc], True, "brings it, and so does `make x` as root", 0),
        (False, True, False, [gcc, gcc], True, "lacks a compiler, a compiler: `apt-get", 0),
        (False, True, False, [gcc, gcc], True, "as root brings them, and", 0),
        (True, True, True, [gcc], True, "as root brings it. Without", 0),
        (True, False, False, [gcc], True, "by the package manager of this system", 0),
        (True, True, False, [own], False, "or give another interpreter than", 0),
        (False, True, False, [own], False, "by the package manager of this system", 0),
        (True, True, False, [gcc], False, "`apt-get install -y", 1),
    ):  # fmt: skip
        installed.clear()
        asked.clear()
        monkeypatch.setattr(system, "is_root", lambda root=root: root)
        monkeypatch.setattr(system, "has_apt", lambda apt=apt: apt)
        system.provide(
            rows=True, judged=False, programs={"p": "q"}, offline=offline, command="make x"
        )
        printed = capsys.readouterr().out
        assert said in printed, (said, printed)
        assert bool(printed) is bool(said)
        assert ("another interpreter" in printed) is (own in needs)
        assert len(installed) == count
        wanted = {"p": "q"} if root and apt and not offline else {}
        assert asked[0]["programs"] == wanted
    needs, clears = [system.Need("pip", "python3-venv", True)], False
    with pytest.raises(SetupError, match="Then `make x` again; nothing has been written"):
        system.provide(rows=True, judged=False, programs={}, offline=False, command="make x")


def test_what_apt_says_is_shown(monkeypatch, capsys):
    both = (
        "Need to get 68 MB/70 MB of archives.\nAfter this operation, 2 GB of additional disk space"
    )
    results: dict[str, SimpleNamespace] = {}
    ran = []

    def apt(*arguments: str, shown: bool = False) -> SimpleNamespace:
        ran.append((arguments, shown))
        what = "asked" if "--assume-no" in arguments else arguments[0]
        return results[what]

    def answer(status: int = 0, text: str | None = "") -> SimpleNamespace:
        return SimpleNamespace(returncode=status, stdout=text)

    monkeypatch.setattr(system, "_apt", apt)
    monkeypatch.setattr(system, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    for text, said in (
        (both, "68 MB to download, 2 GB on disk"),
        ("Need to get 1 MB of archives", ""),
    ):
        results = {"update": answer(), "asked": answer(1, text), "install": answer(0, None)}
        system.install_packages(["gcc"])
        printed = capsys.readouterr().out
        assert printed.splitlines()[0] == "packages of this system: gcc"
        assert said in printed
        assert ("to download" in printed) is bool(said)
    assert ran[-1][1] is True
    for update, install_, said in (
        (answer(), answer(1, "E: no gcc\n"), "gcc: no gcc. Mend"),
        (answer(), answer(1, None), "gcc: see above. Mend"),
        (answer(), answer(1, "x"), "see above"),
        (answer(1, "E: a\nE: b\nE: c\nE: d\n"), answer(1, "E: no gcc\n"),
         r"gcc: a \| b \| c\. Mend"),
    ):  # fmt: skip
        results = {"update": update, "asked": answer(1, ""), "install": install_}
        with pytest.raises(SetupError, match=said):
            system.install_packages(["gcc"])


def test_apt_asks_nothing_and_speaks_english(monkeypatch):
    ran = []

    def run(argv: list[str], **more) -> str:
        ran.append((argv, more))
        return "the result"

    monkeypatch.setattr(system.subprocess, "run", run)
    for path, name in (("/opt/apt-get", "/opt/apt-get"), (None, "apt-get")):
        monkeypatch.setattr(system, "program", lambda _, path=path: path)
        assert system._apt("update", "-q") == "the result"
        argv, more = ran.pop()
        assert argv == [name, "update", "-q"]
        assert more["env"]["DEBIAN_FRONTEND"] == "noninteractive"
        assert more["env"]["LC_ALL"] == "C"
        assert more["stdout"] == subprocess.PIPE
    system._apt("install", shown=True)
    assert ran[0][1]["stdout"] is None


# --- make


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CHECKOUT / "Makefile", folder)
    return subprocess.run(
        ["make", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("goal", [[], ["help"]])
def test_make_alone_prints_help_and_starts_nothing(tmp_path, goal):
    run = make(tmp_path, *goal)
    assert run.returncode == 0, run.stderr
    for target in TARGETS:
        assert re.search(rf"^ +make {target} +\S", run.stdout, re.MULTILINE), target
    assert {"accept", "test", "help", "test-bare"} <= set(TARGETS)
    for variable in ("PYTHON=", "TORCH=", "TORCH_INDEX=", "WHEELHOUSE=", "ARGS="):
        assert variable in run.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["Makefile"]


def test_make_finds_its_programs_in_an_empty_environment(tmp_path):
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    program = shutil.which("make") or "make"
    run = subprocess.run([program, "help"], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "make accept" in run.stdout


@pytest.mark.parametrize("goal", ["accept", "setup", "test", "wheelhouse"])
def test_a_python_that_is_not_there_is_named_once_and_nothing_is_written(tmp_path, goal):
    run = make(tmp_path, goal, "PYTHON=/nowhere/python3.12")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "PYTHON=/nowhere/python3.12 is not a program of this host" in line
    assert [p.name for p in tmp_path.iterdir()] == ["Makefile"]


def test_an_older_python_is_refused_in_words_that_it_can_read(monkeypatch):
    door = CHECKOUT / "fixtures" / "setup" / "__main__.py"
    for path in (door, door.with_name("__init__.py"), CHECKOUT / "fixtures" / "__init__.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setattr(sys, "version", "3.9.2 (default)")
    with pytest.raises(SystemExit, match=r"is Python 3\.9\.2, .* 3\.11 or newer: .* PYTHON="):
        runpy.run_path(str(door))


@pytest.mark.parametrize(("status", "word"), [(1, "REJECTED"), (2, "INCOMPLETE"), (0, None)])
def test_accept_shows_the_status_that_make_hides(monkeypatch, capfd, status, word):
    monkeypatch.setattr(accept, "backend_arguments", lambda: [f"--ends-with={status}"])
    monkeypatch.setattr(sys, "executable", shutil.which("sh"))
    real = accept.run_to_its_end
    monkeypatch.setattr(
        accept,
        "run_to_its_end",
        lambda argv, cwd: real(["sh", "-c", f"exit {argv[-1][-1]}"], cwd=cwd),
    )
    assert accept.main([]) == status
    last = capfd.readouterr().out.splitlines()[-1]
    assert (last == f"exit status of pytest: {status} ({word})") is (word is not None)


# --- what a host lacks


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Python, without python3-venv, headers and compiler, as an ordinary user."""
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: False)
    monkeypatch.setattr(system, "python_header", lambda: Path("/nowhere/Python.h"))
    monkeypatch.setattr(system, "c_compiler", lambda: None)
    monkeypatch.setattr(system, "has_c_headers", lambda _: False)
    monkeypatch.setattr(system, "python_package", lambda suffix: f"python3-{suffix}")
    monkeypatch.setattr(system, "has_apt", lambda: True)
    monkeypatch.setattr(system, "is_root", lambda: False)
    monkeypatch.setattr(system, "has_nvidia", lambda: False)
    monkeypatch.setattr(system, "in_cluster", lambda: False)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = setup_stubs.checkout(tmp_path / "checkout")
    monkeypatch.setattr(command, "Environment", lambda: Environment(home))
    return home


@pytest.mark.parametrize("goal", ["accept", "run", "test", "development"])
@pytest.mark.usefixtures("bare")
def test_a_user_is_told_every_package_at_once_before_anything_is_written(empty, goal, capsys):
    assert command.main([goal]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "python3-venv python3-dev gcc libc6-dev" in line
    assert "as root" in line
    assert "nothing has been written" in line
    found = sorted(p.name for p in empty.iterdir())
    assert found == ["constraints.txt", "fixtures", "pyproject.toml"]


@pytest.mark.usefixtures("bare")
def test_another_distribution_is_told_what_is_needed_and_nothing_of_apt(empty, capsys, monkeypatch):
    monkeypatch.setattr(system, "has_apt", lambda: False)
    monkeypatch.setattr(system, "is_root", lambda: True)
    assert command.main(["accept"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "apt" not in line
    for needed in ("ensurepip", "/nowhere/Python.h", "C compiler", "package manager"):
        assert needed in line


@pytest.mark.usefixtures("bare")
def test_with_a_wheelhouse_the_network_is_not_touched(empty, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(system, "install_packages", lambda _: pytest.fail("apt was called"))
    wheels = setup_stubs.wheelhouse(tmp_path / "wheels")
    assert command.main(["accept", f"--wheelhouse={wheels}"]) == 1
    assert "python3-venv python3-dev gcc libc6-dev" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goal", "stops"), [("accept", True), ("run", False), ("test", False), ("development", False)]
)
@pytest.mark.usefixtures("bare")
def test_without_a_compiler_only_a_demonstration_of_this_host_stops(
    goal, stops, monkeypatch, capsys
):
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: True)
    arguments = {"rows": True, "judged": goal == "accept", "programs": {}, "offline": False}
    if stops:
        with pytest.raises(SetupError, match="python3-dev gcc libc6-dev"):
            system.provide(**arguments, command=f"make {goal}")
    else:
        system.provide(**arguments, command=f"make {goal}")
        assert "python3-dev gcc libc6-dev" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("nvidia", "cluster", "judged", "rows"),
    [(False, False, True, True), (True, False, False, True), (False, True, False, False)],
)
def test_a_login_node_needs_no_compiler_and_a_gpu_host_is_judged_as_it_is(
    small, monkeypatch, nvidia, cluster, judged, rows
):
    asked = {}
    monkeypatch.setattr(system, "has_nvidia", lambda: nvidia)
    monkeypatch.setattr(system, "in_cluster", lambda: cluster)
    monkeypatch.setattr(system, "provide", lambda **kw: asked.update(kw))
    monkeypatch.setattr(install, "set_up", lambda *_, **__: None)
    assert command.main(["accept"]) == 0
    assert (asked["judged"], asked["rows"]) == (judged, rows)
    assert bool(asked["programs"]) is not cluster


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put an apt-get on the PATH that says this; return its log of calls."""

    def make_apt(update: str = "exit 0", install: str = "exit 0") -> Path:
        log = tmp_path / "apt.log"
        script = tmp_path / "apt-bin" / "apt-get"
        script.parent.mkdir()
        script.write_text(
            f'#!/bin/sh\necho "$@" >>"{log}"\ncase "$*" in\nupdate*) {update};;\n'
            "*--assume-no*) echo 'Need to get 68.2 MB of archives.';"
            " echo 'After this operation, 264 MB of additional disk space will be used.';"
            " exit 1;;\n"
            f"*) {install};;\nesac\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
        return log

    return make_apt


@pytest.mark.usefixtures("bare")
def test_root_on_debian_installs_what_is_missing_before_pip(
    small, apt, tmp_path, monkeypatch, capsys
):
    log = apt(install=f"touch {tmp_path}/installed")
    needs = [system.Need("x", "python3-venv", True), system.Need("y", "gcc", True)]
    monkeypatch.setattr(
        system, "lacks", lambda **_: [] if (tmp_path / "installed").exists() else needs
    )
    monkeypatch.setattr(system, "is_root", lambda: True)
    monkeypatch.setattr(
        install, "set_up", lambda *_, **__: log.write_text(log.read_text() + "pip\n")
    )
    assert command.main(["accept"]) == 0
    update, asked, done, pip = log.read_text().splitlines()
    assert update.startswith("update")
    assert "--assume-no" in asked
    assert done.startswith("install -y")
    assert done.endswith("python3-venv gcc")
    assert pip == "pip"
    assert "68.2 MB to download, 264 MB on disk" in capsys.readouterr().out


EXPIRED = (
    "echo 'E: Release file for http://m.example/dists/sid/InRelease is expired (invalid since "
    "3d 4h). Updates for this repository will not be applied.'; exit 100"
)


def test_a_mirror_that_is_out_of_date_is_named_and_its_packages_are_tried(apt, capsys):
    apt(update=EXPIRED)
    system.install_packages(["gcc"])
    said = capsys.readouterr().out
    assert "mirror is out of date: http://m.example/dists/sid/InRelease" in said


@pytest.mark.parametrize(
    ("update", "reason"),
    [(EXPIRED, "out of date: http://m.example"), ("exit 0", "Unable to locate package gcc")],
)
def test_apt_that_fails_is_one_message(apt, update, reason):
    apt(update=update, install="echo 'E: Unable to locate package gcc'; exit 100")
    with pytest.raises(SetupError, match=re.escape(reason)):
        system.install_packages(["gcc"])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, False),
        ({"dev/nvidiactl": ""}, True),
        ({"proc/driver/nvidia/version": ""}, True),
        ({"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200"},
         True),
        ({"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x040300"},
         False),
        ({"sys/bus/pci/devices/0/vendor": "0x8086\n", "sys/bus/pci/devices/0/class": "0x030000"},
         False),
    ],
)  # fmt: skip
def test_a_gpu_is_seen_with_a_driver_or_without(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert system.has_nvidia(tmp_path) is expected


# --- what the suite demands of a host is what the set-up brings


@pytest.mark.parametrize("cc", [None, "gcc", "clang", "absent-cc"])
@pytest.mark.parametrize("there", [(), ("gcc",), ("clang",), ("gcc", "clang")])
@pytest.mark.parametrize("header", [True, False])
def test_the_compiler_row_and_the_set_up_want_the_same(tmp_path, monkeypatch, cc, there, header):
    for name in there:
        path = tmp_path / name
        path.write_text("#!/bin/sh\nexit 0\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "SYSTEM_PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    if cc:
        monkeypatch.setenv("CC", cc)
    include = tmp_path / "include"
    include.mkdir()
    if header:
        (include / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(include))
    monkeypatch.setattr(system, "has_c_headers", lambda _: True)
    row = host_rows._compiler(None, tmp_path)
    assert (row.value == "missing") is bool(system.lacks_for_rows(judged=True))


def programs_of_nodes() -> set[str]:
    """Return the programs that workloads look for or start by a name in the source."""
    found = set()
    for path in (
        *CHECKOUT.glob("fixtures/**/workloads/**/*.py"),
        *CHECKOUT.glob("training/**/*.py"),
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "shutil.which":
                found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
                first = node.value.elts[0] if node.value.elts else None
                name = ast.unparse(node.targets[0])
                if name in ("command", "argv") and isinstance(first, ast.Constant):
                    found.add(first.value)
    return found


def test_programs_and_headers_of_the_workloads_are_brought_by_the_set_up():
    brought = {**system.SLURM, **system.TESTS, **tools.PACKAGES}
    named = programs_of_nodes()
    assert {"srun", "nvidia-smi"} <= named, "the search finds nothing"
    foreign = {
        name for name in named if name.startswith("nvidia-")
    }  # of the driver: no GPU, no row
    assert named - foreign <= set(brought)
    headers = {
        word
        for path in CHECKOUT.glob("fixtures/**/workloads/**/*.py")
        for word in re.findall(r'"(\w+\.h)"', path.read_text())
    }
    assert headers == {system.python_header().name}


def test_the_packages_of_the_sandbox_are_those_of_the_set_up():
    minimal = {"util-linux", "mount"}  # of every Debian
    assert set(tools.PACKAGES.values()) - minimal == set(system.SLURM.values())
    assert set(tools.ACCOUNTING.values()) <= {*system.SLURM.values(), *system.ACCOUNTING.values()}
