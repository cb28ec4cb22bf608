"""A real standalone Spark on loopback addresses: a master, and workers in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark


@contextmanager
def standalone_cluster(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The master's URL, with two workers of one core. `environment`: theirs, beside this process's."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    started = [
        _start(folder, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        *[
            _start(
                folder, "worker.Worker", "--host", host, "--cores", "1", "--memory", "600m", "--webui-port", "0",
                "--work-dir", str(folder / host), url, environment=environment,
            )
            for host in ("127.0.0.2", "127.0.0.3")
        ],
    ]  # fmt: skip
    try:
        _wait_for_port(port)
        yield url
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def _start(
    folder: Path, name: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = (folder / f"{name}-{time.time_ns()}.log").open("wb")
    known = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m", **(environment or {})}
    command = [str(script), f"org.apache.spark.deploy.{name}", *arguments]
    return subprocess.Popen(command, env=known, stdout=log, stderr=subprocess.STDOUT)


def _wait_for_port(port: int) -> None:
    deadline_s = time.monotonic() + 180
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, "the master did not start"
            time.sleep(0.2)
