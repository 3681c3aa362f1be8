"""Bad input: one clean line, exit 4, nothing submitted, nothing made.

What is wrong is found in this process, by all that a start does before its first job; a few are
refused by pytest itself, which makes the line and the exit status of each. What else can be wrong
in thresholds.yaml is tested in test_loader.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.errors import AcceptanceError
from fixtures.run.options import RunOptions
from fixtures.thresholds.strict_yaml import MAX_BYTES
from tests.selftests.sandboxes import copy_checkout
from tests.selftests.support import CHECKOUT, NONCE, SHIPPED, opened, run_pytest

pytestmark = pytest.mark.cpu

SANDBOX = ("--cluster", "sandbox")
LOCAL = ("--cluster", "local")


def refused(*arguments: str | Path, checkout: Path = CHECKOUT, **environment: str) -> str:
    """Run the main job; it must end with 4 and one line, which is returned."""
    run = run_pytest("-m", "multinode", *arguments, checkout=checkout, **environment)
    assert run.returncode == 4, run.stdout + run.stderr
    said = [line for line in run.stderr.splitlines() if line.strip()]
    assert len(said) == 1, run.stderr
    assert said[0].startswith("ERROR: ")
    assert "Traceback" not in run.stdout + run.stderr
    assert " passed" not in run.stdout
    return said[0].removeprefix("ERROR: ")


def refused_here(cluster: str, **options: Any) -> str:
    """Go as far as pytest does before the first job; the error must be one line, and is returned.

    pytest turns each AcceptanceError on this way into its line and exit status 4.
    """
    with pytest.raises(AcceptanceError) as caught:
        opened(RunOptions(cluster=cluster, **options))
    line = str(caught.value)
    assert len(line.splitlines()) == 1, line
    return line


# --- thresholds.yaml


def swapped(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(old) >= 1
        return text.replace(old, new, 1)

    return change


FLOOR = "expect: 660, fail_below: 605"
"""Of gemm.bf16 on H200 SXM."""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            swapped("    unit: GPUs", "    unt: GPUs"),
            r"^limits\.yaml:\d+: criteria\.inventory\.gpus: unknown key 'unt', did you mean 'unit'",
            id="another key",
        ),
        pytest.param(
            swapped("    unit: GPUs", "    unit: GPUs\n    titel: x"),
            r"^limits\.yaml:\d+: criteria\.inventory\.gpus: unknown key 'titel', did you mean 'tit",
            id="unknown key",
        ),
        pytest.param(
            swapped("    unit: GPUs", "    unit: GPUs\n    statistic: value"),
            r"^limits\.yaml:\d+: criteria\.inventory\.gpus\.statistic: inventory\.yaml defines it",
            id="another definition",
        ),
        pytest.param(
            swapped("    unit: TFLOPS", "    unit: GB/s"),
            r"^limits\.yaml:\d+: criteria\.gemm\.bf16\.unit: gemm\.bf16 is in TFLOPS, not in GB/s",
            id="another unit",
        ),
        pytest.param(
            swapped("{model: pcie,", "{model: pci,"),
            r"^limits\.yaml:\d+: .*GPU model 'pci' is not known", id="unknown group",
        ),
        pytest.param(
            swapped("source: note 1}", "source: note 1000}"),
            r"^limits\.yaml:\d+: .*no note '1000' in notes:", id="unknown note",
        ),
        pytest.param(
            swapped("{is: large}", "{is: larg}"),
            r"^limits\.yaml:\d+: .*no set 'larg' in conditions:, did you mean 'large'",
            id="unknown conditions",
        ),
        pytest.param(
            swapped("    unit: GPUs", "    unit: GPUs\n    unit: GPUs"),
            r"^limits\.yaml:\d+: .*unit.*twice|duplicate", id="duplicate key",
        ),
        pytest.param(
            swapped(FLOOR, "expect: 660, fail_below: 6e2"),
            r"gemm\.bf16\.limits\[\d+\]\.fail_below: '6e2' is read as text: write", id="6e2",
        ),
        pytest.param(
            swapped(FLOOR, "expect: 660, fail_below: 0"),
            r"gemm\.bf16\.limits\[\d+\].*a floor of 0 or less cannot fail", id="toothless",
        ),
        pytest.param(
            swapped("{model: H200 SXM, when", "{model: H200 SMX, when"),
            r"GPU model 'H200 SMX' is not known, did you mean 'H200 SXM'", id="unknown GPU",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_the_limits_is_one_line_with_its_place(tmp_path, change, said):
    limits = tmp_path / "limits.yaml"
    limits.write_text(change(SHIPPED.read_text(encoding="utf-8")), encoding="utf-8")
    into = tmp_path / "run"
    line = refused_here("sandbox", thresholds=limits, run_dir=into)
    assert re.search(said, line), line
    assert not into.exists()


def test_pytest_says_it_in_one_line_and_ends_with_4(tmp_path):
    limits = tmp_path / "limits.yaml"
    shipped = SHIPPED.read_text(encoding="utf-8")
    limits.write_text(swapped("    unit: GPUs", "    unt: GPUs")(shipped), encoding="utf-8")
    into = tmp_path / "run"
    line = refused(*SANDBOX, f"--thresholds={limits}", f"--run-dir={into}")
    assert line == refused_here("sandbox", thresholds=limits, run_dir=into)
    assert not into.exists()


def test_a_limit_that_cannot_be_chosen_prints_the_conditions(tmp_path):
    """Two rows that the plan cannot tell apart; found before anything is submitted."""
    row = "{model: cpu, when: {%s}, fail_below: 0.008, loose: x, source: x}"
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        f"schema: 1\nbase: {SHIPPED}\ncriteria:\n  gemm.bf16:\n    limits:\n"
        f"      - {row % 'gpus: 2'}\n      - {row % 'nodes: 1'}\n",
        encoding="utf-8",
    )
    line = refused_here("sandbox", thresholds=limits, run_dir=tmp_path / "run")
    assert "criteria.gemm.bf16: two limits are equally specific for model=cpu" in line
    assert "nodes=1" in line
    assert not (tmp_path / "run").exists()


def test_limits_that_do_not_exist_are_one_line(tmp_path):
    line = refused_here("sandbox", thresholds=Path("/nowhere/limits.yaml"))
    assert line == "/nowhere/limits.yaml: cannot be read: No such file or directory"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_bytes(b"#" * (MAX_BYTES + 1))
    assert f"less than {MAX_BYTES}" in refused_here("sandbox", thresholds=limits)


# --- tests and keys

STRAY_TESTS = {
    "without a key": (
        "def test_stray(): assert True",
        r"tests/test_stray\.py::test_stray has no criterion: mark it @pytest\.mark\.criterion",
    ),
    "that judges nothing": (
        "import pytest\n"
        "@pytest.mark.multinode\n"
        "@pytest.mark.criterion('gemm.bf16')\n"
        "def test_stray(): assert True",
        r"tests/test_stray\.py::test_stray judges nothing: take the fixtures `measured`",
    ),
    "with an unknown key": (
        "import pytest\n"
        "pytestmark = pytest.mark.multinode\n"
        "@pytest.mark.criterion('gemm.bf61')\n"
        "def test_stray(verdict): assert verdict.ok, verdict.line",
        r"tests/test_stray\.py::test_stray.*no criterion 'gemm\.bf61', did you mean 'gemm\.bf16'",
    ),
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The checkout without its data and runs."""
    return copy_checkout(tmp_path / "checkout", selftests=False)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("without a key", ()),
        ("that judges nothing", ()),
        ("with an unknown key", ()),
        ("with an unknown key", ("-n", "2")),
    ],
)
def test_a_test_that_no_limit_stands_behind_is_refused(checkout, name, workers):
    text, said = STRAY_TESTS[name]
    (checkout / "tests" / "test_stray.py").write_text(text, encoding="utf-8")
    line = refused(*SANDBOX, *workers, checkout=checkout)
    assert re.search(said, line), line
    assert not (checkout / "reports" / "runs").exists()


# --- runs and directories


@pytest.fixture
def a_run(tmp_path: Path) -> Path:
    """A directory that holds a run."""
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "run.json").write_text(
        f'{{"schema": 2, "id": "x", "nonce": "{NONCE}", "population": {{"nodes": []}}}}'
    )
    return folder


@pytest.mark.parametrize(
    ("cluster", "options", "said"),
    [
        ("replay", {}, r"--cluster replay needs --from RUN"),
        ("local", {"from_run": "RUN"}, r"--from RUN goes with --cluster replay"),
        ("replay", {"from_run": "NOTHING"}, r"not a run directory.*no run\.json"),
        ("replay", {"from_run": "RUN"}, r"earlier/run\.json.*population"),
        ("local", {"resume": "NOTHING"}, r"not a run directory.*no run\.json"),
        ("local", {"retest": "NOTHING"}, r"not a run directory.*no run\.json"),
        ("local", {"resume": "RUN", "retest": "RUN"}, r"exclude each other"),
        ("local", {"run_dir": "RUN"}, r"holds a run already; use --resume"),
        ("sandbox", {"sandbox_nodes": 0}, r"--sandbox-nodes .*at least 1"),
        ("sandbox", {"nodelist": "worker0"}, r"--nodelist worker0: .* --sandbox-n"),
        ("local", {"nodelist": "n0"}, r"--nodelist n0: a local run uses all nodes"),
        ("sandbox", {"sandbox_gpus": -1}, r"--sandbox-gpus take at least 1"),
    ],
    ids=str,
)
def test_options_that_cannot_be_used_are_one_line(tmp_path, a_run, cluster, options, said):
    before = sorted(tmp_path.rglob("*")), (a_run / "run.json").read_bytes()
    places = {"RUN": a_run, "NOTHING": tmp_path / "nothing"}
    given = {name: places.get(value, value) for name, value in options.items()}
    line = refused_here(cluster, **given)
    assert re.search(said, line), line
    assert (sorted(tmp_path.rglob("*")), (a_run / "run.json").read_bytes()) == before


def test_a_run_of_another_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 3}')
    assert "run.json of schema 2" in refused_here("replay", from_run=tmp_path)


def test_a_run_directory_below_a_file_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = refused_here("local", run_dir=blocked / "run")
    assert line.startswith(f"--run-dir {blocked / 'run'}")
    assert line == refused(*LOCAL, f"--run-dir={blocked / 'run'}"), "where the run is opened"
    assert sorted(tmp_path.iterdir()) == [blocked]


def test_a_run_directory_that_cannot_be_made_is_refused():
    """Root may write everywhere but into /proc."""
    line = refused_here("local", run_dir=Path("/proc/run"))
    assert line.startswith("--run-dir /proc/run")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this host has no /dev/shm")
def test_a_run_directory_in_memory_is_refused_where_nodes_must_see_it():
    line = refused_here("sandbox", run_dir=Path("/dev/shm/acceptance-run"))
    assert "is on tmpfs, which the nodes cannot see" in line
    assert not Path("/dev/shm/acceptance-run").exists()


def test_slurm_where_there_is_none_is_one_line_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refused_here("slurm", run_dir=tmp_path / "run")
    assert "is not on the PATH" in line
    assert "run on a login node of the cluster, set SLURM_CONF" in line
    assert "--cluster sandbox (a Slurm of virtual nodes on this host) or local" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("plan", [(), ("--plan",)], ids=["run", "plan"])
def test_a_selection_of_nothing_is_no_success_and_says_what_to_do(tmp_path, plan):
    """pytest's own 5; no run directory is made, and nothing is green."""
    into = tmp_path / "run"
    run = run_pytest("-m", "multinode", *LOCAL, *plan, "-k", "inventroy", f"--run-dir={into}")
    assert run.returncode == 5, run.stdout + run.stderr
    said = " ".join(run.stdout.split())
    assert "Nothing selected by -m 'multinode' and -k 'inventroy'" in said
    assert "did you mean inventory?" in said
    assert "Destructive checks also need --allow-destructive." in said
    assert "total" not in said
    assert not into.exists()
