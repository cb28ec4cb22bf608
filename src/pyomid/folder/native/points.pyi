from collections.abc import Sequence
from typing import Any, Final

from pyomid.types import Column, ReadBounds

UNWANTED: Final = 0
WANTED: Final = 1
TOMBSTONE_OF_WANTED: Final = 2

class Selection:
    kinds: bytes
    def __init__(self, kinds: bytes, names: tuple[Column, ...]) -> None: ...

def settled_rows(
    cursor: Any, prefix: bytes, rows: Sequence[bytes], selection: Selection, bounds: ReadBounds, expired_to: int
) -> list[dict[Column, bytes] | None]: ...
