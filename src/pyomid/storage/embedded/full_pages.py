"""Puts of many records between others, with full pages left behind.

LMDB splits a full page in half, and keeps it full only if the new record comes last in it. So records that come in
order fill their pages where nothing follows on the same page, and half of them otherwise: two tasks that load one table
leave its pages two thirds full. Here a batch takes out the records that lie between its own and puts all in order:

    a filler behind the last    it keeps what follows away from the pages that are being filled
    another one before it       two of them fill a page, so they part it; it goes at once, and what is put lies last
    the records, in steps       where a step takes too many pages, what follows is on its page again: LMDB put the
                                first child of a branch page there. A second filler parts them anew

All in one transaction, so nobody sees a filler.
"""

from __future__ import annotations

from typing import Any, Final

from pyomid.errors import Corruption
from pyomid.storage.embedded.environment import Transaction
from pyomid.storage.embedded.records import KEY_BYTES_MAX

_RECORDS_MIN: Final = 256
_BYTES_MAX: Final = 2 << 20
"""Of the records between. More would hold up other writers."""
_STEP_RECORDS: Final = 16
_PAGE_HEADER: Final = 16
_NODE_BYTES: Final = 11
"""Header, place and padding of a record in a page, about."""
_SPARSE: Final = 1.3
"""A step that takes so many times the pages that it fills is not dense."""


def put_full(transaction: Transaction, database: Any, records: list[tuple[bytes, bytes]]) -> bool:
    """Puts the records, which ascend, and fills pages. False, and nothing is written, where that would cost too much or
    one of them is there."""
    first, last = records[0][0], records[-1][0]
    if len(records) < _RECORDS_MIN or len(last) + 2 > KEY_BYTES_MAX:
        return False
    with transaction.cursor(database) as cursor:
        between = _between(cursor, first, last)
        if not between or not between.keys().isdisjoint(key for key, _ in records):
            return False
        before = transaction.stat(database)
        cursor.set_range(first)
        for _ in between:
            cursor.delete()
        page_bytes = before["psize"]
        filler = bytes(page_bytes // 2 - 22 - len(last))
        transaction.put(last + b"\0\0", filler, db=database)
        pages, room = 0, 0.0
        together = sorted([*between.items(), *records])
        for at in range(0, len(together), _STEP_RECORDS):
            if pages > _SPARSE * room + 1 or not at:
                transaction.put(last + b"\0", filler, db=database)
                transaction.delete(last + b"\0", db=database)
            step, had = together[at : at + _STEP_RECORDS], transaction.stat(database)["leaf_pages"]
            cursor.putmulti(step, overwrite=False)
            pages = transaction.stat(database)["leaf_pages"] - had
            room = sum(len(key) + len(value) + _NODE_BYTES for key, value in step) / (page_bytes - _PAGE_HEADER)
        transaction.delete(last + b"\0\0", db=database)
        if transaction.stat(database)["entries"] != before["entries"] + len(records):
            raise Corruption("LMDB did not put each record once")
    return True


def _between(cursor: Any, first: bytes, last: bytes) -> dict[bytes, bytes]:
    """The records of this range; none of too many."""
    found: dict[bytes, bytes] = {}
    size = 0
    if cursor.set_range(first):
        for key, value in cursor.iternext():
            if key > last:
                break
            found[key] = value
            size += len(key) + len(value)
            if size > _BYTES_MAX:
                return {}
    return found
