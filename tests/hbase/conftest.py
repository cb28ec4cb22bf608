"""One real HBase for the whole session, and one with Kerberos, each started from its jars at first use.

Without Java: skipped on a person's machine, with the reason; a failure where CI=true.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hbase_processes import TsoProcess, leading_tso
from java_needed import needs_java
from led_tables import led_row

import pyomid
from kdc import Kdc
from kerberized import TOKENS, kdc_of_servers, kerberized_hbase
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import create_database
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.store import HBaseStore
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import TableInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_table_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the server is marked `hbase`; the rest of this room are fast tests of bytes."""
    for item in items:
        if "tests/hbase" in str(item.path) and "hbase" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.hbase)
        if item.path.name == "test_spark_on_hbase.py" and isinstance(item, pytest.Function):
            borrowed = item.function.__module__ != item.module.__name__
            if borrowed and item.originalname not in item.module.IN_MAKE_TEST:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """A running standalone HBase. PYOMID_TEST_HBASE names a folder with one that runs already, and is left running."""
    needs_java()
    given = os.environ.get("PYOMID_TEST_HBASE")
    if given:
        yield HBaseServer(Path(given))
        return
    # A table may name Omid's coprocessor although no server has its jar: what is tested is that we see its name.
    lenient = {"hbase.table.sanity.checks": "false", "hbase.coprocessor.abortonerror": "false"}
    server = HBaseServer(tmp_path_factory.mktemp("hbase"), heap_mb=768, settings=lenient)
    server.start()
    yield server
    server.kill()  # nothing of it is wanted any more; an orderly end takes twenty seconds


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    needs_java()
    with kdc_of_servers(tmp_path_factory.mktemp("kdc")) as running:
        yield running


@pytest.fixture(scope="session")
def secured(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HBaseServer]:
    """A running HBase and ZooKeeper of that KDC's realm, which give delegation tokens."""
    settings = {"hbase.coprocessor.region.classes": TOKENS}
    with kerberized_hbase(tmp_path_factory.mktemp("secured"), kdc, settings) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(hbase: HBaseServer) -> Iterator[Cluster]:
    """A client with the database's tables made."""
    made = Cluster(ZooKeeper(hbase.quorum), deadline_s=120.0)
    create_database(made)
    yield made
    made.close()


@pytest.fixture
def store(cluster: Cluster) -> HBaseStore:
    return HBaseStore(cluster)


@pytest.fixture
def table_name() -> str:
    """A name that no other test of the session uses."""
    return f"t{os.getpid()}_{next(_table_numbers)}"


@pytest.fixture
def bare_table(store: HBaseStore, table_name: str) -> Iterator[str]:
    """A table with family f that no catalog has, dropped afterwards."""
    store.create_table(TableInfo(table_name, (b"f",)))
    yield table_name
    store.drop_table(table_name)


@pytest.fixture(scope="session")
def url(hbase: HBaseServer, cluster: Cluster) -> str:
    return f"omid+hbase://{hbase.quorum}/hbase"


@pytest.fixture
def own_cluster(hbase: HBaseServer, cluster: Cluster) -> Iterator[Cluster]:
    """What it believes of regions is its own."""
    made = Cluster(ZooKeeper(hbase.quorum), deadline_s=120.0)
    yield made
    made.close()


@pytest.fixture
def row(own_cluster: Cluster, table_name: str) -> Iterator[HBaseLeaderState]:
    with led_row(own_cluster, table_name) as made:
        yield made


@pytest.fixture(scope="module")
def tso(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    """A leading TSO of the database, for the rest of a module: tests with TSOs of their own stand before."""
    with leading_tso(url, tmp_path_factory.mktemp("tso") / "tso.log") as process:
        yield process


@pytest.fixture(scope="module")
def database(url: str, tso: TsoProcess) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        yield opened


@pytest.fixture
def table(database: Database, table_name: str) -> Iterator[str]:
    """A registered table with family f, dropped afterwards."""
    database.create_table(table_name, families=["f"])
    yield table_name
    database.drop_table(table_name)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests of Spark over HBase, as tests/spark has its own."""
    from spark_sessions import local_session

    session = local_session()
    yield session
    session.stop()
