"""Spark sessions of the tests, and drivers in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "PYOMID_TEST_REMOTE"
"""In the environment: the Spark Connect to run over, local[2] to start one; else a session of this process."""

URL_OPTIONS = "leaseSeconds=120&commitRetrySeconds=10&maxTransactionAgeSeconds=2&tsoIdleExitSeconds=5"


def url_of(folder: Path) -> str:
    return f"omid://{folder}/db?{URL_OPTIONS}"


def local_session(master: str = "local[2,4]", **settings: str) -> SparkSession:
    pyomid.spark.use_this_python()
    from pyspark.sql import SparkSession

    remote = os.environ.get(REMOTE)
    builder = (
        (SparkSession.builder.remote(remote) if remote else SparkSession.builder.master(master))
        .appName("pyomid tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Spark Connect, for each setting that is the server's
        spark = builder.getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("OFF")
    pyomid.spark.register(spark)
    return spark


def run_driver(script: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A driver program of tests/spark in a process of its own, until it ends or is killed."""
    path = Path(__file__).with_name(script)
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
