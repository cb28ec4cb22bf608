"""Rules of the shipped code, each taken out in turn: what must go red then.

The core's own mutants run in the simulation's builds (`simulation.mutants`). These stand in the product
itself, so that clients, Spark's writer, catalog operations and the TSO's machine can be played as they are: by a
directed schedule of the front ends, by universes of them, or by a test that plays an interleaving step by step.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from populations import Populate, claimers, remakers, runners, spark_jobs, streams

from pyomid.database.idempotency import AlreadyDone
from pyomid.database.lease_keeper import Lease
from pyomid.database.retry import cause_of
from pyomid.database.transaction import State
from pyomid.database.writes.conflict_ids import _ids_at
from pyomid.errors import AlreadyCommitted, ConflictError, SnapshotTooOld
from pyomid.folder.environment import HeldState
from pyomid.folder.folder_state import read_state
from pyomid.folder.layout import EPOCH
from pyomid.omid.oracle import watermarks
from pyomid.protocol.effects import ReadTables, ReadUnknownTables, WriteShadowCells
from pyomid.protocol.expiry import expired_to, settled
from pyomid.protocol.timestamps import NS_PER_S, ns_of, snapshot_at
from pyomid.rows.schema import schema_of
from pyomid.spark.large_transaction import LargeTransaction, TableWrites
from pyomid.types import (
    TIMESTAMP_STEP,
    BeginReply,
    CommitReply,
    KeyRange,
    RowWrite,
    ShadowWrite,
    TableState,
    start_of,
)
from simulation.hooks import Hook, Replacement, answers, nothing, without_step


@dataclass(frozen=True, slots=True)
class ShippedMutant:
    """`red_in`: the test that goes red, as file::name[parameters]; a schedule of `front_end_schedules` by its name; or
    the programs of which some universe does."""

    name: str
    without: str
    """What is lost where the rule is taken out."""
    red_in: str | Populate
    hooks: tuple[Hook, ...]


def _m(name: str, without: str, red_in: str | Populate, *hooks: tuple[str, Replacement]) -> ShippedMutant:
    return ShippedMutant(name, without, red_in, tuple(Hook(*hook) for hook in hooks))


# ---------------------------------------------------------------- what stands where a rule stood


def _with_own_versions(original: Any, view: Any, *begun: Any, **settings: Any) -> None:
    original(view, *begun, **settings)
    view._snapshot = replace(view._snapshot, own=frozenset((view.start_ts,)))


def _by_the_wall_clock(original: Any, snapshot: Any, info: Any) -> Any:
    return replace(original(replace(snapshot, start_ts=time.time_ns()), info), start_ts=snapshot.start_ts)


def _without_ended_times_to_live(original: Any, snapshot: Any, info: Any) -> Any:
    return original(snapshot, replace(info, ttl_seconds=info.ttl_seconds or None))


def _by_the_rule_of_now(original: Any, info: Any, moment_ts: int) -> int:
    return max(0, moment_ts - round(info.ttl_seconds * NS_PER_S)) if info.ttl_seconds else 0


def _with_the_clock(original: Any, clock: Any, wall_ns: int, **how: Any) -> int:
    return start_of(wall_ns)


def _believes_any_clock(original: Any, clock: Any, now_s: float, wall_ns: int, reached_ts: int) -> None:
    clock._now_s, clock.ns = now_s, wall_ns


def _by_the_date_alone(original: Any, at: Any, newest_start: int, name: str = "at") -> int:
    return min(snapshot_at(ns_of(at)), newest_start)


async def _lets_the_place_go(original: Any, watching: Any) -> Any:
    await original(watching)
    if watching._open is not None:
        watching._open.end()


def _decides_again(original: Any, lost: Any) -> None:
    """What a commit that lost wrote is copied under a newer start, as far as it is still there."""
    conn = lost._conn
    try:
        original(lost)
    except ConflictError as error:
        begun = conn.deployment.tso.begin(not_before=cause_of(error))
        again = LargeTransaction(conn, begun, level=lost._level, run_id=lost.run_id, lease=None)
        again.writes.tables.update({name: _copied(conn, table) for name, table in lost.writes.tables.items()})
        again.writes.claims_tables = True  # nobody reported the ids of the copies
        original(again)


def _copied(conn: Any, table: TableWrites) -> TableWrites:
    reports = []
    store, name = conn.deployment.store, table.info.name
    for report in table.reports:
        branch = conn.deployment.tso.begin().start_ts
        cells = [cell for batch in store.scan(name, KeyRange()) for cell in batch.all_cells()]
        cells = [cell for cell in cells if cell.version - cell.version % 50 == report.branch]
        rows = [RowWrite(cell.row, (((cell.family, cell.qualifier), cell.value),)) for cell in cells]
        store.write_cells(name, branch, rows)
        reports.append(replace(report, branch=branch, witness=None))
    return TableWrites(table.info, reports)


def _ends_at_any_commit(original: Any, bounds: Any, cell: Any) -> bool:
    return cell.commit_ts > 0 and (bool(cell.qualifier) or cell.value is None)


_ids: Final = itertools.count(1)


def _without_id(original: Any, writes: Any) -> Any:
    named, writes.run_id = writes.run_id, None
    try:
        return original(writes)
    finally:
        writes.run_id = named


def _repair_is_heard(original: Any, writes: Any, commit_ts: int) -> None:
    shadows = tuple(ShadowWrite(cell, commit_ts) for cell in writes._key_cells)
    writes._conn.driver.perform(WriteShadowCells("PYOMID_MARKERS", shadows))


async def _buffer_is_cleared_at_the_end(original: Any, outbox: Any, own: Any) -> Any:
    await original(outbox, own)
    own._clear()


def _thread_or_error(original: Any, background: Any) -> bool:
    if background._thread is None or not background._thread.is_alive():
        background._thread = threading.Thread(target=background._run, daemon=True)
        background._thread.start()
    return True


def _nothing_was_own(original: Any, replaced: Any, seen: Any, sent: Any) -> None:
    original(replaced, seen, ())


def _stays_taken_back(original: Any, buffer: Any, row: bytes, cells: Any) -> Any:
    taken_back, buffer.taken_back = buffer.taken_back, set()
    added = original(buffer, row, cells)
    buffer.taken_back = taken_back
    return added


class _WithoutFences:
    """A session whose fences reach nobody. (Not a hook of the session: those who drop at the same time interleave.)"""

    def __init__(self, tso: Any) -> None:
        self._tso = tso

    def fence(self, table_id: int) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tso, name)


def _epoch_first(original: Any, table: Any, entries: Any, ended: Any, loop: Any) -> None:
    epoch = loop.leader_state.read().epoch
    loop.on_thread(lambda: (table.put_block(entries), epoch), ended)


def _any_read_ends_it(original: Any, machine: Any, epoch: int) -> None:
    machine._stalled_in_doubt = False
    original(machine, epoch)


def _ids_of_the_former_level(original: Any, buffer: Any) -> Any:
    return _ids_at(buffer, buffer.info.conflict_level)


def _no_fence(original: Any, parts: Any, dropping: Any) -> None:
    original(replace(parts, tso=_WithoutFences(parts.tso)), dropping)


def _place_by_name(original: Any, schema: Any, columns: Any, wanted: Any) -> Any:
    return wanted


def _without_retired(original: Any, codec: Any) -> Any:
    return tuple(place for place in original(codec) if place not in codec._retired)


def _sentinel_of_present_columns(original: Any, schema: Any, families: Any) -> Any:
    return original(replace(schema, sentinel_family=b""), families)


def _any_index(original: Any, info: Any, name: Any, start_ts: int) -> Any:
    return original(info, name, 1 << 62)


def _put_over_what_stands(original: Any, catalog: Any, old: Any, new: Any) -> Any:
    return original(catalog, catalog._entries.get(new.info.name), new)


def _any_life(original: Any, parts: Any, present: Any, decide: Any) -> Any:
    """Asked once, and put over whatever is there."""
    wanted = decide(present)
    entry = parts.catalog.entry(present.name)
    make = original.__globals__["_put"]
    parts.catalog.change_entry(entry, make(wanted, TableState.PRESENT))
    return wanted


def _a_mark_of_any_nonce_goes(original: Any, catalog: Any, table_id: int, nonce: bytes) -> None:
    original(catalog, table_id, catalog.unknown_tables().get(table_id, nonce))


def _blind_grant(original: Any, leases: Any, start_ts: int, term_s: float, now_s: float, holder: str = "") -> Any:
    leases._leases.pop(start_ts, None)
    return original(leases, start_ts, term_s, now_s, holder)


def _renewed_or_dead(original: Any, keeper: Any, lease: Any) -> None:
    try:
        lease.term_s = keeper._tso.renew_lease(lease.start_ts)
    except SnapshotTooOld as error:
        lease.lost = error
    lease.renew_at_s = keeper._clock() + lease.term_s / 3


def _granted_once(original: Any, keeper: Any, start_ts: int, term_s: float) -> Lease:
    return Lease(start_ts, keeper._tso.grant_lease(start_ts, term_s), inf)


async def _tables_first(original: Any) -> Any:
    tables = await ReadTables()
    marks = await ReadUnknownTables()
    return marks, tables


async def _marks_once(original: Any) -> Any:
    marks = await ReadUnknownTables()
    tables = await ReadTables()
    return marks, tables


def _old_calls_are_believed(original: Any, tables: Any, call: Any, **found: Any) -> None:
    call.clear()
    original(tables, call, **found)


def _by_the_catalog(original: Any, conn: Any, info: Any, *_: Any) -> bool:
    return info is not None


def _tells_no_fence(original: Any, tso: Any, *begin: Any) -> Any:
    fenced, tso.fenced_ts = tso.fenced_ts, 0
    try:
        return original(tso, *begin)
    finally:
        tso.fenced_ts = fenced


def _alive_again(original: Any, life: Any, error: Any, *, asked: bool) -> None:
    life._state = State.ACTIVE


def _as_if_it_had_not_left(original: Any, life: Any, error: Any, *, asked: bool) -> None:
    original(life, error, asked=False)


def _seals_stay(original: Any, commits: Any, branches: Any, commit_ts: int) -> None:
    original(commits, [branch for branch in branches if branch not in commits._marks], commit_ts)


def _without_the_sink(original: Any, query: str, batch_id: int, name: str | None) -> str:
    return str(original(query, batch_id, None))


_calls = itertools.count()


def _another_each_time(original: Any, query: str, batch_id: int, name: str | None) -> str:
    return f"{original(query, batch_id, name)} call {next(_calls)}"


# ---------------------------------------------------------------- the rules


def _by_any_end(original: Any, *given: Any, **how: Any) -> Any:
    """A run is done where its function raises that some run is."""
    try:
        return original(*given, **how)
    except AlreadyCommitted as done:
        return AlreadyDone(**done.values)


def _fitted_to_all(original: Any, info: Any, *_: Any, **__: Any) -> Any:
    return schema_of(info)


def _ends_without_trace(original: Any, starts: Any, peer: Any) -> None:
    starts._peers.pop(peer, None)


def _ends_what_it_evicts(original: Any, tso: Any, *entry: Any) -> None:
    original(tso, *entry)
    watermarks.raise_ended(tso, tso.oracle.low_watermark)


def _frees_all(original: Any, starts: Any, peer: Any) -> None:
    starts._ended.clear()


def _by_any_connection(original: Any, starts: Any, held: Any) -> bool:
    return held.client in starts._of_client


def _lasts_for_its_own(original: Any, starts: Any, peer: Any, told: Any, newest_start: int) -> None:
    before = starts._peers[peer].newest if peer in starts._peers else 0
    original(starts, peer, told, before)


def _by_the_last_call(original: Any, starts: Any, peer: Any, above: int, newest: int) -> None:
    held = starts._peers.get(peer)
    floor = held.bound if held is not None else 0
    original(starts, peer, above, newest)
    starts._peers[peer].bound, starts._peers[peer].newest = floor or above + 1, newest


def _not_counted(original: Any, here: Any) -> Any:
    held = original(here)
    held.end()
    return held


def _forgets_former_connections(original: Any, here: Any, *told: Any) -> None:
    here._held.clear()
    original(here, *told)


def _by_its_start(original: Any, since: Any, until: Any) -> Any:
    return original(since, until)._replace(at_least=since.start_ts)


def _leased_by_its_commit(original: Any, stream: Any, conn: Any, mark: Any, start: Any, latest_ts: int) -> Any:
    return replace(original(stream, conn, mark, start, latest_ts), leased_ts=mark.start_ts, is_own=True)


def _done_as_planned(original: Any, stream: Any, start: Any, end: Any) -> Any:
    parts = original(stream, start, end)
    stream.commit(end)
    return parts


async def _explains_nothing(original: Any, *_: Any) -> None:
    pass


def _one_step_up(original: Any, clock: Any, newest: int) -> int:
    return max(newest + TIMESTAMP_STEP, start_of(clock.now_ns(newest)))


def _of_any_file(original: Any, transaction: Any, database: Any, place: Any, *rest: Any) -> Any:
    return original(transaction, database, (0, place[1]), *rest)


def _with_the_former_number(original: Any, shared: Any, content: bytes) -> Any:
    shared._number -= bool(shared._last_posted)
    return original(shared, content)


def _done_is_believed(original: Any, environment: Any, group: Any, posted: Any) -> bool:
    for member in group.members:
        member.value, member.group = CommitReply(0, 1 << 60), group
    group.is_committed = True
    return True


def _clock_then_slot(original: Any, session: Any, *, not_before: int = 0) -> Any:
    snapshot, starts = session._state().snapshot, session._environment.starts
    held = starts.begin()
    starts.begun(held, snapshot)
    return BeginReply(snapshot, hold=held)


def _slots_then_clock(original: Any, environment: Any, max_age_s: float) -> int:
    starts = environment.starts
    bound = min([start_ts - 1 for _, start_ts, _ in starts.oldest()], default=1 << 62)
    clock = environment.read(read_state, environment.databases[EPOCH]).clock
    starts.released = min(bound, clock)
    return int(starts.released)


def _as_a_new_slot(original: Any, starts: Any) -> Any:
    if starts._shared is not None:
        starts._shared.hold(0)
    return original(starts)


def _first_only(original: Any, transaction: Any, database: Any, versions: Any, commit_ts: int) -> None:
    original(transaction, database, versions[:1], commit_ts)


def _copies_the_newest(original: Any, held: Any, folder: Any) -> None:
    held._environment._lmdb.copy(str(folder), compact=True)


@contextmanager
def _reads_the_newest(original: Any, held: Any, database: bytes) -> Iterator[Any]:
    newest = HeldState(held._environment)
    newest.hold()
    try:
        with original(newest, database) as records:
            yield records
    finally:
        newest.end()


_CHANGES: Final = "tests/core/test_change_feed.py::"
_WRITER: Final = "tests/spark/test_writer.py::"
_REQUEST: Final = "spark.large_transaction:BranchWrites.commit_request"
_RACES: Final = "tests/spark/test_schema_races.py::"
_TAKEN_BACK: Final = (
    "tests/client/test_client_savepoints.py::"
    "test_a_transaction_writes_what_it_holds_when_it_commits_and_nothing_else[memory-absent-cell]"
)
_DEADLINES: Final = "tests/hbase/test_deadlines.py::"
_steps: Final = itertools.count()
_TABLES: Final = "tests/client/test_client_catalog.py::"
_LEVELS: Final = "tests/client/test_client_levels.py::"
_INDEXES: Final = "tests/client/test_client_indexes.py::"
_COLUMNS: Final = "tests/client/test_client_columns.py::"
_OPEN: Final = "tests/core/test_open_starts_universes.py::test_t16_lwm_passes_nothing_that_is_open[0]"
_KNOWN: Final = "tests/core/test_known_tables.py::"

_FOLDER: Final = "tests/storage/test_folder_hazards.py::"
_SHARED_FILE: Final = "tests/storage/test_shared_file.py::"
_BACKUP: Final = "tests/storage/test_backup.py::"
_FILE_NOTE: Final = "tests/storage/test_file_note.py::"
_INCREMENTS: Final = "tests/storage/test_incremental_backup.py::"

SHIPPED_MUTANTS: Final = (
    _m(
        "K9",
        "an old key goes without a trace: a late retry runs again",
        "tests/client/test_expired_keys.py::test_an_id_that_expired_never_commits_again",
        ("database.idempotency:with_expired", lambda original, row, keys: original(row, ())),
    ),
    # Folders
    _m(
        "L1",
        "a commit is drawn one step above the clock: it has the number of a snapshot",
        _FOLDER + "test_l1_no_commit_has_the_number_of_a_start",
        ("folder.folder_clock:FolderClock.next_timestamp", _one_step_up),
    ),
    _m(
        "L2",
        "no outcome stands beside the cells: what a dead holder committed is performed again",
        _FOLDER + "test_l2_l3_what_a_holder_committed_before_it_died_is_not_performed_again[one file]",
        ("folder.folder_state:put_outcomes", answers(None)),
    ),
    _m(
        "L3",
        "an owner performs what it posted without a look for the outcome",
        _FOLDER + "test_l2_l3_what_a_holder_committed_before_it_died_is_not_performed_again[one file]",
        ("folder.requests:CommitRequests.known", answers(None)),
    ),
    _m(
        "L3b",
        "outcomes do not name the shared file: those of another file replace them",
        _FOLDER + "test_l2_l3_what_a_holder_committed_before_it_died_is_not_performed_again[two files]",
        ("folder.folder_state:put_outcomes", _of_any_file),
        ("folder.folder_state:outcomes_of", _of_any_file),
    ),
    _m(
        "L4",
        "a request that is torn is performed",
        _SHARED_FILE + "test_a_torn_area_is_passed[24]",
        ("folder.shared_file:_checksum", answers(0)),
    ),
    _m(
        "L4b",
        "a number is used again",
        _SHARED_FILE + "test_withdrawn_requests_are_not_taken",
        ("folder.shared_file:SharedFile.prepared", _with_the_former_number),
    ),
    _m(
        "L5",
        "what a dead process posted is performed",
        _SHARED_FILE + "test_a_dead_owners_requests_are_not_taken",
        ("folder.shared_file:SharedFile.lives", answers(True)),
    ),
    _m(
        "L6",
        "an owner withdraws what a holder has taken",
        _SHARED_FILE + "test_posted_requests_are_taken_once",
        ("folder.shared_file:SharedFile.withdraw", answers(True)),
    ),
    _m(
        "L6b",
        "an owner takes the state *done* for an outcome",
        _FOLDER + "test_l6_a_request_that_is_only_said_to_be_done_is_performed",
        ("folder.environment:Environment._has_outcomes", _done_is_believed),
    ),
    _m(
        "L7",
        "a begin reads the clock, then notes its slot: W passes it in between",
        _FOLDER + "test_l7_a_begin_is_noted_before_it_reads_the_clock",
        ("folder.session:FolderSession.begin", _clock_then_slot),
    ),
    _m(
        "L7b",
        "a look reads the slots, then the clock: W passes who begins in between",
        _FOLDER + "test_l7_a_look_reads_the_clock_before_the_slots",
        ("folder.watermark:look", _slots_then_clock),
    ),
    _m(
        "L7c",
        "a begin raises its process's slot beside an older one",
        _FOLDER + "test_l7_a_slot_falls_only_while_its_start_is_open",
        ("folder.open_starts:OpenStarts.begin", _as_a_new_slot),
    ),
    _m(
        "L8",
        "a branch's rows are compared with nothing",
        _FOLDER + "test_l8_a_branch_that_meets_a_commit_as_it_writes_does_not_commit",
        ("folder.decision:Decision.check_branch", answers(None)),
    ),
    _m(
        "L8b",
        "a branch's rows are not compared with claims",
        _FOLDER + "test_l8_a_branch_meets_what_others_claimed",
        ("folder.decision:Decision._claimed", answers(0)),
    ),
    _m(
        "L8c",
        "the commit of a branch is not the table's newest: later branches compare nothing",
        _FOLDER + "test_l8_a_branch_that_meets_a_commit_as_it_writes_does_not_commit",
        ("folder.folder_state:put_newest_commit", answers(None)),
    ),
    _m(
        "L9",
        "a commit leaves the open branches that it meets as they are",
        _FOLDER + "test_l9_a_commit_dooms_the_open_branch_that_it_meets",
        ("folder.branches:doom", answers(None)),
    ),
    _m(
        "L9b",
        "a branch's commit leaves those that wrote the same cells as they are",
        _FOLDER + "test_l9_of_two_branches_that_wrote_a_cell_the_first_commit_dooms_the_other",
        ("folder.branches:_others", answers([])),
    ),
    _m(
        "L10",
        "one branch of a job commits, the others stay open",
        _FOLDER + "test_l10_the_branches_of_a_job_commit_together",
        ("folder.branches:commit_branches", _first_only),
    ),
    # Back-ups
    _m(
        "B4",
        "files that were copied one after the other beside a writer are opened",
        _FILE_NOTE + "test_a_copy_beside_the_original_is_refused",
        ("folder.file_note:has_note", answers(True)),
        ("folder.file_note:check_note", answers(None)),
    ),
    _m(
        "B4b",
        "a copy that was written over the files of the original is opened",
        _FILE_NOTE + "test_a_copy_that_is_put_back_is_refused_until_its_note_is_removed",
        ("folder.file_note:check_note", answers(None)),
    ),
    _m(
        "B4c",
        "a copy hands out timestamps again that the original drew above the copy's ceiling",
        _FILE_NOTE + "test_a_copy_of_a_folder_in_use_is_refused_over_its_files",
        ("folder.file_note:NoteKeeper.renew", answers(None)),
    ),
    _m(
        "B1",
        "a back-up copies the newest state at each step, not the one that it holds",
        _BACKUP + "test_b1_a_backup_is_the_one_state_that_it_holds[full]",
        ("folder.environment:HeldState.copy_to", _copies_the_newest),
    ),
    _m(
        "B1b",
        "the same, of what changed since another back-up",
        _BACKUP + "test_b1_a_backup_is_the_one_state_that_it_holds[incremental]",
        ("folder.environment:HeldState.records", _reads_the_newest),
    ),
    _m(
        "B2",
        "what a killed restore left is taken for a database",
        _BACKUP + "test_a_folder_that_is_not_whole_is_refused",
        ("folder.layout:check_finished", answers(None)),
    ),
    _m(
        "B3",
        "what was restored has the id of the database that was backed up, and its leases",
        _BACKUP + "test_a_restored_folder_is_another_database",
        ("folder.backup:new_identity", answers(None)),
    ),
    _m(
        "B5a",
        "a record that is again as in the whole back-up stays as a later one had it",
        _INCREMENTS + "test_whatever_changed_is_restored_to_the_byte",
        ("folder.backup:_since", lambda original, found, former, held: found),
    ),
    _m(
        "B5b",
        "another back-up lies in a link's place, and is taken for it",
        _INCREMENTS + "test_another_backup_in_a_links_place_is_refused",
        ("folder.backup:_is_meant", answers(True)),
    ),
    _m(
        "B7",
        "the late entry of a dead TSO, healed in part between the snapshots: half a transaction is restored",
        "tests/core/test_restore_cut.py::test_a_cut_backup_is_what_a_reader_at_its_moment_sees[157]",
        ("database.upkeep.backups:explained_batch", _explains_nothing),
    ),
    # Reads
    _m(
        "R9",
        "a fetch ends a column at any version with a shadow cell, one that committed behind the snapshot too",
        "tests/storage/test_memory.py::TestMemoryStore::test_bounds_leave_out_nothing_that_their_reader_needs",
        ("types:ReadBounds.ends_column", _ends_at_any_commit),
    ),
    _m(
        "R10",
        "nobody looks at the table behind a read: a row is there, and then it is not",
        remakers,
        ("protocol.reading:check_life", nothing),
    ),
    _m(
        "R10d",
        "a drop leaves no note: an older snapshot takes the next table of the name for its own",
        "tests/client/test_table_lives.py::"
        "test_a_snapshot_takes_no_later_table_for_the_one_that_it_knows[memory-drop and create]",
        ("omid.memory:MemoryCatalog.note_drop", answers(None)),
    ),
    _m(
        "F5b",
        "changes take a table made since for the one of the bookmark: the former one's rows are never reported as gone",
        "tests/client/test_client_changes.py::test_f5_a_table_that_replaced_the_one_of_the_bookmark_is_refused[memory]",
        ("omid.memory:MemoryCatalog.noted_drop", answers(0)),
    ),
    # One durable id, one commit
    _m(
        "S6",
        "a write that lost to its own id is decided again under a newer start: both sets of rows are seen",
        _WRITER + "test_of_two_writes_under_one_id_one_set_of_rows_is_seen",
        ("spark.large_transaction:LargeTransaction.commit", _decides_again),
    ),
    _m(
        "S3",
        "a job's commit does not name its durable id: of two drivers with one id both commit",
        _WRITER + "test_of_two_writes_under_one_id_one_set_of_rows_is_seen",
        (_REQUEST, _without_id),
    ),
    _m(
        "S3b",
        "the same, met by chance",
        spark_jobs,
        (_REQUEST, _without_id),
    ),
    _m(
        "C7",
        "a run claims no durable id: it counts twice",
        runners,
        ("database.retry:claim_key", nothing),
    ),
    _m(
        "C7b",
        "the last try's error denies an earlier one that committed: its caller pays again under another id",
        "tests/client/test_client_failures.py::test_what_ends_a_run_denies_no_earlier_try[error0]",
        ("database.retry:Attempts._warn_of", answers(None)),
    ),
    _m(
        "S6b",
        "cells that compaction began to delete are committed: a success of none of the rows, or half of them",
        _WRITER + "test_a_write_whose_cells_were_cleaned_away_is_not_acknowledged[how0]",
        ("spark.large_transaction:LargeTransaction.commit", _decides_again),
    ),
    # Behind the answer
    _m(
        "S8",
        "an error of the repair is told as one of the commit: the job runs twice",
        _WRITER + "test_a_failure_behind_the_answer_does_not_say_not_committed",
        ("spark.large_transaction:BranchWrites.repair_key", _repair_is_heard),
    ),
    _m(
        "S8b",
        "where no thread can be started a commit fails behind its decision",
        "tests/client/test_client_background.py::test_without_a_thread_a_committer_neither_fails_nor_waits_for_ever",
        ("database.background:Background._has_thread", _thread_or_error),
    ),
    _m(
        "T5",
        "a replaced TSO reads its own epoch, then its entries land, and it tells what its successor does not know",
        "tests/tso/test_submitted_flushes.py::test_t5_the_epoch_is_read_after_the_entries",
        ("omid.ports:CommitTable.submit", _epoch_first),
    ),
    _m(
        "T4b",
        "a leader state that was read before a second stall ends the doubt: a replaced TSO answers",
        "tests/core/test_tso_machine.py::test_t4_a_read_from_before_a_stall_ends_no_doubt",
        ("omid.oracle.machine:TsoMachine._end_doubt", _any_read_ends_it),
    ),
    _m(
        "T7c",
        "a retry overtakes its first attempt, which waits: the transaction aborts although nothing was lost",
        "tests/core/test_tso_machine.py::test_t7_a_retry_waits_behind_its_first_try_wherever_that_waits[turn]",
        ("omid.oracle.waiting:FirstAttempts.hold_back", answers(False)),
    ),
    _m(
        "T11",
        "a TSO lives on behind an error that nobody foresaw: a flush got lost, no commit is answered any more",
        "tests/tso/test_unforeseen_errors.py::test_t11_an_error_of_the_machine_ends_the_process",
        ("omid.tso.service:TsoService.fail", answers(None)),
    ),
    # Open starts
    _m(
        "T16",
        "a start is open only once its client told it: LWM passes it on its way",
        _OPEN,
        ("omid.oracle.open_starts:OpenStarts.handed_out", answers(None)),
    ),
    _m(
        "T16b",
        "a connection's end frees what came over it: LWM passes a client that connects again",
        _OPEN,
        ("omid.oracle.open_starts:OpenStarts.gone", _ends_without_trace),
    ),
    _m(
        "T16c",
        "a connection's end frees what came over it where the client told over a former connection",
        "tests/core/test_open_starts.py::test_t16_an_overtaken_telling_counts_for_its_own_connection_only",
        ("omid.oracle.open_starts:OpenStarts._reported_later", _by_any_connection),
    ),
    _m(
        "T16d",
        "a client does not tell of its begin that is under way: what it tells frees the start that it is given",
        _OPEN,
        ("omid.wire.client_protocol:OpenStarts.expect", _not_counted),
    ),
    _m(
        "T16e",
        "what a client told of its former connection lasts for the starts of the present one only",
        _OPEN,
        ("omid.oracle.open_starts:OpenStarts.report", _lasts_for_its_own),
    ),
    _m(
        "T16f",
        "a client that connects again tells of the new connection only",
        _OPEN,
        ("omid.wire.client_protocol:OpenStarts.connected", _forgets_former_connections),
    ),
    _m(
        "T16g",
        "starts that the socket loop notes count in the order in which the machine is told of them",
        "tests/core/test_open_starts.py::test_t16_starts_are_held_in_whichever_order_they_are_noted",
        ("omid.oracle.open_starts:OpenStarts.handed_out", _by_the_last_call),
    ),
    _m(
        "T16i",
        "W follows what evictions raise LWM to: a snapshot beside a bulk load reads holes",
        "tests/core/test_open_starts.py::test_t16_an_eviction_raises_lwm_past_an_open_start_and_w_stays",
        ("omid.oracle.commits:add_entry", _ends_what_it_evicts),
    ),
    _m(
        "T3b",
        "timestamps follow a clock that is set back: some are drawn twice",
        "tests/core/test_times.py::test_t3_a_clock_set_back_makes_timestamps_stand_still_as_times",
        ("omid.oracle.windows:TimestampClock.reachable", _with_the_clock),
    ),
    _m(
        "T3c",
        "a clock that is set ten years ahead is believed: values expire, and no commit is dated for ten years",
        "tests/core/test_times.py::test_t3_a_clock_set_forward_is_followed_up_to_a_day[315360000-False]",
        ("protocol.wall_clock:WallClock.read", _believes_any_clock),
    ),
    _m(
        "T18",
        "the snapshot of now lacks what was acknowledged while timestamps are ahead of the clock",
        "tests/core/test_times.py::test_t18_a_reader_whose_clock_is_late_misses_nothing_of_now",
        ("database.open_database:past_snapshot", _by_the_date_alone),
    ),
    # What the caller is told
    _m(
        "C1",
        "a transaction of which a write failed may be committed: without it",
        "tests/client/test_client_failures.py::test_one_failed_put_of_five_makes_the_transaction_rollback_only",
        ("database.transaction:TransactionBase._fail", _alive_again),
    ),
    _m(
        "C11",
        "a call without an answer waits as long as others on its connection are answered",
        _DEADLINES + "test_a_call_ends_in_time_while_others_are_answered",
        ("omid.hbase.rpc.connection:Connection._give_up", answers(None)),
    ),
    _m(
        "C11b",
        "a read that fails at one place each time has its time anew with what comes before it",
        _DEADLINES + "test_a_read_that_always_fails_at_one_position_ends[scanner-rows]",
        ("omid.hbase.regions.scan_cursor:ScanCursor._position", lambda original, cursor: (b"", False, next(_steps))),
    ),
    _m(
        "S5",
        "a region that splits while a table is divided is there twice",
        "tests/hbase/test_meta_pages.py::test_a_region_that_splits_between_two_pages_is_listed_once",
        ("omid.hbase.regions.operations:_gap_or_overlap", answers(None)),
    ),
    _m(
        "C12",
        "a claim is not in the commit request: write skew between those that claim what they read",
        claimers,
        ("database.writes.outbox:Outbox.claim", answers(None)),
    ),
    _m(
        "C12b",
        "a transaction that only claims asks for no commit, and one commits that did not see it",
        claimers,
        ("database.writes.write_buffer:WriteBuffer.touched", lambda _, buffer: bool(buffer.rows or buffer.has_sent)),
    ),
    _m(
        "C13",
        "a snapshot below the present has own versions: those of the transaction whose start it has",
        "tests/client/test_client_past.py::test_a_snapshot_sees_no_cells_of_the_transaction_whose_start_it_has[memory]",
        ("database.writes.store_view:StoreView.__init__", _with_own_versions),
    ),
    _m(
        "C13b",
        "a snapshot below the present has a lease of its own, which ends that of all who read there",
        "tests/client/test_client_past.py::test_the_end_of_one_reader_leaves_the_lease_to_the_others[memory]",
        (
            "database.lease_keeper:LeaseKeeper.share",
            lambda _, keeper, *start, **term: keeper.grant(*start, **term),
        ),
    ),
    _m(
        "C14",
        "a cell that a savepoint took back is written with what the snapshot has, and hides what another one committed",
        _TAKEN_BACK,
        ("database.writes.outbox:Outbox._delete_taken_back", nothing),
    ),
    _m(
        "C14b",
        "a cell that the transaction had written before the savepoint is deleted with what was taken back",
        _TAKEN_BACK,
        ("database.writes.savepoints:Replaced.fill", _nothing_was_own),
    ),
    _m(
        "C14c",
        "a cell that is put again after going back is deleted as one that was taken back",
        "tests/client/test_client_savepoints.py::test_a_cell_that_was_taken_back_and_written_again_is_a_write[memory]",
        ("database.writes.write_buffer:WriteBuffer.put", _stays_taken_back),
    ),
    _m(
        "T17c",
        "a lease on history holds LWM: conflicts are remembered for as long as it is read",
        "tests/core/test_times.py::test_t17_lwm_rises_past_a_lease_on_history",
        ("omid.oracle.leases:Leases.lowest_above", lambda _, leases, start_ts: leases.lowest),
    ),
    _m(
        "T17d",
        "a retention that a TSO is not told of is forgotten",
        "tests/core/test_times.py::test_t17_a_new_tso_keeps_the_history_it_finds",
        ("omid.oracle.takeover:kept_start", answers(1 << 62)),
    ),
    _m(
        "C9",
        "an interrupt behind the request passes for one before it: a commit that stands is told as failed",
        "tests/interrupts/test_driver_interrupts.py::test_the_outcome_told_is_true_wherever_it_is_thrown",
        ("database.transaction:TransactionBase._fail", _as_if_it_had_not_left),
    ),
    _m(
        "C8",
        "writes into a folder that was removed are acknowledged",
        "tests/client/test_client_closing.py::test_nothing_is_written_into_a_folder_that_was_removed",
        ("folder.environment:Environment._check_file", answers(None)),
    ),
    _m(
        "C16",
        "a process that read its folder's lock file counts as dead: its readers' pages are reused",
        "tests/storage/test_lmdb_files.py::test_reading_the_folders_files_ends_no_reader[opened-alone]",
        ("folder.lmdb_files:_lock", answers(False)),
    ),
    # Own writes
    _m(
        "C15",
        "a scan lacks what left for the store behind the calls that it asked ahead",
        "tests/client/test_client_table.py::test_a_scan_shows_own_writes_that_left_behind_what_was_asked_ahead",
        ("database.writes.open_reads:OpenRead.note_leaving", answers(set())),
    ),
    _m(
        "C15b",
        "a scan shows what its transaction buffers after it began",
        "tests/golden/test_golden.py::test_script[memory-c15_a_scan_shows_own_writes_as_of_its_begin]",
        ("database.writes.open_reads:OpenRead.note_write", answers(None)),
    ),
    _m(
        "C15c",
        "of a row that was sent, written and sent again a scan shows what was committed",
        "tests/golden/test_golden.py::test_script[memory-c15_a_scan_shows_own_writes_as_of_its_begin]",
        ("database.writes.write_buffer:WriteBuffer.perhaps_sent", answers([])),
    ),
    _m(
        "C2b",
        "a write put during a flush is forgotten at its end, and the commit succeeds without it",
        "tests/client/test_client_tasks.py::test_a_write_put_during_a_flush_stays_for_the_next",
        ("database.writes.outbox:Outbox._write", _buffer_is_cleared_at_the_end),
    ),
    # A table's rules and lives
    _m(
        "T9",
        "rules of a dropped table are gone by: ids of cells meet ids of rows, an update is lost",
        "tests/client/test_client_cached_rules.py::test_a_client_goes_by_no_rules_of_a_table_that_is_gone[memory]",
        ("protocol.commit:may_use_rules", answers(True)),
    ),
    _m("T9b", "the same, met by chance", remakers, ("protocol.commit:may_use_rules", answers(True))),
    _m(
        "T9c",
        "a start does not tell the newest fence: clients go by rules of a table that is gone",
        remakers,
        ("omid.oracle.begins:take", _tells_no_fence),
    ),
    _m(
        "T9d",
        "a level changes without a fence: who named ids of cells meets nobody who names ids of rows",
        _LEVELS + "test_a_level_that_changes_loses_no_update[memory-True-before]",
        ("database.table_admin:fence_table", answers(None)),
    ),
    _m(
        "T9e",
        "between two levels a commit names the ids of the former one only",
        _LEVELS + "test_a_level_that_changes_loses_no_update[memory-True-client.level.fenced]",
        (
            "database.writes.outbox:conflict_ids",
            _ids_of_the_former_level,
        ),
    ),
    _m(
        "K8",
        "a drop sends no fence: who wrote before it commits into the table that is made after it",
        _TABLES + "test_a_new_table_never_shows_rows_older_than_itself[memory-client.drop.decided]",
        ("database.table_admin:finish_drop", _no_fence),
    ),
    _m("K8b", "the same, met by chance", remakers, ("database.table_admin:finish_drop", _no_fence)),
    _m(
        "K8c",
        "rows of the table before stay for the one after it",
        _TABLES + "test_a_new_table_never_shows_rows_older_than_itself[memory-client.drop.decided]",
        ("database.table_admin:_drop_rows", answers(None)),
    ),
    _m(
        "K8d",
        "a dropper that slept does not look whether its entry stands: a later table's rows go",
        _TABLES + "test_a_dropper_that_slept_drops_no_later_table[memory-client.drop.fenced]",
        ("database.table_admin:_stands", answers(True)),
    ),
    _m(
        "K8e",
        "a table's entry is put over whatever stands there: a dropped table is raised from the dead",
        _TABLES + "test_a_slow_writer_of_an_entry_raises_no_dropped_table[memory]",
        ("database.table_admin:alter_table", _any_life),
    ),
    _m(
        "K8f",
        "a slow writer of an entry takes back the column that another added",
        _TABLES + "test_a_slow_writer_of_an_entry_keeps_what_others_added[memory]",
        ("omid.memory:MemoryCatalog.change_entry", _put_over_what_stands),
    ),
    _m(
        "X1",
        "the place of a dropped column is given to a new one: old cells are its values",
        _COLUMNS + "test_a_name_given_anew_brings_no_old_cells_back[memory]",
        ("rows.schema:free_place", _place_by_name),
    ),
    _m(
        "X1b",
        "a row of dropped columns is not claimed as there: it is made twice",
        _COLUMNS + "test_a_row_is_made_once_beside_a_dropped_column[memory]",
        ("rows.rows:RowCodec.all_cells", _without_retired),
    ),
    _m(
        "X1c",
        "the sentinel moves with the columns: those who make a row without values do not meet",
        _COLUMNS + "test_rows_without_values_meet_in_one_cell_for_ever",
        ("rows.schema:sentinel_column", _sentinel_of_present_columns),
    ),
    _m(
        "X2",
        "columns change without a fence: a client that keeps the entry takes a wider value for damage",
        _COLUMNS + "test_who_begins_after_a_change_goes_by_it[memory-before]",
        ("database.table_admin:fence_table", answers(None)),
    ),
    _m(
        "X2b",
        "an entry is kept while its columns change",
        _COLUMNS + "test_who_begins_after_a_change_goes_by_it[memory-client.columns.fenced]",
        ("protocol.commit:may_cache_rules", answers(True)),
    ),
    _m(
        "X3",
        "who writes one column of an index does not claim the others: the index keeps rows of both",
        _INDEXES + "test_of_two_who_change_a_rows_indexed_columns_one_aborts[cell]",
        ("database.tables.table:TableCore._claim", answers(None)),
    ),
    _m(
        "X3b",
        "a write that broke off amid its cells is committed: an index lacks its row",
        _INDEXES + "test_a_write_that_breaks_off_amid_its_cells_never_commits[put]",
        ("database.transaction:TransactionBase.mark_rollback_only", answers(None)),
    ),
    _m(
        "X4",
        "an index is filled without a fence: who began before it is not in it",
        _INDEXES + "test_who_writes_beside_a_build_is_in_it_or_aborts[memory-after-before]",
        ("database.table_admin:fence_table", answers(None)),
    ),
    _m(
        "X4b",
        "a snapshot reads an index that was filled behind it",
        _INDEXES + "test_a_snapshot_older_than_an_index_does_not_read_it[memory]",
        ("database.tables.indexes:readable_index", _any_index),
    ),
    # Expiry and watches
    _m(
        "E1",
        "a reader goes by its clock, not by its snapshot: a snapshot that is read again has lost rows",
        "tests/client/test_client_ttl.py::test_e1_a_value_expires_exactly_for_each_snapshot_and_stays_so[memory]",
        ("protocol.expiry:expiring", _by_the_wall_clock),
    ),
    _m(
        "E1b",
        "where a time to live ended readers expire nothing: what had expired returns",
        "tests/client/test_client_ttl.py::test_what_expired_stays_so_when_the_time_to_live_ends[memory]",
        ("protocol.expiry:expiring", _without_ended_times_to_live),
    ),
    _m(
        "E2",
        "compaction goes by the clock, not by W: a reader above W misses rows",
        "tests/client/test_client_ttl.py::test_compaction_drops_what_expired_for_every_reader",
        ("protocol.expiry:droppable_to", lambda original, info, watermark: original(info, time.time_ns())),
    ),
    _m(
        "E2b",
        "compaction goes by a shorter time to live while a transaction may know the former one",
        "tests/core/test_expiry.py::test_e2_compaction_goes_by_a_new_time_to_live_once_no_reader_goes_by_the_former",
        ("protocol.expiry:droppable_to", lambda original, info, watermark: expired_to(info, watermark)),
    ),
    _m(
        "E2c",
        "compaction goes by a time to live that a transaction above its fence may not know",
        "tests/client/test_client_ttl.py::"
        "test_e2_who_reads_beside_a_change_of_the_time_to_live_keeps_what_it_sees[1-client.columns.fenced]",
        (
            "database.table_admin:with_ttl",
            lambda original, info, ttl_seconds, fence_ts: settled(original(info, ttl_seconds, fence_ts), fence_ts),
        ),
    ),
    _m(
        "E3",
        "the feed shows what had expired as the row's former state",
        "tests/client/test_client_ttl.py::test_e3_the_feed_tells_no_expiry_and_then_an_insert[memory]",
        ("protocol.changes:expired_to", answers(0)),
    ),
    _m(
        "E4",
        "a longer time to live brings back what had expired",
        "tests/core/test_expiry.py::test_a_shorter_time_to_live_acts_at_once_and_a_longer_one_brings_nothing_back",
        ("protocol.expiry:expired_to", _by_the_rule_of_now),
    ),
    _m(
        "E6",
        "a table with a time to live is written under timestamps that are no times",
        "tests/client/test_client_ttl.py::test_e6_without_times_a_table_with_a_time_to_live_refuses_writes",
        ("database.open_database:OpenDatabase.dates_commits", answers(True)),
    ),
    _m(
        "E5",
        "a commit that puts the same values is not told: a copy loses rows that live",
        "tests/client/test_client_ttl.py::test_e5_the_feed_tells_who_renewed_a_row[memory]",
        ("protocol.changes:_has_visible_value", answers(False)),
    ),
    _m(
        "E5b",
        "a time to live changes what the feed reports of commits before it",
        "tests/client/test_client_ttl.py::test_e5_the_feed_of_before_a_time_to_live_is_the_same_afterwards[memory]",
        ("protocol.changes:had_ttl", answers(True)),
    ),
    _m(
        "F6",
        "a watch holds nothing between two rounds",
        "tests/client/test_client_watch.py::test_f6_a_watch_holds_w_below_its_last_place[memory]",
        ("database.watch:Watching._one_pass", _lets_the_place_go),
    ),
    _m(
        "F6b",
        "a place that was given is leased when the watch passes it",
        "tests/client/test_client_watch.py::test_f6_a_place_that_was_given_is_leased_at_once[memory]",
        (
            "database.lease_keeper:LeaseKeeper.share",
            lambda _, keeper, start_ts, term_s: Lease(start_ts, term_s, inf),
        ),
    ),
    _m(
        "F7",
        "a place that a program read is let go as soon as the watch passes it",
        "tests/client/test_client_watch.py::test_f7_a_place_that_was_read_is_kept_until_a_later_one[memory]",
        ("database.watch:Watching._is_kept", lambda _, watching, leased: leased.until_s == inf),
    ),
    _m(
        "F7b",
        "a place that was read is kept until another change comes: a table that rests holds W",
        "tests/client/test_client_watch.py::test_f7_a_table_that_rests_does_not_hold_w[memory]",
        ("database.watch:Watching._is_kept", lambda _, watching, leased: leased.start_ts >= watching._stored_ts),
    ),
    # Marks and sanitising
    _m(
        "K6e",
        "tables are listed before marks: one that is registered between the two looks is in neither list",
        "tests/core/test_sanitising.py::test_a_table_registered_meanwhile_holds_h",
        ("protocol.sanitize:_marks_and_tables", _tables_first),
    ),
    _m(
        "K6m",
        "marks are listed before tables only: one that is unregistered between the two looks is in neither list",
        "tests/core/test_sanitising.py::test_a_table_unregistered_meanwhile_holds_h",
        ("protocol.sanitize:_marks_and_tables", _marks_once),
    ),
    _m(
        "K6f",
        "a fence makes the TSO forget no table: the next life's commits leave no mark",
        _KNOWN + "test_a_dropped_table_is_unknown_from_its_fence_on",
        ("omid.oracle.tables:KnownTables.forget", answers(None)),
    ),
    _m(
        "K6g",
        "a mark is believed beyond the fence of the drop that takes it away",
        _KNOWN + "test_a_commit_behind_a_drop_s_fence_marks_anew",
        ("omid.oracle.tables:KnownTables.forget", answers(None)),
    ),
    _m(
        "K6h",
        "a read begun before a fence is believed behind it",
        _KNOWN + "test_a_read_from_before_the_fence_says_nothing",
        ("omid.oracle.tables:KnownTables.end_call", _old_calls_are_believed),
    ),
    _m(
        "K6i",
        "a commit that a fence refuses leaves a mark: nothing is sanitised any more",
        _KNOWN + "test_what_a_fence_refuses_leaves_no_mark[while it looks]",
        (
            "omid.oracle.table_requests:_needs_mark",
            lambda original, tso, table_id, request: table_id not in tso.tables.decidable,
        ),
    ),
    _m(
        "K6j",
        "a mark goes whatever its nonce is: that of a commit to the next life goes with it",
        _KNOWN + "test_a_commit_behind_a_drop_s_fence_marks_anew",
        ("omid.memory:MemoryCatalog.clear_unknown_table", _a_mark_of_any_nonce_goes),
    ),
    _m(
        "K6k",
        "a Java TSO that led is not noticed: its commits to forgotten tables are sanitised away",
        "tests/core/test_take_over.py::test_the_first_take_over_after_java_leaves_unconfirmed",
        ("omid.oracle.takeover:_fence_and_move_ceiling", without_step("MarkUnknownTable")),
    ),
    _m(
        "K6l",
        "the sanitiser goes on though nobody confirmed the tables that a Java TSO served",
        "tests/core/test_sanitising.py::test_nothing_is_sanitised_after_java_led_until_confirmed",
        ("protocol.sanitize:_demand_confirmed", answers(None)),
        ("protocol.sanitize:_demand_registered", answers(None)),
    ),
    # Leases
    _m(
        "K7c",
        "a second grant takes the first one's term away, and its holder renews too late",
        "tests/core/test_tso_machine.py::test_k7_a_second_grant_never_shortens_a_lease",
        ("omid.oracle.leases:Leases.grant", _blind_grant),
    ),
    _m(
        "K7d",
        "one renewal that fails in an unexpected way ends the leases of the process",
        "tests/client/test_client_leases.py::test_an_unexpected_error_of_one_renewal_ends_no_lease",
        ("database.lease_keeper:LeaseKeeper._renew", _renewed_or_dead),
    ),
    _m(
        "K7e",
        "a renewer that died tells nobody: readers find holes",
        "tests/client/test_client_leases.py::test_a_renewer_that_dies_tells_every_lease_it_held",
        ("database.lease_keeper:LeaseKeeper._lose_all", answers(None)),
    ),
    # Large commits
    _m(
        "T13",
        "a Java fence that sealed one branch of a decided job stays: half a job",
        "tests/core/test_tso_machine.py::test_t13_entries_of_branches_replace_a_seal",
        ("omid.memory_commit_table:MemoryCommitTable.put_branches", _seals_stay),
    ),
    # Spark
    _m(
        "S7",
        "a try that lost finds the table that it made, writes nothing and spends its id",
        _WRITER + "test_a_failed_tries_own_table_hides_no_rows",
        ("spark.large_transaction:is_there", _by_the_catalog),
    ),
    _m(
        "S4",
        "of two sinks of a batch the second is skipped as counted already",
        "two_sinks_of_one_batch",
        ("spark.run_outcome:batch_run_id", _without_the_sink),
        ("spark.streaming:_Claims.claimed", lambda original, *_: nullcontext()),
    ),
    _m(
        "S4b",
        "a second function under one id is not refused",
        "tests/spark/test_sink_claims.py::test_a_second_function_is_refused_while_and_after_the_first",
        ("spark.streaming:_Claims.claimed", lambda original, *_: nullcontext()),
    ),
    _m(
        "S4f",
        "of two parts of a batch the second is left out without an error",
        "tests/spark/test_runs_in_runs.py::test_a_sink_refuses_the_second_part_of_a_batch",
        ("spark.streaming:_Claims.claimed", lambda original, *_: nullcontext()),
    ),
    _m(
        "S4h",
        "a new checkpoint under a former one's name has its first batches skipped",
        "tests/spark/test_runs_in_runs.py::test_a_query_id_belongs_to_the_checkpoint_that_commits_first",
        ("spark.large_transaction:LargeTransaction.belong_to", lambda original, writes, checkpoint, row, adopts: ""),
    ),
    _m(
        "S4i",
        "of two checkpoints that begin at once under one name both have it",
        "tests/spark/test_runs_in_runs.py::test_of_two_checkpoints_that_begin_at_once_one_gets_the_query_id",
        ("database.idempotency:checkpoint_cell_id", lambda original, row: next(_ids)),
    ),
    _m(
        "S4c",
        "a batch handed out again has another id, and counts twice",
        "a_batch_replayed_behind_its_commit",
        ("spark.run_outcome:batch_run_id", _another_each_time),
    ),
    _m(
        "S4d",
        "of two drivers that have one batch in hand both count it",
        "two_drivers_of_one_batch",
        (_REQUEST, _without_id),
    ),
    _m("S4e", "the same, met by chance", streams, (_REQUEST, _without_id)),
    _m(
        "F1",
        "a commit at a place is told on both its sides",
        _CHANGES + "test_f1_a_commit_counts_on_one_side_of_each_place",
        ("protocol.changes:is_between", lambda original, commit_ts, above, below: above <= commit_ts < below),
    ),
    _m(
        "F1b",
        "a commit below the upper place is not told where it has no shadow cell",
        _CHANGES + "test_f1_a_commit_counts_on_one_side_of_each_place",
        ("protocol.reading:_FetchedRows.unresolved_starts", answers(set())),
    ),
    _m(
        "F2",
        "what began before the lower place and committed after it is not looked for",
        _CHANGES + "test_f2_a_commit_above_a_bookmark_may_have_begun_below_it",
        ("protocol.changes:change_bounds", _by_its_start),
    ),
    _m(
        "F4",
        "a place is let go before the batch behind it is done",
        "tests/spark/test_streams.py::test_f4_a_place_is_kept_until_the_batch_behind_it_is_done",
        ("spark.source.stream_reader:OmidStreamReader.partitions", _done_as_planned),
    ),
    _m(
        "F4b",
        "Spark hears of a place that no lease keeps",
        "tests/spark/test_streams.py::test_f4_a_place_is_kept_until_the_batch_behind_it_is_done",
        ("spark.source.stream_reader:OmidStreamReader._keep", lambda original, *_: None),
    ),
    _m(
        "F4c",
        "a place is leased by the commit at which it is, where other queries are too",
        "tests/spark/test_streams.py::test_f4_no_query_ends_the_lease_of_anothers_place",
        ("spark.source.stream_reader:OmidStreamReader._leased_place", _leased_by_its_commit),
    ),
    _m(
        "F4d",
        "a batch that takes long is read by a lease that nobody renews",
        "tests/spark/test_streams.py::test_f4_each_task_of_a_batch_renews_what_it_reads_by",
        ("spark.held_start:HeldStart.renew", answers(None)),
    ),
    _m(
        "F4e",
        "the place of a query is renewed by its looks alone: a batch takes longer than its term",
        "tests/spark/test_streams.py::test_f4_the_place_of_a_query_is_renewed_while_its_batch_runs",
        ("database.lease_keeper:LeaseKeeper.grant_lasting", _granted_once),
    ),
    _m(
        "X2c",
        "a query goes on with the types it began with: values of a wider one are taken for damage",
        "tests/spark/test_streams.py::test_a_query_whose_column_was_widened_says_to_start_it_again",
        ("spark.source.stream_reader:_check_types", answers(None)),
    ),
    _m(
        "F5",
        "nobody looks whether what was read was the table to its end",
        "tests/spark/test_streams.py::test_f5_a_batch_of_a_table_that_was_made_anew_is_refused",
        ("protocol.changes:check_life", lambda original, *_: nothing()),
    ),
    _m(
        "S4g",
        "of a stream's batches one that is handed out again is written again",
        "tests/spark/test_streams.py::test_a_batch_that_is_handed_out_again_counts_once",
        ("spark.run_outcome:batch_run_id", _another_each_time),
    ),
    _m(
        "F3",
        "nobody looks whether what changed is kept",
        _CHANGES + "test_f3_changes_that_may_be_gone_are_refused_by_name",
        ("protocol.changes:check_kept", lambda original, *_: nothing()),
    ),
    _m(
        "S3c",
        "a batch is acknowledged whose function met another run's end",
        "tests/spark/test_runs_in_runs.py::test_a_sink_never_takes_anothers_commit_for_its_batch",
        ("spark.database:SparkDatabase.run_once", _by_any_end),
    ),
    _m(
        "S9",
        "who lost the making of a table writes columns that it has not",
        _RACES + "test_who_lost_the_making_of_a_table_must_fit_it",
        ("rows.schema:fit_frame", _fitted_to_all),
    ),
    _m(
        "S9b",
        "two columns that are added at once have one place",
        _RACES + "test_two_columns_added_at_once_never_share_a_place",
        ("rows.schema:check_distinct", answers(None)),
    ),
)
