"""Each promise of SECURITY.md has a test, which fails where its mechanism is switched off."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.selftests.sandboxes import copy_checkout
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu

PAGE = CHECKOUT / "SECURITY.md"
_ROW = re.compile(r"^\| (?P<promise>.+?) \| `(?P<test>tests/\S+\.py::\w+)` \|$", re.MULTILINE)

OFF: dict[str, tuple[str, str, str]] = {
    "test_a_file_that_becomes_a_link_before_it_is_opened_is_not_followed": (
        "fixtures/records/foreign_files.py",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_RDONLY | os.O_NONBLOCK",
    ),
    "test_what_is_no_regular_file_of_its_size_is_refused_by_name": (
        "fixtures/records/foreign_files.py", "if found.st_size > bound.bytes:", "if False:",
    ),
    "test_only_folders_of_tests_are_read": (
        "fixtures/plugin/invocation.py",
        "return None if collection_path in _test_folders(checkout) else True", "return None",
    ),
    "test_nothing_is_appended_to_through_a_link": (
        "fixtures/records/files.py",
        "os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK", "os.O_APPEND | os.O_NONBLOCK",
    ),
    "test_a_run_directory_is_its_owner_s_alone_and_keeps_what_is_missing": (
        "fixtures/records/run_directory.py", "self.root.chmod(0o700)", "self.root.chmod(0o755)",
    ),
    "test_what_acts_is_shown": (
        "fixtures/records/inert.py",
        "c if c.isprintable() or c in _BLANKS else _escape(c)", "c",
    ),
    "test_a_script_that_came_into_a_page_is_not_allowed_by_it": (
        "reports/facts/policy.py", "script-src {hashes};", "script-src 'unsafe-inline' 'self';",
    ),
    "test_a_cell_that_is_a_formula_is_text_and_a_number_stays_a_number": (
        "reports/exports/export.py", "if line.startswith(_FORMULA) else line", "if False else line",
    ),
    "test_every_one_of_200_changed_bytes_is_found_by_its_hash": (
        "reports/evidence/statement.py", "elif current != digest:", "elif False:",
    ),
    "test_a_stripped_signature_is_missed_where_it_is_demanded": (
        "reports/handover/signature.py", "missing = list(demanded)", "missing = []",
    ),
    "test_a_process_proves_by_its_environment_which_job_it_is_of": (
        "fixtures/processes.py", "return environment.get(PROOF) == proof", "return True",
    ),
    "test_root_believes_no_state_that_another_user_could_have_written": (
        "fixtures/sandbox/state.py", "elif found.st_uid != 0:", "elif False:",
    ),
    "test_a_sandbox_is_of_root_unless_it_is_opened": (
        "fixtures/sandbox/config.py", 'f"{OPEN_PARTITION} RootOnly=YES"', "OPEN_PARTITION",
    ),
    "test_of_a_shell_line_only_what_is_known_to_hold_no_secret_is_kept": (
        "fixtures/redaction.py", "plain and _is_plain(value)", "True",
    ),
    "test_what_is_known_to_be_a_secret_is_written_into_no_file": (
        "fixtures/records/files.py", "map(KNOWN.without_raw, parts) if KNOWN else parts", "parts",
    ),
    "test_a_job_gets_no_secret_of_the_shell_that_pytest_was_started_in": (
        "fixtures/jobs/batch_script.py", "if left_out else command", "if False else command",
    ),
    "test_users_homes_addresses_and_secrets_are_removed_and_the_rest_stays": (
        "reports/evidence/third_parties.py", "_PATH.sub(self._path, shown.text)", "shown.text",
    ),
    "test_a_changed_wheel_in_the_index_stops_the_set_up_with_one_line": (
        "fixtures/setup/install.py", "hashed=not self.wheelhouse", "hashed=False",
    ),
}  # fmt: skip
"""Test of a promise -> file, what stands in it once, and what stands there with it switched off."""


def promises() -> dict[str, str]:
    """Promise -> the test that holds it, as SECURITY.md has them."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- promises:")[2].partition("<!-- end of promises")[0]
    found = {match["promise"]: match["test"] for match in _ROW.finditer(table)}
    assert len(found) == table.count("\n| ") - 1, "a row that is not a promise and a test"
    return found


def name_of(test: str) -> str:
    return test.partition("::")[2]


def test_every_promise_has_a_test_that_exists_and_a_mechanism_that_is_switched_off():
    found = promises()
    assert len(found) >= 10
    for promise, test in found.items():
        file, _, name = test.partition("::")
        defined = ast.parse((CHECKOUT / file).read_text(encoding="utf-8")).body
        assert name in [d.name for d in defined if isinstance(d, ast.FunctionDef)], promise
    assert {name_of(test) for test in found.values()} == set(OFF)
    for file, mechanism, without in OFF.values():
        assert (CHECKOUT / file).read_text(encoding="utf-8").count(mechanism) == 1, mechanism
        assert mechanism != without


def test_what_cannot_be_promised_and_how_to_report_are_there():
    text = PAGE.read_text(encoding="utf-8")
    for heading in ("## Reporting a fault", "## What cannot be promised"):
        assert heading in text
    for part in ("lies about its own hardware", "nonce", "A checkout that nodes may write"):
        assert part in text
    model = (CHECKOUT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    for part in (
        "read-only checkout",
        "login side of its own",
        "--thresholds",
        "--allowed-signers",
    ):
        assert part in model
    assert "(SECURITY.md)" in (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert "SECURITY.md" in (CHECKOUT / "reports" / "templates" / "certificate.jinja2").read_text()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout to change."""
    root = tmp_path_factory.mktemp("promises") / "suite"
    root.mkdir()
    copy_checkout(root)
    for name in ("constraints.txt", "Makefile", "docs"):
        source = CHECKOUT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
    yield root
    shutil.rmtree(root, ignore_errors=True)


def status_of(root: Path, test: str) -> tuple[int, str]:
    """Run one test in a checkout; pytest's exit status and what it said."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        argv, cwd=root, capture_output=True, text=True, timeout=600,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("test", promises().values(), ids=map(name_of, promises().values()))
def test_a_promise_whose_mechanism_is_switched_off_fails_its_test(copied, test):
    file, mechanism, without = OFF[name_of(test)]
    status, said = status_of(copied, test)
    if "skipped" in said and "passed" not in said:
        pytest.skip("this host cannot run it")
    assert status == 0, said
    path = copied / file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mechanism, without), encoding="utf-8")
    try:
        status, said = status_of(copied, test)
    finally:
        path.write_text(text, encoding="utf-8")
    assert status == 1, said
    assert re.search(r"\d+ failed", said), said
