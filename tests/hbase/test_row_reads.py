"""Point reads fetch only what their snapshot needs, in replies of limited size."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imitated_regions import TABLE, ImitatedRegions, ImitatedRows

import pyomid.omid.hbase.rpc.connection as hbase_connection
from portions import examples
from pyomid.omid.hbase.codec.batches import cells_of
from pyomid.omid.hbase.codec.keyvalues import KeyValue
from pyomid.omid.hbase.codec.layout import shadow_qualifier, timestamp_bytes
from pyomid.omid.hbase.regions import row_reads
from pyomid.omid.hbase.regions.calls import Budget
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.row_reads import (
    SCANS_FIRST,
    SCANS_MAX,
    WantedCells,
    absent_cells,
    certain_cells,
    read_rows,
)
from pyomid.omid.hbase.regions.scan_cursor import ScanCursor, ScanSpec
from pyomid.omid.hbase.rpc.frames import Reply
from pyomid.omid.hbase.rpc.hbase_pb2 import Scan, ScanRequest
from pyomid.omid.hbase.store import HBaseStore
from pyomid.protocol.visibility import visible_point
from pyomid.types import CellVersion, Column, KeyRange, ReadBounds, RowWrite, ShadowWrite, TableInfo

F = b"f"
Q = Column(F, b"q")
MIB = 1 << 20


# ── What a read of some versions says ────────────────────────────────────────────────────────────────────────────


@st.composite
def rows(draw: st.DrawFn) -> list[KeyValue]:
    """As HBase keeps a row: by name, newest first; shadow cells missing, and without their cells."""
    cells = []
    for qualifier in draw(st.sets(st.sampled_from([b"", b"a", b"b"]), min_size=1)):
        for start in draw(st.sets(st.integers(1, 20), max_size=12)):
            value = b"" if draw(st.integers(0, 3)) == 0 else b"v%d" % start
            cells.append(KeyValue(b"r", F, qualifier, start * 50, value))
        for start in draw(st.sets(st.integers(1, 20), max_size=12)):
            commit = timestamp_bytes(start * 50 + draw(st.sampled_from([50, 200])))
            cells.append(KeyValue(b"r", F, shadow_qualifier(qualifier), start * 50, commit))
    return sorted(cells, key=lambda each: (each.qualifier, -each.timestamp))


def read_of(row: list[KeyValue], versions: int, bounds: ReadBounds) -> list[KeyValue]:
    """What a get with these bounds answers."""
    taken: dict[bytes, int] = {}
    found = []
    for each in row:
        if bounds.holds(each.timestamp) and taken.setdefault(each.qualifier, 0) < versions:
            taken[each.qualifier] += 1
            found.append(each)
    return found


@pytest.mark.fast
@settings(max_examples=examples(300), deadline=None)
@given(row=rows(), reader=st.integers(0, 25).map(lambda n: n * 50), versions=st.integers(1, 5))
def test_a_limited_read_equals_a_read_of_the_whole_row(row: list[KeyValue], reader: int, versions: int) -> None:
    bounds = ReadBounds(below=reader, committed_below=reader)
    whole = {cell.name: cell for cell in cells_of(row)}
    found = certain_cells(read_of(row, versions, bounds), versions, bounds)
    enough = certain_cells(read_of(row, 50, bounds), 50, bounds)
    assert enough is not None
    assert visible_point(enough, reader) == visible_point(cells_of(row), reader)
    if found is not None:
        assert all(whole[cell.name] == cell for cell in found), "a cell that lost its shadow cell looks like an orphan"
        assert visible_point(found, reader) == visible_point(cells_of(row), reader)
        assert set(bounds.needed(whole.values())) <= set(found)


@pytest.mark.fast
def test_no_scan_has_a_key_longer_than_hbase_accepts() -> None:
    """The least key behind the longest row is one byte too long: the row itself is named, and left out or in."""
    longest = b"r" * 32_767
    operations = ImitatedRegions({}).operations()
    for key_range, expected in (
        (KeyRange(longest, longest + b"\0"), (longest, True, longest, True)),
        (KeyRange(longest + b"\0", None), (longest, False, b"", False)),
        (KeyRange(b"a", b"b"), (b"a", True, b"b", False)),
    ):
        steps = ScanCursor(operations, ScanSpec(TABLE, key_range)).send(Budget("scan", 60.0))
        ((_, call),) = steps.send(None).sends  # type: ignore[attr-defined]
        scan = ScanRequest.FromString(call.parameter).scan
        assert (scan.start_row, scan.include_start_row, scan.stop_row, scan.include_stop_row) == expected


# ── Regions imitated ─────────────────────────────────────────────────────────────────────────────────────────────


class Changing:
    """Rows that are written, shortened and dropped while they are read, in regions that split, merge and move."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.names = [b"r%d" % number for number in range(chance.randint(1, 12))]
        self.regions = ImitatedRows({}, chance=chance, failures=chance.choice((0.0, 0.0, 0.2)))
        self.regions.happens = self.change
        self.written: dict[bytes, list[int]] = {name: [] for name in self.names}
        """The generations that each row had; 0 is none."""
        for name in self.names:
            self.write(name)

    def write(self, row: bytes) -> None:
        """All of it at once: every cell of a generation says which one, and how many it has."""
        generation = len(self.written[row]) + 1
        count = self.chance.choice((0, 1, 2, 3, 4, 12, 13, 40))
        self.written[row].append(generation if count else 0)
        columns = self.chance.randint(1, 3)
        cells = [
            KeyValue(row, F, b"q%d" % column, 50 * (count - at), b"%d/%d" % (generation, count * columns))
            for column in range(columns)
            for at in range(count)
        ]
        self.regions.cells[row] = cells

    def change(self) -> None:
        if self.chance.random() < 0.3:
            self.write(self.chance.choice(self.names))
        if self.chance.random() < 0.2:
            self.regions.borders = sorted(self.chance.sample(self.names, self.chance.randint(0, len(self.names))))


@pytest.mark.fast
@pytest.mark.parametrize("committed_below", [0, 5000])
def test_each_row_comes_from_one_atomic_read(committed_below: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two looks between which a compactor came, a tombstone would be missing and what it hid be there."""
    monkeypatch.setattr(row_reads, "SCAN_BYTES", 200)
    for seed in range(400):
        world = Changing(seed)
        operations = world.regions.operations()
        asked = world.chance.choices([*world.names, b"nothing"], k=world.chance.randint(1, 8))
        wanted = WantedCells(TABLE, (), ReadBounds(committed_below=committed_below))
        steps = read_rows(operations, wanted, asked, lambda: Budget("read", 60.0))
        for row, cells in zip(asked, world.regions.drive(operations, steps), strict=True):
            assert {cell.row for cell in cells} <= {row}, seed
            told = {cell.value for cell in cells}
            assert len(told) <= 1, f"seed {seed}: {row!r} is of two looks"
            if not told:
                assert row == b"nothing" or 0 in world.written[row], seed
            else:
                generation, count = map(int, (told.pop() or b"").split(b"/"))
                assert generation in world.written[row], seed
                assert len(cells) == count, f"seed {seed}: nothing is committed, so every version is needed"
        assert world.regions.answered_bytes_max < 200 + 60, seed


def of_sizes(sizes: list[int], **more: Any) -> tuple[ImitatedRows, RegionOperations, list[bytes]]:
    """Rows of one value each, so many bytes long."""
    names = [b"r%04d" % number for number in range(len(sizes))]
    cells = {row: [KeyValue(row, F, b"q", 50, bytes(size))] for row, size in zip(names, sizes, strict=True)}
    regions = ImitatedRows({}, cells=cells, **more)
    operations = regions.operations()
    return regions, operations, names


@pytest.mark.fast
def test_more_small_rows_than_large_ones_are_read_at_once() -> None:
    """What the server, and the reader, hold at a time is bounded by the sizes seen."""
    wanted = WantedCells(TABLE, (), ReadBounds())
    for size, most in ((8, SCANS_MAX), (MIB, 8), (9 * MIB, SCANS_FIRST)):
        regions, operations, names = of_sizes([size] * 30)
        found = regions.drive(operations, read_rows(operations, wanted, names, lambda: Budget("read", 60.0)))
        assert [cell.row for (cell,) in found] == names
        assert regions.on_their_way_max == most, size


@pytest.mark.fast
def test_after_a_failure_reads_go_one_at_a_time() -> None:
    """A region server may have ended by them; the next one shall not."""
    regions, operations, names = of_sizes([8] * 60)
    beside: list[int] = []
    """For each call answered, how many others were on their way."""

    def end_once() -> None:
        beside.append(regions.on_their_way)
        regions.failures = 1.0 if len(beside) in range(20, 20 + 2 * SCANS_MAX, 2) else 0.0

    regions.happens = end_once
    wanted = WantedCells(TABLE, (), ReadBounds())
    steps = read_rows(operations, wanted, names, lambda: Budget("read", 60.0))
    assert [cell.row for (cell,) in regions.drive(operations, steps)] == names
    assert len(beside) == len(names) + SCANS_MAX, "all that were on their way were lost, and went again"
    again = range(SCANS_MAX - 1, -1, -1)
    assert beside[20 : 20 + 2 * SCANS_MAX : 2] == list(again), "each beside none but those that wait to go again"
    assert beside[20 + 2 * SCANS_MAX - 1] == 0
    assert max(beside[-8:]) > 0


@pytest.mark.fast
def test_a_row_of_many_replies_is_read_to_its_end() -> None:
    """A scanner that turned to a stream would read a block of each file anew, beside those that it holds."""
    scans: list[Any] = []

    class Noting(ImitatedRows):
        def _found(self, request: ScanRequest, region: Region) -> Reply:
            scans.append(request)
            return super()._found(request, region)

    row = [KeyValue(b"r", F, b"q%d" % column, 50, bytes(MIB)) for column in range(9)]
    regions = Noting({}, cells={b"r": row})
    operations = regions.operations()
    steps = read_rows(operations, WantedCells(TABLE, (), ReadBounds()), [b"r"], lambda: Budget("read", 60.0))
    assert len(regions.drive(operations, steps)[0]) == 9
    assert [request.close_scanner for request in scans] == [True, False], "the second one stays open"
    assert {request.scan.readType for request in scans} == {Scan.PREAD}


@pytest.mark.fast
@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_absent_cells_are_the_missing_ones(data: st.DataObject) -> None:
    """Whatever lies beside them: other versions, other columns, their shadow cells."""
    names = [
        CellVersion(b"r%d" % row, F, b"q%d" % column, version)
        for row in range(3)
        for column in range(7)
        for version in (50, 100)
    ]
    there = data.draw(st.sets(st.sampled_from(names)))
    asked = data.draw(st.lists(st.sampled_from(names), unique=True))
    cells: dict[bytes, list[KeyValue]] = {}
    for name in sorted(names, key=lambda each: (each.row, each.qualifier, -each.version)):
        if name in there:
            cells.setdefault(name.row, []).append(KeyValue(name.row, F, name.qualifier, name.version, b"v"))
    for name in asked:
        shadow = KeyValue(name.row, F, shadow_qualifier(name.qualifier), name.version, timestamp_bytes(200))
        cells.setdefault(name.row, []).append(shadow)
    regions = ImitatedRows({}, cells=cells, borders=[b"r1"], failures=0.1)
    operations = regions.operations()
    steps = absent_cells(operations, TABLE, asked, lambda: Budget("look", 60.0))
    assert set(regions.drive(operations, steps)) == set(asked) - there
    assert regions.answered_bytes_max < 1000


@pytest.mark.fast
def test_large_values_are_checked_one_at_a_time() -> None:
    """A server holds what it leaves out of an answer until it has answered."""
    for size, most in ((8, SCANS_MAX), (9 * MIB, 1)):
        regions, operations, names = of_sizes([size] * 60)
        asked = [CellVersion(row, F, b"q", 50) for row in names]
        steps = absent_cells(operations, TABLE, asked, lambda: Budget("look", 60.0))
        assert regions.drive(operations, steps) == []
        assert regions.on_their_way_max == most
        assert regions.answered_bytes_max < 100


@pytest.mark.fast
@pytest.mark.parametrize("counts_unwanted", [False, True])
def test_a_scan_returns_its_last_row_wherever_a_reply_ends(counts_unwanted: bool) -> None:
    """A large cell that was asked for fills the answer, and others of its row, which were not, lie behind it: else the
    last row of a table is not there for who asks for some columns."""
    for count in range(1, 12):
        cells = {
            b"r%02d" % row: [KeyValue(b"r%02d" % row, F, b"q", 50 * (4 - at), b"v") for at in range(row % 4 + 1)]
            for row in range(count)
        }
        for size in range(1, 200, 7):
            regions = ImitatedRows({}, cells=cells, counts_unwanted=counts_unwanted, borders=[b"r03", b"r05"])
            operations = regions.operations()
            for is_fresh in (False, True):
                spec = ScanSpec(TABLE, KeyRange(), max_versions=9, bytes_per_call=size, is_fresh=is_fresh)
                found = regions.scan(operations, spec)
                assert found == {row: len(its) for row, its in cells.items()}, (count, size, is_fresh)


# ── Over a real HBase ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each answer that this process gets from HBase."""
    sizes: list[int] = []
    decode_reply = hbase_connection.decode_reply

    def noted(frame: memoryview):  # type: ignore[no-untyped-def]
        sizes.append(len(frame))
        return decode_reply(frame)

    monkeypatch.setattr(hbase_connection, "decode_reply", noted)
    return sizes


def committed(store: HBaseStore, table: str, version: int, write: RowWrite) -> None:
    store.write_cells(table, version, [write])
    names = [CellVersion(write.row, *column, version) for column, _ in write.cells]
    store.write_shadow_cells(table, [ShadowWrite(name, version + 1) for name in names])


def test_a_point_read_fetches_few_of_many_versions(store: HBaseStore, bare_table: str, answers: list[int]) -> None:
    """Sixty versions of nine megabytes, put into one answer, ended the region server."""
    for version in range(50, 1050, 50):
        committed(store, bare_table, version, RowWrite(b"r", ((Q, b"%04d" % version + bytes(MIB)),)))
    answers.clear()
    for reader in (301, 5000):
        bounds = ReadBounds(below=reader, committed_below=reader)
        for rows_read in ([b"r"], [b"r", b"s"]):
            found = store.read_rows(bare_table, rows_read, [Q], bounds=bounds)[0]
            assert max(cell.version for cell in found) == (300 if reader == 301 else 1000)
            assert len(found) <= 3
    assert max(answers) < 4 * MIB
    whole = store.read_rows(bare_table, [b"r"])[0]
    assert [cell.version for cell in sorted(whole, key=lambda each: each.version)] == list(range(50, 1050, 50))
    assert max(answers) < 4 * MIB, "all versions come in bounded answers, too"


def test_a_version_deep_below_others_is_found(store: HBaseStore, bare_table: str) -> None:
    """Nobody knows yet whether the newer ones are committed."""
    committed(store, bare_table, 50, RowWrite(b"r", ((Q, b"old"),)))
    for version in range(100, 2000, 50):
        store.write_cells(bare_table, version, [RowWrite(b"r", ((Q, b"%d" % version),))])
    bounds = ReadBounds(below=5000, committed_below=5000)
    for rows_read in ([b"r"], [b"s", b"r"]):
        found = store.read_rows(bare_table, rows_read, bounds=bounds)[-1]
        assert visible_point(found, 5000) == {Q: b"old"}
        assert len(found) == 39


def test_a_wide_row_comes_in_limited_replies(store: HBaseStore, bare_table: str, answers: list[int]) -> None:
    wide = tuple((Column(F, b"q%02d" % number), b"%02d" % number + bytes(MIB)) for number in range(12))
    committed(store, bare_table, 50, RowWrite(b"r", wide))
    narrow = tuple((Column(F, b"q%04d" % number), b"v") for number in range(256))
    committed(store, bare_table, 50, RowWrite(b"s", narrow))
    answers.clear()
    bounds = ReadBounds(below=5000, committed_below=5000)
    assert visible_point(store.read_rows(bare_table, [b"r"], bounds=bounds)[0], 5000) == dict(wide)
    assert max(answers) < 4 * MIB
    many = store.read_rows(bare_table, [b"s", b"nothing", b"s"], bounds=bounds)
    assert [visible_point(cells, 5000) for cells in many] == [dict(narrow), {}, dict(narrow)]
    scanned = [list(batch.row_cells(row)) for batch in store.scan(bare_table, KeyRange()) for row in range(batch.rows)]
    assert [visible_point(cells, 5000) for cells in scanned] == [dict(wide), dict(narrow)]


def test_split_points_work_with_several_cells_in_the_first_row(store: HBaseStore, table_name: str) -> None:
    """Asked for one byte, HBase answers with a part of that row: taken for no row, the table was one piece."""
    store.create_table(TableInfo(table_name, (F,)))
    wide = tuple((Column(F, b"q%d" % number), b"v") for number in range(3))
    store.write_cells(table_name, 50, [RowWrite(b"a", wide), RowWrite(b"z", wide)])
    points = store.split_points(table_name, KeyRange(stop=b"zz"), 2)
    assert points
    assert all(b"a" < point < b"zz" for point in points)
