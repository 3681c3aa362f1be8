"""What is known of a job that ended: the line of an error that says what happened."""

from __future__ import annotations

import pytest

from fixtures.jobs.job_evidence import readable, shown_line, unfinished_workloads
from fixtures.records.absence import JobKind
from tests.selftests.job_failures import (
    PEER_LOST,
    alive,
    diagnosed,
    done,
    error,
    started,
)

pytestmark = pytest.mark.cpu


def test_the_first_error_in_time_is_kept_whoever_is_to_blame():
    failure = diagnosed(
        started(0), error(0, time=3661.0, **PEER_LOST), started(1), error(1, time=3665.0)
    )
    assert failure.rank == 1
    assert failure.first_error.startswith("01:01:01 rank 0 on worker0 peer_lost: DistNetwork")
    assert diagnosed(started(0)).first_error == ""


@pytest.mark.parametrize(
    ("text", "shown", "kind"),
    [
        ("ValueError: no\n\n  File x\nframe #0: y", "ValueError: no", None),
        ("RuntimeError: a\nLast error:\nNET/IB : mlx5_1:1 async fatal event",
         "NET/IB : mlx5_1:1 async fatal event", JobKind.FABRIC),
        ("CheckpointException\nOSError: [Errno 28] No space left on device",
         "OSError: [Errno 28] No space left on device", JobKind.STORAGE),
        ("", "no message", None),
    ],
)  # fmt: skip
def test_the_line_that_says_what_happened_is_shown(text, shown, kind):
    assert shown_line(text) == (shown, kind)


def test_what_each_rank_was_in_is_known_until_its_result():
    lines = [*done(0), started(1, time=5.0), alive(1, 9.0)]
    (found,) = unfinished_workloads(lines)
    assert (found["rank"], found["last_seen"]) == (1, 9.0)


def test_a_line_without_the_number_of_a_rank_is_left_out():
    assert readable([{"rank": 1}, {"rank": None}, {"rank": "1"}, {}]) == [{"rank": 1}, {}]
