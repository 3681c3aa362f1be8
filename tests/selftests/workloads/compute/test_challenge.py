"""The answer to a challenge as a job: one chain on each rank, on several nodes."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from fixtures.challenge import messages
from fixtures.challenge.answer import Answer
from fixtures.records.files import write_json
from tests.selftests.challenged import SMALL
from tests.selftests.rank_job import TORCH, Job
from tests.tools.bench_challenge import made_challenge

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

NODES = ["a0", "a1"]
METRICS = ["chains", "hashes", "commitment"]


def answered(root: Path, opening: messages.Opening | None = None, **params: object) -> Job:
    """Run the job on two nodes with two ranks each, and return it."""
    root.mkdir(exist_ok=True)
    job = Job(root, nodes=NODES, per_node=2)
    folder = root / "challenge"
    if opening:
        write_json(folder / messages.OPENING, messages.opening_fields(opening))
    job.add(
        "challenge", METRICS, nodes=NODES, folder=str(folder), opening=bool(opening), **params
    )  # fmt: skip
    assert job.run(slurm=True, warm=TORCH) == [0] * 4, job.output()
    return job


def test_the_job_answers_as_one_process_would_and_says_who_computed_what(tmp_path):
    challenge, first = made_challenge(SMALL)  # three chains: the fourth rank is not asked
    folder = tmp_path / "run" / "challenge"
    folder.mkdir(parents=True)
    (folder / messages.CHALLENGE).write_bytes(first)
    record = answered(tmp_path / "run").record("challenge")
    commitment = messages.read_commitment(folder / messages.COMMITMENT, challenge)
    alone = Answer(challenge, range(3))
    assert commitment == alone.compute()
    assert [(r.node, r.facts["number"]) for r in record.ranks] == [
        ("a0", 0), ("a0", 1), ("a1", 2), ("a1", 3),
    ]  # fmt: skip
    assert {m.metric for m in record.ranks[0].measurements} == {*METRICS}
    assert record.ranks[3].absent[0].why == "the challenge asks for 3 chains"
    # The opening, by another job that goes on from what this one had computed.
    opening = messages.Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    other = tmp_path / "other"
    (other / "challenge").mkdir(parents=True)
    (other / "challenge" / messages.CHALLENGE).write_bytes(first)
    answered(other, opening, work=str(tmp_path / "work"))
    response = (other / "challenge" / messages.RESPONSE).read_bytes()
    assert response == b"".join(alone.response(opening))


def test_ranks_that_are_left_out_are_named_in_the_commitment(tmp_path):
    challenge, first = made_challenge(SMALL)
    folder = tmp_path / "challenge"
    folder.mkdir()
    (folder / messages.CHALLENGE).write_bytes(first)
    record = answered(tmp_path, without=[1]).record("challenge")
    commitment = messages.read_commitment(folder / messages.COMMITMENT, challenge)
    assert commitment == Answer(challenge, (0, 2)).compute()
    assert [r.absent[0].why[:15] for r in record.ranks if r.absent] == [
        "an earlier try ", "the challenge a",
    ]  # fmt: skip
