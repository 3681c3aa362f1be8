"""A checkout and an index so small that the set-up runs in a second: stub wheels by hand."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures.setup import command, environment, install, system, torch_build
from fixtures.setup.environment import Environment
from fixtures.setup.install import Pip
from tests.selftests.support import CHECKOUT

RUN_PIP = Pip._run
TORCH = "2.13.0"
PROJECT = """\
[project]
name = "small"
version = "1"
description = "a small suite"
dependencies = ["small-suite"]
[project.optional-dependencies]
finetune = ["small-finetune"]
dev = ["small-lint"]
"""


def wheel(folder: Path, name: str, version: str = "1.0", requires: Sequence[str] = ()) -> Path:
    """Write a wheel with one module, which says its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {r}\n" for r in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_inside, text in files.items():
            archive.writestr(name_inside, text)
    return path


def wheelhouse(folder: Path, *, torch: bool = True) -> Path:
    """Write the wheels of the small checkout."""
    wheel(folder, "small-suite")
    wheel(folder, "small-finetune", requires=["torch"])
    wheel(folder, "small-lint")
    if torch:
        wheel(folder, "torch", TORCH)
    return folder


def checkout(folder: Path) -> Path:
    """Write the files that decide what is installed."""
    plugin = folder / "fixtures" / "plugin"
    plugin.mkdir(parents=True)
    for name in ("install.py", "start.py"):
        shutil.copy(CHECKOUT / "fixtures" / "plugin" / name, plugin / name)
    (folder / "pyproject.toml").write_text(PROJECT)
    know(folder)
    return folder


def know(folder: Path, wheels: Path | None = None, *more: str) -> None:
    """Write constraints.txt of the small checkout, with the hashes of these wheels."""
    text = ""
    sections = {
        "run": ["small-suite==1.0", *more],
        "torch": [f"torch=={TORCH}"],
        "finetune": ["small-finetune==1.0"],
        "development": ["small-lint==1.0"],
    }
    for section, pins in sections.items():
        text += f"# --- {section}: of the small suite\n"
        for pin in pins:
            text += pin
            found = (
                wheels.glob(f"{pin.replace('==', '-').replace('-', '_', 1)}*.whl") if wheels else ()
            )
            for path in found:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                text += f" \\\n    --hash=sha256:{digest}"
            text += "\n"
    (folder / "constraints.txt").write_text(text)


def required(arguments: Sequence[str]) -> list[str]:
    """What pip is asked for: on its command line, and in the file that it names."""
    found: list[str] = []
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if before == "--requirement":
            lines = Path(argument).read_text().splitlines()
            found += [line.rstrip("\\ ") for line in lines if not line.startswith(" ")]
        elif not argument.startswith(("-", "/")):
            found.append(argument)
    return found


def unpack(pip: Pip, what: str, *arguments: str, log: Path | None) -> int:
    """Stand in for `pip install` from a wheelhouse: unpack each wheel that is named."""
    assert what == "install"
    python = Path(pip.command[-1])
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    names = [a.partition("==")[0] for a in required(arguments)]
    for name in names:
        found = sorted(Path(pip.wheelhouse).glob(f"{name.replace('-', '_')}-*.whl"))
        if not found:
            said = f"ERROR: No matching distribution found for {name}\n"
            log.write_text(said) if log else sys.stderr.write(said)
            return 1
        zipfile.ZipFile(found[-1]).extractall(packages)
    if log:
        log.touch()
    return 0


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout that the set-up works on, on a host that lacks nothing.

    It belongs to no cluster and has no GPU, and its interpreter no torch. pip has no settings and
    no index, and is stood in for; `real_pip` takes it instead.
    """
    home = checkout(tmp_path / "checkout")
    monkeypatch.setattr(command, "Environment", lambda: Environment(home))
    monkeypatch.setattr(torch_build, "pinned_version", lambda *_: TORCH)
    monkeypatch.setattr(torch_build, "torch_of_interpreter", lambda: None)
    # Without ensurepip the pip of this interpreter fills the environment: much faster.
    monkeypatch.setattr(environment, "_has_ensurepip", lambda: False)
    monkeypatch.setattr(system, "lacks", lambda **_: [])
    monkeypatch.setattr(system, "has_nvidia", lambda: False)
    monkeypatch.setattr(system, "in_cluster", lambda: False)
    monkeypatch.setattr(install, "PACKAGES_GB", 0.0)
    monkeypatch.setattr(Pip, "_run", unpack)
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return home


@pytest.fixture
def real_pip(small: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small checkout, with pip itself: slow."""
    monkeypatch.setattr(Pip, "_run", RUN_PIP)
    return small
