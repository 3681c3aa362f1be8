"""Settings of a training run: one clear line before a GPU is used."""

from __future__ import annotations

import pytest

from training.settings import PRESETS, Settings, SettingsError, settings_of

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"preset": "8b-shrt"}, "no preset '8b-shrt', did you mean '8b-short'?"),
        ({"strategy": "fsdpp"}, "no strategy 'fsdpp'"),
        ({"dtype": "fp8"}, "no dtype 'fp8'"),
        ({"presett": "tiny"}, "no setting 'presett', did you mean 'preset'?"),
        ({"batch": 0}, "batch is 0, expected more than 0"),
        ({"batch": "2"}, "batch is '2', expected a int"),
        ({"steps": True}, "steps is True, expected a int"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"warm_up": -1}, "warm_up is -1, expected 0 or more"),
        ({"wrap": "size", "compile": True}, "switch compile off"),
        ({"resume": True}, "needs a directory of checkpoints"),
        ({"data": "/no/such/file.txt"}, "data file /no/such/file.txt is not on the node"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(given, said):
    with pytest.raises(SettingsError) as error:
        settings_of(given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("batch", "whole", "ranks"), [(2, 9, 2), (4, 4, 2), (3, 16, 1)])
def test_a_batch_that_does_not_divide_is_refused(batch, whole, ranks):
    with pytest.raises(SettingsError, match=f"global batch {whole} is not divisible by {ranks}"):
        Settings(batch=batch, global_batch=whole).passes_per_step(ranks)


def test_what_is_left_of_a_batch_is_accumulated():
    assert Settings(batch=2, global_batch=16).passes_per_step(4) == 2
    assert Settings(batch=2).passes_per_step(4) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": 3}, "data is 3, expected a str"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast', expected a float"),
        ({"compile": 1}, "compile is 1, expected a bool"),
    ],
)
def test_a_value_of_another_type_is_refused(given, said):
    with pytest.raises(SettingsError, match=said):
        settings_of(given)


def test_settings_that_work_are_taken_as_they_are_given(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words")
    for given in (
        {}, {"learning_rate": 1}, {"compile": True}, {"wrap": "size"}, {"data": str(text)},
        {"resume": True, "checkpoint": "somewhere"}, {"warm_up": 0, "sequence": 0, "batch": 1},
    ):  # fmt: skip
        assert settings_of(given) == Settings(**given)


def test_a_sequence_is_as_long_as_the_preset_says_unless_given():
    assert Settings(preset="160m").shape == PRESETS["160m"]
    assert Settings(preset="160m").tokens == 2048
    assert Settings(preset="160m", sequence=128).tokens == 128
