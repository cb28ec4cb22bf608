"""Shadow cells and exact deletes in bulk: the compiled encoder equals the reference implementation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyomid.cells import CellNames, batch_of, batch_of_rows
from pyomid.omid.hbase.codec.changes import (
    Changes,
    changes_of,
    changes_of_batch,
    key_range_of,
    missing_cells,
    shadows_of_batch,
)
from pyomid.omid.hbase.codec.keyvalues import KeyValue, decode
from pyomid.omid.hbase.codec.layout import SHADOW_SUFFIX, is_shadow, shadowed_qualifier
from pyomid.omid.hbase.codec.native.encode import DROPPED, ORPHANED
from pyomid.omid.hbase.regions.bulk_writes import _BulkCall, _ChangedRows
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.rpc.frames import Address
from pyomid.omid.hbase.rpc.hbase_pb2 import MultiRequest, RegionSpecifier
from pyomid.omid.hbase.rpc.requests import Durability
from pyomid.types import Cell, CellVersion, Column, KeyRange

SERVER = Address("server", 1)
REGION = Region(b"t,,1.hash.", "t", KeyRange(), 1, SERVER)

names = st.builds(
    CellVersion,
    st.sampled_from([b"r1", b"r2", b"r22", b"s" * 200]),
    st.sampled_from([b"f", b"g", b"ff"]),
    st.sampled_from([b"", b"a", b"ab", b"\x00\xc2\x80q", b"z" * 300]),
    st.integers(1, 4).map(lambda step: 50 * step) | st.just((1 << 62) + 7),
)
changed = st.dictionaries(
    names, st.one_of(st.integers(1, 1 << 62), st.just(DROPPED), st.just(ORPHANED)), min_size=1, max_size=30
)


def encoded(changes: Changes, first: int, end: int, durability: Durability) -> Iterator[tuple[bytes, bool, KeyValue]]:
    """Row, whether its region action is atomic, and cell of everything that the encoder sends; checks the frame."""
    piece = _BulkCall(SERVER)
    _ChangedRows(changes).encode(first, end, REGION, durability.value, piece)
    call = piece.encoded()
    request = MultiRequest.FromString(call.parameter)
    cells = decode(call.cells)
    numbered = []
    for action, group in zip(request.regionAction, piece.groups, strict=True):
        assert action.region.type == RegionSpecifier.REGION_NAME
        assert action.region.value == REGION.name
        assert group.region == REGION
        for each in action.action:
            mutation = each.mutation
            assert mutation.durability == durability.value
            numbered.append(group.rows[each.index])
            assert changes.key(group.rows[each.index]) == mutation.row
            for _ in range(mutation.associated_cell_count):
                cell = next(cells)
                assert cell.row == mutation.row
                assert (mutation.mutate_type == mutation.PUT) == (cell.kind == 4)
                yield mutation.row, action.atomic, cell
    assert next(cells, None) is None
    assert set(numbered) == set(range(first, end))


def plain(changes: Changes, row: int) -> Iterator[tuple[bytes, bool, KeyValue]]:
    mutation = changes.as_mutation(row)
    for each in mutation.mutations:
        for cell in decode(each.block):
            yield mutation.row, not mutation.is_simple, cell


@given(changed, st.sampled_from(Durability))
def test_the_compiled_encoder_equals_the_reference(named: dict[CellVersion, int], durability: Durability) -> None:
    changes = changes_of(list(named), list(named.values()))
    for first in range(changes.rows):
        found = list(encoded(changes, first, changes.rows, durability))
        assert sorted(found) == sorted(each for row in range(first, changes.rows) for each in plain(changes, row))


@given(changed)
def test_an_encoded_change_has_the_requested_cells(named: dict[CellVersion, int]) -> None:
    changes = changes_of(list(named), list(named.values()))
    told: dict[CellVersion, set[tuple[bool, int]]] = {}
    for _, _, cell in (each for row in range(changes.rows) for each in plain(changes, row)):
        alone = is_shadow(cell.qualifier) and cell.qualifier != SHADOW_SUFFIX
        name = shadowed_qualifier(cell.qualifier) if alone else cell.qualifier
        value = int.from_bytes(cell.value, "big")
        told.setdefault(CellVersion(cell.row, cell.family, name, cell.timestamp), set()).add((alone, value))
    wanted = {DROPPED: {(True, 0), (False, 0)}, ORPHANED: {(True, 0)}}
    assert told == {name: wanted.get(change, {(True, change)}) for name, change in named.items()}


stored = st.builds(
    Cell,
    st.sampled_from([b"r1", b"r2", b"r22", b"s"]),
    st.sampled_from([b"f", b"g"]),
    st.sampled_from([b"", b"a", b"ab"]),
    st.integers(1, 4).map(lambda step: 50 * step),
    st.just(b"v"),
    st.sampled_from([0, 500, 600]),
)
tables = st.lists(stored, min_size=1, max_size=30, unique_by=lambda cell: cell[:4])


def rows_of(cells: list[Cell]) -> list[list[Cell]]:
    return [[cell for cell in cells if cell.row == row] for row in sorted({cell.row for cell in cells})]


@given(tables, st.data())
def test_changes_of_a_batch_are_those_of_its_cells(cells: list[Cell], data: st.DataObject) -> None:
    batch = batch_of(rows_of(cells))
    healable = [record for record in range(batch.records) if batch.rec_commit[record]]
    heals = sorted(data.draw(st.sets(st.sampled_from(healable)))) if healable else []
    drops = sorted(data.draw(st.sets(st.integers(0, batch.cells - 1))))
    wanted = {
        batch.cell_version(cell): int(batch.rec_commit[record])
        for record in heals
        for cell in range(int(batch.rec_cell[record]), int(batch.rec_cell[record + 1]))
    } | {batch.cell_version(cell): DROPPED for cell in drops}
    changes = changes_of_batch(batch, np.array(heals, dtype=np.int64), np.array(drops, dtype=np.int64))
    found = {
        changes.cell_version(row, cell): int(changes.change[cell])
        for row in range(changes.rows)
        for cell in range(int(changes.row_cell[row]), int(changes.row_cell[row + 1]))
    }
    assert found == wanted


columns = st.builds(Column, st.sampled_from([b"f", b"g"]), st.sampled_from([b"", b"a", b"z" * 300]))
written = st.dictionaries(
    st.sampled_from([b"r1", b"r2", b"r22", b"s" * 200]),
    st.dictionaries(columns, st.none() | st.sampled_from([b"v", b"w" * 100]), min_size=1),
    min_size=1,
)


@given(written, st.integers(1, 1 << 62), st.integers(1, 1 << 62))
def test_shadow_cells_of_a_batch_are_those_of_its_cells(
    rows: dict[bytes, dict[Column, bytes | None]], version: int, commit_ts: int
) -> None:
    batch = batch_of_rows(rows)
    names = [CellVersion(row, *column, version) for row, cells in rows.items() for column in cells]
    assert sorted(CellNames([batch], version)) == sorted(names)
    wanted = changes_of(names, [commit_ts] * len(names))
    found = shadows_of_batch(batch, version, commit_ts)
    assert [list(plain(found, row)) for row in range(found.rows)] == [
        list(plain(wanted, row)) for row in range(wanted.rows)
    ]
    assert list(encoded(found, 0, found.rows, Durability.TABLE)) == list(
        encoded(wanted, 0, wanted.rows, Durability.TABLE)
    )


@given(changed, tables, st.integers(0, 4))
def test_missing_cells_are_those_that_no_batch_holds(
    named: dict[CellVersion, int], cells: list[Cell], cut: int
) -> None:
    changes = changes_of(list(named), list(named.values()))
    rows = rows_of(cells)
    batches = [batch_of(some) for some in (rows[:cut], rows[cut:])]
    missing = missing_cells(changes, batches)
    present = {CellVersion(*cell[:4]) for cell in cells}
    for row in range(changes.rows):
        assert changes.key(row) in key_range_of(changes)
        for cell in range(int(changes.row_cell[row]), int(changes.row_cell[row + 1])):
            assert missing[cell] == (changes.cell_version(row, cell) not in present)
    orphans = changes.only(missing, ORPHANED)
    assert len(orphans.version) == int(missing.sum())
    assert all(mutation.is_simple for mutation in (orphans.as_mutation(row) for row in range(orphans.rows)))
