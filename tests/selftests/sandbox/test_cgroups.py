"""Control groups of a sandbox: which version a host allows, folders, members, removal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.sandbox import cgroups
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.processes import Process
from tests.selftests.sandbox.parts import Calls, living

pytestmark = pytest.mark.cpu

V1 = {name: Path(f"/sys/fs/cgroup/{name}") for name in ("devices", "freezer", "memory")}


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    return tmp_path


def on_host(
    monkeypatch: pytest.MonkeyPatch, v1: dict[str, Path], v2: Path | None, *others: str
) -> None:
    monkeypatch.setattr(cgroups, "mounted_hierarchies", lambda: (v1, v2))
    monkeypatch.setattr(cgroups, "v1_hierarchies", lambda: [*v1, *others])


def test_where_the_host_has_cgroup_v2_alone_it_is_used(
    monkeypatch: pytest.MonkeyPatch, unified: Path
) -> None:
    on_host(monkeypatch, {}, unified)
    plan = Cgroups.plan("unit")
    assert (plan.version, plan.memory) == (2, True)
    assert plan.trees == {"unified": unified / "gpu-acceptance-unit"}
    assert cgroups.controls_memory() is True
    (unified / "cgroup.controllers").write_text("cpu pids\n")
    assert Cgroups.plan("unit", version=2).memory is False
    assert cgroups.controls_memory() is False


@pytest.mark.parametrize("hybrid", [False, True])
def test_where_v1_has_the_devices_v1_is_used(
    monkeypatch: pytest.MonkeyPatch, unified: Path, hybrid: bool
) -> None:
    on_host(monkeypatch, V1, unified if hybrid else None, "cpu")
    for version in (None, 1):
        plan = Cgroups.plan("unit", version=version)
        assert (plan.version, plan.memory) == (1, True)
        assert plan.trees["devices"] == Path("/sys/fs/cgroup/devices/gpu-acceptance-unit")
    on_host(monkeypatch, {k: v for k, v in V1.items() if k != "memory"}, None)
    assert Cgroups.plan("unit").memory is False


@pytest.mark.parametrize(
    ("v1", "has_v2", "version", "line"),
    [
        (V1, True, 2, "v2 cannot be used here: v1 has devices, freezer, memory, name=systemd on"),
        ({}, True, None, "v2 cannot be used here: v1 has name=systemd on this host"),
        (V1, False, 2, "cgroup v2 is not mounted here, and v1 is what this host has"),
        ({}, False, None, "cgroup v2 is not mounted here, and v1 lacks devices, freezer: "),
        ({}, False, 1, "cgroup v1 has no devices, freezer controller mounted here$"),
        ({}, True, 1, "cgroup v1 has no devices, freezer controller mounted here$"),
    ],
)
def test_where_no_cgroups_can_be_used_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
    unified: Path,
    v1: dict[str, Path],
    has_v2: bool,
    version: int | None,
    line: str,
) -> None:
    on_host(monkeypatch, v1, unified if has_v2 else None, "name=systemd")
    with pytest.raises(SandboxError, match=line):
        Cgroups.plan("unit", version=version)
    if version is None:
        assert cgroups.controls_memory() is False


def test_who_asks_for_v1_where_v2_is_alone_is_told_of_v2(monkeypatch, unified):
    on_host(monkeypatch, {}, unified)
    with pytest.raises(SandboxError, match=r"controller mounted here; use v2$"):
        Cgroups.plan("unit", version=1)


def test_the_light_form_takes_one_hierarchy(monkeypatch, unified):
    on_host(monkeypatch, V1, unified)
    plan = Cgroups.light("unit")
    assert (plan.version, plan.memory) == (1, False)
    assert plan.trees == {"freezer": Path("/sys/fs/cgroup/freezer/gpu-acceptance-unit")}
    on_host(monkeypatch, {}, unified, "name=systemd")
    plan = Cgroups.light("unit")
    assert (plan.version, plan.memory) == (2, False)
    assert plan.trees == {"unified": unified / "gpu-acceptance-unit"}
    on_host(monkeypatch, {}, None)
    with pytest.raises(SandboxError, match="cgroup v2 is not mounted here"):
        Cgroups.light("unit")
    monkeypatch.setattr(Cgroups, "plan", lambda id: f"plan of {id}")
    assert Cgroups.light("unit") == "plan of unit"


# --- what this host has


def test_hierarchies_are_read_from_the_mounts(monkeypatch, tmp_path):
    (tmp_path / "mountinfo").write_text(
        "1 0 0:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:2 / /cg/two rw - cgroup2 cgroup2 rw\n"
        "3 1 0:3 / /cg/again rw shared:1 - cgroup2 cgroup2 rw\n"
        "4 1 0:4 / /cg/mem rw - cgroup cgroup rw,memory,xattr\n"
        "5 1 0:5 / /cg/both rw shared:2 - cgroup cgroup rw,cpu,cpuacct\n"
        "6 1 0:6 / /cg/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    )
    (tmp_path / "cgroup").write_text("4:memory:/a\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/x\n")
    monkeypatch.setattr(cgroups, "Path", lambda p: Path(p.replace("/proc/self", str(tmp_path))))
    assert cgroups.mounted_hierarchies() == (
        {"memory": Path("/cg/mem"), "cpuacct": Path("/cg/both")}, Path("/cg/two")
    )  # fmt: skip
    assert cgroups.v1_hierarchies() == ["name=systemd", "cpu,cpuacct", "memory"]


# --- folders


def test_a_new_cpuset_has_the_cores_of_its_parent(tmp_path):
    for name in ("cpuset", "freezer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpuset.cpus").write_text("0-3")
        (tmp_path / name / "cpuset.mems").write_text("0")
    made = Cgroups(
        1, {n: tmp_path / n / "gpu-acceptance-unit" for n in ("cpuset", "freezer")}, True
    )
    made.make("worker0")
    made.make("worker0")  # a second time is not an error
    node = made.trees["cpuset"] / "worker0"
    assert [(node / f"cpuset.{f}").read_text() for f in ("cpus", "mems")] == ["0-3", "0"]
    assert not (made.trees["freezer"] / "worker0" / "cpuset.cpus").exists()
    with pytest.raises(SandboxError, match=r"cannot make the cgroup .*worker0 \(No such file"):
        Cgroups(1, {"freezer": tmp_path / "no" / "such"}, True).make("worker0")


def test_controllers_are_enabled_where_jobs_make_their_groups(tmp_path):
    tree = tmp_path / "gpu-acceptance-unit"
    made = Cgroups(2, {"unified": tree}, True)
    (tree / "worker0" / "system.slice").mkdir(parents=True)
    given = tree / "worker0" / "system.slice" / "cgroup.subtree_control"
    assert made.delegate("worker0") is False  # plain files keep the last word only
    assert given.read_text() == "+pids"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"
    given.unlink()
    given.symlink_to(tmp_path / "fixed")
    (tmp_path / "fixed").write_text("cpu memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", Calls())
        assert made.delegate("worker0") is True


def test_a_command_enters_the_groups_before_it_runs(tmp_path):
    trees = {name: tmp_path / name / "my unit" for name in ("freezer", "memory")}
    argv = Cgroups(1, trees, True).command_inside("worker0", "slurmd", "-D")
    assert argv[:2] == ["sh", "-c"]
    assert argv[3:] == ["sh", "slurmd", "-D"]
    for tree in trees.values():
        assert f"'{tree}/worker0/cgroup.procs'" in argv[2]
    assert argv[2].endswith('exec "$@"')


def test_members_are_the_live_processes_of_all_its_folders(tmp_path):
    me = living()
    made = Cgroups(1, {"freezer": tmp_path / "unit"}, True)
    (tmp_path / "unit" / "worker0" / "job").mkdir(parents=True)
    (tmp_path / "unit" / "cgroup.procs").write_text("")
    (tmp_path / "unit" / "worker0" / "cgroup.procs").write_text(f"0\n{2**22 + 1}\n")
    (tmp_path / "unit" / "worker0" / "job" / "cgroup.procs").write_text(f"{me.pid}\n")
    assert made.members() == made.members("worker0") == [me]
    assert made.members("worker1") == []
    made.move("worker0", Process(99, 1))
    assert (tmp_path / "unit" / "worker0" / "cgroup.procs").read_text() == "99"


def test_what_is_frozen_is_thawed_killed_and_removed(tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr(cgroups, "kill_all", lambda find: killed.append([*find()]))
    job = tmp_path / "unit" / "worker0" / "job"
    (tmp_path / "unit" / "worker1").mkdir(parents=True)
    job.mkdir(parents=True)
    (job / "freezer.state").write_text("FROZEN")
    (job / "cgroup.freeze").write_text("1")
    written = {}
    rmdir = Path.rmdir

    def remove(folder: Path) -> None:
        for file in sorted(folder.iterdir() if folder.exists() else ()):
            if file.is_file():
                written[file.name] = file.read_text()
                file.unlink()
        rmdir(folder)

    monkeypatch.setattr(Path, "rmdir", remove)
    made = Cgroups(1, {"freezer": tmp_path / "unit"}, True)
    made.remove("worker0")
    assert killed == [[]]
    assert written == {"freezer.state": "THAWED", "cgroup.freeze": "0"}
    assert [path.name for path in (tmp_path / "unit").iterdir()] == ["worker1"]
    made.remove()
    assert not (tmp_path / "unit").exists()
    made.remove()  # a second time is not an error


def test_a_group_that_stays_busy_is_an_error_after_five_seconds(tmp_path, monkeypatch):
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "tasks").touch()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 1

    monkeypatch.setattr(cgroups, "kill_all", Calls())
    monkeypatch.setattr(cgroups, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(SandboxError, match=r"unit cannot be removed \(busy\)"):
        Cgroups(1, {"freezer": tmp_path / "unit"}, True).remove()
    assert now[0] == 6
