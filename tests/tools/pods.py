"""The pods of deploy/kubernetes/acceptance.yaml, run by podman as a cluster would run them.

python -m tests.tools.pods --image NAME --out DIR [--kill K] [--without-volume K]

Makes the pods that the Job's template describes, one for each completion, with what Kubernetes adds
to them: index, host name, the headless Service's names in their hosts file, the claim's volume.
They are played by `podman kube play` on a network of their own; podman before 5.0 takes no Job.
What one host without GPUs cannot give is changed, and nothing else: STANDS_IN. The records are
copied into DIR; what each pod ended with is printed. It needs root, podman and the image.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.tools.debian_root import CHECKOUT

MANIFEST = CHECKOUT / "deploy" / "kubernetes" / "acceptance.yaml"
STANDS_IN = {
    "GPUS_PER_NODE": "1", "OPTIONS": "--cpu", "NODE_WORKLOADS": "inventory environment",
    "CLUSTER_WORKLOADS": "connectivity allreduce_ring training_ddp",
}  # fmt: skip
"""Variables of the container that are changed; image and resources are, too."""
SUBNET = "10.213.37"
DEADLINE_S = 300
GRACE_S = 30
"""Kubernetes' default between SIGTERM and SIGKILL."""
LIMIT = 16384
"""Of open files and processes: podman asks for a million, which takes a right to raise limits."""


class PodError(Exception):
    """The pods cannot be run; one line for the user."""


def by_kind(text: str) -> dict[str, Any]:
    """Return the documents of a manifest: kind -> document."""
    return {d["kind"]: d for d in yaml.safe_load_all(text)}


def addresses(documents: Mapping[str, Any]) -> dict[str, str]:
    """Return what the Service's names lead to, as Kubernetes' DNS has it: name -> address.

    A pod has a name of its own where it has a subdomain, a headless Service of that name selects
    it, and it is found before it is ready.
    """
    job, service = documents["Job"], documents["Service"]
    template = job["spec"]["template"]
    chosen = service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    if not chosen or service["spec"].get("clusterIP") != "None":
        return {}
    if not service["spec"].get("publishNotReadyAddresses"):
        return {}
    if template["spec"].get("subdomain") != service["metadata"]["name"]:
        return {}
    return {
        f"{job['metadata']['name']}-{index}.{service['metadata']['name']}": address(index)
        for index in range(job["spec"]["completions"])
    }


def address(index: int) -> str:
    """Return the address of a pod."""
    return f"{SUBNET}.{10 + index}"


def pod(
    documents: Mapping[str, Any], index: int, image: str, unique: str, *, volume: bool = True
) -> dict[str, Any]:
    """Return the pod of an index; without `volume` nothing is mounted at the claim's place."""
    job = documents["Job"]
    spec = copy.deepcopy(job["spec"]["template"]["spec"])
    name = f"{job['metadata']['name']}-{index}"
    spec |= {"hostname": name, "hostAliases": [
        {"ip": ip, "hostnames": [host]} for host, ip in addresses(documents).items()
    ]}  # fmt: skip
    del spec["affinity"]  # both are on this host
    (container,) = spec["containers"]
    container |= {"image": image, "imagePullPolicy": "Never"}
    del container["resources"]
    for variable in container["env"]:
        variable["value"] = STANDS_IN.get(variable["name"], variable["value"])
    container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    for claim in claims:
        if not volume:
            spec["volumes"].remove(claim)
            mounts = container["volumeMounts"]
            container["volumeMounts"] = [m for m in mounts if m["name"] != claim["name"]]
        elif claim["persistentVolumeClaim"]["claimName"] == claim_name(documents):
            claim["persistentVolumeClaim"]["claimName"] += unique
    labels = job["spec"]["template"]["metadata"]["labels"]
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": f"{name}{unique}", "labels": labels}}  # fmt: skip


def claim_name(documents: Mapping[str, Any]) -> str:
    """Return the name of the claim that the manifest makes."""
    return str(documents["PersistentVolumeClaim"]["metadata"]["name"])


def claim(documents: Mapping[str, Any], unique: str) -> dict[str, Any]:
    """Return the claim, whose volume the pods' group may write to, as Kubernetes makes it."""
    made = copy.deepcopy(documents["PersistentVolumeClaim"])
    group = str(documents["Job"]["spec"]["template"]["spec"]["securityContext"]["fsGroup"])
    made["metadata"] = {
        "name": claim_name(documents) + unique,
        "annotations": {"volume.podman.io/uid": group, "volume.podman.io/gid": group},
    }
    return made


# --- podman


def settings() -> str:
    """Return podman's settings for this host: limits that it may set, a runtime that runs here."""
    given = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        hard = resource.getrlimit(number)[1]
        most = LIMIT if hard == resource.RLIM_INFINITY else min(hard, LIMIT)
        given.append(f"{name}={most}:{most}")
    # crun refuses a host that has control groups of both versions; runc does not.
    hybrid = Path("/sys/fs/cgroup/unified").is_dir()
    runtime = 'runtime = "runc"\n' if hybrid else ""
    manager = 'cgroup_manager = "cgroupfs"\n'
    return f"[containers]\ndefault_ulimits = {json.dumps(given)}\n[engine]\n{manager}{runtime}"


@dataclass(frozen=True)
class Podman:
    """podman with settings for this host."""

    folder: Path

    def __call__(self, *argv: str, check: bool = True) -> str:
        env = {**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf")}
        done = subprocess.run(
            ["podman", *argv], env=env, cwd=self.folder, capture_output=True, text=True
        )
        if check and done.returncode:
            raise PodError(f"`podman {' '.join(argv)}` failed: {done.stderr.strip()}")
        return done.stdout + done.stderr

    def play(self, document: Mapping[str, Any], *more: str) -> None:
        """Play one document."""
        file = self.folder / f"{document['kind']}-{document['metadata']['name']}.yaml"
        file.write_text(yaml.safe_dump(dict(document)))
        self("kube", "play", *more, str(file))


@contextlib.contextmanager
def ready(podman: Podman, documents: Mapping[str, Any], unique: str) -> Iterator[str]:
    """Yield the name of the network; claim, network and pods are gone afterwards."""
    network = f"acceptance{unique}"
    podman("network", "create", "--disable-dns", "--subnet", f"{SUBNET}.0/24", network)
    try:
        podman.play(claim(documents, unique))
        yield network
    finally:
        for name in podman("pod", "ps", "--format", "{{.Name}}").split():
            if name.endswith(unique):
                podman("pod", "rm", "--force", "--time=0", name, check=False)
        podman("volume", "rm", "--force", claim_name(documents) + unique, check=False)
        podman("network", "rm", "--force", network, check=False)


@dataclass(frozen=True)
class Ended:
    """What a pod ended with; `status` is None where it still ran at the deadline."""

    status: int | None
    said: str


def run_pods(
    out: Path, image: str, *, text: str = "", kill: int | None = None,
    without_volume: int | None = None, deadline_s: float = DEADLINE_S,
) -> list[Ended]:  # fmt: skip
    """Run the pods of a manifest to their end, copy the records; return what each ended with.

    kill: the index of the pod that is killed once it has begun what both do together.
    """
    documents = by_kind(text or MANIFEST.read_text(encoding="utf-8"))
    unique = f"-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory() as temporary:
        podman = Podman(Path(temporary))
        (podman.folder / "containers.conf").write_text(settings())
        with ready(podman, documents, unique) as network:
            count = documents["Job"]["spec"]["completions"]
            names = []
            for index in range(count):
                made = pod(documents, index, image, unique, volume=index != without_volume)
                podman.play(made, "--network", network, "--ip", address(index))
                (container,) = made["spec"]["containers"]
                names.append(f"{made['metadata']['name']}-{container['name']}")
            where = podman("volume", "inspect", "--format", "{{.Mountpoint}}",
                           claim_name(documents) + unique).strip()  # fmt: skip
            records = Path(where) / "acceptance"
            last = documents["Job"]["spec"]["backoffLimit"] == 0
            ended = wait_for(podman, names, records, kill, deadline_s, ends_all=last)
            if records.exists():
                subprocess.run(["cp", "-rT", str(records), str(out)], check=True)
            return ended


def wait_for(
    podman: Podman, names: Sequence[str], records: Path, kill: int | None, deadline_s: float,
    *, ends_all: bool,
) -> list[Ended]:  # fmt: skip
    """Wait until all containers have ended; kill one of them meanwhile, where it is asked for.

    ends_all: a pod that fails ends the others, as the Job's controller does without a second try.
    """
    until = time.monotonic() + deadline_s
    states: list[tuple[str, int]] = []
    while time.monotonic() < until:
        shown = json.loads(podman("inspect", *names))
        states = [(c["State"]["Status"], c["State"]["ExitCode"]) for c in shown]
        if all(status == "exited" for status, _ in states):
            break
        if ends_all and any(status == "exited" and code for status, code in states):
            # Of one that has ended already nothing changes.
            podman("stop", f"--time={GRACE_S}", *names, check=False)
            ends_all = False
        if kill is not None and (records / "cluster").exists():
            podman("kill", names[kill], check=False)
            kill = None
        time.sleep(0.5)
    return [
        Ended(code if status == "exited" else None, podman("logs", name, check=False))
        for name, (status, code) in zip(names, states, strict=True)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all pods ended with 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.pods", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--image", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--kill", type=int, metavar="K", help="this pod, in the common part")
    parser.add_argument("--without-volume", type=int, metavar="K", help="for this pod")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        ended = run_pods(options.out, options.image, kill=options.kill,
                         without_volume=options.without_volume)  # fmt: skip
    except PodError as error:
        print(f"pods: {error}", file=sys.stderr)
        return 1
    for index, of in enumerate(ended):
        print(f"--- pod {index}: ended with {of.status}\n{of.said}")
    return int(any(of.status != 0 for of in ended))


if __name__ == "__main__":
    sys.exit(main())
