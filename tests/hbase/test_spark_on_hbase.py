"""Spark over HBase: some tests of tests/spark with another URL, and tests that need regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hbase_processes import confirm_tables, leading_tso
from spark_frames import load
from test_spark_jobs import (  # noqa: F401
    test_cleaning_heals_commits_drops_orphans_and_old_versions_and_empties_the_commit_table,
)
from test_spark_source import (  # noqa: F401
    test_a_plain_append_that_lost_fails_and_leaves_no_row,
    test_a_row_key_of_one_text_column_bounds_a_read_by_text,
    test_all_partitions_and_actions_of_one_load_share_its_snapshot,
    test_an_append_replaces_the_whole_row_unless_nulls_are_to_be_kept,
    test_an_overwrite_replaces_all_rows_and_one_with_nothing_leaves_an_empty_table,
    test_the_number_of_partitions_and_of_rows_in_a_batch_change_no_result,
    test_the_option_if_exists_gives_the_other_modes,
)
from test_spark_transactions import (  # noqa: F401
    test_a_reader_beside_the_writer_never_sees_half_of_a_commit_over_three_tables,
    test_a_run_under_an_id_that_rolled_back_may_run_again_and_one_that_wrote_nothing_counts_as_done,
    test_a_transaction_reads_its_own_writes_and_deletes_in_their_order,
    test_an_overwrite_and_its_rollback,
    test_of_two_runs_under_one_id_at_the_same_time_one_commits,
    test_two_pipelines_that_add_to_one_total_both_count,
)

import pyomid
import pyomid.spark
from conformance import remove_entry
from pyomid.cli.hbase import HBaseServer
from pyomid.database.idempotency import KEYS_TABLE
from pyomid.database.table_admin import is_system
from pyomid.errors import ConflictError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.spark import MergeResult, SparkTransaction
from pyomid.spark.connections import close_connections, connection
from pyomid.spark.source.datasource import OmidDataSource
from region_admin import OperatorsAdmin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.hbase]

IN_MAKE_TEST = {
    "test_all_partitions_and_actions_of_one_load_share_its_snapshot",
    "test_of_two_runs_under_one_id_at_the_same_time_one_commits",
}
"""Of the bodies of tests/spark; conftest.py marks the others `long`."""


@pytest.fixture(scope="module")
def url(hbase: HBaseServer, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database without tables, and a TSO with the terms of tests/spark; its tables go afterwards."""
    options = "leaseSeconds=120&commitRetrySeconds=10&maxTransactionAgeSeconds=2"
    found = f"omid+hbase://{hbase.quorum}/hbase?{options}"
    with leading_tso(found, tmp_path_factory.mktemp("tso") / "tso.log"):
        drop_all(found)
        yield found
        drop_all(found)
        close_connections()


@pytest.fixture(autouse=True)
def no_leases_of_earlier_tests(url: str) -> None:
    """In tests/spark each module has a database; here all share one, whose watermark the leases would hold back."""
    conn = connection(url)
    ended = conn.deployment.tso.status().leases
    for start_ts in ended:
        conn.deployment.tso.end_lease(start_ts, shared=True)
    # Until everybody can see it, whom the TSO promised to keep them.
    while ended and conn.deployment.leader_state.read_watermarks()[0] < max(ended):
        conn.deployment.tso.begin()


def drop_all(url: str) -> None:
    """The markers too: what an earlier run did under an id counts as done, and what it left as orphans."""
    with pyomid.connect(url) as database:
        confirm_tables(database)
        for table in database.tables():
            if not is_system(table.name):
                database.drop_table(table.name)
        remove_entry(database._core.deployment.catalog, KEYS_TABLE)
        database._core.deployment.store.drop_table(KEYS_TABLE)


KEYS = [f"{number:04}" for number in range(400)]


@pytest.fixture
def divided(spark: SparkSession, url: str, cluster: Cluster, table_name: str) -> str:
    """Four hundred rows in three regions."""
    Admin(cluster).create_table(TableDescriptor(table_name, (FamilyDescriptor(b"d"),)), [b"0100", b"0250"])
    content = spark.createDataFrame([(key, 1) for key in KEYS], "name string, count long").coalesce(1)
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(content, table_name, row_key=["name"])
    return table_name


def parts_of(frame: DataFrame) -> list[list[str]]:
    """The keys of each partition that has rows."""
    return sorted(sorted(row["name"] for row in part) for part in frame.rdd.glom().collect() if part)


def test_partitions_are_regions_and_a_large_region_is_divided(spark: SparkSession, url: str, divided: str) -> None:
    by_region = parts_of(load(spark, url, divided, numPartitions="1"))
    assert [(part[0], part[-1]) for part in by_region] == [("0000", "0099"), ("0100", "0249"), ("0250", "0399")]
    cut = parts_of(load(spark, url, divided, numPartitions="9"))
    assert len(cut) > len(by_region), [len(part) for part in cut]
    assert [key for part in cut for key in part] == KEYS, "each row in one partition, all of them"
    assert {"0100", "0250"} <= {part[0] for part in cut}, "no partition lies in two regions"


@pytest.mark.long
def test_a_merge_by_key_reaches_every_region(spark: SparkSession, url: str, divided: str) -> None:
    """Rows are read one by one, each from its region; what was read of a changed row conflicts."""
    db = pyomid.spark.connect(spark, url)
    changes = [("0000", 5), ("0100", 0), ("0399", 7), ("9999", 3)]
    source = spark.createDataFrame(changes, "name string, count long").repartition(2)

    def merged(tx: SparkTransaction) -> MergeResult:
        merge = tx.merge(source, divided, on=["name"])
        merge = merge.whenMatched("source.count = 0").delete()
        merge = merge.whenMatched().update({"count": "target.count + source.count"})
        return merge.whenNotMatched().insertAll().merge()

    with db.begin() as tx:
        done = merged(tx)
    assert (done.updated, done.inserted, done.deleted) == (2, 1, 1)

    def loses() -> None:
        with db.begin() as loser:
            merged(loser)
            with db.begin() as tx:
                tx.update(divided, "name = '0399'", {"count": 100})

    with pytest.raises(ConflictError):
        loses()
    found = {row["name"]: row["count"] for row in load(spark, url, divided).where("count <> 1").collect()}
    assert found == {"0000": 6, "0399": 100, "9999": 3}
    assert load(spark, url, divided, where="name = '0100'").count() == 0


def test_regions_that_split_under_a_task_change_no_result(url: str, cluster: Cluster, divided: str) -> None:
    """The reader's own steps, as Spark takes them; each region splits between two batches of its task."""
    source = OmidDataSource({"url": url, "table": divided, "numPartitions": "1", "batchRows": "20"})
    reader = source.reader(source.schema())
    names: list[str] = []
    for partition, between in zip(reader.partitions(), (b"0080", b"0180", b"0380"), strict=True):
        for number, batch in enumerate(reader.read(partition)):
            if number == 1:
                OperatorsAdmin(cluster).split(divided, between)
            names += batch.column("name").to_pylist()
    assert names == KEYS
    assert len(cluster.regions(divided)) == 6
