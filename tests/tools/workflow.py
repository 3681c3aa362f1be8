"""Run the `run:` blocks of a workflow as they stand, in a bare Debian, as GitHub's runner would.

python -m tests.tools.workflow [--roots DIR] [--release NAME] [JOB ...]

Each job gets a copy of the bare root of `make test-bare` (four packages), a copy of the checkout,
a `sudo` that does nothing but start its command, and the variables that GitHub sets. Its blocks run
in turn by `bash -e`, with the `env` of workflow, job and step; what `uses:` an action is passed
over. A TORCH_INDEX of this process takes the place of the workflow's, for a host that cannot reach
that one. Without JOB: all but those in ELSEWHERE. It needs root, and .venv.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.tools import debian_root
from tests.tools.debian_root import CHECKOUT, RootError

WORKFLOWS = CHECKOUT / ".github" / "workflows"
ELSEWHERE = {
    "cpu": "`make test` of this host; in the soak, of the image",
    "bare": "`make test-bare` makes bare roots itself, and `make soak` runs it",
    "image": "`make test-image-here` builds the same image and tries it",
    "publish": "it pushes; its blocks run with a stand-in for docker in the self-tests",
    "release": "it makes a release; its block runs with a stand-in for gh in the self-tests",
    "known-faults": "it asks a service of known faults; its block runs with stand-ins",
}
"""Jobs that a bare root does not run, and what does instead."""
CONTEXT = {
    "secrets.GITHUB_TOKEN": "t", "github.token": "t", "github.actor": "somebody",
    "github.repository": "Owner/Name", "github.ref": "refs/tags/v1.0.0",
    "github.ref_name": "v1.0.0", "github.sha": "0123456789abcdef0123456789abcdef01234567",
}  # fmt: skip
"""What an expression gives on a tag; others are refused."""
SUDO = """\
#!/bin/sh
# The runner's user becomes root; here it is root.
while :; do case $1 in -*) shift;; *) break;; esac; done
exec env "$@"
"""
"""`env` takes the assignments that sudo takes, too."""


@dataclass(frozen=True)
class Block:
    """A `run:` of a step, and the variables that are its own."""

    job: str
    name: str
    script: str
    env: Mapping[str, str]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a workflow in the order of the file."""
    whole = yaml.safe_load(text)
    found = []
    for job, body in whole["jobs"].items():
        for number, step in enumerate(body["steps"], 1):
            if "run" in step:
                env = {**whole.get("env", {}), **body.get("env", {}), **step.get("env", {})}
                values = {name: evaluated(str(value)) for name, value in env.items()}
                found.append(Block(job, step.get("name", f"step {number}"), step["run"], values))
    return found


def evaluated(text: str) -> str:
    """Return a value with its expressions replaced; KeyError for one that is not known."""
    return re.sub(r"\$\{\{\s*(.+?)\s*\}\}", lambda m: CONTEXT[m[1]], text)


def environment(block: Block, folder: str) -> dict[str, str]:
    """Return the variables of a block: GitHub's, whose files are in a folder, and its own."""
    files = ("STEP_SUMMARY", "OUTPUT", "ENV", "PATH")
    return {
        "CI": "true", "GITHUB_ACTIONS": "true", "RUNNER_OS": "Linux",
        **{f"GITHUB_{name}": f"{folder}/{name.lower()}" for name in files},
        "GITHUB_JOB": block.job,
        **{f"GITHUB_{k.split('.')[1].upper()}": v for k, v in CONTEXT.items()
           if k in ("github.repository", "github.ref", "github.ref_name", "github.sha")},
        **block.env,
    }  # fmt: skip


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run_job(root: Path, job: str, todo: Sequence[Block]) -> list[str]:
    """Run the blocks of a job in a copy of a root; return a line on each."""
    copy = root.with_name(f"{root.name}.{job}")
    shutil.rmtree(copy, ignore_errors=True)
    debian_root.output_of("cp", "--archive", "--reflink=auto", str(root), str(copy))
    debian_root.copy_checkout(copy)
    program(copy / "usr/local/bin/sudo", SUDO)
    (copy / "github").mkdir()
    said = []
    for block in todo:
        env = environment(block, "/github")
        if given := os.environ.get("TORCH_INDEX"):
            env |= {"TORCH_INDEX": given} if "TORCH_INDEX" in env else {}
        outside = {k: v for k, v in os.environ.items() if k != "TORCH_INDEX"}
        path = debian_root.SYSTEM_PATH
        env = {**debian_root.environment(outside, debian_root.pip_settings(), path), **env}
        print(f"--- {job}: {block.name}: {shlex.quote(block.script)}", flush=True)
        (copy / "github" / "block").write_text(block.script)
        status = debian_root.run_inside(copy, "exec bash -e /github/block", env=env)
        said.append(f"{'ok' if not status else 'FAILED'}: {job}, {block.name}: {status}")
        if status:
            return said  # the copy is left to look at
    shutil.rmtree(copy)
    return said


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all blocks of all jobs ended with 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.workflow", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--roots", default="", metavar="DIR", help="default: in the cache")
    parser.add_argument("--release", default="bookworm", help="of Debian")
    options = parser.parse_args(argv)
    known = [b for f in sorted(WORKFLOWS.glob("*.yml")) for b in blocks(f.read_text())]
    jobs = options.jobs or [j for j in dict.fromkeys(b.job for b in known) if j not in ELSEWHERE]
    folder = Path(options.roots) if options.roots else debian_root.default_folder(os.environ)
    root = folder.resolve() / f"bare-{options.release}"
    said: list[str] = []
    try:
        if os.geteuid() != 0:
            raise RootError("it needs root, as the sandbox does")
        debian_root.make_root(root, options.release, sorted(debian_root.BARE))
        for job in jobs:
            said += run_job(root, job, [b for b in known if b.job == job])
    except RootError as error:
        print(f"workflow: {error}", file=sys.stderr)
        return 1
    print("\n".join(said))
    return int(not said or any(line.startswith("FAILED") for line in said))


if __name__ == "__main__":
    sys.exit(main())
