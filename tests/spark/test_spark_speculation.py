"""Speculation: a slow task runs twice on a real cluster, both attempts write, one of them counts (S1)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from spark_sessions import run_driver
from test_spark_attempts import check_each_partition_is_one_attempt

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers on loopback addresses: in local mode speculation never fires."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    started = [
        start(tmp_path, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        *[
            start(
                tmp_path, "worker.Worker", "--host", host, "--cores", "1", "--memory", "600m", "--webui-port", "0",
                "--work-dir", str(tmp_path / host), url,
            )
            for host in ("127.0.0.2", "127.0.0.3")
        ],
    ]  # fmt: skip
    wait_for_port(port)
    yield url
    for process in started:
        process.terminate()
    for process in started:
        process.wait(30)


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = (folder / f"{name}-{time.time_ns()}.log").open("wb")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(script), f"org.apache.spark.deploy.{name}", *arguments]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def wait_for_port(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, "the master did not start"
            time.sleep(0.2)


def test_of_two_attempts_that_both_wrote_one_is_seen(
    master: str, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    ran = run_driver("speculating_driver.py", master, url, str(tmp_path), environment={})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    attempts = [path.name for path in tmp_path.iterdir() if path.name.startswith("attempt-0-")]
    assert len(attempts) >= 2, f"no second attempt ran: {attempts}"
    with pyomid.spark.transaction(spark, url) as tx:
        check_each_partition_is_one_attempt(tx.read("speculated"))
    found = pyomid.spark.verify(spark, url)
    assert found.ok
    assert found.tables[-1].rows == 1500
