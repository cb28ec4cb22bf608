"""What is told of a commit that another process was to perform (folder.md, "Turn and areas")."""

from __future__ import annotations

import asyncio
import ctypes
import random
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pyomid
import pyomid.aio
from other_holder import Holder
from portions import first
from pyomid.database.database import Database
from pyomid.database.transaction import State
from pyomid.errors import Misuse, OmidError, OutcomeUnknown, Unavailable
from pyomid.folder import environment as environments
from pyomid.folder.decision import pack_requests
from pyomid.folder.environment import Environment
from pyomid.folder.shared_file import SharedFile
from waiting import until

WAIT_S = 60.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with pyomid.connect(f"omid://{tmp_path}/db?upkeepShare=0") as opened:
        opened.create_table("t", ["f"])
        put(opened, b"before").commit()  # its column has a number from now on
        yield opened


def environment_of(db: Database) -> Environment:
    return db._core.deployment.store.environment  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def holder(db: Database, tmp_path: Path) -> Iterator[Holder]:
    shared = SharedFile(tmp_path / "db" / "data")
    made = Holder(environment_of(db), shared)
    yield made
    made.close()
    shared.close()


def put(db: Database, key: bytes, *, flushes: bool = False) -> pyomid.Transaction:
    tx = db.begin()
    tx.table("t").put(key, {b"f:v": b"1"})
    if flushes:
        tx.flush()
    return tx


def has(db: Database, key: bytes) -> bool:
    with db.begin() as tx:
        return bool(tx.table("t").get(key))


def told(tx: pyomid.Transaction) -> BaseException | None:
    """Also where another thread commits it."""
    tx._core._thread = threading.get_ident()
    try:
        tx.commit()
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("flushes", [False, True], ids=["small", "branches"])
@pytest.mark.parametrize("goes_on", ["late", "later", "never"])
def test_who_was_taken_by_a_holder_that_stops_is_told_that_its_outcome_is_unknown(
    db: Database, holder: Holder, monkeypatch: pytest.MonkeyPatch, flushes: bool, goes_on: str
) -> None:
    """It may go on at any time, and then it commits what it took: nobody may be told that it did not."""
    monkeypatch.setattr(environments, "WRITER_WAIT_S", 0.3)
    tx = put(db, b"k", flushes=flushes)
    with ThreadPoolExecutor(1) as pool:
        holder.take_turn()
        outcome = pool.submit(told, tx)
        posted, group = holder.take(), environment_of(db)._group
        if goes_on == "late":
            until(lambda: environment_of(db)._group is not group, "its owner waits for ever")
            holder.perform(posted)
            holder.give_turn_back()
        error = outcome.result(WAIT_S)
        assert isinstance(error, OutcomeUnknown), error
        assert tx.state is State.UNKNOWN
        assert error.values["start_ts"] == tx.start_ts
        assert "process" in str(error)
        if goes_on == "later":
            holder.perform(posted)
        holder.give_turn_back()
    assert has(db, b"k") == (goes_on != "never")
    put(db, b"k2").commit()


def test_what_nobody_took_is_withdrawn_and_the_holder_named(
    db: Database, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "WRITER_WAIT_S", 0.3)
    tx = put(db, b"k")
    holder.take_turn()
    with pytest.raises(Unavailable, match="nothing was written: process") as found:
        tx.commit()
    assert not isinstance(found.value, OutcomeUnknown)
    holder.give_turn_back()
    with holder.holding():
        pass
    assert not has(db, b"k")


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "posted"])
def test_a_close_in_the_midst_of_a_commit_tells_what_is_true(
    tmp_path: Path, db: Database, holder: Holder, taken: bool
) -> None:
    tx = put(db, b"k")
    with ThreadPoolExecutor(1) as pool:
        holder.take_turn()
        outcome = pool.submit(told, tx)
        if taken:
            holder.take()
        else:
            holder.wait_for_post()
        db.close()
        error = outcome.result(WAIT_S)
        if taken:
            assert isinstance(error, OutcomeUnknown), error
        else:
            assert "closed" in str(error)
        holder.give_turn_back()
    with pyomid.connect(f"omid://{tmp_path}/db") as again:
        assert not has(again, b"k")
        put(again, b"k2").commit()


def packed(db: Database, monkeypatch: pytest.MonkeyPatch, *, number: int) -> bytes:
    """A request that was never sent."""
    requests: list[bytes] = []

    def not_sent(request: bytes) -> None:
        requests.append(request)
        raise OutcomeUnknown("not sent")

    tx = db.begin()
    tx.table("t").put(b"row %d" % (number % 20), {b"f:v": b"%d" % number})
    tx.table("t").increment(b"sum %d" % (number % 20), b"f:v", 1)
    tx.table("t").get(b"claimed %d" % number, for_update=True)
    with monkeypatch.context() as patched:
        patched.setattr(environment_of(db), "request", not_sent)
        with pytest.raises(OutcomeUnknown):
            tx.commit()
    return requests[0]


def damaged(request: bytes, rng: random.Random) -> bytes:
    content = bytearray(request)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                content[at : at + 4] = struct.pack("<i", rng.choice((-1, 0, 1, 255, 65535, 2**31 - 1)))
            case 2:
                del content[at : at + rng.randrange(1, 9)]
            case _:
                content += bytes(rng.randrange(1, 9))
        content = content or bytearray(1)
    return bytes(content)


@pytest.mark.parametrize("seed", first(1, range(10)))
def test_a_wrong_request_of_another_process_harms_nobody_else(
    tmp_path: Path, db: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Its checksum is right, and lengths, columns, names or cells are not: its owner is told, the others commit."""
    rng, refused = random.Random(seed), 0
    other = SharedFile(tmp_path / "db" / "data")
    for number in range(200):
        request = damaged(packed(db, monkeypatch, number=number), rng)
        posted = other.prepared(pack_requests([request]) if rng.random() < 0.8 else request)
        assert posted is not None
        other.post(posted)
        put(db, b"own %d" % number).commit()
        assert other.is_done(posted.number)
        environment = environment_of(db)
        (outcome,) = environment.read(environment.requests.known, posted)  # type: ignore[union-attr]
        refused += isinstance(outcome, OmidError)
    assert 100 < refused < 200
    with db.begin() as tx:
        assert len([key for key, _ in tx.table("t").scan() if key.startswith(b"own")]) == 200
    assert db.verify().ok
    other.close()


async def test_tasks_that_share_a_write_are_each_told_their_own_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group is committed, and the next one fails."""
    monkeypatch.setattr(environments, "_GROUP_RECORDS_MAX", 10)
    async with await pyomid.aio.connect(f"omid://{tmp_path}/db?upkeepShare=0") as db:
        await db.create_table("t", ["f"])
        environment = db._core.deployment.store.environment  # type: ignore[attr-defined]
        begun = []

        def committed(group: object, began_s: float) -> None:
            begun.append(group)
            if 2 <= len(begun) <= 12:
                raise Unavailable("nothing was written: no room")
            Environment._commit(environment, group, began_s)  # type: ignore[arg-type]

        async def write(number: int) -> BaseException | None:
            tx = await db.begin()
            await (await tx.table("t")).put(b"%d" % number, {b"f:v": b"1"})
            return tx

        txs = [await write(number) for number in range(40)]
        monkeypatch.setattr(environment, "_commit", committed)
        told = await asyncio.gather(*(tx.commit() for tx in txs), return_exceptions=True)
        monkeypatch.undo()
        assert 0 < sum(isinstance(each, Unavailable) for each in told) < 40
        for number, each in enumerate(told):
            async with db.snapshot() as tx:
                found = await (await tx.table("t")).get(b"%d" % number)
            assert bool(found) == (each is None), each


@pytest.mark.parametrize("error", [MemoryError, SystemExit])
async def test_an_error_raised_into_the_thread_of_the_commits_hangs_no_task(
    tmp_path: Path, error: type[BaseException]
) -> None:
    async with await pyomid.aio.connect(f"omid://{tmp_path}/db?upkeepShare=0") as db:
        await db.create_table("t", ["f"])
        for number in range(4):
            async with asyncio.timeout(20), await db.begin() as tx:
                await (await tx.table("t")).put(b"%d" % number, {b"f:v": b"1"})
            if number % 2 == 0:
                (thread,) = (each for each in threading.enumerate() if each.name == "pyomid-commits")
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


async def test_a_close_answers_the_commits_that_wait(tmp_path: Path) -> None:
    """What was asked before it is performed; what is asked later is refused."""
    db = await pyomid.aio.connect(f"omid://{tmp_path}/db?upkeepShare=0")
    await db.create_table("t", ["f"])
    txs = [await db.begin() for _ in range(5)]
    for number, tx in enumerate(txs):
        await (await tx.table("t")).put(b"%d" % number, {b"f:v": b"1"})
    await txs.pop().commit()  # its column has a number from now on
    session, environment = db._session, environment_of(db._blocking)
    assert session is not None
    async with asyncio.timeout(20):
        with environment._writer:
            sent = [asyncio.create_task(tx.commit()) for tx in txs[:3]]
            while len(session._waiting) + sum(not each.is_done for each in environment._queue) < len(sent):
                await asyncio.sleep(0.001)
            await session.close()
        await asyncio.gather(*sent[:1])
        told = await asyncio.gather(*sent, return_exceptions=True)
        with pytest.raises(Misuse, match="closed"):
            await txs[3].commit()
    async with db.snapshot() as tx:
        table = await tx.table("t")
        found = [bool(await table.get(b"%d" % number)) for number in range(3)]
    assert found == [each is None for each in told]
    await db.close()
