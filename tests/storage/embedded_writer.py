"""A process to be killed: writes to an embedded folder for ever and says after each write what is durable.

python embedded_writer.py FOLDER cells|batches|heals|cleanings|commits|churn FIRST
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count

import pyomid
from conformance import OTHER, A, B, cleaning_of, column_write, version_of, written_batch
from pyomid.database.database import Database
from pyomid.folder import EmbeddedStore
from pyomid.types import KeyRange, ShadowWrite

TABLE = "t"
ROWS_OF_BATCH = 5000
ROWS_OF_COMMIT = 20
ROWS_OF_CHURN = 300


def row_key(number: int) -> bytes:
    return b"%09d" % number


def content(number: int) -> bytes:
    return b"%d" % number * (1 + number % 50)


def write_cells(store: EmbeddedStore, number: int) -> None:
    cells = [(column, content(number)) for column in (A, B, OTHER)]
    store.write_cells(TABLE, 50, [column_write(row_key(number), *cells)])


def write_batch(store: EmbeddedStore, number: int) -> None:
    numbers = range(number * ROWS_OF_BATCH, (number + 1) * ROWS_OF_BATCH)
    writes = [column_write(row_key(each), (A, content(each)), (B, content(each))) for each in numbers]
    store.write_batch(TABLE, 50, written_batch(*writes))


def heal(store: EmbeddedStore, number: int) -> None:
    write_cells(store, number)
    store.write_shadow_cells(
        TABLE, [ShadowWrite(version_of(row_key(number), column, 50), 60 + number) for column in (A, B, OTHER)]
    )


def clean(store: EmbeddedStore, number: int) -> None:
    """Of two versions in two columns the older goes, all in one row: half of it must never be found."""
    for version in (50, 100):
        store.write_cells(TABLE, version, [column_write(row_key(number), (A, b"%d" % version), (B, b"%d" % version))])
    key = row_key(number)
    (batch,) = store.scan(TABLE, KeyRange(key, key + b"\x00"))
    store.clean_batch(TABLE, batch, *cleaning_of(batch, heals={100: 120}, drops=[(key, 50, A), (key, 50, B)]))


def churn(store: EmbeddedStore, number: int) -> None:
    """Every row replaced in one transaction: most pages of the file are freed, and used again by the next but one."""
    value = b"%08d" % number
    cells = [column_write(row_key(each), (A, value * (1 + each % 40)), (B, value)) for each in range(ROWS_OF_CHURN)]
    big = column_write(row_key(ROWS_OF_CHURN), (A, value * 2000), (B, value))
    store.write_cells(TABLE, 50, [*cells, big])


def commit(db: Database, number: int) -> None:
    with db.begin() as tx:
        for each in range(number * ROWS_OF_COMMIT, (number + 1) * ROWS_OF_COMMIT):
            tx.table(TABLE).put(row_key(each), {b"f:a": content(each)})


def main(folder: str, kind: str, first: int) -> None:
    work: Callable[[int], None]
    if kind == "commits":
        db = pyomid.connect(f"omid://{folder}")
        if TABLE not in [info.name for info in db.tables()]:
            db.create_table(TABLE, ["f", "g"])
        work = lambda number: commit(db, number)  # noqa: E731
    else:
        store = EmbeddedStore(folder)
        one = {"cells": write_cells, "batches": write_batch, "heals": heal, "cleanings": clean, "churn": churn}[kind]
        work = lambda number: one(store, number)  # noqa: E731
    for number in count(first):
        work(number)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
