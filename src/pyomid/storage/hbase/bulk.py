"""Bulk puts: batches encoded by compiled kernels, a region at a time, the next piece encoded while one is on its way.

A piece whose reply holds any failure, and only such a piece, is taken apart row by row: refusals go again by the
ordinary way, everything else is unsure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyomid.cells import CellBatch
from pyomid.storage.hbase.encode_kernel import (
    ACTION_BYTES_MAX,
    CELL_BYTES_MAX,
    all_succeeded,
    encode_commits,
    encode_puts,
)
from pyomid.storage.hbase.failures import RemoteFailure
from pyomid.storage.hbase.frames import CLIENT, Call, Reply, varint
from pyomid.storage.hbase.hbase_pb2 import MultiResponse
from pyomid.storage.hbase.layout import commit_row
from pyomid.storage.hbase.locations import Region
from pyomid.storage.hbase.steps import (
    Answer,
    Budget,
    Flight,
    RegionOperations,
    Start,
    Steps,
    finish_steps,
    is_unsure,
)
from pyomid.types import Column

PIECE_ROWS_MAX: Final = 1000
PIECE_BYTES_MAX: Final = 2 << 20
COMMITS_MAX: Final = 4000
FLIGHTS_MAX: Final = 2
"""Pieces on their way while another is encoded."""


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What is still to be done: rows that a server refused before it began, and rows whose answer was lost."""

    refused: list[int]
    unsure: list[int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one region, encoded. `rows`: their numbers in the whole."""

    region: Region
    call: Call
    rows: Sequence[int]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The columns of a batch as the kernel wants them."""

    names: NDArray[np.uint8]
    begin: NDArray[np.int64]
    family_len: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Sequence[Column]) -> ColumnNames:
        joined = b"".join(column.family + column.qualifier for column in columns)
        sizes = [len(column.family) + len(column.qualifier) for column in columns]
        return cls(
            np.frombuffer(bytearray(joined or b"\0"), dtype=np.uint8),
            np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(sizes, dtype=np.int64))]),
            np.array([len(column.family) for column in columns], dtype=np.int64),
        )


def put_batch_steps(
    operations: RegionOperations, table: str, version: int, batch: CellBatch, budget: Budget
) -> Steps[BulkOutcome]:
    """`CellBatch` rows, sorted and unique, one record each, under `version`."""
    pieces = _batch_pieces(operations, table, version, batch, budget)
    outcome = yield from _send_steps(operations, pieces, budget)
    return outcome


def put_commits_steps(
    operations: RegionOperations, table: str, entries: NDArray[np.int64], budget: Budget
) -> Steps[BulkOutcome]:
    """Commit-table rows of entries (start, commit)."""
    pieces = _commit_pieces(operations, table, entries, budget)
    outcome = yield from _send_steps(operations, pieces, budget)
    return outcome


def _send_steps(operations: RegionOperations, pieces: Steps[None], budget: Budget) -> Steps[BulkOutcome]:
    """`pieces` yields requests of its own and `_Piece`s; each piece goes out at once, a few are on their way."""
    outcome = BulkOutcome([], [])
    flights: list[tuple[_Piece, Flight]] = []
    request: Any = next(pieces, None)
    while request is not None:
        if not isinstance(request, _Piece):
            answer = yield request
            request = _following(pieces, answer)
            continue
        server = request.region.server
        assert server is not None
        (flight,) = yield Start(((server, request.call),), budget.call_s)
        flights.append((request, flight))
        if len(flights) > FLIGHTS_MAX:
            yield from _settle_steps(operations, *flights.pop(0), outcome, budget)
        request = _following(pieces, None)
    for piece, flight in flights:
        yield from _settle_steps(operations, piece, flight, outcome, budget)
    return outcome


def _following(pieces: Steps[None], answer: Any) -> Any:
    try:
        return pieces.send(answer)
    except StopIteration:
        return None


def _settle_steps(
    operations: RegionOperations, piece: _Piece, flight: Flight, outcome: BulkOutcome, budget: Budget
) -> Steps[None]:
    answer: Answer = yield from finish_steps(flight, budget)
    failures: dict[int, Exception]
    if isinstance(answer, Reply) and answer.failure is None:
        if all_succeeded(np.frombuffer(answer.message, dtype=np.uint8)):
            return
        failures = _failures(MultiResponse.FromString(answer.message), len(piece.rows))  # type: ignore[arg-type]
    else:
        failure = answer.failure if isinstance(answer, Reply) else answer
        assert failure is not None
        failures = dict.fromkeys(range(len(piece.rows)), failure)
    for index, each in failures.items():
        operations.react(piece.region, each, budget)
        (outcome.unsure if is_unsure(each) else outcome.refused).append(piece.rows[index])


def _failures(response: MultiResponse, rows: int) -> dict[int, Exception]:
    """By number of the action; the region's own failure is everybody's."""
    (result,) = response.regionActionResult
    if result.HasField("exception"):
        failure = RemoteFailure.of_pair(result.exception.name, result.exception.value)
        return dict.fromkeys(range(rows), failure)
    return {
        each.index: RemoteFailure.of_pair(each.exception.name, each.exception.value)
        for each in result.resultOrException
        if each.HasField("exception")
    }


def _batch_pieces(
    operations: RegionOperations, table: str, version: int, batch: CellBatch, budget: Budget
) -> Steps[None]:
    names = ColumnNames.of(batch.columns)
    value_bytes = np.maximum(batch.cell_len, 0).astype(np.int64)
    name_bytes = np.diff(names.begin)[batch.cell_col]
    row_cells = np.diff(batch.rec_cell[batch.row_rec])
    row_of_cell = np.repeat(np.arange(batch.rows), row_cells)
    cell_bytes = value_bytes + name_bytes + CELL_BYTES_MAX + batch.row_len[row_of_cell]
    ends = np.cumsum(np.bincount(row_of_cell, weights=cell_bytes, minlength=batch.rows).astype(np.int64))
    first = 0
    while first < batch.rows:
        region = yield from operations.locate_steps(table, batch.row_key(first), budget)
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + PIECE_BYTES_MAX, side="right"))
        end = min(max(end, first + 1), first + PIECE_ROWS_MAX, batch.rows)
        end = _within(batch, first, end, region.key_range.stop)
        actions = np.empty(int((ACTION_BYTES_MAX + batch.row_len[first:end].astype(np.int64)).sum()), dtype=np.uint8)
        block = np.empty(int(ends[end - 1]) - before, dtype=np.uint8)
        sizes = np.zeros(2, dtype=np.int64)
        encode_puts(
            first, end, version, batch.buffer, batch.row_off, batch.row_len, batch.row_rec, batch.rec_cell,
            batch.cell_col, batch.cell_off, batch.cell_len, names.names, names.begin, names.family_len,
            actions, block, sizes,
        )  # fmt: skip
        yield _piece(region, actions, block, sizes, range(first, end))
        first = end


def _within(batch: CellBatch, first: int, end: int, stop: bytes | None) -> int:
    """The first of the rows `first` + 1 … `end` that is not before `stop`."""
    if stop is None or batch.row_key(end - 1) < stop:
        return end
    return bisect_left(range(end), stop, lo=first + 1, hi=end, key=batch.row_key)


def _commit_pieces(operations: RegionOperations, table: str, entries: NDArray[np.int64], budget: Budget) -> Steps[None]:
    """In the order of rows: by bucket, then by start."""
    starts = entries[:, 0]
    order = np.lexsort((starts, starts & 15))
    first = 0
    while first < len(order):
        region = yield from operations.locate_steps(table, commit_row(int(starts[order[first]])), budget)
        stop = region.key_range.stop
        end = min(first + COMMITS_MAX, len(order))
        if stop is not None:
            end = bisect_left(
                range(end), stop, lo=first + 1, hi=end, key=lambda index: commit_row(int(starts[order[index]]))
            )
        actions = np.empty((end - first) * (ACTION_BYTES_MAX + 9), dtype=np.uint8)
        block = np.empty((end - first) * (CELL_BYTES_MAX + 32), dtype=np.uint8)
        sizes = np.zeros(2, dtype=np.int64)
        encode_commits(entries, order, first, end, actions, block, sizes)
        yield _piece(region, actions, block, sizes, order[first:end].tolist())
        first = end


def _piece(
    region: Region, actions: NDArray[np.uint8], block: NDArray[np.uint8], sizes: NDArray[np.int64], rows: Sequence[int]
) -> Any:
    specifier = region.specifier.SerializeToString()
    body = b"".join((b"\x0a", varint(len(specifier)), specifier, actions[: sizes[0]].tobytes()))
    parameter = b"".join((b"\x0a", varint(len(body)), body))
    return _Piece(region, Call(CLIENT, "Multi", parameter, block[: sizes[1]].data), rows)
