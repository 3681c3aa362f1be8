"""The LoRA fine-tuning before it trains: conversations, settings, the model's costs, the loss."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import support
from tests.selftests.finetuning_cases import ROW
from tests.selftests.rank_job import clean_environment
from training.finetune import acceptance, glaive, sample, settings
from training.finetune.settings import InputError, LoraSettings, Settings

pytestmark = pytest.mark.cpu
BROKEN = [
    ("{", "not JSON"),
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
        (call,) = [glaive.call_of(t.text) for t in conversation.turns if t.has_call]
        assert call is not None
        assert set(call.arguments) == set(sample.FUNCTIONS[call.name][1])
        assert all(value in conversation.turns[0].text for value in call.arguments.values())


def test_what_is_held_out_is_not_trained_on():
    conversations = [glaive.parse(row) for row in sample.rows(40)]
    training, held_out = glaive.split(conversations, 0.25, 3)
    assert (len(training), len(held_out)) == (30, 10)
    assert Counter(map(repr, training + held_out)) == Counter(map(repr, conversations))
    assert glaive.split(conversations, 0.25, 3) == (training, held_out)


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
        (["--config", "small.yaml", "--model", tmp_path / "none"], "none is not a directory"),
        (["--config", "small.yaml", "--model", tmp_path / "empty"], "holds no config.json"),
        (["--config", "small.yaml", "--data", tmp_path / "none"], "none is not a file"),
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
        "python -m training.finetune: training.global_batch_size 16 is not divisible by"
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
    import torch

    from training.finetune import model

    with (meta := torch.device("meta")):  # no weight is allocated
        base = model.build(settings.ModelSettings(preset="qwen2-7b"), meta, seed=0)
        adapted = model.add_adapters(base, LoraSettings(targets=targets), seed=0)
    assert model.count_parameters(adapted)[0] == trained


@pytest.fixture(scope="module")
def cost() -> Any:
    from training.finetune import model

    shape = model.config_of(Settings().model)
    return model.TrainingCost(shape, 40_370_176, 7_615_616_512 + 40_370_176)


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
    from training.finetune import training_run

    wanted = settings.load(settings.find("optimised"))
    found, notes = training_run.fit_to_memory(wanted, cost, gib)
    assert found.training.batch_size == batch
    assert found.training.global_batch_size == wanted.training.global_batch_size
    assert bool(notes) == (batch != 4)


@pytest.fixture
def aot_eager(monkeypatch):
    """What compiles goes without a compiler of C++: as in test_training_model."""
    import torch

    from training import loss

    compiles = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiles)
    loss._compiled_chunk_loss.cache_clear()
    yield
    loss._compiled_chunk_loss.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what compiles
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_of_the_head_is_cross_entropy(compiled, dtype, aot_eager):
    import torch

    from training.finetune.packing import IGNORE_INDEX
    from training.loss import sum_of_learned

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden = torch.randn(64, 16, dtype=kind, requires_grad=True)
    weight, wanted = torch.randn(100, 16, dtype=kind), torch.randint(0, 100, (64,))
    weight.requires_grad_()  # frozen by the loss, not by who calls it
    wanted[::5] = IGNORE_INDEX
    usual = hidden.detach().clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        (usual @ weight.t()).float(), wanted, reduction="sum", ignore_index=IGNORE_INDEX
    )
    (3 * expected).backward()
    weight.grad = None
    loss = sum_of_learned(hidden, weight, wanted, chunk_size=16, compiled=compiled)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected.detach())
    near = {} if kind == torch.float32 else {"rtol": 0.016, "atol": 0.03}  # bf16 has 8 bits
    torch.testing.assert_close(hidden.grad, usual.grad, **near)
    assert weight.grad is None
    with torch.no_grad():
        again = sum_of_learned(hidden, weight, wanted, chunk_size=16, compiled=compiled)
    assert torch.equal(loss, again)


def test_on_shared_cores_a_speedup_is_of_steps_that_were_not_disturbed():
    steady, disturbed = [100.0] * 6, [5.0, 6.0, 5.0, 100.0, 6.0, 98.0]
    assert acceptance.undisturbed(disturbed, on_gpu=False) == 100.0
    assert acceptance.undisturbed(steady, on_gpu=False) == 100.0
    # On a GPU nothing else runs: steps that are slow more often than not are the training's own.
    assert acceptance.undisturbed(disturbed, on_gpu=True) == 6.0
