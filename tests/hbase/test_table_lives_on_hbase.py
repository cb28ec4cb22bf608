"""R10 over HBase: every way to read a table at once, while another client drops, creates or alters it."""

from __future__ import annotations

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.spark.connections import close_connections
from spark_lives import SPARK_WAYS
from table_lives import CHANGES, FEW, OPTIONS, WAYS, begun, expected, make, outcome, small_batches


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=[] if name in FEW else [pytest.mark.long]) for name in CHANGES]
)
def test_a_read_is_of_one_life_of_its_table(database: Database, url: str, table_name: str, change: str) -> None:
    make(database, table_name)
    ways = {**WAYS, **SPARK_WAYS}
    try:
        with pyomid.connect(url, **OPTIONS) as reader, small_batches():
            readings = {name: begun(reader, table_name, way) for name, way in ways.items()}
            CHANGES[change].make(database, table_name)
            outcomes = {name: outcome(reading) for name, reading in readings.items()}
    finally:
        close_connections()
    assert outcomes == dict.fromkeys(ways, expected(CHANGES[change]))
