"""Check and conversion of all incoming Arrow data: a column accepts a type unchanged, converts it, or refuses it.

    data                                    column                     accepted
    the column's own Arrow type             any                        unchanged
    null                                    any                        as nulls
    dictionary, run-end encoded             any                        as their values
    any integer                             integers, float, decimal   if the column holds each value exactly
    float of the same or fewer bits         float, double              always
    decimal of any width                    decimal                    if no digit is lost
    date64                                  date                       if each is a whole day
    date                                    timestamp_ntz              as the beginning of the day
    duration of any unit                    interval                   if each is a whole microsecond, and in range
    timestamp of any unit                   timestamp, timestamp_ntz   the same; both with a time zone, or neither
    string, binary of any layout            string, binary             always, but not one as the other
    list of any layout, map, struct         array, map, struct         part by part; a struct's fields match by name

Strings must be UTF-8. Everything else is refused: extension types, Arrow's time types, unions, strings that hold
numbers. A struct field missing in the data is null; a field unknown to the column is refused, and so is a null that the
column's type does not allow.

The types are compared once per schema; only conversions examine values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pyomid.errors import MisuseType
from pyomid.rows.arrow_arrays import fixed_values, int64_array, validity, validity_bits
from pyomid.rows.column_types import DECIMAL_DIGITS_MAX

Convert = Callable[[pa.Array], pa.Array]
"""A function that converts an array to the column's type without changing values, or raises `Misfit`."""

_STORAGE: Final = "write its storage (`array.storage`)"
_OFFSET_MAX: Final = 2**31 - 1
_PLAIN_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


class Misfit(Exception):
    """Raised if data do not fit a column. `path` names the part of a nested type, and is empty for the column
    itself."""

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, part: str) -> Misfit:
        return Misfit(self.reason, (part, *self.path))


class Gate:
    """Converts record batches of one schema to a table's columns, in the data's order.

    `what` names the table in errors. The constructor refuses a schema that cannot fit, `convert` refuses values. Both
    raise `MisuseType`, which names the column and both types.
    """

    def __init__(self, given: pa.Schema, wanted: pa.Schema, what: str) -> None:
        """`wanted` are the table's columns, in the order of `given`."""
        self._given = given
        self.schema = wanted
        self._what = what
        self._converts: list[Convert | None] = []
        for place, field in enumerate(wanted):
            try:
                _refuse_extensions(given.field(place))
                self._converts.append(conversion(given.field(place).type, field.type))
            except Misfit as misfit:
                raise self._refusal(place, misfit) from None

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for place, (column, convert) in enumerate(zip(batch.columns, self._converts, strict=True)):
            try:
                columns.append(column if convert is None else convert(column))
            except Misfit as misfit:
                raise self._refusal(place, misfit) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _refusal(self, place: int, misfit: Misfit) -> MisuseType:
        name, wanted = self.schema.field(place).name, self.schema.field(place).type
        where = f"{'.'.join((name, *misfit.path))}: " if misfit.path else ""
        return MisuseType(
            f"{self._what}: column {name!r} has type {wanted} and cannot store the data of type "
            f"{self._given.field(place).type}: {where}{misfit.reason}",
            column=name,
        )


@lru_cache(maxsize=1024)
def conversion(given: pa.DataType, wanted: pa.DataType) -> Convert | None:
    """Return the conversion from type `given` to a column's type; None if arrays are accepted without a look at their
    values.

    `wanted` is an Arrow type of `column_types`. Raise `Misfit` if no array of the type fits, not even an empty array.
    """
    if given == wanted and not _is_looked_at(given):
        return None
    if types.is_null(given):
        return lambda array: pa.nulls(len(array), wanted)
    if types.is_dictionary(given) or types.is_run_end_encoded(given):
        decode = _dictionary_decoded if types.is_dictionary(given) else _runs_decoded
        return _then(_refusing(decode), conversion(_plain(given.value_type), wanted))
    for is_given, is_wanted, convert in _CONVERSIONS:
        if is_given(given) and is_wanted(wanted):
            return _refusing(convert(given, wanted))
    raise Misfit(f"{given} is not converted to {wanted}: {_STORAGE if _is_extension(given) else 'cast the data first'}")


def _is_looked_at(kind: pa.DataType) -> bool:
    """Whether arrays of a column's own type may hold invalid values. These are strings that are not UTF-8, decimals
    with too many digits, which Arrow's unsafe casts create, or nulls in parts declared without nulls, which Arrow does
    not check.
    """
    if types.is_string(kind) or types.is_decimal(kind):
        return True
    if types.is_map(kind):
        return not kind.item_field.nullable or _is_looked_at(kind.key_type) or _is_looked_at(kind.item_type)
    parts = [kind.field(place) for place in range(kind.num_fields)]
    return any(not each.nullable or (not types.is_string(each.type) and _is_looked_at(each.type)) for each in parts)


def _refuse_extensions(field: pa.Field) -> None:
    """Refuse extension types that this Arrow does not know: it reads only their storage, whose numbers may have another
    meaning."""
    name = (field.metadata or {}).get(b"ARROW:extension:name")
    if name is not None:
        raise Misfit(f"it has the extension type {name.decode(errors='replace')}: {_STORAGE}, without its metadata")
    for place in range(field.type.num_fields):
        _refuse_extensions(field.type.field(place))


def _is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _then(first: Convert, second: Convert | None) -> Convert:
    return first if second is None else lambda array: second(first(array))


def _plain(kind: pa.DataType) -> pa.DataType:
    return _PLAIN_VIEWS.get(kind, kind)


def _refusing(convert: Convert) -> Convert:
    """Return `convert` with Arrow's exceptions turned into `Misfit`."""

    def converted(array: pa.Array) -> pa.Array:
        try:
            return convert(array)
        except pa.ArrowException as error:
            raise Misfit(str(error)) from error

    return converted


def _dictionary_decoded(array: pa.DictionaryArray) -> pa.Array:
    """Return the values of the rows; dictionary entries that no row uses are ignored."""
    return _taken(array.dictionary, array.indices)


def _runs_decoded(array: pa.RunEndEncodedArray) -> pa.Array:
    kind = array.run_ends.type
    ends = fixed_values(array.run_ends, np.dtype(f"i{kind.bit_width // 8}"))
    rows = np.arange(array.offset, array.offset + len(array))
    return _taken(array.values, int64_array(np.searchsorted(ends, rows, side="right")))


def _taken(values: pa.Array, places: pa.Array) -> pa.Array:
    """Return the values at these places; views are cast first, because Arrow's `take` does not support them."""
    kind = _plain(values.type)
    return (values if kind == values.type else values.cast(kind)).take(places)


# Simple values


def _cast(given: pa.DataType, wanted: pa.DataType) -> Convert:
    """Return a conversion by Arrow's cast, for types between which the cast never changes a value."""
    return lambda array: array.cast(wanted)


def _text(given: pa.DataType, wanted: pa.DataType) -> Convert:
    """Return a conversion of strings, which checks that they are UTF-8; Arrow's cast does not check this."""

    def convert(array: pa.Array) -> pa.Array:
        array.validate(full=True)
        return array if given == wanted else array.cast(wanted)

    return convert


def _cast_and_back(given: pa.DataType, wanted: pa.DataType) -> Convert:
    """Return a conversion of numbers, which casts them back and compares them: Arrow's cast is too strict between some
    types, and overflows silently between others."""

    def convert(array: pa.Array) -> pa.Array:
        found = array.cast(wanted, safe=False) if types.is_floating(wanted) else array.cast(wanted)
        if found.cast(given).equals(array):
            return found
        raise Misfit(f"{wanted} cannot hold all of the numbers exactly")

    return convert


def _to_decimal(given: pa.DataType, wanted: pa.DataType) -> Convert:
    """Return a conversion through a decimal with all digits, because Arrow rescales within the bits of the given
    type."""
    if given == wanted:
        return _own_decimal
    digits = given.precision if types.is_decimal256(given) else DECIMAL_DIGITS_MAX
    scale = given.scale if types.is_decimal(given) else 0
    wide = pa.decimal256(digits, scale) if types.is_decimal256(given) else pa.decimal128(digits, scale)
    return _then(lambda array: array.cast(wide), None if wide == wanted else _cast_and_back(wide, wanted))


def _own_decimal(array: pa.Array) -> pa.Array:
    array.validate(full=True)
    return array


def _float_to_float(given: pa.DataType, wanted: pa.DataType) -> Convert:
    if given.bit_width > wanted.bit_width:
        raise Misfit(f"{wanted} would round {given}: cast the data first")
    return _cast(given, wanted)


def _beginnings(given: pa.DataType, wanted: pa.DataType) -> Convert:
    if wanted.tz is not None:
        raise Misfit("the data have no time zone, but the column has one: convert the data first")
    return lambda array: array.cast(pa.date32()).cast(wanted)


def _moments(given: pa.DataType, wanted: pa.DataType) -> Convert:
    if (given.tz is None) != (wanted.tz is None):
        there, here = ("no", "one") if given.tz is None else ("a", "none")
        raise Misfit(f"the data have {there} time zone, but the column has {here}: convert the data first")
    return _cast(given, wanted)


# Nested values


def _inner(given: pa.DataType, wanted: pa.Field, part: str) -> Convert:
    """Return the conversion of one part of a nested type. `wanted` says whether the part may be null."""
    try:
        convert = conversion(given, wanted.type)
    except Misfit as misfit:
        raise misfit.inside(part) from None

    def converted(array: pa.Array) -> pa.Array:
        try:
            found = array if convert is None else convert(array)
        except Misfit as misfit:
            raise misfit.inside(part) from None
        if not wanted.nullable and found.null_count:
            raise Misfit("it is null in some rows, but the column's type does not allow null there", (part,))
        return found

    return converted


def _list(given: pa.DataType, wanted: pa.DataType) -> Convert:
    elements = _inner(given.value_type, wanted.value_field, "element")

    def convert(array: pa.Array) -> pa.Array:
        offsets = _offsets(array)
        return pa.Array.from_buffers(wanted, len(array), [_bits(array), offsets], children=[elements(array.flatten())])

    return convert


def _map(given: pa.DataType, wanted: pa.DataType) -> Convert:
    keys = _inner(given.key_type, wanted.key_field, "key")
    values = _inner(given.item_type, wanted.item_field, "value")
    entries = pa.struct([wanted.key_field, wanted.item_field])
    as_list = pa.list_(pa.struct([given.key_field, given.item_field]))

    def convert(array: pa.Array) -> pa.Array:
        listed = array.cast(as_list)
        given_keys, given_values = listed.flatten().flatten()
        children = [keys(given_keys), values(given_values)]
        pairs = pa.Array.from_buffers(entries, len(given_keys), [None], children=children)
        return pa.Array.from_buffers(wanted, len(array), [_bits(array), _offsets(listed)], children=[pairs])

    return convert


def _struct(given: pa.DataType, wanted: pa.DataType) -> Convert:
    names = [field.name for field in given]
    known = [field.name for field in wanted]
    for name in names:
        if name not in known:
            raise Misfit(f"the column's struct has no field {name!r}, only {', '.join(map(repr, known))}")
        if names.count(name) > 1:
            raise Misfit(f"the data's struct has two fields {name!r}")
    converts: list[tuple[pa.Field, int, Convert | None]] = []
    for field in wanted:
        if field.name in names:
            # A non-nullable field may be null if its struct is null: `convert` compares the counts.
            inner = _inner(given.field(field.name).type, field.with_nullable(True), field.name)
            converts.append((field, names.index(field.name), inner))
        elif field.nullable:
            converts.append((field, -1, None))
        else:
            raise Misfit(f"the data's struct lacks the field {field.name!r}, which the column's type does not allow")

    def convert(array: pa.Array) -> pa.Array:
        parts = array.flatten()  # null if the struct is null
        children = []
        for field, place, inner in converts:
            found = pa.nulls(len(array), field.type) if inner is None else inner(parts[place])
            if not field.nullable and found.null_count > array.null_count:
                raise Misfit("it is null in some rows, but the column's type does not allow null there", (field.name,))
            children.append(found)
        return pa.Array.from_buffers(wanted, len(array), [_bits(array)], children=children)

    return convert


def _bits(array: pa.Array) -> pa.Buffer | None:
    there = validity(array)
    return None if there is None else validity_bits(there)


def _offsets(array: pa.Array) -> pa.Buffer:
    """Return the offsets of the lists in `array.flatten()`, which omits elements under nulls."""
    lengths = pc.list_value_length(array)
    counts = fixed_values(lengths, np.dtype(np.int64 if types.is_int64(lengths.type) else np.int32))
    there = validity(lengths)
    ends = np.cumsum(counts if there is None else np.where(there, counts, 0), dtype=np.int64)
    if len(ends) and ends[-1] > _OFFSET_MAX:
        raise Misfit("one batch has more than 2³¹ elements: write smaller batches")
    return pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_plain or types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    is_plain = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_plain or types.is_list_view(kind) or types.is_large_list_view(kind))


_Kind = Callable[[pa.DataType], bool]
_CONVERSIONS: Final[tuple[tuple[_Kind, _Kind, Callable[[pa.DataType, pa.DataType], Convert]], ...]] = (
    (types.is_integer, types.is_integer, _cast),
    (types.is_integer, types.is_decimal, _to_decimal),
    (types.is_integer, types.is_floating, _cast_and_back),
    (types.is_floating, types.is_floating, _float_to_float),
    (types.is_decimal, types.is_decimal, _to_decimal),
    (types.is_date, types.is_date, _cast),
    (types.is_date, types.is_timestamp, _beginnings),
    (types.is_duration, types.is_duration, _cast),
    (types.is_timestamp, types.is_timestamp, _moments),
    (_is_text, _is_text, _text),
    (_is_bytes, _is_bytes, _cast),
    (_is_list, types.is_list, _list),
    (types.is_map, types.is_map, _map),
    (types.is_struct, types.is_struct, _struct),
)
"""Kinds of incoming Arrow types, kinds of columns that accept them, and the conversion."""
