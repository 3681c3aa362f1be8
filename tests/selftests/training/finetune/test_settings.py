"""Settings of a fine-tuning: the shipped ones, and what is refused in one line."""

from __future__ import annotations

import pytest

from training.finetune import settings
from training.finetune.settings import InputError

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
