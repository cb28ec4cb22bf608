"""A declarative pipeline of Spark writes to pyomid: `create_sink(format="omid")`, run as `spark-pipelines` runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import pyomid

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "spark-reference.md"
SPEC = "name: shop\nstorage: {folder}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"


def run(folder: Path) -> None:
    """Run the pipeline until its flows have read everything."""
    command = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run", "--spec", "spark-pipeline.yml"]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stdout + done.stderr


def stored(folder: Path) -> list[dict[str, object]]:
    with pyomid.connect(f"omid://{folder}/shop") as db, db.snapshot() as tx:
        return list(tx.table("stock", codec=dict).scan())


@pytest.mark.skipif(
    tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3), reason="this PySpark has no create_sink"
)
def test_a_sink_of_a_pipeline_is_a_table_and_gets_each_batch_once(tmp_path: Path) -> None:
    """The pipeline of docs/spark-reference.md."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- run by tests/spark/{Path(__file__).name} -->\n```py\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "transformations").mkdir()
    (tmp_path / "inbox").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path.as_uri()))
    program = found[1].replace("/data/", f"{tmp_path}/")
    header = "from pyspark.sql import SparkSession\n\nspark = SparkSession.active()\n"
    (tmp_path / "transformations" / "stock.py").write_text(header + program)
    pen, cup = {"item": "pen", "quantity": 9}, {"item": "cup", "quantity": 5}
    (tmp_path / "inbox" / "1.json").write_text(json.dumps(pen))
    run(tmp_path)
    assert stored(tmp_path) == [pen]
    with pyomid.connect(f"omid://{tmp_path}/shop") as db, db.begin() as tx:
        tx.table("stock", codec=dict).put({"item": "pen", "quantity": 1})
    (tmp_path / "inbox" / "2.json").write_text(json.dumps(cup))
    run(tmp_path)
    assert stored(tmp_path) == [cup, pen | {"quantity": 1}], "the first batch is not written again"
