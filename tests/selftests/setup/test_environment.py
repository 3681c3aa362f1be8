"""`.venv`: made anew where it does not fit, left alone where it does; every remedy works.

Hosts are stood in for; the environments are real, from stub wheels.
"""

# Length: what an environment says of itself, and real ones, share their small checkout.

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import queue
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.setup import command, environment, install, system
from fixtures.setup.environment import Asked, Environment
from tests.selftests import setup_stubs, support
from tests.selftests.setup_stubs import real_pip, small

__all__ = ["real_pip", "small"]

pytestmark = pytest.mark.cpu

NOTHING = Asked(python=False, torch="", torch_index="")


def set_up(home: Path, *options: str, goal: str = "run") -> int:
    wheels = home.parent / "wheels"
    if not wheels.exists():
        setup_stubs.wheelhouse(wheels)
    return command.main([goal, f"--wheelhouse={wheels}", *options])


def imports(home: Path, *modules: str) -> bool:
    argv = [home / ".venv" / "bin" / "python", "-c", f"import {', '.join(modules)}"]
    return subprocess.run(argv, capture_output=True).returncode == 0


def spoil_record(home: Path, **fields: str) -> None:
    support.change(home / ".venv" / ".python", **fields)


def replace_python(home: Path) -> None:
    for name in ("python", "python3"):
        (home / ".venv" / "bin" / name).unlink(missing_ok=True)
    (home / ".venv" / "bin" / "python").symlink_to("/nowhere/python3")


def forget_torch(home: Path) -> None:
    for path in (home / ".venv").glob("lib/*/site-packages/torch*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def older(home: Path) -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor - 1}.1"


# --- what it says of itself, and whether it fits


@pytest.fixture
def plain(tmp_path, monkeypatch) -> Environment:
    """The environment of a small checkout: its files alone, as of this interpreter."""
    made = Environment(setup_stubs.checkout(tmp_path / "checkout"))
    (made.path / "bin").mkdir(parents=True)
    made.write_origin(torch="default", torch_index="I")
    made.mark("run")
    monkeypatch.setattr(system, "has_nvidia", lambda: False)
    monkeypatch.setattr(system, "in_cluster", lambda: False)
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: False)
    probed(monkeypatch)
    return made


def probed(monkeypatch, **more: Any) -> None:
    """What the Python of an environment says of itself."""
    major, minor = sys.version_info[:2]
    said = {
        "version": f"{major}.{minor}",
        "machine": platform.machine(),
        "pip": True,
        "torch": True,
    }
    text = json.dumps([*(said | more).values()])
    monkeypatch.setattr(
        environment.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=text, returncode=0)
    )


def misfit(made: Environment, *, python: bool = False, torch: str = "", index: str = "") -> str:
    return made.misfit(Asked(python, torch, index)) or ""


def test_what_was_installed_counts_for_the_files_that_it_was_installed_for(plain):
    first = plain.digest()
    assert plain.installed() == {"run": first}
    plain.mark("development")
    assert plain.installed() == {"run": first, "development": first}
    (plain.checkout / "constraints.txt").write_text("torch==7\n")
    assert plain.digest() != first
    plain.mark("development")
    assert plain.installed() == {"development": plain.digest()}
    for broken in ("[]", "{", ""):
        (plain.path / ".ready").write_text(broken)
        assert plain.installed() == {}
    plain.unmark()
    plain.unmark()
    assert plain.installed() == {}


def test_it_says_what_it_is_of(plain, tmp_path):
    origin = plain.origin()
    assert origin is not None
    assert (origin.executable, origin.version) == (sys.executable, platform.python_version())
    assert origin.minor_version == "{}.{}".format(*sys.version_info[:2])
    assert (origin.torch, origin.torch_index, origin.venv) == ("default", "I", str(plain.path))
    for broken in ("{", "[]", '{"venv": "x"}'):
        (plain.path / ".python").write_text(broken)
        assert plain.origin() is None
    assert Environment(tmp_path).path == tmp_path / ".venv"
    assert Environment(tmp_path, tmp_path / "other").python == tmp_path / "other/bin/python"
    assert (environment.CHECKOUT / "fixtures" / "setup").is_dir()


def test_an_environment_that_fits_is_kept(plain, tmp_path):
    assert misfit(plain) == ""
    assert misfit(Environment(tmp_path)) == ""  # there is none
    assert misfit(plain, python=True, torch="own", index="I") == ""


def test_why_it_must_be_made_anew(plain, monkeypatch):
    for said, reason in (
        ({"version": "3.2"}, "is of Python 3."),
        ({"machine": "riscv128"}, "this machine is riscv128"),
        ({"pip": False}, "it has no pip"), ({"torch": False}, "its torch is gone"),
    ):  # fmt: skip
        probed(monkeypatch, **said)
        assert reason in misfit(plain), reason
    monkeypatch.setattr(system, "has_pip_for_venv", lambda: True)
    probed(monkeypatch, pip=False)
    assert misfit(plain) == ""
    plain.write_origin(torch="none", torch_index="")
    probed(monkeypatch, torch=False)
    assert misfit(plain) == ""

    def hangs(argv: list[str], *, timeout: float, **_: Any) -> None:
        assert timeout == 60  # a Python on a slow shared filesystem starts in seconds
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(environment.subprocess, "run", hangs)
    assert "its Python does not start" in misfit(plain)
    plain.unmark()
    assert "half made" in misfit(plain)
    spoil_record(plain.checkout, executable="/nowhere/python3")
    assert "which this machine does not have" in misfit(plain)
    for place in ("/nowhere/.venv", str(plain.checkout)):
        spoil_record(plain.checkout, venv=place)
        assert "was made in another place" in misfit(plain)
    (plain.path / ".python").unlink()
    assert "does not say which interpreter" in misfit(plain)


def test_what_is_asked_for_makes_it_anew(plain, monkeypatch):
    for torch, asked, reason in (
        ("default", {"torch": "none"}, "TORCH=none"), ("none", {"torch": "none"}, ""),
        ("none", {"torch": "own"}, "TORCH=own"), ("borrowed", {"torch": "own"}, "TORCH=own"),
        ("cpu", {"torch": "own"}, "TORCH=own"), ("index", {"torch": "own"}, ""),
        ("default", {"torch": "own"}, ""), ("default", {"index": "J"}, "TORCH_INDEX=J"),
        ("borrowed", {"index": "J"}, ""), ("default", {"index": "I"}, ""), ("cpu", {}, ""),
        ("none", {}, ""),
    ):  # fmt: skip
        plain.write_origin(torch=torch, torch_index="I")
        assert reason in misfit(plain, **asked), (torch, asked)
        assert bool(misfit(plain, **asked)) is bool(reason), (torch, asked)
    for name in ("has_nvidia", "in_cluster"):
        with monkeypatch.context() as patch:
            patch.setattr(system, name, lambda: True)
            assert misfit(plain) == ""
            plain.write_origin(torch="cpu", torch_index="I")
            assert "a GPU or a cluster now" in misfit(plain)
            plain.write_origin(torch="none", torch_index="I")
    spoil_record(plain.checkout, prefix="/opt/another")
    assert misfit(plain) == ""
    assert f"PYTHON= is {sys.executable}" in misfit(plain, python=True)


def test_an_interpreter_is_known_by_its_prefix_and_file(plain, monkeypatch):
    origin = plain.origin()
    assert origin is not None
    assert environment.is_this_interpreter(origin) is True
    for changed in ({"prefix": "/opt"}, {"executable": "/bin/sh"}):
        other = dataclasses.replace(origin, **changed)
        assert environment.is_this_interpreter(other) is False


def test_what_is_removed_may_be_a_file_a_link_or_nothing(plain, tmp_path, monkeypatch):
    plain.remove()
    plain.remove()
    plain.path.touch()
    plain.remove()
    plain.path.symlink_to(tmp_path / "nowhere")
    plain.remove()
    (tmp_path / "mine").mkdir()
    plain.path.symlink_to(tmp_path / "mine")
    plain.remove()
    assert (tmp_path / "mine").is_dir()
    assert not plain.path.is_symlink()
    plain.path.mkdir()

    def refuses(path: Path) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(environment.shutil, "rmtree", refuses)
    with pytest.raises(system.SetupError, match="belongs to another user"):
        plain.remove()


def test_it_is_made_by_this_interpreter_with_pip_where_it_can(plain, monkeypatch):
    ran = []
    result = SimpleNamespace(returncode=0, stdout="", stderr="")

    def run(argv: list[str], **_: Any) -> SimpleNamespace:
        ran.append(argv)
        return result

    for ensurepip, options in ((True, []), (False, ["--without-pip"])):
        monkeypatch.setattr(environment, "_has_ensurepip", lambda has=ensurepip: has)
        monkeypatch.setattr(environment.subprocess, "run", run)
        plain.create()
        assert ran.pop() == [sys.executable, "-m", "venv", *options, str(plain.path)]
    result.returncode = 1
    for result.stdout, result.stderr, said in (
        ("out\nlast", "", "last"),
        ("out", "a\nerr\n", "err"),
    ):
        plain.path.mkdir(exist_ok=True)
        with pytest.raises(system.SetupError, match=f"failed: {said}$"):
            plain.create()
        assert not plain.path.exists()
    result.returncode, result.stdout = 0, "/v/site-packages\n"
    assert plain.packages_folder() == Path("/v/site-packages")


def test_ensurepip_is_there_where_it_can_say_its_version(monkeypatch):
    for status, has in ((0, True), (1, False)):
        monkeypatch.setattr(
            environment.subprocess, "run", lambda *_, s=status, **__: SimpleNamespace(returncode=s)
        )
        assert environment._has_ensurepip() is has


# --- made anew by the set-up


SPOILT = [
    (lambda home: (home / ".venv" / ".python").unlink(), "does not say which interpreter"),
    (lambda home: (home / ".venv" / ".ready").unlink(), "half made: its set-up was interrupted"),
    (lambda home: spoil_record(home, venv="/other/checkout/.venv"), "was made in another place"),
    (lambda home: spoil_record(home, executable="/nowhere/python3"), "this machine does not have"),
    (replace_python, "its Python does not start"),
    (lambda home: spoil_record(home, version=older(home)), f"is {sys.version_info.major}."),
    (lambda home: spoil_record(home, machine="riscv128"), "was made on riscv128"),
    (forget_torch, "its torch is gone"),
    (lambda home: spoil_record(home, torch="cpu"), "has a GPU or a cluster now"),
]


def test_what_does_not_fit_is_made_anew_with_one_line_and_what_fits_is_left_alone(
    small, capsys, monkeypatch, tmp_path
):
    assert set_up(small) == 0
    said = capsys.readouterr().out
    assert "GB on disk" in said.partition("1 of 3")[0]
    assert "torch: " in said
    assert "is set up" in said
    assert imports(small, "torch", "small_suite", "small_finetune")
    assert (small / ".venv" / "bin" / "pytest").exists()
    keep = tmp_path / "kept"
    shutil.copytree(small / ".venv", keep, symlinks=True)
    environment = Environment(small)
    assert set_up(small) == 0
    assert capsys.readouterr().out == ""
    assert environment.misfit(NOTHING) is None
    for spoil, reason in SPOILT:
        spoil(small)
        monkeypatch.setattr(system, "has_nvidia", lambda r=reason: "GPU" in r)
        assert reason in (environment.misfit(NOTHING) or ""), reason
        shutil.rmtree(small / ".venv")
        shutil.copytree(keep, small / ".venv", symlinks=True)
    monkeypatch.setattr(system, "has_nvidia", lambda: False)
    for asked, reason in (
        (Asked(False, "none", ""), "TORCH=none"),
        (Asked(False, "", "https://i.example"), "TORCH_INDEX=https://i.example"),
    ):
        assert reason in (environment.misfit(asked) or "")
    spoil_record(small, prefix="/opt/another")
    assert environment.misfit(NOTHING) is None, "without PYTHON= its own interpreter is kept"
    assert f"PYTHON= is {sys.executable}" in (environment.misfit(Asked(True, "", "")) or "")


def test_one_carried_from_another_place_is_made_anew_and_works(small, capsys, monkeypatch):
    assert set_up(small) == 0
    carried = small.with_name("carried")
    small.rename(carried)
    monkeypatch.setattr(command, "Environment", lambda: Environment(carried))
    capsys.readouterr()
    assert set_up(carried) == 0
    (line,) = [n for n in capsys.readouterr().out.splitlines() if n.endswith("made anew")]
    assert f"was made in another place, {small}/.venv" in line
    pytest_command = (carried / ".venv" / "bin" / "pytest").read_text()
    assert str(carried) in pytest_command
    assert f"{small}/" not in pytest_command


def test_interrupted_it_says_so_and_the_next_call_makes_it_anew(small, capsys, monkeypatch):
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> int:
            raise KeyboardInterrupt

        patch.setattr(install.Pip, "install", interrupt)
        assert set_up(small) == 130
    assert "interrupted" in capsys.readouterr().err
    assert (small / ".venv" / "bin" / "python").exists()
    assert set_up(small) == 0
    assert "half made: its set-up was interrupted: it is made anew" in capsys.readouterr().out
    assert imports(small, "torch", "small_suite")


def test_a_second_set_up_waits_for_the_first_and_for_the_pip_of_a_killed_one(small, monkeypatch):
    printed: queue.Queue[str] = queue.Queue()
    # Not by capfd: what is printed while it empties its file is lost.
    monkeypatch.setattr(environment, "print", lambda t, **_: printed.put(t), raising=False)
    # A process that inherits the lock, as the pip of a set-up that was killed does.
    with Environment(small).locked():
        pip = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    second = threading.Thread(target=set_up, args=(small,))
    second.start()
    assert "waiting for another set-up" in printed.get(timeout=900)
    assert not (small / ".venv").exists()
    pip.communicate()
    second.join()
    assert imports(small, "small_suite")


def test_changed_requirements_are_installed_into_the_same_environment(small, capsys):
    assert set_up(small) == 0
    (small / ".venv" / "mine").touch()
    setup_stubs.wheel(small.parent / "wheels", "small-more")
    setup_stubs.know(small, None, "small-more==1.0")
    assert set_up(small) == 0
    assert imports(small, "small_more")
    assert (small / ".venv" / "mine").exists()
    assert set_up(small, goal="development") == 0
    assert imports(small, "small_lint")


def test_a_wheelhouse_without_torch_names_three_remedies_and_one_of_them_works(small, capsys):
    setup_stubs.wheelhouse(small.parent / "wheels", torch=False)
    assert set_up(small) == 1
    (line,) = capsys.readouterr().err.splitlines()
    for remedy in ("PYTHON=", "make wheelhouse TORCH=own", "TORCH=none"):
        assert remedy in line
    assert not (small / ".venv").exists()
    assert set_up(small, "--torch=none") == 0
    assert imports(small, "small_suite")
    assert not imports(small, "torch")
    assert set_up(small) == 0, "without TORCH= the choice is kept"


@pytest.mark.parametrize(
    ("option", "said"),
    [("--wheelhouse=nowhere", "nowhere: no wheels in /"), ("--torch=cuda", "`none`, `own`")],
)
def test_a_wrong_variable_is_one_message(small, capsys, option, said):
    assert command.main(["run", option]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (small / ".venv").exists()


def test_a_missing_wheel_says_what_the_wheelhouse_must_hold(small, capsys):
    (setup_stubs.wheelhouse(small.parent / "wheels") / "small_suite-1.0-py3-none-any.whl").unlink()
    assert set_up(small) == 1
    said = capsys.readouterr().err
    assert f"wheels for Python {platform.python_version()} on {platform.machine()}" in said
    assert "docs/air-gap.md" in said
    setup_stubs.wheel(small.parent / "wheels", "small-suite")
    assert set_up(small) == 0


def test_a_link_is_removed_and_what_it_leads_to_is_left_alone(small, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (small / ".venv").symlink_to(tmp_path / "mine")
    assert set_up(small) == 0
    assert (tmp_path / "mine" / "thesis.tex").exists()
    assert not (small / ".venv").is_symlink()


def test_no_space_is_said_before_anything_is_installed(small, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1000))
    assert set_up(small) == 1
    assert "has 0.0 GB free" in capsys.readouterr().err
    assert not (small / ".venv").exists()


def test_without_python_the_interpreter_of_venv_goes_on(small, monkeypatch):
    assert set_up(small) == 0
    spoil_record(small, prefix="/opt/another", executable=str(small / ".venv" / "bin" / "python"))
    called = []
    monkeypatch.setattr("os.execv", lambda *a: called.append(a))
    monkeypatch.setattr("os.chdir", lambda _: None)
    command.relaunch(Environment(small), ["run"], given=False)
    command.relaunch(Environment(small), ["run"], given=True)
    ((executable, argv),) = called
    assert executable == str(small / ".venv" / "bin" / "python")
    assert argv[1:] == ["-m", "fixtures.setup", "run", "--relaunched"]


# --- wheels


def test_wheels_that_were_made_beside_a_torch_set_up_a_host_that_lends_one(
    real_pip, tmp_path, monkeypatch, capsys
):
    small = real_pip
    source = setup_stubs.wheelhouse(tmp_path / "index")
    setup_stubs.know(small, source)
    monkeypatch.setenv("PIP_FIND_LINKS", str(source))
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "torch.py").write_text("lent = True\n")
    monkeypatch.setattr(install.torch_build, "torch_of_interpreter", lambda: lent)
    wheels = tmp_path / "wheels"
    assert command.main(["wheelhouse", f"--wheels={wheels}"]) == 0
    assert "make wheelhouse TORCH=own" in capsys.readouterr().out
    names = sorted(p.name.split("-")[0] for p in wheels.iterdir())
    assert names == ["small_finetune", "small_suite"], "the extra finetune without its torch"
    assert not (small / ".venv").exists(), "nothing that travels with the checkout"
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert set_up(small) == 0
    assert imports(small, "small_suite")
    argv = [small / ".venv" / "bin" / "python", "-c", "import torch; assert torch.lent"]
    assert subprocess.run(argv).returncode == 0


# --- files that are not the ones that are known


@pytest.fixture
def index(real_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of this machine, whose files are those of constraints.txt."""
    wheels = setup_stubs.wheelhouse(tmp_path / "index" / "files")
    setup_stubs.know(real_pip, wheels)
    list_files(wheels)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    return wheels


def list_files(wheels: Path) -> None:
    """Write the pages of the index, as an attacker who has it would: with the hashes of today."""
    for path in wheels.glob("*.whl"):
        page = wheels.parent / path.name.rpartition("-1.0-")[0].replace("_", "-") / "index.html"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        page.parent.mkdir(exist_ok=True)
        page.write_text(f'<a href="{path.as_uri()}#sha256={digest}">{path.name}</a>')


def test_a_changed_wheel_in_the_index_stops_the_set_up_with_one_line(index, real_pip, capfd):
    assert command.main(["run", "--torch=none"]) == 0
    assert imports(real_pip, "small_suite")
    shutil.rmtree(real_pip / ".venv")
    with zipfile.ZipFile(index / "small_suite-1.0-py3-none-any.whl", "a") as archive:
        archive.writestr("small_suite_more.py", "evil = True\n")
    list_files(index)
    capfd.readouterr()
    assert command.main(["run", "--torch=none"]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ERROR: small-suite 1.0 (file://")
    assert "not the file that constraints.txt knows by its SHA-256" in line
    assert not imports(real_pip, "small_suite")
    assert not list((real_pip / ".venv").rglob("small_suite*"))


def test_a_package_of_another_index_is_not_taken_for_one_that_is_known(
    index, real_pip, monkeypatch, tmp_path, capfd
):
    """A name may come from either index where a second one is set: by its hash it may not."""
    other = setup_stubs.wheel(tmp_path / "other" / "files", "small-suite", requires=["nothing"])
    list_files(other.parent)
    (index / "small_suite-1.0-py3-none-any.whl").unlink()
    (index.parent / "small-suite" / "index.html").unlink()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (tmp_path / "other").as_uri())
    assert command.main(["run", "--torch=none"]) == 1
    assert "ERROR: small-suite 1.0 (file://" in capfd.readouterr().err
    assert not imports(real_pip, "small_suite")
