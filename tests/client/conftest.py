"""Databases for the client's tests: every law is held on the memory store and on the embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyomid
from pyomid.client.database import Database


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"omid-memory:{tmp_path.name}-{request.node.name}"
    return f"omid://{tmp_path}/db?idleExitSeconds=1"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as database:
        database.create_table("t", families=["f", "g"])
        yield database


@pytest.fixture
def memory_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For laws of the client alone, where the store makes no difference."""
    return f"omid-memory:{tmp_path.name}-{request.node.name}"


@pytest.fixture
def memory_db(memory_url: str) -> Iterator[Database]:
    with pyomid.connect(memory_url) as database:
        database.create_table("t", families=["f", "g"])
        yield database
