"""Durable ids of runs: who must know for certain whether a run committed writes a marker (hazard C7).

A marker is a conflict-checked cell whose row is the run's id, in a transactional table of the system. Every run
reads it in its own snapshot and writes it in the same transaction:

    run 1 (s 100)  marker not visible, writes it            commit 150
    run 2 (s 120)  marker not visible, writes it            conflict: aborts, runs again
    run 3 (s 200)  marker visible: the run happened already, by start 100

so of all runs under one id at most one commits, whatever happened to the answers. The marker stays when the run's
own cells were overwritten and cleaned away. Markers are kept until someone deletes their rows.

How to use it: `check_transaction_id`; the table `MARKERS` exists (`client.table_admin.ensure_markers_table`); read
`marker_row` at the run's snapshot and ask `found_marker`; if None, write `marker_write` under the run's own
start and name `marker_cell_id` and `MARKERS_TABLE_ID` in the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.types import Column, ConflictLevel, RowWrite, TableInfo

MARKERS_TABLE: Final = "PYOMID_MARKERS"
MARKER_COLUMN: Final = Column(b"m", b"run")
BRANCHES_COLUMN: Final = Column(b"m", b"branches")
"""Beside the marker of a run that committed branches: which, so that one whose commit entry is lost is found."""
MARKERS: Final = TableInfo(MARKERS_TABLE, (MARKER_COLUMN.family,), ConflictLevel.CELL)
MARKERS_TABLE_ID: Final = table_id(MARKERS_TABLE.encode())

TRANSACTION_ID_BYTES_MAX: Final = 200
"""A row key that every store takes."""

_START_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """A run under this id committed before; `start_ts` names its transaction."""

    transaction_id: str
    start_ts: int


def check_transaction_id(transaction_id: object) -> str:
    """The id itself; `Misuse` unless it is a text of 1 … 200 bytes of UTF-8."""
    if not isinstance(transaction_id, str):
        raise MisuseType(
            f"transaction_id {transaction_id!r} is {type(transaction_id).__name__}, not str", value=transaction_id
        )
    length = len(transaction_id.encode())
    if not 1 <= length <= TRANSACTION_ID_BYTES_MAX:
        raise Misuse(
            f"transaction_id {transaction_id[:60]!r} has {length} bytes of UTF-8: it must be "
            f"1 … {TRANSACTION_ID_BYTES_MAX}",
            value=transaction_id,
        )
    return transaction_id


def marker_row(transaction_id: str) -> bytes:
    return transaction_id.encode()


def marker_cell(start_ts: int) -> dict[Column, bytes | None]:
    """The marker's only cell, as the run that starts at `start_ts` writes it."""
    return {MARKER_COLUMN: start_ts.to_bytes(_START_BYTES, "big")}


def marker_write(transaction_id: str, start_ts: int) -> RowWrite:
    """The same for `DataStore.write_cells`."""
    return RowWrite(marker_row(transaction_id), tuple(marker_cell(start_ts).items()))


def branches_value(branches: Sequence[int]) -> bytes:
    """What stands in BRANCHES_COLUMN."""
    return b"".join(branch.to_bytes(_START_BYTES, "big") for branch in branches)


def branches_of(value: bytes) -> list[int]:
    return [int.from_bytes(value[at : at + _START_BYTES], "big") for at in range(0, len(value), _START_BYTES)]


def marker_cell_id(transaction_id: str) -> int:
    """What the commit's write set must name beside its other ids, at whatever level those are."""
    return cell_id(MARKERS_TABLE.encode(), marker_row(transaction_id), *MARKER_COLUMN)


def found_marker(transaction_id: str, row: Mapping[Column, bytes]) -> AlreadyDone | None:
    """What a visible marker row says; None where the run has not happened."""
    value = row.get(MARKER_COLUMN)
    if value is None:
        return None
    if len(value) != _START_BYTES:
        raise Corruption(f"marker {transaction_id!r} holds {len(value)} bytes, not a start timestamp")
    return AlreadyDone(transaction_id, int.from_bytes(value, "big"))


def named_marker_cell(start_ts: int) -> dict[bytes, bytes]:
    """The marker's cell as `Table.put` takes it."""
    return {_MARKER_NAME: start_ts.to_bytes(_START_BYTES, "big")}


def found_marker_named(transaction_id: str, row: Mapping[bytes, bytes]) -> AlreadyDone | None:
    """`found_marker` of a row as `Table.get` returns it."""
    value = row.get(_MARKER_NAME)
    return None if value is None else found_marker(transaction_id, {MARKER_COLUMN: value})


_MARKER_NAME: Final = b"%b:%b" % MARKER_COLUMN
