"""Slurm's commands are started by one function, which sees hidden partitions and nothing less."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from fixtures.paths import CHECKOUT

pytestmark = pytest.mark.cpu

COMMANDS = frozenset(
    ["sinfo", "squeue", "scontrol", "sacct", "sacctmgr", "scancel", "sbatch", "salloc", "srun",
     "sprio", "sstat", "sreport", "sdiag", "scrontab"]
)  # fmt: skip
DOORS = frozenset(["run_command", "slurm_query", "_query", "_output"])
"""run_command(), and what hands a command on to it."""
ASKED = frozenset(["which", "program"])
"""Functions that only look for a command."""
NODE_SIDE = ("fixtures/workloads/", "fixtures/sandbox/")
"""Ranks run inside a job, and a sandbox is a Slurm of its own."""


def started(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and command for each of Slurm's commands that is not handed to a door."""
    allowed: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in DOORS | ASKED and node.args:
            allowed.add(id(node.args[0]))
        elif node.args and _is_command(node.args[0]) and name != "join":
            yield node.lineno, ast.unparse(node.args[0])
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
            first = node.elts[0]
            if _is_command(first) and isinstance(node.ctx, ast.Load) and id(node) not in allowed:
                others = [e for e in node.elts[1:] if not _is_command(e)]
                if others:
                    yield node.lineno, ast.unparse(first)


def _is_command(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and value.rpartition("/")[2] in COMMANDS


def offences(text: str) -> list[str]:
    return [command for _, command in started(ast.parse(text))]


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(['squeue', '--me'])", "subprocess.run(('scancel', *ids), env=e)",
        "os.execvp('srun', argv)", "command = ['/usr/bin/scontrol', 'ping']",
        "Popen(args=['sinfo', '-h'])", "run('sbatch', script)",
    ],
)  # fmt: skip
def test_another_way_to_start_a_command_of_slurm_is_found(text):
    assert offences(text)


@pytest.mark.parametrize(
    "text",
    ["run_command('squeue', '--me')", "slurm_query('scontrol', 'ping')", "which('sacct')",
     "self._query('sinfo', '-h')", "_output('sacct', *x)", "x = ('srun', 'sbatch')",
     "print('see squeue')"],
)  # fmt: skip
def test_the_door_itself_and_words_are_not(text):
    assert offences(text) == []


def test_nobody_else_starts_commands_of_slurm():
    found = []
    for path in sorted([*CHECKOUT.glob("fixtures/**/*.py"), *CHECKOUT.glob("reports/**/*.py")]):
        name = path.relative_to(CHECKOUT).as_posix()
        if name.startswith(NODE_SIDE):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{name}:{line}: {command}" for line, command in started(tree)]
    # What is printed for people to paste.
    (pasted,) = [f for f in found if f.startswith("fixtures/jobs/own_jobs.py:")]
    assert pasted.endswith("'scancel'")
    assert found == [pasted]
