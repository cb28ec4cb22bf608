"""HBase's existing tables: their names and families, and whether transactions may use them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Final

from pyomid.errors import Misuse, Unavailable, UnknownTable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.keyvalues import DELETE_FAMILY_VERSION, DELETE_VERSION, PUT, KeyValue, decode
from pyomid.omid.hbase.codec.layout import COMPACTION_ATTRIBUTE, COPROCESSOR, PHOENIX_COPROCESSOR, is_shadow
from pyomid.omid.hbase.regions.admin import Admin, TableDescriptor
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.requests import (
    ALL_VERSIONS,
    NAMES_ONLY,
    Durability,
    all_of,
    any_of,
    qualifiers_that_match,
    values_that_do_not_match,
)
from pyomid.types import KeyRange

_FOREIGN: Final = all_of(
    (
        qualifiers_that_match(r"\u00c2\u0080\z"),
        any_of((qualifiers_that_match(r"\A(?!\u0000\u00c2\u0080)"), values_that_do_not_match(r"\A.{8}\z"))),
    )
)
"""Matches cells whose names are like those of shadow cells, but which no current Omid wrote."""


_AGE_S_MAX: Final = 10.0
"""If another program altered a table, each client notices it within this time plus the age of its catalog entry."""
_REREAD_S_MAX: Final = 1.0
"""The deadline for reading a descriptor again: transactions go on while the master is down."""
_MASTER_PAUSE_S: Final = 60.0
"""After such a deadline the master is not asked again for this time."""

_OF_ONE_VERSION: Final = (DELETE_VERSION, DELETE_FAMILY_VERSION)
_LOSSY_DURABILITIES: Final = ("SKIP_WAL", "ASYNC_WAL")


class PhysicalTables:
    """The tables of one cluster. Thread-safe."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self._cluster = cluster
        self._admin = admin
        self._descriptors: dict[str, tuple[TableDescriptor, float]] = {}
        """Each descriptor has the time at which it was requested."""
        self._reading = threading.Lock()

    def descriptor(self, table: str, *, age_s_max: float = math.inf) -> TableDescriptor:
        """Return the table's descriptor, read at most `age_s_max` ago. If the master does not reply, returns an older
        descriptor, unless `age_s_max` is 0. Raises `UnknownTable` if there is no table."""
        if (young := self._younger(table, age_s_max)) is not None:
            return young
        with self._reading:
            if (young := self._younger(table, age_s_max)) is not None:  # another thread has just read it
                return young
            older = self._younger(table, math.inf) if age_s_max else None
            asked_s = time.monotonic()
            try:
                found = self._admin.table(table, deadline_s=None if older is None else _REREAD_S_MAX)
            except UnknownTable:
                self.forget(table)
                raise
            except Unavailable:
                if older is None:
                    raise
                found, asked_s = older, time.monotonic() + _MASTER_PAUSE_S
            self._descriptors[table] = found, asked_s
            return found

    def _younger(self, table: str, age_s_max: float) -> TableDescriptor | None:
        found, read_s = self._descriptors.get(table, (None, 0.0))
        return found if time.monotonic() < read_s + age_s_max else None

    def check_opened(self, table: str, families: Iterable[bytes], *, leased: bool) -> None:
        """Raise `Misuse` if transactions cannot use the table (`DataStore.check_opened`). It raises only after a fresh
        read of the descriptor, because the operator may just have corrected the table."""
        families = tuple(families)
        try:
            self._check(self.descriptor(table, age_s_max=_AGE_S_MAX), families, leased=leased)
        except Misuse:
            self._check(self.descriptor(table, age_s_max=0.0), families, leased=leased)

    def check(self, table: str, families: Iterable[bytes]) -> TableDescriptor:
        """Return the physical table. Raises `Misuse` if it could lose versions that transactions need, `UnknownTable`
        if there is no table."""
        if table in (self._cluster.names.commit_table, self._cluster.names.timestamp_table):
            raise Misuse(f"{table} is a system table of this database: choose another name", table=table)
        found = self.descriptor(table, age_s_max=0.0)
        self._check(found, families, leased=False)
        return found

    def _check(self, found: TableDescriptor, families: Iterable[bytes], *, leased: bool) -> None:
        table, known = found.name, {family.name: family for family in found.families}
        wrong: list[str] = []
        alter: list[str] = []
        for name in families:
            shown, family = name.decode("utf-8", "replace"), known.get(name)
            if family is None:
                wrong.append(f"table {table} exists in HBase without family {shown}")
            elif family.versions_max < ALL_VERSIONS or family.ttl_s is not None:
                kept = "" if family.ttl_s is None else f" for {family.ttl_s} s"
                wrong.append(
                    f"family {shown} of table {table} keeps only {family.versions_max} versions{kept}, so that older "
                    "snapshots would lose cells"
                )
            else:
                continue
            alter.append(f"{{NAME => '{shown}', VERSIONS => {ALL_VERSIONS}, TTL => 'FOREVER'}}")
        if self._cluster.operations.durability is Durability.TABLE and found.durability in _LOSSY_DURABILITIES:
            wrong.append(
                f"table {table} has DURABILITY {found.durability}, so that a region server that crashes would lose "
                "part of committed transactions"
            )
            alter.append("{DURABILITY => 'USE_DEFAULT'}")
        if wrong:
            raise Misuse(
                f"{'; '.join(wrong)}; in HBase's shell: alter '{table}', {', '.join(alter)}",
                table=table,
            )
        if leased:
            _check_no_coprocessor(found, "a lease would not keep the versions that a long reader needs")

    def check_cleaned(self, table: str) -> None:
        """Raise `Misuse` if another program's coprocessor compacts the table."""
        _check_no_coprocessor(self.descriptor(table, age_s_max=_AGE_S_MAX), "pyomid does not compact it")

    def families(self) -> dict[str, list[str]]:
        """Return the families of each table, except the database's own system tables."""
        names = [name for name in self._admin.tables() if not self._cluster.names.is_system(name)]
        found: dict[str, list[str]] = {}
        for name in names:
            with suppress(UnknownTable):  # dropped meanwhile
                found[name] = [family.name.decode(errors="replace") for family in self._admin.table(name).families]
        return found

    def holds_shadow_cells(self, table: str, *, rows_max: int) -> bool:
        return any(
            self._range_holds_shadow_cells(table, region.key_range, rows_max) for region in self._cluster.regions(table)
        )

    def _range_holds_shadow_cells(self, table: str, key_range: KeyRange, rows_max: int) -> bool:
        spec = ScanSpec(table, key_range, filters=(NAMES_ONLY,), read_ahead=False, limit=rows_max)
        with closing(self._cluster.scan(spec)) as scan:
            while (block := scan.fetch()) is not None:
                if any(is_shadow(cell.qualifier) for cell in decode(block.cells)):
                    return True
        return False

    def check_names(self, table: str, key_range: KeyRange) -> None:
        """Raise `Misuse` if a cell is named like a shadow cell. The server filters the cells, and sends at most one of
        these."""
        spec = ScanSpec(table, key_range, (), ALL_VERSIONS, rows_per_call=1, filters=(_FOREIGN,), read_ahead=False)
        with closing(self._cluster.scan(spec)) as scan:
            block = scan.fetch()
        if block is not None:
            cell = next(decode(block.cells))
            column = cell.family + b":" + cell.qualifier
            raise Misuse(
                f"row {cell.row!r} of table {table} holds column {column!r}, whose name ends in the bytes C2 80; "
                "these bytes mark shadow cells, so transactions could not read the column. Copy it to a column with "
                "another name, delete it, and adopt again (if an old Apache Omid wrote it, register the table "
                "instead)",
                table=table,
                row=cell.row,
            )

    def check_markers(self, table: str, key_range: KeyRange, newest_ts: int, issued: Callable[[], int]) -> None:
        """Raise `Misuse` if a delete marker at or above `newest_ts` would hide later writes
        (`DataStore.check_markers`). Transactions delete exact versions only. HBase reads only the files that may hold
        such timestamps."""
        newer = (newest_ts, (1 << 63) - 1)
        names = (NAMES_ONLY,)
        spec = ScanSpec(
            table, key_range, (), ALL_VERSIONS, time_range=newer, filters=names, read_ahead=False, is_raw=True
        )
        with closing(self._cluster.scan(spec)) as scan:
            while (block := scan.fetch()) is not None:
                for cell in decode(block.cells):
                    if cell.kind != PUT and (cell.kind not in _OF_ONE_VERSION or cell.timestamp >= issued()):
                        raise self._marker_above(table, cell, newest_ts)

    def _marker_above(self, table: str, marker: KeyValue, newest_ts: int) -> Misuse:
        kept = [
            f"alter '{table}', {{NAME => '{family.name.decode(errors='replace')}', KEEP_DELETED_CELLS => 'FALSE'}}; "
            for family in self.descriptor(table, age_s_max=0.0).families
            if family.attributes.get(b"KEEP_DELETED_CELLS", b"FALSE").upper() != b"FALSE"
        ]
        return Misuse(
            f"row {marker.row!r} of table {table} has a delete marker with timestamp {marker.timestamp}, above the "
            f"transactions' timestamps ({newest_ts}), so the marker would hide the transactions' writes; run in "
            f"HBase's shell: {''.join(kept)}flush '{table}'; major_compact '{table}', which drops such markers; then "
            "try again",
            table=table,
            row=marker.row,
        )

    def forget(self, table: str) -> None:
        """Delete the cached descriptor of a dropped table."""
        self._descriptors.pop(table, None)


def _check_no_coprocessor(found: TableDescriptor, so: str) -> None:
    """Raise `Misuse` if Omid's compaction coprocessor is active on the table. `so` is the consequence, for the
    message."""
    flagged = any(family.attributes.get(COMPACTION_ATTRIBUTE) == b"true" for family in found.families)
    if PHOENIX_COPROCESSOR in found.coprocessors:
        raise Misuse(
            f"table {found.name} belongs to Apache Phoenix, whose coprocessor {PHOENIX_COPROCESSOR} drops versions by "
            f"start timestamp, so {so}; read it in transactions without a lease, and copy the data that you need into "
            "another table",
            table=found.name,
        )
    if COPROCESSOR in found.coprocessors and flagged:
        raise Misuse(
            f"Apache Omid's compaction coprocessor is active on table {found.name} and drops versions by start "
            f"timestamp, so {so}; first remove the coprocessor {COPROCESSOR}, or the attribute "
            f"{COMPACTION_ATTRIBUTE.decode()} of the table's families",
            table=found.name,
        )
