"""What programs may use is public, the rest is private, and both clients have the same names."""

from __future__ import annotations

import ast
import asyncio
import copy
import inspect
import pickle
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import pyomid
import pyomid.aio
from pyomid import coroutines
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.async_transaction import AsyncTransaction
from pyomid.database.database import Database
from pyomid.database.tables.async_tables import AsyncTable, AsyncTypedTable
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
        "transactional",
        "bookmark",
        "changes",
        "close",
        "delete",
        "get",
        "put",
        "scan",
        "watch",
    },
    AsyncTransaction: {"table"},
}
"""What asyncio does in its own way: `test_client_aio.py`, `test_client_functions.py`, `test_client_watch.py`,
`test_calls_of_one_transaction.py`."""


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["database", "transaction", "table", "typed"])
def test_all_else_of_asyncio_does_what_the_blocking_client_does_and_awaits_it(
    blocking: type, asynchronous: type
) -> None:
    """So what is tested of one is tested of both. The methods of a database that run in a thread are the blocking
    ones."""
    calls = [calls_of(each) for each in (blocking, asynchronous)]
    own = set()
    for name in public(blocking):
        ours, theirs = getattr(asynchronous, name), getattr(blocking, name)
        if callable(theirs) and inspect.unwrap(ours) is not inspect.unwrap(theirs):
            assert ours.__doc__, name
            if calls[0][name] != calls[1][name]:
                own.add(name)
    assert own == OWN.get(asynchronous, set())


class WithoutAwaits(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.generic_visit(node).value  # type: ignore[attr-defined, no-any-return]


def calls_of(front_end: type) -> dict[str, list[str]]:
    """Return the statements of each method, without texts and awaits."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(front_end))).body
    assert isinstance(defined, ast.ClassDef)
    found: dict[str, list[str]] = {}
    for method in defined.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = method.body[1:] if ast.get_docstring(method) else method.body
            found[method.name] = [ast.unparse(WithoutAwaits().visit(each)) for each in statements]
    return found


def test_both_drivers_are_one_but_for_the_await() -> None:
    """A loop for both would cost the blocking client a call for each effect."""
    drives = [ast.parse(inspect.getsource(each)).body[0] for each in (coroutines.drive, coroutines.adrive)]
    blocking, asynchronous = (
        [ast.unparse(WithoutAwaits().visit(each)) for each in drive.body[1:]]  # type: ignore[attr-defined]
        for drive in drives
    )
    assert [text.replace("handlers[type(effect)](effect)", "perform(effect)") for text in blocking] == asynchronous


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
