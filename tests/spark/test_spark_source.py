"""`df.write` and `spark.read` over the embedded store: save modes, ranges, snapshots, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from spark_frames import Row, load, rows
from test_writer import push_watermark_past

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import ConflictError, Misuse, MisuseType, SnapshotTooOld, UnknownTable
from pyomid.spark.connections import connection

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = pytest.mark.spark

DDL = "name string, count long, note string"


def frame(spark: SparkSession, *rows: Row, ddl: str = DDL) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl)


def writer(content: DataFrame, url: str, table: str, **options: str) -> DataFrameWriter:
    found = content.write.format("omid").option("url", url).option("table", table).option("rowKey", "name")
    return found.options(**options)


def append(spark: SparkSession, url: str, table: str, *rows: Row, **options: str) -> None:
    writer(frame(spark, *rows), url, table, **options).mode("append").save()


def refusal(raised: pytest.ExceptionInfo[BaseException]) -> pyomid.OmidError:
    found = pyomid.spark.original_error(raised.value)
    assert found is not None, raised.value
    return found


KEPT: list[Row] = [("kept", 1, None)]


@pytest.fixture(scope="module")
def strict(spark: SparkSession, url: str) -> str:
    """A table whose content no refused request changes."""
    append(spark, url, "strict", *KEPT)
    return "strict"


# Save modes


@pytest.mark.usefixtures("strict")  # a database is there
@pytest.mark.parametrize("mode", [None, "error", "errorifexists", "ignore"])
def test_the_modes_that_spark_does_not_hand_on_are_refused_before_anything_is_written(
    spark: SparkSession, url: str, mode: str | None
) -> None:
    saving = writer(frame(spark, ("a", 1, None)), url, "modes")
    if mode is not None:
        saving = saving.mode(mode)
    with pytest.raises(PySparkException, match='Please use either the "Append" or "Overwrite" mode') as raised:
        saving.save()
    assert raised.value.getCondition() == "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
    with pytest.raises(Exception, match="there is no table 'modes'") as raised_by_read:
        load(spark, url, "modes")
    assert isinstance(refusal(raised_by_read), UnknownTable)


@pytest.mark.parametrize(
    ("if_exists", "expected"),
    [
        ("append", [("a", 1, None), ("b", 2, None)]),
        ("overwrite", [("b", 2, None)]),
        ("ignore", [("a", 1, None)]),
    ],
)
def test_the_option_if_exists_gives_the_other_modes(
    spark: SparkSession, url: str, if_exists: str, expected: list[Row]
) -> None:
    table = f"exists_{if_exists}"
    append(spark, url, table, ("a", 1, None), ifExists=if_exists)
    append(spark, url, table, ("b", 2, None), ifExists=if_exists)
    with pytest.raises(PySparkException) as raised:
        append(spark, url, table, ("c", 3, None), ifExists="error")
    assert isinstance(refusal(raised), Misuse)
    assert rows(load(spark, url, table)) == expected


@pytest.mark.parametrize("level", first(1, ["row", "cell"]))
def test_an_insert_refuses_a_key_that_exists_and_names_it(spark: SparkSession, url: str, level: str) -> None:
    table = f"inserted_{level}"
    append(spark, url, table, ("a", 1, None), conflictLevel=level, ifExists="insert")
    append(spark, url, table, ("b", 2, None), ifExists="insert")
    with pytest.raises(Exception, match=r"name='b'.*exists in table"):
        append(spark, url, table, ("c", 3, None), ("b", 3, None), ifExists="insert")
    db = pyomid.spark.connect(spark, url)
    twice = db.begin()
    twice.write(frame(spark, ("d", 4, None)), table, mode="insert")
    with pytest.raises(Misuse, match=r"mode 'insert'.*name='d'"):
        twice.write(frame(spark, ("d", 5, None)), table, mode="insert")
    twice.rollback()
    assert rows(load(spark, url, table)) == [("a", 1, None), ("b", 2, None)]
    one, other = db.begin(), db.begin()
    one.write(frame(spark, ("e", 1, None)), table, mode="insert")
    other.write(frame(spark, ("e", None, "x")).select("name", "note"), table, mode="insert")
    one.commit()
    with pytest.raises(ConflictError):
        other.commit()


def test_an_overwrite_replaces_all_rows_and_one_with_nothing_leaves_an_empty_table(
    spark: SparkSession, url: str
) -> None:
    append(spark, url, "emptied", *[(f"{n}", n, None) for n in range(30)])
    new = [(f"{n}", -n, None) for n in range(20, 40)]
    writer(frame(spark, *new).repartition(3), url, "emptied").mode("overwrite").save()
    assert rows(load(spark, url, "emptied")) == new
    writer(frame(spark), url, "emptied").mode("overwrite").save()
    assert load(spark, url, "emptied").count() == 0
    append(spark, url, "emptied", ("again", 1, None))
    assert rows(load(spark, url, "emptied")) == [("again", 1, None)]


def test_a_frame_without_rows_makes_the_table_and_changes_nothing_in_one(spark: SparkSession, url: str) -> None:
    append(spark, url, "bare")
    assert load(spark, url, "bare").schema.simpleString() == "struct<name:string,count:bigint,note:string>"
    append(spark, url, "bare", ("a", 1, None))
    append(spark, url, "bare")
    assert rows(load(spark, url, "bare")) == [("a", 1, None)]


def test_an_append_replaces_the_whole_row_unless_nulls_are_to_be_kept(spark: SparkSession, url: str) -> None:
    append(spark, url, "upsert", ("a", 1, "x"), ("b", 2, "y"))
    append(spark, url, "upsert", ("a", None, "z"))
    append(spark, url, "upsert", ("b", None, "z"), nulls="keep")
    assert rows(load(spark, url, "upsert")) == [("a", None, "z"), ("b", 2, "z")]


def test_a_row_whose_columns_are_all_null_exists_and_an_empty_text_is_no_null(spark: SparkSession, url: str) -> None:
    content = [("a", None, ""), ("b", None, None)]
    append(spark, url, "hollow", *content)
    assert rows(load(spark, url, "hollow")) == sorted(content, key=repr)


# Reading


def test_a_row_key_of_one_text_column_bounds_a_read_by_text(spark: SparkSession, url: str) -> None:
    append(spark, url, "bounds", *[(f"{letter}{n}", n, None) for letter in "abc" for n in range(4)])

    def names(**options: str) -> list[str]:
        return sorted(row["name"] for row in load(spark, url, "bounds", **options).collect())

    assert names(rowPrefix="b") == ["b0", "b1", "b2", "b3"]
    assert names(rowStart="b2", rowStop="c1") == ["b2", "b3", "c0"]
    assert names(rowStart="b2", rowPrefix="b") == ["b2", "b3"]
    assert names(rowStart="0x6333") == ["c3"]
    assert names(rowStart="c", rowStop="b") == []


def test_the_number_of_partitions_and_of_rows_in_a_batch_change_no_result(spark: SparkSession, url: str) -> None:
    append(spark, url, "divided", *[(f"{n:03}", n, None) for n in range(100)])
    for options in ({"numPartitions": "1"}, {"numPartitions": "7"}, {"batchRows": "3", "numPartitions": "2"}):
        loaded = load(spark, url, "divided", **options)
        assert sorted(row["count"] for row in loaded.collect()) == list(range(100)), options


def test_chosen_columns_come_in_the_order_in_which_they_were_named(spark: SparkSession, url: str) -> None:
    append(spark, url, "columns", ("a", 1, "x"))
    assert [tuple(row) for row in load(spark, url, "columns", columns="note, name").collect()] == [("x", "a")]
    reader = spark.read.format("omid").option("url", url).option("table", "columns")
    assert [tuple(row) for row in reader.schema("count long, name string").load().collect()] == [(1, "a")]


def test_all_partitions_and_actions_of_one_load_share_its_snapshot(spark: SparkSession, url: str) -> None:
    append(spark, url, "shared", *[(f"{n:02}", 1, None) for n in range(40)])
    loaded = load(spark, url, "shared", numPartitions="4")
    append(spark, url, "shared", *[(f"{n:02}", 100, None) for n in range(40)])
    assert loaded.agg(f.sum("count")).first()[0] == 40
    append(spark, url, "shared", *[(f"{n:02}", 10_000, None) for n in range(40, 50)])
    assert loaded.agg(f.sum("count")).first()[0] == 40
    assert load(spark, url, "shared").agg(f.sum("count")).first()[0] == 4_000 + 100_000


def test_a_snapshot_is_readable_while_its_lease_lives_and_says_so_when_it_is_too_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A database of its own, where nobody else's lease holds the watermark back."""
    url = f"omid://{tmp_path}/db?maxTransactionAgeSeconds=1"
    append(spark, url, "dated", ("a", 1, None))
    with pyomid.spark.connect(spark, url).begin() as holder:
        snapshot = holder.start_ts
        append(spark, url, "dated", ("a", 2, None))
        assert rows(load(spark, url, "dated", _snapshotVersion=str(snapshot))) == [("a", 1, None)]
    push_watermark_past(connection(url), snapshot)
    with pytest.raises(PySparkException) as raised:
        load(spark, url, "dated", _snapshotVersion=str(snapshot)).collect()
    found = refusal(raised)
    assert isinstance(found, SnapshotTooOld)
    assert str(snapshot) in str(found)


# Concurrent writers


def test_a_plain_append_that_lost_fails_and_leaves_no_row(spark: SparkSession, url: str) -> None:
    """The frame's own source commits the row that the append also writes: after its snapshot, before its commit.
    What its tasks wrote is never decided again: compaction may have taken some of it meanwhile."""
    append(spark, url, "lost", ("a", 0, None))

    def meddled(batches: Any) -> Any:
        for batch in batches:
            with pyomid.connect(url) as db:
                db.run(lambda tx: tx.table("lost").put(b"a", {b"d:count": (1).to_bytes(8, "big")}))
            yield batch

    content = frame(spark, ("a", 2, None), ("b", 2, None)).coalesce(1)
    with pytest.raises(PySparkException) as raised:
        writer(content.mapInArrow(meddled, DDL), url, "lost").mode("append").save()
    assert isinstance(refusal(raised), pyomid.ConflictError)
    assert rows(load(spark, url, "lost")) == [("a", 1, None)]
    append(spark, url, "lost", ("a", 2, None), ("b", 2, None))
    assert rows(load(spark, url, "lost")) == [("a", 2, None), ("b", 2, None)]


def test_an_overwrite_at_table_level_loses_to_a_row_inserted_meanwhile(spark: SparkSession, url: str) -> None:
    append(spark, url, "replaced", ("a", 0, None))

    def meddled(batches: Any) -> Any:
        for batch in batches:
            with pyomid.connect(url) as db:
                db.run(lambda tx: tx.table("replaced").put(b"new", {b"d:count": (1).to_bytes(8, "big")}))
            yield batch

    content = frame(spark, ("b", 2, None)).coalesce(1).mapInArrow(meddled, DDL)
    with pytest.raises(PySparkException) as raised:
        writer(content, url, "replaced", conflictLevel="table").mode("overwrite").save()
    assert isinstance(refusal(raised), pyomid.ConflictError)
    assert rows(load(spark, url, "replaced")) == [("a", 0, None), ("new", 1, None)]
    writer(frame(spark, ("b", 2, None)), url, "replaced", conflictLevel="table").mode("overwrite").save()
    assert rows(load(spark, url, "replaced")) == [("b", 2, None)]


# Refused


@pytest.mark.parametrize(
    ("options", "words"),
    first(
        4,
        [
            ({"rowKye": "name"}, "unknown option 'rowkye'; did you mean rowKey"),
            ({"conflictLevel": "rwo"}, "conflictLevel='rwo' is not one of auto, cell, row, table"),
            ({"ifExists": "replace"}, "ifExists='replace'"),
            ({"duplicates": "first"}, "duplicates='first' is not one of error, last"),
            ({"nulls": "drop"}, "nulls='drop'"),
            ({"mergeSchema": "yes"}, "mergeSchema='yes' is neither true nor false"),
            ({"leaseSeconds": "0"}, "leaseSeconds='0' is not a number of seconds above 0"),
            ({"rowKey": "name,count"}, "has the row key (name), not (name, count)"),
            ({"conflictLevel": "cell"}, "conflict level 'row', not 'cell'"),
            ({"runId": ""}, "''"),
        ],
    ),
)
def test_a_bad_option_of_a_write_is_refused_with_its_value_and_nothing_is_lost(
    spark: SparkSession, url: str, strict: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        append(spark, url, strict, ("lost", 2, None), **options)
    found = refusal(raised)
    assert isinstance(found, Misuse)
    assert words in str(found)
    assert rows(load(spark, url, strict)) == KEPT


@pytest.mark.parametrize(
    ("content", "ddl", "error", "words"),
    first(
        1,
        [
            ([(None, 1, None)], DDL, Misuse, "'name' is null"),
            ([("", 1, None)], DDL, Misuse, "row key (name) is empty"),
            (
                [("a", 1.5)],
                "name string, count double",
                MisuseType,
                "column 'count' has type long, but the frame has double",
            ),
        ],
    ),
)
def test_a_bad_row_of_a_write_is_refused_with_its_value_and_nothing_is_lost(
    spark: SparkSession, url: str, strict: str, content: list[Row], ddl: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        writer(frame(spark, *content, ddl=ddl), url, strict).mode("append").save()
    found = refusal(raised)
    assert isinstance(found, error)
    assert words in str(found)
    assert rows(load(spark, url, strict)) == KEPT


def test_an_unknown_family_and_a_qualifier_with_the_shadow_suffix_are_refused(
    spark: SparkSession, url: str, strict: str
) -> None:
    wider = frame(spark, ("a", 1), ddl="name string, extra long")
    for mapping, words in (
        ("extra=nowhere:extra", "is mapped to family b'nowhere'"),
        ('{"extra": "d:extra\\u0080"}', "which mark shadow cells"),
        ("extra", "is not of the form name=family:qualifier"),
    ):
        with pytest.raises(PySparkException) as raised:
            writer(wider, url, strict, mergeSchema="true", mapping=mapping).mode("append").save()
        assert words in str(refusal(raised))
    assert load(spark, url, strict).columns == ["name", "count", "note"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tabel": "t"}, "unknown option 'tabel'; did you mean table"),
        ({"table": "nowhere"}, "there is no table 'nowhere'"),
        ({"columns": "cuont"}, "no column 'cuont'; did you mean 'count'"),
        ({"batchRows": "many"}, "batchRows='many' is not a whole number"),
        ({"_snapshotVersion": "9000000000000000000"}, "was never issued"),
        ({"rowPrefix": '["a", "b"]'}, "has 2 values, but the row key has only the columns name"),
        ({"rowStart": "0xzz"}, "row bound '0xzz' is not a valid hexadecimal number"),
        ({"columns": "name,name"}, "each column at most once"),
        ({"numPartitions": "0"}, "numPartitions='0' is not a whole number of at least 1"),
        ({"_snapshotVersion": "soon"}, "_snapshotVersion='soon' is not a whole number"),
    ],
)
def test_a_bad_option_of_a_read_is_refused_with_its_value(
    spark: SparkSession, url: str, strict: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        load(spark, url, **{"table": strict, **options}).collect()
    found = refusal(raised)
    assert isinstance(found, Misuse)
    assert words in str(found)


# Found by Spark itself


def test_spark_finds_the_source_by_itself_by_the_package_pyspark_omid(
    spark: SparkSession, url: str, strict: str
) -> None:
    """A fresh session of this context, in which nobody registered anything; its name there is the source's own."""
    other = spark.newSession()
    assert not hasattr(other, "_pyomid_registered")
    loaded = other.read.format("omid").option("url", url).option("table", strict).load()
    assert rows(loaded) == KEPT


def test_a_thread_that_connects_may_write(spark: SparkSession, url: str) -> None:
    """Spark looks for the format of a write in the thread's active session, and a new thread has none."""
    rows = spark.createDataFrame([("a", 1)], "name string, balance long")

    def write() -> None:
        pyomid.spark.connect(spark, url)
        rows.write.format("omid").options(url=url, table="by_thread", rowKey="name").mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert spark.read.format("omid").options(url=url, table="by_thread").load().count() == 1


def test_timestamps_mean_the_same_moment_in_every_time_zone_of_a_session(spark: SparkSession, url: str) -> None:
    moment = datetime(2013, 3, 10, 7, 30, tzinfo=UTC)
    content = frame(spark, ("a", moment), ddl="name string, at timestamp")
    writer(content, url, "zones").mode("append").save()
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = load(spark, url, "zones").select(f.unix_timestamp("at"), f.col("at").cast("string")).first()
        assert tuple(found) == (int(moment.timestamp()), "2013-03-10 03:30:00")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
