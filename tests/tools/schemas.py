"""The JSON Schemas of a run directory's files, made from fixtures/records/interface.py.

python -m tests.tools.schemas --write    write docs/schemas anew
python -m tests.tools.schemas RUN        check the files of a run directory against them
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import TypeAdapter

from fixtures.paths import CHECKOUT
from fixtures.records.interface import FILES
from fixtures.records.run_directory import RunDirectory

FOLDER = CHECKOUT / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> str:
    """Return the text of one schema."""
    made = TypeAdapter(FILES[name]).json_schema()
    return json.dumps({"$schema": DIALECT, **made}, indent=1, sort_keys=True) + "\n"


def documents(run: Path) -> Iterator[tuple[str, Path, Any]]:
    """Yield the schema's name, the file and the parsed content of every file with a schema."""
    for name in ("run", "verdict"):
        if (path := run / f"{name}.json").exists():
            yield name, path, json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((run / "records").glob("*@*.json")):
        yield "record", path, json.loads(path.read_text(encoding="utf-8"))
    lines = [("rank-line", p) for p in RunDirectory(run).rank_files()]
    for name, path in [*lines, ("ledger-line", run / "ledger.jsonl")]:
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                yield name, path, json.loads(line)


def problems(run: Path) -> Iterator[str]:
    """Yield one line for every file or line that its schema does not allow."""
    validators = {name: jsonschema.Draft202012Validator(json.loads(schema(name))) for name in FILES}
    for name, path, data in documents(run):
        for error in validators[name].iter_errors(data):
            where = "/".join(str(step) for step in error.absolute_path)
            yield f"{path.relative_to(run)}: {where}: {error.message[:200]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the schemas, or check a run; 1 where something does not fit."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.schemas", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    if options.write:
        FOLDER.mkdir(exist_ok=True)
        for name in FILES:
            (FOLDER / f"{name}.schema.json").write_text(schema(name), encoding="utf-8")
    found = list(problems(options.run)) if options.run else []
    print("\n".join(found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
