from collections.abc import Callable, Mapping
from typing import Any

from pyomid.folder.native.conflicts import Search
from pyomid.types import Column

class Unsettled(Exception): ...

def packed_rows(
    rows: Mapping[bytes, Mapping[Column, bytes | None]], numbers: Mapping[Column, int], value_bytes_max: int
) -> bytes | None: ...

class Ordinary:
    def __init__(
        self,
        search: Search,
        entries: Mapping[bytes, tuple[bytes, bytes]],
        columns: Mapping[bytes, int],
        records_cleaned: int,
        sample_mask: int,
    ) -> None: ...
    def begin(
        self,
        transaction: Any,
        databases: Mapping[bytes, Any],
        released: int,
        next_timestamp: Callable[[int], int],
    ) -> None: ...
    def decided(self, packed: bytes, is_foreign: bool = False) -> int | None: ...
    def end(self) -> None: ...
