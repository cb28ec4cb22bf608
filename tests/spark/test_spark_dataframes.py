"""DataFrames over the embedded store: data source and transactions, with a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from spark_frames import load, rows

import pyomid
import pyomid.spark
from portions import first
from pyomid import crashpoints
from pyomid.errors import Misuse, MisuseType, TransactionEnded, UnknownTable
from pyomid.spark.sessions import is_connect
from pyomid.spark.transactions import HERE_ROWS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = "name string, count long, note string"
TYPES = (
    "b boolean, y byte, s short, i int, f float, d double, n decimal(20,4), t string, x binary, "
    "day date, at timestamp, here timestamp_ntz, how_long interval day to second, many array<decimal(5,1)>, "
    "pairs map<string,date>, both struct<a:int,b:binary>"
)
MOMENT = datetime(2013, 1, 1, 5, 0, 0, 123456)
FULL = (
    True, -1, 2, -3, 1.5, -2.5, Decimal("-12345.6789"), "", b"\x00", date(1969, 12, 31), MOMENT, MOMENT,
    timedelta(days=-1, microseconds=5), [Decimal("1.5"), None], {"x": date(2013, 1, 1)}, (7, b"\xff"),
)  # fmt: skip


def frame(spark: SparkSession, *rows: tuple[Any, ...], ddl: str = DDL) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl)


def write(spark: SparkSession, url: str, table: str, *content: tuple[Any, ...], **how: Any) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, *content), table, row_key=["name"], **how)


@pytest.mark.connect
def test_rows_that_are_here_are_written_as_tasks_write_them(spark: SparkSession, url: str) -> None:
    """A frame that Spark has in the driver is written there, in one branch; another one by tasks. Over Connect Spark
    does not always say that it has one there.
    """
    db = pyomid.spark.connect(spark, url)
    ddl = f"id long, {TYPES}, `dotted.name` string, `T` string, odd double"
    full = (*FULL, "q", "T", float("nan"))
    content = [(number, *(full if number % 3 else [None] * len(full))) for number in range(30)]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        made = frame(spark, *content, ddl=ddl)
        here = spark.createDataFrame(made.toArrow(), made.schema)
        with db.begin() as tx:
            by_driver = tx.write(here, "here", row_key="id")
            by_tasks = tx.write(here.repartition(2, "id"), "tasks", row_key="id")
            assert is_connect(spark) or (by_driver.branches, by_tasks.branches) == (1, 2)
            assert (by_driver.rows, by_driver.cells, by_driver.bytes) == (30, by_tasks.cells, by_tasks.bytes)
        assert repr(rows(load(spark, url, "here"))) == repr(rows(load(spark, url, "tasks"))) == repr(rows(here))
        assert load(spark, url, "here").schema.simpleString() == made.schema.simpleString()
        with db.begin() as tx:
            deleted = tx.delete(here.limit(5).toArrow(), "here")
            assert deleted.rows == 5
            assert is_connect(spark) or deleted.branches == 1
        assert load(spark, url, "here").count() == 25
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.connect
def test_many_rows_that_are_here_are_written_by_tasks(spark: SparkSession, url: str) -> None:
    numbers = pa.array(range(HERE_ROWS_MAX + 1))
    with pyomid.spark.connect(spark, url).begin() as tx:
        few = tx.write(pa.table({"id": numbers[1:]}), "few", row_key="id")
        assert is_connect(spark) or few.branches == 1
        assert tx.write(pa.table({"id": numbers}), "many", row_key="id").branches > 1
    assert [load(spark, url, table).count() for table in ("few", "many")] == [HERE_ROWS_MAX, HERE_ROWS_MAX + 1]


def test_a_local_frame_is_computed_once(spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows in this process, many by tasks, which need no rows here."""
    numbers = pa.array(range(HERE_ROWS_MAX + 1))
    few, many = (spark.createDataFrame(pa.table({"id": ids})) for ids in (numbers[1:], numbers))
    assert few.isLocal()
    assert many.isLocal()
    with pyomid.spark.connect(spark, url).begin() as tx:
        assert tx.write(few, "few_local", row_key="id").branches == 1
        monkeypatch.setattr(type(many), "toArrow", None)
        assert tx.write(many, "many_local", row_key="id").rows == len(numbers)


@pytest.mark.connect
def test_a_bad_row_that_is_here_is_refused_with_its_value(spark: SparkSession, url: str) -> None:
    write(spark, url, "kept", ("a", 1, None))
    bad = [
        (pa.table({"name": ["b", "b"], "count": [1, 2]}), "two rows.*'b'"),
        (pa.table({"name": ["b", None], "count": [1, 2]}), "'name'"),
    ]
    for given, told in bad:
        tx = pyomid.spark.connect(spark, url).begin()
        with pytest.raises(Misuse, match=told) as raised:
            tx.write(given, "kept")
        assert "\n" not in str(raised.value)
        with pytest.raises(TransactionEnded, match="rollback"):
            tx.write(pa.table({"name": ["c"], "count": [3]}), "kept")
        tx.rollback()
    assert rows(load(spark, url, "kept")) == [("a", 1, None)]


@pytest.mark.parametrize("place", ["spark.task.before_write", "spark.task.after_write"])
def test_an_interrupted_write_of_rows_that_are_here_is_undone(spark: SparkSession, url: str, place: str) -> None:
    db = pyomid.spark.connect(spark, url)

    def interrupt() -> None:
        crashpoints.disarm()
        raise KeyboardInterrupt

    few, table = pa.table({"name": ["a"], "count": [1]}), place.replace(".", "-")
    crashpoints.arm_action(place, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), db.begin() as tx:
            tx.write(few, table, row_key="name")
    finally:
        crashpoints.disarm()
    assert load(spark, url, table).count() == 0
    with db.begin() as tx:
        tx.write(few, table)
    assert rows(load(spark, url, table)) == [("a", 1)]


@pytest.mark.connect
def test_frames_of_other_libraries_are_written(spark: SparkSession, url: str) -> None:
    """As Arrow lays them out, Polars' views and categories among them; a frame of pandas as Spark takes it."""
    db = pyomid.spark.connect(spark, url)
    words = pa.array(["x", None], pa.string_view())
    kinds = pa.array(["k", "k"]).dictionary_encode()
    lists = pa.array([["u"], []], pa.large_list(pa.string_view()))
    columns = {"name": pa.array(["a", "b"], pa.large_string()), "word": words, "kind": kinds, "list": lists}
    table = pa.table({**columns, "small": pa.array([255, None], pa.uint8())})
    expected = [("a", "x", "k", ["u"], 255), ("b", None, "k", [], None)]
    batch = table.to_batches()[0]
    for given, target in [(table, "arrow"), (table.to_reader(), "stream"), (batch, "batch")]:
        with db.begin() as tx:
            assert tx.write(given, target, row_key="name").rows == 2
            tx.delete(pa.table({"name": ["c"]}), target)
        assert rows(load(spark, url, target)) == expected
    frame_of_pandas = pd.DataFrame({"name": ["a", "b"], "ratio": [1.5, None], "at": [datetime(2013, 1, 1)] * 2})
    with db.begin() as tx:
        tx.merge(frame_of_pandas.drop(columns=["ratio", "at"]), "arrow", on="name").whenMatched().delete().merge()
        tx.write(frame_of_pandas, "pandas", row_key="name")
        for bad in ([("a", 1)], {"name": ["a"]}, None):
            with pytest.raises(MisuseType, match=f"must be a Spark, pandas .*, not {type(bad).__name__}"):
                tx.write(bad, "arrow")
    assert rows(load(spark, url, "arrow")) == []
    loaded = load(spark, url, "pandas")
    assert loaded.schema["at"].dataType.typeName() == "timestamp"
    assert rows(loaded.select("name", "ratio")) == [("a", 1.5), ("b", None)]


NANOS = pa.array([1_000_000_001, None], pa.timestamp("ns", "UTC"))
PAIRS: list[tuple[str, pa.Array, Any]] = [
    ("timestamp", NANOS, None),
    ("timestamp", pa.array([1_000, None], pa.timestamp("ns", "UTC")), datetime(1970, 1, 1, 0, 0, 0, 1)),
    ("timestamp_ntz", pa.array([1, None], pa.timestamp("s")), datetime(1970, 1, 1, 0, 0, 1)),
    ("timestamp_ntz", NANOS, None),
    ("int", pa.array([2**31 - 1, None]), 2**31 - 1),
    ("int", pa.array([2**31, None]), None),
    ("long", pa.array([2**63, None], pa.uint64()), None),
    ("long", pa.array([7, None], pa.uint64()), 7),
    ("decimal(5,2)", pa.array([Decimal("1.5"), None]), Decimal("1.50")),
    ("decimal(5,2)", pa.array([Decimal("1.005"), None]), None),
    ("string", pa.array([1, None]), None),
    ("string", pa.array(["x", None]).dictionary_encode(), "x"),
    ("array<decimal(3,2)>", pa.array([[Decimal("1.005")], None]), None),
    ("array<timestamp>", pa.array([[1], None], pa.list_(pa.timestamp("ns", "UTC"))), None),
    ("struct<a:int,b:int>", pa.array([{"b": 2, "a": 1}, None]), (1, 2)),
    ("struct<a:int>", pa.array([{"a": 1, "b": 2}, None]), None),
    ("interval day to second", pa.array([1, None], pa.duration("ns")), None),
]


def test_arrow_data_get_one_verdict_by_both_ways_in(spark: SparkSession, url: str) -> None:
    """What Spark's conversion would cut or cast is refused before Spark has it, as the client refuses it."""
    columns = {f"c{place}": kind for place, (kind, _, _) in enumerate(PAIRS)}
    types = spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns.items())).schema
    with pyomid.connect(url) as db:
        for table in ("by_spark", "by_client"):
            db.create_table(table, ["d"], conflict_level="row")
            db.set_schema(table, {"id": "long"}, row_key="id")
            pyomid.spark.connect(spark, url).alter_columns(table, add=types)
        for name, (_, values, expected) in zip(columns, PAIRS, strict=True):
            data = pa.table({"id": [1, 2], name: values})
            for given in (data, data.slice(0, 0)):
                verdicts = []
                for table in ("by_spark", "by_client"):
                    try:
                        if table == "by_spark":
                            with pyomid.spark.connect(spark, url).begin() as tx:
                                tx.write(given, table)
                        else:
                            with db.begin() as tx:
                                tx.table(table).write_arrow(given)
                        verdicts.append("taken")
                    except MisuseType as error:
                        verdicts.append(str(error).partition("column ")[2].split()[0])
                assert verdicts in (["taken"] * 2, [repr(name)] * 2)
                assert given.num_rows == 0 or (verdicts[0] == "taken") == (expected is not None), name
    found = sorted(load(spark, url, "by_spark").collect())
    assert [found[0][name] for name in columns] == [expected for *_, expected in PAIRS]
    assert repr(found) == repr(sorted(load(spark, url, "by_client").collect()))


@pytest.mark.parametrize("by_arrow", ["true", "false"])
def test_nulls_of_pandas_depend_on_no_setting_and_no_neighbour(spark: SparkSession, url: str, by_arrow: str) -> None:
    nan = float("nan")
    columns = {
        "c": pd.Categorical(["u", None]),
        "x": [1.5, nan],
        "o": ["a", nan],
        "when": pd.to_datetime(["2020", None]),
    }
    index = pd.Index([1, 2], name="id")
    spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", by_arrow)
    try:
        for extra in ({}, {"u": pd.array([1, 2], "uint8")}):
            with pyomid.spark.connect(spark, url).begin() as tx:
                tx.write(pd.DataFrame({**columns, **extra}, index), f"pandas{len(extra)}", row_key="id")
                tx.write(pd.DataFrame({"x": pd.Series([], dtype="float64")}, index[:0]), f"pandas{len(extra)}")
            found = rows(load(spark, url, f"pandas{len(extra)}").selectExpr("id", "c", "x", "o", "isnull(when)"))
            assert repr(found) == repr([(1, "u", 1.5, "a", False), (2, None, None, None, True)])
    finally:
        spark.conf.unset("spark.sql.execution.arrow.pyspark.enabled")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            pd.array([2**63], "uint64"),
            "'bad' has type uint64, and no column type holds all its values; cast it to int64",
        ),
        (pd.period_range("2020-01", periods=1, freq="M"), "'bad' has type extension<pandas.period"),
        (pd.Series([1], dtype="datetime64[ns, UTC]"), "'bad' .* Casting .* would lose data"),
        ([[pd.Timestamp(1, tz="UTC")]], "column 'bad' has Timestamp.* would lose its nanoseconds"),
        (pd.Series([{"x": (pd.Timedelta(1),)}]), "column 'bad' has Timedelta.* would lose its nanoseconds"),
        (pd.Series([2**64], dtype=object), "column 'bad' cannot be converted to Arrow: Python int too large"),
        (pa.array([1], pa.time64("us")), "'bad' has type time64"),
        (pd.to_datetime(["2013-11-03 01:30"]), "without a time zone, and some times in it are ambiguous"),
    ],
)
def test_what_no_column_holds_is_refused_with_its_name(spark: SparkSession, url: str, column: Any, words: str) -> None:
    is_arrow = isinstance(column, pa.Array)
    given = (pa.table if is_arrow else pd.DataFrame)({"name": ["a"], "bad": column})
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with pytest.raises(MisuseType, match=words), pyomid.spark.connect(spark, url).begin() as tx:
            tx.write(given, "unmade", row_key="name")
        write(spark, url, "made", ("a", 1, None))
        assert load(spark, url, "made").count() == 1
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_merge_takes_values_as_a_write_does(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    with db.begin() as tx:
        tx.write(spark.sql("SELECT 1 AS id, 1 AS n, TIMESTAMP '1970-01-01' AS at"), "merged-instants", row_key="id")
    at = pa.array([1_000], pa.timestamp("ns", "UTC"))
    with db.begin() as tx:
        merge = tx.merge(pa.table({"id": [1], "n": [5], "at": at}), "merged-instants", on="id")
        assert merge.whenMatched().updateAll().whenNotMatched().insertAll().merge().updated == 1
    assert rows(load(spark, url, "merged-instants").select("id", "n")) == [(1, 5)]
    for bad in ({"id": [1], "n": [2**31], "at": at}, {"id": [2**31], "n": [1], "at": at}):
        with pytest.raises(MisuseType, match="cannot store"), db.begin() as tx:
            tx.merge(pa.table(bad), "merged-instants", on="id").whenMatched().updateAll().merge()


NUMBERS: dict[str, tuple[str, str, str | None]] = {
    "id": ("int", "5", None),
    "y": ("int", "127", "128"),
    "f": ("long", "16777216", "16777217"),
    "d": ("byte", "7", None),
    "n": ("short", "99", "1000"),
    "m": ("decimal(6,2)", "12.50", "12.55"),
}
"""Columns of a frame: their type, a number that the table's column holds, and one that it cannot hold."""


@pytest.mark.parametrize("way", first(1, ["tx.write", "df.write"]))
def test_numbers_of_a_frame_become_those_of_their_columns(spark: SparkSession, url: str, way: str) -> None:
    """As those of an Arrow table: if the column holds each of them exactly."""
    db, table = pyomid.spark.connect(spark, url), f"numbers_{way.replace('.', '_')}"
    with db.begin() as tx:
        ddl = "id long, y byte, f float, d double, n decimal(4,2), m decimal(4,1)"
        tx.write(spark.createDataFrame([], ddl), table, row_key="id")

    def put(bad: str = "") -> None:
        texts = {name: (kind, wrong if name == bad else good) for name, (kind, good, wrong) in NUMBERS.items()}
        casts = (f"CAST('{text}' AS {kind}) AS {name}" for name, (kind, text) in texts.items())
        given = spark.sql(f"SELECT {', '.join(casts)} FROM range(1)")
        if way == "tx.write":
            with db.begin() as tx:
                tx.write(given, table)
        else:
            with pyomid.spark.original_errors():
                given.write.format("omid").options(url=url, table=table).mode("append").save()

    put()
    stored = (5, 127, 16777216.0, 7.0, Decimal("99.00"), Decimal("12.5"))
    for bad in (name for name, (_, _, wrong) in NUMBERS.items() if wrong):
        with pytest.raises(MisuseType, match=f"column '{bad}' has type .*, which cannot store a number of the frame"):
            put(bad)
    assert rows(load(spark, url, table)) == [stored]
    with db.begin() as tx:
        assert tx.delete(spark.sql("SELECT 5 AS id"), table).rows == 1
    assert rows(load(spark, url, table)) == []


def test_key_columns_of_many_types_order_and_bound_a_read(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    ddl = "origin string, at timestamp, flight int, delay int"
    at = [datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    content = [(origin, moment, number, number) for origin in ("EWR", "JFK") for moment in at for number in (-1, 5)]
    with db.begin() as tx:
        tx.write(frame(spark, *content, ddl=ddl), "keys", row_key="origin, at desc, flight")
    with db.begin() as tx:
        assert tx.read("keys", prefix=["JFK"]).count() == 6
        assert tx.read("keys", prefix=["JFK", at[1]]).count() == 2
        assert tx.read("keys", start=["EWR", at[1]], stop=["JFK", at[2]]).count() == 4
        ordered = tx.read("keys", columns=["flight", "origin"], partitions=1).collect()
        assert [row["flight"] for row in ordered[:2]] == [-1, 5]
    assert load(spark, url, "keys", rowPrefix='["JFK", "2013-01-02T00:00:00Z"]').count() == 2
    assert load(spark, url, "keys", rowPrefix="EWR", columns="delay").columns == ["delay"]


@pytest.mark.connect
def test_many_tables_commit_together_and_a_failed_block_leaves_nothing(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "left", ("a", 1, None))
    write(spark, url, "right", ("a", 1, None))

    def fail(tx: pyomid.spark.SparkTransaction) -> None:
        tx.write(frame(spark, ("b", 2, None)), "left")
        tx.write(frame(spark, ("b", 2, None)), "right")
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        db.run(fail)
    assert load(spark, url, "left").count() == load(spark, url, "right").count() == 1
    with db.begin() as tx:
        tx.write(frame(spark, ("b", 2, None)), "left")
        tx.write(frame(spark, ("b", 2, None)), "right")
        assert load(spark, url, "left").count() == 1
        assert tx.read("left").count() == 2
    assert load(spark, url, "left").count() == load(spark, url, "right").count() == 2


def test_merging_a_schema_adds_columns_and_nulls_may_keep_what_was_there(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(spark, url, "merged", ("a", 1, "x"), ("b", 2, "y"))
    wider = frame(spark, ("a", None, 1.5), ddl="name string, count long, share double")
    with pytest.raises(Misuse, match=r"no column 'share'.*mergeSchema"), db.begin() as tx:
        tx.write(wider, "merged")
    with db.begin() as tx:
        tx.write(wider, "merged", merge_schema=True, nulls="keep")
    assert rows(load(spark, url, "merged")) == [("a", 1, "x", 1.5), ("b", 2, "y", None)]


def test_what_a_program_without_spark_wrote_is_read_by_a_schema(spark: SparkSession, url: str) -> None:
    with pyomid.connect(url) as db:
        db.create_table("accounts", families=["f"])
        with db.begin() as tx:
            tx.table("accounts").put(b"alice", {b"f:balance": b"100"})
    reader = spark.read.format("omid").option("url", url).option("table", "accounts").schema("who string, money string")
    loaded = reader.option("rowKey", "who").option("mapping", "money=f:balance").load()
    assert rows(loaded) == [("alice", "100")]


def test_temporary_views_keep_their_options(spark: SparkSession, url: str) -> None:
    write(spark, url, "viewed", ("a", 1, None))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING omid OPTIONS (url '{url}', table 'viewed')")
    assert spark.sql("SELECT sum(count) FROM v").first()[0] == 1


@pytest.fixture(scope="module")
def strict(spark: SparkSession, url: str) -> Iterator[str]:
    """The table of the writes that are refused; none of them changes it."""
    write(spark, url, "strict", ("kept", 1, None))
    yield "strict"
    assert rows(load(spark, url, "strict")) == [("kept", 1, None)]


@pytest.mark.parametrize(
    ("content", "ddl", "how", "error", "words"),
    [
        ([(None, 1, None)], DDL, {}, Misuse, "'name' is null"),
        ([("a", 1, None), ("a", 2, None)], DDL, {}, Misuse, "row key name='a'.* In Spark, duplicates=\"last\" keeps"),
        ([("a", "1", None)], "name string, count string, note string", {}, MisuseType, "column 'count' has type long"),
        ([(1, None)], "count long, note string", {}, Misuse, "lacks the row key column 'name'"),
        (
            [("a", 1)],
            "name string, cuont long",
            {},
            Misuse,
            r"no column 'cuont'; did you mean 'count'\?; to add it, set merge_schema=True \(in df.write: option",
        ),
        ([("x" * 600, 1, None)], DDL, {}, Misuse, "limit"),
        ([("a", 1, None)], DDL, {"mode": "apend"}, Misuse, "mode='apend'"),
        ([("a", 1, None)], DDL, {"mode": "error"}, Misuse, "has rows, and mode='error'"),
        ([("a", 1, None)], DDL, {"row_key": ["count"]}, Misuse, "a table's row key cannot change"),
    ],
)
def test_a_bad_write_is_refused_and_nothing_is_lost(
    spark: SparkSession, url: str, strict: str, content: list[tuple[Any, ...]], ddl: str, how: dict[str, Any],
    error: type[Exception], words: str,
) -> None:  # fmt: skip
    with pytest.raises(error, match=words), pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, *content, ddl=ddl), strict, **how)


def test_a_write_without_a_row_key_creates_no_table(spark: SparkSession, url: str, strict: str) -> None:
    told = (
        r"no table 'stric'; to create the table with this write, give row_key=\[…\] \(.*rowKey\); "
        r"did you mean 'strict'\?"
    )
    with pytest.raises(UnknownTable, match=told), pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark, ("a", 1, None)), "stric")


def test_duplicates_across_partitions_are_found_or_the_last_wins(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    many = spark.range(0, 100, numPartitions=4).selectExpr("concat('k', id % 60) AS name", "id AS count")
    with pytest.raises(Misuse, match="two rows have the row key name='k"), db.begin() as tx:
        tx.write(many, "dup", row_key=["name"])
    with db.begin() as tx:
        tx.write(many, "dup", row_key=["name"], duplicates="last")
    assert load(spark, url, "dup").count() == 60
