"""Checkpoints of a training: written, found, damaged and read again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import a_team

pytestmark = pytest.mark.cpu


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path, Path]:
    """A training run, and its checkpoints of steps 1 and 2."""
    import torch

    from training import reference_run
    from training.strategies import Team

    team = Team(members=(0,), rank=0, device=torch.device("cpu"), group=None)
    training = reference_run.new_training(
        reference_run.settings_for("single", checkpoint=str(tmp_path)), team
    )
    training.run(1)
    first = training.save()
    training.run(1)
    return training, first, training.save()


def test_the_newest_whole_checkpoint_is_taken(saved, tmp_path):
    from training import checkpoint

    _, first, second = saved
    assert checkpoint.newest_intact(tmp_path) == second
    assert checkpoint.defect_of(first) is None
    assert not list(tmp_path.glob(".*")), "nothing is left of the writing"


def torn_file(path: Path) -> Path:
    return max(path.glob("*.distcp"), key=lambda p: p.stat().st_size)


def shorten(path: Path) -> None:
    file = torn_file(path)
    file.write_bytes(file.read_bytes()[:-1])


def flip(path: Path) -> None:
    file = torn_file(path)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)


DAMAGE = {
    "a file is shorter": (shorten, "bytes, expected"),
    "one bit is another": (flip, "differs from what was written (sha256)"),
    "a file is gone": (lambda path: torn_file(path).unlink(), "is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "FileNotFoundError"),
    "half a manifest": (
        lambda path: (path / "manifest.json").write_text('{"step": 2, "fi'), "RecordError",
    ),
    "a manifest without files": (
        lambda path: (path / "manifest.json").write_text('{"step": 2}'), "KeyError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_checkpoint_is_passed_over_and_refused_by_name(damage, saved, tmp_path):
    from training import checkpoint

    training, first, second = saved
    harm, said = DAMAGE[damage]
    harm(second)
    assert checkpoint.newest_intact(tmp_path) == first
    with pytest.raises(checkpoint.CheckpointError) as error:
        training.load(second)
    assert second.name in str(error.value)
    assert said in str(error.value)


def test_what_a_killed_writer_leaves_is_no_checkpoint(saved, tmp_path):
    from training import checkpoint

    training, _, second = saved
    (tmp_path / ".step-000003.partial").mkdir()
    (tmp_path / ".step-000003.partial" / "__0_0.distcp").write_bytes(b"x")
    assert checkpoint.newest_intact(tmp_path) == second
    training.run(1)
    third = training.save()
    assert checkpoint.newest_intact(tmp_path) == third
    assert checkpoint.defect_of(third) is None


# --- of several ranks


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A team of two ranks, of which the other one says `others`."""
    from training import checkpoint

    found = SimpleNamespace(others=[], gathered=[], saved=[])

    def gather(texts: list[Any], text: str, group: Any) -> None:
        found.gathered.append(json.loads(text))
        other = found.others.pop(0) if found.others else None
        texts[:] = [text, json.dumps(other)] if found.rank == 0 else [json.dumps(other), text]

    monkeypatch.setattr(checkpoint.dist, "all_gather_object", gather)
    monkeypatch.setattr(checkpoint, "dcp_save", lambda state, **how: found.saved.append(how))

    def team(rank: int) -> Any:
        found.rank = rank
        found.gathered.clear()
        found.saved.clear()
        return a_team(2, rank=rank, group="g")

    found.team = team
    return found


def test_the_first_rank_alone_makes_and_names_the_directory(of_two, tmp_path):
    from training import checkpoint

    partial = tmp_path / ".step-000007.partial"
    partial.mkdir()
    for name in ("a.distcp", "b.distcp"):
        (partial / name).write_text(name)
    names = ["a.distcp", "b.distcp"]
    of_two.others = [None, None, names, {"a.distcp": [1, "x"]}]
    final = checkpoint.save(tmp_path, 7, {}, team=of_two.team(1))
    assert final == tmp_path / "step-000007"
    assert (final.exists(), partial.exists()) == (False, True)
    assert of_two.saved[0]["no_dist"] is False
    # Barrier, barrier, names, its half of the hashes, barrier.
    assert [type(x).__name__ for x in of_two.gathered] == [
        "NoneType", "NoneType", "list", "dict", "NoneType",
    ]  # fmt: skip
    assert list(of_two.gathered[3]) == ["b.distcp"]
    of_two.others = [None, None, [], {}]
    assert checkpoint.save(tmp_path, 7, {}, team=of_two.team(0)) == final
    assert (final.exists(), partial.exists()) == (True, False)
    assert json.loads((final / "manifest.json").read_text()) == {
        "step": 7, "ranks": 2, "files": {},
    }  # fmt: skip


def test_the_first_rank_decides_whether_a_checkpoint_is_intact(of_two, tmp_path, monkeypatch):
    from training import checkpoint

    loads: list[Any] = []
    monkeypatch.setattr(checkpoint, "state_of", lambda *given: {"model": 1, "optimizer": 2})
    monkeypatch.setattr(checkpoint, "dcp_load", lambda state, **how: loads.append(how))
    monkeypatch.setattr(checkpoint, "set_state_dict", lambda *given, **how: None)
    module: Any = None
    path = tmp_path / "step-000003"
    of_two.others = ["torn"]
    with pytest.raises(checkpoint.CheckpointError, match=r"^torn: "):
        checkpoint.load(path, module, module, team=of_two.team(1))
    assert of_two.gathered == [None], "it does not look for itself"
    path.mkdir()
    (path / "manifest.json").write_text('{"step": 3, "files": {}}')
    assert checkpoint.load(path, module, module, team=of_two.team(0)) == 3
    assert [how["no_dist"] for how in loads] == [False]
    (path / "manifest.json").unlink()
    with pytest.raises(checkpoint.CheckpointError, match=r"manifest\.json"):
        checkpoint.load(path, module, module, team=of_two.team(0))


def test_a_rank_alone_asks_nobody(of_two):
    from training import checkpoint

    assert checkpoint._gather(a_team(), 5) == [5]
    assert checkpoint._gather(a_team(2), 5) == [5], "without a group"
    assert checkpoint._gather(a_team(1, group="g"), 5) == [5]
    checkpoint._barrier(a_team(2))
    assert of_two.gathered == []
    of_two.others = [6]
    assert checkpoint._gather(of_two.team(0), 5) == [5, 6]


def test_a_group_of_one_is_saved_through_it(of_two, tmp_path):
    from training import checkpoint

    checkpoint.save(tmp_path, 1, {}, team=a_team())
    checkpoint.save(tmp_path, 2, {}, team=a_team(group="g"))
    assert [how["no_dist"] for how in of_two.saved] == [True, False]


def test_a_state_has_the_parameters_and_what_the_optimizer_holds(saved):
    training, _, _ = saved
    state = training.state()
    assert set(state) == {"model", "optimizer"}
    assert set(state["model"]) == {name for name, _ in training.model.module.named_parameters()}
