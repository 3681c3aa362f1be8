"""What a session says while it ends, beside its verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plugin.last_lines import say_jobs_left, say_not_covered, say_stopping

pytestmark = pytest.mark.cpu


def config(said: list[str] | None) -> Any:
    """Return a configuration whose terminal takes lines; None: there is no terminal."""
    reporter = said is not None and SimpleNamespace(
        write_line=said.append, ensure_newline=lambda: None, flush=lambda: None
    )
    return SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda name: reporter or None))


@pytest.mark.parametrize(
    ("jobs", "line"),
    [([], []), (["7"], ["1 job may"]), (["7", "8", "9"], ["3 jobs may"])],
)
def test_jobs_that_may_still_run_are_said_with_the_command_that_ends_them(jobs, line):
    said: list[str] = []
    say_jobs_left(config(said), jobs)
    assert [one[:9] for one in said] == [one[:9] for one in line]
    assert all(one.endswith("scancel " + " ".join(jobs)) for one in said)


def test_where_there_is_no_terminal_nothing_is_said():
    say_jobs_left(config(None), ["7"])
    say_stopping(config(None), 3, interrupted=True)
    say_not_covered(config(None), ["x"])


@pytest.mark.parametrize(
    ("jobs", "interrupted", "line"),
    [(0, False, []), (0, True, ["stopping"]), (2, False, ["stopping, cancelling 2 jobs"])],
)
def test_whoever_ends_a_run_is_answered(jobs, interrupted, line):
    said: list[str] = []
    say_stopping(config(said), jobs, interrupted=interrupted)
    assert said == line


def test_twenty_lines_on_the_manifest_are_enough():
    said: list[str] = []
    say_not_covered(config(said), ["x"] * 21)
    assert len(said) == 21
    assert said[-1] == "not covered by manifest.sha256: 1 more"
