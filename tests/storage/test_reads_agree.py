"""Every way to read a row gives what the rules give: point reads, scans of pages and by the cursor, with and without
bounds.

Rows have many versions, wide and dense records, values of no byte to several pages, keys of all lengths, branches,
tombstones of cells and families, missing shadow cells, expired values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from embedded_parts import commit_branch
from portions import first
from pyomid.cells import batch_of_records
from pyomid.coroutines import Handler, drive
from pyomid.database.driver import store_handlers
from pyomid.database.writes.shown_rows import visible_rows
from pyomid.folder import EmbeddedStore
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch, read_rows, read_settled
from pyomid.protocol.visibility import visible_point
from pyomid.types import CellVersion, Column, KeyRange, LifeOf, RowWrite, ShadowWrite, TableInfo, start_of

pytestmark = pytest.mark.fast

FAMILIES = [Column(b"f", b""), Column(b"g", b"")]
KEYS = [b"\0", b"\0\0", b"\0" * 249, b"a", b"a\0", b"a\0\0", b"a\0\xff", b"a\x01", b"k" * 498, b"\xff", b"\xff" * 498]
VALUE_BYTES = ((1,), (1, 13, 14, 15, 127, 128), (1, 1000, 2000), (1, 2010, 2020, 4080, 4096, 9000, 40_000))
Handlers = dict[type[effects.Effect], Handler]


@pytest.fixture
def parts(parts: Deployment) -> Deployment:
    for table in ("before", "t", "behind"):
        parts.store.create_table(TableInfo(table, (b"f", b"g")))
    for table in ("before", "behind"):
        parts.store.write_cells(table, 50, [RowWrite(b"x", ((Column(b"f", b"q"), b"1"),))])
    return parts


def write_history(
    rng: random.Random, parts: Deployment, keys: list[bytes], columns: list[Column], versions: int
) -> None:
    sizes, has_families = rng.choice(VALUE_BYTES), rng.random() < 0.3
    for start in range(50, 50 + 50 * versions, 50):
        rows = {}
        for key in sorted(rng.sample(keys, rng.randint(1, len(keys)))):
            chosen = rng.sample(columns, min(len(columns), rng.choice((1, 1, 2, 10, 130))))
            rows[key] = {each: None if rng.random() < 0.15 else b"v" * rng.choice(sizes) for each in chosen}
            if has_families and rng.random() < 0.1:
                rows[key][rng.choice(FAMILIES)] = None
        version = start + rng.choice((0, 0, 1, 7))  # also of a branch
        if rng.random() < 0.5:
            parts.store.write_batch("t", version, batch_of_records(list(rows), list(rows.values())))
        else:
            parts.store.write_cells("t", version, [RowWrite(key, tuple(cells.items())) for key, cells in rows.items()])
        fate, commit_ts = rng.random(), start + rng.randrange(1, 400)
        if fate < 0.8:
            names = [CellVersion(key, *column, version) for key, cells in rows.items() for column in cells]
            kept = names if rng.random() < 0.8 else names[: len(names) // 2]
            parts.store.write_shadow_cells("t", [ShadowWrite(name, commit_ts) for name in kept])
        if fate < 0.4 or 0.8 <= fate < 0.9:
            commit_branch(parts, start, commit_ts)


def by_the_rules(
    parts: Deployment, keys: Sequence[bytes], columns: Sequence[Column] | None, snapshot: Snapshot
) -> list[dict[Column, bytes]]:
    rows = parts.store.read_rows("t", keys)
    starts = sorted({start_of(cell.version) for cells in rows for cell in cells})
    states = parts.commit_table.lookup(starts)
    commits = {start: state for start, state in zip(starts, states, strict=True) if state > 0}
    found = [visible_point(cells, snapshot.start_ts, snapshot.own, commits, snapshot.expired_to) for cells in rows]
    if columns is None:
        return found
    wanted = {*columns}
    return [{c: value for c, value in row.items() if c in wanted or Column(c.family, b"") in wanted} for row in found]


def scanned(
    parts: Deployment,
    handlers: Handlers,
    key_range: KeyRange,
    columns: Sequence[Column] | None,
    snapshot: Snapshot,
    rows_max: int,
    is_bounded: bool,
) -> dict[bytes, dict[Column, bytes]]:
    bounds = snapshot.bounds if is_bounded else None
    rows: dict[bytes, dict[Column, bytes]] = {}
    for batch in parts.store.scan("t", key_range, columns, batch_rows_max=rows_max, bounds=bounds):
        found = drive(read_batch(LifeOf("t"), batch, columns, snapshot, CommitCache()), handlers)
        assert found is not None
        rows.update(visible_rows(*found, found[0].columns))
    assert list(rows) == sorted(rows)
    return rows


@pytest.mark.parametrize("seed", first(12, range(150)))
def test_every_read_gives_what_the_rules_give(parts: Deployment, seed: int) -> None:
    rng, store = random.Random(seed), parts.store
    assert isinstance(store, EmbeddedStore)
    names = [b"q%d" % number for number in range(rng.choice((1, 3, 14, 126, 127, 128, 140, 1030)))]
    columns = [Column(rng.choice((b"f", b"g")), name) for name in names]
    keys = [*KEYS, *(b"r%04d" % number for number in range(rng.choice((0, 5, 60))))]
    versions = rng.choice((1, 3, 10, 40) if len(columns) < 100 else (1, 3))
    write_history(rng, parts, keys, columns, versions)
    handlers = store_handlers(parts)
    handlers[effects.Heal] = handlers[effects.DeleteOrphans] = lambda _: None
    for _ in range(4):
        start_ts = 50 * rng.randrange(1, versions + 10)
        own = frozenset({start_ts, start_ts + 50 * rng.randrange(3)})
        snapshot = Snapshot(start_ts, 0, own, expired_to=rng.choice((0, 0, start_ts // 2, start_ts - 1)))
        several = rng.sample(columns, min(5, len(columns)))
        selection = rng.choice(
            (None, several, several[:1], FAMILIES[:1], [FAMILIES[1], several[0], Column(b"f", b"no")])
        )
        low, high = sorted(rng.sample(keys, 2))
        key_range = rng.choice((KeyRange(), KeyRange(low), KeyRange(low, high), KeyRange(b"a", b"a\0\xff\xff")))
        inside = sorted(key for key in keys if key in key_range)
        expected = by_the_rules(parts, inside, selection, snapshot)
        assert drive(read_rows(LifeOf("t"), inside, selection, snapshot, CommitCache()), handlers) == expected
        assert drive(read_settled(LifeOf("t"), inside, selection, snapshot, CommitCache()), handlers) == expected
        visible = {key: row for key, row in zip(inside, expected, strict=True) if row}
        for by_pages in (True, False):
            store._scans.pages._is_known = by_pages
            for is_bounded in (True, False):
                asked = key_range, selection, snapshot, rng.choice((1, 2, 10, 64, 10_000)), is_bounded
                assert scanned(parts, handlers, *asked) == visible
        store._scans.pages._is_known = True
