"""R10: what Spark's tasks read is of one life of the table, or an error; without a JVM, in memory and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.spark.connections import close_connections
from spark_lives import SPARK_WAYS
from table_lives import CHANGES, begun, expected, make, outcome, small_batches

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"omid://{tmp_path_factory.mktemp('lives')}/db"
    with pyomid.connect(url):
        yield url
        close_connections()


@pytest.fixture(params=["memory", "folder"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"omid-memory:{tmp_path}" if request.param == "memory" else request.getfixturevalue("folder")
    with pyomid.connect(url) as database, small_batches():
        make(database, "lives")
        yield database
        for info in database.tables():
            if not info.name.startswith("PYOMID_"):
                database.drop_table(info.name)
    if request.param == "memory":
        close_connections()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", SPARK_WAYS)
def test_a_read_is_of_one_life_of_its_table(db: Database, way: str, change: str) -> None:
    reading = begun(db, "lives", SPARK_WAYS[way])
    CHANGES[change].make(db, "lives")
    assert outcome(reading) == expected(CHANGES[change])
