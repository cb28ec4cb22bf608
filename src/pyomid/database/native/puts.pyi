from typing import Any, Final

from pyomid.types import Column

CELL_OVERHEAD_BYTES: Final = 40

class Backlog:
    _buffered_bytes: int
    _flush_bytes: int
    @property
    def is_flush_due(self) -> bool: ...

class IdCount:
    noted: int
    noted_max: int
    _claimed: int
    _named: set[int] | None
    _buffers: dict[str, Any]
    def __init__(self, ids_max: int, buffers: dict[str, Any]) -> None: ...
    def add(self, ids: int) -> bool: ...

class Buffered:
    rows: dict[bytes, dict[Column, bytes | None]]
    buffered_bytes: int
    _by_cell: int
    _by_row: int

class KnownColumns:
    _columns: dict[bytes, Column]
    _surely_fits: int
    _value_bytes_max: int

def put_known(
    backlog: Backlog, ids: IdCount, buffer: Buffered, rules: KnownColumns, key: object, cells: object
) -> bool: ...
