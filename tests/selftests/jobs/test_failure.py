"""A failure in words, and when two are alike."""

from __future__ import annotations

import pytest

from fixtures.jobs.failure import (
    Failure,
    is_nearly_all,
    likeness,
    of_limited_memory,
    words_of_exit,
)
from fixtures.records.absence import JobKind
from fixtures.verdict.causes import Cause
from tests.selftests.job_failures import (
    diagnosed,
)

pytestmark = pytest.mark.cpu


def test_a_next_step_names_the_rank_where_it_is_known():
    assert "rank<k>.stacks" in Failure(JobKind.RANK_HUNG, "x").next_step
    assert "rank3.stacks" in Failure(JobKind.RANK_HUNG, "x", rank=3).next_step


@pytest.mark.parametrize(
    ("code", "words"),
    [("1:0", "exit 1"), ("0:9", "signal 9"), ("17920", "exit 70"), ("256", "exit 1"),
     ("32512", "exit 127"), ("9", "signal 9"), ("0", "exit 0"), ("0:0", "exit 0"), ("?", "exit ?")],
)  # fmt: skip
def test_an_exit_code_is_decoded(code, words):
    assert words_of_exit(code) == words
    assert f"job 42 (FAILED, {words})" in diagnosed(state="FAILED", exit_code=code).reason


def test_a_node_is_not_short_of_memory_that_the_site_does_not_give():
    killed = Failure(JobKind.HOST_OUT_OF_MEMORY, "oom-kill", node="n1", accused=("n1",))
    found = of_limited_memory(killed, "MaxMemPerCPU=100")
    assert (found.cause, found.accused) == (Cause.SETUP, ())
    assert found.reason == "oom-kill; MaxMemPerCPU=100 gives the job less memory than the node has"
    assert of_limited_memory(killed, "") is killed
    raised = Failure(JobKind.RANK_RAISED, "x")
    assert of_limited_memory(raised, "MaxMemPerCPU=100") is raised


@pytest.mark.parametrize(
    ("number", "of", "nearly"), [(3, 3, True), (2, 3, False), (9, 10, True), (8, 10, False)]
)
def test_nearly_all_are_all_or_all_but_one_in_ten(number, of, nearly):
    assert is_nearly_all(number, of) is nearly


def test_names_of_nodes_numbers_and_paths_do_not_make_a_failure_another_one():
    def like(text: str, kind: JobKind = JobKind.RANK_RAISED) -> object:
        return likeness(Failure(kind, "x", shown=text), ("alpha", "beta-ib"))

    assert like("alpha: task 3 in /a/b") == like("beta-ib: task 12 in /c")
    assert like("no torch") != like("no numpy")
    assert like("no torch") != like("no torch", JobKind.IMPORT_FAILURE)


def test_what_a_rank_or_a_log_says_does_not_act():
    said = Failure(
        JobKind.RANK_RAISED, "job 7: raised: \x1b[2Ja\n::error::b", workload="gemm\u202e",
        node="n1\n", first_error="a\u2028b", follows_from="x\x00", shown="::warning::c",
        part="\x9b",
    )  # fmt: skip
    assert said.reason == r"job 7: raised: \x1b[2Ja\n\x3a:error::b"
    assert (said.workload, said.node, said.first_error) == (r"gemm\u202e", r"n1\n", r"a\u2028b")
    assert (said.follows_from, said.shown, said.part) == (r"x\x00", r"\x3a:warning::c", r"\x9b")
    plain = Failure(JobKind.RANK_RAISED, "a", node=None, rank=3)
    assert (plain.reason, plain.node, plain.rank, plain.part) == ("a", None, 3, "")
