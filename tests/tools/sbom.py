"""The bill of materials: every package of constraints.txt with its hashes, as CycloneDX 1.6 (JSON).

python -m tests.tools.sbom [--out FILE]

Of what make installs. The image has packages of its base and of Ubuntu besides, and `.venv` may
have a borrowed torch, or one in its CPU build: neither is in constraints.txt, nor here.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fixtures.paths import CHECKOUT, version
from fixtures.setup import lock
from fixtures.setup.lock import Package


def component(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{package.version}"
    hashes = [{"alg": "SHA-256", "content": h.partition(":")[2]} for h in package.hashes]
    properties = [{"name": "section", "value": package.section}]
    if package.marker:
        properties.append({"name": "marker", "value": package.marker})
    return {
        "type": "library", "bom-ref": purl, "name": package.name, "version": package.version,
        "scope": "required" if package.section == "run" else "optional", "hashes": hashes,
        "purl": purl, "properties": properties,
    }  # fmt: skip


def made(packages: Sequence[Package]) -> dict[str, Any]:
    """Return the bill; the same packages give the same one."""
    name = "".join(package.text for package in packages)
    suite = {"type": "application", "name": "gpu-cluster-acceptance", "version": version()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "version": 1,
        "metadata": {"component": suite},
        "components": [component(package) for package in packages],
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.sbom", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    out = parser.parse_args(argv).out
    text = json.dumps(made(lock.read(CHECKOUT)), indent=1) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
