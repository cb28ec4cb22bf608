"""History over HBase survives a failover to a TSO without that option, and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hbase_processes import leading_tso, with_options

import pyomid

KEY, COLUMN = b"r", b"f:a"


@pytest.mark.long
def test_history_survives_a_failover(url: str, tmp_path: Path, table_name: str) -> None:
    """Three TSOs, one after the other; the last one ends the retention, for the tests behind this one."""

    @contextmanager
    def tso(options: str = "") -> Iterator[None]:
        served = with_options(url, f"maxTransactionAgeSeconds=1{options}")
        with leading_tso(served, tmp_path / "tso.log"):
            yield

    try:
        with tso("&retention=1h"), pyomid.connect(url) as db:
            db.create_table(table_name, families=["f"])
            commits = []
            for value in (b"1", b"2", b"3"):
                with db.begin() as tx:
                    tx.table(table_name).put(KEY, {COLUMN: value})
                assert tx.commit_ts is not None
                commits.append(tx.commit_ts)
        with tso(), pyomid.connect(url) as db:
            assert db.status().tso.retention_s == 3600
            db.compact(table_name)
            for commit_ts, value in zip(commits, (b"1", b"2", b"3"), strict=True):
                with db.snapshot(at=commit_ts) as past:
                    assert past.table(table_name).get(KEY) == {COLUMN: value}
    finally:
        with tso("&retention=0"), pyomid.connect(url) as db:
            assert not db.status().tso.retention_s
            db.drop_table(table_name)
