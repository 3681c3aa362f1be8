"""What ships: workflows, image, Kubernetes Job, Terraform: parsed, and run where it can be."""

# Length: all that ships is one folder, and each part of it has a few checks

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path

import hcl2
import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from fixtures.entry import describe, module_of
from fixtures.setup import lock
from tests.selftests.containers import shipped_options
from tests.selftests.sandboxes import SHIPPED
from tests.selftests.support import CHECKOUT, replay
from tests.tools import cloud_nodes, sbom

pytestmark = pytest.mark.cpu

DEPLOY = CHECKOUT / "deploy"
WORKFLOW = CHECKOUT / ".github" / "workflows" / "ci.yml"
MANIFEST = DEPLOY / "kubernetes" / "acceptance.yaml"


def targets() -> set[str]:
    """The targets of the Makefile."""
    text = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


# --- workflows


def jobs() -> dict:
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]


def test_the_workflow_obeys_githubs_schema_and_a_broken_one_does_not(tmp_path):
    def check(path: Path) -> int:
        argv = ["check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
        return subprocess.run([sys.executable, "-m", *argv], capture_output=True).returncode

    assert check(WORKFLOW) == 0
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOW.read_text().replace("timeout-minutes: 15", "timeout-minuets: 15"))
    assert check(broken) != 0


def test_every_action_is_pinned_by_commit_and_every_job_ends_by_itself():
    for name, job in jobs().items():
        assert job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_only_publish_and_release_may_write_and_neither_runs_for_a_pull_request():
    whole = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    assert whole["permissions"] == {"contents": "read"}
    writing = {n: j["permissions"] for n, j in jobs().items() if "permissions" in j}
    assert writing == {
        "publish": {
            "contents": "read", "packages": "write", "id-token": "write", "attestations": "write",
        },
        "release": {"contents": "write"},
    }  # fmt: skip
    assert "github.event_name == 'push'" in jobs()["publish"]["if"]
    assert jobs()["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert jobs()["release"]["needs"] == ["publish"]
    assert "pull_request_target" not in WORKFLOW.read_text(encoding="utf-8")
    for job in jobs().values():
        for step in job["steps"]:
            # What others name (branches, titles) reaches a shell as a variable, never as its text.
            assert "${{" not in step.get("run", ""), step


def test_the_pythons_and_the_tags_of_the_image():
    pythons = jobs()["cpu"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert project["classifiers"] == [f"Programming Language :: Python :: {p}" for p in pythons]
    (push,) = [s["run"] for s in jobs()["publish"]["steps"] if "docker push" in s.get("run", "")]
    # It reads what is piped into it, as docker does: else the writer may find the pipe closed.
    stand_in = 'docker() { echo docker "$@"; case $1 in login) cat >/dev/null; esac; }\n'
    script = stand_in + push
    for ref, tags in (
        ("refs/heads/main", ["sha-0123456", "latest"]),
        ("refs/tags/v1.0.0", ["sha-0123456", "v1.0.0"]),
    ):
        env = {"REPOSITORY": "Owner/Name", "REF": ref, "SHA": "0123456789", "TOKEN": "t",
               "ACTOR": "a", "GITHUB_STEP_SUMMARY": os.devnull, "GITHUB_OUTPUT": os.devnull,
               "PATH": os.environ["PATH"]}  # fmt: skip
        said = subprocess.run(
            ["bash", "-c", script], env=env, capture_output=True, text=True, check=True
        )
        pushed = [n.split()[-1] for n in said.stdout.splitlines() if n.startswith("docker push")]
        assert pushed == [f"ghcr.io/owner/name:{tag}" for tag in tags]


def test_the_make_targets_that_ci_and_the_image_call_exist():
    named = []
    for job in jobs().values():
        named += re.findall(r"\bmake ([a-z-]+)", " ".join(s.get("run", "") for s in job["steps"]))
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    named += re.findall(r"(?:RUN|`)\s?make ([a-z-]+)", dockerfile)
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    named += re.findall(r"(?:`|    )make ([a-z-]+)", readme)
    assert len(named) > 6
    assert set(named) <= targets(), set(named) - targets()


# --- image


NEEDED = {
    "python3": "python3", "python3-venv": "fixtures/setup/environment.py: venv",
    "make": "Makefile: accept:", "g++": "training/model.py: torch.compile",
    "python3-dev": "training/model.py: torch.compile",
    "libibverbs1": "fixtures/workloads/infiniband/", "ibverbs-providers": "deploy/kubernetes/",
    "rdma-core": "deploy/kubernetes/",
    "openssh-client": "reports/handover/signature.py: ssh-keygen",
}  # fmt: skip
"""Package of the target `node` -> who needs it: a file, and a word in it."""
NEEDED_BY_TESTS = {"git": "tests/tools/debian_root.py: git", "procps": ""}
TARGETS = ("node", "test")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Target -> its steps."""
    with tempfile.TemporaryDirectory() as folder:
        parser = DockerfileParser(path=str(Path(folder) / "Dockerfile"))
        parser.content = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
        steps = [(s["instruction"], s["value"]) for s in parser.structure]
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, value in steps:
        if instruction == "FROM":
            found[value.split()[-1]] = []
        if found and instruction != "COMMENT":
            found[[*found][-1]].append((instruction, value))
    return found


def packages(steps: list[tuple[str, str]]) -> set[str]:
    """What the steps install."""
    lines = [v for i, v in steps if i == "RUN" and "apt-get install" in v]
    words = " ".join(re.findall(r"apt-get install (.+?) &&", line)[0] for line in lines)
    return {w for w in words.split() if not w.startswith("-")}


def test_the_image_is_on_cuda_and_is_nobody_s_root():
    assert tuple(stages()) == TARGETS
    base, *_ = stages()["node"][0][1].split()
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-base-ubuntu[\d.]+@sha256:[0-9a-f]{64}", base)
    assert stages()["test"][0] == ("FROM", "node AS test"), "tried is what is shipped"
    for steps in stages().values():
        users = [v for i, v in steps if i == "USER"]
        assert users[-1] == "acceptance"
        last = max(k for k, s in enumerate(steps) if s == ("USER", "acceptance"))
        assert all("apt-get" not in v for _, v in steps[last:])
        assert not [i for i, _ in steps if i == "ADD"]
        for copied in [v for i, v in steps if i == "COPY"]:
            assert "--chown=acceptance:acceptance" in copied
            for source in [w for w in shlex.split(copied)[:-1] if not w.startswith("--")]:
                assert source == "." or list(CHECKOUT.glob(source)), source
    assert ("CMD", '["make", "accept"]') in stages()["node"]
    assert any("--uid 10001 " in v for _, v in stages()["node"])
    assert pod()["securityContext"]["runAsUser"] == 10001


def test_the_image_installs_what_is_needed_and_nothing_else():
    node, test = stages()["node"], stages()["test"]
    assert packages(node) == set(NEEDED)
    assert packages(test) == set(NEEDED_BY_TESTS)
    for package, who in {**NEEDED, **NEEDED_BY_TESTS}.items():
        file, _, word = who.partition(": ")
        place = CHECKOUT / file
        if "/" in file or word:
            assert place.exists(), package
        if word:
            assert word in place.read_text(encoding="utf-8"), package


def test_what_a_node_pulls_has_all_that_a_run_needs_and_no_test_tools():
    copied = [w for i, v in stages()["node"] if i == "COPY" for w in shlex.split(v)[1:-1]]
    wanted = {name for name in SHIPPED if name != "tests"} | {"tests/*.py", "Makefile"}
    assert wanted - {*copied} == set()
    assert not [w for w in copied if w in (".", "tests") or "selftests" in w or "tools" in w]
    (setup,) = [v for i, v in stages()["node"] if i == "RUN" and v.startswith("make ")]
    assert setup == "make setup TORCH=own TORCH_INDEX=${TORCH_INDEX}"
    (more,) = [v for i, v in stages()["test"] if i == "RUN" and v.startswith("make ")]
    assert more == "make setup-dev"
    assert ("COPY", "--chown=acceptance:acceptance . .") in stages()["test"]


def test_the_set_up_starts_with_what_the_image_copies_before_it(tmp_path):
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").partition("RUN make setup ")[0]
    for line in re.findall(r"^COPY --chown=\S+ (.+)$", text, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            into = tmp_path / target
            if (CHECKOUT / source).is_dir():
                shutil.copytree(CHECKOUT / source, into)
            else:
                into = into / Path(source).name if target.endswith("/") else into
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(CHECKOUT / source, into)
    argv = [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, '.'); "
            "from fixtures.setup import command; from fixtures.setup.install import lock; "
            "print(len(lock.read(command.Environment().checkout)))"]  # fmt: skip
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_the_command_for_pyxis_fits_the_image():
    """tests/selftests/whole_runs/test_container_runs.py runs it."""
    options = shipped_options((DEPLOY / "README.md").read_text(encoding="utf-8"))
    (folder,) = [v for i, v in stages()["node"] if i == "WORKDIR"]
    assert options == [
        f"--node-python={folder}/.venv/bin/python", "--srun-args=--container-image=IMAGE",
        "--srun-args=--container-mounts=$PWD:$PWD",
    ]  # fmt: skip
    assert any(v.startswith(f"PATH={folder}/.venv/bin:") for i, v in stages()["node"] if i == "ENV")


def test_nothing_of_a_run_or_of_git_gets_into_the_image():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".venv", "reports/runs"} <= set(ignored)


# --- Kubernetes


def documents() -> dict[str, dict]:
    found = list(yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")))
    return {document["kind"]: document for document in found}


def pod() -> dict:
    return documents()["Job"]["spec"]["template"]["spec"]


def test_the_manifest_obeys_kubernetes_schemas_strictly():
    for document in documents().values():
        kubernetes_validate.validate(document, "1.37", strict=True)
    broken = documents()["Job"]
    broken["spec"]["completionmode"] = broken["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.37", strict=True)


def test_two_pods_on_two_nodes_meet_at_the_first_one_s_name():
    job, service = documents()["Job"]["spec"], documents()["Service"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert job["backoffLimit"] == 0
    labels = job["template"]["metadata"]["labels"]
    (rule,) = pod()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pod()["subdomain"] == service["metadata"]["name"]
    given = environment()
    assert given["MASTER_ADDR"] == f"{documents()['Job']['metadata']['name']}-0.acceptance"
    limits = pod()["containers"][0]["resources"]["limits"]
    assert str(limits["nvidia.com/gpu"]) == given["GPUS_PER_NODE"]
    assert limits["rdma/ib"] == 8
    claim = documents()["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert pod()["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    mount = pod()["containers"][0]["volumeMounts"][0]["mountPath"]
    assert given["OUT"].startswith(f"{mount}/")


def test_the_ports_of_the_job_are_numbers():
    assert re.fullmatch(r"[1-9]\d{3,4}", environment()["MASTER_PORT"])
    assert int(environment()["MASTER_PORT"]) < 32768, "no port that the kernel gives to anybody"


def environment() -> dict[str, str]:
    return {e["name"]: e["value"] for e in pod()["containers"][0]["env"]}


def test_the_pods_have_no_token_and_the_profile_of_the_runtime():
    assert pod()["automountServiceAccountToken"] is False
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod()["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert re.search(r":\w+@sha256:", container["image"])


def test_the_workloads_that_the_job_names_exist():
    names = [*environment()["NODE_WORKLOADS"].split(), *environment()["CLUSTER_WORKLOADS"].split()]
    assert len(names) > 20
    for name in names:
        assert describe(module_of(name)).small is None


@pytest.mark.slow
@pytest.mark.waits("two torchruns meet and part, by torchrun's own intervals")
def test_the_command_of_the_job_runs_and_the_suite_judges_its_records(tmp_path):
    """The container's own command, for both indices at once, on the CPU of this machine."""
    (container,) = pod()["containers"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gone = ("PYTEST_", "SLURM_")
    ours = {
        **{k: v for k, v in os.environ.items() if not k.startswith(gone)},
        **environment(),
        "PATH": f"{CHECKOUT / '.venv' / 'bin'}:{os.environ['PATH']}",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GPUS_PER_NODE": "1",
        "OUT": str(tmp_path), "OPTIONS": "--cpu", "NODE_WORKLOADS": "inventory environment",
        "CLUSTER_WORKLOADS": "connectivity allreduce_ring training_ddp", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    pods = [
        subprocess.Popen(
            [*container["command"], *container["args"]], cwd=CHECKOUT, text=True,
            env={**ours, "JOB_COMPLETION_INDEX": str(k)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for k in (0, 1)
    ]  # fmt: skip
    said = [process.communicate(timeout=900)[0] for process in pods]
    assert [process.returncode for process in pods] == [0, 0], "\n".join(said)
    assert (tmp_path / "node-0" / "run.json").exists()
    for name, expected in (
        ("node-1", {"environment"}),
        ("cluster", {"connectivity", "training_ddp"}),
    ):
        status, verdict = replay(tmp_path / name, tmp_path / f"judged-{name}", "-m", "multinode")
        measured = [c for c in verdict["criteria"] if c["outcome"] in ("PASS", "FAIL")]
        assert expected <= {c["criterion"].partition(".")[0] for c in measured}, verdict
        assert verdict["counts"]["not_measured"] == 0, verdict["criteria"]
        assert verdict["verdict"] in ("DEMONSTRATION", "REJECTED")
        assert status == verdict["exit_status"]


# --- Terraform

TERRAFORM = DEPLOY / "terraform"
TEMPLATES = ("login.yaml.tftpl", "gpu.yaml.tftpl")


def blocks(kind: str) -> dict:
    found: dict = {}
    for path in sorted(TERRAFORM.glob("*.tf")):
        for block in hcl2.loads(path.read_text(encoding="utf-8")).get(kind, []):
            for name, body in block.items():
                found.setdefault(name.strip('"'), []).append(body)
    return found


def test_one_login_node_and_two_gpu_nodes():
    (first, *more) = blocks("resource")["openstack_compute_instance_v2"]
    instances = {k.strip('"'): v for block in (first, *more) for k, v in block.items()}
    assert set(instances) - {"__is_block__"} == {"login", "gpu"}
    assert instances["gpu"]["count"] == "${var.gpu_nodes}"
    assert "count" not in instances["login"]
    (nodes,) = blocks("variable")["gpu_nodes"]
    assert nodes["default"] == 2
    (ssh,) = blocks("variable")["ssh_from"]
    assert ssh["default"] == []


def test_every_variable_is_declared_described_and_used():
    text = (TERRAFORM / "main.tf").read_text(encoding="utf-8")
    declared = blocks("variable")
    assert set(re.findall(r"\bvar\.(\w+)", text)) == set(declared)
    assert all("description" in body for (body,) in declared.values())


def given() -> dict:
    return cloud_nodes.given(
        login_name="a-login", gpu_names=["a-gpu00", "a-gpu01"], gpus_per_node=8, gpu_cpus=64,
        gpu_memory_mb=900000,
    )  # fmt: skip


def rendered(name: str) -> dict:
    """A template as Terraform would fill it in."""
    text = (TERRAFORM / name).read_text(encoding="utf-8")
    assert text.startswith("#cloud-config\n")
    return yaml.safe_load(cloud_nodes.rendered(text, given()))


def test_the_values_that_the_templates_take_are_those_that_main_tf_gives():
    text = (TERRAFORM / "main.tf").read_text(encoding="utf-8")
    shared = re.search(r"shared = \{(.+?)\n  \}", text, re.DOTALL)
    assert shared is not None
    assert set(re.findall(r"^\s+(\w+)\s+=", shared[1], re.MULTILINE)) == set(given())


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_nodes_get_the_same_slurm_with_fenced_gpus(name):
    files = {f["path"]: f["content"] for f in rendered(name)["write_files"]}
    other = {f["path"]: f["content"] for f in rendered(TEMPLATES[0])["write_files"]}
    conf = files["/etc/slurm/slurm.conf"]
    assert conf == other["/etc/slurm/slurm.conf"]
    lines = [dict(w.split("=", 1) for w in line.split()) for line in conf.splitlines()]
    nodes = [line for line in lines if "NodeName" in line]
    assert [(n["NodeName"], n["NodeAddr"]) for n in nodes] == list(
        zip(given()["gpu_names"], given()["gpu_ips"], strict=True)
    )
    assert {n["Gres"] for n in nodes} == {"gpu:8"}
    (partition,) = [line for line in lines if "PartitionName" in line]
    assert partition["Nodes"].split(",") == given()["gpu_names"]
    assert "ConstrainDevices=yes" in files["/etc/slurm/cgroup.conf"]


def test_a_gpu_node_names_each_gpu_and_mounts_what_the_login_node_exports():
    gpu, login = rendered("gpu.yaml.tftpl"), rendered("login.yaml.tftpl")
    files = {f["path"]: f["content"] for f in gpu["write_files"]}
    devices = [line.split("=")[-1] for line in files["/etc/slurm/gres.conf"].splitlines()]
    assert devices == [f"/dev/nvidia{k}" for k in range(8)]
    assert gpu["mounts"][0][:2] == ["10.20.0.5:/shared", "/shared"]
    exports = {f["path"]: f["content"] for f in login["write_files"]}["/etc/exports"]
    assert exports.startswith("/shared 10.20.0.0/24(")
    assert "slurmctld" in login["packages"]
    assert "slurmd" in gpu["packages"]


NEEDS = {
    "exportfs": "nfs-kernel-server", "nfs-kernel-server": "nfs-kernel-server",
    "nfs4": "nfs-common", "munge": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd",
}  # fmt: skip
"""A word of what a template runs or mounts -> the Debian package that has it."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_runs_and_mounts_is_installed(name):
    made = rendered(name)
    lines = [*made["runcmd"], *(" ".join(mount) for mount in made.get("mounts", ()))]
    words = {word for line in lines for word in re.findall(r"[\w-]+", line)}
    needed = {package for word, package in NEEDS.items() if word in words}
    # What a GPU node is judged by: training is compiled on it.
    judged = {"gcc", "python3-dev"} if name.startswith("gpu") else set()
    assert needed | judged | {"slurm-client", "python3-venv"} <= {*made["packages"]}
    # What is mounted, or exported, has a place.
    made_here = [w for line in made["runcmd"] for w in re.findall(r"^install -d .*?(/\S+)", line)]
    assert "/shared" in made_here


def test_no_secret_is_in_what_the_metadata_service_shows():
    main = (TERRAFORM / "main.tf").read_text(encoding="utf-8")
    assert "random_password" not in main
    gpu, login = rendered("gpu.yaml.tftpl"), rendered("login.yaml.tftpl")
    for of in (gpu, login):
        assert [f["path"] for f in of["write_files"] if "munge" in f["path"]] == []
    exports = {f["path"]: f["content"] for f in login["write_files"]}["/etc/exports"]
    lines = [line for line in exports.splitlines() if line.startswith("/srv/munge ")]
    assert [line.split()[1].partition("(")[0] for line in lines] == given()["gpu_ips"]
    assert all("ro," in line and "secure" in line for line in lines)
    assert "install -d -m 0700 /srv/munge" in login["runcmd"]
    made = [k for k, line in enumerate(login["runcmd"]) if "/dev/urandom" in line]
    assert (
        made[0]
        < login["runcmd"].index("exportfs -ra")
        < login["runcmd"].index("systemctl enable --now munge")
    )
    fetched = [k for k, line in enumerate(gpu["runcmd"]) if "/srv/munge" in line]
    assert fetched[0] < gpu["runcmd"].index("systemctl enable --now munge")


# --- scanning


SCANNING = WORKFLOW.with_name("security.yml")


def test_code_and_dependencies_are_scanned_by_pinned_actions():
    whole = yaml.safe_load(SCANNING.read_text(encoding="utf-8"))
    assert whole["permissions"] == {"contents": "read"}
    assert set(whole["jobs"]) == {"code", "dependencies", "known-faults"}
    for job in whole["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+(/[\w-]+)?@[0-9a-f]{40}", step["uses"])
            assert "${{" not in step.get("run", ""), step
    bot = yaml.safe_load((CHECKOUT / ".github" / "dependabot.yml").read_text())
    assert {u["package-ecosystem"] for u in bot["updates"]} == {"pip", "github-actions", "docker"}


def test_the_bill_of_materials_has_every_package_of_constraints(tmp_path):
    out = tmp_path / "sbom.cdx.json"
    assert sbom.main(["--out", str(out)]) == 0
    made = json.loads(out.read_text())
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    packages = lock.read(CHECKOUT)
    assert [c["purl"] for c in made["components"]] == [
        f"pkg:pypi/{p.name}@{p.version}" for p in packages
    ]
    first = made["components"][0]
    assert [h["content"] for h in first["hashes"]] == [
        h.removeprefix("sha256:") for h in packages[0].hashes
    ]
    assert sbom.main(["--out", str(out)]) == 0
    assert json.loads(out.read_text()) == made, "the same constraints give the same bytes"


# --- a change of what ships is seen

CHANGED = [
    ("Dockerfile", "python3-venv ", "", test_the_image_installs_what_is_needed_and_nothing_else),
    ("Dockerfile", "libibverbs1 ", "", test_the_image_installs_what_is_needed_and_nothing_else),
    ("Dockerfile", " reports reports", " training reports",
     test_what_a_node_pulls_has_all_that_a_run_needs_and_no_test_tools),
    ("Dockerfile", "FROM node AS test", "FROM debian AS test",
     test_the_image_is_on_cuda_and_is_nobody_s_root),
    ("Dockerfile", "USER acceptance\nRUN make setup-dev", "RUN make setup-dev",
     test_the_image_is_on_cuda_and_is_nobody_s_root),
    ("Dockerfile", "--uid 10001", "--uid 1001", test_the_image_is_on_cuda_and_is_nobody_s_root),
    ("Dockerfile", "WORKDIR /app", "WORKDIR /srv", test_the_command_for_pyxis_fits_the_image),
    ("README.md", " --srun-args=--container-mounts=$PWD:$PWD", "",
     test_the_command_for_pyxis_fits_the_image),
    ("kubernetes/acceptance.yaml", 'value: "29500"', 'value: "29501 "',
     test_the_ports_of_the_job_are_numbers),
    ("kubernetes/acceptance.yaml", "acceptance-0.acceptance", "acceptance-1.acceptance",
     test_two_pods_on_two_nodes_meet_at_the_first_one_s_name),
    ("kubernetes/acceptance.yaml", "subdomain: acceptance", "subdomain: other",
     test_two_pods_on_two_nodes_meet_at_the_first_one_s_name),
    ("kubernetes/acceptance.yaml", "claimName: acceptance", "claimName: other",
     test_two_pods_on_two_nodes_meet_at_the_first_one_s_name),
    ("kubernetes/acceptance.yaml", "memory_whole\n", "memory_hole\n",
     test_the_workloads_that_the_job_names_exist),
    ("terraform/gpu.yaml.tftpl", ":/shared", ":/scratch",
     test_a_gpu_node_names_each_gpu_and_mounts_what_the_login_node_exports),
    ("terraform/gpu.yaml.tftpl", "[slurmd, ", "[",
     test_a_gpu_node_names_each_gpu_and_mounts_what_the_login_node_exports),
    ("terraform/gpu.yaml.tftpl", ", nfs-common", "",
     partial(test_what_a_template_runs_and_mounts_is_installed, "gpu.yaml.tftpl")),
    ("terraform/gpu.yaml.tftpl", ", gcc", "",
     partial(test_what_a_template_runs_and_mounts_is_installed, "gpu.yaml.tftpl")),
    ("terraform/gpu.yaml.tftpl", "install -d /shared ", "install -d ",
     partial(test_what_a_template_runs_and_mounts_is_installed, "gpu.yaml.tftpl")),
    ("terraform/login.yaml.tftpl", "  - install -d -m 1777 /shared\n", "",
     partial(test_what_a_template_runs_and_mounts_is_installed, "login.yaml.tftpl")),
    ("terraform/login.yaml.tftpl", "exportfs -ra", "exportfs -a",
     test_no_secret_is_in_what_the_metadata_service_shows),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "check"), CHANGED)
def test_a_change_of_what_ships_is_seen(name, old, new, check, tmp_path, monkeypatch):
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy)
    for constant, path in (
        ("DEPLOY", deploy), ("MANIFEST", deploy / "kubernetes" / "acceptance.yaml"),
        ("TERRAFORM", deploy / "terraform"),
    ):  # fmt: skip
        monkeypatch.setattr(sys.modules[__name__], constant, path)
    check()
    text = (deploy / name).read_text(encoding="utf-8")
    assert old in text
    (deploy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises((AssertionError, ImportError, KeyError, ValueError)):
        check()
