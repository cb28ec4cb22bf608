"""Idempotency keys: of all runs with the same durable id, at most one commits (hazard C7).

A key is a conflict-checked cell in a transactional system table; its row key is the run's id. Every run reads the key
in its own snapshot and writes it in the same transaction:

    run 1 (s 100)  key not visible, writes it            commit 150
    run 2 (s 120)  key not visible, writes it            conflict: aborts, is rerun
    run 3 (s 200)  key visible: the run happened already, by start 100

So of all runs with one id at most one commits, even if replies are lost, and even after the run's own cells were
overwritten and compacted. Upkeep shrinks an old key (decision 0059). One transaction deletes the key's row, with the
run's result, and adds six bytes of the id's hash to a row shared by the ids whose hashes begin with the same two bytes.
A reader of both rows in one snapshot finds one or the other, so an id never becomes free again (K9).

How to use it: call `check_run_id`; make sure that the table exists (`table_admin.ensure_keys_table`);
read `key_rows` at the run's snapshot and pass them to `found_key`; if that is None, write `key_write` under the run's
own start and name `key_cell_id` and `KEYS_TABLE_ID` in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.types import Column, ConflictLevel, RowWrite, TableInfo

KEYS_TABLE: Final = "PYOMID_MARKERS"
KEY_COLUMN: Final = Column(b"m", b"run")
BRANCHES_COLUMN: Final = Column(b"m", b"branches")
"""The starts of the branches that the run committed, if any. They are in the row of the run's key, and `verify` uses
them to find branches without entries."""
RESULT_COLUMN: Final = Column(b"m", b"result")
"""The result of the run's function, as `kept_result` encodes it. It is in the row of the run's key."""
CHECKPOINT_COLUMN: Final = Column(b"m", b"checkpoint")
"""The checkpoint to which a stream's sink belongs (Spark's id of the query). Each sink with a `query_id` has a separate
row."""
RESULT_BYTES_MAX: Final = 64 << 10
"""Larger results are not stored."""
EXPIRED_COLUMN: Final = Column(b"m", b"expired")
"""The hashes of ids whose keys expired, six bytes each. They are in separate rows."""
KEYS_INFO: Final = TableInfo(KEYS_TABLE, (KEY_COLUMN.family,), ConflictLevel.CELL)
KEYS_TABLE_ID: Final = table_id(KEYS_TABLE.encode())

RUN_ID_BYTES_MAX: Final = 200
"""Maximum length of an id. Every store accepts such an id as a row key."""

_START_BYTES: Final = 8
_KEY_NAME: Final = b"%b:%b" % KEY_COLUMN
_EXPIRED_NAME: Final = b"%b:%b" % EXPIRED_COLUMN
_EXPIRED_PREFIX: Final = b"\xffexpired "
_CHECKPOINT_PREFIX: Final = b"\xfecheckpoint "
"""No id's row begins with this prefix, because it is not UTF-8."""
_HASH_BYTES: Final = 8
_GROUP_BYTES: Final = 2
_MARK_BYTES: Final = _HASH_BYTES - _GROUP_BYTES


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The value that `run_once` returns if a run with the same id has already committed. `start_ts` is the start
    timestamp of the committed run.

    `result` is the result of the committed run's function, or None if that result was not stored. pyomid stores a
    result of up to 64 KiB if the result is bytes, or a value that JSON restores exactly. When the run is older than
    `runIdDays`, upkeep deletes the stored timestamp and result: then `start_ts` is 0, and `result` is None.
    """

    run_id: str
    start_ts: int
    result: Any = None


def check_run_id(run_id: object) -> str:
    """Return the id. Raise `Misuse` unless it is a str of 1 … 200 bytes in UTF-8."""
    if not isinstance(run_id, str):
        raise MisuseType(f"run_id {run_id!r} is {type(run_id).__name__}, not str", value=run_id)
    try:
        length = len(run_id.encode())
    except UnicodeEncodeError as error:
        raise Misuse(f"run_id {run_id[:60]!r} cannot be encoded as UTF-8", value=run_id) from error
    if not 1 <= length <= RUN_ID_BYTES_MAX:
        raise Misuse(
            f"run_id {run_id[:60]!r} has {length} bytes in UTF-8; it must have 1 to {RUN_ID_BYTES_MAX} bytes",
            value=run_id,
        )
    return run_id


def key_row(run_id: str) -> bytes:
    return run_id.encode()


def checkpoint_row(query_id: str, sink: str | None) -> bytes:
    """Return the key of the row that names a sink's checkpoint. The row is not the idempotency key of a run, so it does
    not expire."""
    return _CHECKPOINT_PREFIX + query_id.encode() + b"\0" + (sink or "").encode()


def key_rows(run_id: str) -> tuple[bytes, bytes]:
    """Return the rows that show whether a run with this id committed: the id's own row, and the row of expired ids in
    its group."""
    row = key_row(run_id)
    return row, expired_row(row)


def expired_row(row: bytes) -> bytes:
    """Return the row that stores the id's hash after the key `row` has expired."""
    return _EXPIRED_PREFIX + _hash(row)[:_GROUP_BYTES]


def with_expired(row: Mapping[bytes, bytes], keys: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the cells of an `expired_row` with the ids of these keys added. `row` is the current row, from
    `Table.get`; the result is for `Table.put`."""
    marks = {*_marks(row.get(_EXPIRED_NAME, b"")), *(_hash(key)[_GROUP_BYTES:] for key in keys)}
    return {_EXPIRED_NAME: b"".join(sorted(marks))}


def named_start(row: Mapping[bytes, bytes]) -> int | None:
    """Return the start of the run whose key is in this row of `Table.scan`; None for another kind of row."""
    value = row.get(_KEY_NAME)
    return None if value is None else int.from_bytes(value)


def _hash(row: bytes) -> bytes:
    return blake2b(row, digest_size=_HASH_BYTES).digest()


def _marks(value: bytes) -> Iterator[bytes]:
    return (value[at : at + _MARK_BYTES] for at in range(0, len(value), _MARK_BYTES))


def key_write(run_id: str, start_ts: int) -> RowWrite:
    """Return the write of the key, which the run that starts at `start_ts` passes to `DataStore.write_cells`."""
    return RowWrite(key_row(run_id), ((KEY_COLUMN, start_ts.to_bytes(_START_BYTES, "big")),))


def branches_value(branches: Sequence[int]) -> bytes:
    """Return the value of BRANCHES_COLUMN."""
    return b"".join(branch.to_bytes(_START_BYTES, "big") for branch in branches)


def branches_of(value: bytes) -> list[int]:
    return [int.from_bytes(value[at : at + _START_BYTES], "big") for at in range(0, len(value), _START_BYTES)]


def key_cell_id(run_id: str) -> int:
    """Return the key's conflict id for the commit's write set. It is always the id of a cell, whatever the level of the
    other ids."""
    return cell_id(KEYS_TABLE.encode(), key_row(run_id), *KEY_COLUMN)


def checkpoint_cell_id(row: bytes) -> int:
    """Return the conflict id of a `checkpoint_row`: of two checkpoints that begin concurrently, only one gets the
    sink."""
    return cell_id(KEYS_TABLE.encode(), row, *CHECKPOINT_COLUMN)


def found_key(run_id: str, row: Mapping[Column, bytes]) -> AlreadyDone | None:
    """Return the committed run that the visible cells of `key_rows` show; None if no run has committed."""
    value = row.get(KEY_COLUMN)
    if value is None:
        has_expired = _hash(key_row(run_id))[_GROUP_BYTES:] in _marks(row.get(EXPIRED_COLUMN, b""))
        return AlreadyDone(run_id, 0) if has_expired else None
    if len(value) != _START_BYTES:
        raise Corruption(f"idempotency key {run_id!r} holds {len(value)} bytes, not a start timestamp")
    return AlreadyDone(run_id, int.from_bytes(value, "big"), _result_of(row.get(RESULT_COLUMN)))


def kept_result(result: object) -> bytes | None:
    """Return the value of RESULT_COLUMN for a run's result; None if it cannot be stored, or is None."""
    if result is None:
        return None
    try:
        if isinstance(result, bytes):
            kind, content = _BYTES, result
        else:
            kind, content = _JSON, json.dumps(result, allow_nan=False).encode()
        if len(content) > RESULT_BYTES_MAX or (kind is _JSON and not _is_same(json.loads(content), result)):
            return None
    except Exception:  # also of the program's own class, whose run has succeeded
        return None
    return kind + content


def _is_same(decoded: object, result: object) -> bool:
    """Whether values and all types are equal: JSON turns tuples into lists, and number keys into strings."""
    if type(decoded) is not type(result):
        return False
    if isinstance(decoded, list):
        assert isinstance(result, list)
        return all(map(_is_same, decoded, result))
    if isinstance(decoded, dict):
        assert isinstance(result, dict)
        return decoded.keys() == result.keys() and all(_is_same(decoded[key], result[key]) for key in decoded)
    return decoded == result


def _result_of(value: bytes | None) -> Any:
    if value is None:
        return None
    return value[1:] if value[:1] == _BYTES else json.loads(value[1:])


_BYTES: Final = b"b"
_JSON: Final = b"j"
