"""Names in a limits file: groups of models, sets of conditions, notes."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.thresholds.references import expand
from fixtures.thresholds.strict_yaml import Document

pytestmark = pytest.mark.cpu


def document(**data: Any) -> Document:
    return Document("x.yaml", data, {(): 1}, "abc")


def expanded(row: dict[str, Any], **tables: Any) -> Any:
    """What becomes of a row of a file with these tables."""
    return expand(document(limits=[row], **tables)).data["limits"][0]


def refusal(row: dict[str, Any], **tables: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        expanded(row, **tables)
    return str(caught.value)


PCIE = {"pcie": ["L40S", "A40"]}


def test_the_tables_are_no_part_of_what_is_returned():
    found = expand(document(models=PCIE, conditions={}, notes={}, schema=1))
    assert vars(found) == vars(Document("x.yaml", {"schema": 1}, {(): 1}, "abc"))
    text = Document("x.yaml", "text")
    assert expand(text) is text


def test_a_group_stands_wherever_a_model_may():
    for given, models in (
        ("pcie", ["L40S", "A40"]),
        (["pcie"], ["L40S", "A40"]),
        (["H200 SXM", "pcie"], ["H200 SXM", "L40S", "A40"]),
        ("H200 SXM", "H200 SXM"),
        (["H200 SXM"], ["H200 SXM"]),
        (3, 3),
    ):
        assert expanded({"model": given}, models=PCIE) == {"model": models}
    assert expanded({"model": "L40S"}) == {"model": "L40S"}
    assert expanded({"title": "pcie"}, models=PCIE) == {"title": "pcie"}


def test_a_group_has_known_models_and_a_name_of_its_own():
    for models, says in (
        ({"L40S": ["A40"]}, "models.L40S: 'L40S' is a GPU model"),
        ({"own": []}, "expected GPU models, got []"),
        ({"own": "L40S"}, "expected GPU models, got 'L40S', did you mean 'L'?"),
        ({"own": ["L40S", "L40SX"]}, "got ['L40SX'], did you mean 'L40S'"),
        (3, "models: expected a mapping"),
    ):
        assert says.partition(", did you mean 'L'")[0] in refusal({}, models=models)


CONDITIONS = {"large": {"size": "1GiB"}, "board": {"gpus": 8, "nodes": 1}, "odd": 3}


def test_a_set_of_conditions_is_written_out():
    for given, when in (
        ({"is": "large"}, {"size": "1GiB"}),
        ({"is": "board", "nvls": True}, {"gpus": 8, "nodes": 1, "nvls": True}),
        ({"is": ["large", "board"]}, {"gpus": 8, "nodes": 1, "size": "1GiB"}),
        ({"nvls": True}, {"nvls": True}),
        ("order", "order"),
    ):
        assert expanded({"when": given}, conditions=CONDITIONS) == {"when": when}
    other = {"where": {"is": "large"}}
    assert expanded(other, conditions=CONDITIONS) == other
    for given, says in (
        ({"is": "lrge"}, "no set 'lrge' in conditions:, did you mean 'large'"),
        ({"is": "odd"}, "no set 'odd' in conditions:"),
        ({"is": 3}, "no set 3 in conditions:"),
        ({"is": [3]}, "no set 3 in conditions:"),
        ({"is": "board", "nodes": 1}, "nodes is given twice"),
        ({"is": ["board", "board"]}, "gpus is given twice"),
    ):
        message = refusal({"when": given}, conditions=CONDITIONS)
        assert says in message
        assert "limits[0].when.is" in message


def test_a_note_stands_for_its_text_where_a_text_may():
    notes = {"1": "a long text", "b.c-d": "another"}
    for key in ("source", "loose", "recorded", "reason"):
        assert expanded({key: "note 1"}, notes=notes) == {key: "a long text"}
    assert expanded({"source": "note b.c-d"}, notes=notes) == {"source": "another"}
    for plain in ({"source": "see note 1"}, {"title": "note 1"}, {"source": 5}):
        assert expanded(plain, notes=notes) == plain
    assert "limits[0].source: no note '2' in notes:" in refusal({"source": "note 2"}, notes=notes)


def test_the_tables_of_the_base_hold_too_and_those_of_the_nearest_file_first():
    file = document(limits=[{"source": "note 1", "loose": "note 2"}], notes={"1": "own"})
    base = document(notes={"1": "of the base", "2": "of the base"})
    found = expand(file, [base, Document("y.yaml", "text")]).data
    assert found == {"limits": [{"source": "own", "loose": "of the base"}]}
    with pytest.raises(ConfigError, match=r"^y\.yaml.*expected a mapping"):
        expand(file, [Document("y.yaml", {"notes": 3}, {(): 1})])
