"""Databases for the client's tests: every law is held on the memory store and on the embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyomid
from pyomid.database.database import Database


@pytest.fixture(scope="session")
def embedded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One folder, and so one TSO, for all tests; one connection keeps that alive between them."""
    url = f"omid://{tmp_path_factory.mktemp('client')}/db"
    with pyomid.connect(url):
        yield url


@pytest.fixture(params=["memory", "embedded"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "memory":
        yield f"omid-memory:{tmp_path.name}-{request.node.name}"
        return
    embedded_url: str = request.getfixturevalue("embedded_url")
    yield embedded_url
    with pyomid.connect(embedded_url) as database:
        for table in database.tables():
            if not table.name.startswith("PYOMID_"):
                database.drop_table(table.name)


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as database:
        database.create_table("t", families=["f", "g"])
        yield database


@pytest.fixture
def keeper(db: Database, url: str) -> Iterator[Database]:
    """Another client, which keeps what it reads of a table for as long as the test runs."""
    with pyomid.connect(url, catalog_cache_seconds=1000) as database:
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
