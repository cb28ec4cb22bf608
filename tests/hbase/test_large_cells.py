"""Rows whose versions, or columns, together are larger than the region server's memory: every read that our code
sends is answered in parts, and the server lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from java_needed import needs_java
from test_hbase_cleaning import Cleaned

import pyomid.omid.hbase.rpc.connection as hbase_connection
from conformance import put_entry
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.database.upkeep.jobs import Partition
from pyomid.database.upkeep.verification import look
from pyomid.errors import Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.protocol.visibility import visible_point
from pyomid.types import CellVersion, Column, KeyRange, ReadBounds, RowWrite, ShadowWrite, TableInfo
from waiting import until

pytestmark = [pytest.mark.hbase, pytest.mark.long]

MIB = 1 << 20
F = b"f"
Q = Column(F, b"q")
ANSWER_BYTES_MAX = 2 * MIB
"""Asked for; a cell more may come, as an answer ends behind one."""


@dataclass(frozen=True)
class Sizes:
    heap_mb: int
    cell_bytes: int
    cells: int
    """Versions of the one row, columns of the other."""

    def value(self, number: int) -> bytes:
        return b"%04d" % number + bytes(self.cell_bytes - 4)


SMALL = Sizes(heap_mb=256, cell_bytes=4 * MIB, cells=65)
REPORTED = Sizes(heap_mb=512, cell_bytes=9 * MIB, cells=60)


class Small:
    """A server of little memory, and a database on it."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        assert sizes.cells * sizes.cell_bytes > sizes.heap_mb * MIB, "one answer of all would not fit"
        self.sizes = sizes
        # Its caches are small, so that memory is there for what is written; a write takes several times its cell. Files
        # are compacted as ever: who reads a range holds a block of each, and a large cell is a block of its own.
        settings = {
            "hfile.block.cache.size": "0.1",
            "hbase.regionserver.global.memstore.size": "0.15",
            "hbase.hregion.memstore.flush.size": str(16 * MIB),
        }
        self.server = HBaseServer(folder, heap_mb=sizes.heap_mb, settings=settings)
        self.server.start()
        self.cluster = Cluster(ZooKeeper(self.server.quorum), deadline_s=120.0)
        self.cleaned = Cleaned(self.cluster, "large")
        self.store = self.cleaned.store
        self.database = Database(self.cleaned.deployment)

    def make_table(self, name: str) -> None:
        self.store.create_table(TableInfo(name, (F,)))
        put_entry(self.cleaned.catalog, TableInfo(name, (F,)))

    def assert_lives(self) -> None:
        assert self.server.is_running()
        assert b"OutOfMemoryError" not in self.server.log.read_bytes()

    def end(self) -> None:
        self.database.close()
        self.cluster.close()
        self.server.kill()


@pytest.fixture(
    scope="module",
    params=[pytest.param(SMALL, id="small"), pytest.param(REPORTED, id="as reported", marks=pytest.mark.soak)],
)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    needs_java()
    made = Small(tmp_path_factory.mktemp("small-hbase"), request.param)
    yield made
    made.end()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each answer; none may be much larger than was asked for."""
    sizes: list[int] = []
    decode_reply = hbase_connection.decode_reply

    def noted(frame: memoryview):  # type: ignore[no-untyped-def]
        sizes.append(len(frame))
        return decode_reply(frame)

    monkeypatch.setattr(hbase_connection, "decode_reply", noted)
    yield sizes
    monkeypatch.undo()


def many_versions(small: Small, table: str, row: bytes) -> tuple[dict[int, int], int]:
    """Every second one was committed and completed; the others are of writers that died. {start: number}, and a
    start between the older and the newer half of them."""
    starts: dict[int, int] = {}
    middle = 0
    for number in range(small.sizes.cells):
        begun_start = small.cleaned.tso.begin()
        start = begun_start.start_ts
        small.store.write_cells(table, start, [RowWrite(row, ((Q, small.sizes.value(number)),))])
        if number % 2:
            small.store.write_shadow_cells(table, [ShadowWrite(CellVersion(row, *Q, start), start + 1)])
        starts[start] = number
        if number == small.sizes.cells // 2:
            begun_middle = small.cleaned.tso.begin()
            middle = begun_middle.start_ts
    return starts, middle


def wide_row(small: Small, table: str, row: bytes, start: int) -> list[Column]:
    columns = [Column(F, b"w%04d" % number) for number in range(small.sizes.cells)]
    for number, column in enumerate(columns):
        small.store.write_cells(table, start, [RowWrite(row, ((column, small.sizes.value(number)),))])
    return columns


def test_reads_and_cleaning_of_large_rows_leave_the_server_alive(
    small: Small, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One get of sixty versions of nine megabytes ended the region server, and then the next one."""
    table, sizes, store = "t", small.sizes, small.store
    small.make_table(table)
    starts, middle = many_versions(small, table, b"big")
    newest = max(number for number in starts.values() if number % 2)
    begun_wide_start = small.cleaned.tso.begin()
    wide_start = begun_wide_start.start_ts
    columns = wide_row(small, table, b"wide", wide_start)
    wide = {F + b":" + column.qualifier: sizes.value(number) for number, column in enumerate(columns)}
    small.assert_lives()
    answers.clear()

    # The shadow cells of the wide row come late: each is looked at for its cell.
    store.write_shadow_cells(
        table, [ShadowWrite(CellVersion(b"wide", *column, wide_start), wide_start + 1) for column in columns]
    )
    small.assert_lives()
    assert max(answers) < MIB, "who asks whether cells are there is told no values"

    with small.database.begin() as tx:
        rows = tx.table(table)
        assert rows.get(b"big") == {b"f:q": sizes.value(newest)}
        assert rows.rows([b"big", b"nothing", b"wide"]) == {
            b"big": {b"f:q": sizes.value(newest)}, b"nothing": None, b"wide": wide
        }  # fmt: skip
        assert rows.get(b"wide", columns=[b"f:w0003"]) == {b"f:w0003": wide[b"f:w0003"]}
        small.assert_lives()
        rows.put(b"other", {b"f:q": rows.get(b"big")[b"f:q"][:4]})
    old = max(number for start, number in starts.items() if number % 2 and start < middle)
    bounds = ReadBounds(below=middle, committed_below=middle)
    for asked in ([b"big"], [b"big", b"wide"]):
        cells = store.read_rows(table, asked, [Q], bounds=bounds)[0]
        assert visible_point(cells, middle) == {Q: sizes.value(old)}
    with small.database.begin() as tx:
        found = dict(tx.table(table).scan())
        assert found == {b"big": {b"f:q": sizes.value(newest)}, b"other": {b"f:q": b"%04d" % newest}, b"wide": wide}
    del found
    small.assert_lives()
    assert store.holds_shadow_cells(table, rows_max=10)
    store.check_names(table, KeyRange())
    assert store.split_points(table, KeyRange(), 2)
    small.assert_lives()

    # The second look of a compaction: which of the cells that it healed are still there.
    batch = next(store.scan(table, KeyRange(b"wide")))
    batch.rec_commit[:] = wide_start + 1
    watermark, store._read_watermark = store._read_watermark, None
    store.clean_batch(table, batch, np.arange(batch.records), np.empty(0, dtype=np.int64))
    store._read_watermark = watermark
    assert [cell.commit_ts for cell in store.read_rows(table, [b"wide"], columns[:3])[0]] == [wide_start + 1] * 3
    del batch
    small.assert_lives()

    # Compaction by the client: heals, drops the orphans and what no snapshot needs.
    small.cleaned.pass_time()
    small.cleaned.compact(table)
    small.assert_lives()
    (cells,) = store.read_rows(table, [b"big"])
    assert [cell.value for cell in cells] == [sizes.value(newest)]
    with small.database.begin() as tx:
        assert tx.table(table).get(b"big") == {b"f:q": sizes.value(newest)}
    looked = look(small.database._core.deployment, Partition(table, 0, KeyRange()))
    assert (looked.rows, looked.cells) == (3, sizes.cells + 2)
    small.assert_lives()
    assert max(answers) < ANSWER_BYTES_MAX + 2 * sizes.cell_bytes


@pytest.mark.soak
def test_an_unlimited_get_kills_the_server(tmp_path: Path) -> None:
    """Else what the tests above show says nothing. Its own server, which ends."""
    needs_java()
    own = Small(tmp_path, SMALL)
    try:
        own.make_table("t")
        many_versions(own, "t", b"big")
        own.assert_lives()
        impatient = Cluster(ZooKeeper(own.server.quorum), deadline_s=5.0, call_s_max=30.0)
        with pytest.raises(Unavailable):
            impatient.rows("t", [RowGet(b"big")])
        impatient.close()
        until(lambda: b"OutOfMemoryError" in own.server.log.read_bytes(), "the server lives")
    finally:
        own.end()
