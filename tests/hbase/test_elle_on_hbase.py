"""The histories of tests/elle over HBase: the same clients, another URL."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from elle_histories import MODELS
from elle_workload import prepare
from hbase_processes import TsoProcess
from test_elle_histories import POINT_FRONTS, SPARK_TRANSACTIONS, demand, recorded, recorded_beside_spark

TRANSACTIONS = int(os.environ.get("ELLE_TRANSACTIONS", "4000"))


@pytest.mark.soak
@pytest.mark.parametrize("front", POINT_FRONTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_history_over_hbase_is_strictly_snapshot_isolated(
    model: str, front: str, url: str, tso: TsoProcess, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    prepare(url)
    operations = recorded(url, model, front, tmp_path, TRANSACTIONS, seed=seed, kills=False)
    demand(model, operations, tmp_path / f"{model}-{front}.edn")


@pytest.mark.soak
@pytest.mark.parametrize("model", MODELS)
def test_a_history_over_hbase_beside_spark_is_strictly_snapshot_isolated(
    model: str, url: str, tso: TsoProcess, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    prepare(url)
    operations = recorded_beside_spark(url, model, tmp_path, SPARK_TRANSACTIONS, seed=seed, kills=False)
    demand(model, operations, tmp_path / f"{model}-spark.edn")
