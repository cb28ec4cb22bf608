"""What programs may use is named in one place, and is the same for blocking and asyncio."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid.client import public_names
from pyomid.client.async_client import AsyncDatabase, AsyncTable, AsyncTransaction, AsyncTypedTable
from pyomid.client.database import Database
from pyomid.client.tables.table import Table
from pyomid.client.tables.typed import TypedTable
from pyomid.client.transaction import Transaction
from pyomid.errors import MisuseType

pytestmark = pytest.mark.fast

PAIRS = {
    public_names.DATABASE: (Database, AsyncDatabase),
    public_names.TRANSACTION: (Transaction, AsyncTransaction),
    public_names.TABLE: (Table, AsyncTable),
    public_names.TYPED_TABLE: (TypedTable, AsyncTypedTable),
}
ROOT = Path(__file__).parents[2]
OF_INSTANCES = ("url", "settings")


def both(names: tuple[str, ...]) -> list[tuple[str, Any, Any]]:
    blocking, asynchronous = PAIRS[names]
    return [(name, getattr(blocking, name), getattr(asynchronous, name)) for name in names if name not in OF_INSTANCES]


@pytest.mark.parametrize("names", PAIRS, ids=["database", "transaction", "table", "typed"])
def test_asyncio_takes_the_arguments_of_the_blocking_client(names: tuple[str, ...]) -> None:
    for name, blocking, asynchronous in both(names):
        assert callable(blocking) == callable(asynchronous), name
        if callable(blocking):
            taken = [
                [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]
                for method in (blocking, asynchronous)
            ]
            assert taken[0] == taken[1], name


@pytest.mark.parametrize("names", PAIRS, ids=["database", "transaction", "table", "typed"])
def test_what_stands_above_own_use_is_public(names: tuple[str, ...]) -> None:
    defined: set[str] = set()
    for shell in PAIRS[names]:
        for kind in shell.__mro__:
            if kind.__module__.startswith("pyomid"):
                public, _, _ = inspect.getsource(kind).partition("    # For pyomid's own use")
                defined |= set(re.findall(r"^    (?:async )?def ([a-z]\w*)\(", public, re.MULTILINE))
    assert {name for name in defined if not name.endswith("_steps")} <= set(names)


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
        db.table_schema("typed", columns={"id": "long", "v": "string"}, row_key=["id"])
        place = db.bookmark()
        with db.begin() as tx, db.snapshot() as past, db.watch("t") as watch:
            check(db, tx, past, tx.table("t"), tx.table("typed", codec=dict), tx.savepoint(), watch)
            check(db.changes("t", starting=place))
        asyncio.run(asyncio_handles())


def test_dir_shows_public_names_only(memory_db: Database) -> None:
    tx = memory_db.begin()
    shown = {public_names.DATABASE: memory_db, public_names.TRANSACTION: tx, public_names.TABLE: tx.table("t")}
    for names, each in shown.items():
        assert tuple(name for name in dir(each) if not name.startswith("__")) == names
        assert all(hasattr(each, name) for name in names)
    tx.rollback()


@pytest.mark.parametrize("page", ["pyomid", "aio"])
def test_the_pages_list_the_public_names(page: str) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    listed = re.findall(
        r"(?:Database|Transaction|Table)\n(?:    options:\n)(?:      \w.*\n)*?      members: \[(.*)\]", text
    )
    assert [sorted(members.split(", ")) for members in listed] == [sorted(names) for names in PAIRS]


def test_the_types_of_asyncio_are_exported() -> None:
    import pyomid.aio

    for name in pyomid.aio.__all__:
        assert getattr(pyomid.aio, name)
    with pytest.raises(AttributeError):
        pyomid.aio.no_such_name  # noqa: B018
