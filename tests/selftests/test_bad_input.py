"""Bad input through the command line: one clean line, exit 4, nothing submitted, nothing made.

What can be wrong in thresholds.yaml is tested in test_thresholds.py; here a few of it, as a user
meets them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.thresholds.strict_yaml import MAX_BYTES
from tests.selftests.cluster import copy_checkout
from tests.selftests.support import CHECKOUT, NONCE, SHIPPED, run_pytest

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
    line = refused(*SANDBOX, f"--thresholds={limits}", f"--run-dir={into}")
    assert re.search(said, line), line
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
    line = refused(*SANDBOX, f"--thresholds={limits}", f"--run-dir={tmp_path / 'run'}")
    assert "criteria.gemm.bf16: two limits are equally specific for model=cpu" in line
    assert "nodes=1" in line
    assert not (tmp_path / "run").exists()


def test_limits_that_do_not_exist_are_one_line(tmp_path):
    line = refused(*SANDBOX, "--thresholds=/nowhere/limits.yaml", f"--run-dir={tmp_path / 'run'}")
    assert line == "/nowhere/limits.yaml: cannot be read: No such file or directory"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_bytes(b"#" * (MAX_BYTES + 1))
    assert f"less than {MAX_BYTES}" in refused(*SANDBOX, f"--thresholds={limits}")


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


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "-n 2"])
@pytest.mark.parametrize("name", STRAY_TESTS)
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
    ("arguments", "said"),
    [
        (["--cluster", "replay"], r"--cluster replay needs --from RUN"),
        (["--cluster", "local", "--from=RUN"], r"--from RUN goes with --cluster replay"),
        (["--cluster", "replay", "--from=NOTHING"], r"not a run directory.*no run\.json"),
        (["--cluster", "replay", "--from=RUN"], r"earlier/run\.json.*population"),
        (["--cluster", "local", "--resume=NOTHING"], r"not a run directory.*no run\.json"),
        (["--cluster", "local", "--retest=NOTHING"], r"not a run directory.*no run\.json"),
        (["--cluster", "local", "--resume=RUN", "--retest=RUN"], r"exclude each other"),
        (["--cluster", "local", "--run-dir=RUN"], r"holds a run already; use --resume"),
        (["--cluster", "sandbox", "--sandbox-nodes", "0"], r"--sandbox-nodes .*at least 1"),
        (["--cluster", "sandbox", "--nodelist", "worker0"], r"--nodelist worker0: .* --sandbox-n"),
        (["--cluster", "local", "--nodelist", "n0"], r"--nodelist n0: a local run takes all"),
        (["--cluster", "sandbox", "--sandbox-gpus", "-1"], r"--sandbox-gpus take at least 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_be_used_are_one_line(tmp_path, a_run, arguments, said):
    before = sorted(tmp_path.rglob("*")), (a_run / "run.json").read_bytes()
    places = {"RUN": str(a_run), "NOTHING": str(tmp_path / "nothing")}
    given = [re.sub("RUN$|NOTHING$", lambda m: places[m[0]], a) for a in arguments]
    line = refused(*given)
    assert re.search(said, line), line
    assert (sorted(tmp_path.rglob("*")), (a_run / "run.json").read_bytes()) == before


def test_a_run_of_another_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema": 3}')
    assert "run.json of schema 2" in refused("--cluster", "replay", f"--from={tmp_path}")


def test_a_run_directory_below_a_file_is_refused(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    line = refused(*LOCAL, f"--run-dir={blocked / 'run'}")
    assert line.startswith(f"--run-dir {blocked / 'run'}")
    assert sorted(tmp_path.iterdir()) == [blocked]


def test_a_run_directory_that_cannot_be_made_is_refused():
    """Root may write everywhere but into /proc."""
    line = refused(*LOCAL, "--run-dir=/proc/run")
    assert line.startswith("--run-dir /proc/run")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="this host has no /dev/shm")
def test_a_run_directory_in_memory_is_refused_where_nodes_must_see_it():
    line = refused(*SANDBOX, "--run-dir=/dev/shm/acceptance-run")
    assert "is on tmpfs, which the nodes cannot see" in line
    assert not Path("/dev/shm/acceptance-run").exists()


def test_slurm_where_there_is_none_is_one_line_with_the_way_out(tmp_path):
    nothing = tmp_path / "bin"
    nothing.mkdir()
    line = refused("--cluster", "slurm", f"--run-dir={tmp_path / 'run'}", PATH=str(nothing))
    assert "is not on the PATH" in line
    assert "--cluster sandbox or local" in line
    assert not (tmp_path / "run").exists()


def test_a_selection_of_nothing_is_no_success(tmp_path):
    """pytest's own 5; no run directory is made, and nothing is green."""
    into = tmp_path / "run"
    run = run_pytest("-m", "multinode", *LOCAL, "-k", "no_such_test", f"--run-dir={into}")
    assert run.returncode == 5, run.stdout + run.stderr
    assert "wants --allow-destructive" in run.stdout
    assert not into.exists()
