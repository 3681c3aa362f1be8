"""The states of jobs and nodes, as Slurm says them, and how often Slurm is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.jobs import watcher
from fixtures.jobs.watcher import JobState, LocalWatcher, SlurmWatcher
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu


UNKNOWN = "slurm_load_jobs error: Invalid job id specified"


class Slurm:
    """Answers from texts, on a clock of its own; a command without a text cannot be run."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.takes_s = 0.0
        self.answers: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        """Job -> the answer of `scontrol show job`; Slurm does not know any other."""
        self.status = 0
        self.asked: list[tuple[str, ...]] = []

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv)
        self.now += self.takes_s
        if argv[:3] == ("scontrol", "show", "job") and "scontrol" not in self.answers:
            text = self.shown.get(argv[-1], "")
            status, said = (0, "") if text else (1, UNKNOWN)
            return subprocess.CompletedProcess(argv, status, text, said)
        if argv[0] not in self.answers:
            raise FileNotFoundError(argv[0])
        return subprocess.CompletedProcess(argv, self.status, self.answers[argv[0]], "")

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def times(self, name: str) -> int:
        return sum(argv[0] == name for argv in self.asked)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    fake = Slurm()
    monkeypatch.setattr(watcher, "run_command", fake.run)
    clock = SimpleNamespace(monotonic=lambda: fake.now, sleep=fake.sleep)
    monkeypatch.setattr(watcher, "time", clock)
    monkeypatch.setattr(watcher.shutil, "which", lambda name: None)
    return fake


def row(
    job: str, state: str, reason: str = "None", *, name: str = "x", nodes: str = "", asked: str = ""
) -> str:
    """A line of squeue."""
    return f"{job}   |{state}|0:0|{nodes}|{asked}|{reason}|{name}|\n"


# --- one job


def test_a_job_has_ended_in_a_terminal_state_or_where_slurm_has_forgotten_it():
    ended = [*watcher.TERMINAL, "GONE"]
    assert [s for s in ended if not JobState(s).ended] == []
    assert [s for s in ("RUNNING", "PENDING", "COMPLETING", "SIGNALING") if JobState(s).ended] == []
    assert len(watcher.TERMINAL) == 10


def test_only_a_pending_job_can_be_one_that_never_starts():
    for reason in ("(NodeDown)", "(PartitionConfig)", "ReqNodeNotAvail, UnavailableNodes:n1"):
        assert JobState("PENDING", reason).unstartable_reason == reason.strip("()")
        assert JobState("RUNNING", reason).unstartable_reason is None
    assert JobState("PENDING", "Priority").unstartable_reason is None
    assert not JobState("PENDING", "(NodeDown)").against_policy


@pytest.mark.parametrize(
    "reason",
    ["QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "QOSMaxCpuPerJobLimit",
     "QOSMaxGRESPerJob", "QOSMaxNodePerJobLimit", "AssocMaxNodePerJobLimit", "QOSMaxMemoryPerJob",
     "QOSMinGRES", "QOSNotAllowed",
     "Job's account not permitted to use this partition (gpu allows root not research)",
     "MaxMemPerLimit", "AssocGrpCPUMinutesLimit", "QOSGrpGRESMinutes", "AssocGrpWallLimit",
     "PartitionInactive", "JobHeldUser", "QOSUsageThreshold", "ReservationDeleted",
     "a reason of Slurm 30"],
)  # fmt: skip
def test_a_limit_that_one_job_exceeds_ends_it_at_once(reason):
    state = JobState("PENDING", reason)
    assert state.unstartable_reason == reason.strip("()")
    assert state.against_policy


@pytest.mark.parametrize(
    "reason",
    [
        "QOSMaxJobsPerUserLimit",
        "AssocGrpNodeLimit",
        "Priority",
        "Resources",
        "Licenses",
        "MaxGRESPerAccount",
        "QOSMaxGRESPerUser",
        "AssocGrpCPURunMinutesLimit",
        "AssocMaxJobsLimit",
        "None",
        "Prolog",
        "Cleaning",
        "BeginTime",
        "Dependency",
    ],
)
def test_a_limit_of_all_jobs_together_is_waited_for(reason):
    assert JobState("PENDING", f"({reason})").unstartable_reason is None


def test_a_reservation_of_somebody_else_is_no_fault_of_the_node():
    state = JobState("PENDING", "(ReqNodeNotAvail, Reserved for maintenance)")
    assert state.unstartable_reason
    assert state.against_policy
    node_down = JobState("PENDING", "(ReqNodeNotAvail, UnavailableNodes:n1)")
    assert node_down.unstartable_reason
    assert not node_down.against_policy


@pytest.mark.parametrize(
    ("nodes", "idle"),
    [("n1 idle none\nn2 drained bad\n", True), ("n1 idle none\nn2 mixed none\n", False),
     ("n1 idle none\nn2 completing none\n", False), ("n1 draining bad\n", False), ("", False)],
)  # fmt: skip
def test_a_cluster_without_jobs_is_idle(command, nodes, idle):
    command("sinfo", nodes)
    assert SlurmWatcher().all_idle() is idle


def test_who_has_no_job_in_the_queue_waits_for_none(command):
    command("squeue", "7|COMPLETED|0:0|||None|x|\n")
    slurm = SlurmWatcher()
    assert slurm.none_queued(0.0) is False  # nobody was asked yet
    slurm.states(["7"])
    assert slurm.none_queued(0.0) is True
    command("squeue", "7|RUNNING|0:0|||None|x|\n")
    slurm.invalidate()
    slurm.states(["7"])
    assert slurm.none_queued(0.0) is False


# --- how often Slurm is asked


def test_squeue_is_asked_once_a_second_and_at_once_after_a_change(slurm):
    slurm.answers["squeue"] = row("1", "PENDING", "Priority")
    w = SlurmWatcher()
    assert w.states([]) == {}
    assert slurm.asked == []
    assert w.states(["1"]) == {"1": JobState("PENDING", "Priority", "0:0")}
    slurm.answers["squeue"] = row("1", "RUNNING", nodes="n1")
    slurm.now += 0.9
    assert w.states(["1"])["1"].state == "PENDING"
    slurm.now += 0.1
    running = w.states(["1"])["1"]
    assert running == JobState("RUNNING", "None", "0:0", "n1")
    assert running.queried_at == slurm.now
    assert slurm.times("squeue") == 2
    w.invalidate()
    w.states(["1"])
    assert slurm.times("squeue") == 3
    assert slurm.now == 1002.0  # it waited for its turn


@pytest.mark.parametrize(("jobs", "seconds"), [(32, 1.0), (33, 3.0)])
def test_a_run_of_many_jobs_asks_every_three_seconds(slurm, jobs, seconds):
    slurm.answers["squeue"] = "".join(row(str(k), "RUNNING") for k in range(jobs))
    w = SlurmWatcher()
    for wait, times in ((0.0, 1), (seconds - 0.1, 1), (0.1, 2)):
        slurm.now += wait
        w.states(["1"])
        assert slurm.times("squeue") == times


def test_a_slow_slurmctld_is_left_alone_ten_times_as_long_as_it_took(slurm):
    slurm.answers["squeue"], slurm.takes_s = row("1", "RUNNING"), 0.5
    w = SlurmWatcher()
    w.states(["1"])
    for until, times in ((1004.9, 1), (1005.0, 2)):
        slurm.now = until
        w.states(["1"])
        assert slurm.times("squeue") == times


def test_a_query_that_fails_leaves_the_states_as_they_were(slurm):
    slurm.answers["squeue"] = row("1", "RUNNING")
    w = SlurmWatcher()
    known = dict(w.states(["1"]))
    slurm.answers["squeue"], slurm.status = row("1", "FAILED"), 1
    slurm.now += 2
    assert w.states(["1"]) == known
    del slurm.answers["squeue"]
    slurm.now += 2
    assert w.states(["1"]) == known
    assert slurm.times("squeue") == 3


def test_jobs_are_found_by_their_name_in_an_answer_that_is_new_enough(slurm):
    slurm.answers["squeue"] = row("1", "RUNNING", name="a") + row("2", "RUNNING", name="b")
    w = SlurmWatcher()
    assert w.find("a", since=999.0) == ["1"]
    assert w.find("b", since=999.0) == ["2"]
    assert slurm.times("squeue") == 1
    # The answer is as old as the question: it may have come before.
    assert w.find("a", since=1000.0) is None
    slurm.now += 1
    assert w.find("a", since=1000.0) == ["1"]


def test_what_squeue_says_is_read_field_by_field(slurm):
    slurm.answers["squeue"] = (
        row("1", "CANCELLED by 0") + row("2", " ") + row("3", "PENDING", name="a|b")
        + "slurm_load_jobs|error\n" + "4|RUNNING|0:0|n4|n4|None\n"
    )  # fmt: skip
    w = SlurmWatcher()
    states = w.states(["1"])
    assert w.find("a|b", since=999.0) == ["3"]
    assert {job: (s.state, s.reason) for job, s in states.items()} == {
        "1": ("CANCELLED", "None"), "2": ("UNKNOWN", "None"), "3": ("PENDING", "None"),
    }  # fmt: skip


def test_nobody_is_queued_only_by_an_answer_that_is_new_enough(slurm):
    slurm.answers["squeue"] = row("1", "COMPLETED")
    w = SlurmWatcher()
    w.states(["1"])
    assert w.none_queued(999.0) is True
    assert w.none_queued(1000.0) is False


# --- nodes


SINFO = "n1 idle none\nn2 drained Prolog error \nbad\nn3 down* (null)\nn4 mixed\nn4 mixed\n"


def test_nodes_have_their_state_and_a_reason_where_slurm_gives_one(slurm):
    slurm.answers["sinfo"] = SINFO
    w = SlurmWatcher()
    assert w.nodes() == {"n1": "idle", "n2": "drained", "n3": "down*", "n4": "mixed"}
    assert [w.reason(n) for n in ("n1", "n2", "n3", "n4", "n9")] == ["", "Prolog error", "", "", ""]
    del slurm.answers["sinfo"]
    slurm.now += 3
    assert w.nodes() is None


def test_states_of_nodes_are_two_seconds_old_at_most(slurm):
    slurm.answers["sinfo"] = "n1 idle none\n"
    w = SlurmWatcher()
    for wait, times in ((0.0, 1), (2.0, 1), (0.5, 2)):
        slurm.now += wait
        w.nodes()
        assert slurm.times("sinfo") == times


def test_whether_any_job_runs_is_known_for_ten_seconds(slurm):
    slurm.answers["sinfo"] = "n1 idle none\n"
    w = SlurmWatcher()
    assert w.all_idle() is True
    slurm.answers["sinfo"] = "n1 allocated none\n"
    slurm.now += 10.0
    assert w.all_idle() is True
    slurm.now += 0.5
    assert w.all_idle() is False


UNAVAILABLE = "(ReqNodeNotAvail, UnavailableNodes:n[1-2])"
BACKFILL = "(ReqNodeNotAvail, May be reserved for other job)"


@pytest.mark.parametrize(
    ("state", "reason", "asked", "nodes", "waits"),
    [
        ("PENDING", UNAVAILABLE, "n1", "n1 idle x\nn2 mixed x\n", True),
        ("PENDING", UNAVAILABLE, "n1", "n1 idle x\nn2 drained x\n", False),
        ("PENDING", UNAVAILABLE, "n1", "n1 idle x\n", False),
        ("PENDING", BACKFILL, "", "", True),
        ("PENDING", BACKFILL, "(null)", "", True),
        ("PENDING", BACKFILL, "n1", "", True),  # the states of nodes are not known
        ("PENDING", BACKFILL, "n[1-2]", "n1 idle x\nn2 planned x\n", True),
        # As Slurm 24.11 says it of a node that was drained, as long as it is.
        ("PENDING", BACKFILL, "n[1-2]", "n1 idle x\nn2 drained x\n", False),
        ("PENDING", f"{BACKFILL} UnavailableNodes:n2", "n2", "n2 down x\n", False),
        ("PENDING", "(ReqNodeNotAvail)", "n1", "n1 idle x\n", False),
        ("PENDING", "(Priority)", "n1", "n1 idle x\n", False),
        ("RUNNING", BACKFILL, "n1", "", False),
    ],
)
def test_a_node_is_not_available_only_where_it_is_out_of_service(
    slurm, state, reason, asked, nodes, waits
):
    slurm.answers |= {"squeue": row("1", state, reason, asked=asked), "sinfo": nodes}
    found = SlurmWatcher().states(["1"])["1"].reason
    assert found == ("waits for a node that is in service" if waits else reason)


# --- jobs that squeue has forgotten


def test_without_accounting_a_forgotten_job_is_gone_and_not_looked_for_again(slurm):
    slurm.answers["squeue"] = row("1", "RUNNING")
    w = SlurmWatcher()
    states = w.states(["1", "2"])
    assert (states["1"].state, states["2"].state) == ("RUNNING", "GONE")
    assert slurm.times("sacct") == 0
    assert [w._ended(job) for job in "123"] == [False, True, False]


def test_accounting_tells_how_a_forgotten_job_ended(slurm, monkeypatch):
    monkeypatch.setattr(watcher.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv(watcher.CLUSTER_VARIABLE, "alpha")
    slurm.answers |= {
        "squeue": row("1", "RUNNING"),
        "sacct": "2|COMPLETED|0:0\n3|CANCELLED by 0|0:15\n4||\n9|FAILED|1:0\n",
    }
    w = SlurmWatcher()
    states = w.states(["1", "2", "3", "4", "5"])
    assert {job: s.state for job, s in states.items()} == {
        "1": "RUNNING", "2": "COMPLETED", "3": "CANCELLED", "4": "GONE", "5": "GONE",
    }  # fmt: skip
    assert states["3"].exit_code == "0:15"
    (asked,) = [argv for argv in slurm.asked if argv[0] == "sacct"]
    assert asked[1] == "--clusters=alpha"
    assert asked[-1] == "2,3,4,5"
    slurm.now += 1
    w.states(["1", "2", "3"])
    assert slurm.times("sacct") == 1


def test_accounting_that_does_not_answer_is_not_asked_again(slurm, monkeypatch):
    monkeypatch.setattr(watcher.shutil, "which", lambda name: f"/usr/bin/{name}")
    slurm.answers["squeue"] = ""
    w = SlurmWatcher()
    assert w.states(["1"])["1"].state == "GONE"
    slurm.now += 1
    assert w.states(["1", "2"])["2"].state == "GONE"
    assert slurm.times("sacct") == 1


# --- on this host


def test_on_this_host_a_job_runs_as_long_as_its_process():
    w = LocalWatcher(SimpleNamespace(running=lambda job: job == "1"))  # type: ignore[arg-type]
    assert {j: s.state for j, s in w.states(["1", "2"]).items()} == {
        "1": "RUNNING", "2": "COMPLETED",
    }  # fmt: skip
    assert (w.find("x", 0.0), w.nodes(), w.reason("n")) == ([], {}, "")
    assert (w.all_idle(), w.none_queued(0.0)) == (False, False)
    assert w.living("r1", Path("/run")) == {}
