"""Whatever is thrown into the TSO of `omid-memory:`, wherever: the outcome told is true, the database goes on (C9)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import pyomid
from interrupts import Interrupter, every_place
from pyomid import system
from pyomid.errors import OutcomeUnknown, Unavailable
from pyomid.omid import memory, memory_commit_table
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState
from pyomid.omid.oracle import begins, commits, machine, outgoing, windows
from pyomid.omid.oracle.instructions import Flush
from pyomid.omid.tso import local, store_calls
from pyomid.omid.tso.local import LocalTso
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.types import CommitRequest

pytestmark = [pytest.mark.fast, pytest.mark.timeout(120)]

A, B = 1 << 60, 2 << 60


def memory_stores() -> TsoStores:
    return TsoStores(MemoryCommitTable(), MemoryLeaderState(), MemoryCatalog())


def test_an_interrupted_commit_leaves_a_tso_that_goes_on(error: Callable[[], BaseException]) -> None:
    told: set[bool | None] = set()

    def scene(interrupter: Interrupter) -> None:
        stores = memory_stores()
        tso = LocalTso(stores)
        start_ts, before = tso.begin().start_ts, tso.begin().start_ts
        reply, raised = interrupter.outcome(lambda: tso.commit(CommitRequest(start_ts, (A,))))
        assert raised is None or raised is interrupter.error
        told.add(None if reply is None else reply.committed)
        newer = tso.begin().start_ts
        (found,) = stores.commit_table.lookup([start_ts])
        if reply is not None:
            assert found == reply.commit_ts > 0
        assert newer > max(start_ts, found)
        assert tso.commit(CommitRequest(newer, (B,))).committed
        retried = tso.commit(CommitRequest(start_ts, (A,), is_retry=True))
        assert retried.committed == (found > 0)
        if found > 0:
            assert not tso.commit(CommitRequest(before, (A,))).committed, "a lost update"

    modules = (local, machine, outgoing, begins, windows, commits, store_calls)
    assert every_place(modules, error, scene) > 50
    assert told == {True, None}


def test_an_interrupted_transaction_in_memory_leaves_no_lock(
    other_thread: ThreadPoolExecutor, error: Callable[[], BaseException], request: pytest.FixtureRequest
) -> None:
    """Also while somebody has the interrupt's traceback: a lock that a generator holds would be held as long."""
    with pyomid.connect(f"omid-memory:{request.node.name}") as db:
        db.create_table("t", ["f"])

        def transaction(key: bytes) -> None:
            with db.begin() as tx:
                tx.table("t").put(key, {b"f:v": b"1"})
                tx.table("t").get(key)

        def scene(interrupter: Interrupter) -> None:
            key = b"%d" % interrupter._left
            interrupter.outcome(lambda: transaction(key))
            transaction(b"same thread" + key)
            other_thread.submit(transaction, b"other" + key).result(60.0)

        assert every_place((contextlib, system, memory, memory_commit_table), error, scene, step=3) > 50


def test_a_commit_whose_tso_dies_is_told_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry is durable. A request behind the death was surely not heard."""
    stores = memory_stores()
    tso = LocalTso(stores)
    start_ts = tso.begin().start_ts
    perform = local.perform

    def replaced_in_a_flush(stores: TsoStores, operation: object) -> object:
        if isinstance(operation, Flush):
            monkeypatch.setattr(local, "perform", perform)
            stores.commit_table.put(operation.entries)
            LocalTso(stores)
        return perform(stores, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "perform", replaced_in_a_flush)
    with pytest.raises(OutcomeUnknown, match="another TSO leads"):
        tso.commit(CommitRequest(start_ts, (A,)))
    assert stores.commit_table.lookup([start_ts])[0] > 0
    for _ in range(2):
        with pytest.raises(Unavailable, match="another TSO leads"):
            tso.begin()
