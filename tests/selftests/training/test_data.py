"""Training data: samples, files with broken lines, and the batches of a step."""

from __future__ import annotations

import json

import pytest

from training.settings import Settings, SettingsError

pytestmark = pytest.mark.cpu


def test_broken_lines_of_a_data_file_are_named_by_number(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    good = json.dumps({"text": "x" * 100})
    path.write_text(f'{good}\n{{"text": 1}}\n\n{good[:-3]}\n[1]\n{good}\n')
    with pytest.raises(SettingsError) as error:
        Text(path, 16)
    said = str(error.value)
    assert "3 broken lines" in said
    assert [f"line {n}:" in said for n in (1, 2, 3, 4, 5, 6)] == [0, 1, 0, 1, 1, 0]
    assert "\n" not in said


def test_many_broken_lines_are_counted(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    path.write_text("{\n" * 40)
    with pytest.raises(SettingsError, match=r"40 broken lines: line 1: .*; and 35 more"):
        Text(path, 16)


def test_a_data_file_without_a_sequence_in_it_is_refused(tmp_path):
    from training.data import Text

    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(SettingsError, match=r"5 bytes, fewer than a sequence of 16 \+ 1 tokens"):
        Text(path, 16)


def test_text_is_cut_into_sequences_that_overlap_by_the_target(tmp_path):
    from training.data import Text

    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(33)))
    data = Text(path, 16)
    assert len(data) == 2
    assert data[1][1].tolist() == list(range(16, 33))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_step_is_the_same_samples_for_any_number_of_ranks(ranks):
    from training.data import BatchLoader, Synthetic

    data = Synthetic(256, 8, 96, seed=3)

    def steps(n: int, begin: int = 0) -> list[list[int]]:
        made = Settings(batch=8 // n, global_batch=8, sequence=8)
        batch_loaders = [BatchLoader(data, made, rank=k, team_size=n, step=begin) for k in range(n)]
        found = []
        iterators = [iter(batch_loader) for batch_loader in batch_loaders]
        for _ in range(14):
            before = [len(f.seen_samples) for f in batch_loaders]
            for iterator in iterators:
                next(iterator)
            at = [
                b if b < len(f.seen_samples) else 0
                for b, f in zip(before, batch_loaders, strict=True)
            ]
            found.append(
                sorted(
                    i for f, a in zip(batch_loaders, at, strict=True) for i in f.seen_samples[a:]
                )
            )
        return found

    whole = steps(ranks)
    assert whole == steps(1)
    assert sorted(i for step in whole[:12] for i in step) == list(range(96))
    assert whole[12] != whole[0], "the next epoch has another order"
    assert steps(ranks, begin=5)[:7] == whole[5:12]


def test_too_little_data_for_a_step_is_refused():
    from training.data import BatchLoader, Synthetic

    with pytest.raises(SettingsError, match="the data: 4 samples; a step takes 8"):
        BatchLoader(Synthetic(256, 8, 4, 0), Settings(batch=4), rank=0, team_size=2)
