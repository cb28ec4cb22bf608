"""A function that calling it would not run is refused: its key would be committed, and nothing done under it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid.database.database import Database
from pyomid.database.idempotency import RESULT_BYTES_MAX, AlreadyDone
from pyomid.errors import MisuseType

pytestmark = [pytest.mark.fast, pytest.mark.filterwarnings("error::RuntimeWarning")]


async def coroutine(tx: Any) -> None:
    raise AssertionError("it must not run")


def generator(tx: Any) -> Iterator[None]:
    yield tx.table("t").put(b"k", {b"f:x": b"1"})


async def async_generator(tx: Any) -> AsyncIterator[None]:
    yield await (await tx.table("t")).put(b"k", {b"f:x": b"1"})


class Callable_:
    async def __call__(self, tx: Any) -> None:
        raise AssertionError("it must not run")


def put(tx: Any) -> str:
    tx.table("t").put(b"k", {b"f:x": b"1"})
    return "done"


RUN_LATER: list[Any] = [
    coroutine,
    generator,
    async_generator,
    Callable_(),
    functools.partial(coroutine),
    lambda tx: coroutine(tx),
]
NAMES = ["coroutine", "generator", "async generator", "callable", "partial", "lambda"]


@pytest.mark.parametrize("function", RUN_LATER, ids=NAMES)
def test_a_blocking_run_of_what_runs_later_commits_nothing(memory_db: pyomid.Database, function: Any) -> None:
    for run in (memory_db.run, functools.partial(memory_db.run_once, "id"), transactional(memory_db)):
        with pytest.raises(MisuseType, match="commit"):
            run(function)
    assert memory_db.run_once("id", put) == "done"
    assert isinstance(memory_db.run_once("id", put), AlreadyDone)


def transactional(db: pyomid.Database) -> Callable[[Any], Any]:
    return lambda function: db.transactional(function)()


def test_methods_are_decorated_like_functions(memory_db: Database) -> None:
    class Accounts:
        rows = 0

        @memory_db.transactional
        def put(self, tx: pyomid.Transaction, key: bytes) -> int:
            self.rows += 1
            tx.table("t").put(key, {b"f:x": b"1"})
            return tx.start_ts

        @memory_db.transactional
        def put_two(self, tx: pyomid.Transaction) -> list[int]:
            return [tx.start_ts, self.put(tx, b"2"), self.put(tx, key=b"3")]

        @classmethod
        @memory_db.transactional
        def count(cls, tx: pyomid.Transaction, prefix: bytes) -> tuple[str, int]:
            return cls.__name__, len(list(tx.table("t").scan(prefix=prefix)))

        @staticmethod
        @memory_db.transactional
        def get(tx: pyomid.Transaction, key: bytes) -> dict[bytes, bytes] | None:
            return tx.table("t").get(key)

    class Own(Accounts):
        def put(self, key: bytes) -> int:  # type: ignore[override]
            return super().put(key)

    accounts = Accounts()
    accounts.put(b"1")
    Accounts.put(accounts, key=b"1")
    assert len(set(accounts.put_two())) == 1
    assert accounts.rows == 4
    assert Own().put(b"4")
    assert accounts.count(b"") == Accounts.count(b"") == ("Accounts", 4)
    assert accounts.get(b"4") == Accounts.get(b"4") == {b"f:x": b"1"}


async def test_methods_are_decorated_like_functions_for_asyncio(memory_db: Database, memory_url: str) -> None:
    async with await pyomid.aio.connect(memory_url) as db:

        class Accounts:
            @db.transactional
            async def put(self, tx: pyomid.aio.AsyncTransaction, key: bytes) -> int:
                await (await tx.table("t")).put(key, {b"f:x": b"1"})
                return tx.start_ts

            @db.transactional
            async def put_two(self, tx: pyomid.aio.AsyncTransaction) -> list[int]:
                return [tx.start_ts, await self.put(tx, b"2")]

        await Accounts().put(b"1")
        assert len(set(await Accounts().put_two())) == 1
    with memory_db.begin() as tx:
        assert len(list(tx.table("t").scan())) == 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (staticmethod(put), "put is a staticmethod already: write @staticmethod above"),
        (classmethod(put), "put is a classmethod already: write @classmethod above"),
        (property(put), "needs a function, not <property"),
        ("put", "needs a function, not 'put'"),
    ],
)
def test_what_cannot_be_decorated_is_refused_by_name(memory_url: str, given: Any, sentence: str) -> None:
    with pyomid.connect(memory_url) as db, pytest.raises(MisuseType, match=sentence):
        db.transactional(given)


async def test_a_run_of_what_is_no_function_is_refused(memory_url: str) -> None:
    sentence = "db.run needs a function, not 'put'"
    with pyomid.connect(memory_url) as db:
        with pytest.raises(MisuseType, match=sentence):
            db.run("put")  # type: ignore[arg-type]
    async with pyomid.aio.connect(memory_url) as adb:
        with pytest.raises(MisuseType, match=sentence):
            await adb.run_once("id", "put")  # type: ignore[arg-type]


async def test_an_asyncio_object_says_how_to_enter_it(memory_url: str) -> None:
    connecting: Any = pyomid.aio.connect(memory_url)
    with pytest.raises(MisuseType, match=r"<Connecting.* needs `async with` instead of `with`"), connecting:
        pass
    with pytest.raises(AttributeError, match="await it, or enter it by `async with`> has no attribute 'begin'"):
        connecting.begin()
    async with connecting as db:
        beginning = db.begin()
        for entered in (db, beginning):
            with pytest.raises(MisuseType, match="needs `async with` instead of `with`"), entered:
                pass
        assert not hasattr(beginning, "table")
        await (await beginning).rollback()


@pytest.mark.parametrize("function", [lambda tx: None, generator, async_generator], ids=["plain", *NAMES[1:3]])
async def test_an_asyncio_run_of_what_is_not_awaited_commits_nothing(memory_url: str, function: Any) -> None:
    async def put_later(tx: Any) -> str:
        await (await tx.table("t")).put(b"k", {b"f:x": b"1"})
        return "done"

    async with await pyomid.aio.connect(memory_url) as db:
        await db.create_table("t", families=["f"])
        for run in (db.run, functools.partial(db.run_once, "id")):
            with pytest.raises(MisuseType, match="async def"):
                await run(function)
        assert await db.run_once("id", lambda tx: put_later(tx)) == "done"
        assert isinstance(await db.run_once("id", put_later), AlreadyDone)


def test_the_end_of_an_iterator_in_a_function_comes_out_as_itself(memory_db: pyomid.Database) -> None:
    with pytest.raises(StopIteration):
        memory_db.run(lambda tx: next(tx.table("t").scan()))
    assert memory_db.run_once("id", put) == "done"


class Unreadable(dict[str, int]):
    def items(self) -> Any:
        raise KeyError("a program's own error")


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ("paid", "paid"),
        (b"\x00bytes", b"\x00bytes"),
        ({"id": 17, "lines": [1.5, None, True]}, {"id": 17, "lines": [1.5, None, True]}),
        (0, 0),
        (None, None),
        ((1, 2), None),
        ({1: 2}, None),
        (float("nan"), None),
        (object(), None),
        ("x" * RESULT_BYTES_MAX, None),
        ("x" * (RESULT_BYTES_MAX - len('""')), "x" * (RESULT_BYTES_MAX - len('""'))),
        (b"x" * RESULT_BYTES_MAX, b"x" * RESULT_BYTES_MAX),
        (b"x" * (RESULT_BYTES_MAX + 1), None),
        (Unreadable(a=1), None),
    ],
)
def test_a_run_under_an_id_keeps_what_its_function_returned(memory_db: Database, result: object, kept: object) -> None:
    """As it was, or not at all."""
    assert memory_db.run_once("id", lambda tx: result) is result
    again = memory_db.run_once("id", lambda tx: pytest.fail("it ran twice"))
    assert isinstance(again, AlreadyDone)
    assert again.result == kept
    assert type(again.result) is type(kept)


def test_a_run_that_ends_its_transaction_itself_keeps_nothing(memory_db: Database) -> None:
    def commit(tx: pyomid.Transaction) -> str:
        tx.commit()
        return "done"

    assert memory_db.run_once("id", commit) == "done"
    again = memory_db.run_once("id", commit)
    assert isinstance(again, AlreadyDone)
    assert again.result is None


def test_a_run_returns_what_its_function_returns_also_the_outcome_of_another_run(memory_db: Database) -> None:
    memory_db.run_once("mail", lambda tx: "sent")
    found = memory_db.run(lambda tx: memory_db.run_once("mail", lambda inner: "sent"))
    assert isinstance(found, AlreadyDone)
    assert found.result == "sent"
