"""Conversion of single typed rows: Python values ↔ row key and cells, by a table's schema in the catalog.

The bytes are the same as in `encode` and `decode`, so clients and Spark read each other's rows. A value that does not
fit its column's type is refused before it is written, even inside a nested value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.rows.nested import OF_PROGRAMS, json_value, value_of_json
from pyomid.rows.row_key import key_layout, shown_key, way_out
from pyomid.rows.schema import SENTINEL_VALUE, near, schema_of, sentinel_column
from pyomid.rows.values import decode_earlier, encode_value, shown_value
from pyomid.types import Column, TableInfo

Cells = dict[Column, bytes | None]


class RowCodec:
    """Encodes and decodes the rows of one table."""

    def __init__(self, info: TableInfo) -> None:
        """Raise `Misuse` if the table has no schema."""
        schema = schema_of(info)
        self.layout: Final = key_layout(schema)
        self.types: Final = {column.name: column.spark_type for column in schema.columns}
        self._table = info.name
        self._places = {column.name: column.column for column in schema.columns if column.column is not None}
        self._names = {place: name for name, place in self._places.items()}
        self._earlier = {column.name: column.earlier_types for column in schema.columns}
        self._retired = schema.retired
        self.sentinel: Final = sentinel_column(schema, info.families)

    @property
    def all_cells(self) -> tuple[Column, ...]:
        """All columns whose cells make a row exist."""
        return (*self._places.values(), *self._retired, self.sentinel)

    def key(self, key: Any) -> bytes:
        """Return the row key of a single value, or of a tuple with the values of the key columns."""
        try:
            return self.layout.encode(self._parts(key))
        except Misuse as error:
            raise self._refused_key(error) from error

    def prefix(self, values: Any) -> bytes:
        """Return the common prefix of the keys of all rows whose first key columns have these values."""
        try:
            return self.layout.encode_prefix(self._parts(values))
        except Misuse as error:
            raise self._refused_key(error) from error

    def _refused_key(self, error: Misuse) -> Misuse:
        return type(error)(f"table {self._table!r}: {error}", **error.values)

    def key_of(self, stored: bytes) -> Any:
        """Return the value of the key column in a row key; a tuple if the key has several columns. Raise `Corruption`
        if the row key is malformed."""
        try:
            values = self.layout.decode(stored)
        except (Corruption, Misuse) as error:
            raise self._undecodable(error, "", stored) from error
        return values if len(values) > 1 else values[0]

    def encode(self, row: Mapping[str, Any]) -> tuple[bytes, Cells]:
        """Return the row key and the cells of a row. None removes a value; columns missing in `row` keep their stored
        values. A row without any value gets the sentinel."""
        for name in row:
            if name not in self.types:
                raise Misuse(f"table {self._table!r} has no column {name!r}{near(str(name), self.types)}", column=name)
        missing = [name for name in self.layout.names if name not in row]
        if missing:
            raise Misuse(f"table {self._table!r}: the row lacks the key column {missing[0]!r}", column=missing[0])
        key = self.key(tuple(row[name] for name in self.layout.names))
        cells: Cells = {place: self.value(name, row[name]) for name, place in self._places.items() if name in row}
        if not any(value is not None for value in cells.values()):
            cells[self.sentinel] = SENTINEL_VALUE
        return key, cells

    def expected(self, expect: Mapping[str, Any]) -> Cells:
        """Return the cells that a row must have, with None for a column that must have no value. Key columns are
        refused."""
        unknown = [name for name in expect if name not in self._places]
        if unknown:
            hint = near(unknown[0], self._places)
            raise Misuse(f"table {self._table!r}: {unknown[0]!r} is not a value column{hint}", column=unknown[0])
        return {self._places[name]: self.value(name, value) for name, value in expect.items()}

    def counter(self, name: str) -> Column:
        """Return the family and qualifier of an integer column."""
        if not isinstance(name, str):
            raise MisuseType(
                f"table {self._table!r}: a column name must be a string, not {name!r} ({type(name).__name__})",
                column=name,
            )
        (place,) = self.expected({name: None})
        if self.types[name] not in ("byte", "short", "integer", "long"):
            raise MisuseType(
                f"table {self._table!r}: column {name!r} has type {self.types[name]}, which is not an integer type",
                column=name,
            )
        return place

    def as_now(self, place: Column, stored: bytes) -> bytes:
        """Return a stored value in the column's present type, which may be wider than the type in which it was
        stored."""
        name = self._names[place]
        if not self._earlier[name]:
            return stored
        return encode_value(decode_earlier(stored, self.types[name], self._earlier[name]), self.types[name])

    def value(self, name: str, value: Any) -> bytes | None:
        """Return a column's stored value. `MisuseType` names the column if the value does not fit."""
        if value is None:
            return None
        spark_type = self.types[name]
        try:
            return encode_value(value, spark_type)
        except MisuseType as error:
            raise MisuseType(
                f"table {self._table!r}, column {name!r}: {error}", column=name, type=spark_type, value=value
            ) from error

    def decode(self, key: bytes, cells: Mapping[Column, bytes]) -> dict[str, Any]:
        """Return the values of all columns by name, None if no value is stored. `Corruption` names a column whose
        stored value does not have its type; `Misuse` names a column whose date or time is outside Python's range."""
        row: dict[str, Any] = dict.fromkeys(self.types)
        what = ""
        try:
            row.update(zip(self.layout.names, self.layout.decode(key), strict=True))
            for place, stored in cells.items():
                name = self._names.get(place)
                if name is not None:
                    what = f", column {name!r}"
                    row[name] = decode_earlier(stored, self.types[name], self._earlier[name])
        except (Corruption, Misuse) as error:
            raise self._undecodable(error, what, key) from error
        return row

    def _undecodable(self, error: Corruption | Misuse, what: str, key: bytes) -> Corruption | Misuse:
        where = f"table {self._table!r}, row {shown_key(key, self.layout)}{what}: {error}"
        if isinstance(error, Corruption):
            return Corruption(f"{where}; {way_out(self._table, key)}", row=key)
        return Misuse(where, row=key)

    # As JSON: dates and decimals are text, binary is base64 (`nested`)

    def to_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: json_value(value, self._json_type(name)) for name, value in row.items()}

    def from_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Python values of a row that is given as JSON. `MisuseType` names a column whose value does not
        have its type."""
        found = {}
        for name, plain in row.items():
            if name not in self.types:
                raise Misuse(f"table {self._table!r} has no column {name!r}{near(str(name), self.types)}", column=name)
            try:
                found[name] = value_of_json(plain, self._json_type(name), OF_PROGRAMS)
            except (TypeError, KeyError, AttributeError, ValueError, ArithmeticError) as error:
                raise MisuseType(
                    f"table {self._table!r}, column {name!r}: {shown_value(plain)} is not a valid {self.types[name]} "
                    f"in JSON: {error}",
                    column=name,
                    type=self.types[name],
                ) from error
        return found

    def _json_type(self, name: str) -> Any:
        return json.loads(self.types[name]) if self.types[name].startswith("{") else self.types[name]

    def _parts(self, key: Any) -> tuple[Any, ...]:
        return key if isinstance(key, tuple) else (key,)


# Keys given without a codec: bytes are stored keys, and other values are those of the key columns


def stored_key(info: TableInfo, key: Any) -> bytes:
    """Return the row key of `key`, which is a stored key or values of the key columns. For a table without a schema,
    return `key` unchecked."""
    if isinstance(key, bytes) or info.schema is None:
        stored: bytes = key
        return stored
    return RowCodec(info).key(key)


def stored_prefix(info: TableInfo, values: Any) -> bytes:
    """Return the prefix of row keys for a stored prefix or the values of the first key columns, like `stored_key`."""
    if isinstance(values, bytes) or info.schema is None:
        stored: bytes = values
        return stored
    return RowCodec(info).prefix(values)
