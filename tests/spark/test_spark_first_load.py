"""The first load of a user: nothing but a frame, a table's name and its key; and what such a write is refused with."""

from __future__ import annotations

import os
import sys
import traceback
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest
from spark_sessions import run_driver, url_of

import pyomid
import pyomid.spark
from pyomid.errors import Misuse
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.sessions import workers_fault
from pyomid.spark.source.datasource import check_pyspark
from pyomid.spark.source.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def wide(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows, numPartitions=4).selectExpr("id AS k", *(f"id * {n} AS c{n}" for n in range(17)))


def write(frame: DataFrame, url: str, table: str, **options: Any) -> None:
    writer = frame.write.format("omid").option("url", url).option("table", table).option("rowKey", "k")
    writer.options(**options).mode("append").save()


def rows(spark: SparkSession, url: str, table: str) -> int:
    return int(spark.read.format("omid").option("url", url).option("table", table).load().count())


def level_of(url: str, table: str) -> str:
    with pyomid.connect(url) as db:
        return db.table_info(table).conflict_level.value


def test_a_first_load_of_20_000_rows_and_18_columns_just_works(
    spark: SparkSession, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(wide(spark, 20_000), url, "by_write")
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(wide(spark, 20_000), "by_transaction", row_key="k")
    assert [rows(spark, url, table) for table in ("by_write", "by_transaction")] == [20_000, 20_000]
    assert level_of(url, "by_write") == level_of(url, "by_transaction") == "row"
    assert not tx.claims_tables
    assert not caplog.records


def test_the_level_of_a_new_table_is_the_one_that_was_asked_for(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(wide(spark, 3), url, "as_cell", conflictLevel="cell")
    with db.begin() as tx:
        tx.write(wide(spark, 3), "as_cell_too", row_key="k", conflict_level="cell")
    with db.begin(conflict_level="cell") as tx:
        tx.write(wide(spark, 3), "as_cell_three", row_key="k")
    assert {level_of(url, table) for table in ("as_cell", "as_cell_too", "as_cell_three")} == {"cell"}


def test_another_level_than_the_tables_is_refused_before_the_job(spark: SparkSession, url: str) -> None:
    write(wide(spark, 3), url, "kept")
    never = wide(spark, 3).selectExpr("*", "CAST(raise_error('the job ran') AS bigint) AS c17")
    with (
        pytest.raises(Misuse, match="conflict level 'row', not 'cell'"),
        pyomid.spark.connect(spark, url).begin() as tx,
    ):
        tx.write(never, "kept", conflict_level="cell", merge_schema=True)
    with pytest.raises(Exception, match="conflict level 'row', not 'cell'"):
        write(never, url, "kept", conflictLevel="cell", mergeSchema="true")
    with pyomid.connect(url) as db:
        schema = db.table_info("kept").schema
    assert schema is not None
    assert len(schema.columns) == 18


def test_what_tasks_do_not_tell_is_looked_up_by_tasks(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = pyomid.spark.connect(spark, url)
    monkeypatch.setattr(LargeTransaction, "reported_max", 3)
    with db.begin() as tx:
        tx.write(wide(spark, 100), "untold", row_key="k")
        assert [report.ids_count for report in tx.writes.reports] == [25] * 4
    twice = wide(spark, 100).union(wide(spark, 1))
    with pytest.raises(Misuse, match="two rows have the row key k=0,"), db.begin() as tx:
        tx.write(twice, "untold")
    assert rows(spark, url, "untold") == 100


def test_jobs_and_reads_say_what_they_are(spark: SparkSession, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def name(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = pyspark.TaskContext.get().getLocalProperty("spark.job.description")
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"k": [1], "name": [told]})

    spark.sparkContext.setJobDescription("mine")
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.range(1).coalesce(1).mapInArrow(name, "k long, name string"), "named", row_key="k")
        tx.read("named", start=1).where("k > 0").explain(True)
        assert tx.read("named").head()["name"] == "omid write named"
    assert f"omid named rowStart=0x8000000000000001 version={tx.start_ts}" in capsys.readouterr().out
    assert spark.sparkContext.getLocalProperty("spark.job.description") == "mine"
    spark.sparkContext.setLocalProperty("spark.job.description", None)


# Names and values


def test_names_with_dots_are_written_read_and_deleted_by(spark: SparkSession, url: str) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 2)], "`x.y` string, `n.m` int")
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame, "dotted", row_key=["x.y"])
        tx.delete(frame.where("`n.m` = 1"), "dotted")
        assert [tuple(row) for row in tx.read("dotted", columns=["n.m", "x.y"]).collect()] == [(2, "b")]
        tx.write(tx.read("dotted").selectExpr("`x.y`", "`n.m` + 1 AS `n.m`"), "dotted", mode="overwrite")
        assert [tuple(row) for row in tx.read("dotted").collect()] == [("b", 3)]


def test_one_name_stands_for_a_list_of_one(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    write(wide(spark, 2), url, "alone")
    with db.begin() as tx:
        assert tx.read("alone", columns="c1").columns == ["c1"]
    assert [each.table for each in db.compact("alone").tables] == ["alone"]
    assert db.verify("alone").ok


# Refused by name


def test_a_mistyped_url_is_refused_and_makes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/mistyped"
    db = pyomid.spark.connect(spark, url)
    reads = (
        lambda: rows(spark, url, "t"),
        lambda: spark.read.format("omid").schema("k long").option("url", url).option("table", "t").load().collect(),
        lambda: db.verify(),
        lambda: db.compact(),
        lambda: db.look_up_run("run"),
    )
    for read in reads:
        with pytest.raises(Exception, match="there is no database in"):
            read()
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_task_is_one_sentence_without_frames_of_the_jvm(spark: SparkSession, url: str) -> None:
    write(wide(spark, 2), url, "plain")
    with pytest.raises(Misuse) as raised, pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(wide(spark, 2).selectExpr("CAST(NULL AS long) AS k"), "plain")
    shown = "".join(traceback.format_exception(raised.value))
    assert "row key column 'k' is null" in shown
    assert "JVM" not in shown
    assert "org.apache" not in shown
    assert shown.count("is null") == 1


def test_a_table_of_sparks_own_catalog_is_refused_with_the_way(spark: SparkSession, url: str) -> None:
    for options in (f"OPTIONS (url '{url}', table 'owned')", ""):
        with pytest.raises(Exception, match="for SQL use CREATE TEMPORARY VIEW"):
            spark.sql(f"CREATE TABLE owned USING omid {options}")
    with pytest.raises(Misuse, match=r"got no options.* saveAsTable.* for SQL use CREATE TEMPORARY VIEW"):
        Options({})


@pytest.mark.parametrize("version", ["4.0.1", "4.0.0.dev1", "3.5.6"])
def test_a_pyspark_that_is_too_old_is_refused_by_name(version: str) -> None:
    with pytest.raises(Misuse, match=f"PySpark {version} is too old: pyomid needs 4.1 or later"):
        check_pyspark(version)


def test_this_pyspark_and_this_python_will_do() -> None:
    check_pyspark(pyspark.__version__)
    check_pyspark("10.0")
    assert workers_fault(sys.executable) == ""


@pytest.mark.long
def test_workers_run_the_python_of_a_program_that_did_not_choose_one(tmp_path: Path) -> None:
    """Beside a `python3` that lacks pyomid, which Spark takes by itself."""
    venv.create(tmp_path / "bare", with_pip=False)
    path = f"{tmp_path}/bare/bin:{os.environ['PATH']}"
    ended = run_driver("forgetful_driver.py", url_of(tmp_path), environment={"PATH": path, "PYSPARK_PYTHON": ""})
    told = ended.stdout.splitlines()
    assert told[0] == "1 row", ended.stdout + ended.stderr
    assert told[1:] == [
        "Misuse: the Spark session was stopped; give a running session to pyomid.spark.connect(spark, url)"
    ]


@pytest.mark.long
def test_workers_that_run_another_python_are_refused_before_they_start(tmp_path: Path) -> None:
    """PYSPARK_PYTHON names a Python of the same version that lacks pyomid."""
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "python3")
    assert workers_fault(bare) == "which lacks pyomid"
    assert workers_fault(bare, sends_packages=True) == ""
    ended = run_driver("forgetful_driver.py", url_of(tmp_path), environment={"PYSPARK_PYTHON": bare})
    told = ended.stdout.splitlines()
    assert len(told) == 1, ended.stdout + ended.stderr
    for line in told:
        assert line.startswith(f"Misuse: Spark's workers run '{bare}', which lacks pyomid"), line
        assert "set PYSPARK_PYTHON to a Python of the same version" in line
    assert "ModuleNotFoundError" not in ended.stdout + ended.stderr


@pytest.mark.long
def test_a_format_that_spark_finds_by_itself_is_not_registered_over_it(tmp_path: Path) -> None:
    """The workers' Python has pyomid; Spark would warn that the format "replaced a statically registered data
    source"."""
    ended = run_driver("forgetful_driver.py", url_of(tmp_path), environment={"PYSPARK_PYTHON": sys.executable})
    assert ended.stdout.splitlines()[0] == "1 row", ended.stdout + ended.stderr
    assert "WARN NativeCodeLoader" in ended.stderr, "warnings are shown"
    assert "statically registered" not in ended.stderr
