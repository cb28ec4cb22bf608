"""Long scans with parallel streams return every row once, in order, whatever happens to the regions."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imitated_regions import SERVER, TABLE, ImitatedRegions

from portions import examples
from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import decode
from pyomid.omid.hbase.regions import parallel_scan
from pyomid.omid.hbase.regions.admin import FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.regions.calls import Budget
from pyomid.omid.hbase.regions.locations import META_TABLE, meta_region
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.parallel_scan import CALLS_AHEAD, KeyScale, ParallelScan
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.store import HBaseStore
from pyomid.types import Column, KeyRange, RowWrite, TableInfo
from region_admin import OperatorsAdmin

Q = Column(b"f", b"q")


# ── guessing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def scale_of(*keys: bytes) -> KeyScale:
    scale = KeyScale()
    for key in keys:
        scale.learn(key)
    return scale


@pytest.mark.parametrize(
    ("start", "first", "last", "expected"),
    [
        (b"row0999", b"row0900", b"row0999", b"row1098"),
        (b"user:0950:x", b"user:0900:x", b"user:0950:x", b"user:1000:x"),
        (b"3f", b"30", b"3f", b"4e"),
        (b"\x00\x00\xff\x01", b"\x00\x00\x80\x01", b"\x00\x00\xff\x01", b"\x00\x01\x7e\x01"),
    ],
)
def test_key_distances_use_the_digits_of_the_keys(start: bytes, first: bytes, last: bytes, expected: bytes) -> None:
    assert scale_of(start, first, last).ahead(start, first, last, 1.0) == expected


def test_there_is_no_estimate_beyond_the_last_number() -> None:
    assert scale_of(b"90", b"99").ahead(b"99", b"90", b"99", 1.0) is None


keys = st.one_of(st.binary(max_size=12), st.from_regex(rb"r[0-9]{1,6}", fullmatch=True))


@given(st.lists(keys, min_size=2, max_size=6), keys, st.floats(0.0, 1e12))
def test_an_estimate_is_after_its_start(learnt: list[bytes], start: bytes, times: float) -> None:
    key = scale_of(*learnt).ahead(start, min(learnt), max(learnt), times)
    assert key is None or key > start


# ── regions imitated ─────────────────────────────────────────────────────────────────────────────────────────────────

tables = st.one_of(
    st.integers(1, 3000).map(lambda count: [b"row%06d" % number for number in range(count)]),
    st.integers(1, 3000).map(lambda count: [b"%x" % (number * 2654435761 % (1 << 32)) for number in range(count)]),
    st.integers(1, 1000).map(lambda count: [b"a%d" % (number**3) for number in range(count)]),
    st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=600),
)


def small_streams(operations: RegionOperations, spec: ScanSpec, monkeypatch: pytest.MonkeyPatch) -> ParallelScan:
    monkeypatch.setattr(parallel_scan, "BLOCK_BYTES_LEAST", 1)
    return ParallelScan(operations, spec)


def scanned(
    regions: ImitatedRegions, streams: ParallelScan, operations: RegionOperations, between: Callable[[], None]
) -> list[bytes]:
    found: list[bytes] = []
    while True:
        block = regions.drive(operations, streams.fetch(Budget("scan", 60.0)))
        if block is None:
            return found
        found += [cell.row for cell in decode(block.cells)]
        streams.received(found[-1])
        between()


@settings(deadline=None, max_examples=examples(150))
@given(
    tables,
    st.integers(1, 200),
    st.sampled_from([300, 3000, 1 << 20]),
    st.sampled_from([0.0, 0.1, 0.4]),
    st.randoms(use_true_random=False),
)
def test_a_scan_returns_every_row_once_in_order_despite_region_changes(
    names: list[bytes], rows_per_call: int, bytes_per_call: int, failures: float, chance: random.Random
) -> None:
    ordered = sorted(set(names))
    regions = ImitatedRegions(dict.fromkeys(ordered, b"v" * 10), chance=chance, failures=failures)
    operations = regions.operations()
    operations.cache.put(META_TABLE, [meta_region(SERVER)])

    def splits_and_merges() -> None:
        if chance.random() < 0.2:
            regions.borders = sorted(set(chance.sample(ordered, min(len(ordered), chance.randrange(4)))))
            regions.rows = dict(regions.rows)

    start, stop = sorted((chance.choice([b"", *ordered]), chance.choice(ordered)))
    key_range = chance.choice([KeyRange(), KeyRange(start, stop), KeyRange(start), KeyRange(b"", stop)])
    spec = ScanSpec(TABLE, key_range, rows_per_call=rows_per_call, bytes_per_call=bytes_per_call, is_fresh=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        streams = small_streams(operations, spec, monkeypatch)
        assert scanned(regions, streams, operations, splits_and_merges) == [key for key in ordered if key in key_range]
    assert regions.on_their_way_max <= CALLS_AHEAD


def settled_regions(names: list[bytes]) -> tuple[ImitatedRegions, RegionOperations]:
    regions = ImitatedRegions(dict.fromkeys(names, b"v" * 10))
    return regions, regions.operations()


def test_a_scan_of_evenly_spread_rows_runs_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"row%06d" % number for number in range(20_000)]
    regions, operations = settled_regions(names)
    streams = small_streams(operations, ScanSpec(TABLE, KeyRange(), rows_per_call=500, is_fresh=True), monkeypatch)
    assert scanned(regions, streams, operations, lambda: None) == names
    assert regions.on_their_way_max == CALLS_AHEAD
    assert regions.calls <= 1.25 * 20_000 / 500


def test_clustered_rows_waste_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"%012d" % (heap * 10**9 + number) for heap in range(6) for number in range(3000)]
    regions, operations = settled_regions(names)
    streams = small_streams(operations, ScanSpec(TABLE, KeyRange(), rows_per_call=500, is_fresh=True), monkeypatch)
    assert scanned(regions, streams, operations, lambda: None) == names
    assert regions.calls <= 2 * 18_000 / 500


def test_a_caller_that_takes_one_block_wastes_little() -> None:
    """And a scan whose calls bring little stays one call ahead, as small scans should."""
    names = [b"row%06d" % number for number in range(20_000)]
    regions, operations = settled_regions(names)
    streams = ParallelScan(operations, ScanSpec(TABLE, KeyRange(), rows_per_call=500, is_fresh=True))
    assert scanned(regions, streams, operations, lambda: None) == names
    assert regions.on_their_way_max == 1


def test_unread_blocks_are_bounded_by_the_calls_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [b"row%06d" % number for number in range(20_000)]
    regions, operations = settled_regions(names)
    streams = small_streams(operations, ScanSpec(TABLE, KeyRange(), rows_per_call=100, is_fresh=True), monkeypatch)
    ahead = []
    for _ in range(6):
        assert regions.drive(operations, streams.fetch(Budget("scan", 60.0))) is not None
        ahead.append(regions.on_their_way)
    assert ahead == [2, 3, 3, 3, 3, 3]
    regions.drive(operations, streams.close(Budget("close", 60.0)))
    assert regions.drive(operations, streams.fetch(Budget("scan", 60.0))) is None


# ── a real HBase ─────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = 12_000
ALL = [b"%06d" % number for number in range(ROWS)]
BATCH = 600
"""Rows of a call: enough bytes for streams."""


def write(store: HBaseStore, table: str) -> None:
    for first in range(0, ROWS, 1000):
        store.write_cells(table, 50, [RowWrite(row, ((Q, row * 120),)) for row in ALL[first : first + 1000]])


@pytest.fixture
def filled(store: HBaseStore, table_name: str) -> Iterator[str]:
    store.create_table(TableInfo(table_name, (b"f",)))
    write(store, table_name)
    yield table_name
    store.drop_table(table_name)


@pytest.fixture
def calls_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls of a scan were on their way after each block."""
    counts: list[int] = []
    send = ParallelScan._send_ahead

    async def counted(streams: ParallelScan, budget: Budget) -> None:
        await send(streams, budget)
        counts.append(sum(stream.is_sent for stream in streams._streams))

    monkeypatch.setattr(ParallelScan, "_send_ahead", counted)
    return counts


def rows_of(store: HBaseStore, table: str, between: Callable[[], None] = lambda: None, at: int = 3) -> list[bytes]:
    """All rows; `between` is done after batch `at`, while others are on their way."""
    rows: list[bytes] = []
    for number, batch in enumerate(store.scan(table, KeyRange(), batch_rows_max=BATCH), start=1):
        rows += [batch.row_key(index) for index in range(batch.rows)]
        assert all(batch.value(cell) == batch.row_key(cell) * 120 for cell in (0, batch.cells - 1))
        if number == at:
            between()
    return rows


def test_streams_continue_through_a_split(
    store: HBaseStore, cluster: Cluster, filled: str, calls_at_once: list[int]
) -> None:
    assert rows_of(store, filled, lambda: OperatorsAdmin(cluster).split(filled, b"003000")) == ALL
    assert max(calls_at_once) == CALLS_AHEAD


def test_streams_continue_through_a_merge(
    store: HBaseStore, cluster: Cluster, table_name: str, calls_at_once: list[int]
) -> None:
    admin = OperatorsAdmin(cluster)
    admin.create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f"),)), [b"003000", b"006000"])
    write(store, table_name)
    assert rows_of(store, table_name, lambda: admin.merge(table_name, b"003000")) == ALL
    assert max(calls_at_once) == CALLS_AHEAD
    store.drop_table(table_name)


@pytest.mark.long
def test_streams_continue_when_a_region_moves_or_its_server_dies(
    store: HBaseStore, cluster: Cluster, hbase: HBaseServer, filled: str, calls_at_once: list[int]
) -> None:
    """Killed while answers of three streams are on their way: what did not come is read again elsewhere."""
    admin = OperatorsAdmin(cluster)
    process, port = hbase.start_region_server()
    try:
        (target,) = [(address, code) for address, code in admin.servers() if address.port == port]
        (region,) = cluster.regions(filled)

        def move() -> None:
            waiting = threading.Event()
            while cluster.regions(filled)[0].server != target[0]:
                admin.move(region, *target)
                waiting.wait(0.5)

        assert rows_of(store, filled, move) == ALL
        assert rows_of(store, filled, lambda: process.send(signal.SIGKILL)) == ALL
        assert max(calls_at_once) == CALLS_AHEAD
    finally:
        process.send(signal.SIGKILL)


def test_an_abandoned_scan_with_calls_in_flight_is_harmless(
    store: HBaseStore, filled: str, calls_at_once: list[int]
) -> None:
    for _ in range(20):
        batches = store.scan(filled, KeyRange(), batch_rows_max=BATCH)
        kept = [next(batches) for _ in range(3)]
        batches.close()  # type: ignore[attr-defined]
        (found,) = store.read_rows(filled, [ALL[-1]])
        assert found[0].value == ALL[-1] * 120
        assert [batch.row_key(0) for batch in kept] == sorted(batch.row_key(0) for batch in kept)
    assert max(calls_at_once) == CALLS_AHEAD
    assert rows_of(store, filled) == ALL


def test_ranges_and_batches_are_the_same_without_streams(store: HBaseStore, filled: str) -> None:
    """Batches that their owner keeps are not written over by later answers."""
    for key_range in (KeyRange(ALL[500], ALL[9500]), KeyRange(ALL[11_000]), KeyRange(b"", ALL[700]), KeyRange(b"x")):
        batches = list(store.scan(filled, key_range, batch_rows_max=BATCH))
        cells = [cell for batch in batches for cell in batch.all_cells()]
        assert [cell.row for cell in cells] == [row for row in ALL if row in key_range]
        assert all(cell.value == cell.row * 120 for cell in cells)
