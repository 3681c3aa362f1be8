"""The preparation of a data file: what is packed, what is held out, and which tokenizer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.selftests.finetuning_cases import ROW
from training.finetune import prepare
from training.finetune.settings import InputError, Settings

pytestmark = pytest.mark.cpu


def wanted(**data: Any) -> Settings:
    small = Settings(name="small").with_values("model", preset="tiny")
    return small.with_values("data", max_length=256, **data)


@pytest.mark.parametrize(("held_out", "count"), [(0.25, 5), (0.0, 0)])
def test_what_is_prepared_is_read_again(held_out, count, tmp_path):
    prepare.prepare(wanted(held_out=held_out), tmp_path / "data", samples=20)
    found = prepare.load_prepared(tmp_path / "data")
    assert len(found.held_out) == count
    assert found.about["held_out"] == count
    assert found.about["source"] == "20 conversations made by the project"
    assert found.about["conversations"] == 20 - count
    assert len(found.packed) == found.about["sequences"]
    assert found.tokenizer.eos_token == "<|endoftext|>"


def test_of_a_file_broken_lines_are_kept_in_mind(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{{\n{json.dumps(ROW)}\n")
    given = wanted(path=str(path), held_out=0.0, skip_broken=True)
    prepare.prepare(given, tmp_path / "data")
    about = json.loads((tmp_path / "data" / "about.json").read_text())
    assert (about["source"], about["conversations"]) == (str(path), 2)
    assert len(about["broken"]) == 1
    with pytest.raises(InputError, match="no data left to train on"):
        prepare.prepare(wanted(held_out=0.99), tmp_path / "none", samples=1)


def test_four_hundred_conversations_are_made_where_none_are_given():
    """Enough for the small model to learn to copy an argument."""
    assert prepare.SAMPLE_CONVERSATIONS == 400


@pytest.mark.parametrize(("pad", "padding"), [(None, "<end>"), (7, "own")])
def test_a_model_s_tokenizer_needs_an_end_and_gets_a_padding(pad, padding, monkeypatch):
    import transformers

    found = SimpleNamespace(eos_token="<end>", pad_token_id=pad, pad_token="own")
    loader = SimpleNamespace(from_pretrained=lambda path, local_files_only: found)
    monkeypatch.setattr(transformers, "AutoTokenizer", loader)
    given = wanted().with_values("model", path="/my/model")
    assert prepare.tokenizer_of(given, []) is found
    assert found.pad_token == padding
    found.eos_token = None
    with pytest.raises(InputError, match="has no end token"):
        prepare.tokenizer_of(given, [])

    def refuse(path: str, local_files_only: bool) -> Any:
        raise OSError("no such file\nmore")

    loader.from_pretrained = refuse
    with pytest.raises(InputError, match="has no tokenizer: no such file"):
        prepare.tokenizer_of(given, [])
