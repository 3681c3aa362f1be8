"""The fine-tuning as a workload: the trainings to run and their measurements (node side).

In a job of the suite: the small model learns the synthetic conversations (loss, final/, evaluation,
logs), and again sharded by FSDP; then the large shape is timed with default.yaml and with
optimised.yaml. By hand: the given settings files, unchanged. Records contain no verdict.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime import process_group
from training.finetune import checkpoint, evaluate, loop, model, packing, summary
from training.finetune.settings import Settings, find, load, with_overrides
from training.finetune.training_run import (
    TrainingRun,
    release_model,
    run_training,
    wait_for_all_ranks,
)

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

EXCLUDED_STEPS, TIMED_STEPS = 10, 30
CPU_EXCLUDED_STEPS, CPU_TIMED_STEPS = 2, 6
"""The first steps compile, tune and allocate, and are excluded from rates."""

CPU_LEARNING_STEPS = 120
"""Steps in which the small model learns on shared cores; GPUs take those of small.yaml."""

CPU_LENGTH = 256
TIMED_SAMPLES = 2000

COMPARED_STEPS = 10
"""Steps in which a sharded training is compared with the plain one; later, rounding diverges."""

OUTCOME_METRICS = ("loss", "checkpoint", "logs", *evaluate.GRADES)
"""Metrics that only a completed training has."""

SLOW_RANK_RATIO = 1.05
"""A rank whose passes take longer than this times the median is named in the rate's note."""


def run(
    ranks: Ranks,
    metrics: list[str],
    *,
    configs: list[str] | None = None,
    model_path: str | None = None,
    data_path: str | None = None,
    strategy: str | None = None,
) -> Result:
    """Run all trainings and return their measurements; the facts hold each one's entry."""
    model.set_offline()
    process_group.of(ranks)
    with model.deprecations_ignored():
        return _run(
            ranks, metrics, configs, model_path=model_path, data_path=data_path, strategy=strategy
        )


def _run(
    ranks: Ranks,
    metrics: list[str],
    configs: list[str] | None,
    *,
    model_path: str | None,
    data_path: str | None,
    strategy: str | None,
) -> Result:
    measurements: list[Measurement] = []
    trainings: dict[str, Any] = {}
    if configs is None:
        measurements += _suite_trainings(ranks, set(metrics), trainings)
    else:
        for name in configs:
            settings = with_overrides(
                load(find(name)), model=model_path, data=data_path, strategy=strategy
            )
            measurements += _requested_training(ranks, settings, trainings)
    if ranks.on_gpu:
        import torch

        ooms = int(torch.cuda.memory_stats().get("num_ooms", 0))
        measurements.append(Measurement(metric="ooms", unit="errors", value=ooms))
    return Result(
        measurements=[m for m in measurements if m.metric in metrics],
        facts={name: _without_table(entry) for name, entry in trainings.items()}
        if ranks.rank == 0
        else {},
    )


def _without_table(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "table"}


def _suite_trainings(
    ranks: Ranks, wanted: set[str], trainings: dict[str, Any]
) -> list[Measurement]:
    """Run each training that the wanted metrics need, once; fill `trainings` with entries."""
    measurements: list[Measurement] = []
    small = load(find("small"))
    small = small.with_values("training", **_small_training(ranks, small))
    plain_losses: list[float] = []
    if wanted - {"rate", "speedup", "ooms"}:
        to_the_end = bool(wanted & set(OUTCOME_METRICS))
        training = run_training(
            ranks, small, log=to_the_end, max_steps=None if to_the_end else COMPARED_STEPS
        )
        plain_losses = training.history.losses
        if to_the_end:
            measurements += _outcome_measurements(ranks, training, trainings)
        release_model(training)
    for metric, strategy in (("fsdp_loss", "fsdp"), ("zero3_loss", "zero3")):
        if metric in wanted:
            training = run_training(
                ranks, small.with_values("distributed", strategy=strategy), max_steps=COMPARED_STEPS
            )
            measurements += _sharded_measurements(ranks, metric, training, plain_losses, trainings)
    if wanted & {"rate", "speedup"}:
        tokens_per_s = {}
        for name in ("default", "optimised"):
            training = run_training(
                ranks,
                _timing_settings(ranks, load(find(name))),
                samples=TIMED_SAMPLES,
                excluded=_excluded_steps(ranks),
            )
            measurements.append(_rate(ranks, training, trainings))
            own = training.tokens_per_s()[training.excluded :]
            tokens_per_s[name] = min(ranks.gather(undisturbed(own, on_gpu=ranks.on_gpu)))
            release_model(training)
        if ranks.rank == 0:
            speedup = 100 * tokens_per_s["optimised"] / tokens_per_s["default"]
            measurements.append(Measurement(metric="speedup", unit="%", value=round(speedup, 2)))
    if ranks.rank == 0:
        summary.write(summary.folder(ranks), {"trainings": trainings})
    return measurements


def _small_training(ranks: Ranks, small: Settings) -> dict[str, int]:
    """Return a global batch of at least the file's that divides among the ranks, and the steps."""
    sequences_per_pass = small.training.batch_size * ranks.world_size
    global_batch_size = sequences_per_pass * -(
        -small.training.global_batch_size // sequences_per_pass
    )
    steps = small.training.steps if ranks.on_gpu else CPU_LEARNING_STEPS
    return {"global_batch_size": global_batch_size, "steps": steps}


def _requested_training(
    ranks: Ranks, settings: Settings, trainings: dict[str, Any]
) -> list[Measurement]:
    """Run one training with the user's settings to its end; measure rate, final/ and learning."""
    training = run_training(ranks, settings, log=True, excluded=_excluded_steps(ranks))
    measurements = []
    if len(training.history.seconds) > training.excluded:
        measurements.append(_rate(ranks, training, trainings))
    measurements += _outcome_measurements(ranks, training, trainings)
    if ranks.rank == 0:
        summary.write(summary.folder(ranks), {"trainings": trainings})
    return measurements


def _excluded_steps(ranks: Ranks) -> int:
    return EXCLUDED_STEPS if ranks.on_gpu else CPU_EXCLUDED_STEPS


def _timing_settings(ranks: Ranks, settings: Settings) -> Settings:
    """Return settings for timing: one pass per step, few steps; the tiny shape on a CPU."""
    steps = EXCLUDED_STEPS + TIMED_STEPS
    if not ranks.on_gpu:
        steps = CPU_EXCLUDED_STEPS + CPU_TIMED_STEPS
        settings = settings.with_values("model", preset="tiny").with_values(
            "data", max_length=CPU_LENGTH
        )
    sequences_per_pass = settings.training.batch_size * ranks.world_size
    warmup = min(settings.training.warmup_steps, steps - 1)
    return settings.with_values(
        "training", steps=steps, warmup_steps=warmup, global_batch_size=sequences_per_pass
    )


# --- measurements of a training


def _rate(ranks: Ranks, training: TrainingRun, trainings: dict[str, Any]) -> Measurement:
    """Measure this rank's tokens/s without padding; note the job's, the slowest rank's.

    RuntimeError if a loss or gradient norm is not finite: a wrong training has no rate.
    """
    settings, history, excluded = training.settings, training.history, training.excluded
    summary.check_finite(history, f"{settings.name}.yaml")
    tokens_per_s = training.tokens_per_s()[excluded:]
    tokens, learned_tokens = (
        sum(counts)
        for counts in zip(*ranks.gather([sum(history.tokens), history.learned_tokens]), strict=True)
    )
    length = settings.data.max_length
    flop = training.cost.flop_per_token(length, learned_tokens / tokens)
    medians = ranks.gather(statistics.median(tokens_per_s))
    slowest = min(medians)
    pass_seconds = ranks.gather(
        [ranks.node, ranks.local_rank, statistics.median(history.pass_seconds[excluded:])]
    )
    entry = training.summary_entry(ranks)
    entry |= {
        "tokens_per_s_gpu": round(slowest, 1),
        "model_tflops": round(slowest * flop / 1e12, 3),
        "flops_per_token": flop,
        "learned_share": round(learned_tokens / tokens, 4),
    }
    trainings[settings.name] = entry
    measurement = Measurement(
        metric="rate",
        unit="tokens/s",
        samples=[float(f"{rate:.6g}") for rate in tokens_per_s],
        at={"settings": settings.name},
        conditions={
            "dtype": settings.model.precision if ranks.on_gpu else "fp32",
            "flops_per_token": flop,
        },
        checks={
            "steps": float(len(tokens_per_s)),
            "gradient_norm": min(history.norms),
            "padding": training.prepared.about["padding"],
        },
        started=round(history.ended[excluded - 1], 4) if excluded else round(history.started, 4),
        ended=[round(end, 4) for end in history.ended[excluded:]],
        notes=_slow_rank_note(pass_seconds) + training.notes,
    )
    return measurement


def undisturbed(tokens_per_s: Sequence[float], *, on_gpu: bool) -> float:
    """Return the tokens/s of a step that stands for all: the median, on a CPU the fastest.

    Ranks of a demonstration share their cores with each other and with what else runs there: of six
    steps of 50 ms more than half can be ten times as slow, which says nothing about the settings.
    """
    return statistics.median(tokens_per_s) if on_gpu else max(tokens_per_s)


def _slow_rank_note(pass_seconds: list[list[Any]]) -> list[str]:
    """Return a note on the slowest rank, if the others wait for it."""
    median = statistics.median_low([seconds for _, _, seconds in pass_seconds])
    node, local, longest = max(pass_seconds, key=lambda rank_pass: float(rank_pass[2]))
    if longest <= SLOW_RANK_RATIO * median:
        return []
    return [f"{node} gpu{local} takes {longest:.3g} s for its passes, half of them {median:.3g} s"]


def _outcome_measurements(
    ranks: Ranks, training: TrainingRun, trainings: dict[str, Any]
) -> list[Measurement]:
    """Measure the final loss, final/ after reloading, the logs, and the evaluation."""
    settings, history = training.settings, training.history
    summary.check_finite(history, f"{settings.name}.yaml")
    # On all ranks: sharded weights are gathered.
    adapters = checkpoint.adapters_of(training.peft_model)
    data = (training.prepared.packed, settings, ranks)
    expected_loss = loop.first_batch_loss(training.loss_model, *data)
    final = training.folder / "final"
    if ranks.rank == 0:
        checkpoint.save(
            adapters, training.peft_model, training.prepared.tokenizer, settings, training.folder
        )
    entry = trainings.setdefault(settings.name, training.summary_entry(ranks))
    release_model(training)
    wait_for_all_ranks(ranks)

    def loss_of(reloaded: Any) -> float:
        return loop.first_batch_loss(model.LossModel(reloaded, compiled=False), *data)

    state, reloaded = checkpoint.check(final, adapters, expected_loss, loss_of, settings, ranks)
    measurements = [Measurement(metric="checkpoint", unit="state", value=state)]
    learns = settings.model.path is not None or settings.model.preset == "tiny"
    if learns:
        grade_rates = _grade_rates(ranks, training, reloaded)
        entry |= {name: value for name, value in grade_rates.items() if value is not None}
        entry |= _held_out_loss(ranks, training, reloaded)
        notes = [] if reloaded is not None else [state]
        notes += [] if training.prepared.held_out else ["no conversation is held out"]
        if ranks.rank == 0:
            final_loss = history.losses[-1]
            measurements.append(Measurement(metric="loss", unit="nats", value=round(final_loss, 5)))
            measurements += [
                Measurement(metric=name, unit="%", value=grade_rates[name], notes=notes)
                for name in evaluate.GRADES
            ]
    entry |= {"final_loss": round(history.losses[-1], 5), "checkpoint": state}
    if training.log is not None:
        completeness = training.log.completeness(len(history.losses))
        entry["logs"] = completeness or training.log.unavailable_reason
        notes = [training.log.unavailable_reason] if training.log.unavailable_reason else []
        measurements.append(
            Measurement(metric="logs", unit="state", value=completeness, notes=notes)
        )
    return measurements


def _grade_rates(ranks: Ranks, training: TrainingRun, reloaded: Any) -> dict[str, float | None]:
    """Return rates over the held-out calls, a share on each rank; None if not all were answered."""
    answers = []
    share = training.prepared.held_out[ranks.rank :: ranks.world_size]
    if reloaded is not None and share:
        answers = evaluate.generate_answers(reloaded, training.prepared.tokenizer, share)
    pairs_by_rank = ranks.gather([[a.expected, a.text] for a in answers])
    all_answers = [evaluate.Answer(*pair) for pairs in pairs_by_rank for pair in pairs]
    answer_count = sum(ranks.gather(len(answers) if reloaded is not None or not share else -1))
    if ranks.rank == 0:
        training.write_answers(all_answers)
    if not all_answers or answer_count != len(all_answers):
        return dict.fromkeys(evaluate.GRADES)
    return {name: round(rate, 2) for name, rate in evaluate.grade_rates(all_answers).items()}


def _held_out_loss(ranks: Ranks, training: TrainingRun, reloaded: Any) -> dict[str, float]:
    """Return the loss of the reloaded model on the held-out conversations; {} without either."""
    if not training.prepared.held_out or not all(ranks.gather(reloaded is not None)):
        return {}
    settings, prepared = training.settings, training.prepared
    packed = packing.pack(prepared.tokenizer, prepared.held_out, settings.data.max_length)
    loss_model = model.LossModel(reloaded, compiled=False)
    return {"held_out_loss": round(loop.held_out_loss(loss_model, packed, settings, ranks), 5)}


def _sharded_measurements(
    ranks: Ranks,
    metric: str,
    training: TrainingRun,
    plain_losses: list[float],
    trainings: dict[str, Any],
) -> list[Measurement]:
    """Measure loss differences from the plain training, and the share of weights on a rank."""
    losses = training.history.losses
    summary.check_finite(training.history, training.settings.distributed.strategy)
    difference = max(abs(a - b) / b for a, b in zip(losses, plain_losses, strict=False))
    entry = training.summary_entry(ranks)
    trainings[training.settings.distributed.strategy] = entry
    measurements = []
    if ranks.rank == 0:
        measurements.append(Measurement(metric=metric, unit="%", value=round(100 * difference, 4)))
    if metric == "fsdp_loss":
        share = 100 * training.resident_bytes * ranks.world_size / training.model_bytes
        measurements.append(Measurement(metric="fsdp_share", unit="%", value=round(share, 2)))
    release_model(training)
    return measurements
