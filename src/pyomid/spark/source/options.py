"""The data source's options. Case in names is ignored; a misspelt name is refused, and the error suggests a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from pyomid.errors import Misuse, MisuseType
from pyomid.types import ConflictLevel

FORMAT: Final = "omid"
"""The data source's name: `spark.read.format(FORMAT)`."""

READING: Final = {
    "columns": "columns to read, comma-separated or as a JSON array",
    "rowStart": "first row key to read: a JSON array of values, one value, or 0x…",
    "rowStop": "end of the key range, exclusive: the read stops before this row key",
    "rowPrefix": "values of the first key columns; the read returns only rows with these values",
    "where": "comparisons of columns with literals, joined by AND; comparisons of key columns narrow the key range",
    "at": "past state to read: a version, a bookmark, or an ISO 8601 time with a zone, such as 2030-01-31T10:00:00Z",
    "batchRows": "maximum number of rows in an Arrow record batch",
    "numPartitions": "minimum number of partitions",
    "readChangeFeed": "with true, the read returns changes instead of rows",
    "startingVersion": "start of the changes: the first commit version that the read includes",
    "startingTimestamp": "start of the changes: the read includes commits at or after this time",
    "startingBookmark": "start of the changes: a bookmark from db.bookmark; the read includes later commits",
    "endingVersion": "end of the changes: the last commit version that the read includes (default: the present)",
    "endingTimestamp": "end of the changes: the read includes all commits acknowledged at or before this time",
    "endingBookmark": "end of the changes: the read includes commits before this bookmark",
    "bookmarkSeconds": "how long a streaming query may be stopped before a restart needs a full read",
    "maxRowsPerTrigger": "maximum number of rows in a streaming batch; a commit is never split (PySpark 4.2 or later)",
}
WRITING: Final = {
    "conflictLevel": "unit in which transactions conflict: cell, row, table, or auto (the table's own level)",
    "duplicates": "if two rows of a write have the same key, error refuses the write, and last keeps the last row",
    "nulls": "effect of a null: tombstone removes the stored value, keep retains the stored value",
    "mergeSchema": "with true, the write adds missing columns to the table",
    "family": "column family of a new table",
    "runId": "id of the run; of all writes with the same run id, at most one commits",
    "ifExists": "action if the table has rows: append, overwrite, error, ignore, or insert (refuses an existing key)",
}
INTERNAL: Final = {
    "_snapshotVersion": "the start at which a transaction or a view reads, which a lease must hold",
    "_snapshotEpoch": "epoch of the TSO that issued _snapshotVersion",
    "_snapshotDatabase": "id of the database that issued _snapshotVersion",
    "_view": "true: writes ignore _snapshotVersion; set by SparkDatabase.views",
    "_ownBranches": "branches that the snapshot sees as own writes",
}
"""Options that only pyomid sets; they are neither documented nor suggested."""

STARTING: Final = ("startingVersion", "startingTimestamp", "startingBookmark")
ENDING: Final = ("endingVersion", "endingTimestamp", "endingBookmark")
COMMON: Final = {
    "url": "omid:///folder or omid+hbase://…",
    "table": "table name",
    "rowKey": "key columns, comma-separated or as a JSON array; append ' desc' to a descending column",
    "mapping": "column=family:qualifier, comma-separated, or a JSON object of such pairs",
    "leaseSeconds": "term of the lease that the read or write holds; each task renews the lease",
    "checkpointLocation": "Spark's option for streaming queries",
    "queryName": "Spark's option for streaming queries",
}
AUTO_LEVEL: Final = "auto"
"""The default level: conflict ids of each table's own level; the whole tables if the TSO has no room for the ids."""
TABLE_LEVEL: Final = "table"
LEVELS: Final = (AUTO_LEVEL, ConflictLevel.CELL.value, ConflictLevel.ROW.value, TABLE_LEVEL)
"""Values of `conflictLevel`."""

_PROPERTY: Final = "option."
_PROPERTIES: Final = frozenset(("owner", "provider", "location", "comment", "external", "is_managed_location"))
"""Properties that Spark passes instead of options when it creates a table of its own catalog."""

_CATALOG_TABLE: Final = (
    "a table of Spark's own catalog (CREATE TABLE … USING omid, saveAsTable, writeTo(…).create()) loses the options "
    "url and table; write by df.write.format('omid').option(…).mode('append').save() or tx.write, read by "
    "spark.read.format('omid').option(…).load(), and for SQL use CREATE TEMPORARY VIEW … USING omid OPTIONS (url …, "
    "table …)"
)

_DESCRIPTIONS: Final = {**COMMON, **READING, **WRITING}
_PUBLIC: Final = {name.lower(): name for name in _DESCRIPTIONS}
_OF_OTHERS: Final = {"versionasof": ("at",), "timestampasof": ("at",)}
"""pyomid's options by the names that other data sources give them."""
_KNOWN: Final = _PUBLIC | {name.lower(): name for name in INTERNAL}


class Options:
    """Options by their canonical names; misspelt names are refused."""

    def __init__(self, given: Mapping[str, str]) -> None:
        if not given:
            raise Misuse(f"the data source got no options, but it needs url and table: {_CATALOG_TABLE}")
        if any(name.lower().startswith(_PROPERTY) or name.lower() in _PROPERTIES for name in given):
            raise Misuse(_CATALOG_TABLE)
        self._values: dict[str, str] = {}
        for name, value in given.items():
            self._values[_canonical_name(name)] = value

    def text(self, name: str) -> str | None:
        assert name.lower() in _KNOWN, name
        return self._values.get(name)

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise Misuse(f"option {name} is missing: {_DESCRIPTIONS[name]}", option=name)
        return value

    def whole(self, name: str, *, least: int = 0) -> int | None:
        text = self.text(name)
        if text is None:
            return None
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

    def time(self, name: str) -> datetime | None:
        """Return the option's time, which must have a time zone, because the process that plans a read does not know
        the session's zone."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text.strip())
        except ValueError:
            raise Misuse(
                f"option {name}={text!r} is not a valid time; give an ISO 8601 time with a zone, such as "
                "2030-01-31T10:00:00Z or 2030-01-31T10:00:00+01:00",
                option=name,
            ) from None
        if found.tzinfo is None:
            raise Misuse(f"option {name}={text!r} has no time zone; append Z or an offset such as +01:00", option=name)
        return found

    def only_one(self, *names: str) -> str | None:
        """Return the name of the one given option among these, or None. Raises `Misuse` if several are given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise Misuse(f"options {' and '.join(given)} exclude each other; give only one of them", option=given[0])
        return given[0] if given else None

    def shown(self, *names: str) -> str:
        """Return the one given option among these as a text with its value; "" if none is given."""
        name = self.only_one(*names)
        return "" if name is None else f"{name}={self.text(name)}"

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").strip().lower()
        if text not in ("true", "false"):
            raise Misuse(f"option {name}={text!r} is neither true nor false", option=name)
        return text == "true"

    def level(self) -> str | None:
        return checked_level(self.text("conflictLevel"))

    def names(self, name: str) -> list[str] | None:
        from pyomid.rows.schema import names_in

        text = self.text(name)
        return None if text is None else names_in(text, f"option {name}")


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value.strip().lower() not in choices:
        raise Misuse(f"option {name}={value!r} is not one of {', '.join(choices)}", option=name)
    return value.strip().lower()


def checked_level(level: str | None) -> str | None:
    return None if level is None else checked_choice("conflictLevel", level, LEVELS)


def names_of(names: str | Sequence[str]) -> list[str]:
    """Return a list of column names; a single string is one name."""
    if not isinstance(names, Iterable):
        raise MisuseType(f"columns {names!r} is not a list of column names", value=names)
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str):
            raise MisuseType(f"a column name must be a string, not {name!r} ({type(name).__name__})", value=name)
    return listed


def _canonical_name(name: str) -> str:
    """Return the canonical name of an option; case is ignored."""
    found = _KNOWN.get(name.lower())
    if found is None:
        near = _OF_OTHERS.get(name.lower()) or difflib.get_close_matches(name.lower(), _PUBLIC, n=1, cutoff=0.5)
        hint = f"; did you mean {_PUBLIC[near[0]]}?" if near else f"; known: {', '.join(_PUBLIC.values())}"
        raise Misuse(f"unknown option {name!r}{hint}", option=name)
    return found
