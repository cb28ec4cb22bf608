"""Real processes, started by a fork server that has imported everything: a kill costs some 20 ms."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import bank_process
import pytest

import pyomid
from pyomid.client.database import Database

JOIN_S_MAX = 60.0
"""Longer than anything here takes on a busy machine: a process that is still there hangs."""


@dataclass
class Processes:
    """Starts processes and leaves none behind."""

    context: ForkServerContext
    started: list[ForkServerProcess]

    def start(self, target: Any, *args: Any) -> ForkServerProcess:
        process = self.context.Process(target=target, args=args, daemon=True)
        process.start()
        self.started.append(process)
        return process

    def finish(self, process: ForkServerProcess) -> int:
        """Its exit code (negative: the signal that ended it)."""
        process.join(JOIN_S_MAX)
        assert process.exitcode is not None, "the process hangs"
        self.started.remove(process)
        return process.exitcode

    def run(self, target: Any, *args: Any) -> int:
        return self.finish(self.start(target, *args))

    def kill_all(self) -> None:
        for process in self.started:
            process.kill()
            process.join(JOIN_S_MAX)
        self.started.clear()


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "bank_process",
            "pyomid.wiring",
            "pyomid.client.database",
            "pyomid.client.session",
            "pyomid.storage.embedded",
            "pyomid.tso.ondemand",
        ]
    )
    return context


@pytest.fixture
def processes(fork_server: ForkServerContext) -> Iterator[Processes]:
    found = Processes(fork_server, [])
    yield found
    found.kill_all()


@pytest.fixture
def bank_url(tmp_path: Path) -> str:
    return f"omid://{tmp_path}/bank?idleExitSeconds=1"


@pytest.fixture
def bank(bank_url: str) -> Iterator[Database]:
    with pyomid.connect(bank_url) as db:
        bank_process.open_bank(db)
        yield db
