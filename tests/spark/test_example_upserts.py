"""examples/upserts.py: upserts, a read of the past, and a copy that follows the feed; a repeated day is skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from examples import upserts

import pyomid
import pyomid.spark
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    close_connections()


def test_a_copy_follows_the_orders_and_the_first_day_stays_readable(spark: SparkSession, folder: Path) -> None:
    db = pyomid.spark.connect(spark, f"omid://{folder}/db?retention=7d")
    first = db.bookmark(keep_seconds=upserts.KEEP_SECONDS)
    position = folder / "position.json"
    position.write_text(json.dumps(first))
    first_day, now, copy = upserts.main(spark, folder)
    assert first_day == [(1, "alice", 100), (2, "bob", 250), (3, "carol", 75)]
    assert now == copy == [(1, "alice", 100), (2, "bob", 300), (4, "dave", 10)]
    with pyomid.connect(f"omid://{folder}/db") as client:
        leases = client.status().tso.leases
    assert first.start_ts not in leases, "a bookmark is released when a later one is stored"
    assert json.loads(position.read_text())[0] in leases
    again = db.run_once("orders-2026-02-01", partial(upserts.load, day="2026-02-01"))
    assert isinstance(again, pyomid.AlreadyDone)
