"""Training: one GPU alone, DDP, FSDP, checkpoints; right first, then fast."""

import pytest

pytestmark = [
    pytest.mark.multinode, pytest.mark.singlenode, pytest.mark.gpu, pytest.mark.training,
]  # fmt: skip


@pytest.mark.criterion("training_single.curve")
def test_a_fixed_run_has_the_known_losses(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_single.fall", "training_fsdp.fall")
def test_the_loss_falls(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("training_single.gradients", "training_fsdp.gradients")
def test_every_gradient_is_a_number(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_single.tokens", "training_ddp.tokens", "training_fsdp.tokens")
def test_the_gpus_of_a_node_train_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("training_ddp.ranks", "training_ddp.cluster.ranks")
def test_every_rank_is_who_it_should_be(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_ddp.coverage", "training_ddp.cluster.coverage")
def test_the_ranks_see_every_sample_once(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_ddp.replicas", "training_ddp.cluster.replicas")
def test_all_replicas_stay_equal(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_ddp.curve", "training_ddp.cluster.curve")
def test_ddp_has_the_losses_of_one_gpu(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_ddp.accumulation")
def test_accumulated_gradients_are_those_of_the_large_batch(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "training_fsdp.curve.block", "training_fsdp.curve.root", "training_fsdp.curve.size",
    "training_fsdp.cluster.curve", "training_fsdp.offload",
)  # fmt: skip
def test_fsdp_has_the_losses_of_ddp(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "training_fsdp.sharded.block", "training_fsdp.sharded.root", "training_fsdp.sharded.size",
    "training_fsdp.cluster.sharded",
)  # fmt: skip
def test_a_rank_holds_its_part_of_the_parameters_only(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_fsdp.memory")
def test_a_gpu_needs_less_memory_when_others_share_the_model(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion(
    "training_fsdp.mfu", "training_fsdp.mfu_half", "training_fsdp.mfu_8b", "training_fsdp.gemm"
)
def test_training_uses_the_agreed_part_of_the_gpu(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion(
    "training_ddp.efficiency", "training_ddp.efficiency_slowest", "training_fsdp.efficiency",
    "training_fsdp.efficiency_slowest",
)  # fmt: skip
def test_the_gpus_of_a_node_keep_their_rate_together(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion(
    "training_ddp.pace", "training_fsdp.pace", "training_ddp.cluster.pace",
    "training_fsdp.cluster.pace",
)  # fmt: skip
def test_no_gpu_makes_the_others_wait(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("training_ddp.cluster.tokens", "training_fsdp.cluster.tokens")
def test_all_nodes_train_together_at_the_agreed_rate(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("training_ddp.cluster.efficiency", "training_fsdp.cluster.efficiency")
def test_the_nodes_keep_their_rate_together(measured, agreed):
    assert measured >= agreed


@pytest.mark.criterion("training_single.reload")
def test_a_checkpoint_is_read_back_as_it_was_written(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_resume.resume", "training_resume.other_ranks")
def test_a_run_goes_on_from_a_checkpoint_as_if_nothing_had_been(measured, agreed):
    assert measured <= agreed


@pytest.mark.criterion("training_resume.torn")
def test_a_torn_checkpoint_is_never_taken_for_a_good_one(measured, agreed):
    assert measured == agreed
