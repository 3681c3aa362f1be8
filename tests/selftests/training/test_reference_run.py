"""The reference run: its settings, and how curves, parameters and states are compared."""

from __future__ import annotations

import pytest
import torch

from tests.selftests.training.one_rank import a_rank, a_team
from training import reference_run

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("ranks", "sequences"), [(1, 8), (2, 8), (3, 12), (4, 8), (5, 10), (8, 16), (16, 32)]
)
def test_every_rank_has_an_even_number_of_sequences(ranks, sequences):
    assert reference_run.global_batch_for(ranks) == sequences
    assert sequences % (2 * ranks) == 0


def test_its_settings_are_twelve_steps_of_eight_sequences_in_fp32():
    alone = reference_run.settings_for("single")
    assert (alone.steps, alone.batch, alone.global_batch, alone.dtype) == (12, 8, 8, "fp32")
    shared = reference_run.settings_for("ddp", global_batch=12, team_size=3, seed=5)
    assert (shared.strategy, shared.batch, shared.seed) == ("ddp", 4, 5)


def test_its_data_are_one_epoch_and_its_losses_those_of_every_step():
    settings = reference_run.settings_for("single", steps=2)
    training = reference_run.new_training(settings, a_team())
    assert training.batch_loader.steps_per_epoch == 12
    losses = reference_run.losses(settings, a_team())
    assert losses == training.run().losses
    assert len(losses) == 2


def test_curves_are_compared_in_per_cent_of_the_second():
    assert reference_run.max_difference_percent([1.0, 3.0], [1.0, 4.0]) == 25.0
    assert reference_run.max_difference_percent([1.0, 5.0], [1.0, 4.0]) == 25.0
    assert reference_run.max_difference_percent([2.0], [-1.0]) == 300.0


def test_one_bit_of_a_parameter_changes_the_digest():
    training = reference_run.new_training(reference_run.settings_for("single"), a_team())
    before = reference_run.parameter_digest(training)
    assert len(before) == 64
    weight = next(iter(training.model.decoder.parameters()))
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[0] ^= 1
    assert reference_run.parameter_digest(training) != before
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[0] ^= 1
    assert reference_run.parameter_digest(training) == before


def test_states_differ_in_tensors_that_are_not_the_same_bit_by_bit():
    one = torch.tensor([1.0, 2.0])
    differences = reference_run.count_differences
    assert differences(one, one.clone()) == 0
    assert differences(one, torch.tensor([1.0, 2.5])) == 1
    assert differences(torch.zeros(2), torch.zeros(1, 2)) == 1
    assert differences(torch.zeros(2), torch.zeros(2, dtype=torch.int32)) == 1
    assert differences(torch.tensor([0.0]), torch.tensor([-0.0])) == 1, "equal, but another bit"
    assert differences(one, None) == 1
    assert differences(3, 3) == 0
    assert differences(3, 4) == 1
    assert differences({"a": one}, 3) == 1
    state = {"a": one, "b": {"c": one, "step": 1}}
    assert differences(state, {"a": one, "b": {"c": one.clone(), "step": 1}}) == 0
    assert differences(state, {"a": one, "b": {"c": one + 1, "step": 2}, "d": one}) == 3
    assert differences(state, {}) == 2


@pytest.mark.parametrize(
    ("values", "most"), [(["a", "b", "b"], "b"), (["b", "a"], "b"), (["a"], "a")]
)
def test_the_majority_is_what_most_ranks_have_and_of_equals_the_first(values, most):
    assert reference_run.majority(a_rank(gather=lambda own: values), "x") == most
