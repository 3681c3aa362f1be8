"""The picture and the walks of docs/architecture.md, made from and checked against the code.

python -m tests.tools.architecture            print the packages of each walk
python -m tests.tools.architecture --write    write docs/images/architecture.svg anew

The picture shows the packages in the layers of pyproject.toml, and the imports between them from
the import graph, without an import that two others imply. A walk is the path of a value through
the code: a list of stations `module:function` in docs/architecture.md. Each must exist, and of two
successive ones either must name the other's module or function, unless the value goes through a
file or a queue (a station marked with *).
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

import grimp

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = CHECKOUT / "docs" / "architecture.md"
PICTURE = CHECKOUT / "docs" / "images" / "architecture.svg"
TOP_PACKAGES = ("reports", "training")
"""Packages beside fixtures/ in the top layer: no other package imports them."""

BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 150, 40, 24, 46, 20


# --- the packages


def layers() -> list[list[str]]:
    """Return the layers of packages and modules, from the top; those of a layer are independent."""
    data = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = data["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if c.get("containers") == ["fixtures"]]
    rows = [[name.strip() for name in row.split("|")] for row in contract["layers"]]
    return [list(TOP_PACKAGES), *rows]


def imports() -> dict[str, set[str]]:
    """Return package -> the packages that it imports directly."""
    graph = grimp.build_graph("fixtures", *TOP_PACKAGES)
    imported_packages: dict[str, set[str]] = {name: set() for row in layers() for name in row}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importer, imported_package = package_of(module), package_of(imported)
            if (
                importer != imported_package
                and importer in imported_packages
                and imported_package in imported_packages
            ):
                imported_packages[importer].add(imported_package)
    return imported_packages


def package_of(module: str) -> str:
    """Return a module's package: `jobs` of `fixtures.jobs.retry`, `errors` of `fixtures.errors`."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fixtures" and len(parts) > 1 else parts[0]


def without_implied_imports(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the transitive reduction: without edges that other edges imply."""

    def all_imports_of(start: str) -> set[str]:
        reachable: set[str] = set()
        todo = list(edges[start])
        while todo:
            name = todo.pop()
            if name not in reachable:
                reachable.add(name)
                todo += edges[name]
        return reachable

    return {
        importer: {o for o in others if not any(o in all_imports_of(x) for x in others - {o})}
        for importer, others in edges.items()
    }


# --- the picture


def picture() -> str:
    """Return the text of the SVG picture."""
    rows = layers()
    width = 2 * MARGIN + max(len(row) for row in rows) * (BOX_W + GAP_X) - GAP_X
    height = 2 * MARGIN + len(rows) * (BOX_H + GAP_Y) - GAP_Y
    positions: dict[str, tuple[float, float]] = {}
    for k, row in enumerate(rows):
        left = (width - len(row) * (BOX_W + GAP_X) + GAP_X) / 2
        for n, name in enumerate(row):
            positions[name] = left + n * (BOX_W + GAP_X), MARGIN + k * (BOX_H + GAP_Y)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="14">',
        "<title>Packages and their imports, which go downwards only</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for importer, imported_packages in sorted(without_implied_imports(imports()).items()):
        for other in sorted(imported_packages):
            (x, y), (to_x, to_y) = positions[importer], positions[other]
            lines.append(
                f'<line x1="{x + BOX_W / 2:g}" y1="{y + BOX_H:g}" x2="{to_x + BOX_W / 2:g}" '
                f'y2="{to_y:g}" stroke="#8899aa"/>'
            )
    for name, (x, y) in positions.items():
        fill = "#eef3f8" if name not in TOP_PACKAGES else "#f6f1e6"
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX_W}" height="{BOX_H}" rx="4" fill="{fill}" '
            'stroke="#445566"/>'
            f'<text x="{x + BOX_W / 2:g}" y="{y + BOX_H / 2 + 5:g}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


# --- the walks


@dataclass(frozen=True)
class Station:
    """One function that a value passes through."""

    module: str
    function: str
    indirect: bool
    """Whether the value reaches the next station through a file, a queue or a hook, so that neither
    station names the other."""

    @property
    def path(self) -> Path:
        return CHECKOUT / (self.module.replace(".", "/") + ".py")

    @property
    def package(self) -> str:
        """Dotted name of its package; that of the module itself for a module outside packages."""
        return self.module.rpartition(".")[0] if self.module.count(".") > 1 else self.module


def walks() -> dict[str, list[Station]]:
    """Return title -> stations, as docs/architecture.md lists them."""
    walk_stations = {}
    text = PAGE.read_text(encoding="utf-8")
    for title, body in re.findall(r"^### Walk: (.+?)\n(.*?)(?=^#|\Z)", text, re.M | re.S):
        steps = re.findall(r"^\d+\. `([\w.]+):(\w+)`(\*?)", body, re.M)
        walk_stations[title] = [
            Station(module, function, bool(mark)) for module, function, mark in steps
        ]
    return walk_stations


def errors_in_walk(stations: list[Station]) -> list[str]:
    """Return the stations that do not exist, else successive pairs that do not name each other."""
    errors = []
    for station in stations:
        if not station.path.exists() or station.function not in defined(station.path):
            errors.append(f"{station.module}:{station.function} does not exist")
    if errors:
        return errors
    for station, successor in pairwise(stations):
        named_by_station = {successor.function, successor.module.rpartition(".")[2]} & names_in(
            station.path
        )
        named_by_successor = {station.function, station.module.rpartition(".")[2]} & names_in(
            successor.path
        )
        if not (
            station.indirect
            or station.module == successor.module
            or named_by_station
            or named_by_successor
        ):
            errors.append(f"{station.module} and {successor.module} do not name each other")
    return errors


def defined(path: Path) -> set[str]:
    """Return the names of the functions, methods and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def names_in(path: Path) -> set[str]:
    """Return every name that a file uses, including imported ones."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names} | set((node.module or "").split("."))
    return names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.architecture")
    parser.add_argument("--write", action="store_true", help="write the picture anew")
    options = parser.parse_args()
    if options.write:
        PICTURE.write_text(picture(), encoding="utf-8")
    status = 0
    for title, stations in walks().items():
        packages = list(dict.fromkeys(station.package for station in stations))
        modules = list(dict.fromkeys(station.module for station in stations))
        print(f"{title}: {len(packages)} packages, {len(modules)} modules: {', '.join(packages)}")
        for error in errors_in_walk(stations):
            print(f"  WRONG {error}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
