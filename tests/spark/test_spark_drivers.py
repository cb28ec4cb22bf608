"""A driver killed at each step of its transaction: its durable id tells the outcome, and running it again is harmless.

S2, S3, C7. Each step here once a place; `make soak` does it fifty times.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_sessions import run_driver, url_of

import pyomid.spark
from pyomid.spark import RunState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PLACES = {
    "client.begin.after": RunState.ABSENT,
    "spark.write.noted": RunState.ABSENT,
    "spark.commit.before": RunState.ABSENT,
    "client.commit.before": RunState.ROLLED_BACK,
    "client.commit.answered": RunState.COMMITTED,
    "spark.commit.after": RunState.COMMITTED,
}
"""Where a driver dies → what its id says afterwards."""


@pytest.fixture(scope="module")
def totals_url(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = url_of(tmp_path_factory.mktemp("drivers")).replace("leaseSeconds=120", "leaseSeconds=15")
    with pyomid.spark.transaction(spark, url) as tx:
        tx.write(spark.createDataFrame([("all", 0)], "name string, total long"), "totals", row_key=["name"])
        tx.write(spark.createDataFrame([], "run string, number long"), "runs", row_key=["run"])
    yield url


def sums(spark: SparkSession, url: str) -> tuple[int, int]:
    """The total, and the sum of what the runs say they added: equal in every snapshot."""
    with pyomid.spark.transaction(spark, url) as tx:
        total = tx.read("totals").first()["total"]
        return total, sum(row["number"] for row in tx.read("runs").collect())


def kill_and_run_again(spark: SparkSession, url: str, tmp_path: Path, place: str, transaction_id: str) -> None:
    before, _ = sums(spark, url)
    note = tmp_path / "note"
    environment = {"PYOMID_CRASH_AT": place, "PYOMID_CRASH_NOTE": str(note)}
    died = run_driver("spark_driver.py", url, transaction_id, "7", environment=environment)
    assert died.returncode == -signal.SIGKILL, died.stdout + died.stderr
    assert note.read_text().startswith(place), "the driver died somewhere else"
    committed = PLACES[place] is RunState.COMMITTED
    assert sums(spark, url) == (before + 7 * committed,) * 2
    assert pyomid.spark.look_up_run(url, transaction_id, settle=True).state is PLACES[place]
    again = run_driver("spark_driver.py", url, transaction_id, "7", environment={})
    assert again.returncode == 0, again.stdout + again.stderr
    assert ("already done" in again.stdout) == committed
    assert sums(spark, url) == (before + 7,) * 2
    assert pyomid.spark.verify(spark, url).ok


@pytest.mark.parametrize("place", PLACES)
def test_a_driver_killed_at_a_step_is_looked_up_and_never_counted_twice(
    spark: SparkSession, totals_url: str, tmp_path: Path, place: str
) -> None:
    kill_and_run_again(spark, totals_url, tmp_path, place, f"once {place}")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("place", PLACES)
def test_fifty_drivers_killed_at_a_step(spark: SparkSession, totals_url: str, tmp_path: Path, place: str) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        kill_and_run_again(spark, totals_url, folder, place, f"{number} {place}")
