"""One contender of `benchmarks.spark.peers`, in a process and an environment of its own: prints its figures as JSON.

    python _peer.py pyomid|delta|iceberg|ducklake|parquet cold|tiny|stream SETTINGS

Nothing of pyomid is imported but by its own contender: the environment of the others does not have it. `cold`: the load
comes first in a fresh session, then everything else. `tiny`: a frame of 20 rows comes first. `stream`: upserts alone,
for some minutes. DuckLake is worked by DuckDB and not by Spark, which hands it the rows as Arrow tables beforehand, and
compares what it read.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DDL = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
KEY = ("origin", "time_hour", "carrier", "flight")
TINY_ROWS = 20
READS = 5
STREAM_ROWS = 1_000


class Contender(ABC):
    """How one format does each piece of work on tables of one folder."""

    can_upsert = True
    can_commit_many = False
    can_keep_up = False
    """Upkeep may go on beside a stream of upserts: Delta's OPTIMIZE makes a MERGE beside it fail."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder

    @classmethod
    def configured(cls, builder: Any, jars: str) -> Any:
        return builder

    @abstractmethod
    def load(self, rows: DataFrame, table: str) -> None:
        """Into a table that is not there."""

    def load_few(self, rows: DataFrame, table: str) -> None:
        self.load(rows, table)

    @abstractmethod
    def read(self, table: str) -> DataFrame: ...

    @abstractmethod
    def upsert(self, rows: DataFrame, table: str) -> None:
        """Replaces or inserts by key."""

    def prepare(self, rows: DataFrame) -> None:  # noqa: B027 - nothing to do for most
        """What is to be written lies ready, as this contender takes it: not measured."""

    def aggregate(self, table: str, columns: Sequence[str]) -> object:
        """Of every value of these columns: the read that is measured."""
        return checksum(self.read(table), columns)

    def one_row(self, table: str, key: Sequence[str]) -> list[Any]:
        """`key`: conditions, each on one column."""
        return self.read(table).where(" and ".join(key)).collect()

    @abstractmethod
    def upkeep(self, table: str) -> None:
        """Small files made one, old versions dropped: all that there is to gain."""

    def upsert_many(self, rows: DataFrame, tables: Sequence[str]) -> None:
        """Into all of them, or none."""
        raise NotImplementedError

    def end(self) -> None:
        self.spark.stop()

    def bytes(self) -> int:
        """On the disk, holes left out."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())


class Pyomid(Contender):
    can_commit_many = can_keep_up = True

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        import pyomid.spark

        super().__init__(spark, folder)
        self.url = f"omid://{folder}/db"
        self.db = pyomid.spark.connect(spark, self.url)

    def load(self, rows: DataFrame, table: str) -> None:
        with self.db.begin() as tx:
            tx.write(rows, table, row_key=KEY)

    def load_few(self, rows: DataFrame, table: str) -> None:
        self.upsert(rows, table)

    def read(self, table: str) -> DataFrame:
        return self.spark.read.format("omid").options(url=self.url, table=table).load()

    def one_row(self, table: str, key: Sequence[str]) -> list[Any]:
        where = " and ".join(key)
        return self.spark.read.format("omid").options(url=self.url, table=table, where=where).load().collect()

    def upsert(self, rows: DataFrame, table: str) -> None:
        self.upsert_many(rows, [table])

    def upsert_many(self, rows: DataFrame, tables: Sequence[str]) -> None:
        """As Arrow, which is how few rows are written fastest."""
        few = rows.toArrow()
        with self.db.begin() as tx:
            for table in tables:
                tx.write(few, table, row_key=KEY)

    def upkeep(self, table: str) -> None:
        self.db.compact([table])
        self.db.sanitize()

    def end(self) -> None:
        self.db.close()
        super().end()


class Delta(Contender):
    @classmethod
    def configured(cls, builder: Any, jars: str) -> Any:
        return (
            builder.config("spark.jars", jars)
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        )

    def load(self, rows: DataFrame, table: str) -> None:
        rows.write.format("delta").save(f"{self.folder}/{table}")

    def read(self, table: str) -> DataFrame:
        return self.spark.read.format("delta").load(f"{self.folder}/{table}")

    def upsert(self, rows: DataFrame, table: str) -> None:
        from delta import DeltaTable  # type: ignore[import-not-found,unused-ignore]

        same = " and ".join(f"source.{name} = target.{name}" for name in KEY)
        target = DeltaTable.forPath(self.spark, f"{self.folder}/{table}").alias("target")
        target.merge(rows.alias("source"), same).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def upkeep(self, table: str) -> None:
        self.spark.sql(f"OPTIMIZE delta.`{self.folder}/{table}`")
        self.spark.sql(f"VACUUM delta.`{self.folder}/{table}` RETAIN 0 HOURS")


class Iceberg(Contender):
    """Merge on read, by which its upserts are fastest."""

    @classmethod
    def configured(cls, builder: Any, jars: str) -> Any:
        return (
            builder.config("spark.jars", jars)
            .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
            .config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.ice.type", "hadoop")
        )

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        spark.conf.set("spark.sql.catalog.ice.warehouse", str(folder))

    def load(self, rows: DataFrame, table: str) -> None:
        writer = rows.writeTo(f"ice.db.{table}").using("iceberg").tableProperty("format-version", "2")
        for what in ("merge", "update", "delete"):
            writer = writer.tableProperty(f"write.{what}.mode", "merge-on-read")
        writer.create()

    def read(self, table: str) -> DataFrame:
        return self.spark.table(f"ice.db.{table}")

    def upsert(self, rows: DataFrame, table: str) -> None:
        rows.createOrReplaceTempView("source")
        same = " and ".join(f"source.{name} = target.{name}" for name in KEY)
        rows.sparkSession.sql(
            f"MERGE INTO ice.db.{table} AS target USING source ON {same} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def upkeep(self, table: str) -> None:
        now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S.%f}"
        every = f"table => 'db.{table}', options => map('rewrite-all', 'true')"
        self.spark.sql(f"CALL ice.system.rewrite_data_files({every})")
        self.spark.sql(f"CALL ice.system.rewrite_position_delete_files({every})")
        self.spark.sql(
            f"CALL ice.system.expire_snapshots(table => 'db.{table}', retain_last => 1, "
            f"older_than => TIMESTAMP '{now}')"
        )


class Parquet(Contender):
    can_upsert = False

    def load(self, rows: DataFrame, table: str) -> None:
        rows.write.parquet(f"{self.folder}/{table}")

    def read(self, table: str) -> DataFrame:
        return self.spark.read.parquet(f"{self.folder}/{table}")

    def upsert(self, rows: DataFrame, table: str) -> None:
        raise NotImplementedError

    def upkeep(self, table: str) -> None:
        raise NotImplementedError


class DuckLake(Contender):
    """In DuckDB, with its catalogue in a file of DuckDB's. Its tables have no order that the load did not have."""

    can_commit_many = True

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        import duckdb  # type: ignore[import-not-found,unused-ignore]
        import duckdb_extension_ducklake  # type: ignore[import-not-found,unused-ignore]

        super().__init__(spark, folder)
        (extension,) = Path(next(iter(duckdb_extension_ducklake.__path__))).rglob("ducklake.duckdb_extension")
        self.duck = duckdb.connect()
        self.duck.execute("SET TimeZone = 'UTC'")
        self.duck.execute(f"LOAD '{extension}'")
        self.duck.execute(f"ATTACH 'ducklake:{folder}/catalogue' AS lake (DATA_PATH '{folder}/data')")
        self.duck.execute("USE lake")
        self.ready: dict[int, Any] = {}

    def prepare(self, rows: DataFrame) -> None:
        self.ready[id(rows)] = rows.toArrow()

    def load(self, rows: DataFrame, table: str) -> None:
        ready = self.ready[id(rows)]
        self.duck.execute(f"CREATE TABLE {table} AS SELECT * FROM ready")
        assert ready is not None

    def read(self, table: str) -> DataFrame:
        return self.spark.createDataFrame(self.duck.execute(f"FROM {table}").to_arrow_table())

    def aggregate(self, table: str, columns: Sequence[str]) -> object:
        return self.duck.execute(f"SELECT bit_xor(hash({', '.join(columns)})) FROM {table}").fetchall()

    def one_row(self, table: str, key: Sequence[str]) -> list[Any]:
        (row,) = self.duck.execute(f"FROM {table} WHERE {' AND '.join(key)}").fetchall()
        return [tuple(v.replace(tzinfo=None) if isinstance(v, datetime.datetime) else v for v in row)]

    def upsert(self, rows: DataFrame, table: str) -> None:
        ready = self.ready[id(rows)]
        same = " AND ".join(f"target.{name} = ready.{name}" for name in KEY)
        others = ", ".join(f"{name} = ready.{name}" for name in rows.columns if name not in KEY)
        self.duck.execute(
            f"MERGE INTO {table} AS target USING ready ON {same} "
            f"WHEN MATCHED THEN UPDATE SET {others} WHEN NOT MATCHED THEN INSERT"
        )
        assert ready is not None

    def upsert_many(self, rows: DataFrame, tables: Sequence[str]) -> None:
        self.duck.begin()
        for table in tables:
            self.upsert(rows, table)
        self.duck.commit()

    def upkeep(self, table: str) -> None:
        for call in (
            f"ducklake_flush_inlined_data('lake', table_name => '{table}')",
            f"ducklake_rewrite_data_files('lake', '{table}', delete_threshold => 0)",
            f"ducklake_merge_adjacent_files('lake', '{table}')",
            "ducklake_expire_snapshots('lake', older_than => now())",
            "ducklake_cleanup_old_files('lake', cleanup_all => true)",
        ):
            self.duck.execute(f"CALL {call}")

    def end(self) -> None:
        self.duck.close()
        super().end()


CONTENDERS: dict[str, type[Contender]] = {
    "pyomid": Pyomid,
    "delta": Delta,
    "iceberg": Iceberg,
    "ducklake": DuckLake,
    "parquet": Parquet,
}


def session(contender: type[Contender], jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = contender.configured(builder, jars).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_of(work: Callable[[int], object], count: int) -> float:
    return statistics.median(timed(partial(work, at)) for at in range(count))


def checksum(rows: DataFrame, columns: Sequence[str]) -> int:
    """Of these columns of all rows, whatever their order."""
    (found,) = rows.select(f.xxhash64(*columns).alias("h")).agg(f.bit_xor("h")).collect()
    return int(found[0])


def tiny_first(at: Contender, flights: DataFrame) -> dict[str, Any]:
    rows = flights.limit(TINY_ROWS).localCheckpoint()
    at.prepare(rows)
    return {name: timed(partial(at.load_few, rows, name)) for name in ("tiny_first", "tiny_again")}


def everything(at: Contender, flights: DataFrame, source: DataFrame) -> dict[str, Any]:
    at.prepare(flights)
    found: dict[str, Any] = {"load_first": timed(lambda: at.load(flights, "flights"))}
    found["bytes_loaded"] = at.bytes()
    found["load_again"] = timed(lambda: at.load(flights, "again"))
    found |= reads(at, source)
    [row] = source.orderBy(*KEY).offset(source.count() // 2).take(1)
    key = [
        f"origin = '{row.origin}'",
        f"time_hour = '{row.time_hour:%Y-%m-%dT%H:%M:%SZ}'",
        f"carrier = '{row.carrier}'",
        f"flight = {row.flight}",
    ]

    def one_row(_: int) -> None:
        assert at.one_row("flights", key) == [row]

    one_row(0)
    found["one_row"] = median_of(one_row, READS)
    if not at.can_upsert:
        return found
    before = at.bytes()
    changes = {count: changed(source, count) for count in (100, 1_000)}
    for rows in changes.values():
        at.prepare(rows)
    at.upsert(changes[100], "flights")
    found["upsert_100"] = median_of(lambda _: at.upsert(changes[100], "flights"), 4)
    found["upsert_1000"] = median_of(lambda _: at.upsert(changes[1_000], "flights"), 4)
    upserted = changes[1_000].unionByName(source.join(changes[1_000], [*KEY], "anti").select(source.columns))
    found |= {f"{name}_after_upserts": value for name, value in reads(at, upserted).items()}
    found["bytes_upserted"] = found["bytes_loaded"] + at.bytes() - before
    at.upkeep("flights")
    found |= {f"{name}_after_upkeep": value for name, value in reads(at, upserted).items()}
    found["bytes_after_upkeep"] = found["bytes_loaded"] + at.bytes() - before
    if at.can_commit_many:
        many = ["flights", "again", "third"]
        at.load(changes[1_000], "third")
        at.upsert_many(changes[1_000], many)
        found["three_tables"] = median_of(lambda _: at.upsert_many(changes[1_000], many), 4)
    return found


def changed(source: DataFrame, count: int) -> DataFrame:
    """Rows from all over the table, with another value."""
    rows = source.orderBy(f.xxhash64(*KEY)).limit(count).withColumn("arr_delay", f.lit(-1_000)).coalesce(1)
    return rows.localCheckpoint()


def reads(at: Contender, expected: DataFrame) -> dict[str, float]:
    columns = expected.columns
    assert checksum(at.read("flights"), columns) == checksum(expected, columns)
    return {
        "read_all": median_of(lambda _: at.aggregate("flights", columns), READS),
        "read_one": median_of(lambda _: at.aggregate("flights", ["distance"]), READS),
    }


def stream(at: Contender, source: DataFrame, seconds: float) -> dict[str, Any]:
    """A batch of new and changed rows each second, an upsert each; upkeep goes on beside it where it can."""
    if not at.can_upsert:
        return {}
    taken: list[tuple[float, float, int]] = []
    """When it ended, its seconds, its rows."""
    base = source.limit(STREAM_ROWS).localCheckpoint()
    at.prepare(base)
    at.load(base, "streamed")
    begun, upkeeps, errors = time.monotonic(), 0, list[Exception]()
    ended = threading.Event()

    [model] = base.take(1)

    def upsert(batch: DataFrame, number: int) -> None:
        numbers = batch.selectExpr("cast(value % 200000 as int) AS number")
        values = [f.lit(model[name]).alias(name) for name in source.columns if name != "flight"]
        rows = numbers.select(*values, f.col("number").alias("flight")).select(source.columns)
        count = batch.count()
        at.prepare(rows)
        spent = timed(lambda: at.upsert(rows, "streamed"))
        taken.append((time.monotonic() - begun, spent, count))

    def keep_up() -> None:
        nonlocal upkeeps
        while at.can_keep_up and not ended.wait(15):
            try:
                at.upkeep("streamed")
            except Exception as error:
                errors.append(error)
                return
            upkeeps += 1

    beside = threading.Thread(target=keep_up)
    beside.start()
    rate = at.spark.readStream.format("rate").option("rowsPerSecond", STREAM_ROWS).option("numPartitions", 2).load()
    query = rate.writeStream.foreachBatch(upsert).trigger(processingTime="1 second")
    running = query.option("checkpointLocation", f"{at.folder}-checkpoint").start()
    running.awaitTermination(round(seconds))
    running.stop()
    ended.set()
    beside.join()
    if errors:
        raise errors[0]
    full = [(at_s, spent) for at_s, spent, count in taken if count]
    spent = [spent for _, spent in full]
    part = max(1, len(spent) // 4)
    minutes = [[spent for at_s, spent in full if at_s // 60 == minute] for minute in range(int(seconds / 60))]
    return {
        "stream_seconds": seconds,
        "stream_upkeeps": upkeeps,
        "stream_rows_per_second": sum(count for *_, count in taken) / seconds,
        "stream_first": statistics.median(spent[:part]),
        "stream_last": statistics.median(spent[-part:]),
        "stream_slowest": max(spent),
        "stream_minutes": [[len(each), statistics.median(each), max(each)] for each in minutes if each],
        "stream_bytes": at.bytes(),
    }


def main() -> int:
    name, what, text = sys.argv[1:]
    settings = json.loads(text)
    folder = Path(settings["folder"]) / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    spark = session(CONTENDERS[name], settings["jars"])
    source = spark.read.csv(settings["csv"], schema=DDL, header=True, nullValue="NA").limit(settings["rows"])
    source = source.repartition(2).cache()
    assert source.count() == settings["rows"]
    at = CONTENDERS[name](spark, folder)
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "tiny": lambda: tiny_first(at, source),
        "cold": lambda: everything(at, source, source),
        "stream": lambda: stream(at, source, settings["stream_seconds"]),
    }
    found = works[what]()
    found["pyspark"] = spark.version
    at.end()
    print("measured " + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
