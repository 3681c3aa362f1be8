"""The image is built by three engines alike, and what is tried is what is shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.paths import CHECKOUT
from tests.tools import image
from tests.tools.debian_root import RootError

pytestmark = pytest.mark.cpu

ENGINE = """\
#!{python} -IS
import json, os, pathlib, sys
folder = pathlib.Path({folder!r})
with (folder / "called").open("a") as log:
    log.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
words, name = sys.argv[1:], {name!r}
if words[0] == "from":
    print("box")
layers = ["a", "b", *(["c"] if words[-1].endswith("-test") else [])]
layers = json.loads(os.environ.get("LAYERS", "null")) or layers
if words[0] == "inspect" and name == "buildah":
    print(json.dumps({{"OCIv1": {{"rootfs": {{"diff_ids": layers}}}}}}))
elif words[0] == "inspect":
    print(json.dumps([{{"Size": 2500000000, "RootFS": {{"Layers": layers}}}}]))
elif words[0] == "images":
    print(json.dumps([{{"size": "2.5 GB"}}]))
elif words[0] == "run":
    print(pathlib.Path({folder!r}, "says").read_text())
    sys.exit(int((folder / "status").read_text()))
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Stand-ins for the engines; the fixture's value returns what they were called with."""
    for name in image.ENGINES:
        program = tmp_path / name
        program.write_text(ENGINE.format(python=sys.executable, folder=str(tmp_path), name=name))
        program.chmod(0o755)
    (tmp_path / "says").write_text("")
    (tmp_path / "status").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(image, "outside_run", lambda folder: None)
    log = tmp_path / "called"

    def read() -> list[list[str]]:
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    return read


@pytest.mark.parametrize("name", image.ENGINES)
def test_each_engine_builds_the_target_of_the_node(name, called, capsys):
    argv = ["build", "--engine", name, "--image", "one:v1", "--torch-index", "file:///x"]
    assert image.main(argv) == 0
    (built, *_) = called()
    assert built[:2] == [name, "build"]
    for words in (
        ["--file", "deploy/Dockerfile"], ["--target", "node"], ["--tag", "one:v1"],
        ["--build-arg", "TORCH_INDEX=file:///x"],
    ):  # fmt: skip
        assert built[built.index(words[0]) + 1] == words[1]
    assert built[-1] == "."
    # docker finds the list of what is left out by its name; to the others it is named.
    assert ("--ignorefile" in built) is (name != "docker")
    size = "2.5 GB" if name == "buildah" else "2.50 GB"
    assert f"{size} in 2 layers" in capsys.readouterr().out


@pytest.mark.parametrize("name", image.ENGINES)
def test_all_steps_are_run_each_in_its_target(name, called, capsys):
    assert image.main(["test", "--engine", name, "--image", "one", "--", "-k", "a b"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED: ") == len(image.STEPS), "none of them said what it should"
    runs = [c for c in called() if c[1] == "run"]
    if name == "buildah":
        assert all("box" in c for c in runs)
    else:
        assert [next(w for w in c if w in ("one", "one-test")) for c in runs] == [
            "one-test",
            "one",
            "one",
            "one",
        ]
    assert all("ARGS=-k 'a b'" in c for c in runs), "as the shell is to read it"


def test_what_a_step_says_and_its_status_both_count(called, tmp_path, capfd):
    """The stand-in writes to this process's output: the log of a step is what the shell writes."""
    (step, *_) = image.STEPS
    engine = image.Engine("docker")
    (tmp_path / "status").write_text("1")
    (line,) = image.try_steps(engine, "one", "", [step])
    assert line.startswith("FAILED: make test")
    assert "exit status 1" in line
    (tmp_path / "status").write_text("0")
    silent = image.Step("silent", "node", "true")
    (line,) = image.try_steps(engine, "one", "", [silent])
    assert line.startswith("ok: silent")


def test_tests_in_another_image_than_the_one_that_is_shipped_are_refused(called, monkeypatch):
    image.refuse_other_node(image.Engine("docker"), "one")
    monkeypatch.setenv("LAYERS", '["x"]')
    image.refuse_other_node(image.Engine("docker"), "one")
    monkeypatch.delenv("LAYERS")
    monkeypatch.setattr(
        image.Engine, "inspect", lambda self, name: ("", ["x"] if name == "one" else ["a", "b"])
    )
    with pytest.raises(RootError, match=r"one-test does not stand on one: .*TORCH_INDEX"):
        image.refuse_other_node(image.Engine("docker"), "one")


def test_here_the_base_is_replaced_and_this_host_s_settings_are_mounted():
    engine = image.Engine("buildah", "localhost/base:x", ("/a:/b:ro",))
    argv = engine.build("node", "one", "")
    for words in (["--from", "localhost/base:x"], ["--network", "host"], ["--volume", "/a:/b:ro"]):
        assert argv[argv.index(words[0]) + 1] == words[1]
    assert "--layers" in argv, "the tests' image stands on the layers of the other one"


def test_pips_settings_become_a_file_of_its_own():
    given = {"PIP_EXTRA_INDEX_URL": "file:///a file:///b", "PIP_CERT": "/c", "HOME": "/root"}
    assert image.pip_conf(given) == "[global]\ncert = /c\nextra-index-url = file:///a file:///b\n"


def test_the_makefile_s_targets_are_this_tool_s():
    # Inside `make test` another make would say which folder it enters and leaves.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    for target, what in (("image", "build"), ("test-image", "test"), ("test-image-here", "here")):
        argv = ["make", "--dry-run", target, "ENGINE=podman", "IMAGE=one:v1", "ARGS=-k 'x y'"]
        done = subprocess.run(
            argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, check=True
        )
        line = done.stdout.splitlines()[-1]
        assert "--engine='podman' --image='one:v1'" in line
        assert f"--torch-index='' {what}" in line
        assert ("-- -k 'x y'" in line) is (what != "build")


def test_a_recorded_run_is_there_to_be_judged_outside():
    assert (CHECKOUT / image.RECORDED / "run.json").exists()
