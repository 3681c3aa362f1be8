"""The fine-tuning as a workload: which trainings run, and what is measured of each (node side).

In a job of the suite: the small model learns the project's conversations (loss, final/, evaluation,
logs), does the same sharded by FSDP, then the large shape is timed with default.yaml and with
optimised.yaml. By hand: whatever settings are named, as they stand. Records carry no verdict.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from fixtures.records.model import Measurement, Result
from fixtures.workloads.runtime import process_group
from training.finetune import checkpoint, evaluate, loop, model, summary
from training.finetune.once import Training, release, train_once, wait
from training.finetune.settings import Settings, find, load, told

if TYPE_CHECKING:
    from fixtures.workloads.runtime.ranks import Ranks

WARM_STEPS, TIMED_STEPS = 10, 30
CPU_WARM_STEPS, CPU_TIMED_STEPS = 2, 6
"""The first steps compile, tune and allocate, and are in no rate."""

CPU_LENGTH = 256
TIMED_SAMPLES = 2000

COMPARED_STEPS = 10
"""Of a sharded training with the plain one; further on roundings have grown apart."""

OUTCOME = ("loss", "checkpoint", "logs", *evaluate.RATES)
"""What only a training that has gone to its end can show."""

NOTICED = 1.05
"""A rank whose passes take so many times the median of all is named beside the rate."""


def run(
    ranks: Ranks,
    metrics: list[str],
    *,
    configs: list[str] | None = None,
    model_path: str | None = None,
    data_path: str | None = None,
    strategy: str | None = None,
) -> Result:
    """Measurements of all trainings; the facts hold them side by side."""
    model.offline()
    process_group.of(ranks)
    with model.between_libraries():
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
    found: list[Measurement] = []
    trainings: dict[str, Any] = {}
    if configs is None:
        found += _suite(ranks, set(metrics), trainings)
    else:
        for name in configs:
            settings = told(load(find(name)), model=model_path, data=data_path, strategy=strategy)
            found += _by_hand(ranks, settings, trainings)
    if ranks.on_gpu:
        import torch

        ooms = int(torch.cuda.memory_stats().get("num_ooms", 0))
        found.append(Measurement(metric="ooms", unit="errors", value=ooms))
    return Result(
        measurements=[m for m in found if m.metric in metrics],
        facts={name: _fact(about) for name, about in trainings.items()} if ranks.rank == 0 else {},
    )


def _fact(about: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name != "table"}


def _suite(ranks: Ranks, wanted: set[str], trainings: dict[str, Any]) -> list[Measurement]:
    """What the suite's criteria need: each training once, and only those that are asked for."""
    found: list[Measurement] = []
    small = load(find("small"))
    small = small.but("training", **_small_batch(ranks, small))
    plain: list[float] = []
    if wanted - {"rate", "speedup", "ooms"}:
        whole = bool(wanted & set(OUTCOME))
        training = train_once(ranks, small, log=whole, stop=None if whole else COMPARED_STEPS)
        plain = training.found.losses
        if whole:
            found += _outcome(ranks, training, trainings)
        release(training)
    for metric, strategy in (("fsdp_loss", "fsdp"), ("zero3_loss", "zero3")):
        if metric in wanted:
            sharded = train_once(
                ranks, small.but("distributed", strategy=strategy), stop=COMPARED_STEPS
            )
            found += _sharded(ranks, metric, sharded, plain, trainings)
    if wanted & {"rate", "speedup"}:
        speeds = {}
        for name in ("default", "optimised"):
            timed = train_once(
                ranks, _timed(ranks, load(find(name))), samples=TIMED_SAMPLES, skip=_skip(ranks)
            )
            rate, speeds[name] = _rate(ranks, timed, trainings)
            found.append(rate)
            release(timed)
        if ranks.rank == 0:
            faster = 100 * speeds["optimised"] / speeds["default"]
            found.append(Measurement(metric="speedup", unit="%", value=round(faster, 2)))
    if ranks.rank == 0:
        summary.write(summary.folder(ranks), {"trainings": trainings})
    return found


def _small_batch(ranks: Ranks, small: Settings) -> dict[str, int]:
    """At least the step of the file, on any number of ranks."""
    together = small.training.batch_size * ranks.world_size
    batch = together * -(-small.training.global_batch_size // together)
    return {"global_batch_size": batch}


def _by_hand(ranks: Ranks, settings: Settings, trainings: dict[str, Any]) -> list[Measurement]:
    """One training as its settings say, whole: rate, final/, and what it learned."""
    training = train_once(ranks, settings, log=True, skip=_skip(ranks))
    found = []
    if len(training.found.seconds) > training.skip:
        found.append(_rate(ranks, training, trainings)[0])
    found += _outcome(ranks, training, trainings)
    if ranks.rank == 0:
        summary.write(summary.folder(ranks), {"trainings": trainings})
    return found


def _skip(ranks: Ranks) -> int:
    return WARM_STEPS if ranks.on_gpu else CPU_WARM_STEPS


def _timed(ranks: Ranks, settings: Settings) -> Settings:
    """One pass a step, and as many steps as a rate needs; the tiny shape on a CPU."""
    steps = WARM_STEPS + TIMED_STEPS
    if not ranks.on_gpu:
        steps = CPU_WARM_STEPS + CPU_TIMED_STEPS
        settings = settings.but("model", preset="tiny").but("data", max_length=CPU_LENGTH)
    together = settings.training.batch_size * ranks.world_size
    warmup = min(settings.training.warmup_steps, steps - 1)
    return settings.but("training", steps=steps, warmup_steps=warmup, global_batch_size=together)


# --- what is measured of a training


def _rate(ranks: Ranks, training: Training, trainings: dict[str, Any]) -> tuple[Measurement, float]:
    """Tokens/s of this rank that are no padding; and the job's, which is the slowest rank's.

    Correct, or no rate: a loss or a gradient that is no number ends the workload.
    """
    settings, found, skip = training.settings, training.found, training.skip
    summary.finite(found, f"{settings.name}.yaml")
    rates = training.rates()[skip:]
    tokens, learned = (
        sum(each) for each in zip(*ranks.gather([sum(found.tokens), found.learned]), strict=True)
    )
    length = settings.data.max_length
    flop = training.cost.flop_per_token(length, learned / tokens)
    medians = ranks.gather(statistics.median(rates))
    speed = min(medians)
    busy = ranks.gather([ranks.node, ranks.local_rank, statistics.median(found.busy[skip:])])
    about = training.about(ranks)
    about |= {
        "tokens_per_s_gpu": round(speed, 1),
        "model_tflops": round(speed * flop / 1e12, 3),
        "flops_per_token": flop,
        "learned_share": round(learned / tokens, 4),
    }
    trainings[settings.name] = about
    measurement = Measurement(
        metric="rate",
        unit="tokens/s",
        samples=[float(f"{rate:.6g}") for rate in rates],
        at={"settings": settings.name},
        conditions={
            "dtype": settings.model.precision if ranks.on_gpu else "fp32",
            "flops_per_token": flop,
        },
        checks={
            "steps": float(len(rates)),
            "gradient_norm": min(found.norms),
            "padding": training.prepared.about["padding"],
        },
        started=round(found.ended[skip - 1], 4) if skip else round(found.started, 4),
        ended=[round(end, 4) for end in found.ended[skip:]],
        notes=_slow(busy) + training.notes,
    )
    return measurement, speed


def _slow(busy: list[list[Any]]) -> list[str]:
    """The rank that the others wait for, where there is one."""
    usual = statistics.median_low([seconds for _, _, seconds in busy])
    node, local, longest = max(busy, key=lambda one: float(one[2]))
    if longest <= NOTICED * usual:
        return []
    return [f"{node} gpu{local} takes {longest:.3g} s for its passes, half of them {usual:.3g} s"]


def _outcome(ranks: Ranks, training: Training, trainings: dict[str, Any]) -> list[Measurement]:
    """Loss at the end, final/ and what comes back from it, logs, and the evaluation."""
    settings, found = training.settings, training.found
    summary.finite(found, f"{settings.name}.yaml")
    # All ranks take part where weights are sharded.
    adapters = checkpoint.adapters_of(training.adapted)
    rows = (training.prepared.packed, settings, ranks)
    before = loop.loss_of(training.tuned, *rows)
    final = training.folder / "final"
    if ranks.rank == 0:
        checkpoint.save(
            adapters, training.adapted, training.prepared.tokenizer, settings, training.folder
        )
    about = trainings.setdefault(settings.name, training.about(ranks))
    release(training)
    wait(ranks)

    def probe(again: Any) -> float:
        return loop.loss_of(model.Tuned(again, compiled=False), *rows)

    state, again = checkpoint.check(final, adapters, before, probe, settings, ranks)
    measured = [Measurement(metric="checkpoint", unit="state", value=state)]
    learns = settings.model.path is not None or settings.model.preset == "tiny"
    if learns:
        graded = _evaluated(ranks, training, again)
        about |= {name: value for name, value in graded.items() if value is not None}
        why = [] if again is not None else [state]
        why += [] if training.prepared.held_out else ["no conversation is held out"]
        if ranks.rank == 0:
            last = found.losses[-1]
            measured.append(Measurement(metric="loss", unit="nats", value=round(last, 5)))
            measured += [
                Measurement(metric=name, unit="%", value=graded[name], notes=why)
                for name in evaluate.RATES
            ]
    about |= {"final_loss": round(found.losses[-1], 5), "checkpoint": state}
    if training.log is not None:
        logged = training.log.state(len(found.losses))
        about["logs"] = logged or training.log.why
        notes = [training.log.why] if training.log.why else []
        measured.append(Measurement(metric="logs", unit="state", value=logged, notes=notes))
    return measured


def _evaluated(ranks: Ranks, training: Training, again: Any) -> dict[str, float | None]:
    """Rates over what was held out, each rank asking its share; None where nothing was asked."""
    answers = []
    share = training.prepared.held_out[ranks.rank :: ranks.world_size]
    if again is not None and share:
        answers = evaluate.ask(again, training.prepared.tokenizer, share)
    everyone = ranks.gather([[a.expected, a.said] for a in answers])
    said = [evaluate.Answer(*pair) for pairs in everyone for pair in pairs]
    asked = sum(ranks.gather(len(answers) if again is not None or not share else -1))
    if ranks.rank == 0:
        training.keep(said)
    if not said or asked != len(said):
        return dict.fromkeys(evaluate.RATES)
    return {name: round(rate, 2) for name, rate in evaluate.rates(said).items()}


def _sharded(
    ranks: Ranks, metric: str, training: Training, plain: list[float], trainings: dict[str, Any]
) -> list[Measurement]:
    """How far a sharded training's losses are from the plain one's, and what a rank keeps of it."""
    losses = training.found.losses
    summary.finite(training.found, training.settings.distributed.strategy)
    apart = max(abs(a - b) / b for a, b in zip(losses, plain, strict=False))
    about = training.about(ranks)
    trainings[training.settings.distributed.strategy] = about
    measured = []
    if ranks.rank == 0:
        measured.append(Measurement(metric=metric, unit="%", value=round(100 * apart, 4)))
    if metric == "fsdp_loss":
        share = 100 * training.resident * ranks.world_size / training.whole
        measured.append(Measurement(metric="fsdp_share", unit="%", value=round(share, 2)))
    release(training)
    return measured
