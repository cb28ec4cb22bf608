"""The data source's options: known by name without regard to case, a misspelt one refused with the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

from pyomid.errors import Misuse
from pyomid.types import ConflictLevel

READING: Final = {
    "columns": "the columns to read, by commas",
    "rowStart": "first row key, inclusive (pyomid.spark.source.key_ranges)",
    "rowStop": "end of the row keys, exclusive",
    "rowPrefix": "leading values of the row key",
    "where": "the rows that meet comparisons of columns with literals, joined by and; those of the key bound the read",
    "versionAsOf": "read what was committed at or before this timestamp",
    "timestampAsOf": "read what was committed by this time, ISO 8601 with its zone: 2030-01-31T10:00:00Z",
    "snapshotTimestamp": "read at this start instead of a new one; it must be held by a lease",
    "snapshotEpoch": "the epoch of the TSO that gave snapshotTimestamp; set by transactions",
    "snapshotDatabase": "the id of the database that gave snapshotTimestamp; set by transactions",
    "view": "true: writes do not go by snapshotTimestamp; set by register_views",
    "ownBranches": "branches that the snapshot sees as its own; set by transactions",
    "batchRows": "rows in one record batch",
    "numPartitions": "partitions to divide the read into, at least",
    "readChangeFeed": "true: what commits did to the rows, in place of the rows",
    "starting": "changes after this timestamp or bookmark ('start:watermark')",
    "ending": "changes up to this timestamp or bookmark; now without it",
    "bookmarkSeconds": "how long a streaming query may be away and go on where it was",
    "maxRowsPerTrigger": "rows of one streaming batch, at most, but for those of one commit (from PySpark 4.2 on)",
}
WRITING: Final = {
    "conflictLevel": "auto, cell, row or table: what another transaction must have written to conflict",
    "duplicates": "error or last: two rows with one row key in one write",
    "nulls": "tombstone or keep: what a null does to the stored value",
    "mergeSchema": "true: columns that the table lacks are added to it",
    "family": "the column family of new tables",
    "retries": "of no effect: a write that lost fails with ConflictError, and its caller begins it anew",
    "transactionId": "a durable id: of all writes under it at most one ever commits",
    "ifExists": "overwrite, append, error or ignore: what a table with rows means",
}
COMMON: Final = {
    "url": "omid:///folder or omid+hbase://…",
    "table": "the table's name",
    "rowKey": "the key columns, by commas, a descending one followed by ' desc'",
    "columnMapping": "column=family:qualifier, by commas, or a JSON object",
    "leaseSeconds": "the lease's term; renewed by every task",
    "checkpointLocation": "Spark's own, of a streaming query",
    "queryName": "Spark's own, of a streaming query",
}
AUTO_LEVEL: Final = "auto"
"""The default: by the ids of each table's own level while the TSO takes so many, by whole tables beyond that."""
TABLE_LEVEL: Final = "table"
LEVELS: Final = (AUTO_LEVEL, ConflictLevel.CELL.value, ConflictLevel.ROW.value, TABLE_LEVEL)
"""What `conflictLevel` may be."""

_PROPERTY: Final = "option."
_PROPERTIES: Final = frozenset(("owner", "provider", "location", "comment", "external", "is_managed_location"))
"""What Spark hands to a source in place of options where it makes a table of its own catalog."""

_CATALOG_TABLE: Final = (
    "a table of Spark's own catalog (CREATE TABLE … USING omid, saveAsTable, writeTo(…).create()) loses the options "
    "url and table; write with df.write.format('omid').option(…).mode('append').save() or tx.write, read with "
    "spark.read.format('omid').option(…).load(), and for SQL use CREATE TEMPORARY VIEW … USING omid OPTIONS (url …, "
    "table …)"
)

_KNOWN: Final = {name.lower(): name for name in (*COMMON, *READING, *WRITING)}


class Options:
    """Options by their proper names; misspelt ones are refused."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if not given:
            raise Misuse(f"no option reached the data source, which needs url and table: {_CATALOG_TABLE}")
        if any(name.lower().startswith(_PROPERTY) or name.lower() in _PROPERTIES for name in given):
            raise Misuse(_CATALOG_TABLE)
        self._values: dict[str, str] = {}
        for name, value in given.items():
            self._values[proper_name(name)] = value

    def text(self, name: str, default: str | None = None) -> str | None:
        assert name.lower() in _KNOWN, name
        return self._values.get(name, default)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise Misuse(f"option {name} is missing: {_description(name)}", option=name)
        return value

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        if not text.strip().isdecimal() or int(text) < least:
            raise Misuse(f"option {name}={text!r} is not a whole number of at least {least}", option=name)
        return int(text)

    def seconds(self, name: str) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise Misuse(f"option {name}={text!r} is not a number of seconds above 0", option=name)
        return value

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").strip().lower()
        if text not in ("true", "false"):
            raise Misuse(f"option {name}={text!r} is neither true nor false", option=name)
        return text == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        return checked_choice(name, self.text(name) or default, choices)

    def names(self, name: str) -> list[str] | None:
        text = self.text(name)
        return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.strip().lower() not in choices:
        raise Misuse(f"option {name}={value!r} is none of {', '.join(choices)}", option=name)
    return value.strip().lower()


def names_of(names: str | Sequence[str]) -> list[str]:
    """One name alone stands for itself, and not for its letters."""
    return [names] if isinstance(names, str) else list(names)


def proper_name(name: str) -> str:
    """The option that `name` means, whatever its case."""
    found = _KNOWN.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.5)
        hint = f"; did you mean {_KNOWN[near[0]]}?" if near else f"; known: {', '.join(_KNOWN.values())}"
        raise Misuse(f"unknown option {name!r}{hint}", option=name)
    return found


def _description(name: str) -> str:
    return {**COMMON, **READING, **WRITING}[name]
