"""How many Python calls short transactions of a folder make: each call costs more than a comparison of a row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pyomid
from pyomid.database.database import Database

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

RUNS = 20
"""Of which the one with the fewest calls counts: what is due only now and then, such as a look at W, is not counted."""


def calls_of(run: Callable[[], object]) -> int:
    """Return how many calls of Python functions, and resumptions of generators, a run makes at least."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    counts = []
    for _ in range(RUNS):
        run()  # fills caches
        calls, before = 0, sys.getprofile()
        sys.setprofile(count)
        try:
            run()
        finally:
            sys.setprofile(before)
        counts.append(calls - 1)  # without `run` itself
    return min(counts)


def gets(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").get(b"k")


def gets_ten_times(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        for _ in range(10):
            table.get(b"k")


def puts(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:a": b"v"})


def puts_ten_rows(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        for number in range(10):
            table.put(b"%d" % number, {b"f:a": b"v"})


@pytest.mark.parametrize(("run", "most"), [(gets, 90), (gets_ten_times, 350), (puts, 130), (puts_ten_rows, 190)])
def test_a_short_transaction_makes_few_calls(tmp_path: Path, run: Callable[[Database], None], most: int) -> None:
    with pyomid.connect(f"omid://{tmp_path}/db", upkeepShare=0) as db:
        db.create_table("t", families=["f"])
        puts(db)
        assert calls_of(lambda: run(db)) <= most
