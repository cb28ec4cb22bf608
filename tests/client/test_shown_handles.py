"""What a handle says of itself, and rows and changes as a notebook shows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import pytest

import pyomid.aio
from pyomid.database.database import Database

pytestmark = pytest.mark.fast


@dataclass
class Note:
    id: int
    text: str | None = None


class Pair(NamedTuple):
    id: int
    text: str | None


@pytest.fixture
def notes(memory_db: Database) -> Database:
    memory_db.create_table("notes", Note, row_key="id")
    return memory_db


def test_every_handle_says_what_it_is(notes: Database, memory_url: str) -> None:
    mark = notes.bookmark()
    tx = notes.begin()
    assert repr(tx.table("t")) == f"<Table 't' of transaction {tx.start_ts} (active)>"
    typed, saved = tx.table("notes", codec=Note), tx.savepoint()
    assert repr(saved) == f"<Savepoint of transaction {tx.start_ts} (active)>"
    tx.rollback()
    assert repr(typed) == f"<TypedTable 'notes' of transaction {tx.start_ts} (rolled back)>"
    assert repr(notes.changes("notes", mark)) == "<Changes of table 'notes'>"
    watch = notes.watch("notes", after=mark)
    assert repr(watch) == f"<Watch of table 'notes' (after {mark.start_ts})>"
    watch.close()
    assert repr(watch) == "<Watch of table 'notes' (ended)>"

    async def asyncio_handles() -> None:
        connecting = pyomid.aio.connect(memory_url)
        assert repr(connecting) == f"<Connecting to {memory_url}: await it, or enter it by `async with`>"
        async with connecting as db:
            beginning, watch = db.begin(), db.watch("notes")
            assert repr(beginning) == "<Beginning of a transaction: await it, or enter it by `async with`>"
            assert repr(watch) == "<AsyncWatch of table 'notes' (not begun)>"
            async with beginning as tx:
                assert repr(await tx.table("t")) == f"<AsyncTable 't' of transaction {tx.start_ts} (active)>"

    asyncio.run(asyncio_handles())


def test_the_text_of_a_watch_is_no_read_of_its_bookmark(notes: Database) -> None:
    with notes.watch("notes", keep_seconds=60, max_wait_seconds=0.01) as watch:
        assert repr(watch).startswith("<Watch of table 'notes' (after ")
        assert not watch._watching._read


def html(shown: object) -> str:
    found: str = shown._repr_html_()  # type: ignore[attr-defined]
    return found


def test_notebooks_show_pages_and_changes_escaped(notes: Database) -> None:
    mark = notes.bookmark(keep_seconds=60)
    notes.put("notes", Note(1, "<b>"), codec=Note)
    notes.put("notes", Note(2), codec=Note)
    with notes.snapshot() as tx:
        rows = "<tr><td>1</td><td>&#x27;&lt;b&gt;&#x27;</td></tr><tr><td>2</td><td>None</td></tr>"
        expected = f"<table><thead><tr><th>id</th><th>text</th></tr></thead><tbody>{rows}</tbody></table>"
        for codec in (Note, Pair, dict):
            assert html(tx.table("notes", codec=codec).page()) == expected
        stored = html(tx.table("notes").page(limit=1))
        assert "<th>key</th><th>b&#x27;d:text&#x27;</th>" in stored
        assert "<td>b&#x27;&lt;b&gt;&#x27;</td>" in stored
    change = next(notes.changes("notes", mark, codec=Note))
    assert "<caption>insert of 1 by commit " in html(change)
    assert "<tr><td>text</td><td>&#x27;&lt;b&gt;&#x27;</td></tr>" in html(change)
    assert "<td>b&#x27;&lt;b&gt;&#x27;</td>" in html(next(notes.changes("notes", mark)))
    notes.put("notes", Note(1, "y" * 1000), codec=Note)
    *_, last = [change for change in notes.changes("notes", mark, codec=dict) if change.key == 1]
    assert "<th>column</th><th>before</th><th>after</th>" in html(last)
    assert len(html(last)) < 500
