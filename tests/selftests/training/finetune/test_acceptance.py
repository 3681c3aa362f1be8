"""The trainings of the suite: which are run, and what is measured of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.training.one_rank import a_rank
from training.finetune import acceptance, evaluate, settings
from training.finetune.settings import Settings

pytestmark = pytest.mark.cpu


def test_on_shared_cores_a_speedup_is_of_steps_that_were_not_disturbed():
    steady, disturbed = [100.0] * 6, [5.0, 6.0, 5.0, 100.0, 6.0, 98.0]
    assert acceptance.undisturbed(disturbed, on_gpu=False) == 100.0
    assert acceptance.undisturbed(steady, on_gpu=False) == 100.0
    # On a GPU nothing else runs: steps that are slow more often than not are the training's own.
    assert acceptance.undisturbed(disturbed, on_gpu=True) == 6.0


# --- which trainings are run


def small_settings(**values: Any) -> Settings:
    return (
        Settings(name="small").with_values("model", preset="tiny").with_values("training", **values)
    )


def a_training(wanted: Settings | None = None, **more: Any) -> Any:
    """What run_training() returns, of four steps of 1 s on one rank, unless told otherwise."""
    history = SimpleNamespace(
        losses=[4.0, 3.0, 2.0, 1.234567], norms=[0.5, 0.25, 1.0, 1.0], tokens=[100] * 4,
        learned_tokens=100, seconds=[1.0] * 4, started=50.0, ended=[51.0, 52.0, 53.0, 54.0],
        pass_seconds=[9.0, 0.5, 0.5, 0.5],
    )  # fmt: skip
    made = SimpleNamespace(
        settings=wanted or small_settings(), history=history, excluded=1, notes=["reduced"],
        cost=SimpleNamespace(flop_per_token=lambda length, share: 1e10 * share),
        prepared=SimpleNamespace(
            packed=None, tokenizer=None, held_out=["a", "b", "c"], about={"padding": 0.1}
        ),
        peft_model="model", loss_model="loss", folder=Path("f"), log=None, resident_bytes=30,
        model_bytes=120, tokens_per_s=lambda: [10.0, 100.0, 110.0, 120.0], written=[],
        summary_entry=lambda ranks: {"steps": 4, "table": ["rows"]},
    )  # fmt: skip
    made.write_answers = made.written.extend
    vars(made).update(more)
    return made


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs trainings of the suite on nothing; returns metrics, trainings, and what was written."""
    log: list[Any] = []
    written: list[Any] = []

    def run_training(ranks: Any, wanted: Settings, **how: Any) -> Any:
        log.append((wanted.name, wanted.distributed.strategy, how))
        return a_training(wanted)

    def measured(metric: str) -> Any:
        return acceptance.Measurement(metric=metric, unit="%", value=1)

    monkeypatch.setattr(acceptance, "run_training", run_training)
    monkeypatch.setattr(acceptance, "release_model", lambda training: None)
    monkeypatch.setattr(
        acceptance, "_outcome_measurements", lambda ranks, training, all: [measured("loss")]
    )
    monkeypatch.setattr(
        acceptance, "_sharded_measurements",
        lambda ranks, metric, training, plain, all: [measured(f"{metric} {plain[0]}")],
    )  # fmt: skip
    monkeypatch.setattr(acceptance, "_rate", lambda ranks, training, all: measured("rate"))
    monkeypatch.setattr(acceptance.summary, "folder", lambda ranks: Path("f"))
    monkeypatch.setattr(acceptance.summary, "write", lambda folder, data: written.append(data))

    def start(*wanted: str, rank: int = 0) -> Any:
        log.clear()
        written.clear()
        found = acceptance._suite_trainings(a_rank(rank=rank), set(wanted), {})
        return [m.metric for m in found], log, written

    return start


def test_each_training_that_a_metric_needs_is_run_once(suite):
    whole, part = {"log": True, "max_steps": None}, {"log": False, "max_steps": 10}
    metrics, log, written = suite("loss", "logs")
    assert (metrics, log) == (["loss"], [("small", "plain", whole)])
    assert len(written) == 1
    metrics, log, _ = suite("fsdp_loss")
    assert metrics == ["fsdp_loss 4.0"]
    # Ten steps: later, rounding diverges.
    assert log == [("small", "plain", part), ("small", "fsdp", {"max_steps": 10})]
    assert [x[1] for x in suite("zero3_loss", "loss")[1]] == ["plain", "zero3"]
    assert suite("ooms")[1] == []


def test_rates_are_those_of_both_settings_on_two_thousand_conversations(suite):
    metrics, log, written = suite("rate")
    assert metrics == ["rate", "rate", "speedup"]
    assert [(name, how) for name, _, how in log] == [
        (name, {"samples": 2000, "excluded": 2}) for name in ("default", "optimised")
    ]
    metrics, _, written = suite("speedup", rank=1)
    assert (metrics, written) == (["rate", "rate"], [])


def test_the_batch_of_all_divides_among_the_ranks():
    small = small_settings(batch_size=4, global_batch_size=16, steps=300)
    for world_size, batch in ((1, 16), (3, 24), (4, 16), (5, 20)):
        found = acceptance._small_training(a_rank(world_size=world_size), small)
        assert found == {"global_batch_size": batch, "steps": 120}, "fewer on shared cores"
    assert acceptance._small_training(a_rank(on_gpu=True), small)["steps"] == 300


def test_a_step_is_timed_with_one_pass():
    wanted = settings.load(settings.find("default"))
    gpu = acceptance._timing_settings(a_rank(on_gpu=True, world_size=8), wanted)
    assert (gpu.training.steps, gpu.training.warmup_steps) == (40, wanted.training.warmup_steps)
    assert gpu.training.global_batch_size == 8 * wanted.training.batch_size
    assert (gpu.model, gpu.data) == (wanted.model, wanted.data)
    cpu = acceptance._timing_settings(a_rank(), wanted)
    assert (cpu.training.steps, cpu.training.warmup_steps) == (8, 7)
    assert (cpu.model.preset, cpu.data.max_length) == ("tiny", 256)
    assert acceptance._excluded_steps(a_rank(on_gpu=True)) == 10
    assert acceptance._excluded_steps(a_rank()) == 2


@pytest.mark.parametrize(("steps", "rank", "metrics", "writes"), [
    (4, 0, ["rate", "loss"], 1), (1, 0, ["loss"], 1), (4, 1, ["rate", "loss"], 0),
])  # fmt: skip
def test_a_training_by_hand_has_a_rate_if_it_is_long_enough(
    steps, rank, metrics, writes, suite, monkeypatch
):
    made = a_training()
    made.history.seconds = [1.0] * steps
    monkeypatch.setattr(acceptance, "run_training", lambda *given, **how: made)
    written: list[Any] = []
    monkeypatch.setattr(acceptance.summary, "write", lambda folder, data: written.append(data))
    found = acceptance._requested_training(a_rank(rank=rank), small_settings(), {})
    assert [m.metric for m in found] == metrics
    assert len(written) == writes


def test_the_record_has_what_was_asked_for_and_no_tables(monkeypatch):
    asked: list[Any] = []

    def suite_trainings(ranks: Any, wanted: set[str], trainings: dict[str, Any]) -> Any:
        trainings["small"] = {"steps": 4, "table": ["rows"]}
        return [acceptance.Measurement(metric=m, unit="%", value=1) for m in ("loss", "logs")]

    def requested(ranks: Any, wanted: Settings, trainings: Any) -> Any:
        asked.append((wanted.name, wanted.distributed.strategy))
        return []

    monkeypatch.setattr(acceptance, "_suite_trainings", suite_trainings)
    monkeypatch.setattr(acceptance, "_requested_training", requested)
    monkeypatch.setattr(acceptance.process_group, "of", lambda ranks: None)
    result = acceptance.run(a_rank(), ["logs"])
    assert [m.metric for m in result.measurements] == ["logs"]
    assert result.facts == {"small": {"steps": 4}}
    assert acceptance.run(a_rank(rank=1), ["logs"]).facts == {}
    assert asked == []
    result = acceptance.run(a_rank(), ["loss"], configs=["small", "default"], strategy="fsdp")
    assert (result.measurements, asked) == ([], [("small", "fsdp"), ("default", "fsdp")])


# --- what is measured of them


def test_a_rate_is_that_of_timed_steps_without_padding():
    trainings: dict[str, Any] = {}
    found = acceptance._rate(a_rank(), a_training(), trainings)
    assert (found.metric, found.unit, found.samples) == ("rate", "tokens/s", [100, 110, 120])
    assert found.checks == {"steps": 3.0, "gradient_norm": 0.25, "padding": 0.1}
    assert (found.started, found.ended) == (51.0, [52.0, 53.0, 54.0])
    assert (found.at, found.notes) == ({"settings": "small"}, ["reduced"])
    assert found.conditions == {"dtype": "fp32", "flops_per_token": 2.5e9}
    entry = trainings["small"]
    assert (entry["tokens_per_s_gpu"], entry["learned_share"]) == (110.0, 0.25)
    assert entry["model_tflops"] == 0.275


@pytest.mark.parametrize(("longest", "notes"), [(1.0, 0), (1.049, 0), (1.06, 1), (3.0, 1)])
def test_a_rank_that_takes_a_twentieth_longer_is_named(longest, notes):
    found = acceptance._slow_rank_note([["a", 0, 1.0], ["b", 3, longest], ["a", 1, 0.9]])
    assert len(found) == notes
    assert all(note.startswith("b gpu3 takes ") for note in found)


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measures the outcome of a training without weights; returns measurements and its entry."""
    saved: list[Any] = []
    monkeypatch.setattr(acceptance.checkpoint, "adapters_of", lambda model: {})
    monkeypatch.setattr(acceptance.checkpoint, "save", lambda *given: saved.append(given))
    monkeypatch.setattr(
        acceptance.loop, "first_batch_loss", lambda model, *data: f"loss of {model}"
    )
    monkeypatch.setattr(acceptance.model, "LossModel", lambda model, compiled: model)
    monkeypatch.setattr(acceptance, "release_model", lambda training: None)
    monkeypatch.setattr(acceptance, "wait_for_all_ranks", lambda ranks: None)
    grades = {"parses": 99.0, "function": None, "arguments": 90.0, "exact": 80.0}
    monkeypatch.setattr(acceptance, "_grade_rates", lambda *given: grades)
    monkeypatch.setattr(acceptance, "_held_out_loss", lambda *given: {"held_out_loss": 0.5})

    def start(training: Any, *, rank: int = 0, reloaded: Any = "again") -> Any:
        saved.clear()

        def check(final: Any, adapters: Any, expected: Any, loss_of: Any, *more: Any) -> Any:
            assert (expected, loss_of("again")) == ("loss of loss", "loss of again")
            return "reloads" if reloaded else "torn", reloaded

        monkeypatch.setattr(acceptance.checkpoint, "check", check)
        trainings: dict[str, Any] = {}
        found = acceptance._outcome_measurements(a_rank(rank=rank), training, trainings)
        return {m.metric: m for m in found}, trainings[training.settings.name], len(saved)

    return start


LEARNED = ["checkpoint", "loss", "parses", "function", "arguments", "exact"]


def test_the_outcome_of_a_training_that_learns_is_measured_by_one_rank(outcome):
    found, entry, saved = outcome(a_training())
    assert (list(found), saved) == (LEARNED, 1)
    assert (found["checkpoint"].value, found["loss"].value) == ("reloads", 1.23457)
    assert (found["parses"].value, found["parses"].notes) == (99.0, [])
    assert entry == {
        "steps": 4, "table": ["rows"], "parses": 99.0, "arguments": 90.0, "exact": 80.0,
        "held_out_loss": 0.5, "final_loss": 1.23457, "checkpoint": "reloads",
    }  # fmt: skip
    found, _, saved = outcome(a_training(), rank=1)
    assert (list(found), saved) == (["checkpoint"], 0)


def test_random_weights_of_a_large_shape_learn_nothing_to_be_graded(outcome):
    large = Settings(name="large")
    assert list(outcome(a_training(large))[0]) == ["checkpoint"]
    own = large.with_values("model", path="/my/model")
    assert list(outcome(a_training(own))[0]) == LEARNED


def test_why_there_are_no_grades_is_noted(outcome):
    found, _, _ = outcome(a_training(), reloaded=None)
    assert (found["checkpoint"].value, found["exact"].notes) == ("torn", ["torn"])
    training = a_training()
    training.prepared.held_out = []
    assert outcome(training)[0]["exact"].notes == ["no conversation is held out"]


@pytest.mark.parametrize(
    ("complete", "missing", "said", "notes"),
    [("complete", "", "complete", []), (None, "no tensorboard", "no tensorboard",
                                         ["no tensorboard"])],
)  # fmt: skip
def test_logs_are_as_complete_as_they_say(complete, missing, said, notes, outcome):
    steps: list[int] = []
    log = SimpleNamespace(
        completeness=lambda count: steps.append(count) or complete, unavailable_reason=missing
    )
    found, entry, _ = outcome(a_training(log=log))
    assert (found["logs"].value, found["logs"].notes, entry["logs"]) == (complete, notes, said)
    assert steps == [4]


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Grades held-out calls; returns the rates, how many were asked, and the answers written."""
    asked: list[Any] = []

    def answers(model: Any, tokenizer: Any, share: Any) -> Any:
        asked.extend(share)
        return [evaluate.Answer("e", "t") for _ in share]

    monkeypatch.setattr(acceptance.evaluate, "generate_answers", answers)
    monkeypatch.setattr(
        acceptance.evaluate, "grade_rates",
        lambda all: dict.fromkeys(evaluate.GRADES, 100 * len(all) / 9),
    )  # fmt: skip

    def start(reloaded: Any, *, held_out: int = 3, rank: int = 0, others: Any = ([], 0)) -> Any:
        asked.clear()
        training = a_training()
        training.prepared.held_out = [f"call {k}" for k in range(held_out)]
        ranks = a_rank(
            rank=rank, world_size=2, gather=lambda own: [own, others[isinstance(own, int)]]
        )
        rates = acceptance._grade_rates(ranks, training, reloaded)
        return set(rates.values()), asked, len(training.written)

    return start


def test_each_rank_answers_its_share_and_one_writes_all(graded):
    other = ([["e", "t"]], 1)
    assert graded("model", others=other) == ({33.33}, ["call 0", "call 2"], 3)
    rates, asked, written = graded("model", rank=1, others=([["e", "t"]] * 2, 2))
    assert (rates, asked, written) == ({33.33}, ["call 1"], 0)


def test_without_every_answer_there_is_no_rate(graded):
    assert graded("model", others=([], -1))[0] == {None}, "the other rank could not reload"
    assert graded(None, others=([["e", "t"]], 1))[:2] == ({None}, [])
    assert graded("model", held_out=0) == ({None}, [], 0)
    # A rank without a share has nothing to answer, whether it could reload or not.
    assert graded(None, held_out=1, rank=1, others=([["e", "t"]], 1))[0] == {11.11}


def test_the_held_out_loss_needs_conversations_and_a_model_on_every_rank(monkeypatch):
    monkeypatch.setattr(acceptance.packing, "pack", lambda *given: "packed")
    monkeypatch.setattr(acceptance.model, "LossModel", lambda model, compiled: model)
    monkeypatch.setattr(acceptance.loop, "held_out_loss", lambda *given: 0.1234567)
    found = acceptance._held_out_loss(a_rank(), a_training(), "model")
    assert found == {"held_out_loss": 0.12346}
    assert acceptance._held_out_loss(a_rank(), a_training(), None) == {}
    lacking = a_rank(gather=lambda own: [own, False])
    assert acceptance._held_out_loss(lacking, a_training(), "model") == {}
    training = a_training()
    training.prepared.held_out = []
    assert acceptance._held_out_loss(a_rank(), training, "model") == {}


@pytest.mark.parametrize(
    ("metric", "rank", "expected"),
    [
        ("fsdp_loss", 0, {"fsdp_loss": 25.0, "fsdp_share": 50.0}),
        ("fsdp_loss", 1, {"fsdp_share": 50.0}), ("zero3_loss", 0, {"zero3_loss": 25.0}),
    ],
)  # fmt: skip
def test_a_sharded_training_is_compared_with_the_plain_one(metric, rank, expected, monkeypatch):
    monkeypatch.setattr(acceptance, "release_model", lambda training: None)
    trainings: dict[str, Any] = {}
    wanted = small_settings().with_values("distributed", strategy="fsdp")
    found = acceptance._sharded_measurements(
        a_rank(rank=rank, world_size=2), metric, a_training(wanted), [4.0, 4.0], trainings
    )
    assert {m.metric: m.value for m in found} == expected
    assert list(trainings) == ["fsdp"]
