"""Batches that come between others' records: nothing but the records is left, and pages are full."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from pyomid.folder import batch_writes
from pyomid.folder.batch_writes import put_full

pytestmark = pytest.mark.fast


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[lmdb.Environment, Any]]:
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=1, sync=False) as environment:
        yield environment, environment.open_db(b"cells")


def put(environment: lmdb.Environment, database: Any, records: list[tuple[bytes, bytes]]) -> bool:
    with environment.begin(write=True) as transaction:
        if put_full(transaction, database, records):
            return True
        with transaction.cursor(database) as cursor:
            cursor.putmulti(records)
        return False


def content(environment: lmdb.Environment, database: Any) -> dict[bytes, bytes]:
    with environment.begin() as transaction:
        return dict(transaction.cursor(database))


@pytest.mark.parametrize("tasks", [2, 5])
def test_what_tasks_write_in_turns_fills_its_pages(opened: tuple[lmdb.Environment, Any], tasks: int) -> None:
    environment, database = opened
    records = [(b"%034d" % number, b"v" * 90) for number in range(40_000)]
    shuffled = random.Random(1).sample(records, len(records))
    parts = [sorted(shuffled[task::tasks]) for task in range(tasks)]
    for first in range(0, len(parts[0]), 1000):
        for part in parts:
            put(environment, database, part[first : first + 1000])
    assert content(environment, database) == dict(records)
    with environment.begin() as transaction:
        found = transaction.stat(database)
    assert found["leaf_pages"] * found["psize"] < 1.15 * len(records) * (34 + 90 + 10)


@pytest.mark.parametrize("seed", range(20))
def test_any_batches_leave_nothing_but_their_records(opened: tuple[lmdb.Environment, Any], seed: int) -> None:
    environment, database = opened
    rng, expected = random.Random(seed), dict[bytes, bytes]()
    names = [b"\x00" * rng.randrange(3) + b"%d" % rng.getrandbits(40) for _ in range(3000)]
    lengths = rng.choice(([0, 5], [90, 91, 100], [1, 900, 2100], [3, 5000]))
    for _ in range(12):
        low, high = sorted(rng.choices(sorted(names), k=2))
        chosen = [name for name in names if low <= name <= high and name not in expected]
        written = {name: rng.randbytes(rng.choice(lengths)) for name in rng.sample(chosen, len(chosen) * 2 // 3)}
        if written:
            put(environment, database, sorted(written.items()))
            expected |= written
            assert content(environment, database) == expected


def test_it_declines_what_would_cost_too_much(
    opened: tuple[lmdb.Environment, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, database = opened
    even, odd = ([(b"%06d" % number, b"value") for number in range(first, 1000, 2)] for first in (0, 1))
    assert not put(environment, database, even), "nothing lies between"
    with environment.begin(write=True) as transaction:
        assert not put_full(transaction, database, odd[:200])
        assert not put_full(transaction, database, [*odd, even[-1]]), "one is there"
        assert not put_full(transaction, database, [*odd, (b"x" * 510, b"value")])
        with monkeypatch.context() as small:
            small.setattr(batch_writes, "_BETWEEN_BYTES_MAX", 1000)
            assert not put_full(transaction, database, odd)
    assert content(environment, database) == dict(even)
    assert put(environment, database, odd)
    assert content(environment, database) == dict(even + odd)
