"""A site with pyxis: its stand-in as a SPANK plugin of the sandbox's Slurm, and an image root.

The plugin (stand_in_pyxis.c) is loaded by the real slurmstepd and prints in pyxis' words. RUNTIME
stands in for enroot: an image is a folder whose file `layers` names what of this host it consists
of, and where; inside is nothing else but what --container-mounts names, and the system folders of
the runtime's table, as enroot mounts them. The site's three files that break, each by itself:
the image, a hook, the table.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fixtures.sandbox import Sandbox, emulation
from tests.selftests.sandboxes import copy_checkout

SOURCE = Path(__file__).with_name("stand_in_pyxis.c")
RUNTIME = """\
#!/bin/sh
set -eu
site={site}
case $1 in
create)
  [ -e "$2/layers" ] || [ -d "$2/usr" ] || {{
    echo "[ERROR] No such file or directory: $2" >&2; exit 1; }};;
start)
  image=$2; mounts=$3; root=$site/root
  mount --make-rprivate /
  mount -t tmpfs -o mode=755 root "$root"
  if [ -d "$image/usr" ]; then  # a whole root: what is written into it ends with the container
    cd "$root"
    mkdir upper work merged
    mount -t overlay -o "lowerdir=$image,upperdir=upper,workdir=work" root merged
    cd /
    root=$root/merged
  fi
  bind() {{
    mkdir -p "$root${{2%/*}}"
    if [ -d "$1" ]; then mkdir -p "$root$2"; else touch "$root$2"; fi
    mount --rbind "$1" "$root$2"
  }}
  if [ -e "$image/layers" ]; then
    mkdir -p "$root/usr"
    mount -t overlay -o "lowerdir=$site/hidden:/usr" usr "$root/usr"
    for name in bin lib lib64 sbin; do
      if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$root/$name"
      elif [ -d "/$name" ]; then bind "/$name" "/$name"; fi
    done
    while read -r source target; do bind "$source" "$target"; done <"$image/layers"
  fi
  mkdir -p "$root/tmp" "$root/run"
  chmod 1777 "$root/tmp"
  while read -r source target; do bind "$source" "$target"; done <"$site/mounts.d/system.fstab"
  IFS=,
  for mount in $mounts; do
    [ -e "${{mount%%:*}}" ] || {{
      echo "[ERROR] mount: ${{mount%%:*}}: No such file or directory" >&2; exit 1; }}
    bind "${{mount%%:*}}" "${{mount#*:}}"
  done
  for hook in "$site"/hooks.d/*.sh; do
    sh "$hook" >&2 || {{ echo "[ERROR] $hook exited with return code $?" >&2; exit 1; }}
  done
  echo "root $root";;
esac
"""
CLIENTS = ("srun", "sbatch", "scontrol", "squeue", "sinfo", "scancel", "sacct", "salloc")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
BROKEN_HOOK = "echo 'nvidia-container-cli: initialization error: driver error: timed out'\nexit 1\n"


def shipped_options(text: str) -> list[str]:
    """Return the options for a cluster with pyxis, as deploy/README.md gives them."""
    found = re.search(
        r"^    pytest -m multinode (--node-python=(?:.+\\\n)*.+)$", text, re.MULTILINE
    )
    assert found is not None, "deploy/README.md has no command for pyxis"
    return found[1].replace("\\\n", " ").split()


def version_number() -> int:
    """The number that a plugin must bear to be loaded by this Slurm."""
    said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    assert found is not None, said
    major, minor, micro = map(int, found.groups())
    return (major << 16) + (minor << 8) + micro


@dataclass(frozen=True)
class ContainerSite:
    """The site's files, the same for all nodes."""

    home: Path

    @property
    def image(self) -> Path:
        return self.home / "images" / "suite"

    @property
    def hook(self) -> Path:
        return self.home / "hooks.d" / "98-nvidia.sh"

    @property
    def table(self) -> Path:
        return self.home / "mounts.d" / "system.fstab"

    @property
    def plugstack(self) -> str:
        return f"required {self.home}/spank_pyxis.so {self.home}/enroot\n"

    @classmethod
    def make(cls, home: Path) -> ContainerSite:
        """Write the files; the plugin is compiled for this host's Slurm."""
        site = cls(home)
        for folder in (site.image, site.hook.parent, site.table.parent, home / "root"):
            folder.mkdir(parents=True)
        number = f"-DSLURM_VERSION_NUMBER={version_number()}"
        argv = ["gcc", "-Wall", "-Werror", "-shared", "-fPIC", number, str(SOURCE), "-o",
                str(home / "spank_pyxis.so")]  # fmt: skip
        subprocess.run(argv, check=True)
        (home / "enroot").write_text(RUNTIME.format(site=shlex.quote(str(home))))
        (home / "enroot").chmod(0o755)
        site.hook.write_text("exit 0\n")
        site.write_table()
        app = copy_checkout(home / "app", selftests=False)
        (app / ".venv").mkdir()
        (home / "hidden" / "bin").mkdir(parents=True)
        for name in CLIENTS:  # an image has no Slurm: overlayfs reads this device as "not there"
            os.mknod(home / "hidden" / "bin" / name, 0o600 | stat.S_IFCHR, os.makedev(0, 0))
        layers = {app: "/app", Path(sys.prefix): "/app/.venv", Path("/etc"): "/etc"}
        base = Path(sys.base_prefix)
        if not base.is_relative_to("/usr"):
            layers[base] = str(base)
        lines = [f"{source} {target}\n" for source, target in layers.items()]
        (site.image / "layers").write_text("".join(lines))
        return site

    def write_table(self, *more: str) -> None:
        """Write which folders of the node every container has."""
        devices = [f"/dev/{name}" for name in DEVICES if Path("/dev", name).exists()]
        paths = ["/proc", "/sys", *devices, "/dev/shm", "/etc/hosts", *more]
        self.table.write_text("".join(f"{path} {path}\n" for path in paths))

    def without(self, path: str) -> str:
        """Return the table without a folder."""
        lines = self.table.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(f"{path} "))


@contextlib.contextmanager
def containers(home: Path) -> Iterator[tuple[Sandbox, ContainerSite]]:
    """Two nodes of two GPUs with pyxis, whose containers have the node's GPUs, as by its hook."""
    site = ContainerSite.make(home)
    with Sandbox.up(nodes=2, gpus=2, site={"plugstack.conf": site.plugstack}) as up:
        devices = {Path(file).parent for files in up.state.devices.values() for file in files}
        hardware = [*sorted(devices), up.state.home / "gres.conf"]
        if emulation.has_driver(up.state):
            hardware.append(emulation.shared_driver(up.state))
        site.write_table(*map(str, hardware))
        yield up, site


def cover(sandbox: Sandbox, node: str, path: Path, text: str | None) -> None:
    """On one node, put another text in the place of a file; None: an empty folder over a folder."""
    pid = sandbox.state.processes[f"{node}.init"].pid
    if text is None:
        mount = ["mount", "-t", "tmpfs", "hidden", str(path)]
    else:
        other = path.with_name(f"{path.name}.{node}")
        other.write_text(text)
        mount = ["mount", "--bind", str(other), str(path)]
    subprocess.run(["nsenter", f"--target={pid}", "--mount", "--", *mount], check=True)
