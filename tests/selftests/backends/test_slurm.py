"""The backends of a Slurm cluster and of a sandbox: what they open, and with which limits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import slurm as module
from fixtures.backends.live import LiveBackend
from fixtures.backends.slurm import SandboxBackend, SlurmBackend
from fixtures.errors import ConfigError, RunError
from fixtures.jobs.deadlines import LIGHT_DEADLINES, SANDBOX_DEADLINES
from fixtures.run.options import RunOptions
from fixtures.slurm.allocation import Allocation
from fixtures.slurm.client import StartupSettings
from tests.selftests.run.small_run import PEOPLE, TEXT

pytestmark = pytest.mark.cpu


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A cluster of two nodes, and what was opened on it."""
    known = SimpleNamespace(
        form=None, people=replace(PEOPLE, partition="gpu"), startup=StartupSettings(False, 180.0),
        opened=None, contracts=[], lines=[],
    )  # fmt: skip

    def open_run(self: Any, limits: Any, population: Any) -> Any:
        known.opened = limits, population
        return "the run"

    def contract(**asked: Any) -> Any:
        known.contracts.append(asked)
        return SimpleNamespace(order=asked)

    for name, fake in {
        "reach_cluster": lambda arguments: None, "sandbox_form": lambda: known.form,
        "from_slurm": lambda order, **asked: known.people,
        "startup_settings": lambda: known.startup, "refuse_unknown_partition": lambda name: None,
        "slurm_nodes": lambda: [SimpleNamespace(gpus=1), SimpleNamespace(gpus=4)],
        "attached_sandbox": lambda order, **asked: (order, asked),
        "from_sandbox": lambda order, **asked: (order, asked), "sandbox_contract": contract,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(LiveBackend, "_open_run", open_run)
    return known


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    (tmp_path / "thresholds.yaml").write_text(TEXT)
    return RunOptions(thresholds=tmp_path / "thresholds.yaml")


def opened(site: Any, options: RunOptions, kind: type = SlurmBackend) -> Any:
    backend = kind(options, site.lines.append)
    assert backend.open_run() == "the run"
    return backend


# --- a cluster


def test_a_run_on_a_cluster_has_its_nodes_and_says_its_partition(site, options):
    opened(site, options)
    assert site.opened[1] is site.people
    assert site.lines == ["partition gpu"]


@pytest.mark.parametrize(
    ("given", "startup", "start_s", "log_s"),
    [
        (None, StartupSettings(False, 180.0), 180, 60),
        (None, StartupSettings(True, 970.0), 970, 970),
        (0.5, StartupSettings(True, 970.0), 30, 30),
        (0.5, StartupSettings(False, 180.0), 30, 30),
        (0, StartupSettings(False, 180.0), 0, 0),
    ],
)
def test_jobs_may_take_as_long_to_start_as_is_given_or_slurm_allows(
    site, options, given, startup, start_s, log_s
):
    site.startup = startup
    deadlines = opened(site, replace(options, start_timeout=given, queue_timeout=2)).deadlines
    assert (deadlines.start_s, deadlines.log_s, deadlines.queue_s) == (start_s, log_s, 120)


def test_a_partition_without_nodes_and_a_slurm_that_refuses_are_errors(site, options, monkeypatch):
    site.people = replace(PEOPLE, nodes=())
    with pytest.raises(ConfigError, match="no nodes"):
        SlurmBackend(options, print).open_run()

    def refuses(*_: Any, **__: Any) -> None:
        raise RunError("Unable to contact slurm controller")

    monkeypatch.setattr(module, "from_slurm", refuses)
    with pytest.raises(ConfigError, match="Unable to contact"):
        SlurmBackend(options, print).open_run()


@pytest.mark.parametrize("inside", ["", "inside of an allocation of these nodes"])
def test_inside_of_an_allocation_of_the_nodes_nothing_is_prepared(options, monkeypatch, inside):
    monkeypatch.setattr(module, "enclosing_allocation", lambda nodes: inside)
    monkeypatch.setattr(module, "whole_node", lambda names, partition, **asked: Allocation())
    monkeypatch.setattr(LiveBackend, "_sweep", lambda self, run, *, slurm: swept.append(slurm))
    monkeypatch.setattr(LiveBackend, "prepare", lambda self, run: swept.append(run))
    swept: list[Any] = []
    run: Any = SimpleNamespace(population=PEOPLE)
    if inside:
        with pytest.raises(ConfigError, match="inside"):
            SlurmBackend(options, print).prepare(run)
    else:
        SlurmBackend(options, print).prepare(run)
    assert swept == ([] if inside else [True, run])


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("settings", [(), ("SelectType=select/linear", "DefMemPerNode")])
def test_settings_by_which_nodes_are_asked_for_are_said_but_those_of_a_sandbox(
    options, monkeypatch, settings, virtual
):
    lines: list[str] = []
    found = Allocation(settings=settings)
    monkeypatch.setattr(module, "whole_node", lambda names, partition, **asked: found)
    people = SimpleNamespace(nodes=PEOPLE.nodes, gpus_per_node=1, virtual=virtual)
    run: Any = SimpleNamespace(population=people)
    assert SlurmBackend(options, lines.append)._allocation_of(run) is found
    said = ["asking for nodes as SelectType=select/linear, DefMemPerNode allows"]
    assert lines == (said if settings and not virtual else [])


def test_a_site_that_gives_no_whole_nodes_is_an_error_of_its_configuration(options, monkeypatch):
    def refuses(*_: Any, **__: Any) -> None:
        raise RunError("partition gpu: OverSubscribe=FORCE")

    monkeypatch.setattr(module, "whole_node", refuses)
    run: Any = SimpleNamespace(population=PEOPLE)
    with pytest.raises(ConfigError, match="OverSubscribe=FORCE"):
        SlurmBackend(options, print)._allocation_of(run)


# --- a sandbox that somebody brought up


def test_what_a_sandbox_was_brought_up_with_was_ordered(site, options):
    site.form = "full"
    backend = opened(site, options)
    limits, (contract, asked) = site.opened
    assert contract is limits.cluster
    assert asked == {"partition": None, "light": False}
    assert site.contracts == []
    assert (backend.deadlines, backend.max_jobs) == (SANDBOX_DEADLINES, None)


def test_without_an_order_it_is_as_large_as_slurm_says(site, options, monkeypatch):
    site.form = "light"
    real = module.loader.load
    monkeypatch.setattr(module.loader, "load", lambda path: replace(real(path), cluster=None))
    backend = opened(site, replace(options, tier="probe", partition="main"))
    assert site.contracts == [{"nodes": 2, "gpus": 4, "light": True}]
    assert site.opened[1][1] == {"partition": "main", "light": True}
    assert backend.deadlines == LIGHT_DEADLINES
    # Two dozen jobs per core: they share the cores of this host.
    assert backend.max_jobs == 24 * (os.cpu_count() or 1)


def test_a_light_sandbox_can_only_be_probed(site, options):
    site.form = "light"
    with pytest.raises(ConfigError, match="--tier probe"):
        SlurmBackend(options, print).open_run()


# --- a sandbox of its own


def sandbox(site: Any, options: RunOptions, **more: Any) -> dict[str, Any]:
    opened(site, replace(options, **more), SandboxBackend)
    asked: dict[str, Any] = site.contracts.pop()
    return asked


def test_a_sandbox_is_as_large_as_it_is_asked_for(site, options):
    assert sandbox(site, options) == {"nodes": 2, "gpus": 2, "light": False, "platform": ""}
    limits, (contract, _) = site.opened
    assert limits.cluster is contract
    one = sandbox(site, options, sandbox_nodes=1, sandbox_gpus=1, partition="main")
    assert (one["nodes"], one["gpus"]) == (1, 1)
    assert sandbox(site, options, sandbox_platform="hgx")["platform"] == "hgx"


def test_a_sandbox_is_light_where_it_is_asked_for_or_many_nodes_are_probed(site, options):
    def light(**more: Any) -> bool:
        found = sandbox(site, options, **more)["light"]
        assert site.opened[1][1] == {"light": found}
        return bool(found)

    assert light(tier="probe", sandbox_nodes=17)
    assert not light(tier="probe", sandbox_nodes=16)
    assert not light(tier="standard", sandbox_nodes=17)
    assert light(tier="probe", sandbox_nodes=2, sandbox_light=True)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sandbox_nodes": 0}, "take at least 1"), ({"sandbox_gpus": 0}, "take at least 1"),
        ({"partition": "gpu"}, "has main, and no other"),
        ({"nodelist": "n1"}, "make it smaller with --sandbox-nodes"),
        ({"sandbox_light": True}, "--tier probe"),
        ({"sandbox_light": True, "tier": "probe", "sandbox_platform": "hgx"}, "no platform"),
    ],
)  # fmt: skip
def test_a_sandbox_that_cannot_be_is_refused(site, options, more, why):
    with pytest.raises(ConfigError, match=why):
        SandboxBackend(replace(options, **more), print).open_run()


def test_a_resumed_run_has_a_sandbox_of_the_size_of_before(site, options, monkeypatch):
    people = replace(PEOPLE, nodes=("a", "b", "c"), gpus_per_node=5, light=True).to_json()
    monkeypatch.setattr(module.previous_runs, "load_resumed", lambda root: {"population": people})
    found = sandbox(site, options, resume=Path("/run"), tier="probe", sandbox_nodes=9)
    assert (found["nodes"], found["gpus"], found["light"]) == (3, 5, True)


def test_a_sandbox_is_taken_down_once(options):
    backend = SandboxBackend(options, print)
    backend.close()
    closed: list[str] = []
    backend._sandbox = SimpleNamespace(close=lambda: closed.append("down"))
    backend.close()
    backend.close()
    assert closed == ["down"]
