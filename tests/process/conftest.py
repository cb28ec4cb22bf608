"""Real processes, started by a fork server that has imported everything: a kill costs some 20 ms."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import bank_process
import pytest
from forked_processes import Processes

import pyomid
from pyomid.database.database import Database


@pytest.fixture(scope="session")
def fork_server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "bank_process",
            "pyomid.wiring",
            "pyomid.database.database",
            "pyomid.omid.client.blocking",
            "pyomid.folder",
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
    return f"omid://{tmp_path}/bank"


@pytest.fixture
def bank(bank_url: str) -> Iterator[Database]:
    with pyomid.connect(bank_url) as db:
        bank_process.open_bank(db)
        yield db
