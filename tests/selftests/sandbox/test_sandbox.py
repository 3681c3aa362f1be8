"""The sandbox is a real Slurm: nodes apart, devices fenced, faults that bite, nothing left."""

# Length: its tests share one started sandbox, a fixture whose scope is this file.

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fixtures.paths import CHECKOUT
from fixtures.sandbox import Sandbox, SandboxError, leftovers, sweep
from fixtures.sandbox.config import OPEN_PARTITION
from fixtures.sandbox.processes import Process, wait_until
from fixtures.sandbox.state import load
from fixtures.sandbox.tools import check_host, find
from tests.selftests.sandboxes import heed_interrupts, rank_states

pytestmark = pytest.mark.cpu

DEADLINE_S = 60


def can_run(request: pytest.FixtureRequest, *, accounting: bool = False) -> None:
    """Skip with the reason where the sandbox cannot run; fail where it must."""
    try:
        check_host()
        find(accounting=accounting)
    except SandboxError as error:
        if request.config.getoption("--require-sandbox", default=False):
            pytest.fail(f"--require-sandbox: {error}")
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def able(request: pytest.FixtureRequest) -> None:
    if "needs_none" not in request.fixturenames:
        can_run(request)


@pytest.fixture
def needs_none() -> None:
    """Named by the tests that need neither root nor Slurm."""


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    can_run(request)
    with Sandbox.up(nodes=2, gpus=2) as started:
        yield started
    assert leftovers(started.id) == []


@pytest.fixture
def registry() -> Iterator[Path]:
    """A short path: tmp_path would be too long for Slurm's sockets."""
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        yield Path(folder) / "registry"


def call(sandbox: Sandbox, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=sandbox.environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=check,
        timeout=DEADLINE_S,
    )


def cli(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fixtures.sandbox", *argv],
        cwd=CHECKOUT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def job_state(sandbox: Sandbox, job: str) -> str:
    text = call(sandbox, "scontrol", "-o", "show", "job", job).stdout
    return text.partition("JobState=")[2].split()[0]


def submit(sandbox: Sandbox, script: str, *options: str, output: Path) -> str:
    argv = ["sbatch", "--parsable", "-o", str(output), *options, "--wrap", script]
    return call(sandbox, *argv).stdout.strip()


def until(condition: Callable[[], object], what: str) -> None:
    assert wait_until(condition, timeout_s=DEADLINE_S, step_s=0.05), f"never: {what}"


def finished(sandbox: Sandbox, job: str) -> str:
    over = {"COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT"}
    until(lambda: job_state(sandbox, job) in over, f"job {job} ends")
    return job_state(sandbox, job)


def grows(file: Path) -> bool:
    """Whether a file that a job appends to several times a second still grows."""
    size = file.stat().st_size
    return bool(wait_until(lambda: file.stat().st_size > size, timeout_s=1, step_s=0.05))


def test_nodes_have_names_and_addresses_of_their_own(sandbox: Sandbox) -> None:
    script = "hostname; cat /sys/class/net/eth0/address; readlink /proc/self/ns/net"
    lines = call(sandbox, "srun", "-N2", "--label", "sh", "-c", script).stdout.splitlines()
    first, second = (
        {line.partition(": ")[2] for line in lines if line[0] == k} for k in ("0", "1")
    )
    assert first.isdisjoint(second)
    assert {"worker0", "worker1"} <= first | second
    assert str(Path("/proc/self/ns/net").readlink()) not in first | second


def test_nodes_reach_each_other_by_name(sandbox: Sandbox) -> None:
    server = "import socket as s; l=s.create_server(('', 7777)); c,_=l.accept(); print(c.recv(9))"
    client = (
        "import socket as s, time\n"
        "for _ in range(200):\n"
        "    try: c=s.create_connection(('worker0', 7777)); break\n"
        "    except OSError: time.sleep(.05)\n"
        "c.send(s.gethostname().encode())"
    )
    script = f'if [ "$SLURM_PROCID" = 0 ]; then exec {sys.executable} -c "$0"; fi; '
    script += f'exec {sys.executable} -c "$1"'
    done = call(sandbox, "srun", "-N2", "sh", "-c", script, server, client)
    assert "worker1" in done.stdout


def test_slurmctld_and_nodes_know_this_host_by_name(sandbox: Sandbox) -> None:
    lookup = ["getent", "hosts", socket.gethostname()]
    slurmctld = sandbox.state.processes["slurmctld"].pid
    for argv in (
        ["nsenter", f"--target={slurmctld}", "--mount", *lookup],
        sandbox.inside("worker0", *lookup),
    ):
        assert call(sandbox, *argv).stdout.split()[0] == sandbox.state.address()


def test_a_job_with_one_gpu_is_kept_out_of_the_other(sandbox: Sandbox) -> None:
    if sandbox.gpu_uuids:
        pytest.skip("the fake devices alone tell refused from let in")
    script = (
        "import os, sys\n"
        "print('visible', os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "for path in sys.argv[1:]:\n"
        "    try: os.open(path, os.O_RDWR)\n"
        "    except OSError as error: print(error.errno)"
    )
    devices = sandbox.devices["worker0"]
    argv = ["srun", "-wworker0", "--gres=gpu:1", sys.executable, "-c", script, *devices]
    # ENXIO (6): let in, and no driver there. EPERM (1): kept out.
    assert call(sandbox, *argv).stdout.split() == ["visible", "0", "6", "1"]
    argv = ["srun", "-wworker0", "--gres=gpu:2", sys.executable, "-c", script, *devices]
    assert call(sandbox, *argv).stdout.split() == ["visible", "0,1", "6", "6"]


def test_fake_devices_are_not_in_the_dev_of_the_host(sandbox: Sandbox) -> None:
    if sandbox.gpu_uuids:
        pytest.skip("this host has real GPUs")
    every = [device for devices in sandbox.devices.values() for device in devices]
    assert len(set(every)) == 4
    assert not any(Path(device).exists() for device in every)


def test_two_half_node_jobs_run_side_by_side(sandbox: Sandbox, tmp_path: Path) -> None:
    script = f"touch {tmp_path}/$SLURM_JOB_ID; "
    script += f"while [ $(ls {tmp_path} | wc -l) -lt 2 ]; do sleep 0.05; done"
    options = ["-wworker0", "--gres=gpu:1", "--ntasks=1", "-t1"]
    jobs = [submit(sandbox, script, *options, output=Path("/dev/null")) for _ in range(2)]
    assert [finished(sandbox, job) for job in jobs] == ["COMPLETED", "COMPLETED"]


def test_a_job_over_its_memory_is_ended(sandbox: Sandbox) -> None:
    if not sandbox.state.memory:
        pytest.skip("no memory controller for the sandbox on this host")
    script = f"{sys.executable} -c 'x = bytearray(300_000_000)'"
    job = submit(sandbox, script, "--mem=100M", output=Path("/dev/null"))
    assert finished(sandbox, job) == "OUT_OF_MEMORY"


def test_shared_memory_is_a_nodes_own(sandbox: Sandbox) -> None:
    call(sandbox, "srun", "-wworker0", "touch", "/dev/shm/mine")
    assert call(sandbox, "srun", "-wworker0", "ls", "/dev/shm").stdout == "mine\n"
    assert call(sandbox, "srun", "-wworker1", "ls", "/dev/shm").stdout == ""
    assert not Path("/dev/shm/mine").exists()


AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


def test_a_stranger_submits_nothing_to_it(sandbox: Sandbox) -> None:
    for command in (("sbatch", "--wrap", "true", "--chdir=/tmp", "-o/dev/null"), ("srun", "true")):
        refused = call(sandbox, *AS_NOBODY, *command, check=False)
        assert refused.returncode != 0
        assert re.search(r"partition|[Aa]ccess|permission", refused.stderr), refused.stderr
    assert call(sandbox, "squeue", "-h", "-o%u").stdout == ""
    refused = call(sandbox, *AS_NOBODY, "scontrol", "update", "node=worker0", "state=drain",
                   "reason=x", check=False)  # fmt: skip
    assert refused.returncode != 0


def test_an_ordinary_user_submits_where_it_is_open(request: pytest.FixtureRequest) -> None:
    can_run(request)
    with Sandbox.up(nodes=2, gpus=2, site={"partitions": OPEN_PARTITION}) as sandbox:
        an_ordinary_user_submits(sandbox)


def an_ordinary_user_submits(sandbox: Sandbox) -> None:
    # /tmp and not tmp_path: pytest's folders are closed to others.
    script = "id -un; srun -n1 id -un"
    as_nobody = AS_NOBODY
    folder = Path("/tmp") / f"sandbox-nobody-{sandbox.id}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    try:
        argv = [*as_nobody, "sbatch", "--parsable", f"--chdir={folder}", "-o", f"{folder}/out"]
        job = call(sandbox, *argv, "--wrap", script).stdout.strip()
        assert finished(sandbox, job) == "COMPLETED"
        assert (folder / "out").read_text().split() == ["nobody", "nobody"]
        assert job in call(sandbox, *as_nobody, "squeue", "-h", "-t", "all", "-o%i").stdout
        refused = call(sandbox, *as_nobody, "scontrol", "update", "node=worker0", "state=drain",
                       "reason=x", check=False)  # fmt: skip
        assert refused.returncode != 0
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_drained_node_gets_no_job_until_resumed(sandbox: Sandbox) -> None:
    sandbox.drain("worker1", reason="drill")
    sandbox.wait_state("worker1", "^drained")
    job = submit(sandbox, "true", "-wworker1", output=Path("/dev/null"))
    held = re.compile("ReqNodeNotAvail|DRAINED")
    until(lambda: held.search(call(sandbox, "squeue", "-h", "-o%R").stdout), "job is held back")
    sandbox.drain("worker1", resume=True)
    assert finished(sandbox, job) == "COMPLETED"


def test_cut_link_takes_a_node_off_the_network_and_back(sandbox: Sandbox) -> None:
    ping = "import socket; socket.create_connection(('controller', %d), timeout=1)"
    argv = [sys.executable, "-c", ping % sandbox.state.port]
    reach = sandbox.inside("worker1", *argv)
    assert call(sandbox, *reach, check=False).returncode == 0
    sandbox.cut_link("worker1")
    try:
        assert call(sandbox, *reach, check=False).returncode != 0
        assert call(sandbox, *sandbox.inside("worker0", *argv), check=False).returncode == 0
    finally:
        sandbox.cut_link("worker1", restore=True)
    until(lambda: call(sandbox, *reach, check=False).returncode == 0, "the link is back")
    sandbox.wait_idle(["worker1"])


def test_slow_link_limits_both_directions(sandbox: Sandbox) -> None:
    host = ["tc", "qdisc", "show", "dev", sandbox.state.veth("worker0")]
    node = sandbox.inside("worker0", "tc", "qdisc", "show", "dev", "eth0")
    sandbox.slow_link("worker0", "10mbit")
    try:
        assert all("rate 10Mbit" in call(sandbox, *argv).stdout for argv in (host, node))
    finally:
        sandbox.slow_link("worker0", None)
    assert not any("tbf" in call(sandbox, *argv).stdout for argv in (host, node))


def test_frozen_rank_stands_still_and_its_siblings_run(sandbox: Sandbox, tmp_path: Path) -> None:
    step = "while :; do echo x >>$0/$SLURM_PROCID; sleep 0.02; done"
    script = f"srun sh -c '{step}' {tmp_path}"
    job = submit(sandbox, script, "-N2", "--ntasks-per-node=1", output=tmp_path / "out")
    ranks = [tmp_path / "0", tmp_path / "1"]
    until(lambda: all(rank.exists() for rank in ranks), "both ranks write")
    frozen = sandbox.freeze("worker0", rank=0)
    # Neither the batch script nor its srun may be among them.
    commands = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in frozen}
    assert commands <= {"sh", "sleep"}
    until(lambda: not grows(ranks[0]), "rank 0 stands still")
    assert grows(ranks[1])
    sandbox.freeze("worker0", rank=0, thaw=True)
    assert grows(ranks[0])
    with sandbox.slow("worker0", 0, 20, job=int(job)):
        # The shell's `sleep` stops with it, so a stopped rank shows as state T.
        until(lambda: "stopped" in rank_states(sandbox, "worker0", 0), "the rank is seen standing")
    assert grows(ranks[0])
    assert "stopped" not in rank_states(sandbox, "worker0", 0)
    call(sandbox, "scancel", job)
    assert finished(sandbox, job) == "CANCELLED"
    with pytest.raises(SandboxError, match="no process of rank 0"):
        sandbox.freeze("worker0", rank=0)


def test_killed_node_is_gone_at_once_and_comes_back(sandbox: Sandbox) -> None:
    assert sandbox.processes("worker1")
    sandbox.kill_node("worker1")
    assert sandbox.processes("worker1") == []
    with pytest.raises(SandboxError, match="revive worker1"):
        sandbox.inside("worker1", "true")
    sandbox.wait_state("worker1", "^down")
    assert sandbox.node_states()["worker0"] == "idle"
    sandbox.revive("worker1")
    assert call(sandbox, "srun", "-wworker1", "hostname").stdout == "worker1\n"


def test_two_sandboxes_at_once_do_not_meet(sandbox: Sandbox) -> None:
    with Sandbox.up(nodes=1, gpus=1) as other:
        assert other.state.subnet != sandbox.state.subnet
        with pytest.raises(SandboxError, match="several sandboxes are running"):
            Sandbox.attach()
        assert Sandbox.attach(other.id).nodes == ["worker0"]
        assert call(other, "srun", "hostname").stdout == "worker0\n"
        assert call(sandbox, "srun", "-N2", "-l", "true").returncode == 0
        other.kill_node("worker0")
        assert sandbox.processes("worker0")
    assert leftovers(other.id) == []
    assert sandbox.node_states() == {"worker0": "idle", "worker1": "idle"}


def test_down_twice_is_no_error() -> None:
    sandbox = Sandbox.up(nodes=1, gpus=0)
    assert leftovers(sandbox.id) != []
    sandbox.down()
    sandbox.down()
    assert leftovers(sandbox.id) == []


def test_down_ends_running_and_suspended_jobs() -> None:
    with Sandbox.up(nodes=1, gpus=0) as sandbox:
        call(sandbox, "sbatch", "-o", "/dev/null", "--wrap", "setsid sleep 999 & sleep 999")
        until(lambda: call(sandbox, "squeue", "-h", "-tR").stdout, "the job runs")
        call(sandbox, "scontrol", "suspend", "1")
        until(lambda: "S" in call(sandbox, "squeue", "-h", "-o%t").stdout, "it is suspended")
        members = sandbox.processes("worker0")
        assert len(members) > 3
    assert not any(process.alive for process in members)
    assert leftovers(sandbox.id) == []


OWNER = """
import sys, time
from pathlib import Path
from fixtures.sandbox import Sandbox
sandbox = Sandbox.up(nodes=1, gpus=1, state_dir=Path(sys.argv[1]))
print(sandbox.id, flush=True)
time.sleep(600)
"""


def start_owner(registry: Path) -> tuple["subprocess.Popen[str]", str]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(registry)],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert owner.stdout is not None
    return owner, owner.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_owner_is_the_end_of_the_sandbox(
    number: signal.Signals, registry: Path
) -> None:
    owner, id = start_owner(registry)
    with owner:
        assert leftovers(id, registry=registry) != []
        owner.send_signal(number)
    until(lambda: leftovers(id, registry=registry) == [], f"nothing is left after {number.name}")


def test_killed_with_its_cleanup_process_it_is_swept_and_nothing_else_is(registry: Path) -> None:
    owner, id = start_owner(registry)
    with owner, Sandbox.up(nodes=1, gpus=0, state_dir=registry) as mine:
        state = load(registry / id)
        assert sweep(registry) == []
        # The cleanup process is killed first: only the sweep is left to notice.
        for process in psutil.process_iter(["cmdline"]):
            if {"sandbox-cleanup", id} <= set(process.info["cmdline"] or ()):
                process.kill()
        owner.kill()
        owner.wait()
        assert load(state.home).ownerless
        assert leftovers(id, registry=registry) != []
        assert sweep(registry) == [id]
        assert leftovers(id, registry=registry) == []
        assert mine.node_states() == {"worker0": "idle"}


def test_a_broken_state_file_does_not_keep_anything(registry: Path) -> None:
    with Sandbox.up(nodes=1, gpus=1, state_dir=registry) as other:
        (other.state.home / "state.json").write_text("{")
        assert sweep(registry) == []
        # It does not stand in the way of others either.
        Sandbox.up(nodes=1, gpus=0, state_dir=registry).down()
    assert leftovers(other.id, registry=registry) == []


def test_up_sweeps_what_an_owner_left(registry: Path) -> None:
    with Sandbox.up(nodes=1, gpus=1, state_dir=registry) as old:
        state = load(old.state.home)
        assert state.owner is not None
        # As if this boot's owner had been another process with the same pid.
        state.owner = Process(state.owner.pid, state.owner.start - 1)
        state.save()
        Sandbox.up(nodes=1, gpus=0, state_dir=registry).down()
        assert leftovers(old.id, registry=registry) == []


def own_id() -> str:
    """An id that no other run of these tests on this machine has, in another root perhaps."""
    return f"t{secrets.token_hex(3)}"


def test_the_command_line_from_up_to_down(registry: Path) -> None:
    where = ["--state-dir", str(registry)]
    id = own_id()
    started = cli(*where, "up", "--nodes", "1", "--gpus", "1", "--id", id)
    try:
        assert started.returncode == 0, started.stderr
        assert f"export SLURM_CONF={registry}/{id}/slurm.conf" in started.stdout
        assert sweep(registry) == []
        assert "idle" in cli(*where, "status").stdout
        assert cli(*where, "run", "--", "srun", "hostname").stdout == "worker0\n"
        assert cli(*where, "exec", "worker0", "--", "hostname").stdout == "worker0\n"
        again = cli(*where, "up", "--id", id)
        assert again.returncode == 1
        assert f"down --id {id}" in again.stderr
        for verb in (
            ["drain", "worker0"],
            ["drain", "worker0", "--resume"],
            ["kill-node", "worker0"],
        ):
            done = cli(*where, *verb)
            assert done.returncode == 0, done.stderr
        assert "(killed)" in cli(*where, "status").stdout
        done = cli(*where, "cut-link", "worker7")
        assert "has no node 'worker7'" in done.stderr
    finally:
        assert cli(*where, "down", "--id", id).returncode == 0
    assert leftovers(id, registry=registry) == []


def test_run_starts_one_and_takes_it_down(registry: Path) -> None:
    script = "echo $SLURM_CONF; srun hostname; exit 7"
    done = cli("--state-dir", str(registry), "run", "--nodes", "1", "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert done.stdout.endswith("/slurm.conf\nworker0\n"), (done.stdout, done.stderr)
    conf = done.stdout.split()[0]
    assert leftovers(Path(conf).parent.name, registry=registry) == []
    assert not registry.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broken_off_run_leaves_nothing(number: signal.Signals, registry: Path) -> None:
    id = own_id()
    argv = ["--state-dir", str(registry), "run", "--id", id, "--nodes", "1", "--"]
    with subprocess.Popen(
        [sys.executable, "-m", "fixtures.sandbox", *argv, "sh", "-c", "echo on; sleep 600"],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "on\n"
        running.send_signal(number)
        running.wait(DEADLINE_S)
    assert leftovers(id, registry=registry) == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"nodes": 0}, "1 to 250 nodes"),
        ({"state_dir": Path("/tmp") / ("x" * 50)}, "too long a path"),
        ({"id": "Not An Id"}, "small letters and digits"),
        ({"bundle": Path("/nonexistent")}, "bundle .* cannot be unpacked"),
        ({"bundle": Path("/etc")}, "is not a bundle"),
        ({"bundle": Path("/etc"), "accounting": True}, "no database"),
    ],
)
def test_refusals_are_one_line(options: dict[str, object], line: str, registry: Path) -> None:
    with pytest.raises(SandboxError, match=line) as caught:
        Sandbox.up(**{"state_dir": registry} | options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not registry.exists()


def test_without_root_it_says_the_way_out(needs_none: None, tmp_path: Path) -> None:
    argv = ["-m", "fixtures.sandbox", "--state-dir", str(tmp_path), "up"]
    # An ordinary user may not be able to read this checkout, so only the effective id is one's.
    script = "import os, runpy, sys; os.geteuid = lambda: 1000; sys.argv = sys.argv[1:]; "
    script += "runpy.run_module('fixtures.sandbox', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script, *argv[1:]],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs root: use --cluster local" in done.stderr


def listening_addresses(pid: int) -> list[str]:
    """Addresses on which a process, or one that it started, accepts TCP connections."""
    process = psutil.Process(pid)
    return [
        connection.laddr.ip
        for p in (process, *process.children(recursive=True))
        for connection in p.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.mark.slow
def test_accounting_remembers_jobs(request: pytest.FixtureRequest) -> None:
    can_run(request, accounting=True)
    with Sandbox.up(nodes=1, gpus=1, accounting=True) as sandbox:
        job = submit(sandbox, "srun false", output=Path("/dev/null"))
        sacct = ["sacct", "-X", "-n", "-P", "-j", job, "-o", "state,exitcode"]
        until(lambda: call(sandbox, *sacct).stdout == "FAILED|1:0\n", "sacct has the job")
        address = sandbox.state.address()
        assert {*listening_addresses(sandbox.state.processes["slurmdbd"].pid)} == {address}
        assert {*listening_addresses(sandbox.state.processes["mariadbd"].pid)} == set()
    assert leftovers(sandbox.id) == []
