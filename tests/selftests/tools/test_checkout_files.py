"""Tests and tools list the checkout's files by one function, with git and without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT
from tests.tools import checkout_files

pytestmark = pytest.mark.cpu


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files that are listed, and each kind that is not."""
    (tmp_path / ".gitignore").write_text(
        "# what runs leave\n.venv\n__pycache__/\n*.pyc\nreports/runs/\n/wheels/\ntraining-*.out\n"
    )
    for name in (
        "a.py", "tests/b.py", "tests/wheels/c.whl", "reports/page.html", "deep/reports/runs/d",
        "tests/__pycache__/e.txt", "f.pyc", ".venv/g", "reports/runs/h", "wheels/i",
        "training-7.out", ".some_cache/j",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".some_cache" / ".gitignore").write_text("# by a tool\n*\n")
    (tmp_path / "link").symlink_to("a.py")
    return tmp_path


LISTED = [".gitignore", "a.py", "deep/reports/runs/d", "link", "reports/page.html", "tests/b.py",
          "tests/wheels/c.whl"]  # fmt: skip


def test_without_git_the_files_are_those_that_git_would_list(tree: Path) -> None:
    assert checkout_files.names(checkout=tree) == LISTED
    assert checkout_files.names("tests", "a.py", checkout=tree) == [
        "a.py", "tests/b.py", "tests/wheels/c.whl",
    ]  # fmt: skip
    if shutil.which("git") is None:
        pytest.skip("git is not installed: nothing to compare with")
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    assert checkout_files.names(checkout=tree) == LISTED
    (tree / "tests" / "b.py").unlink()
    assert "tests/b.py" not in checkout_files.names(checkout=tree), "git may still know it"


def test_a_copy_inside_another_repository_is_read_by_itself(tree: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    inner = tree / "wheels" / "copy"
    inner.mkdir(parents=True)
    (inner / "k.py").touch()
    assert checkout_files.names(checkout=inner) == ["k.py"], "git ignores all of it"


def test_a_rule_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("!kept\n")
    with pytest.raises(ValueError, match="!kept: only names"):
        checkout_files.names(checkout=tmp_path)


def test_this_checkout_without_git_is_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (CHECKOUT / ".git").exists():
        pytest.skip("no checkout of git here: nothing to compare with")
    with_git = checkout_files.names()
    monkeypatch.setattr(checkout_files, "_of_git", lambda _: None)
    assert checkout_files.names() == with_git
    assert len(with_git) > 900


def test_nothing_else_asks_git_for_files() -> None:
    """Else it fails in an image, where there is none."""
    asking = [
        name
        for name in checkout_files.names()
        if name.endswith(".py") and "ls-files" in (CHECKOUT / name).read_text(encoding="utf-8")
    ]
    assert asking == ["tests/selftests/tools/test_checkout_files.py",
                      "tests/tools/checkout_files.py"]  # fmt: skip
