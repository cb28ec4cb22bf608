"""A value of another type than its column: what Spark's store assignment widens is stored as Spark stores it, by each
statement and from each frame; every other type is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import MisuseType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ZONE = "America/Sao_Paulo"
"""Where 2018-11-04 began at 1:00."""

SOURCES = {
    "DATE": "DATE'2018-11-04'",
    "TIMESTAMP": "TIMESTAMP'2018-07-01 12:00:00.000001'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'2018-07-01 12:00:00.000001'",
    "INT": "7",
    "BOOLEAN": "true",
    "BINARY": "X'6162'",
    "DOUBLE": "1.5D",
    "TINYINT": "7Y",
    "SMALLINT": "7S",
    "BIGINT": "7L",
    "FLOAT": "1.5F",
    "DECIMAL(4,1)": "CAST(1.5 AS DECIMAL(4,1))",
    "DECIMAL(10,0)": "7BD",
    "STRING": "'2018-11-04'",
    "STRING COLLATE UTF8_LCASE": "'Ab' COLLATE UTF8_LCASE",
    "INTERVAL DAY": "INTERVAL '3' DAY",
    "INTERVAL YEAR TO MONTH": "INTERVAL '1-2' YEAR TO MONTH",
    "INTERVAL": "make_interval(1, 2)",
    "VARIANT": "parse_json('1')",
    "VOID": "NULL",
}
"""By type: a value of it."""
COLUMNS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(4,1)", "DECIMAL(38,2)", "STRING"),
    *("BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL DAY TO SECOND"),
)
NOT_MERGED = ("INTERVAL YEAR TO MONTH", "INTERVAL")
"""What no task in Python reads."""
NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(4,1)", "DECIMAL(10,0)", "DECIMAL(38,2)")


@pytest.fixture
def db(spark: SparkSession, url: str) -> Iterator[pyomid.spark.SparkDatabase]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    db = pyomid.spark.connect(spark, url)
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(COLUMNS))
    db.sql(f"CREATE TABLE assigned (id INT, {columns}, PRIMARY KEY (id))")
    db.sql("INSERT INTO assigned (id) VALUES (2), (4)")
    yield db
    db.sql("DROP TABLE assigned")
    spark.conf.set("spark.sql.session.timeZone", zone)


def widens(spark: Any, source: str, column: str) -> bool:
    """Whether Spark's store assignment accepts this without a loss."""
    types = spark._jsparkSession.sessionState().sqlParser()
    given, wanted = types.parseDataType(source), types.parseDataType(column)
    cast = spark._jvm.org.apache.spark.sql.catalyst.expressions.Cast
    return bool(cast.canUpCast(given, wanted))


def is_of_longs(source: str, column: str) -> bool:
    """A pair that only an upcast has, not the store assignment: seconds since 1970."""
    return {source, column} == {"BIGINT", "TIMESTAMP"}


@pytest.mark.parametrize("source", first(3, SOURCES))
def test_what_spark_widens_is_stored_as_spark_stores_it(
    spark: SparkSession, db: pyomid.spark.SparkDatabase, source: str
) -> None:
    value = SOURCES[source]
    places = [place for place, column in enumerate(COLUMNS) if widens(spark, source, column)]
    taken = [place for place in places if not is_of_longs(source, COLUMNS[place])]
    names = [f"c{place}" for place in taken]
    if taken:
        wanted = spark.sql(f"SELECT {', '.join(f'CAST({value} AS {COLUMNS[place]})' for place in taken)}").first()
        frame = spark.sql(f"SELECT {', '.join(f'{value} AS {name}' for name in names)}")
        db.sql(f"INSERT INTO assigned (id, {', '.join(names)}) SELECT 1, * FROM {{frame}}", frame=frame)
        db.sql(f"UPDATE assigned SET {', '.join(f'{name} = {value}' for name in names)} WHERE id = 2")
        with db.begin() as tx:
            tx.write(frame.selectExpr("3 AS id", "*"), "assigned")
        sets = ", ".join(f"{name} = s.{name}" for name in names)
        merge = f"MERGE INTO assigned t USING {{frame}} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET {sets}"
        if source in NOT_MERGED:
            with pytest.raises(
                MisuseType, match=r"the source's column 'c9' has type interval.*; cast the column to string"
            ):
                db.sql(merge, frame=frame.selectExpr("4 AS id", "*"))
            db.sql(f"UPDATE assigned SET {names[0]} = {value} WHERE id = 4")
        else:
            db.sql(merge, frame=frame.selectExpr("4 AS id", "*"))
        found = {row["id"]: tuple(row)[1:] for row in db.read("assigned").select("id", *names).collect()}
        assert found == dict.fromkeys((1, 2, 3, 4), tuple(wanted))
    others = [
        place
        for place, column in enumerate(COLUMNS)
        if place not in taken and column != source and not (source in NUMBERS and column in NUMBERS)
    ]
    for place in others:
        for change in ways(spark, db, value, f"c{place}"):
            with pytest.raises(MisuseType, match=f"'c{place}'") as error:
                change()
            assert "\n" not in str(error.value)


def ways(spark: SparkSession, db: pyomid.spark.SparkDatabase, value: str, name: str) -> Iterator[Callable[[], object]]:
    frame = spark.sql(f"SELECT 1 AS id, {value} AS {name}")

    def write() -> None:
        with db.begin() as tx:
            tx.write(frame, "assigned")

    yield write
    yield lambda: db.sql(f"UPDATE assigned SET {name} = {value}")


CLOCKS = {  # where daylight saving skipped and repeated an hour
    ("TIMESTAMP_NTZ'2018-11-04 00:30:00'", "TIMESTAMP"): "cannot hold the value 2018-11-04 00:30:00",
    ("TIMESTAMP'2018-02-18 02:30:00Z'", "TIMESTAMP_NTZ"): "cannot hold the value 2018-02-17 23:30:00",
}


@pytest.mark.parametrize(("value", "column"), CLOCKS)
def test_a_time_that_its_column_cannot_tell_from_another_is_refused(
    db: pyomid.spark.SparkDatabase, value: str, column: str
) -> None:
    name = f"c{COLUMNS.index(column)}"
    with pytest.raises(MisuseType, match=CLOCKS[value, column]):
        db.sql(f"UPDATE assigned SET {name} = {value}")


def test_rows_match_by_dates_and_texts_only_as_in_spark(spark: SparkSession, db: pyomid.spark.SparkDatabase) -> None:
    """Spark compares a text with a number as numbers, so as texts other rows would match."""
    at, text = (f"c{COLUMNS.index(kind)}" for kind in ("TIMESTAMP", "STRING"))
    db.sql(f"UPDATE assigned SET {at} = DATE'2018-11-04', {text} = '07' WHERE id = 2")
    merge = "MERGE INTO assigned t USING {frame} s ON t.%s = s.%s WHEN MATCHED THEN UPDATE SET c3 = 1"
    assert db.sql(merge % (at, at), frame=spark.sql(f"SELECT DATE'2018-11-04' AS {at}")).updated == 1
    with pytest.raises(MisuseType, match=f"'{text}' has type string, but the given value has type int; cast it"):
        db.sql(merge % (text, text), frame=spark.sql(f"SELECT 7 AS {text}"))


def test_a_date_of_pandas_begins_its_day_as_one_of_spark(db: pyomid.spark.SparkDatabase, spark: SparkSession) -> None:
    import datetime

    import pandas

    at, local = (f"c{COLUMNS.index(kind)}" for kind in ("TIMESTAMP", "TIMESTAMP_NTZ"))
    day = datetime.date(2018, 11, 4)
    with db.begin() as tx:
        tx.write(pandas.DataFrame({"id": [1, 2], at: [day, None], local: [day, None]}), "assigned")
    wanted = spark.sql(f"SELECT CAST(DATE'{day}' AS TIMESTAMP), CAST(DATE'{day}' AS TIMESTAMP_NTZ)").first()
    found: DataFrame = db.read("assigned").where("id = 1").select(at, local)
    assert found.first() == wanted
