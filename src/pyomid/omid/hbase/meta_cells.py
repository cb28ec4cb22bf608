"""Cells of PYOMID_META, changed only by compare-and-set: pyomid's own durable state, unknown to Java clients.

Each change is conditional on the value that it replaces, so a late or repeated change has no effect. To remove a cell,
an empty value is put; nothing is deleted: HBase's delete marker has the server's time, and would hide a later put by a
server whose clock is behind. Because of the condition, HBase gives the new value a version at least as great as the
old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from pyomid.errors import Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import LATEST, KeyValue, decode
from pyomid.omid.hbase.codec.layout import META_FAMILY, META_TABLE
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.requests import INDETERMINATE, Mutation, RowCondition, RowGet, RowMutation, puts
from pyomid.types import prefix_range

_ATTEMPTS_MAX = 50


class MetaCells:
    """Values by row and qualifier; b"" means that the cell has no value."""

    def __init__(self, cluster: Cluster, *, table: str = META_TABLE) -> None:
        self._cluster = cluster
        self._table = table

    def read_row(self, row: bytes) -> dict[bytes, bytes]:
        """Return the current values of the row by qualifier, by one atomic read."""
        (found,) = self._cluster.rows(self._table, [RowGet(row, ((META_FAMILY, ()),), max_versions=1)])
        assert isinstance(found, list)
        return {cell.qualifier: cell.value for cell in found if cell.value}

    def read(self, row: bytes, qualifier: bytes) -> bytes:
        return self._raw(row, qualifier) or b""

    def read_cells(self, cells: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
        """Return the values of these cells (row, qualifier) in one round trip, but not as one snapshot."""
        gets = [RowGet(row, ((META_FAMILY, (qualifier,)),), max_versions=1) for row, qualifier in cells]
        values = []
        for found in self._cluster.rows(self._table, gets):
            assert isinstance(found, list)
            values.append(found[0].value if found else b"")
        return values

    def read_prefix(self, prefix: bytes) -> dict[bytes, dict[bytes, bytes]]:
        """Return all rows that begin with `prefix`, ascending. The rows are read one by one, not as one snapshot."""
        spec = ScanSpec(self._table, prefix_range(prefix), ((META_FAMILY, ()),), max_versions=1)
        rows: dict[bytes, dict[bytes, bytes]] = {}
        with closing(self._cluster.scan(spec)) as scan:
            while (block := scan.fetch()) is not None:
                for cell in decode(block.cells):
                    if cell.value:
                        rows.setdefault(cell.row, {})[cell.qualifier] = cell.value
        return rows

    def change(self, row: bytes, qualifier: bytes, decide: Callable[[bytes], bytes | None]) -> bool:
        """Change a cell. Returns True if the cell now holds the new value. `decide` gets the current value and returns
        the new value, or None to leave the cell unchanged (then the result is False).

        `decide` is called again if another writer was faster, or if a reply was lost and the new value is not there.
        """
        for _ in range(_ATTEMPTS_MAX):
            old = self._raw(row, qualifier)
            new = decide(old or b"")
            if new is None:
                return False
            if new == (old or b"") or self.swap(row, qualifier, old, new):
                return True
        raise Unavailable(f"other writers changed {row!r} of {self._table} in each of {_ATTEMPTS_MAX} attempts")

    def swap(
        self,
        row: bytes,
        qualifier: bytes,
        old: bytes | None,
        new: bytes,
        *,
        version: int = LATEST,
        others: tuple[Mutation, ...] = (),
    ) -> bool:
        """Put `new`, together with `others`, if and only if the cell holds `old` (None: it was never written).

        If the reply was lost, the swap counts as done when the cell holds `new`. Callers for which this matters use
        unique values.
        """
        condition = RowCondition(META_FAMILY, qualifier, old)
        cell = KeyValue(row, META_FAMILY, qualifier, version, new)
        request = RowMutation(row, (puts([cell]), *others), condition)
        (result,) = self._cluster.rows(self._table, [request])
        return self._raw(row, qualifier) == new if result is INDETERMINATE else bool(result)

    def _raw(self, row: bytes, qualifier: bytes) -> bytes | None:
        (found,) = self._cluster.rows(self._table, [RowGet(row, ((META_FAMILY, (qualifier,)),), max_versions=1)])
        assert isinstance(found, list)
        return found[0].value if found else None
