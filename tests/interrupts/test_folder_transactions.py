"""An interrupt anywhere in a transaction of a folder: what its caller is told is true, and the folder works on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import pyomid
from interrupts import OWN_WRITES, Interrupter, every_place
from other_holder import Holder
from pyomid import coroutines
from pyomid.database import transaction
from pyomid.database.database import Database
from pyomid.database.transaction import State, Transaction
from pyomid.errors import OmidError, OutcomeUnknown
from pyomid.folder import (
    branches,
    decision,
    folder_clock,
    folder_state,
    open_starts,
    requests,
    session,
    shared_file,
    store,
    watermark,
    writer_turns,
)
from pyomid.folder import environment as environments
from pyomid.folder.decision import pack_requests
from pyomid.folder.environment import Environment
from pyomid.folder.shared_file import Posted, SharedFile
from pyomid.protocol import commit
from waiting import until

MODULES = (
    *(branches, decision, environments, folder_clock, folder_state, open_starts, requests, session, shared_file),
    *(store, watermark, writer_turns, commit, coroutines, transaction, *OWN_WRITES),
)
WAIT_S = 60.0
PLACES_MAX = 3000
"""About four times as many as the longest transaction has."""


def count_of(db: Database, row: bytes) -> int:
    with db.begin() as tx:
        return int.from_bytes((tx.table("t").get(row) or {}).get(b"f:n", b"\0"))


def posted_by_another(db: Database, environment: Environment, other: SharedFile, row: bytes) -> Posted:
    """A commit request of another process, prepared in its area."""
    packed: list[bytes] = []

    def catch(request: bytes) -> None:
        packed.append(request)
        raise OutcomeUnknown("another process commits it")

    tx = db.begin()
    tx.table("t").increment(row, b"f:n", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "request", catch)
        with pytest.raises(OutcomeUnknown):
            tx.commit()
    prepared = other.prepared(pack_requests(packed))
    assert prepared is not None
    return prepared


@pytest.mark.parametrize("flushes", [False, True], ids=["one request", "a branch"])
@pytest.mark.parametrize("waits", [False, True], ids=["holder", "owner"])
def test_an_interrupted_transaction_tells_the_truth_and_holds_nothing(
    tmp_path: Path, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException], waits: bool, flushes: bool
) -> None:
    """`waits`: another process has the turn while it commits, and performs what is posted; otherwise it performs the
    other's request."""
    with pyomid.connect(f"omid://{tmp_path}/db?upkeepShare=0&completionLingerMs=0") as db:
        db.create_table("t", ["f"])
        environment: Environment = db._core.deployment.store.environment
        other = SharedFile(environment.folder)
        holder = Holder(environment, other)
        told: set[State] = set()

        def scene(interrupter: Interrupter) -> None:
            assert interrupter._left < PLACES_MAX, "what interrupted transactions left makes the next one longer"
            mine, theirs, free = (b"%s-%d" % (name, interrupter._left) for name in (b"mine", b"theirs", b"free"))
            prepared = posted_by_another(db, environment, other, theirs)
            begun: list[Transaction] = []

            def transact() -> None:
                with db.begin() as tx:
                    begun.append(tx)
                    tx.table("t").increment(mine, b"f:n", 1)
                    if flushes:
                        tx.flush()
                    if waits:
                        other_thread.submit(held.enter_context, holder.holding()).result(WAIT_S)

            with ExitStack() as held:
                if not waits:
                    other.post(prepared)
                _, raised = interrupter.outcome(transact)
            if waits:
                other.post(prepared)
            state = begun[0].state if begun else State.ROLLED_BACK
            told.add(state)
            assert (
                raised in (None, interrupter.error)
                or isinstance(raised, OmidError)
                or raised.__cause__ is interrupter.error
            )
            other_thread.submit(commits, free).result(WAIT_S)
            with holder.holding():
                if other.withdraw(prepared.number):
                    assert count_of(db, theirs) == 0
                else:
                    with environment._lmdb.begin(write=True) as transaction:
                        ((outcome,),) = environment.requests.perform_posted(transaction, [prepared])  # type: ignore[union-attr]
                    assert count_of(db, theirs) == (1 if outcome.commit_ts else 0)
            until(lambda: environment._group is None and not environment._writer.locked(), "a turn is kept")
            if state in (State.ACTIVE, State.ROLLBACK_ONLY):
                begun[0].rollback()
            wanted = {State.COMMITTED: (1,), State.UNKNOWN: (0, 1)}.get(state, (0,))
            assert count_of(db, mine) in wanted, state
            assert raised is not None or state is State.COMMITTED
            begun.clear()
            for each in (interrupter.error, raised):
                if each is not None:
                    each.__traceback__ = None  # until then its frames keep the transaction
            until(lambda: environment._inside == [], "a call is inside for ever")
            commits(free)
            assert not environment.starts.oldest(), "an open start is kept"
            assert other.open_starts() == []

        def commits(row: bytes) -> None:
            with db.begin() as tx:
                tx.table("t").put(row, {b"f:v": b"1"})

        assert every_place(MODULES, error, scene, step=7) > 100
        assert {State.COMMITTED, State.UNKNOWN, State.ROLLED_BACK} <= told
        holder.close()
        other.close()
