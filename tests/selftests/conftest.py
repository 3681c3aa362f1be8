"""The fixtures of several files: a sandbox, a checkout, a healthy run, an emulated driver."""

import functools
import gc
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.selftests.sandboxes", "tests.selftests.fake_cluster")

from fixtures.records.run_directory import RunDirectory  # noqa: E402
from fixtures.run import evidence  # noqa: E402
from fixtures.sandbox import emulation  # noqa: E402
from fixtures.thresholds import loader  # noqa: E402
from fixtures.thresholds.loader import Thresholds  # noqa: E402
from reports import __main__ as commands  # noqa: E402
from tests.selftests import idle_guard, support  # noqa: E402
from tests.selftests.sandboxes import (  # noqa: E402
    checkout,
    healthy,
    machine,
    refuse,
    sandbox,
    shared_sandbox,
    waiting,
)

SELFTESTS = Path(__file__).parent
__all__ = ["checkout", "healthy", "machine", "sandbox", "shared_sandbox", "waiting"]


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes is not asserted: a loaded host takes its time.
    hypothesis.settings.register_profile("selftests", deadline=None)
    hypothesis.settings.load_profile("selftests")
    if idle_guard.available():
        config.pluginmanager.register(idle_guard.IdleGuard(), "idle-guard")


@pytest.fixture(scope="session", autouse=True)
def replays_in_forks() -> Iterator[None]:
    """A replay that a command of `reports` starts is one in a fork, as those of the tests are."""
    start = commands._started

    @functools.wraps(start)
    def started(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert list(command[:3]) == [sys.executable, "-m", "pytest"], command
        return support.OWN.run(command[3:], support.CHECKOUT, env, timeout_s=900)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "_started", started)
        yield


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an emulated NVML."""
    refuse(request, emulation.refusal())
    pytest.importorskip("pynvml")
    from tests.selftests import emulated_gpus  # loads all limits: not for who needs none

    folder = tmp_path_factory.mktemp("driver")
    emulated_gpus.compile_driver(folder)
    return folder


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Thresholds:
    """Those of a small contract."""
    return support.load(tmp_path_factory.mktemp("limits"))


@pytest.fixture
def records_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the records that are read, in turn."""
    read: list[str] = []
    whole = evidence.read_record

    def reading(path: Path, **more: Any) -> Any:
        read.append(path.name)
        return whole(path, **more)

    monkeypatch.setattr(evidence, "read_record", reading)
    return read


@pytest.fixture(scope="module")
def shipped() -> Thresholds:
    """The limits that the suite ships."""
    return loader.load(support.SHIPPED)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one core, for small tensors."""
    import torch  # not for who needs none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run in which nothing was measured."""
    return support.run_directory(tmp_path / "run")


MEASURING = (
    "whole_runs/test_fault_localization", "whole_runs/test_training_runs",
    "whole_runs/test_workload_faults", "workloads/compute/test_gemm",
    "workloads/compute/test_identical",
)  # fmt: skip
"""Files whose tests in a sandbox assert on rates; those with the fixture `healthy` do too."""
SECOND = ("test_interrupt", "test_sandbox_run", "test_ways_to_run", "test_wiring_sandbox")
"""Of the others, the files of the second group: it takes as long as the first."""
LONG = (
    "calibration/test_calibrate", "lint/test_deploy", "reports/test_first_screen", "scale",
    "training/", "whole_runs/", "workloads/compute/", "workloads/health/test_under_load",
    "workloads/telemetry/test_gpu_samples", "workloads/wiring/",
)  # fmt: skip
"""Groups that take a minute and more, after the sandboxes."""


def pytest_collection_finish() -> None:
    """Spare garbage collections the modules and items, which live as long as this process."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With -n and --dist loadgroup: a worker for the sandboxes that measure, two for the others.

    Rates are those of this host, and a healthy sandbox must be seen healthy: never two of them at
    a time. Sandboxes whose tests only start, lose and end jobs run beside them, two at a time, as
    they mostly wait; other tests run by file.
    """
    if not getattr(config.option, "loadgroup", False):  # as xdist tells its workers
        return
    order = {"measuring": 0, "functional": 1, "functional-2": 2}
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            names = getattr(item, "fixturenames", ())
            place = item.path.relative_to(SELFTESTS.parent).with_suffix("")
            group = place.as_posix().removeprefix("selftests/")
            if "machine" in names:
                rates = "healthy" in names or group.startswith(MEASURING)
                functional = "functional-2" if item.path.stem in SECOND else "functional"
                group = "measuring" if rates else functional
            item.add_marker(pytest.mark.xdist_group(group))
    # The longest groups first, or the last of them would run alone at the end.
    items.sort(key=lambda item: order.get(_group(item), 3 if _group(item).startswith(LONG) else 4))


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark is not None else ""
