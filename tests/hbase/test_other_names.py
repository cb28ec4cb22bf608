"""Deployments with other names than Apache Omid's defaults: a Java deployment is taken over, and two databases live in
one HBase and one ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, confirm_tables, leading_tso, with_options

import pyomid
from java_omid import JavaClient, JavaTso, make_omid_tables, read_znode
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.config import Settings, parse_url
from pyomid.database.database import Database
from pyomid.errors import Misuse, OmidError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import META_TABLE, SystemNames
from pyomid.omid.hbase.deployment import claim_database
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.spark.connections import close_connections, connection
from region_admin import OperatorsAdmin

NAMES = SystemNames("shop:COMMITS", "shop:TIMESTAMPS", "shop/omid")
OPTIONS = "commitTableName=shop:COMMITS&timestampTableName=shop:TIMESTAMPS&zkNamespace=shop/omid"


def make_namespace(cluster: Cluster, name: str) -> None:
    with suppress(OmidError):  # another test, or an earlier session, made it
        OperatorsAdmin(cluster).create_namespace(name)


@pytest.fixture(scope="module")
def shop(url: str, hbase: HBaseServer, cluster: Cluster) -> str:
    """The URL of a second database of the HBase that all tests share; its own tables are not made yet."""
    make_namespace(cluster, "shop")
    return with_options(url, OPTIONS)


@pytest.fixture(scope="module")
def cluster_of_shop(hbase: HBaseServer, shop: str) -> Iterator[Cluster]:
    made = Cluster(ZooKeeper(hbase.quorum, namespace=NAMES.zookeeper_namespace), deadline_s=120.0, names=NAMES)
    yield made
    made.close()


def transfer(db: Database, table: str) -> None:
    """By every part that has tables of its own: an index, an idempotency key, a time to live."""
    db.create_table(f"{table}_ttl", ["f"], ttl_seconds=3600)
    db.create_table(table, ["f"])
    db.set_schema(table, {"id": int, "kind": int}, row_key="id")
    db.create_index(table, "by_kind", ["kind"])

    def put(tx: pyomid.Transaction) -> None:
        tx.table(table, codec=dict).put({"id": 1, "kind": 2})

    db.run_once("the same id", put)
    with db.begin(lease=True) as tx:
        assert tx.table(table, codec=dict).get(1) == {"id": 1, "kind": 2}
        assert [row["id"] for row in tx.table(table, codec=dict).lookup("by_kind", 2)] == [1]


@pytest.mark.long
def test_a_java_deployment_with_other_names_is_taken_over(
    shop: str, url: str, hbase: HBaseServer, cluster: Cluster, cluster_of_shop: Cluster, tmp_path: Path, table_name: str
) -> None:
    """Its tables, as Omid's own tool makes them; a Java TSO leads, then ours, with Java clients of the same names."""
    port = hbase.ports.zookeeper
    make_omid_tables(tmp_path / "tables", port, regions=2, names=NAMES)
    name = f"shop:{table_name}"
    with JavaTso(tmp_path / "java", zookeeper_port=port, lease_s=2.0, names=NAMES) as java_tso:
        java_tso.wait_until_announced()
        with JavaClient(port, names=NAMES) as java:
            java.ask("create", name, "f")
            java.begin("a")
            java.put("a", name, b"r", b"f", b"q", b"java's")
            java.begin("dies", dying=True)
            java.put("dies", name, b"s", b"f", b"q", b"half")
            java.commit("a")
            java.commit("dies")
            assert main(["init", shop, "--commit-table-regions", "2"]) == 0
            assert main(["tables", shop, "register", name, "f", "--conflict-level", "cell"]) == 0
            with pyomid.connect(shop) as db, db.begin() as tx:
                assert dict(tx.table(name).scan()) == {b"r": {b"f:q": b"java's"}, b"s": {b"f:q": b"half"}}
                tx.table(name).put(b"t", {b"f:q": b"ours"})
            java.begin("b")
            assert java.get("b", name, b"t") == {b"f:q": b"ours"}
            java.rollback("b")
    assert not read_znode(port, "/omid/shop")
    ZooKeeper(hbase.quorum).ask("set", "/shop/omid/tso-lease", b"")
    with leading_tso(shop, tmp_path / "tso.log", lease_s=2.0) as tso, pyomid.connect(shop) as db:
        assert read_znode(port, "/shop/omid/current-tso").decode().startswith(f"{tso.address}#")
        with JavaClient(port, names=NAMES) as java:
            java.begin("c")
            assert java.get("c", name, b"s") == {b"f:q": b"half"}
            java.put("c", name, b"u", b"f", b"q", b"java's")
            java.commit("c")
        with db.begin() as tx:
            assert sorted(key for key, _ in tx.table(name).scan()) == [b"r", b"s", b"t", b"u"]
        assert main(["status", shop]) == 0
        assert db.verify(name).ok
        assert db.compact(name).tables


def test_two_databases_in_one_hbase_share_nothing(
    shop: str, url: str, hbase: HBaseServer, cluster: Cluster, cluster_of_shop: Cluster, tmp_path: Path, table_name: str
) -> None:
    """The same id, table names but for the namespace, backups of one name; system tables of one are none of the
    other's."""
    port = hbase.ports.zookeeper
    assert main(["init", shop, "--commit-table-regions", "2"]) == 0
    with (
        leading_tso(url, tmp_path / "first.log") as first,
        leading_tso(shop, tmp_path / "second.log") as second,
        pyomid.connect(url) as one,
        pyomid.connect(shop) as two,
    ):
        assert read_znode(port, "/omid/current-tso").decode().startswith(f"{first.address}#")
        assert read_znode(port, "/shop/omid/current-tso").decode().startswith(f"{second.address}#")
        transfer(one, table_name)
        transfer(two, f"shop:{table_name}")
        assert f"shop:{table_name}" not in [info.name for info in one.tables()]
        everywhere = [*Admin(cluster).tables(), *Admin(cluster_of_shop).tables()]
        assert everywhere.count("PYOMID_MARKERS") == everywhere.count(META_TABLE) == 2
        for db in (one, two):
            assert not [name for name in db._core.deployment.store.foreign_tables() if "PYOMID" in name.upper()]
            assert db.verify().ok
            db.compact()
        ids = {connection(each).database_id for each in (url, shop)}
        close_connections()
        assert len(ids) == 2
        confirm_tables(two)
        taken = two.backup("two")
        assert len(taken.snapshots) >= 3
        two.drop_table(f"shop:{table_name}")
        assert main(["restore", "two", shop, "--table", f"shop:{table_name}"]) == 0
        with two.begin() as tx:
            assert tx.table(f"shop:{table_name}", codec=dict).get(1) == {"id": 1, "kind": 2}
        with one.begin() as tx:
            assert tx.table(table_name, codec=dict).get(1) == {"id": 1, "kind": 2}
        for db, name in ((one, table_name), (two, f"shop:{table_name}")):
            db.drop_table(name)
            db.drop_table(f"{name}_ttl")


@pytest.mark.parametrize(
    "options",
    [
        "zkNamespace=shop",
        "commitTableName=ANOTHER_COMMIT_TABLE",
        "timestampTableName=ANOTHER_TIMESTAMP_TABLE",
    ],
)
def test_a_url_with_other_names_than_its_database_is_refused(
    url: str, cluster: Cluster, tmp_path: Path, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read or written by the wrong names; by clients, commands and TSOs."""
    state = HBaseLeaderState(cluster)
    if not state.read().epoch:
        assert state.take_over(expected=0, epoch=50, ceiling=50)
    wrong = with_options(url, options)
    for command in (["init", wrong, "--commit-table-regions", "1"], ["tables", wrong, "list"], ["status", wrong]):
        assert main(command) == 1
        assert "was created with the options commitTableName=OMID_COMMIT_TABLE" in capsys.readouterr().err
    with pytest.raises(Misuse, match="give every URL of a database the same"):
        pyomid.connect(wrong)
    with TsoProcess(wrong, tmp_path / "log") as tso:
        assert tso.process.wait(60.0) == 3
    assert "was created with the options" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (SystemNames("own:CT", "OMID_TIMESTAMP_TABLE", "own"), "timestampTableName"),
        (SystemNames("own:CT", "own:TT", "omid"), "zkNamespace"),
    ],
)
def test_what_belongs_to_another_database_is_refused(
    url: str, cluster: Cluster, hbase: HBaseServer, tmp_path: Path, names: SystemNames, option: str
) -> None:
    """Its TSO says so, and none of both databases is harmed."""
    claim_database(cluster)
    make_namespace(cluster, "own")
    given = f"commitTableName={names.commit_table}&timestampTableName={names.timestamp_table}"
    other = with_options(url, f"{given}&zkNamespace={names.zookeeper_namespace}")
    assert main(["init", other, "--commit-table-regions", "1"]) == 0
    with TsoProcess(other, tmp_path / "log") as tso:
        assert tso.process.wait(60.0) == 3
    said = (tmp_path / "log").read_text()
    assert f"set option {option} to a value of its own" in said
    for table in ("own:PYOMID_META", "own:TT"):
        OperatorsAdmin(cluster).drop_table(table)
    claim_database(cluster)


@pytest.mark.parametrize(
    "option",
    [
        "zkNamespace=/omid",
        "zkNamespace=",
        "zkNamespace=a//b",
        "zkNamespace=../omid",
        "commitTableName=PYOMID_META",
        "commitTableName=ns:PYOMID_CT",
        "commitTableName=a:b:c",
        "timestampTableName=-t",
    ],
)
def test_names_that_cannot_be_are_refused_before_anything_is_connected(option: str) -> None:
    with pytest.raises(Misuse, match=r"is not (a path of znodes|the name of an HBase table),"):
        parse_url(f"omid+hbase://nowhere/hbase?{option}")


def test_the_defaults_are_apache_omid_s() -> None:
    _, settings = parse_url("omid+hbase://nowhere/hbase")
    found = SystemNames(settings.commit_table_name, settings.timestamp_table_name, settings.zk_namespace)
    assert found == SystemNames() == SystemNames("OMID_COMMIT_TABLE", "OMID_TIMESTAMP_TABLE", "omid")
    assert Settings().zk_namespace == "omid"


def test_system_tables_of_any_database_cannot_be_tables(
    database: Database, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("shop:PYOMID_META", "shop:OMID_COMMIT_TABLE"):
        assert main(["tables", url, "create", name, "f"]) == 1
        assert "reserved for system tables" in capsys.readouterr().err
