"""A real Apache Phoenix beside pyomid's TSO: which of its tables pyomid reads, and which operations it refuses."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest
from hbase_processes import TsoProcess
from java_needed import needs_java

import pyomid
from java_tools import OMID, compile_sources
from pyomid.cli import main
from pyomid.cli.hbase import HBASE, Bundle, HBaseServer, class_path, java, join
from pyomid.errors import Misuse

pytestmark = [pytest.mark.hbase, pytest.mark.soak]

PHOENIX: Final = Bundle(
    "hbase-phoenix",
    (
        *HBASE.artifacts,
        "org.apache.phoenix:phoenix-core-server:5.2.1",
        "org.apache.phoenix:phoenix-hbase-compat-2.6.0:5.2.1",
    ),
)
SETTINGS: Final = {
    "hbase.regionserver.wal.codec": "org.apache.hadoop.hbase.regionserver.wal.IndexedWALEditCodec",
    "phoenix.transactions.enabled": "true",
}


class Sql:
    """A program that speaks SQL to Phoenix, which commits through the TSO at `address`."""

    def __init__(self, folder: Path, server: HBaseServer, address: str) -> None:
        folder.mkdir()
        (folder / "hbase-omid-client-config.yml").write_text(
            "commitTableName: OMID_COMMIT_TABLE\n"
            "omidClientConfiguration: !!org.apache.omid.tso.client.OmidClientConfiguration\n"
            f'    connectionType: DIRECT\n    connectionString: "{address}"\n'
            "metrics: !!org.apache.omid.metrics.NullMetricsProvider [ ]\n"
        )
        (folder / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,log\nlog4j.appender.log=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.log.target=System.err\nlog4j.appender.log.layout=org.apache.log4j.SimpleLayout\n"
        )
        classes = compile_sources(Path(__file__).with_name("java"), OMID)
        path = join([folder, server.folder / "conf", classes, *class_path(PHOENIX)])
        command = java("-Xmx512m", "-XX:+UseSerialGC", "-cp", path, "Sql", f"jdbc:phoenix:{server.quorum}:/hbase")
        self._log = open(folder / "log", "wb")  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True
        )

    def ask(self, statement: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n") or "it ended: see its log"

    def do(self, *statements: str) -> None:
        for statement in statements:
            assert self.ask(statement) == "done"

    def __enter__(self) -> Sql:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@dataclass(frozen=True)
class Both:
    """One HBase with Phoenix, which pyomid opens by `url`."""

    url: str
    sql: Sql


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    needs_java()
    folder = tmp_path_factory.mktemp("phoenix")
    server = HBaseServer(folder / "hbase", heap_mb=1024, settings=SETTINGS, jars=PHOENIX)
    server.start()
    try:
        url = f"omid+hbase://{server.quorum}/hbase"
        assert main(["init", url, "--commit-table-regions", "2", "--conflict-level", "row"]) == 0
        with TsoProcess(f"{url}?maxTransactionAgeSeconds=20", folder / "tso.log") as tso:
            address = tso.wait_until_leading()
            with Sql(folder / "client", server, address) as sql:
                yield Both(url, sql)
            assert tso.stop() == 0
    finally:
        server.kill()


def test_a_transactional_table_is_read_without_a_lease(both: Both) -> None:
    """What Phoenix committed, and nothing that it did not; a lease, and so Spark, and cleaning are refused."""
    sql = both.sql
    sql.do(
        "CREATE TABLE SALES (ID VARCHAR PRIMARY KEY, ITEM VARCHAR, PRICE BIGINT) "
        "TRANSACTIONAL=true, TRANSACTION_PROVIDER='OMID', COLUMN_ENCODED_BYTES=0",
        "UPSERT INTO SALES VALUES ('a', 'pen', 3)",
        "UPSERT INTO SALES VALUES ('b', 'ink', 5)",
        "commit",
        "UPSERT INTO SALES VALUES ('b', 'ink', 6)",
        "DELETE FROM SALES WHERE ID = 'a'",
        "commit",
    )
    assert sql.ask("SELECT ID, PRICE FROM SALES") == "b\t6"
    assert main(["tables", both.url, "register", "SALES", "0", "--conflict-level", "row"]) == 0
    sql.do("UPSERT INTO SALES VALUES ('c', 'cap', 7)")
    with pyomid.connect(both.url) as database:
        with database.begin() as tx:
            rows = dict(tx.table("SALES").scan())
        assert [*rows] == [b"b"]
        assert rows[b"b"][b"0:ITEM"] == b"ink"
        assert int.from_bytes(rows[b"b"][b"0:PRICE"]) ^ 1 << 63 == 6
        sql.do("commit")
        with database.begin() as tx:
            assert [*dict(tx.table("SALES").scan())] == [b"b", b"c"]
        with pytest.raises(Misuse, match="belongs to Apache Phoenix"), database.begin(lease=True) as tx:
            tx.table("SALES").get(b"b")
        while database._core.deployment.leader_state.read_watermarks()[0] <= tx.start_ts:
            time.sleep(0.1)  # the TSO moves it past Phoenix's transactions by age: then there are versions to drop
        with pytest.raises(Misuse, match="belongs to Apache Phoenix"):
            database.compact("SALES")


def test_a_phoenix_table_without_transactions_is_adopted(both: Both) -> None:
    """`alter` as the refusal says; what Phoenix writes later no transaction sees."""
    sql = both.sql
    sql.do(
        "CREATE TABLE PLAIN (ID VARCHAR PRIMARY KEY, ITEM VARCHAR) VERSIONS=2147483647, COLUMN_ENCODED_BYTES=0",
        "UPSERT INTO PLAIN VALUES ('a', 'pen')",
        "commit",
    )
    assert main(["adopt", both.url, "PLAIN", "0"]) == 0
    sql.do("UPSERT INTO PLAIN VALUES ('z', 'late')", "commit")
    with pyomid.connect(both.url) as database, database.begin() as tx:
        rows = dict(tx.table("PLAIN").scan())
        assert [*rows] == [b"a"]
        assert rows[b"a"][b"0:ITEM"] == b"pen"
