"""The outcome of a run, found by its idempotency key (S3) or by the start timestamps that it used (protocol.md,
Outcome); and the run ids of a streaming query's batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from pyomid.database import idempotency
from pyomid.database.idempotency import AlreadyDone
from pyomid.database.table_admin import ensure_keys_table
from pyomid.errors import Misuse
from pyomid.protocol.commit import find_outcome
from pyomid.protocol.reading import Snapshot, read_rows
from pyomid.spark.connections import Connection
from pyomid.types import BeginReply, Cell, LifeOf, TableInfo

if TYPE_CHECKING:
    from pyomid.spark.database import SparkDatabase

QUERY_ID: Final = "sql.streaming.queryId"
"""Local property that holds the query's id in the thread that runs the query."""

_SHOWN_MAX: Final = 100
"""A run id holds the hash of a longer table name instead of the name, because it has at most 200 bytes."""


class RunState(StrEnum):
    """State of a run. COMMITTED and ROLLED_BACK are final. OPEN means that a run wrote its idempotency key and may
    still commit. ABSENT means that no run with this id reached its commit, or that an operator deleted the run's
    idempotency key."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    OPEN = "open"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of the runs with one run id. `start_ts` is the run's start timestamp, or 0 if the run is absent.
    `commit_ts` is 0 unless the run committed and the store still records the commit timestamp."""

    run_id: str
    state: RunState
    start_ts: int = 0
    commit_ts: int = 0


def look_up_run(db: SparkDatabase, run_id: str, *, settle: bool = False) -> RunOutcome:
    """Return the outcome of the runs with this id. `settle` seals a run that is still open, so that the run can never
    commit. Use `settle` only if you know that the run's driver is dead."""
    idempotency.check_run_id(run_id)
    return outcome_of(db.opened(create=False), run_id, settle=settle)


def outcome_of(conn: Connection, run_id: str, *, settle: bool = False) -> RunOutcome:
    """Return the outcome of the runs under an id like `look_up_run`, over a connection."""
    with conn.begun() as begun:
        done = find_run(conn, begun, run_id)
    cells = _key_cells(conn, run_id)
    if done is not None:
        return RunOutcome(run_id, RunState.COMMITTED, done.start_ts, _commit_ts(conn, cells, done.start_ts))
    if not cells:
        return RunOutcome(run_id, RunState.ABSENT)
    latest = max(cells, key=lambda cell: cell.version)
    if not settle:
        return RunOutcome(run_id, RunState.OPEN, latest.version)
    for cell in cells:
        own = {idempotency.KEYS_TABLE: [cell.name]}
        outcome = conn.driver.run(find_outcome(cell.version, (), own))
        if outcome.commit_ts:
            return RunOutcome(run_id, RunState.COMMITTED, cell.version, outcome.commit_ts)
    return RunOutcome(run_id, RunState.ROLLED_BACK, latest.version)


def find_run(conn: Connection, begun: BeginReply, run_id: str) -> AlreadyDone | None:
    """Return the run under this id that the snapshot sees as committed, or None."""
    ensure_keys_table(conn.deployment)
    snapshot = Snapshot(begun.start_ts, begun.epoch)
    rows = idempotency.key_rows(run_id)
    key, expired = conn.driver.run(read_rows(LifeOf(idempotency.KEYS_TABLE), rows, None, snapshot, conn.cache))
    return idempotency.found_key(run_id, {**key, **expired})


def is_committed(conn: Connection, starts: Sequence[int]) -> bool:
    """Whether a transaction with one of these start timestamps committed, or may have committed with an entry that was
    already sanitized."""
    states = conn.deployment.commit_table.lookup(starts)
    _, horizon = conn.deployment.leader_state.read_watermarks()
    return any(state > 0 or start < horizon for start, state in zip(starts, states, strict=True))


def _key_cells(conn: Connection, run_id: str) -> list[Cell]:
    rows = [idempotency.key_row(run_id)]
    (cells,) = conn.deployment.store.read_rows(idempotency.KEYS_TABLE, rows, [idempotency.KEY_COLUMN])
    return cells


def _commit_ts(conn: Connection, cells: Sequence[Cell], start_ts: int) -> int:
    shadow = next((cell.commit_ts for cell in cells if cell.version == start_ts and cell.commit_ts), 0)
    if shadow:
        return shadow
    (state,) = conn.deployment.commit_table.lookup([start_ts])
    return max(state, 0)


# Batches of streaming queries


def batch_run_id(query: str, batch_id: int, name: str | None) -> str:
    """Return the run id of one batch. Distinct sinks have distinct ids, because a sink's name has no
    space."""
    return f"stream {query} batch {batch_id}" + ("" if name is None else f" sink {name}")


def table_sink_name(info: TableInfo) -> str:
    """Return the sink name that `writeStream` uses for one life of a table (decision 0096). It contains an '@', so no
    name given to `stream_sink` equals it."""
    shown = info.name if len(info.name) <= _SHOWN_MAX else blake2b(info.name.encode(), digest_size=16).hexdigest()
    return f"{shown}@{info.generation}"


def check_not_behind(conn: Connection, query: str, batch_id: int, name: str | None, otherwise: str) -> None:
    """Raise `Misuse` if a batch that is about to be skipped as committed is not the newest committed one of its query.

    Spark redelivers a batch only until it begins the next batch. If the next batch has committed, the checkpoint was
    reset to an earlier state, and the redelivered batch may have other rows than the committed one. `otherwise`: the
    advice for the case that the rows are the same.
    """
    with conn.begun() as begun:
        following = find_run(conn, begun, batch_run_id(query, batch_id + 1, name))
    if following is not None:
        raise Misuse(
            f"batches {batch_id} and {batch_id + 1} of the streaming query {query} have committed already, but the "
            f"query's checkpoint delivers batch {batch_id} again. The checkpoint was reset to an earlier state, or "
            "another driver runs the query. Skipping the batch could lose rows that no committed batch contains. To "
            f"write all rows, start with a new checkpoint, and change query_id if you gave one{otherwise}",
            query_id=query,
            batch_id=batch_id,
        )
