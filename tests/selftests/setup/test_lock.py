"""constraints.txt: read in its sections, complete, and hashed."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from fixtures.setup import lock
from fixtures.setup.lock import Package
from tests.selftests.support import CHECKOUT
from tests.tools.lock import SECTIONS

pytestmark = pytest.mark.cpu


def test_it_is_read_in_sections_with_hashes_and_markers(tmp_path):
    one, two = "a" * 64, "b" * 64
    (tmp_path / "constraints.txt").write_text(
        "# head\n\n# --- run: what a run needs\n"
        f"a-b==1.0 ; python_full_version < '3.15' \\\n    --hash=sha256:{one} \\\n"
        f"    --hash=sha256:{two}\n# --- torch: t\nnvidia-x==2\nnvidia-ml-py==3\n"
    )
    first, *rest = lock.read(tmp_path)
    assert first == Package(
        "a-b", "1.0", "python_full_version < '3.15'", (f"sha256:{one}", f"sha256:{two}"), "run"
    )
    assert [(p.name, p.section, p.of_cuda) for p in rest] == [
        ("nvidia-x", "torch", True), ("nvidia-ml-py", "torch", False)
    ]  # fmt: skip
    assert lock.packages(tmp_path, "torch", without=lambda p: p.of_cuda) == rest[1:]
    assert lock.pins([first]) == "a-b==1.0 ; python_full_version < '3.15'\n"
    (tmp_path / "constraints.txt").write_text("# --- run: x\n" + lock.with_hashes([first]))
    assert lock.read(tmp_path) == [first]


def test_every_package_has_a_version_a_section_and_hashes():
    found = lock.read(CHECKOUT)
    assert len(found) > 100
    assert {p.section for p in found} == set(SECTIONS)
    assert [p.name for p in found if not p.hashes] == []
    names = [p.name for p in found]
    assert len(names) == len(set(names))
    text = (CHECKOUT / "constraints.txt").read_text()
    assert len(re.findall("==", text.partition("# --- ")[2])) >= len(found)
    assert sum(len(p.hashes) for p in found) == text.count("--hash=")


def test_whatever_pyproject_requires_is_there_in_a_version_that_it_allows():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = {canonicalize_name(p.name): p for p in lock.read(CHECKOUT)}
    for section, lines in (
        ({"run"}, project["dependencies"]),
        ({"run", "torch", "finetune"}, extras["finetune"]),
        ({"run", "torch", "finetune", "development"}, extras["dev"]),
        (set(SECTIONS), [*extras["zero3"], *extras["sign"]]),
    ):
        for requirement in map(Requirement, lines):
            package = known[canonicalize_name(requirement.name)]
            assert package.section in section, package.name
            assert SpecifierSet(str(requirement.specifier)).contains(package.version), package


def test_no_second_index_is_asked_by_the_suite():
    for path in [*(CHECKOUT / "fixtures" / "setup").glob("*.py"), CHECKOUT / "Makefile",
                 *(CHECKOUT / "deploy").rglob("Dockerfile")]:  # fmt: skip
        assert "--extra-index-url" not in path.read_text(), path
