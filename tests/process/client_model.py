"""Random programs over the whole client API, from several clients and processes, against a model of plain dicts.

The model of a table is, by cell, its versions: (version, commit, value). What a transaction sees is the greatest
version among those committed before its start, with its own writes over it. The version is the commit timestamp, or
that of the branch, drawn at the first flush. It decides between two overlapping writes of which one is conflict-free,
by folder.md's "of two, the greater version stays"; a start could not, because transactions may share it.

A commit is refused if another one that overlaps wrote or claimed one of its ids. What a savepoint took back counts no
more, but claims do. It *may* be refused for a cell that it had written conflict-free before the savepoint, and
otherwise after it.

One thread plays all clients in turn, so that the model knows the order of commits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyomid
from pyomid import Bookmark
from pyomid.database import change_feed
from pyomid.errors import ConflictError, ExpectationFailed, OmidError, SnapshotTooOld, UnknownTable

Cell = tuple[bytes, bytes]
Rows = dict[bytes, dict[bytes, bytes]]
Cells = dict[Cell, bytes | None]

FAMILIES = (b"f", b"g")
KEYS = [
    *(b"a", b"a\0", b"a\0\0", b"a\x01", b"ab", b"b", b"b\0c", b"\0", b"\0\0", b"\xff", b"\xff\xff", b"\xff\xff\0"),
    *(b"k" * 200, b"k" * 199 + b"l", b"k" * 200 + b"\0"),
    *(b"r%02d" % number for number in range(20)),
]
COLUMNS = [b"f:x", b"f:y", b"g:x", b"g:" + b"w" * 300, *(b"f:q%d" % number for number in range(5))]
COUNTER = b"g:count"
TYPED = "i"
"""A table of typed rows, with indexes that come and go."""


class Client:
    """One connection: what it is told to do, by names that a pipe can carry."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._database = pyomid.connect(url, **options)
        self._transactions: dict[int, pyomid.Transaction] = {}
        self._held: dict[int, Any] = {}

    def begin(self, number: int, kind: str, at: int = 0) -> int:
        begins = {"plain": {}, "lease": {"lease": True}, "read": {"read_only": True}}
        made = self._database.snapshot(at=at) if kind == "past" else self._database.begin(**begins[kind])
        self._transactions[number] = made
        return made.start_ts

    def table(self, number: int, table: str, method: str, *arguments: Any, **named: Any) -> Any:
        found = getattr(self._transactions[number].table(table), method)(*arguments, **named)
        if method == "scan":
            return list(found)
        return (list(found.rows), found.next) if method == "page" else found

    def arrow(self, number: int, table: str, named: dict[str, Any]) -> list[tuple[bytes, dict[bytes, bytes]]]:
        rows = self._transactions[number].table(table).to_arrow(**named).read_all().to_pylist()
        return [(row["key"], dict(row["cells"])) for row in rows]

    def open_scan(self, number: int, scan: int, table: str, named: dict[str, Any]) -> None:
        self._held[scan] = self._transactions[number].table(table).scan(**named)

    def next_rows(self, scan: int, most: int) -> list[tuple[bytes, dict[bytes, bytes]] | None]:
        found = [next(self._held[scan], None) for _ in range(most)]
        return found[: found.index(None) + 1] if None in found else found

    def savepoint(self, number: int, saved: int) -> None:
        self._held[saved] = self._transactions[number].savepoint()

    def go_back(self, saved: int) -> None:
        self._held[saved].rollback()

    def commit(self, number: int) -> tuple[int, int] | None:
        """Its version and commit timestamp; None if it wrote nothing."""
        transaction = self._transactions.pop(number)
        transaction.commit()
        return version_and_commit_of(transaction)

    def transaction(self, number: int, method: str, *arguments: Any) -> None:
        getattr(self._transactions[number], method)(*arguments)

    def database(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._database, method)(*arguments, **named)

    def typed(self, number: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Of the table of typed rows."""
        found = getattr(self._transactions[number].table(TYPED, codec=dict), method)(*arguments, **named)
        return list(found) if method in ("scan", "lookup") else found

    def run_once(self, run_id: str, table: str, key: bytes) -> tuple[int, int, int]:
        """Counts, if no run under this id did before. Start, version and commit; commit 0: another run had."""
        transactions: list[pyomid.Transaction] = []

        def count(transaction: pyomid.Transaction) -> None:
            transactions.append(transaction)
            transaction.table(table).increment(key, COUNTER, 1)

        done = self._database.run_once(run_id, count)
        if done is not None:
            return done.start_ts, 0, 0
        return transactions[-1].start_ts, *(version_and_commit_of(transactions[-1]) or (0, 0))

    def watched(self, table: str, since: Bookmark) -> list[tuple[Any, ...]]:
        """All that was committed since, as a watch under a lease tells it."""
        with self._database.watch(
            table, after=since, keep_seconds=60, max_wait_seconds=0.05, poll_seconds=0.01
        ) as watch:
            return [tuple(change) for change in watch]

    def changes(self, table: str, since: Bookmark, until: Bookmark) -> list[tuple[Any, ...]]:
        return [tuple(change) for change in self._database.changes(table, since, until)]

    def changes_in_batches(self, table: str, since: Bookmark, until: Bookmark) -> list[tuple[Any, ...]]:
        from changes_in_batches import told_in_batches

        return [tuple(change) for change in told_in_batches(self._database, table, since, until.start_ts)[0]]

    def close(self) -> None:
        for transaction in self._transactions.values():
            transaction.rollback()
        self._database.close()


def version_and_commit_of(transaction: pyomid.Transaction) -> tuple[int, int] | None:
    commit = transaction.commit_ts
    return None if commit is None else (transaction._core.view.version or commit, commit)


def serve(pipe: Connection, url: str, options: dict[str, Any]) -> None:
    """A client in a process of its own."""
    client = Client(url, options)
    while (told := pipe.recv()) is not None:
        name, arguments, named = told
        try:
            pipe.send((getattr(client, name)(*arguments, **named), None))
        except OmidError as error:
            pipe.send((None, error))
    client.close()


class RemoteClient:
    """The other end of `serve`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._pipe.send((name, arguments, named))
            found, error = self._pipe.recv()
            if error is not None:
                raise error
            return found

        return call

    def close(self) -> None:
        self._pipe.send(None)


@dataclass(eq=False)
class Table:
    name: str
    level: str
    generation: int = 0
    versions: dict[Cell, list[tuple[int, int, bytes | None]]] = field(default_factory=dict)

    def seen(self, below: int, own: Cells | None = None) -> Rows:
        cells: Cells = {}
        for cell, versions in self.versions.items():
            visible = [(version, value) for version, commit, value in versions if commit < below]
            if visible:
                cells[cell] = max(visible, key=lambda each: each[0])[1]
        rows: Rows = {}
        for (key, column), value in {**cells, **(own or {})}.items():
            if value is not None:
                rows.setdefault(key, {})[column] = value
        return rows

    def id_of(self, key: bytes, column: bytes) -> tuple[bytes, ...]:
        return (key,) if self.level == "row" else (key, column)

    def changes(self, above: int, below: int) -> list[tuple[Any, ...]]:
        commits = {(key, c) for (key, _), each in self.versions.items() for _, c, _ in each if above < c < below}
        told = []
        for key, commit in sorted(commits):
            before, after = self.seen(commit).get(key, {}), self.seen(commit + 1).get(key, {})
            if before != after:
                kind = "insert" if not before else "update" if after else "delete"
                told.append((kind, key, commit, before or None, after or None))
        return told


@dataclass(eq=False)
class Transaction:
    client: Any
    number: int
    start: int
    writes: bool
    own: dict[str, Cells] = field(default_factory=dict)
    named: dict[str, set[Any]] = field(default_factory=dict)
    """The ids that its commit names, by table, and those that it may name."""
    perhaps: dict[str, set[Any]] = field(default_factory=dict)
    claimed: dict[str, set[Any]] = field(default_factory=dict)
    """Those of `named` that a savepoint does not take back."""
    saved: list[tuple[int, dict[str, Cells], dict[str, set[Any]]]] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Tables that were made anew since."""
    altered: set[str] = field(default_factory=set)
    outlived: bool = False
    """The TSO that began it died."""


@dataclass(eq=False)
class Scan:
    number: int
    table: str
    named: dict[str, Any]
    states: list[Rows]
    """What the transaction saw since it began."""
    last: bytes | None = None


def chosen(row: dict[bytes, bytes], columns: Iterable[bytes] | None) -> dict[bytes, bytes]:
    if columns is None:
        return row
    wanted = {name.rstrip(b":") for name in columns}
    return {name: value for name, value in row.items() if name in wanted or name[:1] in wanted}


def in_range(rows: Rows, named: dict[str, Any]) -> list[tuple[bytes, dict[bytes, bytes]]]:
    start, stop, prefix = named.get("start", b""), named.get("stop"), named.get("prefix", b"")
    keys = [key for key in sorted(rows) if key >= start and (stop is None or key < stop) and key.startswith(prefix)]
    found = [(key, row) for key in keys if (row := chosen(rows[key], named.get("columns")))]
    return found[::-1] if named.get("reverse") else found


class Play:
    """Steps drawn from `seed`. Each answer is compared at once; `log` has what was done."""

    def __init__(self, seed: int, clients: list[Any]) -> None:
        self._draw = random.Random(seed)
        self._clients = clients
        self._numbers = iter(range(1, 1 << 30))
        self._open: list[Transaction] = []
        self._committed: list[tuple[int, dict[str, tuple[set[Any], set[Any]]]]] = []
        self._bookmarks: list[Bookmark] = []
        self._changed: set[str] = set()
        """Tables that were dropped or altered."""
        self.log: list[str] = []
        self.done: Counter[str] = Counter()
        self._tables = {}
        for name in ("t", "u"):
            level = self._draw.choice(["cell", "row"])
            clients[0].database("create_table", name, families=FAMILIES, conflict_level=level)
            self._tables[name] = Table(name, level)

    def play(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self._step()
            for transaction in self._open[:]:
                self._commit(transaction)
            reader = self._begun(self._clients[0], "read")
            for name in ("t", "u"):
                found = self._ask(reader, "table", name, "scan")
                assert found == in_range(self._tables[name].seen(reader.start), {})
            assert self._clients[-1].database("verify").ok
        except BaseException as error:
            error.add_note("\n".join(line[:300] for line in self.log[-20:]))
            raise

    def _step(self) -> None:
        draw = self._draw
        if len(self._open) < 2 or (len(self._open) < 6 and draw.random() < 0.08):
            return self._begin()
        if draw.random() < 0.05:
            return self._look_after(draw.choice(self._clients))
        transaction, table = draw.choice(self._open), draw.choice(["t", "t", "u"])
        acts = [self._get, self._get, self._rows, self._scan, self._scan, self._page, self._arrow]
        acts += [self._open_scan, self._next_rows, self._next_rows, self._commit, self._commit]
        if transaction.writes:
            acts += [self._put, self._put, self._put, self._put_expecting, self._put_if_absent, self._increment]
            acts += [self._delete, self._delete, self._claim, self._save, self._go_back, self._flush]
        act = draw.choice(acts)
        if table in transaction.lost and act != self._commit:
            return self._refused(transaction, table) if act in (self._get, self._scan) else None
        self.done[act.__name__] += 1
        try:
            return act(transaction) if act == self._commit else act(transaction, self._tables[table])
        except SnapshotTooOld as error:
            if error.values.get("table") not in transaction.lost:
                raise
            self.done["gone"] += 1  # what it wrote to a table that was dropped since was about to be sent
            self._ask(transaction, "transaction", "rollback")
            self._open.remove(transaction) if transaction in self._open else None

    def _ask(self, transaction: Transaction, name: str, *arguments: Any, **named: Any) -> Any:
        self.log.append(f"{self._clients.index(transaction.client)} {transaction.start} {name} {arguments} {named}")
        return getattr(transaction.client, name)(transaction.number, *arguments, **named)

    def _seen(self, transaction: Transaction, table: Table) -> Rows:
        return table.seen(transaction.start, transaction.own.get(table.name))

    def _columns(self) -> list[bytes] | None:
        if self._draw.random() < 0.5:
            return None
        return self._draw.choices([*COLUMNS, *FAMILIES, b"f:never", b"g:"], k=self._draw.randrange(1, 4))

    def _range(self) -> dict[str, Any]:
        draw, named = self._draw, dict[str, Any]()
        if draw.random() < 0.3:
            named["prefix"] = draw.choice([b"", b"a", b"r", b"r0", b"\xff", b"\0", b"k" * 199])
        elif draw.random() < 0.5:
            named |= {"start": draw.choice(KEYS), "stop": draw.choice([*KEYS, None])}
        return named | draw.choice([{}, {"reverse": True}])

    # Transactions

    def _begun(self, client: Any, kind: str, at: int = 0) -> Transaction:
        number = next(self._numbers)
        start = client.begin(number, kind, at)
        return Transaction(client, number, at + 1 if kind == "past" else start, kind in ("plain", "lease"))

    def _begin(self) -> None:
        kind = self._draw.choice(["plain"] * 6 + ["lease", "read", "past"])
        at = self._draw.choice(self._committed)[0] + self._draw.choice([-1, 0, 1]) if self._committed else 0
        if kind == "past" and (not at or at <= max(table.generation for table in self._tables.values())):
            return
        try:
            begun = self._begun(self._draw.choice(self._clients), kind, at)
            known = max((commit for commit, _ in self._committed), default=0)
            assert kind == "past" or begun.start > known, "a begin sees all that was acknowledged"
            self._open.append(begun)
        except SnapshotTooOld:
            self.done["too old"] += 1

    def _commit(self, transaction: Transaction) -> None:
        must = may = False
        touched = transaction.named.keys() | transaction.perhaps.keys() | transaction.own.keys()
        ids = {}
        for name in touched:
            named = transaction.named.get(name, set())
            ids[name] = named, named | transaction.perhaps.get(name, set())
            must |= (transaction.outlived or name in transaction.lost) and bool(named or transaction.own.get(name))
            may |= transaction.outlived or name in transaction.altered | transaction.lost
            for commit, others in self._committed:
                if commit > transaction.start and name in others:
                    must |= not ids[name][0].isdisjoint(others[name][0])
                    may |= not ids[name][1].isdisjoint(others[name][1])
        self._open.remove(transaction) if transaction in self._open else None
        try:
            committed = self._ask(transaction, "commit")
        except ConflictError as error:
            if not (must or may or self._is_late_fence(error, transaction, touched)):
                raise
            self.done["refused"] += 1
            return
        assert not must, f"transaction {transaction.start} committed: version and commit {committed}"
        if committed is not None:
            version, commit = committed
            assert transaction.start < version <= commit
            self._committed.append((commit, ids))
            for name, cells in transaction.own.items():
                for cell, value in cells.items():
                    self._tables[name].versions.setdefault(cell, []).append((version, commit, value))

    def _is_late_fence(self, error: ConflictError, transaction: Transaction, touched: Set[str]) -> bool:
        """Upkeep finishes each drop or change of a level that it finds under way, perhaps beside the client that began
        it (K8). Of the two, the later one may draw its fence when the change has ended, and refuse a transaction that
        began after that: it may rerun."""
        is_fence = "a table that it wrote was fenced" in str(error) and error.values["commit_ts"] > transaction.start
        self.done["late fence"] += is_fence
        return is_fence and not self._changed.isdisjoint(touched)

    def _save(self, transaction: Transaction, table: Table) -> None:
        saved = next(self._numbers)
        self._ask(transaction, "savepoint", saved)
        own, named = transaction.own, transaction.named
        transaction.saved.append(
            (saved, {name: dict(cells) for name, cells in own.items()}, {name: set(ids) for name, ids in named.items()})
        )

    def _go_back(self, transaction: Transaction, table: Table) -> None:
        if not transaction.saved or transaction.lost:
            return
        place = self._draw.randrange(len(transaction.saved))
        saved, own, named = transaction.saved[place]
        transaction.client.go_back(saved)
        self.log.append(f"{transaction.start} goes back")
        del transaction.saved[place + 1 :]
        for name, cells in own.items():
            perhaps = transaction.perhaps.setdefault(name, set())
            perhaps.update(self._tables[name].id_of(*cell) for cell in cells)
        transaction.own = {name: dict(cells) for name, cells in own.items()}
        transaction.named = {
            name: named.get(name, set()) | transaction.claimed.get(name, set())
            for name in {*named, *transaction.claimed}
        }
        self._note_state(transaction)

    def _flush(self, transaction: Transaction, table: Table) -> None:
        self._ask(transaction, "transaction", "flush")

    # Reads

    def _refused(self, transaction: Transaction, table: str) -> None:
        """R10: of a table that was dropped since the transaction began it reads nothing, not even from the next one."""
        read = self._draw.choice([("get", self._draw.choice(KEYS)), ("rows", KEYS), ("scan",)])
        try:
            found = self._ask(transaction, "table", table, *read)
        except (SnapshotTooOld, UnknownTable):
            self.done["gone"] += 1
        else:
            raise AssertionError(f"{read} of a former table found {found}")

    def _get(self, transaction: Transaction, table: Table) -> None:
        key, columns, claims = self._draw.choice(KEYS), self._columns(), self._claims(transaction)
        found = self._ask(transaction, "table", table.name, "get", key, columns, for_update=claims)
        assert found == (chosen(self._seen(transaction, table).get(key, {}), columns) or None)
        if claims:
            self._note_claim(transaction, table, [key], columns)

    def _rows(self, transaction: Transaction, table: Table) -> None:
        keys, columns, claims = self._draw.choices(KEYS, k=5), self._columns(), self._claims(transaction)
        found = self._ask(transaction, "table", table.name, "rows", keys, columns, for_update=claims)
        seen = self._seen(transaction, table)
        assert list(found.items()) == [(key, chosen(seen.get(key, {}), columns) or None) for key in dict.fromkeys(keys)]
        if claims:
            self._note_claim(transaction, table, keys, columns)

    def _scan(self, transaction: Transaction, table: Table) -> None:
        named, limit = self._range() | {"columns": self._columns()}, self._draw.choice([None, 0, 1, 5])
        found = self._ask(transaction, "table", table.name, "scan", limit=limit, **named)
        assert found == in_range(self._seen(transaction, table), named)[:limit]

    def _page(self, transaction: Transaction, table: Table) -> None:
        named, limit = self._range() | {"columns": self._columns()}, self._draw.choice([1, 3, 10])
        found, after = list[Any](), None
        while True:
            asked = named | {"limit": limit, "after": after}
            rows, after = self._ask(transaction, "table", table.name, "page", **asked)
            found += rows
            if after is None:
                break
        assert found == in_range(self._seen(transaction, table), named)

    def _arrow(self, transaction: Transaction, table: Table) -> None:
        named = self._range()
        named.pop("reverse", None)
        found = self._ask(transaction, "arrow", table.name, named)
        assert found == in_range(self._seen(transaction, table), named)

    def _open_scan(self, transaction: Transaction, table: Table) -> None:
        scan = Scan(next(self._numbers), table.name, self._range(), [self._seen(transaction, table)])
        self._ask(transaction, "open_scan", scan.number, table.name, scan.named)
        transaction.scans.append(scan)

    def _next_rows(self, transaction: Transaction, table: Table) -> None:
        """Each row as the transaction saw it at some time since the scan began; none left out that was always there."""
        scans = [scan for scan in transaction.scans if scan.table not in transaction.lost]
        if not scans:
            return
        scan = self._draw.choice(scans)
        self.log.append(f"{transaction.start} goes on with {scan.named}")
        ranges = [dict(in_range(state, scan.named)) for state in scan.states]
        for row in transaction.client.next_rows(scan.number, self._draw.choice([1, 2, 4])):
            ahead = sorted(set().union(*ranges), reverse="reverse" in scan.named)
            ahead = ahead[ahead.index(scan.last) + 1 :] if scan.last is not None else ahead
            passed = ahead if row is None else ahead[: ahead.index(row[0])]
            assert not any(all(key in each for each in ranges) for key in passed)
            if row is None:
                transaction.scans.remove(scan)
            else:
                scan.last = row[0]
                assert any(each.get(row[0]) == row[1] for each in ranges)

    # Writes

    def _claims(self, transaction: Transaction) -> bool:
        return transaction.writes and self._draw.random() < 0.2

    def _note_claim(
        self, transaction: Transaction, table: Table, keys: Iterable[bytes], columns: list[bytes] | None
    ) -> None:
        seen, ids = self._seen(transaction, table), transaction.claimed.setdefault(table.name, set())
        names = [column for column in columns or () if column.rstrip(b":") not in FAMILIES]
        for key in keys:
            ids.update(table.id_of(key, column) for column in [*chosen(seen.get(key, {}), columns), *names])
            if columns is None or len(names) < len(columns):
                ids.add((key,))
        transaction.named.setdefault(table.name, set()).update(ids)

    def _note_writes(
        self, transaction: Transaction, table: Table, key: bytes, cells: dict[bytes, Any], *, conflict: bool = True
    ) -> None:
        transaction.own.setdefault(table.name, {}).update({(key, column): cells[column] for column in cells})
        if conflict:
            transaction.named.setdefault(table.name, set()).update(table.id_of(key, column) for column in cells)
        self._note_state(transaction)

    def _note_state(self, transaction: Transaction) -> None:
        for scan in transaction.scans:
            scan.states.append(self._seen(transaction, self._tables[scan.table]))

    def _cells(self) -> dict[bytes, bytes]:
        sizes = [1] * 8 + [500, 2_000, 5_000]
        columns = self._draw.choices(COLUMNS, k=self._draw.choice([1, 1, 2, 4]))
        return {column: b"%d" % next(self._numbers) * self._draw.choice(sizes) for column in columns}

    def _put(self, transaction: Transaction, table: Table) -> None:
        key, cells, conflict = self._draw.choice(KEYS), self._cells(), self._draw.random() < 0.85
        given = dict(cells)
        self._ask(transaction, "table", table.name, "put", key, given, conflict=conflict)
        given.update(dict.fromkeys(given, b"changed behind its back"))
        self._note_writes(transaction, table, key, cells, conflict=conflict)

    def _put_expecting(self, transaction: Transaction, table: Table) -> None:
        key, cells, column = self._draw.choice(KEYS), self._cells(), self._draw.choice(COLUMNS)
        there = self._seen(transaction, table).get(key, {}).get(column)
        expected = self._draw.choice([there, there, b"wrong"])
        try:
            self._ask(transaction, "table", table.name, "put", key, cells, expect={column: expected})
        except ExpectationFailed:
            assert there != expected
            self._note_claim(transaction, table, [key], [column])
        else:
            assert there == expected
            self._note_claim(transaction, table, [key], [column])
            self._note_writes(transaction, table, key, cells)

    def _put_if_absent(self, transaction: Transaction, table: Table) -> None:
        key, cells = self._draw.choice(KEYS), self._cells()
        written = self._ask(transaction, "table", table.name, "put_if_absent", key, cells)
        assert written == self._seen(transaction, table).get(key, {}).keys().isdisjoint(cells)
        if written:
            self._note_writes(transaction, table, key, cells)

    def _increment(self, transaction: Transaction, table: Table) -> None:
        key, by = self._draw.choice(KEYS), self._draw.randrange(-5, 9)
        before = self._seen(transaction, table).get(key, {}).get(COUNTER, b"")
        total = int.from_bytes(before, "big", signed=True) + by
        assert self._ask(transaction, "table", table.name, "increment", key, COUNTER, by) == total
        self._note_writes(transaction, table, key, {COUNTER: total.to_bytes(8, "big", signed=True)})

    def _delete(self, transaction: Transaction, table: Table) -> None:
        keys, columns = self._draw.choices(KEYS, k=self._draw.choice([1, 1, 4])), self._columns()
        self._ask(transaction, "table", table.name, "delete_rows", keys, columns)
        seen = self._seen(transaction, table)
        is_named = columns is not None and not any(column.rstrip(b":") in FAMILIES for column in columns)
        for key in dict.fromkeys(keys):
            names = columns or [] if is_named else chosen(seen.get(key, {}), columns)
            self._note_writes(transaction, table, key, dict.fromkeys(names))

    def _claim(self, transaction: Transaction, table: Table) -> None:
        keys, columns = self._draw.choices(KEYS, k=2), self._columns()
        self._ask(transaction, "transaction", "claim", table.name, keys, columns)
        self._note_claim(transaction, table, keys, columns)

    # Beside transactions

    def _look_after(self, client: Any) -> None:
        table = self._tables[self._draw.choice(["t", "u"])]
        act = self._draw.choice(["compact", "sanitize", "bookmark", "changes", "changes", "drop", "alter"])
        self.log.append(f"{self._clients.index(client)} {act} {table.name}")
        self.done[act] += 1
        level = self._draw.choice(["cell", "row"])
        if act in ("compact", "sanitize"):
            client.database(act)
        elif act == "bookmark":
            self._bookmarks.append(client.database("bookmark", keep_seconds=600))
        elif act == "changes" and self._bookmarks:
            self._compare_changes(client, table)
        elif act == "drop":
            client.database("drop_table", table.name)
            self._draw.choice(self._clients).database(
                "create_table", table.name, families=FAMILIES, conflict_level=level
            )
            self._tables[table.name] = Table(table.name, level, client.database("table_info", table.name).generation)
            self._forget(table, lost=True)
        elif act == "alter" and level != table.level:
            client.database("alter_table", table.name, conflict_level=level)
            table.level = level
            self._forget(table, lost=False)

    def _forget(self, table: Table, *, lost: bool) -> None:
        """Ids of another level, or of a former table, mean nothing; its fence refuses who named them."""
        self._changed.add(table.name)
        for transaction in self._open:
            (transaction.lost if lost else transaction.altered).add(table.name)
            if lost:
                transaction.saved.clear()
            transaction.saved = [
                (saved, own, {name: ids for name, ids in named.items() if name != table.name})
                for saved, own, named in transaction.saved
            ]
            if not lost:
                if table.name in transaction.named.keys() | transaction.claimed.keys():
                    transaction.perhaps.setdefault(table.name, set())  # the fence refuses a mere claim too
                transaction.named.pop(table.name, None)
                transaction.claimed.pop(table.name, None)
        self._committed = [
            (commit, {name: each for name, each in ids.items() if name != table.name})
            for commit, ids in self._committed
        ]

    def _compare_changes(self, client: Any, table: Table) -> None:
        since, until = sorted(self._draw.choices(self._bookmarks, k=2))
        if since.start_ts <= table.generation:
            return
        told = table.changes(since.start_ts, until.start_ts + 1)
        assert client.changes(table.name, since, until) == told
        assert client.changes_in_batches(table.name, since, until) == told


def options_of(seed: int, number: int) -> dict[str, Any]:
    """Of one client: buffers and pages so small that a few rows are many."""
    draw = random.Random(f"{seed} {number}")
    change_feed.INSERTS_LEAST, change_feed.INSERTS_AT_ONCE, change_feed.ROWS_AT_ONCE = 1, draw.choice([1, 3, 50]), 2
    return {
        "flush_bytes": draw.choice([1, 150, 1_000, 1 << 20]),
        "scan_batch_rows": draw.choice([1, 2, 3, 7, 1_000]),
        "catalog_cache_seconds": draw.choice([0.0, 1_000.0]),
    }
