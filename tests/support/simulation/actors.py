"""Who lives in a simulated universe: clients over the core's own steps, each recording what it was told.

A session of `World.ask` does what the client's session does: a request whose answer is lost is sent again, a commit
as a retry (T7), and `OutcomeUnknown` where that does not settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from conformance import put_entry
from pyomid.coroutines import Effect
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, SnapshotTooOld, Unavailable
from pyomid.omid.wire import messages as req
from pyomid.protocol import effects
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.testing.history import History, Item, Outcome, Read, Scan, Transaction, Write
from pyomid.types import (
    TIMESTAMP_STEP,
    BeginReply,
    CellVersion,
    Column,
    CommitReply,
    CommitRequest,
    KeyRange,
    LifeOf,
    RowWrite,
    TableInfo,
    WriteSetLevel,
    life_of,
    start_of,
)
from simulation.build import Build
from simulation.oracle import Host, Hosts, LeaderLock, perform_leader_step
from simulation.storage import Disk, PlainCommitTable, Storage, lost
from simulation.truth import Truth
from simulation.universe import Call, Choices, Process, Sleep, Task, Universe

FAMILY: Final = b"f"
TABLES: Final = ("a", "b")
ROWS: Final = tuple(f"r{number}".encode() for number in range(4))
COLUMNS: Final = (Column(FAMILY, b"x"), Column(FAMILY, b"y"))
RETRY_BOUND_S: Final = 20.0
"""A client gives up sending a commit again after this long; sanitising goes by it."""
SHARED_TERM_S: Final = 2.0
"""Shorter than some pauses of a reader: what was kept no longer is found too."""

Steps = Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """A task's request to the TSO; → Answer, or `Unavailable` where the answer was lost."""

    request: req.Request


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of one universe."""

    plain_puts: bool = False
    """A commit table without conditional puts (HBase)."""
    settled_reads: bool = False
    """A store that reads rows and W from one state (a folder)."""
    settings: dict[str, Any] = field(default_factory=dict)
    wall_skew_s: Sequence[float | None] = (0.0,)
    """The wall clock of each TSO in turn, off by so much; None: timestamps are no times."""
    clock_is_set: bool = False
    """Somebody sets the wall clocks while TSOs serve."""


class World:
    """A universe with a disk, TSO processes and a history."""

    def __init__(self, build: Build, choices: Choices, plan: Plan) -> None:
        self.build, self.plan = build, plan
        self.universe = Universe(choices)
        self.disk = Disk(commits=PlainCommitTable()) if plan.plain_puts else Disk()
        self.truth = Truth(self.disk)
        self.truth.now_s = lambda: self.universe.now_s
        self.truth.in_flight = self._in_flight
        self.storage = Storage(self.disk, self.truth)
        self.lock = LeaderLock()
        self.hosts = Hosts()
        self.history = History()
        self.closing = False
        """Set when the safety phase ends: nobody begins anything new."""
        self.keeps_writers = True
        """The keeper brings new writers where some died."""
        self.universe.perform = self._perform
        self.universe.after_move.append(self.truth.after_move)
        self._tags = 0
        for name in TABLES:
            info = TableInfo(name, (FAMILY,))
            self.disk.store.create_table(info)
            put_entry(self.disk.catalog, info)

    def _in_flight(self) -> list[int]:
        epoch = self.disk.leader_state.read().epoch
        leading = [host for host in self.hosts.living if host.serving and host.machine.epoch == epoch]
        return [start for host in leading for batch in host.machine.state.windows.batches for start, _ in batch.entries]

    def start_tso(self) -> Host:
        number = len(self.hosts.hosts)
        skew = self.plan.wall_skew_s[number % len(self.plan.wall_skew_s)]
        host = Host(
            self.universe,
            self.build,
            self.storage,
            self.truth,
            self.lock,
            self.plan.settings,
            f"O{number + 1}",
            skew,
            self.plan.clock_is_set,
        )
        host.accepts_clock = self.closing  # no TSO leads a database that a wrong clock used, until its operator obeys
        self.hosts.hosts.append(host)
        return host

    def client(self, name: str) -> Client:
        return Client(self, self.universe.process(name))

    # ------------------------------------------------------------ what tasks yield

    def _perform(self, task: Task, effect: Any) -> Call:
        if isinstance(effect, Ask):
            return self._send(task, effect.request)
        if isinstance(effect, effects.LookupThenWatermarks):
            return self._look_up(task, effect)
        host = next((host for host in self.hosts.hosts if host.process is task.process), None)
        if host is not None:
            return perform_leader_step(host, task, effect)
        return self.storage_call(task.process, effect, task.answer, task.fail)

    def _look_up(self, task: Task, effect: effects.LookupThenWatermarks) -> Call:
        """Two calls, the second sent when the first is answered. Stores may do both in one; what takes effect between
        them is what R4 is about."""

        def read_watermarks(states: list[int]) -> None:
            task.call = self.storage_call(
                task.process,
                effects.ReadWatermarks(),
                lambda watermarks: task.answer((states, *watermarks)),
                task.fail,
            )

        return self.storage_call(task.process, effect, read_watermarks, task.fail)

    def storage_call(
        self,
        process: Process,
        effect: Effect[Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> Call:
        parts, combine, ordered = self.storage.parts_of(effect)
        return self.universe.call(
            process,
            label_of(effect),
            effect,
            parts,
            done=done,
            failed=failed,
            combine=combine,
            ordered=ordered,
            fallible=lost,
        )

    def launch(self, process: Process, effect: Effect[Any]) -> None:
        """Done later, or never: nobody waits."""
        self.storage_call(process, effect, lambda _: None, lambda _: None)

    def _send(self, task: Task, request: req.Request) -> Call:
        """Over a connection: it may reach a TSO that is deposed, late, or nobody."""
        self._tags += 1
        tag = self._tags
        host = self.hosts.find()
        call = self.universe.call(
            task.process,
            f"{type(request).__name__} {_short(request)} to {host.process.name if host else 'nobody'}",
            request,
            [],
            done=task.answer,
            failed=task.fail,
            fallible=lost,
            combine=lambda results: results[-1] if results else None,
        )
        call.waits = True
        if host is None:
            call.parts.append(lambda: call.reject(lost()))
        else:
            call.parts.append(lambda: host.receive(task.process.name, tag, request, call))
        return call


def _short(request: Any) -> str:
    if isinstance(request, CommitRequest):
        return f"{request.start_ts}{' again' if request.is_retry else ''}"
    return str(getattr(request, "start_ts", getattr(request, "starts", "")))


def _keys(rows: Iterable[bytes]) -> str:
    return b" ".join(rows).decode(errors="backslashreplace")


def label_of(effect: Effect[Any]) -> str:
    match effect:
        case effects.ReadRows(table, rows, _):
            return f"ReadRows {table} {_keys(rows)}"
        case effects.ReadSettled(table, rows):
            return f"ReadSettled {table} {_keys(rows)}"
        case effects.ReadValidity(table) | effects.ReadNotedDrop(table):
            return f"{type(effect).__name__} {table}"
        case effects.LookupThenWatermarks(starts):
            return f"LookupThenWatermarks {list(starts)}"
        case effects.WriteCells(table, version, rows):
            return f"WriteCells {table} @{version} {_keys(row.row for row in rows)}"
        case effects.WriteShadowCells(table, shadows) | effects.Heal(table, shadows):
            told = ", ".join(f"{_keys([s.cell.row])}@{s.cell.version}={s.commit_ts}" for s in shadows)
            return f"{type(effect).__name__} {table} {told}"
        case effects.DeleteVersions(table, cells) | effects.DeleteOrphans(table, cells):
            return f"{type(effect).__name__} {table} {', '.join(f'{_keys([c.row])}@{c.version}' for c in cells)}"
        case effects.RecordWatermark(record):
            return f"RecordWatermark {record.table} {record.watermark}"
        case effects.ReadRange(table, key_range, _, rows_max):
            return f"ReadRange {table} {key_range.start!r}…{key_range.stop!r} {rows_max or ''}"
        case effects.CleanBatch(table, _, heals, drops):
            return f"CleanBatch {table} heals {len(heals)} drops {len(drops)}"
    return type(effect).__name__


class Client:
    """One client process: session, cache, and the transactions it runs."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        self.universe, self.build = world.universe, world.build
        self.choices = world.universe.choices
        self.cache = world.build.reading.CommitCache()
        self.epoch = 0
        self._count = 0

    def spawn(self, name: str, steps: Steps) -> Task:
        return self.universe.spawn(self.process, f"{self.process.name}.{name}" if name else self.process.name, steps)

    # ------------------------------------------------------------ the session

    def ask(self, request: req.Request, tries: int = 6) -> Steps:
        """The answer; errors as the client's session raises them."""
        began_s = self.universe.now_s
        while True:
            try:
                answer = yield Ask(request)
            except Unavailable:
                answer = None
            if isinstance(answer, req.Refused):
                raise answer.as_error()
            if answer is not None:
                return answer
            tries -= 1
            if isinstance(request, CommitRequest):
                request = replace(request, is_retry=True)
            if tries == 0 or self.universe.now_s - began_s > RETRY_BOUND_S:
                if isinstance(request, CommitRequest):
                    raise OutcomeUnknown(f"no answer for {request.start_ts}", start_ts=request.start_ts)
                raise lost()
            yield Sleep(0.5)

    def run(self, steps: Steps) -> Steps:
        """Drives core steps: what asks the TSO goes through the session, what nobody waits for is launched."""
        result: Any = None
        error: OmidError | None = None
        while True:
            try:
                effect = steps.send(result) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            result, error = None, None
            try:
                result = yield from self._effect(effect)
            except OmidError as failed:
                error = failed

    def _effect(self, effect: Any) -> Steps:
        match effect:
            case effects.Heal() | effects.DeleteOrphans() | effects.DeleteCommitEntries():
                self.world.launch(self.process, effect)
                return None
            case effects.Begin(not_before):
                return (yield from self.ask(req.Begin(not_before)))
            case effects.SendCommit(request):
                return (yield from self.ask(request))
            case effects.SealStarts(starts):
                return list((yield from self.ask(req.Seal(starts))).outcomes)
            case effects.AdvanceHorizon(horizon):
                return (yield from self.ask(req.AdvanceHorizon(horizon))).deleted
        return (yield effect)

    # ------------------------------------------------------------ transactions

    def begin(self, kind: str = "") -> Generator[Any, Any, Tx]:
        self._count += 1
        record = Transaction(f"{self.process.name}{kind}.{self._count}", begin_called=self.universe.steps)
        begun: BeginReply = yield from self.ask(req.Begin())
        self.epoch = max(self.epoch, begun.epoch)
        record.begin_answered, record.start_ts = self.universe.steps, begun.start_ts
        self.world.history.transactions.append(record)
        return Tx(self, record, begun.start_ts, max(self.epoch, begun.epoch))


class Tx:
    """A transaction of a simulated client, over `protocol.reading` and `protocol.commit`."""

    def __init__(self, client: Client, record: Transaction, start_ts: int, epoch: int) -> None:
        self.client, self.record, self.start_ts = client, record, start_ts
        self.build = client.build
        self.snapshot = client.build.reading.Snapshot(start_ts, epoch, own=frozenset((start_ts,)))
        self.lives: dict[str, LifeOf] = {}
        """The tables as it found them first."""
        self.written: dict[str, dict[CellVersion, None]] = {}
        self.branches: list[int] = []
        self.reported = 0
        """How many ids were reported for `branches`."""
        self.lost: set[int] = set()
        """Branches whose report was answered with a conflict."""
        self._values = 0

    # ------------------------------------------------------------ reads

    def life_of(self, table: str) -> LifeOf:
        """The entry as it is at the first use."""
        if table not in self.lives:
            self.lives[table] = life_of(self.client.world.disk.catalog.table(table))
        return self.lives[table]

    def get(self, table: str, row: bytes) -> Steps:
        """The visible columns; recorded one by one, absence too."""
        reading = self.build.reading
        read = reading.read_settled if self.client.world.plan.settled_reads else reading.read_rows
        life = self.life_of(table)
        [found] = yield from self.client.run(read(life, [row], None, self.snapshot, self.client.cache))
        found = dict(found)
        for column in COLUMNS:
            value = found.get(column)
            self.record.operations.append(Read(item_of(table, row, column), _text(value), self.client.universe.steps))
        return found

    def scan(self, table: str) -> Steps:
        """A whole table as bulk readers do it, in batches of a few rows."""
        self.life_of(table)
        rows_max = self.client.choices.pick((1, 2, 100))
        found: list[tuple[Item, str]] = []
        start: bytes | None = b""
        while start is not None:
            batch = yield effects.ReadRange(table, KeyRange(start, None), None, rows_max)
            start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows >= rows_max else None
            if not batch.rows:
                break
            seen = yield from self._read_batch(table, batch)
            found.extend(self._visible(table, *seen))
        yield from self._read_batch(table, None)
        self.record.operations.append(Scan(table, "", None, tuple(found), at=self.client.universe.steps))
        return found

    def _read_batch(self, table: str, batch: Any) -> Steps:
        return self.client.run(
            self.build.reading.read_batch(self.life_of(table), batch, None, self.snapshot, self.client.cache)
        )

    def _visible(self, table: str, batch: Any, seen: Any) -> list[tuple[Item, str]]:
        found = []
        for row in range(batch.rows):
            for cell in seen.cells[seen.row_cell[row] : seen.row_cell[row + 1]].tolist():
                column = batch.columns[int(batch.cell_col[cell])]
                found.append((item_of(table, batch.row_key(row), column), _text(batch.value(cell)) or ""))
        return found

    # ------------------------------------------------------------ writes

    def write(self, table: str, rows: dict[bytes, dict[Column, bool]], version: int | None = None) -> Steps:
        """Puts (True) and deletes (False), flushed at once."""
        version = self.start_ts if version is None else version
        writes = []
        for row, cells in rows.items():
            values = {column: self._value() if put else None for column, put in cells.items()}
            writes.append(RowWrite(row, tuple(values.items())))
            for column, value in values.items():
                self._wrote(table, row, column, value, version)
        yield effects.WriteCells(table, version, writes)

    def _wrote(self, table: str, row: bytes, column: Column, value: bytes | None, version: int) -> None:
        self.written.setdefault(table, {})[CellVersion(row, *column, version)] = None
        self.record.operations.append(Write(item_of(table, row, column), _text(value)))

    def _value(self) -> bytes:
        self._values += 1
        return f"{self.record.name}~{self._values}".encode()

    # ------------------------------------------------------------ the end

    def commit(self, level: WriteSetLevel = WriteSetLevel.IDS) -> Steps:
        """The commit timestamp, 0 for aborted; completion or rollback follow. If its tasks reported their ids, the
        commit names none."""
        written = {table: tuple(cells) for table, cells in self.written.items()}
        if not written:
            self.record.outcome = Outcome.COMMITTED
            return 0
        request = CommitRequest(
            self.start_ts,
            cell_ids=() if level is WriteSetLevel.TABLE or self.reported else tuple(sorted(self._ids(written))),
            table_ids=tuple(table_id(table.encode()) for table in written),
            branches=tuple(self.branches),
            level=level,
            reported_ids=0 if level is WriteSetLevel.TABLE else self.reported,
        )
        self.record.commit_called = self.client.universe.steps
        try:
            reply: CommitReply = yield from self.client.run(self.build.commit.request_commit(request, written))
        except OutcomeUnknown:
            return 0
        assert not (reply.commit_ts and self.lost & set(self.branches)), (
            f"{self.record.name} commits, although the report of a branch was answered with a conflict"
        )
        self._told(reply.commit_ts)
        if not reply.commit_ts:
            self.roll_back()
        elif not self.branches:
            self._in_background(self.build.commit.complete(self.start_ts, reply.commit_ts, written))
        return reply.commit_ts

    def _in_background(self, steps: Steps) -> None:
        self.client.spawn(f"ends {self.start_ts}", self.client.run(steps))

    def _ids(self, written: dict[str, tuple[CellVersion, ...]]) -> set[int]:
        return {
            cell_id(table.encode(), cell.row, cell.family, cell.qualifier)
            for table, cells in written.items()
            for cell in cells
        }

    def _told(self, commit_ts: int) -> None:
        self.client.world.truth.outcome_told(self.start_ts, commit_ts)
        self.record.commit_answered = self.client.universe.steps
        self.record.outcome = Outcome.COMMITTED if commit_ts else Outcome.ABORTED
        self.record.commit_ts = commit_ts or None

    def roll_back(self) -> None:
        """Only where "not committed" is certain."""
        written = {table: tuple(cells) for table, cells in self.written.items()}
        self.record.outcome = Outcome.ABORTED
        if written:
            self._in_background(self.build.commit.delete_writes(written))

    def give_up(self) -> None:
        """Dead without a commit request: never visible."""
        self.record.outcome = Outcome.ABORTED

    # ------------------------------------------------------------ leases and branches

    def lease(self, term_s: float = 0.0) -> Steps:
        yield from self.client.ask(req.GrantLease(self.start_ts, term_s))

    def share_lease(self, term_s: float) -> Steps:
        yield from self.client.ask(req.GrantLease(self.start_ts, term_s, shared=True))

    def end_lease(self) -> Steps:
        yield from self.client.ask(req.EndLease(self.start_ts))

    def report(self, branch: int, part: int = 0) -> Steps:
        """Report the ids of what was written, to one table, under a branch. A conflict is noted: a job of the product
        ends then; this one goes on, to show that its commit aborts."""
        own = {table: tuple(cell for cell in cells if cell.version == branch) for table, cells in self.written.items()}
        ids = sorted(self._ids(own))
        packed = np.array(ids, dtype="<i8").tobytes()
        (table,) = (table for table, cells in own.items() if cells)
        try:
            yield from self.client.ask(req.ReportIds(self.start_ts, table_id(table.encode()), branch, part, packed))
        except SnapshotTooOld:
            raise
        except ConflictError:
            self.lost.add(branch)
        return len(ids)

    def branch(self) -> Steps:
        """A start timestamp of its own for a task attempt."""
        begun = yield from self.client.ask(req.Begin())
        return begun.start_ts


def item_of(table: str, row: bytes, column: Column) -> Item:
    return Item(table, row.decode(), str(column))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


# ---------------------------------------------------------------- lives


def writer(client: Client) -> Steps:
    """Small transactions: reads, scans, puts and deletes, sometimes in two flushes."""
    choices = client.choices
    while not client.world.closing:
        try:
            yield from _one_transaction(client)
        except (ConflictError, Unavailable, OutcomeUnknown):
            yield Sleep(choices.pick((0.0, 0.1, 1.0)))


def _one_transaction(client: Client) -> Steps:
    choices = client.choices
    tx = yield from client.begin()
    try:
        for _ in range(choices.number(0, 2)):
            yield from tx.get(choices.pick(TABLES), choices.pick(ROWS))
        if choices.chance(0.2):
            yield from tx.scan(choices.pick(TABLES))
        for _ in range(choices.number(1, 2)):
            yield from tx.write(choices.pick(TABLES), _random_rows(choices))
            if choices.chance(0.2):
                yield Sleep(choices.pick((0.1, 0.5, 2.0)))
        if choices.chance(0.2):
            yield from tx.get(choices.pick(TABLES), choices.pick(ROWS))
        if choices.chance(0.1):
            tx.roll_back()
            return
    except OmidError:
        tx.give_up()
        raise
    yield from tx.commit()


def _random_rows(choices: Choices) -> dict[bytes, dict[Column, bool]]:
    return {
        row: {column: not choices.chance(0.25) for column in choices.sample(COLUMNS, choices.number(1, 2))}
        for row in choices.sample(ROWS, choices.number(1, 2))
    }


def reader(client: Client, *, leased: bool = False) -> Steps:
    """Snapshot after snapshot, each read twice over; with a lease, of its own or a shared one, they last long."""
    choices = client.choices
    while not client.world.closing:
        try:
            tx = yield from client.begin()
            shares = leased and tx.start_ts // TIMESTAMP_STEP % 2 == 0
            if leased and not shares:
                yield from tx.lease()
            for _ in range(choices.number(2, 6)):
                if shares:
                    yield from tx.share_lease(SHARED_TERM_S)
                if choices.chance(0.4):
                    yield from tx.scan(choices.pick(TABLES))
                else:
                    yield from tx.get(choices.pick(TABLES), choices.pick(ROWS))
                if leased or choices.chance(0.3):
                    yield Sleep(choices.pick((0.0, 0.5, 3.0) if leased else (0.1, 0.5, 1.0)))
            yield from tx.commit()
            if leased and not shares:
                yield from tx.end_lease()
        except (SnapshotTooOld, Unavailable):
            yield Sleep(0.5)


def large_writer(client: Client) -> Steps:
    """A driver with a lease, task attempts with branches of their own, one commit that names the winners."""
    while not client.world.closing:
        try:
            yield from _one_job(client)
        except (ConflictError, Unavailable, OutcomeUnknown, Misuse, SnapshotTooOld):
            yield Sleep(0.5)


def _one_job(client: Client) -> Steps:
    choices = client.choices
    tx = yield from client.begin("job")
    try:
        yield from tx.lease()
        if choices.chance(0.5):
            yield from tx.get(choices.pick(TABLES), choices.pick(ROWS))
        kept = len(tx.record.operations)
        reports = choices.chance(0.5)
        for row in choices.sample(ROWS, choices.number(1, 3)):
            yield from _one_task(client, tx, row, kept, reports=reports)
    except OmidError:
        tx.give_up()
        raise
    if not tx.branches:
        tx.give_up()
        return
    yield from tx.commit(WriteSetLevel.IDS if reports else choices.pick((WriteSetLevel.IDS, WriteSetLevel.TABLE)))


def _one_task(client: Client, tx: Tx, row: bytes, kept: int, *, reports: bool) -> Steps:
    """A task of a job: the first attempt that finishes counts; what others wrote belongs to nobody."""
    choices = client.choices
    for _ in range(choices.number(1, 2)):
        branch = yield from tx.branch()
        before = {table: dict(cells) for table, cells in tx.written.items()}
        operations = list(tx.record.operations)
        try:
            yield from tx.write(choices.pick(TABLES), {row: {choices.pick(COLUMNS): True}}, branch)
            count = (yield from tx.report(branch)) if reports else 0
            wins = choices.chance(0.7)
        except Unavailable:
            wins = False
        if wins:
            tx.branches.append(branch)
            tx.reported += count
            return
        tx.written = before
        tx.record.operations[:] = operations


def compactor(client: Client) -> Steps:
    """Region after region, round after round; now and then one is forgotten."""
    while not client.world.closing:
        yield Sleep(client.choices.pick((0.2, 0.5, 2.0)))
        yield from compact_all(client, lazy=True)


def compact_all(client: Client, *, lazy: bool) -> Steps:
    """One round over all regions of all tables."""
    for table in TABLES:
        info = client.world.disk.catalog.table(table)
        for region in client.world.disk.store.regions(table):
            if lazy and client.choices.chance(0.3):
                continue
            steps = client.build.compaction.compact_region(
                table,
                info.generation,
                region,
                client.cache,
                now_s=client.universe.now_s,
                rows_max=client.choices.pick((1, 2, 100)),
            )
            try:
                yield from client.run(steps)
            except (Unavailable, SnapshotTooOld):
                yield Sleep(0.5)


def sanitiser(client: Client) -> Steps:
    while not client.world.closing:
        yield Sleep(client.choices.pick((0.5, 2.0)))
        yield from sanitise(client)


def sanitise(client: Client) -> Steps:
    """Returns whether it was answered; after Unavailable nobody knows how much of it was done."""
    try:
        yield from client.run(
            client.build.sanitize.sanitize_entries(now_s=client.universe.now_s, retry_bound_s=RETRY_BOUND_S)
        )
    except Unavailable:
        yield Sleep(0.1)
        return False
    except Misuse:
        yield Sleep(0.1)
    return True


def splitter(client: Client) -> Steps:
    """Regions split and merge behind everybody's back."""
    choices, store = client.choices, client.world.disk.store
    while not client.world.closing:
        yield Sleep(choices.pick((3.0, 20.0)))
        table = choices.pick(TABLES)
        borders = [region.start for region in store.regions(table) if region.start]
        if borders and choices.chance(0.4):
            store.merge_regions(table, choices.pick(borders))
        else:
            store.split_region(table, choices.pick(ROWS[1:]))


def meddler(client: Client) -> Steps:
    """A Java client or a low-latency reader: fences starts of unresolved cells in the commit table, by itself (T13)."""
    choices, world = client.choices, client.world
    while not world.closing:
        yield Sleep(choices.pick((0.5, 3.0)))
        unresolved = [cell for table in TABLES for cell in world.truth.cells_of(table) if not cell.commit_ts]
        if unresolved:
            start = start_of(choices.pick(unresolved).version)
            if start >= world.disk.leader_state.read().horizon:
                client.universe.note(f"{client.process.name} seals {start}: {world.disk.commits.seal(start)}")


def keeper(world: World) -> Steps:
    """Starts a TSO where none lives, and now and then one more: it takes over when the old one's lease ends.
    Writers that died come again under new names, as long as there are faults.
    """
    choices, born = world.universe.choices, 100
    while True:
        yield Sleep(2.0)
        living = world.hosts.living
        stopped = [host for host in living if host.process.stopped]
        if len(living) - len(stopped) == 0 or (len(living) < 2 and choices.chance(0.03)):
            world.start_tso()
        writing = [process for process in world.universe.processes if process.alive and process.name[0] == "T"]
        if len(writing) < 3 and world.universe.faults.kill and world.keeps_writers:
            born += 1
            client = world.client(f"T{born}")
            client.spawn("", writer(client))
