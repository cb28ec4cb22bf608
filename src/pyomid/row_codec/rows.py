"""Typed rows one at a time: Python values ↔ row key and cells, by a table's schema in the catalog.

The bytes are those of `encode` and `decode`, so that Spark reads what a client wrote, and the other way. What does not
fit a column's type is refused before it is written, arrays, maps and structs down to their last value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pyomid.errors import Corruption, Misuse, MisuseType
from pyomid.row_codec.column_types import Layout, column_type
from pyomid.row_codec.nested import json_value, value_of_json
from pyomid.row_codec.row_key import key_layout
from pyomid.row_codec.schema import near, schema_of
from pyomid.row_codec.sentinel import SENTINEL_VALUE, sentinel_column
from pyomid.row_codec.values import decode_earlier, encode_value
from pyomid.types import Column, TableInfo

Cells = dict[Column, bytes | None]


class RowCodec:
    """Encodes and decodes the rows of one table."""

    def __init__(self, info: TableInfo) -> None:
        """`Misuse` if the table has no schema."""
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
        """Every column in which a row shows that it is there."""
        return (*self._places.values(), *self._retired, self.sentinel)

    def key(self, key: Any) -> bytes:
        """The row key of a value, or of a tuple of the values of its columns."""
        return self.layout.encode(self._parts(key))

    def prefix(self, values: Any) -> bytes:
        """What the keys of all rows begin with whose first key columns have these values."""
        return self.layout.encode_prefix(self._parts(values))

    def encode(self, row: Mapping[str, Any]) -> tuple[bytes, Cells]:
        """Row key and cells. None removes a value; columns that the row lacks stay as they are. A row without any value
        gets the sentinel."""
        for name in row:
            if name not in self.types:
                raise Misuse(f"table {self._table!r} has no column {name!r}{near(str(name), self.types)}", column=name)
        missing = [name for name in self.layout.names if name not in row]
        if missing:
            raise Misuse(f"table {self._table!r}: the row lacks its key column {missing[0]!r}", column=missing[0])
        key = self.key(tuple(row[name] for name in self.layout.names))
        cells: Cells = {place: self.value(name, row[name]) for name, place in self._places.items() if name in row}
        if not any(value is not None for value in cells.values()):
            cells[self.sentinel] = SENTINEL_VALUE
        return key, cells

    def expected(self, expect: Mapping[str, Any]) -> Cells:
        """Values that columns besides the key's must have; None for one that must not be there."""
        unknown = [name for name in expect if name not in self._places]
        if unknown:
            hint = near(unknown[0], self._places)
            raise Misuse(f"table {self._table!r}: {unknown[0]!r} is no column with a value{hint}", column=unknown[0])
        return {self._places[name]: self.value(name, value) for name, value in expect.items()}

    def counter(self, name: str) -> Column:
        """The place of a column of whole numbers."""
        if not isinstance(name, str):
            raise MisuseType(f"table {self._table!r}: column {name!r} is {type(name).__name__}, not str", column=name)
        (place,) = self.expected({name: None})
        if self.types[name] not in ("byte", "short", "integer", "long"):
            raise MisuseType(f"table {self._table!r}: {name!r} is {self.types[name]}, no whole number", column=name)
        return place

    def as_now(self, place: Column, stored: bytes) -> bytes:
        """The bytes that a value has today, whenever it was stored."""
        name = self._names[place]
        if not self._earlier[name]:
            return stored
        return encode_value(decode_earlier(stored, self.types[name], self._earlier[name]), self.types[name])

    def value(self, name: str, value: Any) -> bytes | None:
        """A column's stored value. `MisuseType` names the column that it does not fit."""
        if value is None:
            return None
        spark_type = self.types[name]
        try:
            if column_type(spark_type).layout is Layout.JSON:
                _check_nested(value, json.loads(spark_type))
            return encode_value(value, spark_type)
        except (Misuse, TypeError, AttributeError, KeyError, ValueError) as error:
            raise MisuseType(
                f"table {self._table!r}, column {name!r}: {error}", column=name, type=spark_type
            ) from error

    def decode(self, key: bytes, cells: Mapping[Column, bytes]) -> dict[str, Any]:
        """All columns by name, None where nothing is stored. `Corruption` names the column that does not hold its
        type."""
        row: dict[str, Any] = dict.fromkeys(self.types)
        try:
            row.update(zip(self.layout.names, self.layout.decode(key), strict=True))
        except (ValueError, OverflowError) as error:  # Python's calendar: it has fewer years than Spark's
            raise Corruption(f"table {self._table!r}, key of row {key!r}: {error}") from error
        for place, stored in cells.items():
            name = self._names.get(place)
            if name is not None:
                try:
                    row[name] = decode_earlier(stored, self.types[name], self._earlier[name])
                except (Corruption, ValueError, OverflowError) as error:
                    raise Corruption(f"table {self._table!r}, column {name!r} of row {key!r}: {error}") from error
        return row

    # As JSON knows them: dates and decimals are text, binary is base64 (`nested`)

    def to_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: json_value(value, self._json_type(name)) for name, value in row.items()}

    def from_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """`MisuseType` names the column whose value is none of its type."""
        found = {}
        for name, plain in row.items():
            if name not in self.types:
                raise Misuse(f"table {self._table!r} has no column {name!r}{near(str(name), self.types)}", column=name)
            try:
                found[name] = value_of_json(plain, self._json_type(name))
            except (TypeError, KeyError, AttributeError, ValueError, ArithmeticError) as error:
                raise MisuseType(
                    f"table {self._table!r}, column {name!r}: {plain!r} is no {self.types[name]} in JSON: {error}",
                    column=name,
                    type=self.types[name],
                ) from error
        return found

    def _json_type(self, name: str) -> Any:
        return json.loads(self.types[name]) if self.types[name].startswith("{") else self.types[name]

    def _parts(self, key: Any) -> tuple[Any, ...]:
        return key if isinstance(key, tuple) else (key,)


def _check_nested(value: Any, spark: Any) -> None:
    """Raises unless each value, however deep, fits its type."""
    if value is None:
        return
    if isinstance(spark, str):
        encode_value(value, spark)
        return
    match spark["type"]:
        case "array":
            if not isinstance(value, list | tuple):
                raise TypeError(f"a list is needed, not a {type(value).__name__}")
            for each in value:
                _check_nested(each, spark["elementType"])
        case "map":
            pairs = value.items() if isinstance(value, Mapping) else value
            for key, each in pairs:
                if key is None:
                    raise TypeError("a map has no place for a key None")
                _check_nested(key, spark["keyType"])
                _check_nested(each, spark["valueType"])
        case _:
            names = {field["name"] for field in spark["fields"]}
            if not isinstance(value, Mapping) or set(value) != names:
                raise TypeError(f"a dict with {', '.join(sorted(names))} is needed, not {value!r}")
            for field in spark["fields"]:
                _check_nested(value[field["name"]], field["type"])
