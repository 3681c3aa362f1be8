"""What each nvidia-ml-py means by its names: the table of tests/selftests/data/nvml_wheels.json.

    python -m tests.tools.nvml_wheels VERSION [VERSION ...]     download these and print the table
    python -m tests.tools.nvml_wheels --write VERSION [...]     and add them to the file

pip downloads the wheels into a temporary folder, without their dependencies; only numbers are kept
of them. Each is read in a process of its own, which loads no driver. The file was made with the
versions that it names; after a new release of nvidia-ml-py run this with `--write` and its version,
then raise `nvml_fields.NEWEST_KNOWN` if tests/selftests/workloads/devices/test_nvml_fields.py
holds.

The file has the values of every name by version, {name: [[value, first, last], ...]}, where first
and last are indices into `versions` and a gap is a version without that name.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.selftests.support import CHECKOUT, DATA

FILE = DATA / "nvml_wheels.json"

NAME = re.compile(r"nvml[A-Z]\w+|NVML_[A-Z0-9_]+")
"""What is a name of NVML in our code."""

THROUGH_THE_WHEEL = (
    "nvmlPciInfo_t", "c_nvmlMemory_v2_t", "c_nvmlFieldValue_t", "c_nvmlEventData_t",
    "c_nvmlRowRemapperHistogramValues", "c_nvmlMarginTemperature_v1_t", "c_nvmlProcessInfo_v3_t",
    "c_nvmlUtilization_t",
)  # fmt: skip
"""Structures that we take as nvidia-ml-py has them."""
FABRIC = ("c_nvmlGpuFabricInfo_t", "c_nvmlGpuFabricInfoV_t", "c_nvmlGpuFabricInfo_v2_t",
          "c_nvmlGpuFabricInfo_v3_t")  # fmt: skip
"""Structures of which we have our own."""
NUMBERS = (
    "NVML_MEMORY_ERROR_TYPE_", "NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC", "NVML_MEMORY_LOCATION_",
    "nvmlClocks", "NVML_NVLINK_ERROR_DL_", "nvmlEventTypeXid", "NVML_CLOCK_", "NVML_P2P_CAPS_",
    "NVML_GPU_FABRIC_", "NVML_COMPUTEMODE_", "NVML_GPU_RECOVERY_ACTION_",
)  # fmt: skip
"""How constants begin whose numbers stand in our code."""

READ = """\
import ctypes, json, sys
import pynvml
names, begins = (tuple(words.split(",")) for words in sys.argv[1:])
fields, constants, functions, structures = {}, {}, [], {}
for name, value in vars(pynvml).items():
    value = value.value if isinstance(value, (ctypes.c_uint, ctypes.c_ulonglong)) else value
    if name.startswith("NVML_FI_") and isinstance(value, int):
        fields[name] = value
    elif (name in names or name.startswith(begins)) and isinstance(value, int):
        constants[name] = value
    elif name in names and isinstance(value, type) and issubclass(value, ctypes.Structure):
        places = [[f[0], getattr(value, f[0]).offset] for f in value._fields_]
        structures[name] = [ctypes.sizeof(value), places]
    elif name in names and callable(value):
        functions.append(name)
print(json.dumps([fields, constants, functions, structures]))
"""
PARTS = ("fields", "constants", "functions", "structures")


def names_in_use() -> set[str]:
    """Return the names of NVML that the node side uses: attributes and whole strings."""
    words: list[str] = []
    for path in (CHECKOUT / "fixtures" / "workloads").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                words.append(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.append(node.value)
    # nvmlReturn is a field of a structure.
    return {word for word in words if NAME.fullmatch(word)} - {"nvmlReturn"}


def meanings(version: str) -> dict[str, dict[str, Any]]:
    """Return the parts of one version: all its field values, and what is used of the rest."""
    names = [*names_in_use(), *THROUGH_THE_WHEEL, *FABRIC]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        subprocess.run([*pip, f"nvidia-ml-py=={version}"], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract("pynvml.py", folder)
        code = [sys.executable, "-W", "ignore", "-c", READ, ",".join(names), ",".join(NUMBERS)]
        said = subprocess.run(code, cwd=folder, check=True, capture_output=True, text=True).stdout
    fields, constants, functions, structures = json.loads(said)
    return {
        "fields": fields,
        "constants": constants,
        "functions": dict.fromkeys(functions, 1),
        "structures": structures,
    }


def unpacked(table: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return version -> part -> name -> value."""
    versions = {v: {part: {} for part in PARTS} for v in table["versions"]}
    for part in PARTS:
        for name, spans in table[part].items():
            for value, first, last in spans:
                for version in table["versions"][first : last + 1]:
                    versions[version][part][name] = value
    return versions


def packed(versions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the table of the file; versions in the order of releases."""
    order = sorted(versions, key=lambda v: [int(word) for word in v.split(".")])
    table: dict[str, Any] = {"versions": order}
    for part in PARTS:
        names = sorted({name for version in order for name in versions[version][part]})
        table[part] = {
            name: list(_spans([versions[v][part].get(name) for v in order])) for name in names
        }
    return table


def _spans(values: list[Any]) -> Iterator[list[Any]]:
    """Yield [value, first, last] for each stretch of equal values that are not None."""
    first = 0
    for k in range(1, len(values) + 1):
        if k == len(values) or values[k] != values[first]:
            if values[first] is not None:
                yield [values[first], first, k - 1]
            first = k


def text_of(table: Mapping[str, Any]) -> str:
    """Return the file's text, a name a line."""
    lines = ["{", f'"versions": {json.dumps(table["versions"])}']
    for part in PARTS:
        lines[-1] += ","
        lines.append(f'"{part}": {{')
        items = [f" {json.dumps(n)}: {json.dumps(spans)}" for n, spans in table[part].items()]
        lines += [f"{item}," for item in items[:-1]] + items[-1:]
        lines.append("}")
    return "\n".join([*lines, "}"]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Download versions, add them to the table, print it or write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.nvml_wheels", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    known = unpacked(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}
    for version in options.versions:
        known[version] = meanings(version)
        print(f"{version}: {len(known[version]['fields'])} field values", file=sys.stderr)
    text = text_of(packed(known))
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
