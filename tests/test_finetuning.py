"""LoRA fine-tuning for function calling: it learns, it is kept, it is fast."""

import pytest

pytestmark = [
    pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu, pytest.mark.training,
]  # fmt: skip


@pytest.mark.criterion("finetune.loss")
def test_the_fine_tuning_learns(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("finetune.checkpoint")
def test_what_was_learned_is_kept(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("finetune.logs")
def test_every_step_is_logged(measured, agreed):
    assert measured == agreed


@pytest.mark.criterion("finetune.memory")
def test_no_gpu_runs_out_of_memory(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "finetune.parses", "finetune.function", "finetune.arguments", "finetune.exact"
)
def test_the_fine_tuned_model_calls_functions_as_it_should(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("finetune.fsdp.loss", "finetune.fsdp.share", "finetune.zero3.loss")
def test_sharding_changes_where_weights_are_and_nothing_else(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("finetune.rate", "finetune.rate_optimised")
def test_every_gpu_fine_tunes_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("finetune.speedup")
def test_the_optimised_settings_are_faster(measured, agreed):
    assert measured >= agreed
