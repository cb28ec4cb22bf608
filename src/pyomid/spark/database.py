"""`SparkDatabase`, the handle that `pyomid.spark.connect` returns.

    db = pyomid.spark.connect(spark, "omid:///data/flights")
    with db.begin(run_id="flights-2013-01") as tx:
        tx.write(flights, "flights", row_key=["origin", "time_hour", "carrier", "flight"])
    db.read("flights").groupBy("origin").count().show()

Most operations are functions of the imported modules, bound as methods: their first parameter is the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyomid.config import parse_url
from pyomid.database import change_feed
from pyomid.errors import FolderMissing, MisuseType
from pyomid.spark import frame_schema, loads, maintenance, run_outcome, streaming, transactions
from pyomid.spark.connections import Connection, close_connections, connection
from pyomid.spark.sessions import check_same_machine, register
from pyomid.types import Bookmark, TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connect(spark: SparkSession, url: str) -> SparkDatabase:
    """Return the database at `url` for this session, and register `format("omid")` in the session.

    The first operation opens the database. If the database does not exist, only a transaction, a write, a bookmark or
    `adopt` creates it. Raises `Misuse` if the URL is malformed, if the URL names a folder that the session's Spark
    cannot reach, or if Spark's workers cannot run pyomid.

    Call `connect` before the session does other work. With a local master, Spark's workers then run the same Python as
    this program, unless PYSPARK_PYTHON names another interpreter. With another master or a Spark Connect server, set
    PYSPARK_PYTHON before the session starts. Call `connect` again in every other thread that uses `df.write` or
    `writeStream`. Spark looks for the format only in the thread's active session, and a new thread has no active
    session. Without `connect`, Spark raises "DATA_SOURCE_NOT_FOUND" in such a thread.
    """
    return SparkDatabase(spark, url)


class SparkDatabase:
    """A database in a Spark session; `pyomid.spark.connect` returns it. Several threads may share a `SparkDatabase`."""

    begin = transactions.begin
    run = transactions.run
    run_once = transactions.run_once
    look_up_run = run_outcome.look_up_run
    stream_sink = streaming.stream_sink

    sql = loads.sql
    read = loads.read
    changes = loads.changes
    views = loads.views
    history = loads.history
    moment = loads.moment
    restore = loads.restore

    alter_columns = frame_schema.alter_columns
    compact = maintenance.compact
    sanitize = maintenance.sanitize
    verify = maintenance.verify
    adopt = maintenance.adopt

    def __init__(self, spark: SparkSession, url: str) -> None:
        if not isinstance(url, str):
            raise MisuseType(f"the database URL must be a string, not {url!r}; call pyomid.spark.connect(spark, url)")
        parse_url(url)
        check_same_machine(spark, url)
        register(spark)
        self.spark: Final = spark
        self.url: Final = url

    def bookmark(self, *, keep_seconds: float | None = None) -> Bookmark:
        """Return a bookmark: the position after all commits so far. `changes` accepts it as a start or an end.

        If the database was empty at the bookmark, the changes after the bookmark include an insert of every row. With
        `keep_seconds`, a durable lease keeps the history after the bookmark for this time, or until `release_bookmark`
        ends the lease.
        """
        conn = self.opened()
        mark, lease = conn.driver.run(change_feed.draw_bookmark(conn.leases, keep_seconds))
        if lease is not None:
            conn.leases.keep(lease)
        return mark

    def release_bookmark(self, bookmark: Bookmark) -> None:
        """End the bookmark's lease, so that the database may discard the changes after the bookmark."""
        self.opened(create=False).leases.end_of(change_feed.place(bookmark, "bookmark").start_ts)

    def tables(self) -> list[TableInfo]:
        """Return every table of the catalog, system tables included, sorted by name. If the database does not exist,
        the call returns an empty list and does not create the database."""
        try:
            return self.opened(create=False).deployment.catalog.tables()
        except FolderMissing:
            return []

    def close(self) -> None:
        """Close the driver's connection, which all handles with this URL share. The next operation opens a new
        connection."""
        close_connections(self.url)

    def __enter__(self) -> SparkDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SparkDatabase {self.url}>"

    # For pyomid's own use

    def opened(self, *, create: bool = True) -> Connection:
        """Return the driver's connection. The call registers the format again, because this thread may be new to the
        session."""
        register(self.spark)
        return connection(self.url, create=create)
