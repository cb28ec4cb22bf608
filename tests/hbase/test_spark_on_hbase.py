"""Spark over HBase: the very bodies of tests/spark with a URL of HBase, and what only regions can show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hbase_processes import TsoProcess
from test_spark_jobs import *  # noqa: F403
from test_spark_source import *  # noqa: F403
from test_spark_transactions import *  # noqa: F403
from test_spark_verification import *  # noqa: F403

import pyomid
import pyomid.spark
from pyomid.storage.hbase.cluster import Cluster
from pyomid.testing.hbase_server import HBaseServer

pytestmark = [pytest.mark.spark, pytest.mark.hbase]


@pytest.fixture(scope="module")
def url(hbase: HBaseServer, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database without tables and a TSO with the terms of tests/spark; its tables go afterwards."""
    options = "leaseSeconds=120&commitRetrySeconds=10&maxTransactionAgeSeconds=2"
    found = f"omid+hbase://{hbase.quorum}/hbase?{options}"
    terms = ("--max-transaction-age", "2", "--lease-term", "120", "--commit-retry", "10")
    with TsoProcess(found, tmp_path_factory.mktemp("tso") / "tso.log", options=terms) as tso:
        tso.wait_until_leading()
        drop_all(found)
        yield found
        drop_all(found)
        pyomid.spark.close_connections()
        tso.stop()


def drop_all(url: str) -> None:
    with pyomid.connect(url) as database:
        for table in database.tables():
            database.drop_table(table.name)
