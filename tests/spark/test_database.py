"""The handle of a database in a session, without a JVM: what it refuses at once, and what it asks the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pyomid
import pyomid.spark
from pyomid.errors import FolderMissing, Misuse, MisuseType, SnapshotTooOld, UnknownTable
from pyomid.spark import SparkDatabase, database
from pyomid.spark.connections import close_connections

pytestmark = pytest.mark.fast

SPARK = cast(Any, SimpleNamespace())
"""A session of which nothing is asked."""


@pytest.fixture(autouse=True)
def _no_data_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "register", lambda spark: None)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"omid-memory:{tmp_path}"
    close_connections()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/data/flights", r"url '/data/flights' does not begin with omid:///folder"),
        ("omid://data/flights", "names a host 'data'"),
        ("omid:///data/flights?leaseSecond=3", "unknown option 'leaseSecond'"),
        ("omid:///data/flights?leaseSeconds=x", "leaseSeconds='x' is not a number"),
    ],
)
def test_a_malformed_url_is_refused_at_once(url: str, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        pyomid.spark.connect(SPARK, url)


def test_what_is_no_url_is_refused_with_the_order_of_the_parameters() -> None:
    with pytest.raises(MisuseType, match=r"pyomid\.spark\.connect\(spark, url\)"):
        pyomid.spark.connect(cast(Any, "omid:///data/flights"), SPARK)


def test_connecting_makes_and_opens_nothing(tmp_path: Path) -> None:
    db = pyomid.spark.connect(SPARK, f"omid://{tmp_path}/none")
    assert repr(db) == f"<SparkDatabase omid://{tmp_path}/none>"
    assert db.tables() == []
    with pytest.raises(FolderMissing, match=r"there is no database in .*/none, and this call does not create one"):
        db.verify()
    assert not list(tmp_path.iterdir())


def test_a_bookmark_of_a_database_without_a_table_begins_the_first_tables_changes(tmp_path: Path) -> None:
    with pyomid.spark.connect(SPARK, f"omid://{tmp_path}/new") as db:
        mark = db.bookmark(keep_seconds=600)
        assert db.tables() == []
        with pyomid.connect(db.url) as client:
            with pytest.raises(UnknownTable, match="there is no table 't': the database has no tables yet"):
                client.changes("t", mark)
            client.create_table("t", families=["f"])
            with pytest.raises(UnknownTable, match=r"there is no table 'other'$"):
                client.changes("other", mark)
            with client.begin() as tx:
                tx.table("t").put(b"row", {b"f:x": b"1"})
            assert [change.kind for change in client.changes("t", mark)] == ["insert"]


def test_tables_and_bookmarks_are_those_of_the_client(url: str) -> None:
    with pyomid.connect(url) as client:
        client.create_table("t", families=["f"])
        db = pyomid.spark.connect(SPARK, url)
        assert db.tables() == client.tables()
        mark = db.bookmark(keep_seconds=600)
        with client.begin() as tx:
            tx.table("t").put(b"row", {b"f:x": b"1"})
        assert [change.row for change in client.changes("t", mark)] == [b"row"]
        assert mark.start_ts in leased(client)
        db.release_bookmark(mark)
        assert mark.start_ts not in leased(client)


def test_changes_that_cannot_be_are_refused_at_the_call(tmp_path: Path) -> None:
    """Spark would raise a Java exception of the frame's first action."""
    with pyomid.spark.connect(SPARK, f"omid://{tmp_path}/new") as db, pyomid.connect(db.url) as client:
        client.create_table("t", families=["f"])
        old = db.bookmark()
        client.drop_table("t")
        client.create_table("t", families=["f"])
        mark = db.bookmark()
        with client.begin() as tx:
            tx.table("t").put(b"row", {b"f:x": b"1"})
        until = db.bookmark(keep_seconds=600)
        client.compact()
        for starting, ending, kind, told in [
            (until, mark, Misuse, "startingBookmark=.* lies after endingBookmark="),
            (until, mark.start_ts, Misuse, "startingBookmark=.* lies after endingVersion="),
            (datetime(2030, 1, 1), None, Misuse, r"starting=2030-01-01 00:00:00 has no time zone; .*\.astimezone\(\)"),
            (until, datetime(2030, 1, 1), Misuse, "ending=2030-01-01 00:00:00 has no time zone"),
            (until, 2 * until.start_ts, Misuse, "was never handed out"),
            (2 * until.start_ts, None, Misuse, "startingVersion=.* lies after ending"),
            (old, None, Misuse, "a former table with the same name"),
            (mark, None, SnapshotTooOld, "are no longer kept: .* start again with a full read"),
            ("noon", None, MisuseType, "starting='noon' has type str"),
        ]:
            with pytest.raises(kind, match=told):
                db.changes("t", starting, ending)  # type: ignore[arg-type]
        with pytest.raises(UnknownTable, match="did you mean 't'"):
            db.changes("tt", until)


def leased(client: pyomid.Database) -> list[int]:
    return list(client.status().tso.leases)


def test_the_first_operation_after_a_close_opens_the_database_again(tmp_path: Path, url: str) -> None:
    other = pyomid.spark.connect(SPARK, f"omid-memory:{tmp_path}/other").opened()
    db = pyomid.spark.connect(SPARK, url)
    first = db.opened()
    assert db.opened() is first
    db.close()
    assert db.opened() is not first
    assert pyomid.spark.connect(SPARK, other.url).opened() is other, "another database was closed"


def test_public_methods_are_those_of_the_client_but_for_sparks_own() -> None:
    own = {"adopt", "history", "look_up_run", "moment", "read", "restore", "sql", "stream_sink", "transaction", "views"}
    names = {name for name in vars(SparkDatabase) if not name.startswith("_")} - {"opened"}
    assert names - own <= set(dir(pyomid.Database))


def test_what_is_no_session_is_refused_with_the_order_of_the_parameters(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.undo()
    with pytest.raises(MisuseType, match=r"None is not a SparkSession; call pyomid\.spark\.connect\(spark, url\)"):
        pyomid.spark.connect(cast(Any, None), url)
