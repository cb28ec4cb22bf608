"""What the TSO believes of tables (K6): remembered, so that it costs nothing; forgotten by a fence, to stay true."""

from __future__ import annotations

import pytest
from machine_script import Script, Waiting, committed, reason

from conformance import put_entry, remove_entry
from pyomid.omid.oracle.instructions import Flush, MarkUnknownTable, ReadTables
from pyomid.omid.wire.messages import Fence, FenceReply
from pyomid.protocol.hashing import table_id
from pyomid.types import AbortReason, CommitReply, CommitRequest, TableInfo

pytestmark = pytest.mark.fast

JAVA = table_id(b"java")


def marks(tso: Script) -> dict[int, bytes]:
    return tso.stores.catalog.unknown_tables()


def register(tso: Script) -> None:
    put_entry(tso.stores.catalog, TableInfo("java", (b"f",)))


def ask(tso: Script, cell: int = 1) -> Waiting:
    return tso.ask(CommitRequest(tso.begin(), (cell,), (JAVA,)))


def commit(tso: Script) -> None:
    committed(tso.commit(tso.begin(), 1, table_ids=(JAVA,)))


def test_a_mark_is_made_once_and_remembered() -> None:
    tso = Script()
    first = [ask(tso, cell) for cell in range(20)]
    assert len(tso.pending(ReadTables)) == 1
    tso.finish(ReadTables)
    assert len(tso.pending(MarkUnknownTable)) == 1
    assert not tso.pending(Flush)
    tso.finish(MarkUnknownTable)
    tso.settle()
    assert all(committed(each.answer) for each in first)
    once = marks(tso)
    ask(tso, 99)
    assert [type(call.operation) for call in tso.calls] == [Flush]
    tso.settle()
    assert marks(tso) == once
    assert tso.machine.step.counters["unknown_tables"] == 1, "marks are counted, not commits"


def test_a_new_tso_marks_again() -> None:
    """It cannot know whether a drop took the mark away while its predecessor was dying."""
    tso = Script()
    commit(tso)
    once = marks(tso)
    commit(Script(tso.stores))
    assert marks(tso)[JAVA] != once[JAVA]


def test_a_commit_behind_a_drop_s_fence_marks_anew() -> None:
    """Else the drop takes away the mark of a commit to a table that Java made again: lost by the next sanitising."""
    tso = Script()
    commit(tso)
    tso.ask_settled(Fence(JAVA))
    seen = marks(tso)[JAVA]
    commit(tso)
    tso.stores.catalog.clear_unknown_table(JAVA, seen)
    assert JAVA in marks(tso)


def test_a_dropped_table_is_unknown_from_its_fence_on() -> None:
    """The refresh comes after seconds only."""
    tso = Script()
    register(tso)
    commit(tso)
    assert not marks(tso)
    remove_entry(tso.stores.catalog, "java")
    tso.ask_settled(Fence(JAVA))
    commit(tso)
    assert JAVA in marks(tso)


def test_a_read_from_before_the_fence_says_nothing() -> None:
    tso = Script()
    register(tso)
    tso.tick(tso.settings.tables_interval_s + 1)
    read = tso.perform(ReadTables)
    remove_entry(tso.stores.catalog, "java")
    fence = tso.ask(Fence(JAVA))
    tso.settle()
    assert isinstance(fence.answer, FenceReply)
    tso.done(read)
    commit(tso)
    assert JAVA in marks(tso)


def test_a_fence_waits_for_a_mark_on_its_way() -> None:
    """The drop behind it takes the mark away; one that lands later would stop the sanitiser for nothing."""
    tso = Script()
    early = ask(tso)
    tso.finish(ReadTables)
    mark = tso.perform(MarkUnknownTable)
    fence = tso.ask(Fence(JAVA))
    assert not tso.pending(Flush)
    tso.done(mark)
    tso.settle()
    assert isinstance(fence.answer, FenceReply)
    assert early.answer == CommitReply(early.answer.start_ts, 0, AbortReason.FENCE, fence.answer.fence_ts)  # type: ignore[union-attr]
    tso.stores.catalog.clear_unknown_table(JAVA, marks(tso)[JAVA])
    commit(tso)
    assert JAVA in marks(tso)


@pytest.mark.parametrize("looking", [False, True], ids=["before it asks", "while it looks"])
def test_what_a_fence_refuses_leaves_no_mark(looking: bool) -> None:
    tso = Script()
    request = CommitRequest(tso.begin(), (1,), (JAVA,))
    if looking:
        waiting = tso.ask(request)
        tso.ask(Fence(JAVA))
    else:
        tso.ask_settled(Fence(JAVA))
        waiting = tso.ask(request)
    tso.settle()
    assert reason(waiting.answer) is AbortReason.FENCE
    assert not marks(tso)


def test_a_registered_table_loses_no_belief_by_a_fence_for_long() -> None:
    tso = Script()
    register(tso)
    commit(tso)
    tso.ask_settled(Fence(JAVA))
    commit(tso)
    assert not marks(tso)
    ask(tso)
    assert not tso.pending(ReadTables)
