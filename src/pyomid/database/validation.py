"""Checks of names, keys and values that users give, before anything is written, and of the use of objects
(`Handle`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NoReturn

from pyomid.database.native import puts
from pyomid.errors import Misuse, MisuseType, UnknownTable
from pyomid.ports import Catalog, Deployment
from pyomid.protocol.timestamps import dated
from pyomid.rows.values import full_name, shown_value
from pyomid.types import SHADOW_SUFFIX, Column, ConflictLevel, StoreLimits, TableInfo, python_scalar


class Handle:
    """An object that belongs to its process and cannot be copied, because a copy would end its resources a second
    time."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `pickle`, `copy.copy` and `copy.deepcopy`, which call this method."""
        raise MisuseType(
            f"{type(self).__name__} cannot be pickled or copied, because it belongs to the process that opened it: "
            "pass on the database's URL (`Database.url`) and connect there"
        )


SYSTEM_PREFIXES: Final = ("PYOMID_", "OMID_")
"""Prefixes of pyomid's and Apache Omid's own tables, which users may not create."""

_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]*[A-Za-z0-9_.-])?")
_TABLE_NAME_MAX: Final = 200
_SHOWN_MAX: Final = 60


def shown(data: bytes) -> str:
    """Return bytes as text for messages, truncated."""
    text = repr(data[:_SHOWN_MAX])
    return f"{text}… ({len(data)} bytes)" if len(data) > _SHOWN_MAX else text


def exact_bytes(data: bytes) -> bytes:
    """Return `data` as exactly `bytes`: a subclass, such as numpy's, may have another comparison, hash or length."""
    return data if type(data) is bytes else bytes(data)


def check_list(what: str, given: object, items: str) -> Iterable[Any]:
    """Return a list that the caller gave. Raise `MisuseType` for a single text, whose characters would count as
    items."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise MisuseType(f"{what} {given!r} is not a list of {items}", value=given)
    return given


def check_table_name(name: object) -> str:
    """Return the checked name of a new table, which must be valid in HBase too."""
    if not isinstance(name, str):
        raise MisuseType(f"table name {shown_value(name)} is {type(name).__name__}, not str", value=name)
    if not _TABLE_NAME.fullmatch(name) or len(name) > _TABLE_NAME_MAX:
        raise Misuse(
            f"table name {shown_value(name)} must be 1 to {_TABLE_NAME_MAX} letters, digits, '_', '-', '.' or ':', "
            "and must begin with a letter, a digit or '_'",
            value=name,
        )
    if name.rpartition(":")[2].upper().startswith(SYSTEM_PREFIXES):
        raise Misuse(
            f"table name {shown_value(name)} begins with {' or '.join(SYSTEM_PREFIXES)}, which is reserved for system "
            "tables",
            value=name,
        )
    return name


def find_table(catalog: Catalog, name: object) -> TableInfo:
    """Return a table's catalog entry, read anew. If there is none, `UnknownTable` names the table with the most similar
    name."""
    if not isinstance(name, str):
        check_table_name(name)
        raise AssertionError
    try:
        return catalog.table(name)
    except (UnknownTable, UnicodeEncodeError):
        present = [table.name for table in catalog.tables()]
        hint = near_table(name, present) if present else ": the database has no tables yet"
        raise UnknownTable(f"there is no table {shown_value(name)}{hint}", table=name) from None


def near_table(name: str, present: Sequence[str]) -> str:
    """Return, for an error, the most similar of these tables' names; empty if no name is similar."""
    near = difflib.get_close_matches(name, present, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def open_table(deployment: Deployment, name: object, *, leased: bool = False) -> TableInfo:
    """Return the catalog entry of a table that the caller is going to use. Raise `Misuse` if the store may lose
    versions of the table, because another program altered it. `leased` is True if a lease must keep the snapshot."""
    info = find_table(deployment.catalog, name)
    deployment.store.check_opened(info.name, info.families, leased=leased)
    return info


def check_was_there(info: TableInfo, read_at: int) -> None:
    """Raise `UnknownTable` if a past snapshot is older than the table: a table that had the same name then is gone."""
    if info.generation >= read_at:
        raise UnknownTable(
            f"there was no table {info.name!r} at {dated(read_at)}: it was created or re-created at "
            f"{dated(info.generation)}",
            table=info.name,
        )


def check_families(families: object) -> tuple[bytes, ...]:
    """Return the checked families of a new table, which are given as str or bytes, in the given order."""
    checked = tuple(_family(family) for family in check_list("families", families, "names"))
    if not checked:
        raise Misuse("a table needs at least one family")
    for family in checked:
        if checked.count(family) > 1:
            raise Misuse(f"family {shown(family)} is given twice", value=family)
    return checked


def check_conflict_level(level: object) -> ConflictLevel:
    try:
        return ConflictLevel(level)  # type: ignore[arg-type]  # any value may be checked
    except ValueError:
        known = " or ".join(repr(known.value) for known in ConflictLevel)
        raise Misuse(f"conflict level {level!r} is not {known}", value=level) from None


TTL_SECONDS_MIN: Final = 1.0
TTL_SECONDS_MAX: Final = 1e9
"""Maximum time to live, some thirty years."""


def check_ttl(ttl_seconds: object) -> float:
    ttl_seconds = python_scalar(ttl_seconds)
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int | float):
        raise MisuseType(
            f"ttl_seconds {ttl_seconds!r} is {full_name(type(ttl_seconds))}, not a number", value=ttl_seconds
        )
    if not TTL_SECONDS_MIN <= ttl_seconds <= TTL_SECONDS_MAX:
        short = ttl_seconds if isinstance(ttl_seconds, float) or abs(ttl_seconds) < 1 << 64 else "of too many digits"
        raise Misuse(
            f"ttl_seconds {short} is not a number of seconds from 1 to {TTL_SECONDS_MAX:.0f} (alter_table also "
            "accepts 0)",
            value=short,
        )
    return float(ttl_seconds)


def check_seconds(name: str, given: object) -> None:
    given = python_scalar(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        kind = type(given).__name__
        raise MisuseType(f"{name} {given!r} ({kind}) is not a number of seconds above 0", value=given)
    if not 0 < given < inf:
        raise Misuse(f"{name} {given} is not a number of seconds above 0", value=given)


class TableRules(puts.KnownColumns):
    """The rules of a table and its store. Parsed column names are cached."""

    __slots__ = ("_families", "_limits", "info")

    def __init__(self, info: TableInfo, limits: StoreLimits) -> None:
        self.info = info
        self._limits = limits
        self._surely_fits = limits.row_bytes_max // 2
        """A key of at most this many bytes fits the store, and needs no further check."""
        self._value_bytes_max = limits.value_bytes_max
        self._families = frozenset(info.families)
        self._columns = {}

    def row_key(self, key: object) -> bytes:
        if type(key) is bytes and 0 < len(key) <= self._surely_fits:
            return key  # fast path of nearly all keys; the checks below have the same result
        if not isinstance(key, bytes):
            raise self._not_bytes("row key", key)
        key = exact_bytes(key)
        if not key:
            raise Misuse(f"table {self.info.name!r}: a row key must not be empty")
        if len(key) > self._surely_fits and (why := self._limits.why_too_long(key)):
            raise Misuse(
                f"table {self.info.name!r}: row key {shown(key)} {why}", value=key, limit=self._limits.row_bytes_max
            )
        return key

    def bound(self, what: str, key: object) -> bytes:
        """Return a checked range bound, which may be any bytes."""
        if not isinstance(key, bytes):
            raise self._not_bytes(what, key)
        return exact_bytes(key)

    def column(self, name: object) -> Column:
        """Return the column with this full name, b"family:qualifier"."""
        if isinstance(name, bytes):
            found = self._columns.get(name)
            if found is not None:
                return found
        return self._parsed(name)

    def column_or_family(self, name: object) -> Column:
        """Return a column, like `column`; b"family" or b"family:" gives the whole family (a column with an empty
        qualifier)."""
        if isinstance(name, bytes) and name.rstrip(b":") in self._families:
            return Column(name.rstrip(b":"), b"")
        return self.column(name)

    def selection(self, columns: object) -> list[Column] | None:
        """Return the checked `columns` argument of a read or delete; None means all columns."""
        if columns is None:
            return None
        return [self.column_or_family(name) for name in check_list("columns", columns, "column names")]

    def cells(self, key: bytes, cells: Mapping[bytes, bytes]) -> dict[Column, bytes | None]:
        """Return the checked cells of a put. Valid cells with known names need no further call."""
        known, longest = self._columns, self._limits.value_bytes_max
        checked: dict[Column, bytes | None] = {}
        for name, value in cells.items():
            column = known.get(name) or self._parsed(name)
            checked[column] = (
                value if type(value) is bytes and 0 < len(value) <= longest else self.value(key, name, value)
            )
        return checked

    def value(self, key: bytes, name: object, value: object) -> bytes:
        if not isinstance(value, bytes):
            raise self._not_bytes(f"row {shown(key)}: value of {name!r}", value)
        value = exact_bytes(value)
        if not value:
            raise Misuse(
                f"table {self.info.name!r}, row {shown(key)}: the value of {name!r} is empty, which is how a deleted "
                "cell is stored; delete the column, or store a byte that stands for empty",
                row=key,
                column=name,
            )
        if len(value) > self._limits.value_bytes_max:
            raise Misuse(
                f"table {self.info.name!r}, row {shown(key)}: the value of {name!r} has {len(value)} bytes, over this "
                f"store's limit of {self._limits.value_bytes_max}",
                row=key,
                limit=self._limits.value_bytes_max,
            )
        return value

    def _parsed(self, name: object) -> Column:
        if not isinstance(name, bytes):
            raise self._not_bytes("column", name, self._stored_name(name))
        name = exact_bytes(name)
        family, colon, qualifier = name.partition(b":")
        if not colon:
            raise Misuse(
                f"table {self.info.name!r}: column {shown(name)} has no ':'; write b\"family:qualifier\"", value=name
            )
        if family not in self._families:
            raise Misuse(self._unknown_family(name, family), value=name)
        self._check_qualifier(name, qualifier)
        column = Column(family, qualifier)
        if len(self._columns) >= _COLUMNS_REMEMBERED_MAX:
            self._columns.clear()
        self._columns[name] = column
        return column

    def _check_qualifier(self, name: bytes, qualifier: bytes) -> None:
        if not qualifier:
            raise Misuse(f"table {self.info.name!r}: column {shown(name)} has an empty qualifier", value=name)
        if qualifier.endswith(SHADOW_SUFFIX):
            raise Misuse(
                f"table {self.info.name!r}: the qualifier of {shown(name)} ends in the bytes C2 80, which mark shadow "
                "cells",
                value=name,
            )
        if len(qualifier) > self._limits.qualifier_bytes_max:
            raise Misuse(
                f"table {self.info.name!r}: the qualifier of {shown(name)} has {len(qualifier)} bytes, over this "
                f"store's limit of {self._limits.qualifier_bytes_max}",
                value=name,
                limit=self._limits.qualifier_bytes_max,
            )

    def _unknown_family(self, name: bytes, family: bytes) -> str:
        known = sorted(text.decode("utf-8", "backslashreplace") for text in self._families)
        near = difflib.get_close_matches(family.decode("utf-8", "backslashreplace"), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
        return f"column {shown(name)} is of a family that table {self.info.name!r} does not have{hint}"

    def _stored_name(self, name: object) -> str:
        """Return what to do with the name of a typed column; empty if the table has no such column."""
        columns = () if self.info.schema is None else self.info.schema.columns
        place = next((each.column for each in columns if each.name == name), None)
        if place is None:
            return ""
        return f"; its stored name is {b':'.join(place)!r}, and only a table with a codec takes names of typed columns"

    def _not_bytes(self, what: str, value: object, hint: str = "") -> MisuseType:
        hint = hint or (", encode it" if isinstance(value, str) else "")
        return MisuseType(
            f"table {self.info.name!r}: {what} {_shown_any(value)} is {full_name(type(value))}, not bytes{hint}",
            value=value,
        )


_COLUMNS_REMEMBERED_MAX: Final = 10_000
"""Bound of the cache of parsed names, because wide rows may use qualifiers as data."""


def check_limit(limit: object) -> int | None:
    if limit is None:
        return None
    limit = python_scalar(limit)
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise MisuseType(f"limit {limit!r} is {full_name(type(limit))}, not an int", value=limit)
    if limit < 0:
        raise Misuse(f"limit {limit} is negative", value=limit)
    return limit


def _family(family: object) -> bytes:
    if isinstance(family, str):
        family = family.encode(errors="surrogatepass")  # refused below
    if not isinstance(family, bytes):
        raise MisuseType(f"family {family!r} is {type(family).__name__}, not str or bytes", value=family)
    if (
        not family
        or b":" in family
        or family.startswith(b".")
        or not family.isascii()
        or not family.decode().isprintable()
    ):
        raise Misuse(
            f"family {shown(family)} is not a name of printable ASCII without ':' and without a leading '.'",
            value=family,
        )
    return family


def _shown_any(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
