"""From candidate to leader: the lease survives a long takeover, and signals are handled meanwhile."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyomid.errors import Unavailable
from pyomid.omid.client.blocking import TsoSession
from pyomid.tls import tcp_connector

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LEADER = Path(__file__).with_name("patient_leader.py")


@contextlib.contextmanager
def leader(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(LEADER), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_leader_keeps_its_lease_while_it_takes_over() -> None:
    with leader() as process:
        assert line(process) == "takes over"
        assert line(process) == "announced"
        address = line(process).removeprefix("serving on ")
        tso = TsoSession(tcp_connector(address), request_s=20.0, retry_s=40.0)
        assert tso.begin().start_ts > 0
        tso.close()
        process.send_signal(signal.SIGTERM)
        assert line(process) == "released"
        assert process.wait(timeout=60) == 0


def test_a_leader_stopped_during_takeover_releases_the_lease() -> None:
    with leader("stopped") as process:
        assert line(process) == "takes over"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        said = []
        while word := line(process):
            said.append(word)
        assert said[-1] == "released"
        assert process.wait(timeout=60) == 0


def test_threads_that_wait_for_another_threads_connecting_give_up_by_their_own_deadline() -> None:
    release = threading.Event()
    dialling = threading.Event()

    def dial() -> None:
        dialling.set()
        release.wait(100.0)
        raise Unavailable("nobody there")

    session = TsoSession(dial, request_s=0.1, retry_s=0.2)  # type: ignore[arg-type]
    failures: list[BaseException] = []

    def begin() -> None:
        try:
            session.begin()
        except BaseException as error:
            failures.append(error)

    first = threading.Thread(target=begin)
    first.start()
    dialling.wait(60.0)
    with pytest.raises(Unavailable, match="other callers have been connecting to a TSO"):
        session.begin()
    release.set()
    first.join()
    assert isinstance(failures[0], Unavailable)
    assert "nobody there" in str(failures[0])
