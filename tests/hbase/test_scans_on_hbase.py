"""Scans that use the server's filters: columns, ranges of rows, descending order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from pyomid.database.database import Database

NAMES = (b"f:a", b"f:b", b"g:c")
KEYS = tuple(b"%03d" % number for number in range(0, 400, 7))


@pytest.fixture
def divided(database: Database, table_name: str) -> Iterator[str]:
    """Five regions, one of them empty. Of each row some columns are there, some were deleted, some are of later or
    unfinished transactions."""
    database.create_table(table_name, families=["f", "g"], split_keys=[b"100", b"150", b"151", b"300"])
    yield table_name
    database.drop_table(table_name)


def filled(database: Database, table: str) -> dict[bytes, dict[bytes, bytes]]:
    """The rows that a snapshot from now on sees."""
    rows: dict[bytes, dict[bytes, bytes]] = {}
    with database.begin() as tx:
        for number, key in enumerate(KEYS):
            rows[key] = {name: b"%d" % number for at, name in enumerate(NAMES) if (number + at) % 4}
            tx.table(table).put(key, rows[key])
    with database.begin() as tx:
        for key in KEYS[::5]:
            tx.table(table).delete(key)
            rows.pop(key)
        for key in KEYS[1::5]:
            tx.table(table).delete(key, columns=[b"f:b"])
            rows[key].pop(b"f:b", None)
    return {key: row for key, row in rows.items() if row}


def test_the_server_omits_only_cells_that_no_snapshot_sees(database: Database, divided: str) -> None:
    """Each choice of columns, range, direction and limit gives what a whole scan gives, chosen from by hand."""
    rows = filled(database, divided)
    snapshot = database.snapshot()
    open_writer = database.begin()
    open_writer.table(divided).put(b"0011", {b"f:a": b"open"})
    with database.begin() as tx:  # behind the snapshot
        for key in KEYS[::3]:
            tx.table(divided).put(key, {b"f:a": b"later"})
            tx.table(divided).delete(key, columns=[b"g:c"])
    table = snapshot.table(divided)
    assert dict(table.scan()) == rows
    ranges = ((b"", None), (b"099", b"152"), (b"150", b"151"), (b"151", None), (b"", b"100"), (b"398", b"399"))
    for columns, (start, stop), reverse, limit in product(
        (None, [b"f:a"], [b"f:b", b"g:c"]), ranges, (False, True), (None, 1, 4)
    ):
        wanted = []
        for key in sorted(rows, reverse=reverse):
            row = {name: value for name, value in rows[key].items() if columns is None or name in columns}
            if row and key >= start and (stop is None or key < stop):
                wanted.append((key, row))
        found = list(table.scan(start=start, stop=stop, columns=columns, reverse=reverse, limit=limit))
        assert found == wanted[:limit], (columns, start, stop, reverse, limit)
    open_writer.rollback()
    snapshot.rollback()
