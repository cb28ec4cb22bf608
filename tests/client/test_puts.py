"""Compiled puts and batches, compared with the checks and the buffer in Python."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import numpy as np
import pytest
from outboxes import new_outbox

from pyomid.cells import TOMBSTONE, batch_of_records
from pyomid.database.tables.table import checked_put
from pyomid.database.validation import TableRules
from pyomid.database.writes.outbox import Outbox
from pyomid.errors import Misuse
from pyomid.folder.native import records
from pyomid.native import records_of_rows
from pyomid.types import Column, ConflictLevel, StoreLimits, TableInfo

pytestmark = pytest.mark.fast

LIMITS = StoreLimits(row_bytes_max=40, qualifier_bytes_max=100, value_bytes_max=50, zeros_count_twice=True)


class OtherBytes(bytes):
    """As numpy's: it may compare or hash as it likes."""


def some_key(rng: random.Random) -> Any:
    return rng.choice((b"a", b"b", b"c" * 20, b"d" * 21, b"", b"e" * 41, OtherBytes(b"a"), "a", None, bytearray(b"a")))


def some_cells(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return rng.choice(({}, None, [b"f:x"], frozenset()))
    names = (b"f:x", b"f:y", b"f:z", OtherBytes(b"f:x"), b"g:x", b"f:", b"f", "f:x", 1)
    values = (b"1", b"v" * 50, b"", b"v" * 51, OtherBytes(b"2"), None, "v")
    return {
        rng.choices(names, (9, 9, 9, 1, 1, 1, 1, 1, 1))[0]: rng.choices(values, (9, 9, 1, 1, 1, 1, 1))[0]
        for _ in range(rng.randint(1, 4))
    }


def state(outbox: Outbox) -> object:
    buffers = [(name, buffer) for name, buffer in outbox._buffers.items() if buffer.touched]
    rows = {name: (buffer.rows, buffer.buffered_bytes, buffer.checked) for name, buffer in buffers}
    return rows, outbox._buffered_bytes, outbox.ids.noted


@pytest.mark.parametrize("seed", range(60))
def test_a_put_by_compiled_code_leaves_what_the_checks_and_the_buffer_leave(seed: int) -> None:
    rng = random.Random(seed)
    info = TableInfo("t", (b"f",), rng.choice(list(ConflictLevel)))
    rules, plain_rules = TableRules(info, LIMITS), TableRules(info, LIMITS)
    both = [new_outbox(ids_max=200) for _ in range(2)]
    for _ in range(60):
        key, cells, conflict = some_key(rng), some_cells(rng), rng.random() < 0.97
        results = []
        for outbox, each, tries in zip(both, (rules, plain_rules), (True, False), strict=True):
            try:
                if tries and conflict and outbox.put_known(each, key, cells):
                    results.append("")
                    continue
                row, checked = checked_put(each, key, cells)
                assert type(row) is bytes
                outbox.buffer(info, row, checked, conflict=conflict)
                results.append("")
            except Misuse as error:
                results.append(str(error))
        assert results[0] == results[1]
        assert state(both[0]) == state(both[1])


def test_a_put_of_many_ids_is_left_to_the_slow_path() -> None:
    info = TableInfo("t", (b"f",), ConflictLevel.CELL)
    rules, outbox = TableRules(info, LIMITS), new_outbox(flush_bytes=1, ids_max=2)
    assert not outbox.put_known(rules, b"a", {b"f:x": b"1"}), "the column is not known yet"
    outbox.buffer(info, *checked_put(rules, b"a", {b"f:x": b"1"}))
    assert outbox.put_known(rules, b"b", {b"f:x": b"1"})
    assert outbox.is_flush_due
    assert not outbox.put_known(rules, b"c", {b"f:x": b"1"})
    outbox._overlay.save(outbox.ids.written)
    outbox._buffers["t"].taken_back.add((b"z", Column(b"f", b"x")))
    assert not outbox.put_known(rules, b"b", {b"f:x": b"1"})


# Batches


def plain_records_of(keys: list[bytes], rows: list[dict[Column, bytes | None]]) -> tuple[Any, ...]:
    """The reference implementation of `records_of`."""
    columns = {column: number for number, column in enumerate(dict.fromkeys(chain.from_iterable(rows)))}
    values = [value for row in rows for value in row.values()]
    cell_len = [TOMBSTONE if value is None else len(value) for value in values]
    ends, value_ends = np.cumsum([len(key) for key in keys]), np.cumsum([len(value or b"") for value in values])
    return (
        b"".join((*keys, *(value or b"" for value in values))),
        list(columns),
        [int(end) - len(key) for key, end in zip(keys, ends, strict=True)],
        [len(key) for key in keys],
        [0, *np.cumsum([len(row) for row in rows]).tolist()],
        [columns[column] for row in rows for column in row],
        [int(ends[-1] + end) - len(value or b"") for value, end in zip(values, value_ends, strict=True)],
        cell_len,
    )


@pytest.mark.parametrize("seed", range(50))
def test_a_batch_has_the_arrays_of_the_reference_implementation(seed: int) -> None:
    rng = random.Random(seed)
    columns = [Column(b"f", b"%d" % number) for number in range(5)]
    keys = [rng.randbytes(rng.randrange(1, 9)) for _ in range(rng.randrange(1, 40))]
    rows: list[dict[Column, bytes | None]] = [
        {
            Column(*column) if rng.random() < 0.3 else column: rng.choice((None, b"", rng.randbytes(rng.randrange(30))))
            for column in rng.sample(columns, rng.randrange(6))
        }
        for _ in keys
    ]
    found = records_of_rows.records_of(keys, rows)
    expected = plain_records_of(keys, rows)
    assert found[0].tobytes() == expected[0]
    assert found[1] == expected[1]
    assert [each.tolist() for each in found[2:]] == list(expected[2:])
    batch = batch_of_records(keys, rows)
    assert [batch.row_key(row) for row in range(batch.rows)] == keys
    assert [dict(batch.row_write(row).cells) for row in range(batch.rows)] == rows


def test_rows_that_are_none_are_refused() -> None:
    column = Column(b"f", b"x")
    wrong: list[tuple[Any, Any]] = [
        ([b"a"], []), (["a"], [{}]), ([None], [{}]), ([b"a"], [None]), ([b"a"], [{column: "v"}]), ([b"a"], [[column]]),
    ]  # fmt: skip
    for keys, rows in wrong:
        with pytest.raises((TypeError, ValueError)):
            records_of_rows.records_of(keys, rows)


def test_encoded_records_are_cut_into_pairs() -> None:
    data, bounds = np.frombuffer(bytearray(b"k1v1k2"), np.uint8), np.array([0, 2, 4, 6, 6], np.int64)
    assert records.pairs(data, bounds) == [(b"k1", b"v1"), (b"k2", b"")]
    assert records.pairs(data, np.zeros(1, np.int64)) == []
    with pytest.raises(ValueError, match="borders"):
        records.pairs(data, np.array([0, 2, 7], np.int64))
