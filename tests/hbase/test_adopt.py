"""Adopting a table that was written without transactions: afterwards every transaction sees all of it."""

from __future__ import annotations

import pytest

from pyomid.cli import main
from pyomid.database.database import Database
from pyomid.database.driver import Driver
from pyomid.database.foreign_tables import import_timestamp, refuse
from pyomid.errors import Misuse, UnknownTable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import DELETE_COLUMN, DELETE_VERSION, KeyValue
from pyomid.omid.hbase.codec.layout import SHADOW_PREFIX, SHADOW_SUFFIX
from pyomid.omid.hbase.regions.admin import FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import RowMutation, deletes, puts
from pyomid.omid.hbase.store import HBaseStore
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.hashing import table_id
from pyomid.protocol.import_table import check_range, import_range
from pyomid.protocol.reading import CommitCache
from pyomid.types import CellVersion, Column, KeyRange, RowWrite, ShadowWrite, TableInfo
from region_admin import OperatorsAdmin

Q = Column(b"f", b"q")
DELETE_FAMILY = 14


def test_transactions_see_every_cell_of_an_adopted_table(
    url: str, database: Database, store: HBaseStore, table_name: str
) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))
    for version in (3, 7):
        store.write_cells(table_name, version, [RowWrite(b"r%d" % row, ((Q, b"%d" % version),)) for row in range(5)])
    assert main(["adopt", url, table_name, "f"]) == 0
    assert main(["adopt", url, table_name, "f"]) == 0, "it may be repeated"
    with database.begin() as tx:
        rows = dict(tx.table(table_name).scan())
        assert rows == {b"r%d" % row: {b"f:q": b"7"} for row in range(5)}
        tx.table(table_name).put(b"r0", {b"f:q": b"new"})
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r0") == {b"f:q": b"new"}
    database.drop_table(table_name)


def test_adopting_again_does_not_commit_undecided_cells(url: str, database: Database, table: str) -> None:
    """The table is in the catalog: its cells without shadow cells are transactions' business."""
    writer = database.begin()
    writer.table(table).put(b"r", {b"f:q": b"undecided"})
    writer.flush()
    assert main(["adopt", url, table, "f"]) == 0
    with database.begin() as tx:
        assert tx.table(table).get(b"r") is None
    writer.rollback()


def test_a_slow_adoption_skips_cells_of_later_transactions(
    url: str, database: Database, store: HBaseStore, table_name: str
) -> None:
    """One run drew its timestamp and was slow; another finished and registered; then a transaction wrote."""
    store.create_table(TableInfo(table_name, (b"f",)))
    store.write_cells(table_name, 3, [RowWrite(b"r", ((Q, b"old"),))])
    slow, _ = import_timestamp(database._core.deployment, table_name, [b"f"])
    assert main(["adopt", url, table_name, "f"]) == 0
    writer = database.begin()
    writer.table(table_name).put(b"r", {b"f:q": b"undecided"})
    writer.flush()
    with pytest.raises(Misuse, match="newer than the TSO's timestamp"):
        Driver(database._core.deployment).run(import_range(table_name, KeyRange(), slow))
    writer.rollback()
    database.drop_table(table_name)


def test_cells_newer_than_every_timestamp_are_refused(database: Database, store: HBaseStore, bare_table: str) -> None:
    store.write_cells(bare_table, 1_700_000_000_000, [RowWrite(b"r", ((Q, b"v"),))])
    driver = Driver(database._core.deployment)
    assert [*driver.run(check_range(bare_table, KeyRange(), newest_ts=1_000_000))] == ["newer"], "for one reason"
    with pytest.raises(Misuse, match="WORLD_TIME"):
        driver.run(import_range(bare_table, KeyRange(), newest_ts=1_000_000))


def test_a_table_that_unregistered_transactions_wrote_is_refused(
    database: Database, store: HBaseStore, bare_table: str
) -> None:
    """Told by the TSO's mark of the table, or by a shadow cell that is not the cell's own version."""
    store.write_cells(bare_table, 100, [RowWrite(b"r", ((Q, b"v"),))])
    store.write_shadow_cells(bare_table, [ShadowWrite(CellVersion(b"r", *Q, 100), 150)])
    newest_ts, _ = import_timestamp(database._core.deployment, bare_table, [b"f"])
    with pytest.raises(Misuse, match=r"start 100, committed at 150.*register"):
        Driver(database._core.deployment).run(import_range(bare_table, KeyRange(), newest_ts))
    catalog = database._core.deployment.catalog
    catalog.mark_unknown_table(table_id(bare_table.encode()))
    _, found = import_timestamp(database._core.deployment, bare_table, [b"f"])
    with pytest.raises(Misuse, match="register"):
        refuse(bare_table, found)
    catalog.clear_unknown_table(*catalog.unknown_tables().popitem())


def put_plainly(cluster: Cluster, table: str, *cells: KeyValue) -> None:
    """As a program without transactions does."""
    cluster.rows(table, [RowMutation(cell.row, (puts([cell]),)) for cell in cells])


def test_an_empty_value_is_refused_before_anything_changes(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, table_name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A flag or a member of a set: adopted, it would be hidden, and the next compaction would drop it for good."""
    store.create_table(TableInfo(table_name, (b"f",)))
    put_plainly(cluster, table_name, KeyValue(b"a", *Q, 3, b"v"), KeyValue(b"z", b"f", b"flag", 3, b""))
    assert main(["adopt", url, table_name, "f"]) == 1
    said = capsys.readouterr().err
    assert "row b'z', column b'f:flag'" in said
    assert "put another value there" in said
    assert all((batch.rec_commit == 0).all() for batch in store.scan(table_name, KeyRange()))
    with pytest.raises(UnknownTable), database.begin() as tx:
        tx.table(table_name).get(b"a")
    put_plainly(cluster, table_name, KeyValue(b"z", b"f", b"flag", 4, b"1"))
    assert main(["adopt", url, table_name, "f"]) == 0, "the older empty version hides nothing that HBase shows"
    with database.begin() as tx:
        assert dict(tx.table(table_name).scan()) == {b"a": {b"f:q": b"v"}, b"z": {b"f:flag": b"1"}}
    database.drop_table(table_name)


def test_an_adoption_reports_all_problems_at_once(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, table_name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A table as HBase's shell makes it, newer than any timestamp, with a flag and a name of shadow cells."""
    admin = OperatorsAdmin(cluster)
    admin.create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f", 1),)))
    newer = 1 << 62
    flag = KeyValue(b"a", b"f", b"flag", newer, b"")
    named = KeyValue(b"b", b"f", b"size" + SHADOW_SUFFIX, newer, bytes(7) + b"v")
    beside = KeyValue(b"b", b"f", b"size", newer, b"v")
    put_plainly(cluster, table_name, flag, named, beside)
    assert main(["adopt", url, table_name, "f", "g"]) == 1
    said = capsys.readouterr().err
    assert "cannot be adopted yet, for 4 reasons" in said
    for remedy in ("pyomid tso", "put another value there", "Copy it to a column with another name",
                   f"without family g; in HBase's shell: alter '{table_name}', {{NAME => 'f', VERSIONS => 2147483647, "
                   "TTL => 'FOREVER'}, {NAME => 'g'"):  # fmt: skip
        assert remedy in said, remedy
    store.drop_table(table_name)


def test_an_empty_value_without_qualifier_is_refused(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, bare_table: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Omid's sign that the family was deleted, even under a later value."""
    bare = Column(b"f", b"")
    put_plainly(
        cluster, bare_table, KeyValue(b"a", *Q, 3, b"v"), KeyValue(b"a", *bare, 4, b""), KeyValue(b"a", *bare, 5, b"x")
    )
    assert main(["adopt", url, bare_table, "f"]) == 1
    said = capsys.readouterr().err
    assert "version 4 in column b'f:' (no qualifier)" in said


def test_a_value_without_qualifier_is_adopted_and_hides_nothing(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, table_name: str
) -> None:
    """One column a family, without a name, is common in HBase."""
    store.create_table(TableInfo(table_name, (b"f",)))
    put_plainly(cluster, table_name, KeyValue(b"r", *Q, 3, b"v"), KeyValue(b"r", b"f", b"", 7, b"bare"))
    assert main(["adopt", url, table_name, "f"]) == 0
    whole = {b"f:": b"bare", b"f:q": b"v"}
    with database.begin() as tx:
        seen = tx.table(table_name)
        assert seen.get(b"r") == whole
        assert dict(seen.scan()) == {b"r": whole}
        assert seen.get(b"r", columns=[b"f:q"]) == {b"f:q": b"v"}
        assert dict(seen.scan(columns=[b"f:q"])) == {b"r": {b"f:q": b"v"}}
        assert seen.get(b"r", columns=[b"f:"]) == whole
    generation = database._core.deployment.catalog.table(table_name).generation
    for region in store.regions(table_name):
        Driver(database._core.deployment).run(
            compact_region(table_name, generation, region, CommitCache(), now_s=0.0, rows_max=100)
        )
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == whole
    database.drop_table(table_name)


@pytest.mark.parametrize(
    ("qualifier", "value"),
    [
        (b"size" + SHADOW_SUFFIX, b"v"),
        (b"size" + SHADOW_SUFFIX, bytes(8)),
        (SHADOW_SUFFIX, b"v"),
        (SHADOW_PREFIX + b"size" + SHADOW_SUFFIX, b"no commit timestamp"),
        (SHADOW_PREFIX + b"size" + SHADOW_SUFFIX, b""),
    ],
    ids=["suffix", "suffix and eight bytes", "nothing else", "prefix and suffix", "and empty"],
)
def test_a_column_named_as_shadow_cells_are_is_refused(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, table_name: str,
    capsys: pytest.CaptureFixture[str], qualifier: bytes, value: bytes,
) -> None:  # fmt: skip
    """It would be taken for the shadow cell of another column: nobody would see it, and compaction would drop it."""
    store.create_table(TableInfo(table_name, (b"f",)))
    named = KeyValue(b"y\x00\xff", b"f", qualifier, 3, value)
    put_plainly(cluster, table_name, KeyValue(b"a", *Q, 3, b"v"), named, KeyValue(b"z", *Q, 3, b"v"))
    assert main(["adopt", url, table_name, "f"]) == 1
    said = capsys.readouterr().err
    assert f"row {named.row!r} of table {table_name} holds column {b'f:' + qualifier!r}" in said
    assert "Copy it to a column with another name, delete it, and adopt again" in said
    assert all((batch.rec_commit == 0).all() for batch in store.scan(table_name, KeyRange(stop=b"b")))
    with pytest.raises(UnknownTable), database.begin() as tx:
        tx.table(table_name).get(b"a")

    gone = deletes([named._replace(kind=DELETE_VERSION, value=b"")])
    cluster.rows(table_name, [RowMutation(named.row, (gone,))])
    put_plainly(cluster, table_name, KeyValue(named.row, b"f", b"copied", 4, b"v"))
    assert main(["adopt", url, table_name, "f"]) == 0, "the way out leads out"
    with database.begin() as tx:
        assert tx.table(table_name).get(named.row) == {b"f:copied": b"v"}
    database.drop_table(table_name)


def test_names_that_only_resemble_those_of_shadow_cells_are_adopted(
    url: str, database: Database, cluster: Cluster, store: HBaseStore, table_name: str
) -> None:
    store.create_table(TableInfo(table_name, (b"f",)))
    names = [
        SHADOW_SUFFIX + b"q",
        b"q\xc2",
        b"q\x80",
        b"q" + SHADOW_SUFFIX + b"\n",
        SHADOW_PREFIX + b"q",
        b"\xc2\n\x80",
    ]
    put_plainly(cluster, table_name, *[KeyValue(b"r", b"f", name, 3, bytes(8)) for name in names])
    newest_ts, _ = import_timestamp(database._core.deployment, table_name, [b"f"])
    Driver(database._core.deployment).run(import_range(table_name, KeyRange(), newest_ts))
    assert main(["adopt", url, table_name, "f"]) == 0, "nor does it take its own shadow cells for foreign ones"
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == {b"f:" + name: bytes(8) for name in names}
    database.drop_table(table_name)


def test_only_tables_in_hbase_can_be_adopted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adopt", "omid-memory:adoption", "t", "f"]) == 1
    assert "only tables in HBase" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["adopt", "register", "create", "create_table"])
@pytest.mark.parametrize("kind", [DELETE_VERSION, DELETE_COLUMN, DELETE_FAMILY])
def test_markers_above_the_timestamps_of_transactions_are_refused(
    url: str,
    database: Database,
    cluster: Cluster,
    table_name: str,
    how: str,
    kind: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They would hide what transactions write, acknowledged or not."""
    OperatorsAdmin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f"),)))
    newest = (1 << 63) - 2
    qualifier = b"" if kind == DELETE_FAMILY else b"q"
    cluster.rows(table_name, [RowMutation(b"r", (deletes([KeyValue(b"r", b"f", qualifier, newest, b"", kind)]),))])
    if how == "create_table":
        with pytest.raises(Misuse, match="delete marker"):
            database.create_table(table_name, ["f"])
    else:
        tables = ["tables", url, how, table_name, "f", "--conflict-level", "cell"]
        assert main(["adopt", url, table_name, "f"] if how == "adopt" else tables) == 1
        assert "delete marker" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["register", "create", "create_table"])
def test_rows_of_plain_programs_are_never_taken_for_an_empty_table(
    url: str, database: Database, cluster: Cluster, table_name: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be invisible, and dropped by the next compaction."""
    OperatorsAdmin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(b"f"),)))
    cluster.rows(table_name, [RowMutation(b"r", (puts([KeyValue(b"r", b"f", b"q", 5, b"v")]),))])
    if how == "create_table":
        with pytest.raises(Misuse, match="adopt"):
            database.create_table(table_name, ["f"])
    else:
        assert main(["tables", url, how, table_name, "f", "--conflict-level", "cell"]) == 1
        assert "adopt" in capsys.readouterr().err


def test_verify_knows_the_versions_of_an_adopted_table(
    url: str, database: Database, store: HBaseStore, table_name: str
) -> None:
    """Programs write versions of single milliseconds: several within the fifty that belong to one start."""
    store.create_table(TableInfo(table_name, (b"f",)))
    for version in range(1, 40):
        store.write_cells(table_name, version, [RowWrite(b"r%02d" % version, ((Q, b"v"),))])
    assert main(["adopt", url, table_name, "f"]) == 0
    assert database.verify(table_name).ok
    database.drop_table(table_name)
