"""Folders, each with its own TSO, which ends with the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from served_folder import DEADLINE_S
from service_process import is_alive, kill_tso, tso_pid

from certificates import make_certificates
from pyomid.client.session.blocking import TsoSession
from pyomid.config import Settings
from pyomid.storage.embedded import open_folder
from pyomid.wiring import folder_connector


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A pyomid folder; its TSO, if one was started, is killed afterwards."""
    path = tmp_path / "db"
    open_folder(path)
    yield path
    with contextlib.suppress(OSError, KeyError):
        if tso_pid(path) != os.getpid() and is_alive(tso_pid(path)):
            kill_tso(path, signal.SIGCONT)
            kill_tso(path, signal.SIGKILL)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def session_of() -> Iterator[Callable[..., TsoSession]]:
    """Sessions with the on-demand TSO of a folder."""
    opened: list[TsoSession] = []

    def make(path: Path, *, request_s: float = 5.0, retry_s: float = 30.0, **settings: float) -> TsoSession:
        chosen = Settings(**{"tso_idle_exit_seconds": 20.0, "conflict_map_entries": 65536, **settings})  # type: ignore[arg-type]
        opened.append(TsoSession(folder_connector(path, chosen), request_s=request_s, retry_s=retry_s))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a test that is a coroutine on each of both event loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 2 * DEADLINE_S))

    return run
