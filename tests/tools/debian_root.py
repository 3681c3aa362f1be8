"""`make test-trixie`, `make test-bare`: the suite on another Debian, with its Slurm and its Python.

python -m tests.tools.debian_root [--roots DIR] [--release NAME] [--bare] [-- COMMAND ...]

Makes a root file system of that release, DIR/NAME, with debootstrap (used again where it is
complete), copies the checkout into it, and runs there `make setup-dev`, the tests that Slurm and
Python decide, and a healthy run in the sandbox; or, instead of the last two, COMMAND. trixie has
Slurm 24.11 and Python 3.13, sid newer ones. It needs root, and only the standard library.

With --bare the root is a copy of DIR/bare-NAME, which has four packages besides the minimal system
(python3, git, make, ca-certificates), and what runs there is `make accept` alone, as a stranger
would type it. It must install all the rest, and end as DEMONSTRATION. The copy is removed when it
does, and kept otherwise.

The command runs in mount and PID namespaces of its own: all its mounts and processes are gone when
it ends, in any way. The root is a mount point there, and entered by pivot_root: the sandbox cannot
make the mounts of another root private, and nsenter leads out of a chroot. pip's settings, proxies,
certificates and name servers are those of this host, passed as environment and read-only mounts;
nothing of it is written into the root.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fixtures.setup import system
from tests.tools import checkout_files, debian_snapshot

CHECKOUT = Path(__file__).resolve().parents[2]
SUITE = Path("suite")
"""The copy of the checkout, below the root."""
COMPLETE = Path("etc/gpu-acceptance-root")
"""Says that a root is this tool's, and once it is complete, its release and packages."""
BARE = ("ca-certificates", "git", "make", "python3")
"""What a user must have before `make accept` (README)."""
ENVIRONMENT = re.compile(
    r"PIP_\w+|(https?|ftp|all|no)_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|"
    r"TORCH_INDEX|TERM|CI",
    re.IGNORECASE,
)
"""Variables of this host that the command inside gets too."""
FILES = (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/pip.conf"))
"""Files of this host that are mounted inside, where they exist."""
TESTS = (
    "sandbox/test_sandbox.py", "sandbox/test_resources.py",
    "jobs/test_diagnosis_first_contact.py", "slurm/test_client.py", "jobs/test_launcher.py",
    "jobs/test_job_queue.py", "whole_runs/test_lost_nodes.py", "whole_runs/test_interrupt.py",
    "workloads/scheduler/test_isolation.py", "whole_runs/test_bad_input.py",
    "whole_runs/test_scale.py",
    "tools/test_debian_root.py", "setup/test_system.py", "setup/test_environment.py",
    "setup/test_torch_build.py",
)  # fmt: skip
"""What Slurm or Python decides, below tests/selftests."""
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


class RootError(Exception):
    """The root cannot be made or entered; one line for the user."""


def packages() -> list[str]:
    """Return the packages of a root for tests: those that the set-up would install as root."""
    python = ("python3-venv", "python3-dev", "gcc", "libc6-dev")
    return sorted({*BARE, *python, *system.SLURM.values(), *system.TESTS.values()})


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


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return where the roots are kept: a folder of the user's cache."""
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpu-cluster-acceptance"


def make_root(root: Path, release: str, contents: Sequence[str]) -> int:
    """Make the root with debootstrap, unless it is complete; return 0, or raise RootError."""
    wanted = " ".join([release, *contents]) + "\n"
    marker = root / COMPLETE
    if marker.exists() and marker.read_text() == wanted:
        print(f"using the root {root}", flush=True)
        return 0
    if root.exists() and any(root.iterdir()) and not marker.exists():
        # Below it there may be anything: only what this tool began or made is taken away.
        raise RootError(f"{root} is not empty and no root of this tool: give another folder")
    debootstrap = find_debootstrap()
    shutil.rmtree(root, ignore_errors=True)
    marker.parent.mkdir(parents=True)
    marker.write_text("begun\n")
    print(f"making the root {root}: {wanted.strip()}", flush=True)
    include = f"--include={','.join(contents)}"
    argv = [debootstrap, "--variant=minbase", include, release, str(root)]
    log = root.with_name(f"{root.name}.log")
    with log.open("w") as output:
        done = subprocess.run(
            [*argv, *filter(None, [mirror()])],
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        last = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise RootError(f"debootstrap failed, see {log}: {last}")
    debian_snapshot.tolerate_expired(root)
    marker.write_text(wanted)
    return 0


def find_debootstrap() -> str:
    """Return the path of debootstrap; it is installed where apt can."""
    if system.program("debootstrap") is None and system.is_root() and system.has_apt():
        try:
            system.install_packages(["debootstrap", "debian-archive-keyring"])
        except system.SetupError as error:
            raise RootError(str(error)) from error
    path = system.program("debootstrap")
    if path is None:
        raise RootError("debootstrap is not on this host: install its package")
    return path


def copy_checkout(root: Path) -> None:
    """Copy what git does not ignore into the root, and keep the environment that is built there.

    Times of modification are kept. The copy is a git checkout of its own, as a clone is.
    """
    suite = root / SUITE
    suite.mkdir(parents=True, exist_ok=True)
    for old in suite.iterdir():
        if old.name != ".venv":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    for name in checkout_files.names(checkout=CHECKOUT):
        target = suite / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, target, follow_symlinks=False)
    commit_copy(suite)


def commit_copy(suite: Path) -> None:
    """Commit all of the copy, on a branch of its own."""
    git = ("git", "-C", str(suite), "-c", "user.name=bare", "-c", "user.email=bare@localhost")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=copy")):
        output_of(*git, *words)


def output_of(*argv: str) -> str:
    """Return the output of a command of this host; RootError where it fails."""
    try:
        return subprocess.run(argv, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or error
        raise RootError(f"`{' '.join(argv)}` failed: {str(reason).strip()}") from error


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


SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ACTIVATED_PATH = f"/{SUITE}/.venv/bin:{SYSTEM_PATH}"


def environment(environ: Mapping[str, str], pip: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the variables of the command inside. This process's own come before pip's files."""
    passed = {name: value for name, value in environ.items() if ENVIRONMENT.fullmatch(name)}
    return {
        **pip,
        **passed,
        "HOME": "/root",
        "LC_ALL": "C.UTF-8",
        "PATH": path,
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
    tests = [f"tests/selftests/{name}" for name in TESTS]
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
        prog="python -m tests.tools.debian_root", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--roots", default="", metavar="DIR", help="default: in the cache")
    parser.add_argument("--release", default="trixie", help="of Debian: bookworm, trixie, sid")
    parser.add_argument("--bare", action="store_true", help="`make accept` from four packages")
    options = parser.parse_args(arguments[:separator])
    roots = (Path(options.roots) if options.roots else default_folder(os.environ)).resolve()
    # SIGTERM must run the `finally` blocks, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if os.geteuid() != 0:
            raise RootError("it needs root, as the sandbox does")
        if roots.is_relative_to(CHECKOUT):
            raise RootError(f"{roots} is in the checkout: give a folder outside of it")
        root = roots / (f"bare-{options.release}" if options.bare else options.release)
        contents = sorted(BARE) if options.bare else packages()
        timed("root", lambda: make_root(root, options.release, contents))
        print(debian_snapshot.describe(root, options.release, datetime.now(UTC)), flush=True)
        if options.bare:
            return accept_in_copy(root, command)
        copy_checkout(root)
        return run_steps(root, steps(command))
    except RootError as error:
        print(f"debian_root: {error}", file=sys.stderr)
        return 1


def accept_in_copy(root: Path, command: Sequence[str]) -> int:
    """Run `make accept`, or a command, in a copy of a bare root; 0 for a DEMONSTRATION alone."""
    copy = root.with_name(f"{root.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    output_of("cp", "--archive", "--reflink=auto", str(root), str(copy))
    before = gigabytes(copy)
    copy_checkout(copy)
    if command:
        return run_steps(copy, [('"$@"', list(command))], SYSTEM_PATH)
    failure = run_steps(copy, [("make accept", [])], SYSTEM_PATH)
    verdict = verdict_of(copy / SUITE)
    environment = gigabytes(copy / SUITE / ".venv")
    system = gigabytes(copy) - environment - before
    print(
        f"{root.name}: {verdict}, exit {failure}; .venv {environment:.1f} GB, packages of Debian "
        f"and the run {system:.1f} GB", flush=True,
    )  # fmt: skip
    if failure or verdict != "DEMONSTRATION":
        print(f"expected DEMONSTRATION, exit 0; all of it is kept in {copy}", flush=True)
        return failure or 1
    shutil.rmtree(copy)
    return 0


def verdict_of(suite: Path) -> str:
    """Return the verdict of a checkout's latest run; "no verdict" where there is none."""
    try:
        text = (suite / "reports" / "runs" / "latest" / "verdict.json").read_text(encoding="utf-8")
        return str(json.loads(text)["verdict"])
    except (OSError, ValueError, KeyError):
        return "no verdict"


def gigabytes(folder: Path) -> float:
    """Return the size of a folder on disk, in GB."""
    output = output_of("du", "--summarize", "--block-size=1", "--one-file-system", str(folder))
    return int(output.split()[0]) / 1e9


def timed(name: str, run: Callable[[], int]) -> int:
    """Run a step, and print how long it took and how it ended."""
    began = time.monotonic()
    code = run()
    print(f"{name}: {time.monotonic() - began:.0f} s, exit {code}", flush=True)
    return code


def run_steps(
    root: Path, scripts: Sequence[tuple[str, list[str]]], path: str = ACTIVATED_PATH
) -> int:
    """Run the scripts inside, with temporary files of their own; return the first failure."""
    env = environment(os.environ, pip_settings(), path)
    for old in (root / "tmp").iterdir():
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
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
