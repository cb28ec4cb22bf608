"""Spark's clients among those of `elle_workload`, on the same tables: one driver, some threads, four kinds of work.

transaction   reads, writes and reads again in `SparkDatabase.transaction`
run           the same by `SparkDatabase.run` under a durable id, so that a lost answer is looked up
load          one `load()` of the data source, collected twice
df.write      without reading, under a durable id: registers, or the lists of a group that nobody else appends to
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from elle_histories import MicroOps
from elle_workload import COLUMN, Clients, first_key, found, group, group_number, row_of, stored, table_of, write_of

import pyomid.spark
from pyomid.errors import ConflictError, OmidError, OutcomeUnknown, Unavailable
from pyomid.spark.transactions import SparkTransaction, WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY, VALUE = "key", "value"
MAPPING = {VALUE: COLUMN.decode()}
TRIES = 5


def run(clients: Clients) -> None:
    spark = session()
    give_schema(spark, clients)
    order = clients.order
    processes = range(order.first_process, order.first_process + order.workers)
    try:
        with ThreadPoolExecutor(order.workers) as pool:
            for ended in [pool.submit(Client(clients, spark, process).work) for process in processes]:
                ended.result()
    finally:
        spark.stop()


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": tempfile.mkdtemp(prefix="elle-spark-"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("elle")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def give_schema(spark: SparkSession, clients: Clients) -> None:
    """The point clients' table has none: the first write that names the row key gives it one."""
    nothing = spark.createDataFrame([], f"{KEY} string, {VALUE} string")

    def write(tx: SparkTransaction) -> WriteResult:
        return tx.write(nothing, table_of(clients.order.model), row_key=[KEY], mapping=MAPPING)

    pyomid.spark.connect(spark, clients.order.url).run(write)


class Client:
    """One thread of the driver."""

    def __init__(self, clients: Clients, spark: SparkSession, process: int) -> None:
        self.clients, self.spark, self.process = clients, spark, process
        self.order = clients.order
        self.table = table_of(self.order.model)
        self.chance = random.Random(f"{self.order.seed} {process}")
        self.appends_blindly = self.order.model == "rw-register" or process == self.order.first_process
        self.last_group = 0

    def work(self) -> None:
        kinds = [self.in_transaction, self.in_transaction, self.in_run, self.by_load]
        if self.appends_blindly:
            kinds += [self.by_data_source] * 2
        while self.clients.go_on():
            self.chance.choice(kinds)()

    def in_transaction(self) -> None:
        before, writes, after = self.intended()

        def work(done: MicroOps) -> None:
            with pyomid.spark.connect(self.spark, self.order.url).begin() as tx:
                self.read_write_read(tx, before, writes, after, done)

        self.recorded([*before, *writes, *after], work)

    def in_run(self) -> None:
        """What the run that committed saw; it may be an earlier one than the last, of which the answer was lost."""
        before, writes, after = self.intended()
        runs: dict[int, MicroOps] = {}

        def function(tx: SparkTransaction) -> int:
            seen = runs[tx.start_ts] = []
            self.read_write_read(tx, before, writes, after, seen)
            return tx.start_ts

        def work(done: MicroOps) -> None:
            try:
                db = pyomid.spark.connect(self.spark, self.order.url)
                told = db.run_once(self.durable_id(), function, retries=TRIES)
            except OmidError as error:  # of the last try; of an earlier one the answer may have been lost
                raise OutcomeUnknown(f"tried {len(runs)} times: {error}") from error
            done += runs[told.start_ts if isinstance(told, pyomid.AlreadyDone) else told]

        self.recorded([*before, *writes, *after], work)

    def by_load(self) -> None:
        reads = self.reads(self.keys(6))

        def work(done: MicroOps) -> None:
            with pyomid.spark.original_errors():
                reader = self.spark.read.format("omid").options(url=self.order.url, table=self.table)
                first, last = row_of(min(key for _, key, _ in reads)), row_of(1 + max(key for _, key, _ in reads))
                frame = reader.options(rowStart=f"0x{first.hex()}", rowStop=f"0x{last.hex()}", numPartitions=2).load()
                for _ in range(2):
                    done += self.seen(frame, reads)

        self.recorded([*reads, *reads], work)

    def by_data_source(self) -> None:
        """Tried again under its id until it is answered: it counts once."""
        if self.order.model == "rw-register":
            keys: Iterable[int] = self.keys(4)
        elif self.last_group == group_number():
            return self.in_transaction()
        else:
            self.last_group = group_number()
            keys = group(self.last_group)
        writes = self.writes(keys)
        options = {"url": self.order.url, "table": self.table, "runId": self.durable_id()}

        def work(done: MicroOps) -> None:
            frame = self.frame({key: [value] if name == "append" else value for name, key, value in writes})
            for number in range(TRIES):
                try:
                    with pyomid.spark.original_errors():
                        frame.write.format("omid").options(**options).mode("append").save()
                    done += writes
                    return
                except (ConflictError, OutcomeUnknown, Unavailable) as error:
                    if not number and isinstance(error, ConflictError):
                        raise
                    last = error
            raise OutcomeUnknown(f"tried {TRIES} times: {last}") from last

        self.recorded(writes, work)

    # What is asked for

    def keys(self, count_max: int) -> list[int]:
        first = first_key(self.order)
        return sorted(self.chance.sample(range(first, first + self.order.keys), self.chance.randint(1, count_max)))

    def reads(self, keys: Iterable[int]) -> MicroOps:
        return [["r", key, None] for key in keys]

    def writes(self, keys: Iterable[int]) -> MicroOps:
        return [[write_of(self.order.model), key, self.clients.element()] for key in keys]

    def intended(self) -> tuple[MicroOps, MicroOps, MicroOps]:
        keys = self.keys(4)
        written = [key for key in keys if self.chance.random() < 0.7]
        return self.reads(keys), self.writes(written), self.reads(keys if self.chance.random() < 0.3 else [])

    def durable_id(self) -> str:
        return f"{self.order.seed}-{self.process}-{self.clients.element()}"

    # What is done

    def recorded(self, ops: MicroOps, work: Callable[[MicroOps], None]) -> None:
        self.clients.recorder.invoked(self.process, ops)
        error: Exception | None = None
        done: MicroOps = []
        try:
            work(done)
        except Exception as raised:
            error = pyomid.spark.original_error(raised) or raised
        self.process = self.clients.ended(self.process, [*done, *ops[len(done) :]], error)

    def read_write_read(
        self, tx: SparkTransaction, before: MicroOps, writes: MicroOps, after: MicroOps, done: MicroOps
    ) -> None:
        done += self.seen(self.read(tx, before), before)
        values = {key: value for _, key, value in done}
        if writes:
            tx.write(self.frame({key: [*values[key], v] if n == "append" else v for n, key, v in writes}), self.table)
        done += writes
        if after:
            done += self.seen(self.read(tx, after), after)

    def read(self, tx: SparkTransaction, reads: MicroOps) -> DataFrame:
        first, last = (end(key for _, key, _ in reads) for end in (min, max))
        return tx.read(self.table, start=row_of(first), stop=row_of(last + 1), partitions=2)

    def seen(self, frame: DataFrame, reads: MicroOps) -> MicroOps:
        with pyomid.spark.original_errors():
            rows = {row[KEY].encode(): {COLUMN: row[VALUE].encode()} for row in frame.collect()}
        return [["r", key, found(self.order.model, rows.get(row_of(key), {}))] for _, key, _ in reads]

    def frame(self, values: dict[int, Any]) -> DataFrame:
        rows = [(row_of(key).decode(), stored(value).decode()) for key, value in values.items()]
        return self.spark.createDataFrame(rows, f"{KEY} string, {VALUE} string").repartition(2)
