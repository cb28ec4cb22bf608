"""Checks of a table that exists in the store before the catalog lists it. Creating or registering it must not hide or
lose rows that other programs wrote.

Compaction drops versions that no transaction committed, and so every row that a program wrote without transactions. A
sample decides, because a Java deployment registers tables of any size: the first and last rows of each region. In a
table that transactions write, nearly every row has a version with a shadow cell or an entry. After an interrupted
adoption, the last rows of a region have neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from pyomid.arrays import NDArray, np
from pyomid.cells import CellBatch
from pyomid.database.issued import drawn_start, last_issued
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.types import NOT_FOUND, KeyRange

_SAMPLED_ROWS: Final = 100
"""Number of rows sampled at each end of a region."""


def is_in_store(deployment: Deployment, name: str) -> bool:
    """Whether the store has a table of this name. False in a store that only pyomid uses."""
    if deployment.foreign is None:
        return False
    try:
        deployment.store.check_table(name, ())
    except UnknownTable:
        return False
    except Misuse:  # the table exists, though it is unfit for transactions
        pass
    return True


def check_found_table(deployment: Deployment, name: str) -> None:
    """Raise `Misuse` if the store has a table of this name with rows that no transaction wrote, or with delete markers
    that would hide the writes of transactions."""
    if not is_in_store(deployment, name):
        return
    plain = next(filter(None, (_plain_row(deployment, name, each) for each in _samples(deployment, name))), None)
    if plain is not None:
        has_others = any(_is_of_transactions(each) for each in _samples(deployment, name))
        raise Misuse(
            f"HBase has a table {name!r} with rows that no transaction committed, such as {plain[0]!r} with version "
            f"{plain[1]}: transactions would not see these rows, and compaction would drop them; "
            + (
                "transactions wrote other rows of the table; copy the uncommitted rows to a table of their own, and "
                "delete them here"
                if has_others
                else f"to keep these rows, run `pyomid adopt URL {name} FAMILY…`; for a table without these rows, "
                "choose another name"
            ),
            table=name,
            row=plain[0],
        )
    check_markers(deployment, name, KeyRange(), drawn_start(deployment))


def check_markers(deployment: Deployment, name: str, key_range: KeyRange, newest_ts: int) -> None:
    """Raise `Misuse` if a delete marker would hide a later write of a transaction. Such a marker is at or above
    `newest_ts`, a start that was drawn before this call, and no rollback of a later transaction wrote it."""
    if deployment.foreign is not None:
        deployment.foreign.check_markers(name, key_range, newest_ts, partial(last_issued, deployment))


def _samples(deployment: Deployment, name: str) -> Iterator[CellBatch]:
    """Yield the first and the last rows of each region."""
    store = deployment.store
    for region in store.regions(name):
        first = next(store.scan(name, region, batch_rows_max=_SAMPLED_ROWS), None)
        if first is None or not first.rows:
            continue
        yield first
        start = max(store.start_of_last_rows(name, region, _SAMPLED_ROWS), first.row_key(first.rows - 1) + b"\0")
        last = next(store.scan(name, KeyRange(start, region.stop), batch_rows_max=_SAMPLED_ROWS), None)
        if last is not None and last.rows:
            yield last


def _is_of_transactions(batch: CellBatch) -> bool:
    """Whether transactions, rather than an adoption, wrote shadow cells in these rows."""
    return bool(((batch.rec_commit > 0) & (batch.rec_commit != batch.rec_version)).any())


def _plain_row(deployment: Deployment, name: str, batch: CellBatch) -> tuple[bytes, int] | None:
    """Return a row that no transaction wrote, and its newest version, if transactions did not write most of these rows.

    A version without shadow cell and entry may belong to an open transaction. The fence decides: after it, an earlier
    transaction has its entry, or aborts. If a transaction completed since the scan, the next scan finds its shadow
    cells (R1).
    """
    if _unwritten(batch, _without_entry(deployment, batch)) is None:
        return None
    deployment.tso.fence(table_id(name.encode()))
    unknown = _without_entry(deployment, batch)
    again = KeyRange(batch.row_key(0), batch.row_key(batch.rows - 1) + b"\0")
    found = next(deployment.store.scan(name, again, batch_rows_max=batch.rows), None)
    return None if found is None else _unwritten(found, unknown)


def _without_entry(deployment: Deployment, batch: CellBatch) -> NDArray[np.int64]:
    """Return the starts in the batch that have neither shadow cell nor entry."""
    starts: NDArray[np.int64] = np.unique(batch.rec_start[batch.rec_commit == 0])
    has_none = np.array(deployment.commit_table.lookup(starts.tolist()), dtype=np.int64) == NOT_FOUND
    return np.compress(has_none, starts)


def _unwritten(batch: CellBatch, unknown: NDArray[np.int64]) -> tuple[bytes, int] | None:
    """Return a row whose versions all belong to these starts, and its newest version; None if most rows have other
    versions too."""
    is_plain = (batch.rec_commit == 0) & np.isin(batch.rec_start, unknown)
    row_of_record = np.repeat(np.arange(batch.rows), np.diff(batch.row_rec))
    written = np.bincount(row_of_record, weights=~is_plain, minlength=batch.rows) > 0
    if int(written.sum()) * 2 >= batch.rows:
        return None
    row = int(np.argmin(written))
    return batch.row_key(row), int(batch.rec_version[batch.row_rec[row]])
