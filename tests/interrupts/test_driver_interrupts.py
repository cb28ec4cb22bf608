"""Errors thrown at each yield of the core's generators in turn, before an effect and behind it, by both drivers.

After each: the outcome told is true (committed, not, or unknown), and the next transaction works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pyomid
import pyomid.aio
from interrupts import with_frames_left
from pyomid.coroutines import Blocking, Effect
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.database.driver import CallProgram
from pyomid.database.transaction import State
from pyomid.errors import OmidError
from pyomid.protocol import effects

pytestmark = pytest.mark.fast

INTERRUPTS: list[Callable[[], BaseException]] = [
    KeyboardInterrupt,
    MemoryError,
    lambda: RuntimeError("can't start new thread"),
]
NAMES = ["interrupt", "memory", "thread"]
SIDES = pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])


class Thrower:
    """Raises at the effect number `at`: before it is performed, or when it was and its answer is lost."""

    def __init__(self, error: BaseException, at: int, *, behind: bool) -> None:
        self.error, self.at, self.behind = error, at, behind
        self.seen: list[Effect] = []
        self.armed = False

    @property
    def hit(self) -> Effect | None:
        return self.seen[self.at] if len(self.seen) > self.at else None

    def before(self, effect: Effect) -> None:
        if self.armed:
            self.seen.append(effect)
            if len(self.seen) == self.at + 1 and not self.behind:
                raise self.error

    def after(self, effect: Effect) -> None:
        if self.armed and len(self.seen) == self.at + 1 and self.seen[-1] is effect and self.behind:
            raise self.error


def throw_in(db: Database, thrower: Thrower) -> None:
    def around(perform: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def performed(effect: Effect) -> Any:
            thrower.before(effect)
            result = perform(effect)
            thrower.after(effect)
            return result

        return performed

    handlers = db._core.driver.handlers
    handlers.update({kind: around(handle) for kind, handle in handlers.items()})


def transact(db: Database, begun: list[pyomid.Transaction], thrower: Thrower) -> None:
    with db.begin() as tx:
        begun.append(tx)
        table = tx.table("t")
        table.put(b"k", {b"f:x": b"new"})
        tx.flush()
        table.get(b"other")
        table.put(b"k", {b"f:y": b"new"})


@pytest.mark.parametrize("error", INTERRUPTS, ids=NAMES)
@SIDES
@pytest.mark.parametrize("refused", [False, True], ids=["alone", "beside a winner"])
def test_the_outcome_told_is_true_wherever_it_is_thrown(
    tmp_path: Path, error: Callable[[], BaseException], behind: bool, refused: bool
) -> None:
    hits: set[type[Effect]] = set()
    for at in count():
        thrower = Thrower(error(), at, behind=behind)
        with pyomid.connect(f"omid-memory:{tmp_path}-{at}") as db:
            db.create_table("t", families=["f"])
            throw_in(db, thrower)
            begun: list[pyomid.Transaction] = []
            thrower.armed = not refused
            scene = beside_a_winner if refused else transact
            raised = attempt(lambda: scene(db, begun, thrower))  # noqa: B023
            thrower.armed = False
            assert raised is None or raised is thrower.error or isinstance(raised, OmidError)
            if begun:
                assert_true(db, begun[0], raised)
        if thrower.hit is None:
            break
        hits.add(type(thrower.hit))
    assert {effects.WriteCells, effects.SendCommit, effects.ReadRows} <= hits


def beside_a_winner(db: Database, begun: list[pyomid.Transaction], thrower: Thrower) -> None:
    with db.begin() as tx:
        begun.append(tx)
        tx.table("t").put(b"k", {b"f:x": b"new", b"f:y": b"new"})
        with db.begin() as winner:
            winner.table("t").put(b"k", {b"f:x": b"theirs"})
        thrower.armed = True
        tx.flush()
        tx.table("t").get(b"other")


def attempt(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as raised:
        return raised
    return None


def assert_true(db: Database, tx: pyomid.Transaction, raised: BaseException | None) -> None:
    state = tx.state
    assert state in (State.COMMITTED, State.ROLLED_BACK, State.UNKNOWN), "its block is over"
    assert (raised is None) <= (state is State.COMMITTED)
    assert db.drain(60)
    if state is State.ROLLED_BACK:  # others may have read it before its cells were deleted
        assert db._core.deployment.commit_table.lookup([tx.start_ts])[0] <= 0, "told as rolled back, and decided"
    with db.begin() as reader:
        row = reader.table("t").get(b"k") or {}
    seen = {name for name, value in row.items() if value == b"new"}
    assert seen in (set(), {b"f:x", b"f:y"}), "half a transaction"
    if state is not State.UNKNOWN:
        assert bool(seen) == (state is State.COMMITTED)
    with db.begin() as after:
        after.table("t").put(b"k", {b"f:x": b"after"})


def test_a_commit_at_the_recursion_limit_ends_in_a_true_state(tmp_path: Path) -> None:
    """There each call of its error's handling raises too."""
    states = set()
    with pyomid.connect(f"omid-memory:{tmp_path}") as db:
        db.create_table("t", families=["f"])
        for left in range(1, 60):
            tx = db.begin()
            tx.table("t").put(b"k", {b"f:x": b"%d" % left})
            raised = attempt(partial(with_frames_left, left, tx.commit))
            assert (raised is None) <= (tx.state is State.COMMITTED)
            assert tx.state is not State.COMMITTING, left
            if tx.state is not State.UNKNOWN:
                assert (db.get("t", b"k") == {b"f:x": b"%d" % left}) == (tx.state is State.COMMITTED)
            tx.rollback()
            states.add(tx.state)
    assert states == {State.COMMITTED, State.ROLLED_BACK, State.UNKNOWN}


@pytest.mark.parametrize("error", [*INTERRUPTS, asyncio.CancelledError], ids=[*NAMES, "cancelled"])
@SIDES
def test_the_outcome_told_to_a_task_is_true_wherever_it_is_thrown(
    tmp_path: Path, error: Callable[[], BaseException], behind: bool
) -> None:
    hits: set[type[Effect]] = set()

    async def one(at: int) -> bool:
        thrower = Thrower(error(), at, behind=behind)
        async with await pyomid.aio.connect(f"omid-memory:{tmp_path}-{at}") as db:
            await db.create_table("t", families=["f"])
            throw_in_tasks(db, thrower)
            begun: list[Any] = []
            thrower.armed = True
            raised = await attempt_in_task(lambda: transact_in_task(db, begun))
            thrower.armed = False
            assert raised is None or raised is thrower.error or isinstance(raised, OmidError)
            if begun:
                await asyncio.to_thread(assert_true, db._blocking, begun[0], raised)
        if thrower.hit is not None:
            hits.add(type(thrower.hit))
        return thrower.hit is not None

    for at in count():
        if not asyncio.run(one(at)):
            break
    assert {effects.WriteCells, effects.SendCommit, effects.ReadRows} <= hits


def throw_in_tasks(db: AsyncDatabase, thrower: Thrower) -> None:
    perform = db._driver.perform

    async def performed(effect: Effect) -> Any:
        thrower.before(effect)
        result = await perform(effect)
        thrower.after(effect)
        return result

    db._driver.perform = performed  # type: ignore[method-assign]


async def transact_in_task(db: AsyncDatabase, begun: list[Any]) -> None:
    async with db.begin() as tx:
        begun.append(tx)
        table = await tx.table("t")
        await table.put(b"k", {b"f:x": b"new"})
        await tx.flush()
        await table.get(b"other")
        await table.put(b"k", {b"f:y": b"new"})


async def attempt_in_task(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    try:
        await call()
    except BaseException as raised:
        return raised
    return None


def add_one(tx: pyomid.Transaction) -> None:
    table = tx.table("t")
    table.put(b"k", {b"f:n": b"%d" % (int((table.get(b"k") or {}).get(b"f:n", b"0")) + 1)})


async def add_one_in_task(tx: Any) -> None:
    table = await tx.table("t")
    await table.put(b"k", {b"f:n": b"%d" % (int((await table.get(b"k") or {}).get(b"f:n", b"0")) + 1)})


def assert_counted_once(db: Database) -> None:
    db.run_once("id", add_one)
    with db.begin() as reader:
        assert reader.table("t").get(b"k") == {b"f:n": b"1"}


@pytest.mark.parametrize("error", INTERRUPTS, ids=NAMES)
@SIDES
def test_a_run_counts_once_wherever_it_is_interrupted(
    tmp_path: Path, error: Callable[[], BaseException], behind: bool
) -> None:
    hits: set[type[Effect]] = set()
    for at in count():
        thrower = Thrower(error(), at, behind=behind)
        with pyomid.connect(f"omid-memory:{tmp_path}-{at}") as db:
            db.create_table("t", families=["f"])
            throw_in(db, thrower)
            thrower.armed = True
            raised = attempt(lambda: db.run_once("id", add_one))
            thrower.armed = False
            assert raised is None or raised is thrower.error or isinstance(raised, OmidError)
            assert_counted_once(db)
        if thrower.hit is None:
            break
        hits.add(type(thrower.hit))
    assert {effects.Begin, Blocking, CallProgram, effects.SendCommit} <= hits


@pytest.mark.parametrize("error", [*INTERRUPTS, asyncio.CancelledError], ids=[*NAMES, "cancelled"])
@SIDES
def test_a_run_of_a_task_counts_once_wherever_it_is_interrupted(
    tmp_path: Path, error: Callable[[], BaseException], behind: bool
) -> None:
    async def one(at: int) -> bool:
        thrower = Thrower(error(), at, behind=behind)
        async with await pyomid.aio.connect(f"omid-memory:{tmp_path}-{at}") as db:
            await db.create_table("t", families=["f"])
            throw_in_tasks(db, thrower)
            thrower.armed = True
            raised = await attempt_in_task(lambda: db.run_once("id", add_one_in_task))
            thrower.armed = False
            assert raised is None or raised is thrower.error or isinstance(raised, OmidError)
            await asyncio.to_thread(assert_counted_once, db._blocking)
        return thrower.hit is not None

    for at in count():
        if not asyncio.run(one(at)):
            break
