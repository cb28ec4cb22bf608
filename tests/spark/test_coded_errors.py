"""Errors that went through Spark as text come back as they were."""

from __future__ import annotations

import traceback

import pytest

from pyomid.errors import AlreadyCommitted, ConflictError, Misuse
from pyomid.spark.coded_errors import coded_errors, original_error

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("column", ["plain", "a}] b", '"}] [OMID-MISUSE] {', "two\nlines", "ü {}"])
def test_a_value_may_hold_any_text(column: str) -> None:
    with pytest.raises(Misuse) as raised, coded_errors():
        raise Misuse("there is no such column", column=column)
    found = original_error(RuntimeError(f"Py4JJavaError: …\nPythonException: {raised.value}\n\tat java.lang.Thread"))
    assert isinstance(found, Misuse)
    assert (found.message, found.values) == ("there is no such column", {"column": column})


def test_text_that_only_looks_like_a_code_is_passed_over() -> None:
    text = '[OMID-MISUSE {"column": broken}] no; [OMID-CONFLICT {"commit_ts": 150}] another transaction won'
    found = original_error(RuntimeError(text))
    assert isinstance(found, ConflictError)
    assert found.values == {"commit_ts": 150}
    assert original_error(RuntimeError("[OMID-CONFLICT {")) is None
    assert isinstance(original_error(RuntimeError("[OMID-ALREADY-COMMITTED] done")), AlreadyCommitted)


def test_a_worker_shows_the_sentence_once_with_its_frames() -> None:
    sentence = "there is no such column"

    def refuse() -> None:
        raise Misuse(sentence, column="k")

    with pytest.raises(Misuse) as raised, coded_errors():
        refuse()
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count(sentence) == 1
    assert "in refuse" in shown
