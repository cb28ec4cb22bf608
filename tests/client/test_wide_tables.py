"""Tables of many columns: what a call costs depends on the columns that it names and finds, not on those that exist."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from counted_steps import steps_of
from pyomid.database.database import Database
from pyomid.database.tables.table import Table
from pyomid.database.transaction import Transaction

pytestmark = pytest.mark.fast

WIDE = 3_000
"""More than what `points.pyx` has room for on its stack."""

READS: dict[str, Callable[[Transaction, Table], object]] = {
    "a row": lambda tx, table: table.get(b"r1"),
    "a column": lambda tx, table: table.get(b"r1", [b"f:c1"]),
    "another column": lambda tx, table: table.get(b"r1", [b"f:c7"]),
    "a column that nobody wrote": lambda tx, table: table.get(b"r1", [b"f:unheard of"]),
    "rows": lambda tx, table: table.rows([b"r1", b"r2", b"gone"], [b"f:c2", b"f:c3"]),
    "a claimed row": lambda tx, table: table.get(b"r1", for_update=True),
    "a put that expects": lambda tx, table: table.put_if_absent(b"r9", {b"f:c9": b"1"}),
    "the first row": lambda tx, table: list(table.scan(limit=1)),
    "the first row that has a column": lambda tx, table: list(table.scan(stop=b"r3", columns=[b"f:c8"], limit=1)),
    "the last row": lambda tx, table: table.page(limit=1, reverse=True).rows,
}


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
def test_a_read_costs_what_it_names_and_finds(db: Database) -> None:
    steps: dict[str, list[int]] = {}
    found: dict[str, list[object]] = {}
    for columns in (12, WIDE):
        name = f"c{columns}"
        db.create_table(name, ["f"])
        with db.begin() as tx:
            tx.table(name).put(b"s", {b"f:c%d" % number: b"1" for number in range(columns)})
            for number in range(40):
                tx.table(name).put(b"r%d" % number, {b"f:c%d" % (number % 12): b"1"})
                tx.table(name).put(b"t%d" % number, {b"f:c%d" % (number % 12): b"1"})
        db.drain()
        for what, read in READS.items():
            with db.begin() as tx:
                table = tx.table(name)
                if what != "a column that nobody wrote":
                    found.setdefault(what, []).append(read(tx, table))
                steps.setdefault(what, []).append(steps_of(lambda read=read, tx=tx, table=table: read(tx, table)))  # type: ignore[misc]
    assert all(with_few == with_many for with_few, with_many in found.values())
    assert found["the first row that has a column"][0] == [(b"r20", {b"f:c8": b"1"})]
    assert {what: few_and_many for what, few_and_many in steps.items() if few_and_many[1] > 2 * few_and_many[0]} == {}
