"""`examples.flights`: the faults of a folder happen whatever the machine's speed, and lose and double no correction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from examples.flights import data, months
from examples.flights.settings import TERMS

import pyomid.spark
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).parents[2]
FLIGHTS = 30

DEMO = """
import json
from examples.flights import corrections, demo
from examples.flights.places import Folder

run = demo.Run(place := Folder())
killed = place.start_services(demo.start_service)
rerun = [demo.restarted_service(run, name) for name in killed]
codes = [process.popen.wait(60) for process in rerun]
place.finish()
print(json.dumps({
    "killed": {name: process.killed for name, process in killed.items()},
    "hit": {fault.name: fault.hit for fault in place.faults()},
    "missed": [fault.missed for fault in place.faults()],
    "outcomes": {fault.name: fault.outcome for fault in place.faults()},
    "codes": codes,
    "runs": [len(starts) for starts in corrections.committed_runs().values()],
}))
"""


def flown(spark: SparkSession, url: str) -> list[list[object]]:
    """Ingest flights of one day; return their keys."""
    hour = datetime(2013, 1, 1, 10, tzinfo=UTC)
    rows = [
        (2013, 1, 1, 1000, 955, 5, 1200, 1155, 5, "AA", number, "N1", "JFK", "MIA", 120, 1000, 10, 0, hour)
        for number in range(FLIGHTS)
    ]
    flights = spark.createDataFrame(rows, data.FLIGHTS_DDL)
    db = pyomid.spark.connect(spark, url)
    with db.begin() as tx:
        months.create_tables(tx, flights)
    db.run_once("flights", lambda tx: months.ingest(tx, flights))
    close_connections()  # only the demo's processes have the folder open
    return [["JFK", hour.isoformat(), "AA", number] for number in range(FLIGHTS)]


def test_a_process_with_the_turn_and_one_that_waits_for_it_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "build" / "demo"
    folder.mkdir(parents=True)
    url = f"omid://{folder}/database?{TERMS}"
    (folder / "corrections.json").write_text(json.dumps(flown(spark, url)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEMO_")}
    said = subprocess.run(
        [sys.executable, "-c", DEMO],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    found = json.loads(said.stdout.splitlines()[-1])
    assert found["missed"] == ["", ""]
    assert found["hit"] == found["killed"] == {"posted": True, "holder": True}
    assert "start" in found["outcomes"]["posted"]
    assert ": committed" in found["outcomes"]["holder"], "its write transaction is durable"
    assert found["codes"] == [0, 0]
    assert found["runs"] == [1] * FLIGHTS
    with pyomid.spark.connect(spark, url).begin() as tx:
        day, route = tx.read("daily").first(), tx.read("routes").first()
    close_connections()
    assert day is not None
    assert route is not None
    assert (day["cancelled"], day["dep_delay"], route["distance"]) == (FLIGHTS, 0, 0)
