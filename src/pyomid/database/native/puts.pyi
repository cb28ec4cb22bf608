from typing import Final

from pyomid.types import Column

CELL_OVERHEAD_BYTES: Final = 40

class Counts:
    _buffered_bytes: int
    _ids_noted: int
    _ids_max: int
    _flush_bytes: int
    @property
    def is_flush_due(self) -> bool: ...

class Buffered:
    rows: dict[bytes, dict[Column, bytes | None]]
    buffered_bytes: int
    _by_cell: int
    _by_row: int

class KnownColumns:
    _columns: dict[bytes, Column]
    _surely_fits: int
    _value_bytes_max: int

def put_known(counts: Counts, buffer: Buffered, rules: KnownColumns, key: object, cells: object) -> bool: ...
