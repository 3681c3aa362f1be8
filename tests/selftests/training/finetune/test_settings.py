"""Settings of a fine-tuning: the shipped ones, and what is refused in one line."""

from __future__ import annotations

import re

import pytest

from training.finetune import settings
from training.finetune.settings import InputError, LoraSettings, Settings

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("name", ["default", "optimised", "small"])
def test_the_shipped_settings_load(name):
    assert settings.load(settings.find(name)).name == name


def test_default_and_optimised_differ_in_what_makes_it_faster_and_nothing_else():
    one, two = (settings.load(settings.find(n)).to_json() for n in ("default", "optimised"))
    differ = {
        f"{section}.{key}"
        for section, body in one.items()
        if isinstance(body, dict)
        for key in body
        if body[key] != two[section][key]
    }
    assert differ == {
        "training.batch_size", "training.gradient_checkpointing", "data.workers", "data.prefetch",
        "distributed.environment",
    }  # fmt: skip
    assert one["training"]["global_batch_size"] == 128
    assert one["training"]["learning_rate"] == 2e-5
    assert (one["lora"]["r"], one["lora"]["alpha"]) == (64, 128)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainning: {}", "unknown key 'trainning', did you mean 'training'"),
        ("training: {batchsize: 2}", "unknown key 'batchsize', did you mean 'batch_size'"),
        ("training: {learning_rate: 2e-5}", "'2e-5' is read as text: write 2e-05"),
        ("training: {batch_size: 2.5}", "training.batch_size: expected int, got 2.5"),
        ("training: {batch_size: true}", "expected int, got True"),
        ("training: {batch_size: 0}", "training.batch_size: 0 is not above 0"),
        ("training: {warmup_steps: 100}", "is not below training.steps, 100"),
        ("training: {seed: 1, seed: 2}", "seed is given twice"),
        ("model: {precision: fp16}", "model.precision: 'fp16' is not known"),
        ("model: {preset: qwen2-70b}", "'qwen2-70b' is not known, did you mean 'qwen2-7b'"),
        ("distributed: {strategy: ddp}", "distributed.strategy: 'ddp' is not known"),
        ("lora: {targets: [1]}", "lora.targets: expected str or list"),
        ("lora: {dropout: 1}", "lora.dropout: 1.0 is not between 0 and 1"),
        ("data: [1]", "data: expected keys with values"),
        ("- 1", "expected sections"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_settings_are_one_clear_line(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        settings.load(path)
    assert said in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_package_that_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        settings.importlib.util, "find_spec", lambda name: None if name == "deepspeed" else name
    )
    settings.check_packages("fsdp")
    with pytest.raises(InputError, match=r"not installed: deepspeed; .*extra 'zero3'"):
        settings.check_packages("zero3")


def test_a_settings_file_is_found_by_its_path_or_among_the_shipped(tmp_path, monkeypatch):
    own = tmp_path / "own.yaml"
    own.write_text("training: {steps: 20}")
    assert settings.find(str(own)) == own
    for name in ("small", "small.yaml"):
        assert settings.find(name) == settings.HERE / "small.yaml"
    for name in ("smal", "../finetune/small.yaml", str(tmp_path / "none.yaml")):
        with pytest.raises(
            InputError, match=r"no such file of settings; shipped are default\.yaml"
        ):
            settings.find(name)


def test_what_is_given_beside_a_file_takes_the_place_of_its_values(tmp_path):
    data, model = tmp_path / "data.jsonl", tmp_path / "model"
    data.write_text("{}")
    model.mkdir()
    (model / "config.json").write_text("{}")
    with pytest.raises(InputError, match="holds no weights"):
        settings.with_overrides(Settings(), model=str(model))
    (model / "a.safetensors").write_text("")
    found = settings.with_overrides(Settings(), model=str(model), data=str(data), strategy="fsdp")
    assert found.model.path == str(model)
    assert (found.data.path, found.distributed.strategy) == (str(data), "fsdp")
    assert found.model.preset == Settings().model.preset
    assert settings.with_overrides(Settings()) == Settings()
    with pytest.raises(InputError, match="none is not a directory"):
        settings.with_overrides(Settings(), model=str(tmp_path / "none"))
    with pytest.raises(InputError, match="none is not a file"):
        settings.with_overrides(Settings(), data=str(tmp_path / "none"))


def test_adapters_are_given_by_the_name_of_a_set_or_of_layers():
    assert LoraSettings(targets="attention").layers == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert LoraSettings(targets=["q_proj"]).layers == ("q_proj",)


def test_passes_of_a_step_are_what_is_left_of_its_batch():
    training = settings.TrainingSettings(batch_size=2, global_batch_size=24)
    assert training.passes_per_step(4) == 3
    with pytest.raises(InputError, match="not divisible"):
        training.passes_per_step(5)


@pytest.mark.parametrize(
    ("text", "section", "name", "value"),
    [
        ("distributed: {environment: {NCCL_DEBUG: 1}}", "distributed", "environment",
         {"NCCL_DEBUG": "1"}),
        ("training: {learning_rate: 1}", "training", "learning_rate", 1.0),
        ("training: {batch_size: 1, steps: 1, warmup_steps: 0}", "training", "steps", 1),
        ("lora: {targets: [q_proj], dropout: 0}", "lora", "targets", ["q_proj"]),
        ("data: {held_out: 0, path: null}", "data", "held_out", 0.0),
    ],
)  # fmt: skip
def test_values_at_the_edge_are_taken(text, section, name, value, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert getattr(getattr(settings.load(path), section), name) == value


def test_text_for_a_number_is_told_with_the_number_or_the_type(tmp_path):
    path = tmp_path / "mine.yaml"
    for text, said in (
        ("training: {learning_rate: fast}", "expected float, got 'fast'"),
        ("training: {steps: '3'}", "training.steps: expected int, got '3'"),
        ("training: {learning_rate: [1]}", "expected float, got"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(said)):
            settings.load(path)
