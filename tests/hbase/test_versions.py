"""A part of the suite, which runs over HBase 2.6, over HBase 2.4, 2.5 and 3.0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest
from hbase_processes import leading_tso
from java_needed import needs_java

import pyomid.aio
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer, class_path
from pyomid.database.database import Database
from pyomid.errors import ConflictError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.rpc.requests import RowMutation, puts
from pyomid.omid.hbase.zookeeper import ZooKeeper
from region_admin import OperatorsAdmin
from versions import OTHERS

pytestmark = [pytest.mark.hbase, pytest.mark.soak]

ROWS: Final = {b"%05d" % number: {b"f:q": b"%d" % number * 100} for number in range(3000)}


@pytest.fixture(scope="module", params=OTHERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a deployment with a leading TSO, over that HBase."""
    needs_java()
    jars = OTHERS[request.param]
    class_path(jars)
    folder = tmp_path_factory.mktemp("version")
    server = HBaseServer(folder, heap_mb=512, jars=jars)
    server.start()
    try:
        made = f"omid+hbase://{server.quorum}/hbase"
        assert main(["init", made, "--commit-table-regions", "4"]) == 0
        with leading_tso(made, folder / "tso.log"):
            yield made
    finally:
        server.kill()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        yield opened


@pytest.fixture
def cluster(url: str) -> Iterator[Cluster]:
    made = Cluster(ZooKeeper(url.removeprefix("omid+hbase://").removesuffix("/hbase")))
    yield made
    made.close()


def test_commits_are_readable_in_every_way(database: Database, url: str) -> None:
    """By bulk and one by one, leased and not, from both ends; of two writers of a cell one commits."""
    database.create_table("t", ["f"], split_keys=[b"01000", b"02000"])
    with database.begin(lease=True) as tx:
        for row, cells in ROWS.items():
            tx.table("t").put(row, cells)
    first, second = database.begin(), database.begin()
    first.table("t").put(b"one", {b"f:q": b"first"})
    second.table("t").put(b"one", {b"f:q": b"second"})
    first.commit()
    with pytest.raises(ConflictError):
        second.commit()
    wanted = {**ROWS, b"one": {b"f:q": b"first"}}
    with database.begin(lease=True) as tx:
        table = tx.table("t")
        assert list(table.scan()) == sorted(wanted.items())
        assert list(table.scan(reverse=True)) == sorted(wanted.items(), reverse=True)
        assert list(table.scan(prefix=b"000", columns=[b"f:q"])) == sorted(wanted.items())[:100]
        assert table.get(b"one") == {b"f:q": b"first"}
    done = database.run_once("once", lambda tx: tx.table("t").delete(b"one"))
    assert done is None

    async def on_a_loop() -> dict[bytes, bytes] | None:
        async with await pyomid.aio.connect(url) as opened, opened.begin() as tx:
            await (await tx.table("t")).put(b"loop", {b"f:q": b"v"})
        async with await pyomid.aio.connect(url) as opened, opened.begin() as tx:
            return await (await tx.table("t")).get(b"loop")

    assert asyncio.run(on_a_loop()) == {b"f:q": b"v"}


def test_regions_split_and_are_cleaned(database: Database, cluster: Cluster) -> None:
    database.create_table("split", ["f"])
    for value in (b"old", b"new"):
        with database.begin() as tx:
            for row in ROWS:
                tx.table("split").put(row, {b"f:q": value})
    since = database.bookmark(keep_seconds=600)
    with database.begin() as tx:
        tx.table("split").delete(b"00000")
        admin = OperatorsAdmin(cluster)
        admin.split("split", b"01500")
    assert len(cluster.regions("split")) == 2
    assert [change.row for change in database.changes("split", since)] == [b"00000"]
    database.release_bookmark(since)
    database.compact("split")
    assert database.verify().ok
    with database.begin() as tx:
        assert list(tx.table("split").scan()) == [(row, {b"f:q": b"new"}) for row in [*ROWS][1:]]


def test_cells_written_without_transactions_are_adopted(database: Database, cluster: Cluster, url: str) -> None:
    Admin(cluster).create_table(TableDescriptor("plain", (FamilyDescriptor(b"f"),)))
    cluster.rows("plain", [RowMutation(b"r", (puts([KeyValue(b"r", b"f", b"q", LATEST, b"v")]),))])
    assert main(["adopt", url, "plain", "f"]) == 0
    with database.begin() as tx:
        assert tx.table("plain").get(b"r") == {b"f:q": b"v"}


def test_a_backup_is_restored(database: Database, url: str) -> None:
    database.create_table("kept", ["f"])
    with database.begin() as tx:
        tx.table("kept").put(b"r", {b"f:q": b"v"})
    assert main(["backup", url, "monday"]) == 0
    assert main(["restore", "monday", url, "--table", "kept", "--as", "kept=back"]) == 0
    with database.begin() as tx:
        assert tx.table("back").get(b"r") == {b"f:q": b"v"}
