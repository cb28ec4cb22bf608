from collections.abc import Callable, Collection
from typing import Any

class Search:
    def __init__(self) -> None: ...
    def row(
        self,
        cursor: Any,
        row: bytes,
        numbers: bytes,
        start_ts: int,
        own: Collection[int],
        state_of: Callable[[int], int],
    ) -> tuple[int, list[int], bool] | None: ...
    def greatest(self, cells: bytes, numbers: bytes) -> int: ...
    def hidden(self, cursor: Any, row: bytes, watermark: int, records: int) -> list[bytes] | None: ...
