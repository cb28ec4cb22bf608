"""HBase's existing tables: their names and families, and whether transactions may use them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final

from pyomid.errors import Misuse, UnknownTable
from pyomid.storage.hbase.cluster import Cluster
from pyomid.storage.hbase.codec.keyvalues import PUT, decode
from pyomid.storage.hbase.codec.layout import COMPACTION_ATTRIBUTE, COPROCESSOR, PHOENIX_COPROCESSOR, is_shadow
from pyomid.storage.hbase.regions.admin import Admin, TableDescriptor
from pyomid.storage.hbase.regions.scan_cursor import ScanSpec
from pyomid.storage.hbase.rpc.requests import (
    ALL_VERSIONS,
    NAMES_ONLY,
    all_of,
    any_of,
    qualifiers_that_match,
    values_that_do_not_match,
)
from pyomid.types import KeyRange

_SYSTEM_PREFIXES: Final = ("OMID_", "PYOMID_")

_FOREIGN: Final = all_of(
    (
        qualifiers_that_match(r"\u00c2\u0080\z"),
        any_of((qualifiers_that_match(r"\A(?!\u0000\u00c2\u0080)"), values_that_do_not_match(r"\A.{8}\z"))),
    )
)
"""Matches cells that are named like shadow cells but were not written by any current Omid."""


class PhysicalTables:
    """The tables of one cluster. Thread-safe."""

    def __init__(self, cluster: Cluster, admin: Admin) -> None:
        self._cluster = cluster
        self._admin = admin
        self._without_coprocessor: set[str] = set()

    def check(self, table: str, families: Iterable[bytes]) -> TableDescriptor:
        """Return the physical table. `Misuse` if it could lose versions that transactions need; `UnknownTable` if there
        is none."""
        found = self._admin.table(table)
        known = {family.name: family for family in found.families}
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
        if wrong:
            raise Misuse(
                f"{'; '.join(wrong)}; in HBase's shell: alter '{table}', {', '.join(alter)}",
                table=table,
            )
        return found

    def check_no_coprocessor(self, table: str, so: str) -> None:
        """Raise `Misuse` if Omid's compaction coprocessor is active on the table. `so`: the consequence, for the
        message."""
        if table not in self._without_coprocessor:
            found = self._admin.table(table)
            flagged = any(family.attributes.get(COMPACTION_ATTRIBUTE) == b"true" for family in found.families)
            if PHOENIX_COPROCESSOR in found.coprocessors:
                raise Misuse(
                    f"table {table} belongs to Apache Phoenix, whose coprocessor {PHOENIX_COPROCESSOR} drops versions "
                    f"by start timestamp: {so}; read it in transactions without a lease, and copy the data that you "
                    "need into another table",
                    table=table,
                )
            if COPROCESSOR in found.coprocessors and flagged:
                raise Misuse(
                    f"Apache Omid's compaction coprocessor is active on table {table}, and drops versions by start "
                    f"timestamp: {so}; first remove the coprocessor {COPROCESSOR}, or its family's attribute "
                    f"{COMPACTION_ATTRIBUTE.decode()}",
                    table=table,
                )
            self._without_coprocessor.add(table)

    def families(self) -> dict[str, list[str]]:
        """Return the families of each table, without the database's own system tables."""
        names = [name for name in self._admin.tables() if not name.startswith(_SYSTEM_PREFIXES)]
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
        """Raise `Misuse` if a cell is named like a shadow cell. The server filters, and sends at most one such cell."""
        spec = ScanSpec(table, key_range, (), ALL_VERSIONS, rows_per_call=1, filters=(_FOREIGN,), read_ahead=False)
        with closing(self._cluster.scan(spec)) as scan:
            block = scan.fetch()
        if block is not None:
            cell = next(decode(block.cells))
            column = cell.family + b":" + cell.qualifier
            raise Misuse(
                f"table {table}, row {cell.row!r} holds column {column!r}, whose name ends in the bytes C2 80, which "
                "mark shadow cells, so that transactions could not read it; copy it to a column with another name and "
                "delete it, then adopt again (if an old Apache Omid wrote it, register the table instead)",
                table=table,
                row=cell.row,
            )

    def check_markers(self, table: str, key_range: KeyRange, newest_ts: int) -> None:
        """Raise `Misuse` if a delete marker of the range is at or above `newest_ts`: it would hide later transactions'
        writes. Only the store's files with such timestamps are read."""
        newer = (newest_ts, (1 << 63) - 1)
        spec = ScanSpec(table, key_range, (), ALL_VERSIONS, time_range=newer, read_ahead=False, is_raw=True)
        with closing(self._cluster.scan(spec)) as scan:
            while (block := scan.fetch()) is not None:
                marker = next((cell for cell in decode(block.cells) if cell.kind != PUT), None)
                if marker is not None:
                    raise Misuse(
                        f"table {table}, row {marker.row!r} has a delete marker of timestamp {marker.timestamp}, above "
                        f"the transactions' timestamps ({newest_ts}): it would hide their writes; in HBase's shell, "
                        f"flush '{table}', then major_compact '{table}', which drops such markers, and try again",
                        table=table,
                        row=marker.row,
                    )

    def forget(self, table: str) -> None:
        """Drop the cached checks of a dropped table."""
        self._without_coprocessor.discard(table)
