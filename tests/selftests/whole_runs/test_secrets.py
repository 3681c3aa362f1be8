"""Secrets planted in every option, in the environment and in --setup: no file of a run has one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.redaction import REMOVED
from tests.selftests.sandboxes import NODES_ONLY, Finished, Sandbox, on, resume, suite

pytestmark = pytest.mark.cpu

SECRETS = (
    "hunter2-Correct.Horse", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "AKIAIOSFODNN7EXAMPLE",
    "two words-9Qz", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "zz91x<&>'q\"Z",
)  # fmt: skip
"""Of six forms; the suite knows some by how they look, and the others by where they stand."""


def of(option: str) -> list[str]:
    """The six, another for each option."""
    return [f"{secret}{option}" for secret in SECRETS]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


NAMES = ("API_TOKEN", "GH_PASS", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "JWT", "MY_SECRET")
IN_ENVIRONMENT = dict(zip(NAMES, of("e7v"), strict=True))
IN_SETUP = of("s7t")
IN_SBATCH, IN_SRUN, IN_COMMAND, IN_ACCOUNT = of("b7a"), of("r7n"), of("c7m"), of("a7c")


def options(seen: Path) -> list[str]:
    """Options with secrets, and lines of --setup whose jobs repeat what they are given."""
    setup = [f"export {name}={quoted(s)}" for name, s in zip(NAMES, IN_SETUP, strict=True)]
    return [
        "--setup=set -x", *(f"--setup={line}" for line in setup),
        f"--setup=env > {seen}/environment", f"--setup=echo {quoted(IN_SETUP[0])} >&2",
        *(f"--sbatch-args=--{name}={secret}" for name, secret in zip(
            ("comment", "comment", "mail-user", "comment", "comment", "comment"), IN_SBATCH,
            strict=True)),
        *(f"--srun-args=--comment=password={secret}" for secret in IN_SRUN),
        f"--node-loss-command=curl {' '.join(f'-u x:{quoted(s)}' for s in IN_COMMAND)} {{node}}",
        f"--account=token={IN_ACCOUNT[1]}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ended(
    shared_sandbox: Sandbox, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Finished, Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("secrets")
    env = {**on(shared_sandbox), **IN_ENVIRONMENT, "PROXY": f"http://u:{IN_ACCOUNT[0]}@proxy:3128"}
    done = suite(
        checkout, folder / "run", "-m", "multinode", *NODES_ONLY, *options(folder), env=env
    )
    assert done.directory.verdict.exists(), done.said
    return done, folder, env


ALL = (*IN_ENVIRONMENT.values(), *IN_SETUP, *IN_SBATCH, *IN_SRUN, *IN_COMMAND, *IN_ACCOUNT)


def forms(secret: str) -> list[bytes]:
    """A secret, and its beginning and end: half of one is one too."""
    return [text.encode() for text in (secret, secret[:9], secret[-12:])]


def found_in(folder: Path) -> list[str]:
    """Which files have which of the planted secrets, in name or content."""
    hits = []
    for path in (p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes() + str(path).encode()
        hits += [f"{path.name}: {s}" for s in ALL if any(f in content for f in forms(s))]
    return hits


def test_no_file_of_the_run_has_a_planted_secret(ended):
    done, _, _ = ended
    assert found_in(done.root) == []
    assert [s for s in ALL if s in done.said] == []
    run = read_json(done.directory.run_json)
    assert f"--setup=export API_TOKEN={REMOVED}" in run["options"]
    assert any(f"--node-loss-command=curl {REMOVED}" in text for text in run["commands"])


def test_the_jobs_got_what_setup_gives_and_nothing_of_the_shell_of_the_login_node(ended):
    done, folder, _ = ended
    environment = (folder / "environment").read_text()
    assert all(secret in environment for secret in IN_SETUP)
    assert not [s for s in IN_ENVIRONMENT.values() if s in environment]
    assert IN_ACCOUNT[0] not in environment
    assert [row["outcome"] for row in done.rows.values() if row["outcome"] == "FAIL"] == []
    measured = [k for k, outcome in done.outcomes.items() if outcome == "PASS"]
    assert measured, done.said
    scripts = list(done.directory.jobs.glob("*/submitit/*.sh"))
    assert scripts
    assert all(f"export API_TOKEN={REMOVED}" in path.read_text() for path in scripts)


def test_what_is_in_the_run_directory_is_the_users_alone(ended):
    done, _, _ = ended
    assert done.root.stat().st_mode & 0o077 == 0


def test_resume_asks_for_the_option_again_or_says_that_it_differs(ended, checkout):
    done, folder, env = ended
    same = [o for o in options(folder) if not o.startswith("--sbatch-args")]
    again = resume(checkout, done.root, *NODES_ONLY, *same, env=env)
    assert "--sbatch-args is not given" in again.said, again.said
    assert "--setup" not in again.said.split("====")[0], again.said
    other = [o.replace(IN_SETUP[1], "ghp_another") for o in options(folder)]
    differs = resume(checkout, done.root, *NODES_ONLY, *other, env=env)
    assert "--setup differs from that of the session before" in differs.said
    pasted = resume(checkout, done.root, f"--setup=export API_TOKEN={REMOVED}", env=env)
    assert (pasted.status, pasted.said.count("give the option again as it was")) == (4, 1)
    assert found_in(done.root) == []
    assert os.access(done.directory.verdict, os.R_OK)
