"""Put many records between existing ones so that the pages end up full.

LMDB splits a full page in half, unless the new record is the last one of the page: then the page stays full. So
ascending records fill their pages only if no other record follows on the same page; otherwise the pages end up half
full. Two tasks that load one table leave its pages two thirds full. To avoid this, `put_full` deletes the existing
records between the batch's own, and puts all of them in order, in one transaction:

    filler 1, after the batch's last key    half a page
    filler 2, before filler 1               also half a page: the two force a split, and the records that follow the
                                            batch go to the next page with filler 1. Filler 2 is deleted at once
    the records, in steps                   each is now the last record of its page. If a step takes too many pages,
                                            LMDB has moved the following records back (it does so at the first child of
                                            a branch page): filler 2 is put and deleted again

At the end filler 1 is deleted. No other transaction sees a filler.
"""

from __future__ import annotations

from typing import Any, Final

from pyomid.errors import Corruption
from pyomid.storage.embedded.environment import Transaction
from pyomid.storage.embedded.records import KEY_BYTES_MAX

_RECORDS_MIN: Final = 256
_BYTES_MAX: Final = 2 << 20
"""Most bytes of existing records between the batch's own. More would delay other writers."""
_STEP_RECORDS: Final = 16
_PAGE_HEADER: Final = 16
_NODE_BYTES: Final = 11
"""Approximate overhead of a record in a page: header, pointer and padding."""
_SPARSE: Final = 1.3
"""A step that takes more than this many times the pages that its bytes fill has left pages half full."""


def put_full(transaction: Transaction, database: Any, records: list[tuple[bytes, bytes]]) -> bool:
    """Put ascending records and fill the pages. Return False, and write nothing, if that would cost too much or one of
    the records exists."""
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
    """Return the existing records of this range; none if they are more than `_BYTES_MAX`."""
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
