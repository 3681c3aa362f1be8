"""Whether the tests of a module notice that one of its rules has changed.

python -m tests.tools.mutants [--count 100] [--seed 23] [--jobs 2] [--only fixtures.verdict]
    [--list]

Draws rules over all packages, changes each in a copy of the checkout, and runs the module's own
test files alone (tests/selftests/PACKAGE/test_MODULE*.py): a change that they do not notice is
printed with its line. A rule is a comparison (turned round), a number that a value is compared with
or that has a name of its own (changed), a boolean operation (and, or) or a returned value of a
function (dropped). Every package gives its share of the draw, by the number of its rules, and one
at least. A change that no test can notice, because the program is the same, stands in EQUIVALENT
with the reason, and another one is drawn in its place.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.tools import checkout_files

CHECKOUT = Path(__file__).resolve().parents[2]
SEED = 23
COUNT = 100
TIMEOUT_S = 600
"""Of the tests of one module; a mutant that makes them hang is noticed."""
TOPS = ("fixtures", "reports", "training")
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
EQUIVALENT: dict[str, str] = {
    "fixtures.verdict.sheet:_collect: type(v) is bool -> type(v) is not bool":
        "the flag only tells two kinds of values apart",
    "fixtures.verdict.power:figure_of: terms.row.recorded is not None or "
    "terms.row.calibrate is not None -> terms.row.recorded is not None and "
    "terms.row.calibrate is not None":
        "such a limit has no figure below or above, so no power is made of it either way",
    "fixtures.thresholds.site_facts:_has_nvlink: 0 -> 1":
        "no model has an NVLink rate between 0 and 1 GB/s",
    "fixtures.thresholds.loader:_expand: sweep and value is not None -> sweep or value is not None":
        "the value is None exactly where there is no sweep",
    "fixtures.workloads.devices.numa:_call: 0 -> 1":
        "errno is set to 0 before the call, so a call that returns 0 leaves 0 either way",
    "fixtures.verdict.fleet_groups:_modes: return [] -> return None":
        "its callers ask only whether there are any",
    "reports.facts.silence:_why: return '' -> return None":
        "its caller asks only whether there is a reason",
}  # fmt: skip
"""`module:function: text before -> text after` of changes that leave the program as it is, and
why."""


@dataclass(frozen=True)
class Mutant:
    """One change of one rule."""

    path: str
    """File, relative to the checkout."""
    function: str
    line: int
    before: str
    after: str
    number: int
    """Which of the file's rules, in the order of the syntax tree."""

    @property
    def name(self) -> str:
        """The change, without the line: it stays the same when lines move."""
        return f"{module_name(self.path)}:{self.function}: {self.before} -> {self.after}"


Rule = ast.expr | ast.stmt


def module_name(path: str) -> str:
    """Return the dotted name of a source file."""
    return path.removesuffix(".py").replace("/", ".")


def package(path: str) -> str:
    """Return the folder of a source file: the package that it is drawn for."""
    return path.rpartition("/")[0]


def sources() -> list[str]:
    """Return the production files that hold rules."""
    found = (p for top in TOPS for p in sorted((CHECKOUT / top).rglob("*.py")))
    return [
        str(p.relative_to(CHECKOUT)) for p in found
        if "runs" not in p.parts and p.name not in ("__init__.py",)
    ]  # fmt: skip


def test_files(path: str, checkout: Path) -> list[Path]:
    """Return the test files of a source file: test_MODULE.py, and test_MODULE_*.py that no other
    module of the package claims by a longer name."""
    folder, _, name = path.rpartition("/")
    own = folder.partition("/")[2] if folder.startswith("fixtures/") else folder
    stem = Path(name).stem.strip("_")
    others = {p.stem.strip("_") for p in (checkout / folder).glob("*.py")}
    place = checkout / "tests" / "selftests" / own

    def claimed_by(test: Path) -> str:
        words = test.stem.removeprefix("test_").split("_")
        names = ("_".join(words[:k]) for k in range(len(words), 0, -1))
        return next((n for n in names if n in others), "")

    return [p for p in sorted(place.glob(f"test_{stem}*.py")) if claimed_by(p) == stem]


def mutants_of(path: str) -> list[Mutant]:
    """Return every change of every rule of a file, in the order of its lines."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    return [
        Mutant(path, function, rule.lineno, ast.unparse(rule), ast.unparse(new), k)
        for k, (function, rule, new) in enumerate(_rules(tree))
    ]


def mutated(mutant: Mutant) -> str:
    """Return the text of the file with the change; comments and formatting are lost."""
    tree = ast.parse((CHECKOUT / mutant.path).read_text(encoding="utf-8"))
    for k, (_, node, changed) in enumerate(_rules(tree)):
        if k == mutant.number:
            for name, value in vars(changed).items():
                setattr(node, name, value)
            node.__class__ = changed.__class__
            return ast.unparse(ast.fix_missing_locations(tree))
    raise ValueError(f"{mutant.name}: the file has changed")


def _rules(tree: ast.Module) -> Iterator[tuple[str, Rule, Rule]]:
    """Yield function, rule and changed rule, in the order of the syntax tree."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, Rule, Rule]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
            children: list[ast.AST] = [*node.body]  # neither decorators nor defaults
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value is not None else []
        elif isinstance(node, ast.If) and _is_guard(node):
            children = []
        else:
            children = list(ast.iter_child_nodes(node))
        if (changed := _changed(node)) is not None and function:
            yield function, node, changed
        for number in _numbers(node, function):
            yield function, number, ast.Constant(number.value * 2 + 1)
        for child in children:
            yield from visit(child, function)

    yield from visit(tree, "")


def _numbers(node: ast.AST, function: str) -> list[ast.Constant]:
    """Return the numbers that a comparison compares with, or that a module's constant holds."""
    places: list[ast.AST] = []
    if isinstance(node, ast.Compare):
        places = [node.left, *node.comparators]
    elif isinstance(node, ast.Assign) and not function and _is_constant(node.targets[0]):
        places = [node.value, *ast.iter_child_nodes(node.value)]
    return [
        p for p in places
        if isinstance(p, ast.Constant) and type(p.value) in (int, float)
    ]  # fmt: skip


def _is_constant(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id.lstrip("_").isupper()


def _is_guard(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.dump(node.test) or "__main__" in ast.dump(node.test)


def _changed(node: ast.AST) -> Rule | None:
    """Return the changed rule, None where the node is none."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = copy.deepcopy(node)
        compare.ops = [OPPOSITE[type(node.ops[0])]()]
        return compare
    if isinstance(node, ast.BoolOp):
        boolean = copy.deepcopy(node)
        boolean.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return boolean
    if isinstance(node, ast.Return) and node.value is not None:
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        if value is None:
            return None
        return ast.Return(ast.Constant(not value if isinstance(value, bool) else None))
    return None


def draw(seed: int, count: int, only: str = "") -> list[Mutant]:
    """Return `count` changes drawn over all packages, without those in EQUIVALENT.

    The order of the draw in a package depends on the seed and the rules' texts alone: one that is
    replaced is replaced by the next of its package, and other code draws no others.
    """
    by_package: dict[str, list[Mutant]] = defaultdict(list)
    for path in sources():
        if module_name(path).startswith(only):
            by_package[package(path)] += mutants_of(path)
    total = sum(map(len, by_package.values()))
    chosen: list[Mutant] = []
    for _, mutants in sorted(by_package.items()):
        mutants.sort(key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())
        share = max(1, round(count * len(mutants) / total)) if mutants else 0
        chosen += [m for m in mutants if m.name not in EQUIVALENT][:share]
    return chosen


def noticed(mutant: Mutant, checkout: Path) -> bool:
    """Whether the module's own tests in a copy of the checkout fail with the change."""
    tests = test_files(mutant.path, checkout)
    if not tests:
        return False
    place = checkout / mutant.path
    before = place.read_text(encoding="utf-8")
    place.write_text(mutated(mutant), encoding="utf-8")
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-m", "cpu and not slow",
             "-p", "no:cacheprovider", *tests],
            cwd=checkout, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(checkout)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    finally:
        place.write_text(before, encoding="utf-8")
    return run.returncode not in (0, 5)


def copy_of_checkout(into: Path) -> Path:
    """Copy what git does not ignore; return the copy."""
    for name in checkout_files.names():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, into / name)
    return into


def main(argv: Sequence[str] | None = None) -> int:
    """Try all drawn changes; print those that nothing noticed; 1 where there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutants")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", metavar="PACKAGE", help="as fixtures.verdict")
    parser.add_argument("--jobs", type=int, default=2, help="changes that are tried at a time")
    parser.add_argument("--list", action="store_true", help="print the draw, and try nothing")
    options = parser.parse_args(argv)
    chosen = draw(options.seed, options.count, options.only)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.path}:{mutant.line}: {mutant.name}")
        return 0
    missed = 0
    copies: SimpleQueue[Path] = SimpleQueue()

    def in_a_copy(mutant: Mutant) -> bool:
        checkout = copies.get()
        try:
            return noticed(mutant, checkout)
        finally:
            copies.put(checkout)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for k in range(options.jobs):
            copies.put(copy_of_checkout(Path(folder) / str(k)))
        for mutant, seen in zip(chosen, pool.map(in_a_copy, chosen), strict=True):
            if not seen:
                missed += 1
                why = "" if test_files(mutant.path, CHECKOUT) else " (no test file)"
                print(f"not noticed: {mutant.path}:{mutant.line}: {mutant.name}{why}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} changes noticed, seed {options.seed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
