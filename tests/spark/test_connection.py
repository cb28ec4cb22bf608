"""A process's connection while the database behind its URL is dropped, and another one is made in its place."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid.errors import Misuse
from pyomid.ports import Deployment
from pyomid.spark import connections
from pyomid.spark.connections import close_connections, connection
from pyomid.spark.source.datasource import OmidDataSource

pytestmark = pytest.mark.process


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"omid://{tmp_path}/db"
    close_connections()


def remake(url: str, folder: Path) -> None:
    shutil.rmtree(folder)
    with pyomid.connect(url) as db:
        db.create_table("new", families=["f"])


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_remade_database_is_connected_anew(tmp_path: Path, url: str, how: str) -> None:
    """Python workers live for many jobs: "connect again" is nothing that their users could do."""
    old = connection(url)
    assert connection(url) is old
    if how == "removed":
        remake(url, tmp_path / "db")
    else:
        os.rename(tmp_path / "db", tmp_path / "before")
        with pyomid.connect(url) as db:
            db.create_table("new", families=["f"])
    new = connection(url)
    assert [info.name for info in new.deployment.catalog.tables()] == ["new"]
    assert new.database_id != old.database_id


def test_a_plan_runs_in_no_other_database(tmp_path: Path, url: str) -> None:
    """Its snapshot means other commits there: rows are read that it never saw, or missed, without a word."""
    planned, of_plan = connection(url).database_id, connection(url).task_url
    assert connection(url, planned).database_id == planned == connection(of_plan).database_id
    remake(url, tmp_path / "db")
    for how in ((url, planned), (of_plan,)):
        with pytest.raises(Misuse, match=r"made for database .* replaced the former database"):
            connection(*how)
    assert connection(url, b"").database_id != planned
    with pytest.raises(Misuse, match="replaced the former database"):
        OmidDataSource({"url": url, "table": "new", "_snapshotVersion": "50", "_snapshotDatabase": planned.hex()})


def test_a_child_forked_while_a_database_opens_opens_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening takes as long as the TSO or ZooKeeper does, and the thread that opens is not in the child (C5)."""
    begun, go_on, real = threading.Event(), threading.Event(), connections.open_deployment

    def slowly(url: str, **options: Any) -> Deployment:
        if "slow" in url:
            begun.set()
            assert go_on.wait(60.0)
        return real(url, **options)

    monkeypatch.setattr(connections, "open_deployment", slowly)
    opens = threading.Thread(target=connection, args=("omid-memory:forked-slow",))
    opens.start()
    assert begun.wait(60.0)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # ends a child that waits for ever
        try:
            connection("omid-memory:forked-child")
        except BaseException:
            os._exit(1)
        os._exit(0)
    go_on.set()
    opens.join()
    assert os.waitpid(child, 0)[1] == 0, "it waits for a lock that nobody releases"
