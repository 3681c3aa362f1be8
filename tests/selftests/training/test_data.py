"""Training data: samples, files with broken lines, and the batches of a step."""

from __future__ import annotations

import json

import pytest
import torch

from training.settings import Settings, SettingsError

pytestmark = pytest.mark.cpu

PSEUDO = [0, 2065550767, 565798388]
SAMPLE = [185, 201, 202, 203, 232, 252, 206, 207, 208, 164, 210, 195, 212, 213, 214, 215]
"""As they were when the losses of the reference run were written."""


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


def test_synthetic_samples_are_the_same_everywhere():
    """Losses are compared between machines and versions: another token would change them."""
    from training.data import Synthetic, pseudo_random

    assert pseudo_random(torch.tensor([0, 1, 2])).tolist() == PSEUDO
    data = Synthetic(256, 15, 4, seed=1)
    index, tokens = data[2]
    assert (len(data), index, tokens.tolist()) == (4, 2, SAMPLE)
    assert Synthetic(100_000, 8, 1, seed=1).distinct_tokens == 512
    assert Synthetic(256, 8, 1, seed=1).distinct_tokens == 256


def test_most_synthetic_tokens_count_in_equal_steps():
    from training.data import Synthetic

    tokens = torch.stack([Synthetic(256, 63, 50, seed=5)[k][1] for k in range(50)])
    steps = tokens.diff(dim=1) % 256
    usual = steps.mode(dim=1, keepdim=True).values
    assert set(usual.flatten().tolist()) <= {1, 2, 3, 4}
    # One token in eight is random, and so are two steps for each of them.
    assert 0.6 < (steps == usual).float().mean() < 0.9


def test_a_text_has_its_bytes_and_json_lines_their_texts(tmp_path):
    from training.data import Text, dataset

    text, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_bytes(b"{\n" + b"x" * 15)
    lines.write_text('{"text": "abcd"}\n{"text": "efgh"}\n')
    assert len(Text(text, 16)) == 1
    index, tokens = Text(lines, 4)[1]
    assert (index, bytes(tokens.tolist())) == (1, b"\nefgh"), "a line ends between two texts"
    found = dataset(Settings(data=str(lines), sequence=4), samples=9)
    assert (type(found), len(found)) == (Text, 2)  # type: ignore[arg-type]
    made = dataset(Settings(sequence=4, seed=3), samples=9)
    assert len(made) == 9  # type: ignore[arg-type]
    assert torch.equal(made[1][1], dataset(Settings(sequence=4, seed=3), samples=9)[1][1])


@pytest.mark.parametrize(("size", "sequences"), [(0, None), (16, None), (17, 1), (32, 1), (33, 2)])
def test_a_sequence_needs_one_token_more_than_its_length(size, sequences, tmp_path):
    from training.data import Text

    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * size)
    if sequences is None:
        with pytest.raises(SettingsError, match=f"{size} bytes, fewer than"):
            Text(path, 16)
    else:
        assert len(Text(path, 16)) == sequences


def test_five_broken_lines_are_all_named(tmp_path):
    from training.data import Text

    path = tmp_path / "broken.jsonl"
    path.write_text("{\n" * 5)
    with pytest.raises(SettingsError, match=r"line 5: ") as error:
        Text(path, 16)
    assert "more" not in str(error.value)


def test_data_for_exactly_one_step_is_enough():
    from training.data import BatchLoader, Synthetic

    loader = BatchLoader(Synthetic(256, 8, 8, 0), Settings(batch=4), rank=0, team_size=2)
    assert (loader.steps_per_epoch, loader.samples_per_step) == (1, 8)
