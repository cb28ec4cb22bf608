"""Point reads by compiled code, compared with the protocol's own rules on random histories and on hostile bytes."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from conformance import put_entry
from embedded_parts import commit_branch, set_watermark
from pyomid.coroutines import drive
from pyomid.database.driver import store_handlers
from pyomid.folder import EmbeddedStore
from pyomid.folder.native import points
from pyomid.folder.records import (
    HEADER_BYTES,
    VERSION_BYTES,
    Record,
    encode_record,
    is_whole,
    key_version,
    places_in,
    record_key,
    row_prefix,
    version_suffix,
)
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.protocol.reading import CommitCache, Snapshot, read_rows, read_settled
from pyomid.types import (
    FIRST_TIME,
    CellVersion,
    Column,
    LifeOf,
    ReadBounds,
    RowWrite,
    ShadowWrite,
    TableEntry,
    TableInfo,
    TableState,
)
from settled_rows import settled_row

pytestmark = pytest.mark.fast

BASE = 2 * FIRST_TIME
COLUMNS = (Column(b"f", b"a"), Column(b"f", b"b"), Column(b"g", b"a"), Column(b"g", b"c"))
FAMILY = Column(b"f", b"")
ROWS = (b"r", b"r\0", b"r\0\xff", b"s" * 200)
SELECTIONS = (None, (COLUMNS[0],), COLUMNS[1:3], (FAMILY,), (FAMILY, COLUMNS[3]), (Column(b"f", b"unheard of"),))


@pytest.fixture
def parts(parts: Deployment) -> Deployment:
    parts.store.create_table(TableInfo("t", (b"f", b"g")))
    return parts


def write_history(rng: random.Random, parts: Deployment) -> None:
    """Versions 50, 100 … 1000 above `BASE`: most of them committed later, some without a shadow cell, some never."""
    commits: dict[int, int] = {}
    for version in range(BASE + 50, BASE + 1050, 50):
        for row in ROWS:
            cells: dict[Column, bytes | None] = {
                column: rng.choice((b"%d" % version, b"v" * rng.randint(1, 30), None if rng.random() < 0.3 else b"x"))
                for column in rng.sample(COLUMNS, rng.randint(1, len(COLUMNS)))
            }
            if rng.random() < 0.05:
                cells[FAMILY] = None
            if rng.random() < 0.4:
                continue
            parts.store.write_cells("t", version, [RowWrite(row, tuple(cells.items()))])
            fate = rng.random()
            if fate < 0.9:
                commit_ts = version + rng.randrange(1, 400)
                names = [CellVersion(row, *column, version) for column in cells]
                parts.store.write_shadow_cells("t", [ShadowWrite(name, commit_ts) for name in names])
            elif fate < 0.95:
                commits[version] = version + rng.randrange(1, 400)
    for version, commit_ts in commits.items():
        commit_branch(parts, version, commit_ts)


@pytest.mark.parametrize("seed", range(15))
def test_a_settled_read_returns_what_the_rules_return(parts: Deployment, seed: int) -> None:
    rng = random.Random(seed)
    write_history(rng, parts)
    handlers = store_handlers(parts)
    handlers[effects.Heal] = handlers[effects.DeleteOrphans] = lambda _: None
    for start_ts in (*(BASE + each for each in rng.sample(range(1, 1500), 8)), BASE + 500, BASE + 1000):
        own = frozenset({start_ts}) if start_ts % 50 == 0 else frozenset()
        snapshot = Snapshot(start_ts, 0, own, expired_to=rng.choice((0, 0, (BASE + start_ts) // 2)))
        for columns in SELECTIONS:
            asked = LifeOf("t"), ROWS, columns, snapshot
            expected = drive(read_rows(*asked, CommitCache()), handlers)
            assert drive(read_settled(*asked, CommitCache()), handlers) == expected
            found, *validity = parts.store.read_settled("t", ROWS, columns, snapshot.bounds, snapshot.expired_to)
            assert validity == [0, 0]
            cells = parts.store.read_rows("t", ROWS, columns, bounds=snapshot.bounds)
            for row, rule, row_cells, seen in zip(ROWS, expected, cells, found, strict=True):
                assert seen in (None, rule), row
                certain = settled_row(row_cells, snapshot.bounds, snapshot.expired_to)
                assert certain in (None, rule), row
                if certain is not None and not any(not cell.qualifier for cell in row_cells):
                    assert seen == certain, row


def test_rows_w_and_entry_are_of_one_state(parts: Deployment) -> None:
    parts.store.write_cells("t", BASE + 50, [RowWrite(b"r", ((COLUMNS[0], b"1"),))])
    parts.store.write_shadow_cells("t", [ShadowWrite(CellVersion(b"r", *COLUMNS[0], BASE + 50), BASE + 60)])
    bounds = Snapshot(BASE + 100, 0).bounds
    assert parts.store.read_settled("t", [b"r", b"no"], None, bounds, 0) == ([{COLUMNS[0]: b"1"}, {}], 0, 0)
    set_watermark(parts, 90)
    assert parts.store.read_settled("t", [b"r"], None, bounds, 0) == ([{COLUMNS[0]: b"1"}], 90, 0)
    assert parts.store.read_settled("t", [b"r"], None, bounds, BASE + 60) == ([{}], 90, 0)
    entry = put_entry(parts.catalog, TableInfo("t", (b"f",), generation=70))
    assert parts.store.read_settled("t", [b"r"], None, bounds, BASE + 60) == ([{}], 90, 70)
    parts.catalog.change_entry(entry, TableEntry(entry.info, TableState.DROPPING, "gone"))
    assert parts.store.read_settled("t", [b"r"], None, bounds, BASE + 60) == ([{}], 90, 0)


def test_a_column_of_another_process_is_left_to_the_rules(parts: Deployment, tmp_path: Path) -> None:
    bounds = Snapshot(100, 0).bounds
    assert parts.store.read_settled("t", [b"r"], COLUMNS[:1], bounds, 0) == ([{}], 0, 0)
    other = EmbeddedStore(tmp_path)
    other._environment = parts.store._environment  # type: ignore[attr-defined]
    other.write_cells("t", 50, [RowWrite(b"r", ((COLUMNS[1], b"2"), (COLUMNS[0], b"1")))])
    other.write_shadow_cells("t", [ShadowWrite(CellVersion(b"r", *COLUMNS[0], 50), 60)])
    expected = {COLUMNS[0]: b"1", COLUMNS[1]: b"2"}
    assert parts.store.read_settled("t", [b"r"], None, bounds, 0) == ([expected], 0, 0)


# Hostile bytes


class Cursor:
    """LMDB's cursor over records that are not stored anywhere."""

    def __init__(self, records: dict[bytes, bytes]) -> None:
        self._records, self._at = sorted(records.items()), 0

    def set_range(self, key: bytes) -> bool:
        self._at = bisect_left(self._records, (key,))
        return self._at < len(self._records)

    def item(self) -> tuple[bytes, bytes]:
        return self._records[self._at]

    def next(self) -> bool:
        self._at += 1
        return self._at < len(self._records)


PREFIX = b"\0\0\0\7"


def plain_settled_row(
    records: dict[bytes, bytes], row: bytes, kinds: bytes, bounds: ReadBounds, expired_to: int
) -> dict[Column, bytes] | None:
    """The reference implementation of `settled_rows`, for one row."""
    found: dict[Column, bytes] = {}
    wanted = {number for number, kind in enumerate(kinds, 1) if kind == points.WANTED}
    needed = {number for number, kind in enumerate(kinds, 1) if kind != points.UNWANTED}
    ended: set[int] = set()
    for key, value in sorted(records.items()):
        version = key_version(key)
        if key[:-VERSION_BYTES] != row_prefix(PREFIX, row) or version >= bounds.below:
            continue
        if ended == wanted:
            break
        numbers = numbers_in(value)
        passes = numbers is not None and all(0 < n <= len(kinds) and n not in needed - ended for n in numbers)
        if ended and passes:
            continue
        if not is_whole(key, value):
            return None
        if not 0 < (commit_ts := int.from_bytes(value[4:HEADER_BYTES], "little", signed=True)) < bounds.committed_below:
            if (version >= bounds.committed_below or commit_ts <= 0) and not passes:
                return None
            continue
        if numbers is None or not all(0 < number <= len(kinds) for number in numbers):
            return None
        if needed.intersection(numbers) - wanted or any(numbers.count(n) > 1 for n in wanted - ended):
            return None
        for number, at, length in places_in(value, HEADER_BYTES):
            if number in wanted - ended and length >= 0 and not FIRST_TIME <= commit_ts <= expired_to:
                found[COLUMNS[number - 1]] = value[at : at + length]
        ended |= wanted.intersection(numbers)
    return found


def numbers_in(value: bytes) -> list[int] | None:
    """The columns of a record; None if its cells are malformed."""
    try:
        places = list(places_in(value, HEADER_BYTES)) if len(value) > HEADER_BYTES else None
    except (IndexError, ValueError):
        return None
    if places is None or any(length > len(value) - at for _, at, length in places):
        return None
    return [number for number, _, _ in places]


def random_records(rng: random.Random, row: bytes) -> dict[bytes, bytes]:
    records = {}
    for version in rng.sample(range(BASE + 50, BASE + 1000, 50), rng.randint(1, 6)):
        cells: dict[int, bytes | None] = {
            number: rng.choice((None, b"v", rng.randbytes(rng.randint(1, 200))))
            for number in rng.sample(range(1, 6), rng.randint(1, 4))
        }
        key = record_key(PREFIX, row, version)
        commit_ts = rng.choice((0, version + 10, version + 10, version + 500))
        records[key] = encode_record(key, Record(commit_ts, cells))
    return records


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_record_is_left_to_the_rules(seed: int) -> None:
    """A length that lies leads no further than the record's end; the checksum is right in half of the cases."""
    rng = random.Random(seed)
    answers = {True: 0, False: 0}
    for _ in range(100):
        row = rng.choice(ROWS)
        records = random_records(rng, row)
        key = rng.choice(list(records))
        value = bytearray(records[key])
        for _ in range(rng.choice((0, 1, 1, 3))):
            value[rng.randrange(len(value))] = rng.choice((0, 1, 2, 15, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        cut = bytes(value[: rng.randrange(len(value) + 1)] if rng.random() < 0.2 else value)
        records[key] = with_checksum(key, cut) if rng.random() < 0.7 else cut
        kinds = bytes(rng.choices((points.WANTED, points.UNWANTED, points.TOMBSTONE_OF_WANTED), (8, 2, 1), k=4))
        bounds, expired_to = (
            ReadBounds(0, BASE + rng.randrange(1, 1500), BASE + rng.randrange(1, 1500)),
            rng.choice((0, BASE + 400)),
        )
        [found] = points.settled_rows(
            Cursor(records), PREFIX, [row], points.Selection(kinds, COLUMNS), bounds, expired_to
        )
        assert found == plain_settled_row(records, row, kinds, bounds, expired_to), (records, kinds, bounds)
        answers[found is None] += 1
    assert min(answers.values()) > 10


def with_checksum(key: bytes, value: bytes) -> bytes:
    return crc32(value[4:], crc32(key)).to_bytes(4, "little") + value[4:]


def test_what_is_no_record_key_ends_the_row() -> None:
    selection, bounds = points.Selection(b"\1", COLUMNS[:1]), ReadBounds(below=100, committed_below=100)
    strange = {row_prefix(PREFIX, b"r") + version_suffix(50)[:7]: b"", row_prefix(PREFIX, b"r")[:-1] + b"\1": b""}
    assert points.settled_rows(Cursor(strange), PREFIX, [b"r"], selection, bounds, 0) == [{}]
    with pytest.raises(ValueError, match="2 kinds of 1 columns"):
        points.Selection(b"\1\1", COLUMNS[:1])
    many = points.Selection(b"\1" * 2000, COLUMNS[:1] * 2000)
    assert points.settled_rows(Cursor(strange), PREFIX, [b"r", b"s"], many, bounds, 0) == [{}, {}]
    answers: list[Any] = points.settled_rows(Cursor(strange), PREFIX, [b"r" * 600], selection, bounds, 0)
    assert answers == [None]
