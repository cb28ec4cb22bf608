"""Commit requests packed and decided by compiled code, compared with the reference on random histories and on damaged
requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyomid.errors import Misuse, OmidError
from pyomid.folder import EmbeddedStore, FolderOptions, FolderSession, folder_state
from pyomid.folder.decision import Decision, Outcome, pack_request, pack_rows, pack_table
from pyomid.folder.layout import DATABASES, EPOCH
from pyomid.folder.lmdb_files import UNNAMED, records_in
from pyomid.folder.native import commits
from pyomid.folder.records import LIMITS
from pyomid.types import (
    FIRST_TIME,
    TIMESTAMP_STEP,
    Column,
    CommitReply,
    ConflictLevel,
    RowWrite,
    TableChanges,
    TableInfo,
)

pytestmark = pytest.mark.fast

COLUMNS = [Column(b"f", b"%d" % number) for number in range(12)]
ROWS = [b"a", b"a\0", b"a\0\xff", b"b" * 90, *(b"%d" % number for number in range(30))]


class CountedClock:
    """A wall clock that stands: timestamps count up."""

    refused_ns = 0

    def now_ns(self, clock: int) -> int:
        return clock

    def next_timestamp(self, clock: int) -> int:
        return max(clock, FIRST_TIME) + 2 * TIMESTAMP_STEP


class Folder:
    """A folder with the tables t and u. `is_compiled`: ordinary requests are decided by compiled code."""

    def __init__(self, path: Path, *, is_compiled: bool) -> None:
        self.store = EmbeddedStore(path)
        self.environment = self.store.environment
        self.environment.wall = CountedClock()  # type: ignore[assignment]
        self.session = FolderSession(self.environment, FolderOptions())
        self.decision: Decision = self.store._decision
        self.is_compiled = is_compiled
        self.left_to_reference = 0
        for name in ("t", "u"):
            self.store.create_table(TableInfo(name, (b"f",)))
            self.store._allocate(name, COLUMNS[:10])
        reference = self.decision.decide_any

        def counted(transaction: Any, packed: bytes, *, is_foreign: bool = False) -> Outcome:
            self.left_to_reference += 1
            return reference(transaction, packed, is_foreign=is_foreign)

        self.decision.decide_any = counted  # type: ignore[method-assign]

    def pack(self, start_ts: int, changes: list[TableChanges], branches: tuple[int, ...] = ()) -> bytes:
        return self.store.pack_commit(start_ts, branches, changes)

    def decide(self, *packed: bytes) -> list[CommitReply | str]:
        """Decide requests in one transaction."""

        def decide(transaction: Any) -> list[Outcome]:
            if self.is_compiled:
                return self.decision.decide(transaction, packed)
            return [self.decision.decide_any(transaction, each) for each in packed]

        outcomes = self.environment.write(decide)
        return [str(each) if isinstance(each, OmidError) else each for each in outcomes]

    def records(self) -> list[list[tuple[bytes, bytes]]]:
        """Return all records but the database's id."""

        def dump(transaction: Any) -> list[list[tuple[bytes, bytes]]]:
            found = []
            for name in DATABASES:
                with transaction.cursor(self.environment.databases[name]) as cursor:
                    records = records_in(cursor, DATABASES if name == UNNAMED else ())
                    found.append([each for each in records if each[0] not in (b"id", b"note")])
            return found

        return self.environment.read(dump)

    def clock(self) -> int:
        return self.environment.read(folder_state.read_state, self.environment.databases[EPOCH]).clock

    def close(self) -> None:
        self.session.close()
        self.store.close()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Folder, Folder]]:
    both = Folder(tmp_path / "compiled", is_compiled=True), Folder(tmp_path / "reference", is_compiled=False)
    yield both
    for each in both:
        each.close()


def some_rows(rng: random.Random, columns: list[Column]) -> dict[bytes, dict[Column, bytes | None]]:
    values = (b"v", b"", b"long" * 50, None) if rng.random() < 0.02 else (b"v", b"w" * 13, b"x" * 200, None)
    return {
        row: {column: rng.choice(values) for column in rng.sample(columns, rng.choice((1, 1, 2, len(columns))))}
        for row in rng.sample(ROWS, rng.choice((1, 1, 1, 4)))
    }


def some_changes(rng: random.Random, name: str, levels: tuple[ConflictLevel, ...]) -> TableChanges:
    rows = some_rows(rng, COLUMNS[:10])
    free = [(row, column) for row, cells in rows.items() for column in cells if rng.random() < 0.3]
    claims = [(rng.choice(ROWS), rng.choice((None, COLUMNS[0])))]
    return TableChanges(
        name, levels, rows, claims if rng.random() < 0.01 else (), frozenset(free) if rng.random() < 0.1 else ()
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_request_decided_by_compiled_code_leaves_what_the_reference_leaves(
    folders: tuple[Folder, Folder], seed: int
) -> None:
    rng = random.Random(seed)
    levels = rng.choice([(ConflictLevel.CELL,), (ConflictLevel.ROW,), (ConflictLevel.CELL, ConflictLevel.ROW)])
    reasons, total = set(), 0
    for _ in range(120):
        clock = folders[0].clock()
        start_ts = max(1, clock + TIMESTAMP_STEP - rng.choice((0, 0, 0, 300, 1000)))
        kind = rng.random()
        if kind < 0.1:
            for each in folders:
                each.environment.starts.released = clock - 200
        elif kind < 0.12:
            fences = {each.session.fence(7) for each in folders}
            assert len(fences) == 1
        elif kind < 0.13:
            rows = [RowWrite(row, tuple(cells.items())) for row, cells in some_rows(rng, COLUMNS[:3]).items()]
            rows = [each for each in rows if all(value != b"" for _, value in each.cells)]
            for each in folders:
                each.store.write_cells("t", each.session.version_of(start_ts), rows)
        requests = []
        for _ in range(rng.choice((1, 1, 4))):
            changes = [some_changes(rng, name, levels) for name in rng.choice((["t"], ["t"], ["u"], ["t", "u"]))]
            packed = []
            for each in folders:
                try:
                    packed.append(each.pack(start_ts, changes))
                except Misuse as error:
                    packed.append(str(error).encode())
            assert packed[0] == packed[1]
            requests.append(packed[0])
        total += len(requests)
        outcomes = [each.decide(*requests) for each in folders]
        assert outcomes[0] == outcomes[1]
        reasons.update(each.reason if isinstance(each, CommitReply) else "error" for each in outcomes[0])
        assert folders[0].records() == folders[1].records()
    assert len(reasons) > 1
    assert folders[0].left_to_reference < total * 0.7, "most requests are ordinary"


def test_a_damaged_request_is_decided_as_by_the_reference(folders: tuple[Folder, Folder]) -> None:
    rng = random.Random(5)
    for _ in range(400):
        start_ts = folders[0].clock() + TIMESTAMP_STEP
        changes = [TableChanges(name, (ConflictLevel.CELL,), some_rows(rng, COLUMNS[:10])) for name in ("t", "u")]
        try:
            whole = folders[0].pack(start_ts, changes)
        except Misuse:
            continue
        damaged = bytearray(whole)
        heads = min(len(damaged), 80)
        for _ in range(rng.choice((0, 1, 1, 3))):
            damaged[rng.randrange(8, heads)] = rng.choice((0, 1, 2, 127, 255))
        packed = bytes(damaged[: rng.choice((len(damaged), len(damaged), rng.randrange(len(damaged))))])
        outcomes = [each.decide(packed) for each in folders]
        assert outcomes[0] == outcomes[1]
        assert folders[0].records() == folders[1].records()


@pytest.mark.parametrize("seed", range(30))
def test_rows_packed_by_compiled_code_are_those_of_the_reference(folders: tuple[Folder, Folder], seed: int) -> None:
    rng, store = random.Random(seed), folders[0].store
    table = store.environment.read(store._tables.loaded, "t", COLUMNS[:10])
    for _ in range(30):
        changes = TableChanges("t", (ConflictLevel.CELL,), some_rows(rng, COLUMNS[: rng.choice((10, 10, 12))]))
        packed = commits.packed_rows(changes.rows, table.numbers, LIMITS.value_bytes_max)
        is_ordinary = all(
            column in table.numbers and value != b""
            for cells in changes.rows.values()
            for column, value in cells.items()
        )
        assert (packed is not None) == is_ordinary
        if packed is not None:
            assert packed == pack_rows(table, changes)
            request = pack_request(50, [pack_table(table, changes, packed)])
            assert request == pack_request(50, [pack_table(table, changes, pack_rows(table, changes))])


def test_rows_that_need_the_full_checks_are_left_to_the_reference(folders: tuple[Folder, Folder]) -> None:
    store = folders[0].store
    store._allocate("t", [Column(b"f", b"")])
    table = store.environment.read(store._tables.loaded, "t", [*COLUMNS[:10], Column(b"f", b"")])

    def packed(row: bytes, column: Column, value: bytes | None) -> bytes | None:
        return commits.packed_rows({row: {column: value}}, table.numbers, 100)

    assert packed(b"r" * 498, COLUMNS[0], b"v" * 100) is not None
    assert packed(b"r" * 499, COLUMNS[0], b"v") is None
    assert packed(b"r" * 497 + b"\0", COLUMNS[0], b"v") is None
    assert packed(b"", COLUMNS[0], b"v") is None
    assert packed(b"r", COLUMNS[0], b"") is None
    assert packed(b"r", COLUMNS[0], b"v" * 101) is None
    assert packed(b"r", COLUMNS[11], b"v") is None
    assert packed(b"r", Column(b"f", b""), b"v") is None
    assert packed(b"r", Column(b"f", b""), None) is not None
    assert commits.packed_rows({b"r": {}}, table.numbers, 100) is None
