"""`make test-trixie`: the suite on another Debian, with its Slurm and its Python.

python -m tests.tools.trixie [DIR] [--release trixie|sid] [-- COMMAND ...]

Makes a root file system of that release below DIR with debootstrap (used again where it is
complete), copies the checkout into it, and runs there `make setup-dev`, the tests that Slurm and
Python decide, and a healthy run in the sandbox; or, instead of the last two, COMMAND. trixie has
Slurm 24.11 and Python 3.13. It needs root, and only the standard library.

The command runs in mount and PID namespaces of its own: all its mounts and processes are gone when
it ends, in any way. The root is a mount point there, and entered by pivot_root: the sandbox cannot
make the mounts of another root private, and nsenter leads out of a chroot. pip's settings, proxies,
certificates and name servers are those of this host, passed as environment and read-only mounts;
nothing of it is written into the root.
"""

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

CHECKOUT = Path(__file__).resolve().parents[2]
SUITE = Path("suite")
"""The copy of the checkout, below the root."""
COMPLETE = Path("etc/gpu-acceptance-root")
"""Says that a root is this tool's, and once it is complete, its release and packages."""
BASE = ("ca-certificates", "make", "git", "procps", "python3", "python3-venv")
"""Packages besides those of the Makefile's SLURM that the suite's own tests need."""
ENVIRONMENT = re.compile(
    r"PIP_\w+|(https?|ftp|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|"
    r"TORCH_INDEX|TERM|CI",
    re.IGNORECASE,
)
"""Variables of this host that the command inside gets too."""
FILES = (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf"))
"""Files of this host that are mounted inside, where they exist."""
TESTS = (
    "sandbox", "sandbox_host", "first_contact", "slurm_answers", "launch", "job_scheduler",
    "lost_nodes", "interrupt", "scheduler_workloads", "bad_input", "trixie",
)  # fmt: skip
"""What Slurm or Python decides: tests/selftests/test_NAME.py."""
ENTER = """\
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
  mount -o bind,ro "$1" "$root$1"; shift
done
shift
cd "$root"
pivot_root . mnt
umount -l /mnt
# Not exec: as PID 1 a shell reaps the orphans, and the command gets its signals as usual.
"$@"
exit $?
"""


class TrixieError(Exception):
    """The root cannot be made or entered; one line for the user."""


def packages() -> list[str]:
    """Return the packages of the root: those of `make sandbox-packages`, and the tests' own."""
    text = (CHECKOUT / "Makefile").read_text()
    found = re.search(r"^SLURM := (.+)$", text, re.MULTILINE)
    if found is None:
        raise TrixieError(f"{CHECKOUT / 'Makefile'} has no line SLURM := with Slurm's packages")
    return sorted({*BASE, *found[1].split()})


def mirror(folder: Path = Path("/etc/apt")) -> str | None:
    """Return the Debian mirror of this host's apt sources; None where it has none.

    debootstrap then takes its own default. Archives of other distributions and of security updates
    lack the release.
    """
    lines: list[str] = []
    for file in [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]:
        if file.suffix in (".list", ".sources") and file.is_file():
            lines += file.read_text().splitlines()
    for line in lines:
        if re.match(r"\s*(deb\s|URIs:)", line):
            for address in re.findall(r"(?:https?|file)://\S+", line):
                if urlsplit(address).path.rstrip("/").endswith("/debian"):
                    return str(address)
    return None


def default_folder(release: str, environ: Mapping[str, str]) -> Path:
    """Return where the root is kept: a folder of the user's cache."""
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-cluster-acceptance" / release


def make_root(root: Path, release: str) -> int:
    """Make the root with debootstrap, unless it is complete; return 0, or raise TrixieError."""
    wanted = " ".join([release, *packages()]) + "\n"
    marker = root / COMPLETE
    if marker.exists() and marker.read_text() == wanted:
        print(f"using the root {root}", flush=True)
        return 0
    if root.exists() and any(root.iterdir()) and not marker.exists():
        # Below it there may be anything: only what this tool began or made is taken away.
        raise TrixieError(f"{root} is not empty and no root of this tool: give another folder")
    debootstrap = shutil.which("debootstrap", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if debootstrap is None:
        raise TrixieError("debootstrap is not on this host: `apt-get install -y debootstrap`")
    shutil.rmtree(root, ignore_errors=True)
    marker.parent.mkdir(parents=True)
    marker.write_text("begun\n")
    print(f"making the root {root}: {wanted.strip()}", flush=True)
    include = f"--include={','.join(packages())}"
    argv = [debootstrap, "--variant=minbase", include, release, str(root)]
    log = root.with_name(f"{root.name}.log")
    with log.open("w") as output:
        done = subprocess.run(
            [*argv, *filter(None, [mirror()])],
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        last = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise TrixieError(f"debootstrap failed, see {log}: {last}")
    marker.write_text(wanted)
    return 0


def copy_checkout(root: Path) -> None:
    """Copy what git does not ignore into the root, and keep the environment that is built there.

    Times of modification are kept, so that make sees what has changed.
    """
    listed = output_of("git", "-C", str(CHECKOUT), "ls-files", "-z", "--cached", "--others",
                       "--exclude-standard")  # fmt: skip
    suite = root / SUITE
    suite.mkdir(exist_ok=True)
    for old in suite.iterdir():
        if old.name != ".venv":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name in filter(None, listed.split("\0")):
        source, target = CHECKOUT / name, suite / name
        if source.is_file() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def output_of(*argv: str) -> str:
    """Return the output of a command of this host; TrixieError where it fails."""
    try:
        return subprocess.run(argv, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise TrixieError(f"`{' '.join(argv)}` failed: {str(reason).strip()}") from error


def pip_settings(python: str = sys.executable) -> dict[str, str]:
    """Return the settings of this host's pip as environment variables; none where it has no pip."""
    done = subprocess.run(
        [python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = {}
    for line in done.stdout.splitlines():
        if found := re.fullmatch(r"(?:global|install)\.([\w-]+)=(['\"].*)", line):
            # Several values stand in lines of their own; in a variable, blanks part them.
            name = f"PIP_{found[1].upper().replace('-', '_')}"
            settings[name] = " ".join(str(ast.literal_eval(found[2])).split())
    return settings


def environment(environ: Mapping[str, str], pip: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command inside. This process's own come before pip's files."""
    passed = {name: value for name, value in environ.items() if ENVIRONMENT.fullmatch(name)}
    return {
        **pip,
        **passed,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PATH": f"/{SUITE}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def host_paths(env: Mapping[str, str]) -> list[Path]:
    """Return the files and folders of this host that these variables name, and FILES."""
    named: list[Path] = []
    for name, value in env.items():
        if name in ("HOME", "PATH"):
            continue
        for word in value.split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute() and path.exists():
                # The pages of an index name files beside the folder of the index.
                beside = name.endswith("INDEX_URL") and path.parent != Path("/")
                named.append(path.parent if beside else path)
    return list(dict.fromkeys(path for path in [*FILES, *named] if path.exists()))


def mount_point(root: Path, path: Path) -> None:
    """Make the place in the root where a file or folder of this host is mounted."""
    place = root / path.relative_to("/")
    if place.is_symlink():
        place.unlink()  # it would lead out of the root
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def run_inside(root: Path, script: str, *arguments: str, env: Mapping[str, str]) -> int:
    """Run a shell script in the copy of the checkout, inside; return its exit status."""
    paths = host_paths(env)
    for path in paths:
        mount_point(root, path)
    inside = ["/bin/sh", "-c", f"cd /{SUITE} || exit; {script}", "sh", *arguments]
    argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
    process = subprocess.Popen([*argv, str(root), *map(str, paths), "--", *inside], env=dict(env))
    # A terminal's Ctrl-C reaches the command as well, which then ends in its own way.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        # Killing `unshare` kills PID 1 inside, and with it everything; the mounts go with it.
        process.kill()
        process.wait()
        signal.signal(signal.SIGINT, before)


SWEEP = "[ ! -x .venv/bin/python ] || .venv/bin/python -m fixtures.sandbox down --all"
"""Takes down what a killed command left outside of its namespaces: bridges and control groups."""
VERSIONS = "slurmctld -V; .venv/bin/python --version"
HEALTHY = "--cluster sandbox --sandbox-nodes 2 --sandbox-gpus 2 --run-dir=/tmp/run"


def steps(command: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the scripts to run inside in turn, with their arguments; all of them are run."""
    first: list[tuple[str, list[str]]] = [(f"make setup-dev && {{ {VERSIONS}; }}", [])]
    if command:
        return [*first, ('"$@"', list(command))]
    tests = [f"tests/selftests/test_{name}.py" for name in TESTS]
    return [
        *first,
        ('make test ARGS="$*"', ["--require-sandbox", *tests]),
        ('make accept ARGS="$*"', HEALTHY.split()),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Make the root and run all steps; return 0 if all of them ended with 0."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[separator + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.trixie", description=__doc__.splitlines()[0]
    )
    parser.add_argument("root", nargs="?", type=Path, metavar="DIR", help="default: in the cache")
    parser.add_argument("--release", default="trixie", help="of Debian: trixie, sid")
    options = parser.parse_args(arguments[:separator])
    root = (options.root or default_folder(options.release, os.environ)).resolve()
    # SIGTERM must run the `finally` blocks, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if os.geteuid() != 0:
            raise TrixieError("it needs root, as the sandbox does")
        if root.is_relative_to(CHECKOUT):
            raise TrixieError(f"{root} is in the checkout: give a folder outside of it")
        timed("root", lambda: make_root(root, options.release))
        copy_checkout(root)
        return run_steps(root, steps(command))
    except TrixieError as error:
        print(f"trixie: {error}", file=sys.stderr)
        return 1


def timed(name: str, run: Callable[[], int]) -> int:
    """Run a step, and print how long it took and how it ended."""
    began = time.monotonic()
    code = run()
    print(f"{name}: {time.monotonic() - began:.0f} s, exit {code}", flush=True)
    return code


def run_steps(root: Path, scripts: Sequence[tuple[str, list[str]]]) -> int:
    """Run the scripts inside, with temporary files of their own; return the first failure."""
    env = environment(os.environ, pip_settings())
    for path in (root / "tmp").iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    failure = run_inside(root, SWEEP, env=env)
    try:
        for script, words in scripts:
            step = partial(run_inside, root, script, *words, env=env)
            code = timed(" ".join([script, *words]), step)
            failure = failure or code
            if code and script.startswith("make setup-dev"):
                break
    finally:
        run_inside(root, SWEEP, env=env)
    return failure


if __name__ == "__main__":
    sys.exit(main())
