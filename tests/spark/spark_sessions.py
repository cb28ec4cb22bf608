"""Spark sessions of the tests, and drivers in processes of their own."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyomid.spark.sessions import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "PYOMID_TEST_REMOTE"
"""In the environment: the Spark Connect to run over, local[2] to start one; else a session of this process."""

URL_OPTIONS = "leaseSeconds=120&commitRetrySeconds=10&maxTransactionAgeSeconds=2"


def url_of(folder: Path) -> str:
    return f"omid://{folder}/db?{URL_OPTIONS}"


def local_session(master: str = "local[2,2]", **settings: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # frames are made before the first `connect`, and by servers
    options = {
        "spark.app.name": "pyomid tests",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "OFF",
        **settings,
    }
    spark = _connected(os.environ[REMOTE], options) if REMOTE in os.environ else _classic(master, options)
    register(spark)
    return spark


def _classic(master: str, options: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(master).config(map=options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _connected(remote: str, options: dict[str, str]) -> SparkSession:
    """local[2] starts a server as `builder.remote` does, but at a free port: that one's is the same for the machine."""
    url = _started_server(remote, options) if remote.startswith("local") else remote
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for each setting that is the server's
        return ConnectSession.builder.remote(url).config(map=options).getOrCreate()


def _started_server(master: str, options: dict[str, str]) -> str:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    of_server = {
        "spark.master": master,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }
    SparkSession(SparkContext(conf=SparkConf().setAll(list({**options, **of_server}.items()))))
    os.environ["SPARK_LOCAL_REMOTE"] = "1"  # the server ends with the session
    return f"sc://localhost:{port}"


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


class StoppedDriver:
    """A driver program, one process of which stands still at a crash point; the others wait for it, or go on."""

    def __init__(self, driver: subprocess.Popen[str], note: Path, told: Path) -> None:
        self._driver = driver
        self._note = note
        self._told = told

    def go_on(self) -> tuple[int, str]:
        """Until it ends: its exit code and what it said."""
        os.kill(int(self._note.read_text().split()[1]), signal.SIGCONT)
        return self._driver.wait(), self._told.read_text()


@contextmanager
def stopped_driver(script: str, *arguments: str, point: str, folder: Path) -> Iterator[StoppedDriver]:
    """A driver program of tests/spark, in a session of its own, once one of its processes stands at `point`. At the end
    kill −9 of it with its JVM, its workers and its sources, all at once."""
    note, told = folder / f"note-{point}", folder / f"told-{point}"
    armed = {"PYOMID_CRASH_AT": point, "PYOMID_CRASH_HOW": "stop", "PYOMID_CRASH_NOTE": str(note)}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    environment = {**os.environ, **armed}
    with told.open("w") as out:
        driver = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True, text=True)
    try:
        while not note.exists():
            assert driver.poll() is None, f"{point} was not passed: {told.read_text()[-3000:]}"
            time.sleep(0.05)
        yield StoppedDriver(driver, note, told)
    finally:
        while running := _of_session(driver.pid):
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        driver.wait()


def kill_driver(script: str, *arguments: str, point: str, folder: Path) -> None:
    """kill −9 of a driver program and all its processes as one of them passes `point`."""
    with stopped_driver(script, *arguments, point=point, folder=folder):
        pass


def _of_session(leader: int) -> list[int]:
    """The processes of a session, but for those that ended and were not waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


@contextmanager
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows three at a time, and write these alone: so there is a middle of a task's writing."""
    from pyomid.spark.source.datasource import OmidDataSource
    from pyomid.spark.source.write_task import RUN_VARIABLE

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before, environment = spark.conf.get(name), spark.sparkContext.environment
    spark.conf.set(name, "3")
    environment[RUN_VARIABLE] = "0"
    spark.dataSource.register(OmidDataSource)
    try:
        yield
    finally:
        spark.conf.set(name, before)
        del environment[RUN_VARIABLE]
        spark.dataSource.register(OmidDataSource)
