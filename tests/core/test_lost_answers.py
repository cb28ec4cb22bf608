"""A commit's answer is lost, and looking it up fails: nobody may be told that nothing was committed (C3)."""

from __future__ import annotations

from typing import Any

import pytest

from pyomid.errors import Corruption, OutcomeUnknown, SnapshotTooOld, Unavailable, UnknownTable
from pyomid.protocol.commit import request_commit
from pyomid.protocol.effects import Begin, LookupThenWatermarks, ReadRows, ReadWatermarks, SealStarts
from pyomid.types import NOT_FOUND, CellVersion, CommitRequest, SealOutcome

pytestmark = pytest.mark.fast

ANSWERS: dict[type[Any], Any] = {
    ReadRows: [[]],
    LookupThenWatermarks: ([NOT_FOUND, NOT_FOUND], 0, 0),
    ReadWatermarks: (0, 0),
    SealStarts: [SealOutcome(placed=True)],
}
ERRORS = [
    Unavailable("no answer"),
    UnknownTable("dropped meanwhile"),
    Corruption("bad record"),
    SnapshotTooOld("W passed"),
    RuntimeError("can't start new thread"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("looks", range(5))
def test_an_error_of_the_look_up_is_outcome_unknown(error: Exception, looks: int) -> None:
    """At each of its looks. Any other error says "nothing was committed", and the transaction's cells are deleted."""
    own = CellVersion(b"r", b"f", b"q", 100)
    steps = request_commit(CommitRequest(100, (1,), (2,), branches=(150,)), {"t": [own]})
    steps.send(None)
    effect = steps.throw(OutcomeUnknown("the answer is lost", start_ts=100))
    for _ in range(looks):
        effect = steps.send(ANSWERS[type(effect)])
    with pytest.raises(OutcomeUnknown, match="transaction 100 was lost") as raised:
        steps.throw(error)
    assert raised.value.__cause__ is error
    assert raised.value.values["start_ts"] == 100


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_found_commit_is_unknown_until_begins_see_it(error: Exception) -> None:
    """C10. It is durable, and no TSO tells that transactions begin above it."""
    steps = request_commit(CommitRequest(100, (1,), (2,)), {"t": [CellVersion(b"r", b"f", b"q", 100)]})
    steps.send(None)
    assert isinstance(steps.throw(OutcomeUnknown("the answer is lost", start_ts=100)), ReadRows)
    assert isinstance(steps.send([[]]), LookupThenWatermarks)
    assert steps.send(([150], 0, 0)) == Begin(150, is_held=False)
    with pytest.raises(OutcomeUnknown):
        steps.throw(error)
