"""The Job's pods, run by podman: they meet by the Service's names; what is lost is never good."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.selftests.support import replay
from tests.tools import pods

pytestmark = pytest.mark.cpu

TEXT = pods.MANIFEST.read_text(encoding="utf-8")
IMAGE = os.environ.get("IMAGE") or "gpu-cluster-acceptance"
NAMES = {"acceptance-0.acceptance": "10.213.37.10", "acceptance-1.acceptance": "10.213.37.11"}


def test_the_pods_have_the_names_that_the_service_gives():
    assert pods.addresses(pods.by_kind(TEXT)) == NAMES


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("clusterIP: None", "clusterIP: 10.0.0.1"),
        ("publishNotReadyAddresses: true", "publishNotReadyAddresses: false"),
        ("  selector:\n    app: acceptance", "  selector:\n    app: other"),
        ("subdomain: acceptance", "subdomain: other"),
        ("kind: Job\nmetadata:\n  name: acceptance", "kind: Job\nmetadata:\n  name: other"),
    ],
)
def test_without_the_service_s_names_the_second_pod_cannot_find_the_first(old, new):
    assert old in TEXT
    changed = pods.by_kind(TEXT.replace(old, new, 1))
    (container,) = pods.pod(changed, 1, "image", "-x")["spec"]["containers"]
    given = {v["name"]: v["value"] for v in container["env"]}
    assert given["MASTER_ADDR"] not in pods.addresses(changed)


def test_a_pod_is_the_template_s_and_only_what_one_host_lacks_is_changed():
    documents = pods.by_kind(TEXT)
    template = documents["Job"]["spec"]["template"]["spec"]
    made = pods.pod(documents, 1, "image", "-x")
    kubernetes_validate.validate(made, "1.37", strict=True)
    differs = {k for k in {*template, *made["spec"]} if template.get(k) != made["spec"].get(k)}
    assert differs == {"affinity", "containers", "hostAliases", "hostname", "volumes"}
    (ours,), (theirs,) = made["spec"]["containers"], template["containers"]
    differs = {k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k)}
    assert differs == {"env", "image", "imagePullPolicy", "resources"}
    before = {v["name"]: v["value"] for v in theirs["env"]}
    after = {v["name"]: v["value"] for v in ours["env"]}
    assert after == {**before, **pods.STANDS_IN, "JOB_COMPLETION_INDEX": "1"}
    assert made["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "acceptance-x"}


def test_a_pod_without_its_volume_lacks_nothing_else():
    documents = pods.by_kind(TEXT)
    whole, less = (pods.pod(documents, 0, "i", "-x", volume=v) for v in (True, False))
    assert [v["name"] for v in less["spec"].pop("volumes")] == ["shm"]
    del whole["spec"]["volumes"]
    for made in (whole, less):
        del made["spec"]["containers"][0]["volumeMounts"]
    assert whole == less


def test_a_claim_of_another_name_is_not_mounted_for_it():
    documents = pods.by_kind(TEXT.replace("claimName: acceptance", "claimName: other"))
    volume, *_ = pods.pod(documents, 0, "i", "-x")["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "other"
    assert pods.claim(documents, "-x")["metadata"]["name"] == "acceptance-x"


def test_podman_gets_limits_that_it_may_set():
    text = pods.settings()
    assert "nofile=" in text
    assert "nproc=" in text
    assert "1048576" not in text


# --- with podman


@pytest.fixture(scope="module")
def image() -> str:
    """What `make test-image-here` leaves; IMAGE says another name."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("pods need root and podman")
    if subprocess.run(["podman", "image", "exists", IMAGE], capture_output=True).returncode:
        pytest.skip(f"no image {IMAGE} here: `make test-image-here` makes it")
    return IMAGE


def judged(out: Path, folder: Path, name: str) -> dict:
    _, verdict = replay(out / name, folder / f"judged-{name}", "-m", "multinode")
    return verdict


PODS = [pytest.mark.slow, pytest.mark.waits("two torchruns meet and part in pods")]


class TestPods:
    """Two pods each; a minute and more."""

    pytestmark = PODS

    def test_two_pods_meet_and_their_records_are_judged(self, image, tmp_path):
        ended = pods.run_pods(tmp_path, image)
        assert [of.status for of in ended] == [0, 0], ended
        for name, expected in (
            ("node-0", "environment"), ("node-1", "environment"), ("cluster", "connectivity"),
        ):  # fmt: skip
            verdict = judged(tmp_path, tmp_path, name)
            measured = [c for c in verdict["criteria"] if c["outcome"] in ("PASS", "FAIL")]
            assert expected in {c["criterion"].partition(".")[0] for c in measured}
            assert verdict["counts"]["not_measured"] == 0, verdict["criteria"]
            assert verdict["verdict"] in ("DEMONSTRATION", "REJECTED")

    def test_a_pod_that_is_killed_leaves_no_verdict_that_is_good(self, image, tmp_path):
        ended = pods.run_pods(tmp_path, image, kill=1)
        assert ended[1].status == 137
        assert ended[0].status != 0, "the other one says that it lost its peer"
        verdict = judged(tmp_path, tmp_path, "cluster")
        assert verdict["verdict"] in ("INCOMPLETE", "REJECTED"), verdict["verdict"]

    def test_a_pod_without_its_volume_ends_with_an_error_and_leaves_nothing_good(
        self, image, tmp_path
    ):
        ended = pods.run_pods(tmp_path, image, without_volume=1, deadline_s=60)
        assert ended[1].status not in (0, None), ended[1]
        assert "/shared" in ended[1].said
        assert ended[0].status != 0
        for name in ("node-1", "cluster"):
            records = (tmp_path / name).exists()
            assert not records or judged(tmp_path, tmp_path, name)["verdict"] != "ACCEPTED"

    def test_a_changed_name_is_seen(self, image, tmp_path):
        text = TEXT.replace("subdomain: acceptance", "subdomain: other")
        ended = pods.run_pods(tmp_path, image, text=text, deadline_s=60)
        assert all(of.status != 0 for of in ended), ended


def test_the_manifest_has_one_document_of_each_kind():
    kinds = [d["kind"] for d in yaml.safe_load_all(TEXT)]
    assert sorted(kinds) == ["Job", "PersistentVolumeClaim", "Service"]
