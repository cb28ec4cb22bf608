"""Requests for one row as values (gets, mutations, conditions), and the protobuf messages for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.hbase.codec.keyvalues import KeyValue, encode
from pyomid.omid.hbase.rpc.hbase_pb2 import (
    EQUAL,
    NOT_EQUAL,
    BinaryComparator,
    Comparator,
    Condition,
    Get,
    MutationProto,
    Scan,
)
from pyomid.omid.wire.frames import varint
from pyomid.types import Column

ALL_VERSIONS: Final = 0x7FFFFFFF
"""`max_versions` of reads and VERSIONS of families: Integer.MAX_VALUE, which means all versions."""

_FILTERS: Final = "org.apache.hadoop.hbase.filter."
_DOT_IS_ANY: Final = 32
"""Java's Pattern.DOTALL."""
_NULL: Final = Comparator(name=_FILTERS + "NullComparator", serialized_comparator=b"")


class Filter(NamedTuple):
    """A filter of cells that the server applies: the name of HBase's filter class, and its message."""

    name: str
    message: bytes


NAMES_ONLY: Final = Filter("KeyOnlyFilter", b"\x08\x00")
"""The server sends empty values (len_as_val = 1: false)."""

FIRST_CELL_OF_ROW: Final = Filter("FirstKeyOnlyFilter", b"")
"""The server sends only the first cell of each row."""

NAMES_AND_LENGTHS: Final = Filter("KeyOnlyFilter", b"\x08\x01")
"""The server sends the length of each value, four bytes, in place of the value."""


def qualifiers_that_match(pattern: str) -> Filter:
    """Return a filter of qualifiers by a Java regular expression, to which bytes are Latin-1 characters."""
    return Filter("QualifierFilter", _field(1, _compare(EQUAL, pattern)))


def values_that_do_not_match(pattern: str) -> Filter:
    return Filter("ValueFilter", _field(1, _compare(NOT_EQUAL, pattern)))


def any_of(filters: Sequence[Filter]) -> Filter:
    return Filter("FilterList", _flag(1, 2) + b"".join(_field(2, _filter_bytes(each)) for each in filters))


def all_of(filters: Sequence[Filter]) -> Filter:
    return Filter("FilterList", _flag(1, 1) + b"".join(_field(2, _filter_bytes(each)) for each in filters))


def set_filter(message: Scan, filters: Sequence[Filter]) -> None:
    """Set the scan's filter to the conjunction of `filters`, in their order."""
    if filters:
        one = filters[0] if len(filters) == 1 else all_of(filters)
        message.filter.name, message.filter.serialized_filter = _FILTERS + one.name, one.message


def _filter_bytes(one: Filter) -> bytes:
    return _field(1, (_FILTERS + one.name).encode()) + _field(2, one.message)


def _compare(operation: int, pattern: str) -> bytes:
    """Return the bytes of a `CompareFilter` that has a `RegexStringComparator`."""
    comparator = _field(1, pattern.encode()) + _flag(2, _DOT_IS_ANY) + _field(3, b"ISO-8859-1")
    return _flag(1, operation) + _field(
        2, _field(1, (_FILTERS + "RegexStringComparator").encode()) + _field(2, comparator)
    )


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _flag(number: int, value: int = 1) -> bytes:
    return varint(number << 3) + varint(value)


class Durability(Enum):
    """When a mutation counts as written. `TABLE` means as the table is configured. HBase's own default is SYNC."""

    TABLE = MutationProto.USE_DEFAULT
    SYNC = MutationProto.SYNC_WAL
    """It is in the memory of the log's replicas (hflush)."""
    FSYNC = MutationProto.FSYNC_WAL
    """It is on the disks of the log's replicas (hsync). It survives if all machines lose power at once."""


class Indeterminate(Enum):
    """The result of a mutation whose reply was lost. It must not be retried without reading the row first."""

    INDETERMINATE = "indeterminate"


INDETERMINATE: Final = Indeterminate.INDETERMINATE


@dataclass(frozen=True, slots=True)
class RowGet:
    """A get of versions of columns of one row, by one atomic read. The result is list[KeyValue].

    HBase does not limit the size of the reply. Use it for system cells, which are small, not for users' tables.
    """

    row: bytes
    columns: tuple[tuple[bytes, tuple[bytes, ...]], ...] = ()
    """Families with their qualifiers. No qualifiers means the whole family; no families means the whole row."""
    max_versions: int = ALL_VERSIONS
    time_range: tuple[int, int] | None = None
    """The first version, and the version before which the range ends."""

    def message(self) -> Get:
        get = Get(row=self.row, max_versions=self.max_versions)
        for family, qualifiers in self.columns:
            get.column.add(family=family, qualifier=qualifiers)
        if self.time_range is not None:
            set_time_range(get, *self.time_range)
        return get


@dataclass(frozen=True, slots=True)
class Mutation:
    """Cells to put, or versions to delete; `block` is their cell block."""

    kind: int
    block: bytes
    count: int


@dataclass(frozen=True, slots=True)
class RowCondition:
    """True if the cell holds `value`; None means that there is no such cell. If `version` is given, only that version
    counts."""

    family: bytes
    qualifier: bytes
    value: bytes | None
    version: int | None = None
    negated: bool = False

    def message(self, row: bytes) -> Condition:
        condition = Condition(
            row=row,
            family=self.family,
            qualifier=self.qualifier,
            compare_type=NOT_EQUAL if self.negated else EQUAL,
            comparator=_NULL if self.value is None else _binary(self.value),
        )
        if self.version is not None:
            set_time_range(condition, self.version, self.version + 1)
        return condition


@dataclass(frozen=True, slots=True)
class RowMutation:
    """A mutation of one row, which is atomic. The result is None once it is durable.

    With a condition the result is True if the condition held and the whole mutation took effect, False if nothing took
    effect. The result is `INDETERMINATE` if the reply was lost and the call must not be retried, because it has a
    condition or because `repeatable` is False (law 10).
    """

    row: bytes
    mutations: tuple[Mutation, ...]
    condition: RowCondition | None = None
    repeatable: bool = True

    @property
    def is_simple(self) -> bool:
        return len(self.mutations) == 1 and self.condition is None

    @property
    def bytes_count(self) -> int:
        return sum(len(mutation.block) for mutation in self.mutations)


class RequestBuffers:
    """The buffers of a Multi call that a compiled pass encodes: the actions, and the cell block with their cells."""

    def __init__(self, actions_bytes_max: int, block_bytes_max: int) -> None:
        self._actions = np.empty(actions_bytes_max, dtype=np.uint8)
        self._block = np.empty(block_bytes_max, dtype=np.uint8)
        self._used = np.zeros(3, dtype=np.int64)
        """Counts so far: bytes of actions, bytes of the block, rows."""

    @property
    def rows(self) -> int:
        return int(self._used[2])

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that an encoder takes."""
        return self._actions, self._block, self._used

    def actions(self) -> bytes:
        return self._actions[: self._used[0]].tobytes()

    def block(self) -> memoryview:
        return self._block[: self._used[1]].data


RowRequest = RowGet | RowMutation
RowResult = list[KeyValue] | bool | Indeterminate | None


def set_time_range(message: Get | Scan | Condition, begin: int, end: int) -> None:
    """Set the range from `begin` to before `end`. `setattr` is used because the field `from` is a Python keyword."""
    setattr(message.time_range, "from", begin)
    message.time_range.to = end


def puts(cells: Sequence[KeyValue]) -> Mutation:
    return Mutation(MutationProto.PUT, b"".join(map(encode, cells)), len(cells))


def deletes(cells: Iterable[KeyValue]) -> Mutation:
    """Return a mutation of KeyValues whose kind is a delete, such as DELETE_VERSION for exactly that version."""
    encoded = [encode(cell) for cell in cells]
    return Mutation(MutationProto.DELETE, b"".join(encoded), len(encoded))


def column_list(columns: Iterable[Column]) -> tuple[tuple[bytes, tuple[bytes, ...]], ...]:
    """Return the columns grouped by family, as in `RowGet.columns`."""
    grouped: dict[bytes, list[bytes]] = {}
    for family, qualifier in columns:
        grouped.setdefault(family, []).append(qualifier)
    return tuple((family, tuple(qualifiers)) for family, qualifiers in grouped.items())


def mutation_message(row: bytes, mutation: Mutation, durability: Durability) -> MutationProto:
    message = MutationProto(row=row, mutate_type=mutation.kind, associated_cell_count=mutation.count)  # type: ignore[arg-type]
    if durability is not Durability.TABLE:
        message.durability = durability.value
    return message


def _binary(value: bytes) -> Comparator:
    comparator = BinaryComparator()
    comparator.comparable.value = value
    return Comparator(name=_FILTERS + "BinaryComparator", serialized_comparator=comparator.SerializeToString())
