"""Speculation: a slow task runs twice on a real cluster, both attempts write, one of them counts (S1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f
from spark_sessions import run_driver

import pyomid.spark
from spark_cluster import standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 500


def check_each_partition_is_one_attempt(stored: DataFrame) -> None:
    found = stored.groupBy(f.expr(f"id div {ROWS}").alias("p")).agg(
        f.count("*").alias("n"), f.countDistinct("attempt").alias("attempts")
    )
    assert sorted((row["p"], row["n"], row["attempts"]) for row in found.collect()) == [
        (partition, ROWS, 1) for partition in range(3)
    ]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """In local mode speculation never fires."""
    with standalone_cluster(tmp_path) as url:
        yield url


@pytest.mark.long
def test_of_two_attempts_that_both_wrote_one_is_seen(
    master: str, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    db = pyomid.spark.connect(spark, url)
    ran = run_driver("speculating_driver.py", master, url, str(tmp_path), environment={})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    attempts = [path.name for path in tmp_path.iterdir() if path.name.startswith("attempt-0-")]
    assert len(attempts) >= 2, f"no second attempt ran: {attempts}"
    with db.begin() as tx:
        check_each_partition_is_one_attempt(tx.read("speculated"))
    found = db.verify()
    assert found.ok
    assert found.tables[-1].rows == 1500
