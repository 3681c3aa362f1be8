"""Captures what a release of Slurm prints of nodes, partitions, jobs and itself, for a self-test.

python -m tests.tools.slurm_capture [--roots DIR] [--write] RELEASE ...

RELEASE: of Debian: bullseye (Slurm 20.11), bookworm (22.05), trixie (24.11), sid (26.05). Makes a
root file system of it with debootstrap, DIR/slurm-RELEASE (used again where it is complete), starts
in it slurmctld, slurmdbd and a slurmd for each node on this host's kernel, brings nodes, partitions
and jobs into the states of slurm_scenes.py, and asks as the suite asks. What was printed goes to
standard output; with --write to tests/selftests/slurm/captured/VERSION.txt, which
test_captured_texts.py reads. It needs root, and takes two minutes.

All of it runs in namespaces of its own, without a network, and ends with this process.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import psutil

from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.processes import Process, reap, run, spawn, tail, wait_until
from fixtures.setup import system
from fixtures.slurm.membership import SHOW_ALL
from tests.tools import debian_root, slurm_scenes
from tests.tools.slurm_scenes import ADDRESS, HOME, JOBS, LOGIN, UID, USER

CAPTURED = debian_root.CHECKOUT / "tests" / "selftests" / "slurm" / "captured"
NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--pid")
READY_S = 120
START = f"""\
set -eu
mount -t tmpfs -o mode=755 site /srv
mount -t tmpfs -o mode=755 run /run
mkdir -m 755 {HOME} {HOME}/log {HOME}/state {HOME}/etc /run/munge
for file in passwd group; do cp /etc/$file {HOME}/etc; done
echo '{USER}:x:{UID}:{UID}::{HOME}:/bin/sh' >> {HOME}/etc/passwd
echo '{USER}:x:{UID}:' >> {HOME}/etc/group
printf '127.0.0.1 localhost\\n{ADDRESS} {LOGIN}\\n' > {HOME}/etc/hosts
touch /etc/hosts
for file in passwd group hosts; do mount --bind {HOME}/etc/$file /etc/$file; done
hostname {LOGIN}
ip link set lo up
# With the loopback device alone, the C library finds no address to listen on.
ip link add v0 type veth peer name v1
ip addr add {ADDRESS}/24 dev v0
ip link set v0 up
ip link set v1 up
echo ready
# Nothing is ever written here: this ends with its owner, and the kernel ends all processes with it.
read -r word || true
"""
OS = re.compile(r"\bOS=.*?(?=  ?RealMemory=)")
KERNEL = re.compile(r"(\"operating_system\": ?)\"[^\"]*\"")


class Site:
    """A Slurm of that root on this host; a context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            "PATH": debian_root.SYSTEM_PATH, "LC_ALL": "C.UTF-8", "TZ": "UTC",
            "SLURM_CONF": f"{HOME}/slurm.conf", "MYSQL_UNIX_PORT": "/run/database", **SHOW_ALL,
        }  # fmt: skip
        self.ids: dict[str, str] = {}
        """Job -> its id."""
        self.refused: list[str] = []
        """What sbatch refuses."""
        self._owner: subprocess.Popen[str] | None = None
        self._init = 0
        self.accounting = True

    def __enter__(self) -> "Site":
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child"]
        argv = [*unshare, "sh", "-c", debian_root.ENTER, "sh", str(self.root), "--"]
        self._owner = subprocess.Popen(
            [*argv, "sh", "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=self.env,
        )  # fmt: skip
        assert self._owner.stdout is not None
        if self._owner.stdout.readline() != "ready\n":
            raise SandboxError(f"{self.root} cannot be entered")
        self._init = psutil.Process(self._owner.pid).children()[0].pid
        version = re.search(r"(\d+)\.(\d+)\.\d+", self.run("slurmctld", "-V"))
        assert version is not None
        self.version = version[0]
        self.release = int(version[1]), int(version[2])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._owner is not None
        self._owner.communicate()

    def start(self) -> None:
        """Start the daemons, and wait until the nodes that answer have registered."""
        texts = {
            "gres.conf": slurm_scenes.gres_conf(),
            "cgroup.conf": slurm_scenes.cgroup_conf(self.release),
            "slurmdbd.conf": slurm_scenes.SLURMDBD.format(home=HOME),
            "prolog": slurm_scenes.PROLOG, "epilog": slurm_scenes.EPILOG,
        }  # fmt: skip
        for name, text in texts.items():
            self.seen(name).write_text(text)
        for name in ("prolog", "epilog"):
            self.seen(name).chmod(0o755)
        self.seen("slurmdbd.conf").chmod(0o600)
        for kind, count in (*slurm_scenes.FILES.items(), ("h100", 4)):
            for k in range(count):
                self.seen(f"gpu-{kind}{k}").touch()
        self.seen("key").write_bytes(os.urandom(128))
        self.seen("key").chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={HOME}/key",
                    f"--seed-file={HOME}/seed")  # fmt: skip
        self.write_conf()
        self.accounting = self.start_accounting()
        self.write_conf()
        self.daemon("slurmctld", "-D")
        self.wait(lambda: self.answers("scontrol", "ping"), "slurmctld")
        for name in slurm_scenes.NODES:
            if name not in slurm_scenes.SILENT:
                self.seen(f"spool-{name}").mkdir()
                self.daemon("slurmd", "-D", "-N", name)
        if self.release >= (22, 5):
            self.seen("spool-d01").mkdir()
            self.daemon("slurmd", "-D", "-Z", "-N", "d01", "--conf",
                        "CPUs=16 RealMemory=16000 Feature=dynamic")  # fmt: skip
        silent = [n for n in slurm_scenes.SILENT if not n.startswith("e")]
        self.wait(
            lambda: all("unk" not in word for name, word in self.nodes().items()
                        if name not in silent),
            "the nodes to register",
        )  # fmt: skip

    def write_conf(self) -> None:
        conf = slurm_scenes.slurm_conf(self.release, accounting=self.accounting)
        self.seen("slurm.conf").write_text(conf)

    def start_accounting(self) -> bool:
        """Start slurmdbd; whether it works with the database of its release."""
        small = ("--innodb-log-file-size=8M",)
        self.run("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={HOME}/database",
                 "--skip-test-db", "--auth-root-authentication-method=socket", *small)  # fmt: skip
        self.daemon("mariadbd", "--no-defaults", "--user=root", f"--datadir={HOME}/database",
                    "--socket=/run/database", "--skip-networking", *small,
                    "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900")  # fmt: skip
        self.wait(lambda: self.answers("test", "-S", "/run/database"), "mariadbd")
        started = self.daemon("slurmdbd", "-D")
        answers = partial(self.answers, "sacctmgr", "-n", "list", "cluster")
        self.wait(lambda: not alive(started) or answers(), "slurmdbd")
        if not alive(started):
            print(f"no accounting: {tail(self.seen('log/slurmdbd.out'))}", file=sys.stderr)
            return False
        for line in slurm_scenes.ACCOUNTS:
            self.run("sacctmgr", "-i", *shlex.split(line))
        return True

    def act(self) -> None:
        """Bring nodes and jobs into their states."""
        self.administer(slurm_scenes.ADMIN_FIRST)
        for job in self.possible(first=True):
            self.submit(job)
        ended = {"completing", "failed"}
        running = {job.name for job in JOBS if job.first} - ended
        self.wait(
            lambda: all(self.jobs().get(name) == "RUNNING" for name in running)
            and self.jobs().get("failed") == "FAILED",
            "the first jobs to run",
        )  # fmt: skip
        self.kill("slurmd", slurm_scenes.LOST)
        self.administer(slurm_scenes.ADMIN_THEN)
        for job in self.possible(first=False):
            self.submit(job)
        self.administer(slurm_scenes.ADMIN_LAST)
        ends = {
            "time-out": "TIMEOUT", "preempted": "PREEMPTED", "node-fail": "NODE_FAIL",
            "cancelled": "CANCELLED",
        }  # fmt: skip
        self.wait(
            lambda: all(self.jobs().get(name) == state for name, state in ends.items()),
            "jobs to end",
        )
        lost = slurm_scenes.LOST
        self.wait(lambda: self.nodes().get(lost) == "down*", f"{lost} to be given up")

    def possible(self, *, first: bool) -> list[slurm_scenes.Job]:
        return [j for j in JOBS if j.first is first and (self.accounting or not j.accounted)]

    def submit(self, job: slurm_scenes.Job) -> None:
        options = shlex.split(job.options.format(**self.ids))
        first = options.index(":") if ":" in options else len(options)
        argv = ["sbatch", "--parsable", f"--job-name={job.name}", "--output=/dev/null",
                "--chdir=/", *options]  # fmt: skip
        if first < len(options):
            argv.append("script")  # of a heterogeneous job
        script = f"#!/bin/sh\n{job.script}\n"
        path = self.seen("script")
        path.write_text(script)
        argv = [f"{HOME}/script" if word == "script" else word for word in argv]
        done = self.ask(*argv, text=script)
        if done.returncode:
            self.refused.append(self.said(["sbatch", f"--job-name={job.name}", *options], done))
        else:
            self.ids[job.name] = done.stdout.strip().split(";")[0]

    def administer(self, commands: Sequence[str]) -> None:
        for line in commands:
            try:
                self.run(*shlex.split(line.format(**self.ids)))
            except (KeyError, SandboxError) as error:
                print(f"not done: {line}: {error}", file=sys.stderr)

    def capture(self) -> str:
        """Return what the suite's queries print, each below its command."""
        fields = "JobID:|,State:|,exit_code:|,NodeList:|,ReqNodes:|,Reason:|,Name:|"
        ids = [self.ids[name] for name in slurm_scenes.SHOWN_JOBS if name in self.ids]
        asked: list[Sequence[str]] = [
            ("scontrol", "show", "node", "-o"),
            ("scontrol", "show", "nodes", slurm_scenes.JSON_NODES, "--json"),
            ("sinfo", "-a", "-N", "-h", "-o", "%N %T %E"),
            ("sinfo", "--noheader", "-o", "%P"),
            ("sinfo", "--hide", "-h", "-o", "%P"),
            ("scontrol", "show", "partition", "-o"),
            ("scontrol", "show", "config"),
            ("scontrol", "ping"),
            ("squeue", "--me", "--noheader", "--states=all", "--noconvert", "-O", fields),
            ("squeue", "--me", "--noheader", "-o", "%A|%T|%o|%A|%j"),
            ("squeue", "--noheader", "--states=PENDING", "-o", "%i|%j|%r"),
            ("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,ExitCode", "-j", ",".join(ids)),
            *(("scontrol", "show", "job", "-o", job_id) for job_id in ids),
            ("scontrol", "show", "job", "-o", "999999"),
        ]  # fmt: skip
        parts = [f"# Slurm {self.version} of Debian, captured by tests/tools/slurm_capture.py"]
        parts += [*map(self.transcript, asked), *self.refused]
        self.kill("slurmctld")
        parts.append(self.transcript(("sinfo", "--noheader", "-o", "%P"), "slurmctld is away"))
        nowhere = {**self.env, "SLURM_CONF": "/nonexistent/slurm.conf"}
        parts.append(self.transcript(("sinfo", "--noheader", "-o", "%P"), "no such file", nowhere))
        del nowhere["SLURM_CONF"]
        parts.append(self.transcript(("sinfo", "--noheader", "-o", "%P"), "no cluster", nowhere))
        return "\n".join([*parts, ""])

    def transcript(
        self, argv: Sequence[str], when: str = "", env: Mapping[str, str] | None = None
    ) -> str:
        return self.said(argv, self.ask(*argv, env=env), when)

    @staticmethod
    def said(argv: Sequence[str], done: "subprocess.CompletedProcess[str]", when: str = "") -> str:
        """Return a command, what it printed, and its exit status."""
        out = done.stdout
        if "--json" in argv and not done.returncode:
            kept = [json.dumps(node, separators=(",", ":")) for node in json.loads(out)["nodes"]]
            out = '{"nodes":[\n' + ",\n".join(kept) + "\n]}\n"
        out = OS.sub("OS=Linux 6.1.0-21-amd64 #1 SMP Debian 6.1.90-1 (2024-05-03)", out)
        out = KERNEL.sub(r'\1"Linux 6.1.0-21-amd64"', out)
        lines = [f"$ {shlex.join(argv)}" + (f"  # {when}" if when else "")]
        lines += [f"> {line}" for line in out.splitlines()]
        lines += [f"! {line}" for line in done.stderr.splitlines()]
        return "\n".join([*lines, f"= {done.returncode}"])

    # --- commands in it

    def seen(self, name: str) -> Path:
        """Return a file of the site's folder as this process reaches it."""
        return Path(f"/proc/{self._init}/root{HOME}") / name

    def enter(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self._init}", *NAMESPACES, "--", *argv]

    def run(self, *argv: str) -> str:
        """Run a command as root; its output."""
        return run(self.enter(*argv), env=self.env, timeout_s=READY_S)

    def ask(
        self, *argv: str, text: str | None = None, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as the user."""
        drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
        return subprocess.run(
            self.enter(*drop, *argv), input=text, env=env or self.env, capture_output=True,
            text=True, timeout=READY_S,
        )  # fmt: skip

    def answers(self, *argv: str) -> bool:
        done = subprocess.run(self.enter(*argv), env=self.env, capture_output=True, timeout=READY_S)
        return done.returncode == 0

    def daemon(self, *argv: str) -> Process:
        name = f"{argv[0]}-{argv[argv.index('-N') + 1]}" if "-N" in argv else argv[0]
        return spawn(self.enter(*argv), env=self.env, log=self.seen(f"log/{name}.out"))

    def kill(self, *words: str) -> None:
        """Kill the daemon whose command line has these words."""
        for pid in self.run("pgrep", "-f", ".*".join(words)).split():
            self.run("kill", "-9", pid)

    def nodes(self) -> Mapping[str, str]:
        """Return node -> its state."""
        lines = self.ask("sinfo", "-h", "-a", "-N", "-o", "%N %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> Mapping[str, str]:
        """Return job -> its state; the newest of several of a name."""
        lines = self.ask("squeue", "-h", "--states=all", "-o", "%T %j").stdout.splitlines()
        pairs = [line.split(None, 1) for line in lines]
        return {name: state for state, name in reversed(pairs)}

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        if not wait_until(condition, timeout_s=READY_S, step_s=0.5):
            said = f"{dict(self.nodes())} {dict(self.jobs())}"
            for log in sorted(self.seen("log").glob("*.out")):
                said += f"\n{log.name}: {log.read_text(errors='replace')[-300:]}"
            raise SandboxError(f"waited {READY_S} s for {what}: {said}")


def alive(process: Process) -> bool:
    reap([process])
    return process.alive


def packages() -> list[str]:
    """Return the packages of a root for this."""
    return sorted({*system.SLURM.values(), *system.ACCOUNTING.values(), "procps"})


def capture(root: Path) -> tuple[str, str]:
    """Return the version of the Slurm in that root, and the transcript."""
    with Site(root) as site:
        site.start()
        site.act()
        return site.version, site.capture()


def main(argv: Sequence[str] | None = None) -> int:
    """Capture each release."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.slurm_capture", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--roots", default="", metavar="DIR", help="default: in the cache")
    parser.add_argument("--write", action="store_true", help="into the test's data")
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    options = parser.parse_args(argv)
    folder = Path(options.roots) if options.roots else debian_root.default_folder(os.environ)
    for release in options.releases:
        root = folder.resolve() / f"slurm-{release}"
        try:
            debian_root.make_root(root, release, packages())
            version, text = capture(root)
        except (debian_root.RootError, SandboxError) as error:
            print(f"slurm_capture: {release}: {error}", file=sys.stderr)
            return 1
        if options.write:
            CAPTURED.mkdir(exist_ok=True)
            (CAPTURED / f"{version}.txt").write_text(text)
            print(f"{release}: Slurm {version}, {len(text):,} characters")
        else:
            print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
