"""Scans from the last row to the first, and scans page by page: held against the ascending scan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyomid.database.database import Database
from pyomid.errors import Misuse, MisuseType, TransactionEnded

pytestmark = pytest.mark.fast

KEYS = [b"%02d" % number for number in range(40)]
few = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
borders = st.none() | st.sampled_from([b"", b"0", b"05", b"05\0", b"2", b"39", b"4"])


@pytest.fixture
def filled(db: Database) -> Database:
    """Forty rows, some with several versions, some deleted; batches of a few rows."""
    object.__setattr__(db.settings, "scan_batch_rows", 7)
    for step in (1, 3, 3):
        with db.begin() as tx:
            for key in KEYS[::step]:
                tx.table("t").put(key, {b"f:x": b"%d" % step})
    with db.begin() as tx:
        tx.table("t").delete_rows(KEYS[10:25:2])
    return db


@few
@given(start=borders, stop=borders, limit=st.none() | st.integers(0, 45), own=st.sets(st.sampled_from(KEYS)))
def test_a_descending_scan_is_the_ascending_one_turned_round(
    filled: Database, start: bytes | None, stop: bytes | None, limit: int | None, own: set[bytes]
) -> None:
    tx = filled.begin()
    table = tx.table("t")
    for key in own:
        table.put(key + b"own", {b"f:x": b"own"})
        table.delete(key)
    expected = list(table.scan(start or b"", stop))[::-1]
    assert list(table.scan(start or b"", stop, limit=limit, reverse=True)) == expected[:limit]
    tx.rollback()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_follow_one_another_without_gap_or_overlap(filled: Database, reverse: bool, limit: int) -> None:
    with filled.begin() as tx:
        expected = list(tx.table("t").scan(b"05", reverse=reverse))
    found, after = [], None
    while True:
        with filled.snapshot() as tx:
            page = tx.table("t").page(b"05", limit=limit, reverse=reverse, after=after)
        found += page.rows
        after = page.next
        if after is None:
            break
        assert len(page.rows) == limit
        assert after.replace("-", "").replace("_", "").isalnum(), "a URL takes it as it is"
    assert found == expected


def test_a_token_of_another_scan_is_refused(filled: Database) -> None:
    with filled.snapshot() as tx:
        table = tx.table("t")
        token = table.page(limit=3).next
        assert token is not None
        for wrong in (token[:-1] + "!", "", "AQ", "é"):
            with pytest.raises(Misuse, match="not a page token"):
                table.page(after=wrong)
        with pytest.raises(Misuse, match="not a page token"):
            table.page(after=token, reverse=True)
        with pytest.raises(Misuse, match="not a page token"):
            table.page(after=token, prefix=b"3")
        with pytest.raises(MisuseType):
            table.page(after=b"AQ")  # type: ignore[arg-type]
        for limit in (0, -1, None):
            with pytest.raises(Misuse):
                table.page(limit=limit)  # type: ignore[arg-type]


def test_a_scan_ends_with_its_transaction(filled: Database) -> None:
    """In the middle of a batch, and in the last one, behind which nothing would be read."""
    for shown in (3, 31):
        for limit in (None, len(KEYS)):
            tx = filled.begin()
            rows = tx.table("t").scan(limit=limit)
            for _ in range(shown):
                next(rows)
            tx.rollback()
            with pytest.raises(TransactionEnded):
                next(rows)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_with_a_limit_passes_deleted_rows_in_few_fetches(
    db: Database, monkeypatch: pytest.MonkeyPatch, *, reverse: bool
) -> None:
    """The first ready job of a queue lies behind all that were taken since the last compaction."""
    deleted, kept = [b"5%04d" % number for number in range(3_000)], [b"1", b"9"]
    with db.begin() as tx:
        for key in (*deleted, *kept):
            tx.table("t").put(key, {b"f:x": b"1"})
    with db.begin() as tx:
        tx.table("t").delete_rows(deleted)
    store, fetched = db._core.deployment.store, []
    scan = store.scan

    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for batch in scan(*args, **kwargs):
            fetched.append(batch.rows)
            yield batch

    monkeypatch.setattr(store, "scan", counted)
    with db.snapshot() as tx:
        rows = tx.table("t").scan(start=b"5", stop=b"9" if reverse else None, limit=1, reverse=reverse)
        assert [key for key, _ in rows] == ([] if reverse else [b"9"])
        assert fetched[0] <= 16, "not thousands of rows if the first one will do"
        assert len(fetched) < 10
