"""Which backend the options ask for, and which of them exclude each other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import choose as module
from fixtures.backends.choose import choose, sandboxes_not_used
from fixtures.backends.local import LocalBackend
from fixtures.backends.replay import ReplayBackend
from fixtures.backends.slurm import SandboxBackend, SlurmBackend
from fixtures.errors import ConfigError
from fixtures.run.options import RunOptions

pytestmark = pytest.mark.cpu

RUN = Path("/run")


@pytest.fixture(autouse=True)
def on_slurm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Whether this host belongs to a Slurm, and where the run that is given was measured."""
    host = SimpleNamespace(answers=True, origin="cluster", asked=0, sandboxes=[])

    def answers() -> bool:
        host.asked += 1
        return host.answers

    monkeypatch.setattr(module, "slurm_answers", answers)
    monkeypatch.setattr(
        module.previous_runs, "load_resumed", lambda root: {"population": {"origin": host.origin}}
    )
    monkeypatch.setattr(module, "sandboxes_not_used", lambda: iter(host.sandboxes))
    return host


def chosen(**options: Any) -> type:
    return type(choose(RunOptions(**options)))


def test_each_backend_is_chosen_by_its_name(on_slurm):
    assert chosen(cluster="replay", from_run=RUN) is ReplayBackend
    assert chosen(cluster="sandbox") is SandboxBackend
    assert chosen(cluster="slurm") is SlurmBackend
    assert chosen(cluster="local") is LocalBackend
    assert on_slurm.asked == 0


def test_by_itself_it_is_slurm_on_a_host_of_a_cluster_and_else_this_host(on_slurm):
    lines: list[str] = []
    on_slurm.sandboxes = ["a sandbox is not used"]
    assert type(choose(RunOptions(), lines.append)) is SlurmBackend
    assert lines == []
    on_slurm.answers = False
    assert type(choose(RunOptions(), lines.append)) is LocalBackend
    assert lines == ["a sandbox is not used"]


@pytest.mark.parametrize(("answers", "said"), [(True, "sinfo answers"), (False, "this host alone")])
def test_what_was_measured_by_itself_is_said_with_the_reason(on_slurm, answers, said):
    on_slurm.answers = answers
    assert said in choose(RunOptions()).chosen_because
    for cluster in ("slurm", "local", "sandbox"):
        assert choose(RunOptions(cluster=cluster)).chosen_because == ""


@pytest.mark.parametrize("option", ["resume", "retest", "recertify"])
@pytest.mark.parametrize(
    ("origin", "answers", "backend"),
    [
        ("cluster", True, SlurmBackend), ("cluster", False, SlurmBackend),
        ("sandbox", True, SlurmBackend), ("sandbox", False, SandboxBackend),
        ("local", True, LocalBackend), ("local", False, LocalBackend),
    ],
)  # fmt: skip
def test_a_run_goes_on_where_it_was_measured(on_slurm, option, origin, answers, backend):
    on_slurm.origin, on_slurm.answers = origin, answers
    assert chosen(**{option: RUN}) is backend
    # Unless it is said where.
    assert chosen(**{option: RUN}, cluster="local") is LocalBackend


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"resume": RUN, "retest": RUN}, "--resume and --retest exclude each other"),
        ({"resume": RUN, "recertify": RUN}, "--recertify begins a run of its own"),
        ({"retest": RUN, "recertify": RUN}, "--recertify begins a run of its own"),
        ({"moved_cable": True}, "go with --recertify"),
        ({"new_firmware": True}, "go with --recertify"),
        ({"plan": True, "recertify": RUN}, "--plan: what a repair invalidates"),
        ({"from_run": RUN}, "--from RUN goes with --cluster replay"),
        ({"from_run": RUN, "cluster": "slurm"}, "--from RUN goes with --cluster replay"),
        ({"cluster": "replay"}, "needs --from RUN"),
        ({"budget": "soon"}, "expected a duration"),
        *(({"budget": "20m", name: RUN}, f"--{name} uses the depth")
          for name in ("resume", "retest", "recertify")),
        ({"budget": "20m", "from_run": RUN, "cluster": "replay"}, "--from uses the depth"),
        *(({name: value, "from_run": RUN, "cluster": "replay"}, f"^--{option}: a replay judges")
          for name, option, value in (
              ("tier", "tier", "burnin"), ("hours", "hours", 2.0), ("opening", "opening", RUN),
              ("challenge", "challenge", RUN), ("challenge_work", "challenge-work", RUN),
              ("allow_destructive", "allow-destructive", True), ("optional", "optional", ("a.b",)),
              ("guest_results", "guest-results", RUN),
          )),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        choose(RunOptions(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"moved_cable": True, "recertify": RUN}, {"new_firmware": True, "recertify": RUN},
        {"plan": True}, {"recertify": RUN}, {"budget": "20m"},
        {"moved_cable": True, "new_firmware": True, "recertify": RUN},
    ],
)  # fmt: skip
def test_options_that_go_together_are_taken(options):
    assert chosen(**options) is SlurmBackend


def test_a_sandbox_that_somebody_brought_up_is_named(monkeypatch):
    states = [
        SimpleNamespace(id="mine", owner=None, ownerless=False),
        SimpleNamespace(id="of a test", owner=None, ownerless=True),
        SimpleNamespace(id="of a run", owner=object(), ownerless=False),
    ]
    monkeypatch.setattr(module, "running", lambda registry: states)
    (line,) = sandboxes_not_used(RUN)
    assert "sandbox mine" in line
    assert "--id mine" in line
