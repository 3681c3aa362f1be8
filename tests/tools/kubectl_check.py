"""Whether kubectl itself finds a manifest valid, without a cluster.

python -m tests.tools.kubectl_check [FILE]

Runs `kubectl apply --dry-run=client --validate=strict`. It asks an API server for what there is and
for the schemas, even where nothing is to be applied: without one it ends with "connection refused".
The server here answers that, and nothing else: the kinds that are SERVED, and the schemas of
Kubernetes' own release (from kubernetes-validate), in the form that kubectl reads, which is
gnostic's OpenAPIv2.proto. It does not offer to check fields itself, so kubectl does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.tools.debian_root import CHECKOUT

MANIFEST = CHECKOUT / "deploy" / "kubernetes" / "acceptance.yaml"
RELEASE = "1.37"
"""Of Kubernetes, as the other check of the manifest has it."""
SERVED = {
    "v1": {"Service": "services", "PersistentVolumeClaim": "persistentvolumeclaims"},
    "batch/v1": {"Job": "jobs"},
}  # fmt: skip
"""Version of an API -> kind -> its name in addresses."""
PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def definitions(release: str = RELEASE) -> dict[str, Any]:
    """Return the schemas of a release: name -> schema."""
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    text = (folder / f"v{release}.0-local" / "_definitions.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["$defs"]
    return found


# --- OpenAPIv2.proto: numbers of the fields, https://github.com/google/gnostic


def field(number: int, value: bytes | str | bool) -> bytes:
    """Return a field of a protobuf message: bytes are a message of its own."""
    if isinstance(value, bool):
        return _varint(number << 3) + _varint(int(value))
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def schema(of: Mapping[str, Any]) -> bytes:
    """Return a JSON Schema as OpenAPI 2's message Schema."""
    out = b""
    if ref := of.get("$ref"):
        return field(1, f"#/definitions/{ref.rpartition('/')[2]}")
    out += b"".join(field(19, name) for name in of.get("required", ()))
    if isinstance(values := of.get("additionalProperties"), Mapping):
        out += field(21, field(1, schema(values)))
    if kinds := of.get("type"):
        # That a value may be null is not a type of OpenAPI 2.
        words = [kinds] if isinstance(kinds, str) else [k for k in kinds if k != "null"]
        out += field(22, b"".join(field(1, word) for word in words[:1]))
    if items := of.get("items"):
        out += field(23, field(1, schema(items)))
    if properties := of.get("properties"):
        out += field(25, b"".join(field(1, _named(n, s)) for n, s in properties.items()))
    if form := of.get("format"):
        out += field(2, form)
    for name, value in of.items():
        if name.startswith("x-kubernetes-"):
            out += field(31, field(1, name) + field(2, field(2, json.dumps(value))))
    return out


def _named(name: str, of: Mapping[str, Any]) -> bytes:
    return field(1, name) + field(2, schema(of))


def document(schemas: Mapping[str, Any]) -> bytes:
    """Return all schemas as OpenAPI 2's message Document."""
    made = b"".join(field(1, _named(name, of)) for name, of in schemas.items())
    info = field(1, "Kubernetes") + field(2, f"v{RELEASE}.0")
    return field(1, "2.0") + field(2, info) + field(8, b"") + field(9, made)


# --- the server


def answers(schemas: Mapping[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Return path -> type and content."""
    found: dict[str, Any] = {
        "/version": {"major": RELEASE.split(".")[0], "minor": RELEASE.split(".")[1],
                     "gitVersion": f"v{RELEASE}.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    }  # fmt: skip
    for version, kinds in SERVED.items():
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind,
             "verbs": ["create", "get", "patch"]}
            for kind, name in kinds.items()
        ]  # fmt: skip
        if "/" in version:
            shown = {"groupVersion": version, "version": version.partition("/")[2]}
            found["/apis"]["groups"].append({"name": version.partition("/")[0], "versions": [shown],
                                             "preferredVersion": shown})  # fmt: skip
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found[path] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                       "resources": resources}  # fmt: skip
    plain = {path: ("application/json", json.dumps(data).encode()) for path, data in found.items()}
    return {**plain, "/openapi/v2": (PROTOBUF, document(schemas))}


@contextlib.contextmanager
def serving(schemas: Mapping[str, Any]) -> Iterator[str]:
    """Serve what kubectl asks for, on this host alone; yield the address."""
    known = answers(schemas)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = known.get(self.path.partition("?")[0], ("", b""))
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                       "reason": "NotFound", "message": f"{self.path} is not here"}  # fmt: skip
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind or "application/json")
            self.end_headers()
            self.wfile.write(content if kind else json.dumps(missing).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def check(text: str, kubectl: str = "kubectl") -> tuple[int, str]:
    """Return the exit status of kubectl, and what it said of a manifest."""
    with serving(definitions()) as address, tempfile.TemporaryDirectory() as home:
        argv = [kubectl, f"--server={address}", f"--cache-dir={home}", "apply", "--dry-run=client",
                "--validate=strict", "--filename=-"]  # fmt: skip
        env = {"HOME": home, "PATH": "/usr/bin:/bin", "KUBECONFIG": "/dev/null"}
        done = subprocess.run(argv, input=text, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main(argv: Sequence[str] | None = None) -> int:
    """Return kubectl's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.kubectl_check", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("file", nargs="?", type=Path, default=MANIFEST)
    options = parser.parse_args(argv)
    if (kubectl := shutil.which("kubectl")) is None:
        print("kubectl_check: kubectl is not on this host", file=sys.stderr)
        return 1
    status, said = check(options.file.read_text(encoding="utf-8"), kubectl)
    print(said, end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
