"""What programs may use is named in one place, and is the same for blocking and asyncio."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from pyomid.client import public_names
from pyomid.client.aio import AsyncDatabase, AsyncTable, AsyncTransaction, AsyncTypedTable
from pyomid.client.database import Database
from pyomid.client.tables.table import Table
from pyomid.client.tables.typed import TypedTable
from pyomid.client.transaction import Transaction

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
