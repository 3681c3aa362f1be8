"""`make image`, `make test-image`, `make test-image-here`: the image is built, and tried.

python -m tests.tools.image build [--engine NAME] [--image NAME] [--torch-index URL]
python -m tests.tools.image test  [--engine NAME] [--image NAME] [--torch-index URL] [-- ARGS]
python -m tests.tools.image here  [--roots DIR] [--release NAME] [--torch-index URL] [-- ARGS]

build makes the target `node` of deploy/Dockerfile under the name, with docker, podman or buildah.
test makes the target `test` as well, under NAME-test, and tries both (STEPS): `make test` with ARGS
for pytest, a replay, `make accept`, and `reports verify` of a run that was made outside.

here does both as root on a machine without an engine's daemon and without a registry, by buildah:
the base is a minimal Debian from debootstrap in place of the one that the Dockerfile names, and
pip's settings, name servers and certificates are those of this host, mounted while it builds. A
size of each image and the time of each step are said at the end.

Only the standard library, as it runs before anything is installed.
"""

import argparse
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fixtures.setup import system
from tests.tools import debian_root
from tests.tools.debian_root import CHECKOUT, RootError

DOCKERFILE = "deploy/Dockerfile"
ENGINES = ("docker", "podman", "buildah")
HERE = {"BUILDAH_ISOLATION": "chroot"}
"""No namespaces: works as root in another container too, there with STORAGE_DRIVER=vfs."""
BASE = "localhost/acceptance-base"
RECORDED = "tests/selftests/data/sandbox-2x2-cpu"
NAME = "acceptance"
"""Of a container of buildah's."""
OUTSIDE = "/outside"
"""Where the run that was made outside is mounted, and the recorded one."""


@dataclass(frozen=True)
class Step:
    """What is run in a target, and what must be in its output."""

    name: str
    target: str
    script: str
    says: str = ""


STEPS = (
    Step("make test", "test", 'make test ARGS="$ARGS"', " passed"),
    Step("a replay", "node", f"pytest -m multinode --cluster replay --from={OUTSIDE}/recorded "
         "--run-dir=/tmp/replayed", "good-nodes.txt (2)"),
    Step("a run made outside", "node", f"python -m reports verify {OUTSIDE}/run", "VERIFIED: "),
    # A host without GPUs is rejected, or a demonstration: what must hold is that it was judged.
    Step("make accept", "node", 'make accept ARGS="--run-dir=/tmp/run"; '
         "python -m reports verify /tmp/run", "VERIFIED: /tmp/run"),
)  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """How an engine is called; `here`: with what this host has, and another base."""

    name: str
    base: str = ""
    mounts: tuple[str, ...] = ()
    """While it builds: SOURCE:TARGET:ro."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def here(self) -> bool:
        return bool(self.base)

    def build(self, target: str, tag: str, torch_index: str) -> list[str]:
        """Return the command that builds a target."""
        argv = [self.name, "build", "--file", DOCKERFILE, "--target", target, "--tag", tag,
                "--build-arg", f"TORCH_INDEX={torch_index}"]  # fmt: skip
        if self.name != "docker":  # docker finds it by its name
            argv += ["--ignorefile", f"{DOCKERFILE}.dockerignore", "--format", "docker"]
        if self.name == "buildah":  # the others keep layers by default
            argv.append("--layers")
        if self.here:
            argv += ["--network", "host", "--from", self.base]
            argv += [word for mount in self.mounts for word in ("--volume", mount)]
        return [*argv, "."]

    def run(self, image: str, command: Sequence[str], mounts: Sequence[str]) -> int:
        """Run a command in a container of its own, as the image's user; return its exit status."""
        volumes = [word for mount in mounts for word in ("--volume", mount)]
        if self.name != "buildah":
            # As deploy/README.md has it: ranks of one node meet in /dev/shm.
            return self.call(self.name, "run", "--rm", "--ipc", "host", *volumes, image, *command)
        # buildah's default is 1,024 open files; more than this process has takes a right to raise.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        given = ["--ulimit", f"nofile={files}:{files}", "--cap-drop", "all"]
        # The other engines let a container find itself by its name: ranks meet there.
        given += ["--add-host", f"{NAME}:127.0.0.1"]
        container = self.output("buildah", "from", *given, image).strip()
        try:
            return self.call(
                "buildah", "run", "--hostname", NAME, *volumes, container, "--", *command
            )
        finally:
            self.output("buildah", "rm", container)

    def call(self, *argv: str) -> int:
        return subprocess.run(argv, env={**os.environ, **self.env}, cwd=CHECKOUT).returncode

    def output(self, *argv: str) -> str:
        """Return the output of a command; RootError where it fails."""
        done = subprocess.run(
            argv, env={**os.environ, **self.env}, cwd=CHECKOUT, capture_output=True, text=True
        )
        if done.returncode:
            raise RootError(f"`{shlex.join(argv)}` failed: {done.stderr.strip()}")
        return done.stdout

    def inspect(self, image: str) -> tuple[str, list[str]]:
        """Return the size of an image, in words, and the digests of its layers."""
        data = json.loads(self.output(self.name, "inspect", "--type", "image", image))
        if isinstance(data, list):
            return f"{data[0]['Size'] / 1e9:.2f} GB", data[0]["RootFS"]["Layers"]
        # buildah's has no size.
        (shown, *_) = json.loads(self.output(self.name, "images", "--json", image))
        return shown["size"], data["OCIv1"]["rootfs"]["diff_ids"]


def name_of(image: str, target: str) -> str:
    """Return the name of a target's image."""
    return image if target == "node" else f"{image}-{target}"


def build(engine: Engine, image: str, targets: Sequence[str], torch_index: str) -> list[str]:
    """Build targets; return a line on each. RootError where one fails."""
    said = []
    for target in targets:
        began = time.monotonic()
        argv = engine.build(target, name_of(image, target), torch_index)
        print(f"$ {shlex.join(argv)}", flush=True)
        if engine.call(*argv):
            raise RootError(f"{engine.name} could not build the target {target}, see above")
        took = time.monotonic() - began
        size, layers = engine.inspect(name_of(image, target))
        said.append(f"{target}: built in {took:.0f} s, {size} in {len(layers)} layers")
    return said


def refuse_other_node(engine: Engine, image: str) -> None:
    """Raise RootError where the tests would run in another image than the one that is shipped."""
    (_, ours), (_, shipped) = (engine.inspect(name_of(image, t)) for t in ("test", "node"))
    if ours[: len(shipped)] != shipped:
        raise RootError(
            f"{name_of(image, 'test')} does not stand on {image}: build both from the same files, "
            "with the same TORCH_INDEX"
        )


def outside_run(folder: Path) -> None:
    """Make a run of this host's checkout: the recorded one, judged here."""
    recorded = folder / "recorded"
    debian_root.output_of("cp", "-r", str(CHECKOUT / RECORDED), str(recorded))
    python = CHECKOUT / ".venv" / "bin" / "python"
    argv = [str(python if python.exists() else sys.executable), "-m", "pytest", "-p",
            "no:cacheprovider", "-m", "multinode", "--cluster", "replay", f"--from={recorded}",
            f"--run-dir={folder / 'run'}"]  # fmt: skip
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)
    if not (folder / "run" / "verdict.json").exists():
        raise RootError(f"no run could be made outside: {done.stdout[-500:]}{done.stderr[-500:]}")
    # Inside, another user reads it.
    debian_root.output_of("chmod", "-R", "a+rX", str(folder))


def try_steps(engine: Engine, image: str, words: str, steps: Sequence[Step] = STEPS) -> list[str]:
    """Run all steps; return a line on each, beginning with `ok` or `FAILED`."""
    refuse_other_node(engine, image)
    said = []
    with tempfile.TemporaryDirectory() as temporary:
        outside_run(Path(temporary))
        for step in steps:
            began = time.monotonic()
            log = Path(temporary) / "step.log"
            log.write_text("")
            log.chmod(0o666)
            script = f"( {step.script} ) 2>&1 | tee {OUTSIDE}/step.log; exit ${{PIPESTATUS[0]}}"
            command = ["env", f"ARGS={words}", "bash", "-c", script]
            print(f"--- {step.name}, in {name_of(image, step.target)}", flush=True)
            status = engine.run(name_of(image, step.target), command, [f"{temporary}:{OUTSIDE}"])
            found = not status and step.says in log.read_text(errors="replace")
            took = time.monotonic() - began
            said.append(
                f"{'ok' if found else 'FAILED'}: {step.name}, {took:.0f} s"
                + ("" if found else f" (exit status {status}, or no '{step.says}')")
            )
    return said


# --- on this host, without a registry


def make_base(engine: Engine, root: Path, release: str) -> None:
    """Make the image of a minimal Debian, unless there is one."""
    if debian_root.make_root(root, release, ["ca-certificates"]):
        raise RootError(f"no root of {release}")
    if engine.output("buildah", "images", "--noheading", "--filter", f"reference={engine.base}"):
        return
    container = engine.output("buildah", "from", "scratch").strip()
    try:
        place = engine.output("buildah", "mount", container).strip()
        engine.output("cp", "-a", f"{root}/.", place)
        engine.output("buildah", "umount", container)
        engine.output("buildah", "commit", container, engine.base)
    finally:
        engine.output("buildah", "rm", container)


def pip_conf(settings: Mapping[str, str]) -> str:
    """Return settings of pip, as variables name them, as the text of a file."""
    lines = [
        f"{name.removeprefix('PIP_').lower().replace('_', '-')} = {value}"
        for name, value in sorted(settings.items())
        if name.startswith("PIP_")
    ]
    return "\n".join(["[global]", *lines, ""])


def engine_here(release: str, folder: Path) -> Engine:
    """Return buildah with the settings of this host; what is mounted is written into the folder."""
    if system.program("buildah") is None:
        system.install_packages(["buildah"])
    if system.program("buildah") is None:
        raise RootError("buildah is not on this host: install its package")
    env = debian_root.environment(os.environ, debian_root.pip_settings(), "")
    (folder / "pip.conf").write_text(pip_conf(env))
    (folder / "pip.conf").chmod(0o644)
    mounts = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro"]
    mounts += [
        f"{path}:{path}:ro" for path in debian_root.host_paths(env)
        if path not in debian_root.FILES
    ]  # fmt: skip
    return Engine("buildah", f"{BASE}:{release}", tuple(mounts), {**HERE, "TMPDIR": str(folder)})


def here(options: argparse.Namespace) -> list[str]:
    """Build and try both targets on this host; return a line on each step."""
    if os.geteuid() != 0:
        raise RootError("it needs root, as debootstrap does")
    roots = Path(options.roots) if options.roots else debian_root.default_folder(os.environ)
    roots = roots.resolve()
    roots.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=roots)))
        engine = engine_here(options.release, folder)
        make_base(engine, roots / f"image-{options.release}", options.release)
        said = build(engine, options.image, ("node", "test"), options.torch_index)
        return [*said, *try_steps(engine, options.image, options.words)]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all was built and tried as it should."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.image", description=__doc__.splitlines()[0]
    )
    parser.add_argument("what", choices=("build", "test", "here"))
    parser.add_argument("--engine", default="docker", choices=ENGINES)
    parser.add_argument("--image", default="gpu-cluster-acceptance")
    parser.add_argument("--torch-index", default="")
    parser.add_argument("--roots", default="", metavar="DIR", help="of here; default: in the cache")
    parser.add_argument("--release", default="bookworm", help="of Debian, for here")
    options = parser.parse_args(arguments[:separator])
    options.words = shlex.join(arguments[separator + 1 :])
    # SIGTERM must run the `finally` blocks, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    engine = Engine(options.engine)
    try:
        if options.what == "build":
            said = build(engine, options.image, ("node",), options.torch_index)
        elif options.what == "test":
            said = build(engine, options.image, ("test",), options.torch_index)
            said += try_steps(engine, options.image, options.words)
        else:
            said = here(options)
    except (RootError, system.SetupError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print("\n".join(said))
    return int(any(line.startswith("FAILED") for line in said))


if __name__ == "__main__":
    sys.exit(main())
