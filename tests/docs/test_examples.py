"""What README and docs show is run, as it stands, over a fresh folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def blocks(document: str) -> list[str]:
    """The Python blocks of a document."""
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run_script(code: str, folder: Path) -> str:
    script = folder / "example.py"
    script.write_text(code.replace("/tmp/pyomid-readme", str(folder / "db")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_readme_example_of_the_client_runs_as_it_stands(tmp_path: Path) -> None:
    shown = run_script(blocks("README.md")[0], tmp_path)
    assert shown.strip() == "[(b'alice', {b'f:balance': b'70'}), (b'bob', {b'f:balance': b'50'})]"


SPARK_BEFORE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
columns = "origin string, time_hour string, carrier string, flight int"
flights = spark.createDataFrame([("EWR", "2013-01-01 05", "UA", 1545)], columns)
new_totals = spark.createDataFrame([("2013-01-01", "EWR", 1)], "day string, origin string, flights long")
import pyomid.spark
pyomid.spark.register(spark)
with pyomid.spark.transaction(spark, "omid:///tmp/pyomid-readme") as tx:
    tx.write(new_totals, "totals", row_key=["day", "origin"])
"""

SPARK_AFTER = """
assert spark.read.format("omid").option("url", url).option("table", "flights").load().count() == 1
assert totals.count() == 1
print("read back")
"""


@pytest.mark.spark
def test_readme_example_of_spark_runs_as_it_stands(tmp_path: Path) -> None:
    assert "read back" in run_script(SPARK_BEFORE + blocks("README.md")[1] + SPARK_AFTER, tmp_path)
