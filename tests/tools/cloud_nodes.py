"""The nodes of deploy/terraform, booted here: their cloud-init files are executed, without a cloud.

python -m tests.tools.cloud_nodes [--roots DIR] [--release NAME] [-- COMMAND ...]

Boots one login node and two GPU nodes: copies of a minimal Debian with systemd as PID 1, in
namespaces and control groups of their own, on a network of their own. What fills them is Debian's
own cloud-init, which gets each file as its user data. COMMAND, or else the probe
tier (ACCEPT), runs on the login node as the user that cloud-init makes, in /shared/suite, a copy of
the checkout.

Four things of a cloud are not here, and have stand-ins: the router is slirp4netns, which needs no
rule on this host; the GPU image's driver is an `nvidia-smi` and device files; NFS, which these
kernels lack, is a mount of what the server exports to this client, and of nothing else; the name
servers of the network are /etc/hosts. Needs root, debootstrap and slirp4netns.
"""

# Length: one cloud: its stand-ins, its nodes and its one end.

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from fixtures.sandbox import resources
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.processes import wait_until
from fixtures.setup import system
from tests.tools import debian_root
from tests.tools.debian_root import CHECKOUT, RootError

TERRAFORM = CHECKOUT / "deploy" / "terraform"
IMAGE = ("systemd", "systemd-sysv", "dbus", "udev", "cloud-init", "python3-cffi-backend", "sudo",
         "iproute2", "ca-certificates", "locales")  # fmt: skip
"""Packages of a cloud's Debian image that these nodes use; all else must come by cloud-init.
python3-cffi-backend: debootstrap resolves no virtual package, as one of cloud-init's wants."""
USER = "debian"
"""Whom Debian's cloud-init makes."""
SUBNET = "10.20.0"
FIRST_MINOR = 800_000
"""Of the GPUs' device files: above those of sandboxes and foreign sites."""
BOOT_S = 420
ORDER = """\
base: thresholds.yaml
cluster:
  nodes: {nodes}
  gpus_per_node: {gpus_per_node}
  gpu_model: cpu
"""
ACCEPT = ("make", "accept", "TORCH=none", "ARGS=--tier=probe --thresholds=site.yaml")
"""What deploy/README.md says to do then, in the depth that needs no torch."""
NAMESPACES = ("--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup")
SERVERS = "/run/servers"
"""Where the stand-in for NFS finds the other nodes' files."""


def given(**changed: object) -> dict[str, Any]:
    """Return the values that main.tf gives to its templates, for two nodes of this host's size."""
    values = {
        "login_name": "acceptance-login", "login_ip": f"{SUBNET}.5",
        "gpu_names": ["acceptance-gpu00", "acceptance-gpu01"],
        "gpu_ips": [f"{SUBNET}.10", f"{SUBNET}.11"], "gpus_per_node": 2,
        "gpu_cpus": len(os.sched_getaffinity(0)), "gpu_memory_mb": 4000,
        "subnet": f"{SUBNET}.0/24",
    }  # fmt: skip
    return {**values, **changed}


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """Return a template as Terraform fills it in: they use for loops and ${...} alone."""
    text = re.sub(
        r"%\{ for (\w+), (\w+) in (\w+) ~\}\n", r"{% for \1, \2 in enumerate(\3) %}", text
    )
    text = re.sub(r"%\{ for (\w+) in (.+?) ~\}\n", r"{% for \1 in \2 %}", text)
    text = re.sub(r"%\{ endfor ~\}\n", "{% endfor %}", text)
    text = re.sub(r"\$\{(.+?)\}", r"{{ \1 }}", text)
    strict = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    strict.globals |= {"enumerate": enumerate, "join": lambda by, of: by.join(of)}
    return strict.from_string(text).render(dict(values))


# --- what the cloud's image and network bring

MOUNT_NFS = f"""\
#!/bin/sh
# Stands in for mount.nfs: mounts what the server exports to this client, from the server's files.
# As the real one it is started by `mount`, and is in its place only where nfs-common is installed.
server=${{1%%:*}}; path=${{1#*:}}; target=$2; options=$4
table={SERVERS}/$server/var/lib/nfs/etab
no() {{ echo "mount.nfs: $*" >&2; exit 32; }}
[ -e /usr/share/doc/nfs-common ] || no "nfs-common is not installed"
[ -s "$table" ] || no "Connection refused: $server serves nothing"
mine=$(ip -4 -o addr show dev eth0 | sed 's|.* inet \\([0-9.]*\\)/.*|\\1|')
given=$(awk -v path="$path" '$1 == path {{ print $2 }}' "$table" \\
  | grep -E "^($mine|${{mine%.*}}\\.0/)" || true)
[ "$given" ] || no "access denied by server while mounting $1"
case $given in *"(ro,"*) options="$options,ro";; esac
case ,$options, in *,ro,*) how=,ro;; *) how=;; esac
exec mount --bind -o "bind$how" "{SERVERS}/$server$path" "$target"
"""
NFS_SERVER = """\
# The package's unit without rpc.nfsd and its file system, which this kernel lacks.
[Unit]
Description=NFS server
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/exportfs -r
ExecStop=/usr/sbin/exportfs -au
[Install]
WantedBy=multi-user.target
"""
NVIDIA_SMI = """\
#!/bin/sh
# Stands in for the driver of the GPU image.
[ "$*" = "-pm 1" ] || { echo "nvidia-smi: no driver here: $*" >&2; exit 9; }
"""
CLOUD_CFG = """\
datasource_list: [NoCloud]
network: {config: disabled}
locale: C.UTF-8
"""

NETWORK = """\
set -eu
ip link add br0 type bridge
ip link set br0 up
ip tuntap add tap0 mode tap
ip link set tap0 master br0 up
echo ready
exec sleep infinity
"""
START = """\
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o mode=755,dev dev "$root/dev"
for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
  set -- $node
  mknod -m 666 "$root/dev/$1" c "$2" "$3"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs -o mode=755 run "$root/run"
"""
ENTER = """\
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=acceptance PATH={path} /lib/systemd/systemd
"""


class Cloud:
    """The nodes; a context manager. `templates`: name of a template -> its text, where changed."""

    def __init__(self, roots: Path, release: str = "bookworm",
                 templates: Mapping[str, str] | None = None, **values: object) -> None:  # fmt: skip
        self.given = given(**values)
        self.release = release
        self.roots = roots
        self.templates = dict(templates or {})
        self.id = f"c{secrets.token_hex(2)}"
        self.home = roots / f"cloud-{self.id}"
        self.nodes = {self.given["login_name"]: self.given["login_ip"]} | dict(
            zip(self.given["gpu_names"], self.given["gpu_ips"], strict=True)
        )
        self.cgroups = all_hierarchies(Cgroups.plan(self.id))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._init: dict[str, int] = {}
        self.env = debian_root.environment(
            os.environ, debian_root.pip_settings(), debian_root.SYSTEM_PATH
        )
        """Of the user: how this host's pip and certificates are set."""

    @property
    def login(self) -> str:
        return str(self.given["login_name"])

    def __enter__(self) -> Cloud:
        try:
            base = self._image()
            network = self._network()
            for name in self.nodes:
                self._prepare(name, base)
            for number, name in enumerate(self.nodes):
                self._boot(name, number, network)
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """End all of it, and remove its files."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self.cgroups.remove()
        shutil.rmtree(self.home, ignore_errors=True)

    # --- what is there before it is switched on

    def _image(self) -> Path:
        """Return the root of the cloud's image."""
        if system.program("slirp4netns") is None:
            system.install_packages(["slirp4netns"])
        base = self.roots / f"cloud-{self.release}"
        debian_root.make_root(base, self.release, sorted(IMAGE))
        return base

    def _prepare(self, name: str, base: Path) -> None:
        root = self.home / name
        debian_root.output_of("cp", "--archive", "--reflink=auto", str(base), str(root))
        gpu = name != self.login
        template = "gpu.yaml.tftpl" if gpu else "login.yaml.tftpl"
        text = self.templates.get(template) or (TERRAFORM / template).read_text(encoding="utf-8")
        seed = "var/lib/cloud/seed/nocloud"
        names = [f"{address} {node}" for node, address in self.nodes.items()]
        files = {
            f"{seed}/user-data": rendered(text, self.given),
            f"{seed}/meta-data": json.dumps({"instance-id": f"i-{name}", "local-hostname": name}),
            "etc/cloud/cloud.cfg.d/99-here.cfg": CLOUD_CFG,
            "etc/hostname": f"{name}\n",
            # Each its own, as of the hypervisor: the addresses of interfaces follow from it.
            "etc/machine-id": f"{secrets.token_hex(16)}\n",
            "etc/hosts": "\n".join(["127.0.0.1 localhost", *names, ""]),
            "etc/resolv.conf": f"nameserver {SUBNET}.3\n",
            "etc/systemd/system/nfs-server.service": NFS_SERVER,
        }
        programs = {"sbin/mount.nfs": MOUNT_NFS}
        if gpu:
            programs |= {"usr/bin/nvidia-smi": NVIDIA_SMI}
        for path, content in {**files, **programs}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
            (root / path).chmod(0o755 if path in programs else 0o644)
        # The package's own program goes elsewhere; mount.nfs4, a link to it, comes with it.
        divert = "dpkg-divert --local --divert /usr/lib/mount.nfs.package --no-rename"
        debian_root.output_of("chroot", str(root), *divert.split(), "/sbin/mount.nfs")

    def _network(self) -> int:
        """Make the network's namespace with a bridge and the router; return the pid that has it."""
        self.home.mkdir(parents=True)
        with (self.home / "network.log").open("wb") as log:
            holder = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", NETWORK], stdout=subprocess.PIPE, stderr=log
            )
            self._processes.append(holder)
            assert holder.stdout is not None
            with holder.stdout as said:
                if said.readline() != b"ready\n":
                    raise RootError(f"no network: {(self.home / 'network.log').read_text()}")
            argv = ["slirp4netns", f"--cidr={SUBNET}.0/24", "--disable-host-loopback"]
            router = subprocess.Popen([*argv, str(holder.pid), "tap0"], stdout=log, stderr=log)
        self._processes.append(router)
        return holder.pid

    def _boot(self, name: str, number: int, network: int) -> None:
        self.cgroups.make(name)
        root = shlex.quote(str(self.home / name))
        lines = [START, *self._cgroup_lines()]
        if name != self.login:
            major = resources.fake_major()
            first = FIRST_MINOR + 100 * number
            lines += [f'mknod -m 666 "$root/dev/nvidia{k}" c {major} {first + k}'
                      for k in range(self.given["gpus_per_node"])]  # fmt: skip
            server = shlex.quote(f"{self.home}/{self.login}")
            there = f'"$root{SERVERS}/{self.given["login_ip"]}"'
            lines += [f"mkdir -p {there}", f"mount --bind {server} {there}"]
        else:
            settings = set(debian_root.host_paths(self.env)) - {*debian_root.FILES}
            for path in sorted(settings):
                debian_root.mount_point(self.home / name, path)
                here = shlex.quote(str(path))
                lines.append(f'mount -o bind,ro {here} "$root"{here}')
        lines.append(ENTER.format(path=debian_root.SYSTEM_PATH))
        script = self.home / f"{name}.sh"
        script.write_text("\n".join(lines))
        inner = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", str(script), root]
        with (self.home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.cgroups.command_inside(name, *inner), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not wait_until(lambda: bool(children.read_text().split()), timeout_s=10, step_s=0.01):
            raise RootError(f"{name} does not start: {(self.home / f'{name}.log').read_text()}")
        (pid,) = children.read_text().split()
        self._init[name] = int(pid)
        for line in (
            f"link add v{number} type veth peer name eth0 netns /proc/{pid}/ns/net",
            f"link set v{number} master br0 up",
        ):
            debian_root.output_of("nsenter", f"--net=/proc/{network}/ns/net", "ip", *line.split())
        for line in (
            "link set lo up", f"addr add {self.nodes[name]}/24 dev eth0", "link set eth0 up",
            f"route add default via {SUBNET}.2",
        ):  # fmt: skip
            debian_root.output_of("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *line.split())

    def _cgroup_lines(self) -> Iterator[str]:
        """Yield the lines that mount the control groups, whose roots are this node's."""
        place = '"$root/sys/fs/cgroup"'
        if self.cgroups.version == 2:
            yield f"mount -t cgroup2 cgroup2 {place}"
            return
        yield f"mount -t tmpfs -o mode=755 cgroup {place}"
        for name in self.cgroups.trees:
            folder = f'"$root/sys/fs/cgroup/{name.removeprefix("name=")}"'
            options = f"{name},none" if name.startswith("name=") else name
            yield f"mkdir {folder}"
            yield f"mount -t cgroup -o {options} cgroup {folder}"

    # --- what is done on it

    def inside(self, name: str, *argv: str) -> list[str]:
        """Return the command line that runs `argv` as root on a node."""
        enter = ["nsenter", f"--target={self._init[name]}", *NAMESPACES, "--root", "--wd=/"]
        clean = ["env", "-i", f"PATH={debian_root.SYSTEM_PATH}", "HOME=/root", "LC_ALL=C.UTF-8"]
        return [*enter, *clean, *argv]

    def on(self, name: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a node as root."""
        return subprocess.run(self.inside(name, *argv), capture_output=True, text=True)

    def wait(self, deadline_s: float = BOOT_S) -> dict[str, str]:
        """Wait until cloud-init has ended on all nodes; return what it said: node -> its status."""
        until = time.monotonic() + deadline_s
        said = {}
        for name in self.nodes:
            while not (self.home / name / "run/cloud-init/result.json").exists():
                done = self.on(name, "test", "-e", "/run/cloud-init/result.json")
                if done.returncode == 0 or time.monotonic() > until:
                    break
                time.sleep(0.5)
            said[name] = self.on(name, "cloud-init", "status", "--long").stdout
        return said

    def states(self) -> list[str]:
        """Return the state of each node of Slurm, as the login node has it."""
        return self.on(self.login, "sinfo", "-h", "-N", "-o", "%T").stdout.split()

    def idle(self, deadline_s: float = 60) -> bool:
        """Whether all GPU nodes are idle before the deadline."""
        wanted = ["idle"] * len(self.given["gpu_names"])
        return wait_until(lambda: self.states() == wanted, timeout_s=deadline_s, step_s=0.5)

    def install(self) -> None:
        """Lay a copy of the checkout and an order into /shared/suite, as `git clone` would."""
        shared = self.home / self.login / "shared"
        debian_root.copy_checkout(shared)
        order = ORDER.format(nodes=",".join(self.given["gpu_names"]), **self.given)
        (shared / "suite" / "site.yaml").write_text(order)
        self.on(self.login, "chown", "-R", f"{USER}:{USER}", "/shared/suite")

    def user(self, *argv: str) -> list[str]:
        """Return the command line that runs `argv` as the user on the login node, in the copy."""
        home = {"HOME": f"/home/{USER}", "USER": USER, "LOGNAME": USER}
        given = [f"{name}={value}" for name, value in {**self.env, **home}.items()]
        there = f"cd /shared/suite && exec env {shlex.join([*given, *argv])}"
        return self.inside(self.login, "runuser", "-u", USER, "--", "sh", "-c", there)

    def log(self, name: str) -> str:
        """Return what cloud-init and the units of a node wrote, for a message."""
        output = self.on(name, "cat", "/var/log/cloud-init-output.log").stdout[-3000:]
        units = self.on(name, "systemctl", "--failed", "--no-legend").stdout
        return f"{name}: {output}\nfailed units: {units}"


def all_hierarchies(planned: Cgroups) -> Cgroups:
    """Return the control groups with all hierarchies of v1: systemd makes groups in each."""
    if planned.version == 2:
        return planned
    trees = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            name = next((o for o in options.split(",") if o.startswith("name=")), None)
            place = Path(left.split()[4])
            trees[name or place.name] = place / next(iter(planned.trees.values())).name
    return Cgroups(1, trees, planned.memory)


def main(argv: Sequence[str] | None = None) -> int:
    """Boot the nodes, run a command on the login node; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.cloud_nodes", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--roots", default="", metavar="DIR", help="default: in the cache")
    parser.add_argument("--release", default="bookworm", help="of Debian")
    options = parser.parse_args(arguments[:separator])
    command = arguments[separator + 1 :] or list(ACCEPT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    roots = Path(options.roots) if options.roots else debian_root.default_folder(os.environ)
    try:
        if os.geteuid() != 0:
            raise RootError("it needs root, as debootstrap does")
        with Cloud(roots.resolve(), options.release) as cloud:
            for name, said in cloud.wait().items():
                print(f"--- {name}\n{said}", flush=True)
            print(f"nodes: {' '.join(cloud.states())}", flush=True)
            cloud.install()
            return subprocess.run(cloud.user(*command)).returncode
    except RootError as error:
        print(f"cloud_nodes: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
