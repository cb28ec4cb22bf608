"""What programs may use is public, the rest is private, and both clients have the same names."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pyomid
import pyomid.aio
from pyomid.database.async_database import AsyncDatabase, AsyncTable, AsyncTransaction, AsyncTypedTable
from pyomid.database.database import Database
from pyomid.database.tables.table import Table
from pyomid.database.tables.typed import TypedTable
from pyomid.database.transaction import Transaction
from pyomid.errors import MisuseType

pytestmark = pytest.mark.fast

PAIRS = (
    (Database, AsyncDatabase),
    (Transaction, AsyncTransaction),
    (Table, AsyncTable),
    (TypedTable, AsyncTypedTable),
)
ROOT = Path(__file__).parents[2]


def public(shown: object) -> list[str]:
    return [name for name in dir(shown) if not name.startswith("_")]


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["database", "transaction", "table", "typed"])
def test_asyncio_has_the_names_and_the_arguments_of_the_blocking_client(blocking: type, asynchronous: type) -> None:
    assert public(blocking) == public(asynchronous)
    for name in public(blocking):
        methods = [getattr(each, name) for each in (blocking, asynchronous)]
        assert len({callable(method) for method in methods}) == 1, name
        if callable(methods[0]):
            taken = [
                [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]
                for method in methods
            ]
            assert taken[0] == taken[1], name


OWN: dict[type, set[str]] = {
    AsyncDatabase: {
        "begin",
        "snapshot",
        "run",
        "run_once",
        "transactional",
        "bookmark",
        "changes",
        "close",
        "get",
        "put",
        "scan",
    },
    AsyncTransaction: {"table", "commit"},
    AsyncTable: {"put"},
}
"""What asyncio does in its own way: `test_client_aio.py`, `test_client_functions.py`, `test_client_watch.py`,
`test_calls_of_one_transaction.py`."""


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["database", "transaction", "table", "typed"])
def test_all_else_of_asyncio_is_made_of_the_blocking_clients_methods(blocking: type, asynchronous: type) -> None:
    """So what is tested of one is tested of both."""
    methods = [name for name in public(blocking) if callable(getattr(blocking, name))]
    own = {
        name
        for name in methods
        if inspect.unwrap(getattr(asynchronous, name)) is not inspect.unwrap(getattr(blocking, name))
    }
    assert own == OWN.get(asynchronous, set())


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_handle_is_neither_pickled_nor_copied(memory_url: str, way: Callable[[object], object]) -> None:
    async def asyncio_handles() -> None:
        async with (
            await pyomid.aio.connect(memory_url) as db,
            db.begin() as tx,
            db.watch("t") as watch,
        ):
            beginning = db.begin()
            check(db, beginning, tx, await tx.table("t"), await tx.table("typed", codec=dict), tx.savepoint(), watch)
            await (await beginning).rollback()

    def check(*handles: object) -> None:
        for handle in handles:
            with pytest.raises(MisuseType, match=f"{type(handle).__name__} cannot be pickled or copied"):
                way(handle)

    with pyomid.connect(memory_url) as db:
        for name in ("t", "typed"):
            db.create_table(name, ["f"])
        db.set_schema("typed", columns={"id": "long", "v": "string"}, row_key=["id"])
        place = db.bookmark()
        with db.begin() as tx, db.snapshot() as past, db.watch("t") as watch:
            check(db, tx, past, tx.table("t"), tx.table("typed", codec=dict), tx.savepoint(), watch)
            check(db.changes("t", starting=place))
        asyncio.run(asyncio_handles())


def test_an_object_has_no_public_names_beside_those_of_its_class(memory_db: Database) -> None:
    tx = memory_db.begin()
    for each in (memory_db, tx, tx.table("t")):
        assert public(each) == public(type(each))
    tx.rollback()


@pytest.mark.parametrize("page", ["pyomid", "aio"])
def test_the_pages_list_the_public_names(page: str) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    listed = re.findall(
        r"(?:Database|Transaction|Table)\n(?:    options:\n)(?:      \w.*\n)*?      members: \[(.*)\]", text
    )
    assert [sorted(members.split(", ")) for members in listed] == [public(blocking) for blocking, _ in PAIRS]


def test_the_types_of_asyncio_are_exported() -> None:
    import pyomid.aio

    for name in pyomid.aio.__all__:
        assert getattr(pyomid.aio, name)
    with pytest.raises(AttributeError):
        pyomid.aio.no_such_name  # noqa: B018
