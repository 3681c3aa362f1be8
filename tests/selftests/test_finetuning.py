"""The LoRA fine-tuning: data, settings, loss, training, final/, evaluation, and its criteria."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.records.model import Measurement, Record
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.judge import judge
from fixtures.verdict.model import Case, Outcome, Verdict
from tests.selftests import support
from tests.selftests.test_workloads import Job, clean_environment
from training.finetune import WORKLOAD, evaluate, glaive, sample, settings
from training.finetune.settings import InputError, LoraSettings, Settings

pytestmark = pytest.mark.cpu

CALL = """<functioncall> {"name": "f", "arguments": '{"city": "Oslo", "n": 2}'}"""
ROW = {
    "system": "SYSTEM: You may call f.",
    "chat": f"USER: Call it.\n\n\nASSISTANT: {CALL} <|endoftext|>\n\n\n"
    'FUNCTION RESPONSE: {"ok": true}\n\n\nASSISTANT: Done. <|endoftext|>\n\n\n',
}
BROKEN = [
    ("{", "no JSON"),
    ("[1]", "no object with system and chat"),
    (json.dumps({"system": "SYSTEM: x"}), "chat is missing"),
    (json.dumps({**ROW, "chat": "Hello"}), "expected USER:"),
    (json.dumps({**ROW, "chat": "USER: Hello"}), "no ASSISTANT: turn"),
    (json.dumps({**ROW, "chat": "USER: x\nASSISTANT: <functioncall> {"}), "cannot be read"),
]


# --- data


def test_a_conversation_is_read_as_glaive_writes_it():
    conversation = glaive.parse(ROW)
    assert conversation.system == "You may call f."
    roles = [turn.role for turn in conversation.turns]
    assert roles == ["USER", "ASSISTANT", "FUNCTION RESPONSE", "ASSISTANT"]
    assert glaive.call_of(conversation.turns[1].text) == glaive.Call("f", {"city": "Oslo", "n": 2})
    assert glaive.parse(glaive.row_of(conversation)) == conversation


@pytest.mark.parametrize(
    "text",
    [
        '<functioncall> {"name": "f", "arguments": {"a": "it\'s"}}',
        '<functioncall> {"name": "f", "arguments": "{\\"a\\": \\"it\'s\\"}"} <|endoftext|>',
        """<functioncall> {"name": "f", "arguments": '{"a": "it\\'s"}'}""",
    ],
)
def test_every_spelling_of_a_call_is_read(text):
    assert glaive.call_of(text) == glaive.Call("f", {"a": "it's"})


@pytest.mark.parametrize(
    "text", ["", "Hello", "<functioncall> {}", '<functioncall> {"name": "f", "arguments": [1]}']
)
def test_what_is_no_call_is_none(text):
    assert glaive.call_of(text) is None


@pytest.mark.parametrize(("line", "said"), BROKEN)
def test_a_broken_line_is_named_by_its_number(tmp_path, line, said):
    path = tmp_path / "data.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n\n{line}\n{json.dumps(ROW)}\n")
    with pytest.raises(InputError, match=r"1 of 3 conversations are broken: line 3: ") as error:
        glaive.read(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    found, broken = glaive.read(path, skip_broken=True)
    assert len(found) == 2
    assert broken == [b for b in broken if b.startswith("line 3: ")]


def test_of_many_broken_lines_some_are_named(tmp_path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps([ROW, *[{}] * 9]))
    with pytest.raises(InputError, match=r"9 of 10 .*entry 2: .*entry 6: .*and 4 more"):
        glaive.read(path)


def test_a_file_without_conversations_is_refused(tmp_path):
    (tmp_path / "data.jsonl").write_text("\n")
    with pytest.raises(InputError, match="no conversation"):
        glaive.read(tmp_path / "data.jsonl")


def test_the_projects_conversations_are_the_same_for_the_same_seed():
    assert sample.rows(20, 1) == sample.rows(20, 1) != sample.rows(20, 2)
    for row in sample.rows(50):
        conversation = glaive.parse(row)
        (call,) = [glaive.call_of(t.text) for t in conversation.turns if t.calls]
        assert call is not None
        assert set(call.arguments) == set(sample.FUNCTIONS[call.name][1])
        assert all(value in conversation.turns[0].text for value in call.arguments.values())


def test_what_is_held_out_is_not_trained_on():
    conversations = [glaive.parse(row) for row in sample.rows(40)]
    training, held_out = glaive.split(conversations, 0.25, 3)
    assert (len(training), len(held_out)) == (30, 10)
    assert Counter(map(repr, training + held_out)) == Counter(map(repr, conversations))
    assert glaive.split(conversations, 0.25, 3) == (training, held_out)


@pytest.fixture(scope="module")
def conversations() -> list[glaive.Conversation]:
    return [glaive.parse(row) for row in sample.rows(200)]


@pytest.fixture(scope="module")
def tokenizer(conversations: list[glaive.Conversation]) -> Any:
    return sample.tokenizer(conversations, 640)


def test_only_what_the_assistant_says_is_learned(tokenizer):
    from training.finetune import packing

    tokens, labels = packing.encode(tokenizer, glaive.parse(ROW))
    learned = [t for t, label in zip(tokens, labels, strict=True) if label != packing.IGNORED]
    assert tokenizer.decode(learned) == f" {CALL}<|endoftext|> Done.<|endoftext|>"
    assert [x for x in labels if x != packing.IGNORED] == learned


def test_packing_keeps_conversations_whole_and_counts_padding(tokenizer, conversations):
    from training.finetune import packing

    packed = packing.pack(tokenizer, conversations, 512)
    about = packed.about()
    assert about["conversations"] == len(conversations)
    assert about["tokens"] == sum(len(packing.encode(tokenizer, c)[0]) for c in conversations)
    assert about["padding"] == pytest.approx(1 - about["tokens"] / packed.tokens.numel(), abs=1e-4)
    assert about["padding"] < 0.2
    for row in range(len(packed)):
        for part in range(1, int(packed.part[row].max()) + 1):
            text = tokenizer.decode(packed.tokens[row][packed.part[row] == part])
            assert text.startswith("SYSTEM: ")
            assert text.count("<|endoftext|>") == 2


def test_a_conversation_that_is_too_long_is_cut_and_one_without_an_answer_left_out(tokenizer):
    from training.finetune import packing

    conversation = glaive.parse(ROW)
    assert packing.pack(tokenizer, [conversation], 60).about()["tokens"] == 60
    with pytest.raises(InputError, match="nothing to learn is left in sequences of 8 tokens"):
        packing.pack(tokenizer, [conversation], 8)


def test_a_batch_wants_the_token_after_each_place(tokenizer, conversations):
    from training.finetune import packing

    packed = packing.pack(tokenizer, conversations, 256)
    batch = packing.batch_of(packed, [0, 1], separate=True)
    flat = batch.tokens.flatten()
    real = batch.wanted != packing.IGNORED
    assert int(real.sum()) == batch.learned > 0
    assert flat[batch.where[real] + 1].tolist() == batch.wanted[real].tolist()
    assert len(batch.where) % batch.chunk == 0
    assert batch.used == int((packed.part[:2] > 0).sum())
    assert batch.positions is not None
    begins = (batch.positions == 0).sum(dim=1)
    parts = packed.part[:2].max(dim=1).values + (packed.part[:2, -1] == 0).int()
    assert begins.tolist() == parts.tolist()


@pytest.mark.parametrize(("count", "world", "size"), [(12, 3, 2), (7, 4, 1), (3, 4, 2)])
def test_the_ranks_together_take_every_sequence_once_an_epoch(count, world, size):
    from training.finetune import packing

    passes = 2 * count
    ranks = [
        packing.schedule(count, seed=1, passes=passes, batch_size=size, rank=rank, world_size=world)
        for rank in range(world)
    ]
    taken = [row for k in range(passes) for rank in ranks for row in rank[k]]
    assert len(taken) == passes * size * world
    for epoch in range(len(taken) // count):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))


# --- settings


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
        ("trainning: {}", "unknown key 'trainning'; did you mean training"),
        ("training: {batchsize: 2}", "unknown key 'batchsize'; did you mean batch_size"),
        ("training: {learning_rate: 2e-5}", "'2e-5' is read as text: write 2e-05"),
        ("training: {batch_size: 2.5}", "training.batch_size: expected int, got 2.5"),
        ("training: {batch_size: true}", "expected int, got True"),
        ("training: {batch_size: 0}", "training.batch_size: 0 is not above 0"),
        ("training: {warmup_steps: 100}", "is not below training.steps, 100"),
        ("training: {seed: 1, seed: 2}", "seed is given twice"),
        ("model: {precision: fp16}", "model.precision: 'fp16' is not known"),
        ("model: {preset: qwen2-70b}", "'qwen2-70b' is not known; did you mean qwen2-7b"),
        ("distributed: {strategy: ddp}", "distributed.strategy: 'ddp' is not known"),
        ("lora: {targets: [1]}", "lora.targets: expected str or list"),
        ("lora: {dropout: 1}", "lora.dropout: 1.0 is not between 0 and 1"),
        ("data: [1]", "data: expected keys with values"),
        ("- 1", "expected sections"),
        ("a: [", "no YAML"),
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


def by_hand(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training.finetune", *map(str, arguments)]
    env = clean_environment() | environment
    return subprocess.run(
        command, capture_output=True, text=True, cwd=support.CHECKOUT, env=env, timeout=120
    )


def test_what_is_given_wrong_ends_a_run_by_hand_before_torch_is_there(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(f"{json.dumps(ROW)}\n{{\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    cases = [
        (["--config", "small.yaml", "--model", tmp_path / "none"], "none is no directory"),
        (["--config", "small.yaml", "--model", tmp_path / "empty"], "holds no config.json"),
        (["--config", "small.yaml", "--data", tmp_path / "none"], "none is no file"),
        (["--config", "small.yaml", "--data", data], "1 of 2 conversations are broken: line 2: "),
        (["--config", "smal.yaml"], "no such file of settings; shipped are default.yaml"),
        (["--model", tmp_path], "--model, --data and --strategy go with --config"),
    ]
    for arguments, said in cases:
        run = by_hand(*arguments, "--out", tmp_path / "out", PYTHONPATH=str(tmp_path))
        assert run.returncode == 2, run.stderr
        assert said in run.stderr.splitlines()[-1]
    run = by_hand(
        "--config", "small.yaml", "--out", tmp_path / "out", RANK="0", WORLD_SIZE="3",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr == (
        "python -m training.finetune: training.global_batch_size 16 does not divide by"
        " batch_size x GPUs = 4 x 3; take a multiple of 12\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_package_that_is_not_there_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        settings.importlib.util, "find_spec", lambda name: None if name == "deepspeed" else name
    )
    settings.check_packages("fsdp")
    with pytest.raises(InputError, match=r"not installed: deepspeed; .*extra 'zero3'"):
        settings.check_packages("zero3")


# --- the model and its loss


@pytest.mark.parametrize(("targets", "trained"), [("attention", 40_370_176), ("all", 161_480_704)])
def test_lora_trains_so_many_parameters_of_the_7b_shape(targets, trained):
    """40.4 M with the four projections of attention; the published 161 M with all seven layers."""
    from training.finetune import model

    assert model.trainable_of_shape("qwen2-7b", LoraSettings(targets=targets)) == trained


@pytest.fixture(scope="module")
def cost() -> Any:
    from training.finetune import model

    shape = model.config_of(Settings().model)
    return model.Cost(shape, 40_370_176, 7_615_616_512 + 40_370_176)


def test_the_work_a_token_is_that_of_frozen_weights(cost):
    half = cost.flop_per_token(4096, 1.0)
    full = half + 6 * 28 * 3584 * 4096
    assert full == pytest.approx(33.5e9, rel=0.005)  # with the whole square of attention
    assert half - cost.flop_per_token(4096, 0.5) == pytest.approx(2 * 152064 * 3584)


def test_the_memory_of_a_pass_is_as_measured(cost):
    assert 55 < cost.memory_gib(8192, checkpointing=False) < 67
    assert 18 < cost.memory_gib(8192, checkpointing=True) < 31


@pytest.mark.parametrize(("gib", "batch"), [(126, 4), (71, 2), (36, 1)])
def test_the_batch_is_halved_until_it_fits_and_the_step_stays(cost, gib, batch):
    from training.finetune import once

    wanted = settings.load(settings.find("optimised"))
    found, notes = once.fit(wanted, cost, gib)
    assert found.training.batch_size == batch
    assert found.training.global_batch_size == wanted.training.global_batch_size
    assert bool(notes) == (batch != 4)


def test_the_loss_of_the_head_is_cross_entropy():
    import torch

    from training.finetune.loss import head_loss
    from training.finetune.packing import IGNORED

    torch.manual_seed(0)
    hidden = torch.randn(64, 16, requires_grad=True)
    weight, wanted = torch.randn(100, 16), torch.randint(0, 100, (64,))
    wanted[::5] = IGNORED
    usual = hidden.detach().clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        usual @ weight.t(), wanted, reduction="sum", ignore_index=IGNORED
    )
    (3 * expected).backward()
    loss = head_loss(hidden, weight, wanted, chunk=16)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(hidden.grad, usual.grad)


class Alone:
    """The one rank of a training in this process."""

    def __init__(self, root: Path) -> None:
        import torch

        self.spec = {"run_directory": str(root)}
        self.rank, self.local_rank, self.world_size, self.node = 0, 0, 1, "worker0"
        self.on_gpu, self.device = False, torch.device("cpu")

    def gather(self, item: Any) -> list[Any]:
        return [item]

    def barrier(self) -> None:
        pass


def small(steps: int) -> Settings:
    found = settings.load(settings.find("small"))
    return found.but("training", steps=steps, batch_size=8)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_compiled_layer_serves_them_all(
    tokenizer, conversations, tmp_path, monkeypatch, checkpointing
):
    import torch
    from torch._dynamo.testing import CompileCounter

    from training.finetune import model, packing, shapes

    torch._dynamo.reset()
    monkeypatch.setitem(shapes.SHAPES["tiny"], "num_hidden_layers", 4)
    wanted = small(6)
    ranks: Any = Alone(tmp_path)
    adapted = model.adapt(model.build(wanted.model, ranks.device, seed=0), wanted.lora, seed=0)
    tuned = model.prepared(adapted, wanted, ranks)
    counter = CompileCounter()
    model.compile_layers(tuned, backend=counter)
    if checkpointing:
        model.recompute_layers(tuned)
    packed = packing.pack(tokenizer, conversations, 256)
    for rows in ([0, 1], [2, 3], [4, 5]):
        with model.between_libraries():
            tuned(packing.batch_of(packed, rows, separate=False)).backward()
    assert len(tuned.layers) == 4
    # The first layer's input needs no gradient, that of the others does; and no graph is broken.
    assert counter.frame_count == 2
    torch._dynamo.reset()


# --- training, final/, evaluation


@pytest.fixture(scope="module")
def learned(tokenizer, conversations, tmp_path_factory) -> Any:
    """A short training of the small model, and its final/."""
    import torch

    from training.finetune import checkpoint, loop, model, packing

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("learned")
    ranks: Any = Alone(root)
    wanted = small(40)
    adapted = model.adapt(model.build(wanted.model, ranks.device, seed=0), wanted.lora, seed=0)
    packed = packing.pack(tokenizer, conversations, wanted.data.max_length)
    seen: list[int] = []
    tuned = model.prepared(adapted, wanted, ranks)
    found = loop.train(tuned, packed, wanted, ranks, watch=lambda step, *figures: seen.append(step))
    weights = checkpoint.adapters_of(adapted)
    final = checkpoint.save(weights, adapted, tokenizer, wanted, root)
    yield SimpleNamespace(
        found=found, seen=seen, wanted=wanted, ranks=ranks, weights=weights, final=final,
        packed=packed, loss=loop.loss_of(tuned, packed, wanted, ranks),
    )  # fmt: skip
    torch.set_num_threads(threads)


def state_of(learned: Any, final: Path) -> str:
    from training.finetune import checkpoint, loop, model

    def probe(again: Any) -> float:
        tuned = model.Tuned(again, compiled=False)
        return loop.loss_of(tuned, learned.packed, learned.wanted, learned.ranks)

    return checkpoint.check(
        final, learned.weights, learned.loss, probe, learned.wanted, learned.ranks
    )[0]


@pytest.fixture(scope="module")
def limits() -> Thresholds:
    return loader.load(support.SHIPPED)


def judged(limits: Thresholds, key: str, *values: Any, **more: Any) -> Verdict:
    """A criterion of the fine-tuning over two nodes of two ranks, of which each has a value."""
    criterion = limits.criteria[key]
    each = values if len(values) == 4 else values * 4
    ranks = [
        support.rank(k, f"worker{k // 2}", Measurement(
            metric=criterion.metric, unit=criterion.unit, at=dict(criterion.at), value=value,
            **more,
        ), model="cpu", name="cpu")
        for k, value in enumerate(each)
    ]  # fmt: skip
    return decided(limits, key, support.record(*ranks, workload=criterion.workload))


def decided(limits: Thresholds, key: str, record: Record) -> Verdict:
    criterion = limits.criteria[key]
    nodes = tuple(record.nodes)
    whole = criterion.over == "devices" or criterion.statistic == "median"
    case = Case(
        criterion=criterion, subject="cluster", nodes=nodes, together=nodes,
        devices=record.world_size if whole else len(nodes), record=record,
        facts={"model": "cpu", "nodes": len(nodes), "gpus": record.world_size, **criterion.at},
    )  # fmt: skip
    return judge(case, limits)


def test_a_training_learns_and_tells_of_every_step(learned, limits):
    found = learned.found
    assert learned.seen == list(range(40))
    assert found.losses[0] > 5 > 0.5 > found.losses[-1]
    assert max(found.rates) == learned.wanted.training.learning_rate
    assert found.rates[-1] < 0.01 * max(found.rates)
    assert len(found.seconds) == len(found.ended) == 40
    assert sum(found.tokens) > found.learned > 0
    assert judged(limits, "finetune.loss", found.losses[-1]).ok


def test_a_training_on_shuffled_labels_is_red(learned, limits, tmp_path):
    """Fault below the workload: the answers do not belong to the questions."""
    import torch

    from training.finetune import loop, model, packing

    packed, wanted = learned.packed, learned.wanted
    real = packed.labels != packing.IGNORED
    labels = packed.labels.clone()
    shuffle = torch.randperm(int(real.sum()), generator=torch.Generator().manual_seed(0))
    labels[real] = packed.labels[real][shuffle]
    adapted = model.adapt(
        model.build(wanted.model, torch.device("cpu"), seed=0), wanted.lora, seed=0
    )
    tuned = model.prepared(adapted, wanted, learned.ranks)
    wrong = packing.Packed(packed.tokens, labels, packed.part)
    found = loop.train(tuned, wrong, wanted, learned.ranks)
    verdict = judged(limits, "finetune.loss", found.losses[-1])
    assert verdict.outcome is Outcome.FAIL, verdict.line


def test_no_step_waits_for_the_device(learned):
    """A number that is read on the way would stop the queue of a GPU in every step."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from training.finetune import loop, model

    read: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
                read.append("".join(traceback.format_stack(limit=12)))
            return func(*args, **(kwargs or {}))

    wanted = learned.wanted.but("data", separate=False)
    base = model.build(wanted.model, learned.ranks.device, seed=0)
    tuned = model.prepared(model.adapt(base, wanted.lora, seed=0), wanted, learned.ranks)
    with Count():
        loop.train(tuned, learned.packed, wanted, learned.ranks, stop=3)
    assert [where for where in read if "packing.py" not in where] == []


def test_recomputed_layers_train_the_same(learned):
    from training.finetune import loop, model

    wanted = learned.wanted.but("training", gradient_checkpointing=True)
    base = model.build(wanted.model, learned.ranks.device, seed=0)
    tuned = model.prepared(model.adapt(base, wanted.lora, seed=0), wanted, learned.ranks)
    found = loop.train(tuned, learned.packed, wanted, learned.ranks, stop=3)
    assert found.losses == pytest.approx(learned.found.losses[:3], rel=1e-5)


def test_accumulated_passes_are_one_large_batch(learned):
    from training.finetune import loop, model

    def losses(batch_size: int) -> list[float]:
        wanted = learned.wanted.but("training", batch_size=batch_size)
        base = model.build(wanted.model, learned.ranks.device, seed=0)
        tuned = model.prepared(model.adapt(base, wanted.lora, seed=0), wanted, learned.ranks)
        return loop.train(tuned, learned.packed, wanted, learned.ranks, stop=3).losses

    assert losses(2) == pytest.approx(learned.found.losses[:3], rel=1e-4)


def test_final_is_loaded_again(learned, limits):
    state = state_of(learned, learned.final)
    assert judged(limits, "finetune.checkpoint", state).ok, state
    assert evaluate.settings_of(learned.final) == learned.wanted


@pytest.mark.parametrize("damage", ["truncated", "altered", "gone"])
def test_a_damaged_final_is_red_and_says_how(learned, limits, tmp_path, damage):
    from safetensors.torch import load_file, save_file

    final = tmp_path / "final"
    shutil.copytree(learned.final, final)
    weights = final / "adapter_model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "altered":
        found = load_file(weights)
        found[min(found)].flatten()[0] += 1e-3
        save_file(found, weights)
    else:
        shutil.rmtree(final)
    verdict = judged(
        limits, "finetune.checkpoint", "reloads", "reloads", state_of(learned, final), "reloads"
    )
    assert verdict.outcome is Outcome.FAIL
    said = {"truncated": "does not reload", "altered": "1 of 28 weights differ"}
    assert said.get(damage, "does not reload") in str(verdict.value)
    assert verdict.worst is not None
    assert verdict.worst["node"] == "worker1"


def test_a_loss_that_is_no_number_ends_the_workload(learned):
    from training.finetune import summary

    broken = SimpleNamespace(losses=[1.0, float("nan")], norms=[1.0, 1.0])
    with pytest.raises(RuntimeError, match=r"small\.yaml: loss nan, .* at step 2 of 2"):
        summary.finite(broken, "small.yaml")  # type: ignore[arg-type]


def test_logs_that_lack_a_step_are_red(limits, tmp_path):
    from training.finetune import summary

    log = summary.Log(tmp_path)
    for step in range(3):
        log.step(step, 1.0, 1.0, 1.0)
    log.close()
    assert log.state(3) == summary.COMPLETE
    assert judged(limits, "finetune.logs", log.state(3)).ok
    state = log.state(4)
    assert state == "TensorBoard has 3 of 4 values of loss"
    assert judged(limits, "finetune.logs", state).outcome is Outcome.FAIL
    assert judged(limits, "finetune.logs", None).outcome is Outcome.NOT_MEASURED


OTHER_NAME = CALL.replace('"f"', '"g"')
OTHER_CITY = CALL.replace("Oslo", "Lima")
OTHER_ORDER = CALL.replace('"city": "Oslo", "n": 2', '"n": 2, "city": "Oslo"')


@pytest.mark.parametrize(
    ("said", "grades"),
    [
        (CALL, "parses function arguments exact"),
        (f" {CALL} ", "parses function arguments exact"),
        (OTHER_ORDER, "parses function arguments"),
        (OTHER_CITY, "parses function"),
        (OTHER_NAME, "parses"),
        (CALL[:-3], ""),
        ("I cannot do that.", ""),
    ],
)
def test_an_answer_gets_the_grades_that_it_deserves(said, grades):
    found = evaluate.Answer(CALL, said).grades()
    assert " ".join(name for name, given in found.items() if given) == grades


def test_wrong_function_names_are_red(limits):
    """Fault: a third of the answers calls another function."""
    answers = [evaluate.Answer(CALL, OTHER_NAME if k % 3 == 0 else CALL) for k in range(30)]
    rates = evaluate.rates(answers)
    assert judged(limits, "finetune.parses", rates["parses"]).ok
    verdict = judged(limits, "finetune.function", rates["function"])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.value == pytest.approx(100 * 2 / 3)
    wrong = [evaluate.Answer(CALL, OTHER_CITY)] * 2 + [evaluate.Answer(CALL, CALL)]
    for name in ("arguments", "exact"):
        verdict = judged(limits, f"finetune.{name}", evaluate.rates(wrong)[name])
        assert verdict.outcome is Outcome.FAIL
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate.rates([])


@pytest.mark.parametrize("key", ["parses", "function", "arguments", "exact", "loss", "speedup"])
def test_what_was_not_measured_never_passes(limits, key):
    assert judged(limits, f"finetune.{key}", None).outcome is Outcome.NOT_MEASURED


# --- as a job


def test_the_example_for_sbatch_is_a_script_that_starts_the_fine_tuning():
    path = settings.HERE / "finetune_2nodes.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=30)
    assert '-m training.finetune --out "$OUT" "$@"' in path.read_text()


def job_of(root: Path, metrics: list[str]) -> Job:
    job = Job(root, nodes=["worker0", "worker1"])
    job.spec["workloads"].append(
        {
            "name": "training_finetune", "module": "training.finetune", "placement": "all",
            "metrics": metrics, "params": {}, "deadline_s": 110,
        }
    )  # fmt: skip
    return job


FAULTS = '''
"""In every rank: FSDP shards nothing, and on rank 1 attention is slow."""
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "training.finetune.loop":
            import torch.distributed.fsdp as fsdp
            from torch.nn import functional
            fsdp.fully_shard = lambda module, **settings: module
            attention = functional.scaled_dot_product_attention
            def slow(*given, **more):
                time.sleep(0.05)
                return attention(*given, **more)
            if os.environ.get("SLURM_PROCID") == "1":
                functional.scaled_dot_product_attention = slow
        return None

sys.meta_path.insert(0, Finder())
'''


def test_faults_are_red_and_name_the_rank(tmp_path, limits):
    """Unsharded weights, and a rank whose kernels are slow: the job's rate is that rank's."""
    job = job_of(tmp_path, ["fsdp_loss", "fsdp_share", "rate", "speedup"])
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    assert job.run(slurm=True) == [0, 0], job.output()
    record = job.record("training_finetune")
    share = decided(limits, "finetune.fsdp.share", record)
    assert (share.outcome, share.value) == (Outcome.FAIL, 200.0), share.line
    assert decided(limits, "finetune.fsdp.loss", record).ok
    rate = decided(limits, "finetune.rate", record)
    assert rate.worst is not None
    assert rate.worst["node"] == "worker1"
    assert any("worker1 gpu0 takes" in note for note in rate.notes), rate.line
    # Fifty times slower than it is, both settings, nobody is an outlier: the floor is what is red.
    for rank in record.ranks:
        for m in rank.measurements:
            if m.metric == "rate":
                m.samples[:] = [s / 50 for s in m.samples]
    for key in ("finetune.rate", "finetune.rate_optimised"):
        assert decided(limits, key, record).outcome is Outcome.FAIL
    for rank in record.ranks:
        for m in rank.measurements:
            if m.metric == "rate":
                m.samples[:] = [s * 1e9 for s in m.samples]
    assert decided(limits, "finetune.rate", record).outcome is Outcome.NOT_MEASURED


def test_fsdp_has_the_losses_of_the_plain_training_and_shards(tmp_path, limits):
    job = job_of(tmp_path, ["fsdp_loss", "fsdp_share"])
    assert job.run(slurm=True) == [0, 0], job.output()
    record = job.record("training_finetune")
    for key in ("finetune.fsdp.loss", "finetune.fsdp.share"):
        verdict = decided(limits, key, record)
        assert verdict.ok, verdict.line
    assert {m.metric for r in record.ranks for m in r.measurements} <= set(WORKLOAD.metrics)
