"""The suite's plug-in in a Python: written once, replaced by another version, never half."""

from __future__ import annotations

import importlib.metadata

import pytest

from fixtures.plugin import install

pytestmark = pytest.mark.cpu


def test_it_is_installed_once_and_an_earlier_version_goes(tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    old = packages / f"{install.MODULE}-0.0.1.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Name: gpu-cluster-acceptance\nVersion: 0.0.1\n")
    install.install(packages)
    before = {path: path.stat().st_mtime_ns for path in packages.rglob("*")}
    install.install(packages)
    assert {path: path.stat().st_mtime_ns for path in packages.rglob("*")} == before
    (found,) = importlib.metadata.distributions(path=[str(packages)])
    assert found.name == "gpu-cluster-acceptance"
    assert [(e.group, e.value) for e in found.entry_points] == [("pytest11", install.MODULE)]
    assert all(file.locate().exists() for file in found.files or ())
    assert not old.exists()


def test_what_has_changed_is_written_again(tmp_path):
    install.install(tmp_path)
    module = tmp_path / f"{install.MODULE}.py"
    text = module.read_text()
    assert "def pytest_addoption" in text
    assert repr(str(install.CHECKOUT)) in (tmp_path / f"{install.MODULE}.pth").read_text()
    module.write_text("another")
    install.install(tmp_path)
    assert module.read_text() == text
    module.unlink()
    install.install(tmp_path)
    assert module.read_text() == text
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".new")]


def test_another_checkout_is_named_and_its_version_recorded(tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "fixtures" / "plugin").mkdir(parents=True)
    (checkout / "fixtures" / "plugin" / "start.py").write_text("# the start\n")
    (checkout / "pyproject.toml").write_text(
        '[project]\nname = "small"\nversion = "7.1"\ndescription = "a suite"\n'
    )
    (tmp_path / "packages").mkdir()
    install.install(tmp_path / "packages", checkout)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "packages")])
    assert (found.name, found.version) == ("small", "7.1")
    lines = (found.read_text("RECORD") or "").splitlines()
    # As in `openssl dgst -sha256 -binary | base64`, for URLs and without padding.
    assert f"{install.MODULE}.py,sha256=ZfIIVbIPtUKfhCmxBYNTgZ4Fx7Z5b1nURtYNeJUqK-A,12" in lines


def test_the_checkout_is_the_one_of_the_file():
    assert (install.CHECKOUT / "fixtures" / "plugin" / "install.py").exists()
