"""The backend of this host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fixtures.backends import local
from fixtures.backends.live import LiveBackend
from fixtures.backends.local import LocalBackend
from fixtures.errors import ConfigError
from fixtures.run.options import RunOptions
from tests.selftests.run.small_run import PEOPLE, TEXT

pytestmark = pytest.mark.cpu

HERE = replace(PEOPLE, origin="local", nodes=("here",))


@pytest.fixture
def options(tmp_path, monkeypatch) -> RunOptions:
    (tmp_path / "thresholds.yaml").write_text(TEXT)
    asked = []
    monkeypatch.setattr(
        local, "from_host", lambda order, new_model: asked.append(new_model) or HERE
    )
    return RunOptions(thresholds=tmp_path / "thresholds.yaml", run_dir=tmp_path / "run")


def test_a_run_of_this_host_has_its_devices_as_population(options):
    run = LocalBackend(options, print).open_run()
    assert run.population.nodes == ("here",)
    assert run.directory.root == options.run_dir
    assert {i.subject for i in run.items} >= {"here"}


def test_this_host_has_no_nodes_to_choose_from(options):
    with pytest.raises(ConfigError, match="a local run uses all nodes"):
        LocalBackend(replace(options, nodelist="n1"), print).open_run()


@pytest.mark.parametrize(("model", "gpus"), [("H200 SXM", 2), ("cpu", 0)])
def test_jobs_of_this_host_get_its_gpus_where_it_has_any(options, monkeypatch, model, gpus):
    run = LocalBackend(options, print).open_run()
    run.population = replace(HERE, gpu_model=model)
    launched = []
    monkeypatch.setattr(local, "LocalLauncher", lambda run_id, nonce, gpus: launched.append(gpus))
    monkeypatch.setattr(local, "scrub_environment", lambda environment: None)
    monkeypatch.setattr(LiveBackend, "_start_scheduler", lambda *_: None)
    LocalBackend(options, print).start(run)
    assert launched == [gpus]


def test_what_earlier_runs_left_is_swept_without_slurm(options, monkeypatch):
    swept = []
    monkeypatch.setattr(LiveBackend, "_sweep", lambda self, run, *, slurm: swept.append(slurm))
    backend = LocalBackend(options, print)
    backend.prepare(backend.open_run())
    assert swept == [False]
