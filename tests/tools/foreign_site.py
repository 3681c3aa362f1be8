"""A Slurm site of our own making that is as unlike the sandbox as can be, for an ordinary user.

python -m tests.tools.foreign_site [-- COMMAND ...]

Runs COMMAND (a shell without one) on the site's login node as the user `alice`, in a copy of the
whole checkout on the site's shared directory, and takes the site down again. There:

    pytest -m multinode --thresholds=site.yaml --partition=gpu --sbatch-args=--comment=project-7

The site has slurmdbd on MariaDB with associations, limits and a QOS enforced, a submit filter that
demands a comment, private data, a default partition without the GPU nodes, nodes whose host names
are not their node names, cores kept for the system, a slow prolog, and a /tmp and a spool directory
of their own on each node. Users, hosts and /etc/slurm are the site's: bound over the host's files
in mount namespaces. It needs root. When its owner ends, in any way, everything of it ends.
"""

# Length: one site: its parts share its namespaces, its names and its one end.

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from fixtures.sandbox import resources, tools
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.node import cgroup_lines
from fixtures.sandbox.processes import Process, run, spawn, tail, wait_until
from fixtures.sandbox.state import State, boot_id
from tests.selftests.sandboxes import CHECKOUT, copy_checkout
from tests.tools import checkout_files
from tests.tools import foreign_config as config
from tests.tools.foreign_config import DOMAIN, GPU_NODES, GPUS, HOSTS, LOGIN, USER, Variant

READY_S = 60
NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--pid")
FIRST_MINOR = 600_000
"""Of its GPUs' device files: above those of all sandboxes."""

LOGIN_NODE = """\
set -eu
cd {home}
hostname {login}.{domain}
mount -t proc proc /proc
# Before /tmp is covered: a checkout of a continuous integration often lies in it.
mount --bind {prefix} shared/venv
{opened}
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=1777 shm /dev/shm
for file in passwd group hosts; do mount --bind $file /etc/$file; done
mount --bind slurm /etc/slurm
mkdir -p /run/munge /run/netns
chmod 755 /run/munge
ip link set lo up
ip link add br0 type bridge
ip addr add {address} dev br0
ip link set br0 up
{networks}
echo ready
# Nothing is ever written here: this ends with its owner, and the kernel ends all processes with it.
read -r word || true
"""
NETWORK = """\
ip netns add {name}
ip link add v-{name} type veth peer name eth0 netns {name}
ip link set v-{name} master br0 up
ip -n {name} addr add {address} dev eth0
ip -n {name} link set eth0 up
ip -n {name} link set lo up
"""
WATCH = """\
"$@"
find {trees} -depth -type d -exec rmdir {{}} + 2>/dev/null
rm -rf --one-file-system {home}
"""
"""Waits for the site's end, whose owner may have been killed, and removes what is left of it."""


class ForeignSite:
    """The site; a context manager. What is in `shared` has the same path here and on all of it."""

    def __init__(self, variant: Variant | None = None) -> None:
        self.variant = variant or Variant()
        self.id = f"s{secrets.token_hex(2)}"  # no sandbox has an id with an s
        self.home = Path(tempfile.mkdtemp(prefix="foreign-site-", dir="/var/tmp"))
        self.shared = self.home / "shared"
        self.python = self.shared / "venv" / "bin" / "python"
        self.cgroups = Cgroups.plan(self.id)
        self._watch: subprocess.Popen[str] | None = None
        self._init = 0
        self._daemons: dict[str, Process] = {}

    @staticmethod
    def refusal() -> str | None:
        """Return why there can be no such site here, in one line; None where there can."""
        try:
            tools.check_host()
            tools.find(accounting=True)
        except SandboxError as error:
            return str(error)
        slurmctld = shutil.which("slurmctld", path=tools.SYSTEM_PATH) or ""
        found = [p for p in ("lib", "lib64") if [*Path("/usr", p).rglob("job_submit_lua.so")]]
        return None if slurmctld and found else "this Slurm has no job_submit_lua.so"

    # --- up and down

    def __enter__(self) -> "ForeignSite":
        try:
            self._write_files()
            self._start_login_node()
            if self.variant.database:
                self._start_accounting()
            if self.variant.setup:
                there = f"cd {self.user_home}\n{self.variant.setup}"
                self.root("sh", "-euc", there)
            self.start_controller()
            for name in HOSTS:
                self._start_node(name)
            self._wait(
                lambda: [*self.node_states().values()] == ["idle"] * len(HOSTS),
                "the nodes to be idle",
            )
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def down(self) -> None:
        """End all of it, and remove its files."""
        if self._watch is not None:
            self._watch.communicate()
        self.cgroups.remove()
        shutil.rmtree(self.home, ignore_errors=True)

    def _write_files(self) -> None:
        self.home.chmod(0o755)
        for name in ("shared/home", "shared/venv", "slurm", "state/log", "state/run", "private"):
            (self.home / name).mkdir(parents=True)
        ids = {USER: config.UID, config.DAEMON: config.DAEMON_UID}
        home = self.shared / "home" / USER
        passwd = Path("/etc/passwd").read_text()
        lines = config.users(passwd, {USER: config.UID}, f"{{name}}:x:{{id}}:{{id}}::{home}:"
                             "/bin/bash")  # fmt: skip
        lines = config.users(lines, ids, "{name}:x:{id}:{id}::/nonexistent:/bin/false")
        group = config.users(Path("/etc/group").read_text(), ids, "{name}:x:{id}:")
        devices = {
            name: [str(self.home / "private" / f"gpu{k}") for k in range(GPUS)]
            for name in GPU_NODES
        }
        memory = resources.memory_mib() // len(HOSTS)
        slurm, state = self.home / "slurm", self.home / "state"
        files = {
            self.home / "passwd": lines,
            self.home / "group": group,
            self.home / "hosts": config.hosts(self.variant),
            slurm / "slurm.conf": config.slurm_conf(self.variant, state=state, memory_mib=memory),
            slurm / "gres.conf": config.gres_conf(self.variant, devices),
            slurm / "cgroup.conf": config.cgroup_conf(
                self.variant, self.cgroups.version, memory=self.cgroups.memory
            ),
            slurm / "slurmdbd.conf": config.slurmdbd_conf(self.variant, state=state),
            slurm / "job_submit.lua": self.variant.lua,
            slurm / "prolog.sh": self.variant.prolog,
            slurm / "task_prolog.sh": self.variant.task_prolog,
        }
        for path, text in files.items():
            path.write_text(text)
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
        uid = self._daemon_uid()
        for path in (state, state / "log", state / "run", slurm / "slurmdbd.conf"):
            os.chown(path, uid, uid)
        (slurm / "slurmdbd.conf").chmod(0o600)
        if self.variant.linked_home:
            (self._beyond_link / USER).mkdir(parents=True)
            home.symlink_to(f"../{self._beyond_link.name}/{USER}")
        for path in (home, home / "suite", home / "runs"):
            path.mkdir(exist_ok=True)
            os.chown(path, config.UID, config.UID)
        key = state / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))

    @staticmethod
    def _daemon_uid() -> int:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(config.DAEMON).pw_uid
        return config.DAEMON_UID

    def _start_login_node(self) -> None:
        networks = [NETWORK.format(name=n, address=config.network(n, self.variant)) for n in HOSTS]
        script = self.home / "login.sh"
        script.write_text(LOGIN_NODE.format(
            home=self.home, login=LOGIN, domain=DOMAIN, prefix=shlex.quote(sys.prefix),
            opened="\n".join(open_lines([Path(sys.base_prefix), *map(Path, sys.path)])),
            address=config.network(LOGIN, self.variant), networks="".join(networks),
        ))  # fmt: skip
        for name in ("control", *HOSTS):
            self.cgroups.make(name)
        trees = " ".join(shlex.quote(str(tree)) for tree in self.cgroups.trees.values())
        inner = self.cgroups.command_inside(
            "control", "unshare", *NAMESPACES, "--fork", "--kill-child", "sh", str(script)
        )
        watch = ["sh", "-c", WATCH.format(trees=trees, home=self.home), "foreign-site", *inner]
        with (self.home / "login.log").open("w") as log:
            self._watch = subprocess.Popen(
                watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        assert self._watch.stdout is not None
        if self._watch.stdout.readline() != "ready\n":
            raise SandboxError(f"the site's login node: {tail(self.home / 'login.log')}")
        # sh, unshare, and the first process inside.
        self._init = psutil.Process(self._watch.pid).children()[0].children()[0].pid
        self.daemon("munged", "--foreground", "--force", f"--key-file={self.home}/state/munge.key",
                    f"--seed-file={self.home}/state/munge.seed")  # fmt: skip
        self._wait(lambda: self._answers("munge", "--no-input"), "munged")

    def _start_accounting(self) -> None:
        data = self.home / "state" / "database"
        small = "--innodb-log-file-size=8M"
        self.root("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}",
                  "--skip-test-db", small)  # fmt: skip
        # Whoever reaches the socket may do everything: it is on the login node alone.
        self.daemon("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}",
                    "--socket=/run/database", "--skip-networking", "--skip-grant-tables", small,
                    "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-doublewrite=0", "--innodb-lock-wait-timeout=900")  # fmt: skip
        self._wait(lambda: self._answers("test", "-S", "/run/database"), "mariadbd")
        self.root("chmod", "777", "/run/database")
        self.daemon("slurmdbd", "-D")
        self._wait(lambda: self._answers("sacctmgr", "-n", "list", "cluster"), "slurmdbd")
        for line in (
            f"add cluster {config.CLUSTER}",
            "add qos gpu Priority=10",
            f"add account {config.ACCOUNT} Description=any Organization=any",
            f"add user {USER} Account={config.ACCOUNT} QOS=normal,gpu DefaultQOS=gpu",
            *self.variant.accounting,
        ):
            self.root("sacctmgr", "-i", *shlex.split(line))

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self.daemon("slurmctld", "-D")
        self._wait(lambda: self._answers("scontrol", "ping"), "slurmctld")

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """Stop slurmctld by a signal, and wait for its end."""
        for process in psutil.Process(self._daemons["slurmctld"].pid).children(recursive=True):
            process.send_signal(number)
        self._wait(lambda: not self._daemons["slurmctld"].alive, "the end of slurmctld")

    @property
    def has_controller(self) -> bool:
        """Whether slurmctld runs."""
        return self._daemons["slurmctld"].alive

    def _start_node(self, name: str) -> None:
        place = self.home / "private"
        state = State(self.id, self.home, None, boot_id(), 0, 0, cgroup=self.cgroups.version)
        number = FIRST_MINOR + 100 * list(HOSTS).index(name)
        staging = self.home / "state" / f"cgroup-{name}"
        lines = [
            "set -eu",
            f"hostname {HOSTS[name]}.{DOMAIN}",
            "ulimit -l unlimited 2>/dev/null || true",
            "mount -t tmpfs -o mode=1777 tmp /tmp",
            "mount -t tmpfs -o mode=1777 shm /dev/shm",
            "mount -t tmpfs -o mode=755 spool /var/spool",
            f"mount -t tmpfs -o mode=755,dev private {place}",
            *(f"mknod -m 666 {place}/gpu{k} c {resources.fake_major()} {number + k}"
              for k in range(GPUS if name in GPU_NODES else 0)),
            *(self._own_home(place) if self.variant.linked_home else ()),
            *(f"mount -t tmpfs -o mode=1777 hidden {self.user_home / path}"
              for path in self.variant.hidden.get(name, ())),
            *cgroup_lines(state, self.cgroups, name, staging),
            "mount -t proc proc /proc",
            f"slurmd -D -N {name} &",
            "wait $!",
        ]  # fmt: skip
        script = self.home / "state" / f"{name}.sh"
        script.write_text("\n".join([*lines, ""]))
        own = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        if self.cgroups.version == 2:
            own.append("--cgroup")
        network = ["nsenter", f"--net=/run/netns/{name}"]
        started = self.daemon(name, *network, *own, "sh", str(script), group=name)
        if self.cgroups.version == 2:
            self._wait(lambda: bool(psutil.Process(started.pid).children(recursive=True)), name)
            for process in psutil.Process(started.pid).children(recursive=True)[:-1]:
                self.cgroups.move("control", Process(process.pid, 0))
            self.cgroups.move("control", started)
            self.cgroups.delegate(name)

    def _own_home(self, aside: Path) -> Iterator[str]:
        """Yield the lines by which a node has the user's home itself, and not what is behind the
        login node's link."""
        yield f"mkdir {aside}/home"
        yield f"mount --bind {self._beyond_link / USER} {aside}/home"
        yield f"mount -t tmpfs -o mode=755 home {self.user_home.parent}"
        yield f"mkdir {self.user_home}"
        yield f"mount --move {aside}/home {self.user_home}"
        yield f"mount -t tmpfs -o mode=755 hidden {self._beyond_link}"

    def daemon(self, name: str, *argv: str, group: str = "control") -> Process:
        """Start a daemon on the login node, as root."""
        command = argv if name in HOSTS else (name, *argv)
        self._daemons[name] = spawn(
            self.cgroups.command_inside(group, *self._enter(*command)),
            env=self._environment(), log=self.home / "state" / "log" / f"{name}.out",
        )  # fmt: skip
        return self._daemons[name]

    def on_node(self, name: str, *argv: str) -> list[str]:
        """Return the command line that runs `argv` as root on a node, outside any job."""
        below = psutil.Process(self._daemons[name].pid).children(recursive=True)
        slurmd = next(process for process in below if process.name() == "slurmd")
        return ["nsenter", f"--target={slurmd.pid}", *NAMESPACES, "--", *argv]

    def on_login(self, *argv: str) -> list[str]:
        """Return the command line that runs `argv` as root on the login node."""
        return self._enter(*argv)

    # --- commands on it

    def _environment(self) -> dict[str, str]:
        database = {"MYSQL_UNIX_PORT": "/run/database"}
        return {"PATH": tools.SYSTEM_PATH, "LC_ALL": "C.UTF-8", **database}

    def _enter(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self._init}", *NAMESPACES, "--", *argv]

    def root(self, *argv: str) -> str:
        """Run a command on the login node as root; its output."""
        return run(self._enter(*argv), env=self._environment(), timeout_s=READY_S)

    def _answers(self, *argv: str) -> bool:
        done = subprocess.run(
            self._enter(*argv), env=self._environment(), capture_output=True, timeout=READY_S
        )
        return done.returncode == 0

    def user(self, *argv: str, cwd: Path | None = None) -> list[str]:
        """Return the command line that runs `argv` on the login node as the ordinary user."""
        drop = ["setpriv", f"--reuid={config.UID}", f"--regid={config.UID}", "--clear-groups"]
        there = f'cd {shlex.quote(str(cwd or self.user_home))} && exec "$@"'
        return self._enter(*drop, "--", "sh", "-c", there, "sh", *argv)

    def pytest(self, cwd: Path, *through: str) -> list[str]:
        """Return what stands before `PYTHON -m pytest ...`, whose interpreter is the site's.

        `through`: a command line that the user starts it by.
        """
        return self.user(*through, "sh", "-c", f'shift; exec {self.python} "$@"', "sh", cwd=cwd)

    def seen(self, path: Path) -> Path:
        """Return a path of the site as this process reaches it, mounts of the site included."""
        return Path(f"/proc/{self._init}/root") / path.relative_to("/")

    @property
    def user_home(self) -> Path:
        return self.shared / "home" / USER

    @property
    def _beyond_link(self) -> Path:
        return self.shared / "vol1"

    @property
    def env(self) -> dict[str, str]:
        """The user's own environment."""
        path = f"{self.python.parent}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.user_home), "USER": USER, "LOGNAME": USER, "PATH": path}

    def install(self, root: Path | None = None, *, owner: int = config.UID) -> Path:
        """Copy the checkout into the user's home, with what was ordered; return the folder.

        A folder that has a checkout keeps it.
        """
        root = root or self.user_home / "suite"
        if not (root / "conftest.py").exists():
            copy_checkout(root)
        (root / "site.yaml").write_text(config.contract())
        run(["chown", "-R", f"{config.UID}:{config.UID}", f"{self.user_home}/."])  # not its link
        run(["chown", "-R", f"{owner}:{owner}", str(root)])
        return root

    def node_states(self) -> Mapping[str, str]:
        """Return node -> its state in sinfo; empty where slurmctld does not answer."""
        try:
            lines = self.root("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        except SandboxError:
            return {}
        return dict(line.split() for line in lines)

    def queued(self) -> dict[str, str]:
        """Return the living jobs of everybody: id -> name."""
        lines = self.root("squeue", "--noheader", "-o", "%A %j").splitlines()
        return dict(line.split(None, 1) for line in lines)

    def left(self) -> dict[str, str]:
        """Return the jobs that are still in the queue after a moment; none where there is no
        slurmctld."""
        wait_until(lambda: not (self.has_controller and self.queued()), timeout_s=30, step_s=0.1)
        return self.queued() if self.has_controller else {}

    def _wait(self, condition, what: str) -> None:  # type: ignore[no-untyped-def]
        if not wait_until(condition, timeout_s=READY_S, step_s=0.1):
            logs = sorted((self.home / "state" / "log").iterdir())
            said = "; ".join(f"{log.name}: {text}" for log in logs if (text := tail(log)))
            raise SandboxError(f"the foreign site waited {READY_S} s for {what}: {said}")


def open_lines(needed: Sequence[Path]) -> list[str]:
    """Return the lines that show directories to everybody that lie in somebody's closed home.

    That home is covered by an open, empty one in which only these show; the host keeps its own.
    """
    closed: dict[Path, list[Path]] = {}
    for path in sorted({p.resolve() for p in needed if p.is_dir()}):
        shut = [p for p in (path, *path.parents) if not p.stat().st_mode & 0o001]
        if shut and not any(path.is_relative_to(p) for p in closed.get(shut[-1], ())):
            closed.setdefault(shut[-1], []).append(path)
    lines = []
    for top, paths in closed.items():
        asides = [f"private/open{k}" for k in range(len(paths))]
        for aside, path in zip(asides, paths, strict=True):
            lines += [f"mkdir {aside}", f"mount --bind {shlex.quote(str(path))} {aside}"]
        lines.append(f"mount -t tmpfs -o mode=755 open {shlex.quote(str(top))}")
        for aside, path in zip(asides, paths, strict=True):
            there = shlex.quote(str(path))
            lines += [f"mkdir -p {there}", f"mount --move {aside} {there}", f"rmdir {aside}"]
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Bring a site up, run a command on it, take it down; the command's exit status."""
    command = [*(sys.argv[1:] if argv is None else argv)]
    if command[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if command[:1] == ["--"]:
        command = command[1:]
    if (refusal := ForeignSite.refusal()) is not None:
        print(refusal, file=sys.stderr)
        return 4
    with ForeignSite() as site:
        root = site.user_home / "suite"
        # All of it, README and Makefile too: there it can be followed word for word.
        for name in checkout_files.names():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, root / name)
        site.install()
        env = {"TERM": os.environ.get("TERM", "dumb"), **site.env}
        return subprocess.run(site.user(*command or ["bash"], cwd=root), env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
