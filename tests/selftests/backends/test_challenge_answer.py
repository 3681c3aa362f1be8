"""The answer to a challenge as the first job of a run: what is given, and who is left out."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import challenge_answer as module
from fixtures.backends import choose
from fixtures.challenge import messages
from fixtures.errors import ConfigError
from fixtures.plan.jobs import Job
from fixtures.records.files import append_line, write_json
from fixtures.records.foreign_files import RecordError
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import RunOptions
from tests.selftests.support import population

pytestmark = pytest.mark.cpu

PARAMETERS = messages.Parameters(
    n=32, steps=2, segments=3, reads=2, ranks=6, openings=4, deadline_s=60
)  # fmt: skip


class Answering:
    """A run that is to answer, with the jobs that it made."""

    def __init__(self, root: Path, *, opening: bool = False) -> None:
        self.challenge_file = root / "sent.json"
        write_json(self.challenge_file, messages.challenge_fields(PARAMETERS, bytes(32)))
        self.challenge = messages.read_challenge(self.challenge_file)
        self.opening_file = root / "draw.json"
        drawn = messages.Opening(self.challenge.digest, bytes(32), secrets.token_bytes(32))
        write_json(self.opening_file, messages.opening_fields(drawn))
        directory = RunDirectory(root / "run")
        directory.make()
        self.run: Any = SimpleNamespace(directory=directory, population=population(3, 2))
        given = {"opening": self.opening_file} if opening else {}
        asked = module.asked(RunOptions(challenge=self.challenge_file, **given))
        assert asked is not None
        self.asked = asked
        self.jobs: list[Job] = []
        self.log = ""

    def answer(
        self, *ends: Mapping[str, Any], lost: Mapping[str, str] | None = None
    ) -> list[tuple[tuple[str, ...], Sequence[int]]]:
        """Answer where jobs end in this way; return nodes and numbers left out of each."""
        left = iter(ends)

        def measure(jobs: Sequence[Job]) -> None:
            (job,) = jobs
            self.jobs.append(job)
            log = self.run.directory.job(job.name) / "submitit" / "1_0_log.out"
            log.parent.mkdir(parents=True)
            log.write_text(self.log)
            if end := next(left, None):
                append_line(self.run.directory.missing, {"placement": job.placement, **end})

        module.answer(self.run, self.asked, lambda job: lost or {}, measure)
        return [(job.nodes, job.params["without"]) for job in self.jobs]


ALL = ("worker0", "worker1", "worker2")


def test_one_job_over_all_nodes_answers(tmp_path):
    answering = Answering(tmp_path)
    assert answering.answer() == [(ALL, [])]
    (job,) = answering.jobs
    assert (job.world_size, job.gpus_per_node) == (6, 2)
    assert set(job.workloads[0][1]) == {"chains", "hashes", "commitment"}
    # Another session has a job of its own.
    assert answering.answer() == [(ALL, []), (ALL, [])]
    assert [j.name for j in answering.jobs] == ["challenge-1", "challenge-2"]


def test_the_rank_by_which_the_job_ended_is_left_out_of_the_next(tmp_path):
    first, second = {"node": "worker1", "rank": 3}, {"node": "worker0", "rank": 0}
    found = Answering(tmp_path).answer(first, second)
    assert found == [(ALL, []), (ALL, [3]), (ALL, [0, 3])]


@pytest.mark.parametrize(
    ("opening", "committed", "without"),
    [(False, True, []), (True, True, [1, 4]), (True, False, [])],
)
def test_the_opening_leaves_out_who_is_not_in_the_commitment(tmp_path, opening, committed, without):
    """An answer over again does not: what an earlier commitment left out may answer now."""
    answering = Answering(tmp_path, opening=opening)
    if committed:
        there = messages.Commitment(answering.challenge.digest, (0, 2, 3, 5), bytes(32))
        folder = answering.run.directory.challenge
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / messages.COMMITMENT, messages.commitment_fields(there))
    assert answering.answer() == [(ALL, without)]


def test_a_node_without_a_rank_is_left_out_whole_and_tries_end(tmp_path):
    ends = [{"node": f"worker{k}", "rank": None} for k in (2, 1, 0)]
    assert [out for _, out in Answering(tmp_path).answer(*ends)] == [[], [4, 5], [2, 3, 4, 5]]


def test_what_names_nobody_is_not_tried_again(tmp_path):
    assert len(Answering(tmp_path).answer({"node": None, "rank": 1})) == 1


def test_of_tasks_that_were_all_killed_the_first_is_left_out(tmp_path):
    """The failure accuses nobody there; to leave out a chain accuses nobody either."""
    answering = Answering(tmp_path)
    answering.log = (
        "srun: error: worker1: task 3: Killed\nsrun: launch/slurm: _step_signal: Terminating "
        "StepId=1.0\nsrun: error: worker0: tasks 0-1: Killed\n"
    )
    found = answering.answer({"node": None, "rank": None})
    assert [out for _, out in found] == [[], [3]]


def test_nodes_that_slurm_cannot_use_are_not_waited_for(tmp_path):
    answering = Answering(tmp_path)
    assert answering.answer(lost={"worker0": "down"}) == [(ALL[1:], [])]
    # The chains keep their numbers.
    assert answering.jobs[0].params["nodes"] == [*ALL]
    answering.jobs.clear()
    assert answering.answer(lost=dict.fromkeys(ALL, "down")) == []


def test_an_opening_is_answered_by_the_ranks_of_the_commitment(tmp_path):
    answering = Answering(tmp_path, opening=True)
    committed = messages.Commitment(answering.challenge.digest, (0, 1, 4, 5), bytes(32))
    folder = answering.run.directory.challenge
    write_json(folder / messages.COMMITMENT, messages.commitment_fields(committed))
    assert answering.answer({"node": "worker0", "rank": 0}) == [(ALL, [2, 3])]
    assert answering.jobs[0].params["opening"] is True


def test_the_messages_are_kept_as_they_came_and_once(tmp_path):
    answering = Answering(tmp_path)
    line = module.take(answering.asked, answering.run)
    folder = answering.run.directory.challenge
    assert str(folder / messages.COMMITMENT) in line
    assert (folder / messages.CHALLENGE).read_bytes() == answering.challenge_file.read_bytes()
    assert answering.run.directory.is_evidence("challenge/challenge.json")
    (folder / messages.COMMITMENT).write_text("{}")
    with pytest.raises(ConfigError, match="is there already"):
        module.take(answering.asked, answering.run)
    other = json.loads(answering.challenge_file.read_text()) | {"nonce": "1" * 64}
    answering.challenge_file.write_text(json.dumps(other))
    asked = module.asked(RunOptions(challenge=answering.challenge_file))
    assert asked is not None
    with pytest.raises(ConfigError, match="another challenge"):
        module.take(asked, answering.run)


def test_options_that_do_not_go_together_are_refused(tmp_path):
    answering = Answering(tmp_path)
    assert module.asked(RunOptions()) is None
    with pytest.raises(ConfigError, match="go with --challenge"):
        module.asked(RunOptions(opening=answering.opening_file))
    with pytest.raises(RecordError):
        module.asked(RunOptions(challenge=answering.opening_file))
    answering.challenge_file.write_text(answering.challenge_file.read_text() + "\n")
    with pytest.raises(RecordError, match="another challenge"):
        module.asked(RunOptions(challenge=answering.challenge_file, opening=answering.opening_file))
    with pytest.raises(ConfigError, match="measures nothing"):
        choose.choose(RunOptions(cluster="replay", challenge=answering.challenge_file))
