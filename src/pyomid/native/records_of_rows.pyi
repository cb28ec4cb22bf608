from typing import Any

from numpy.typing import NDArray

from pyomid.types import Column

def records_of(
    keys: list[bytes], rows: list[dict[Column, bytes | None]]
) -> tuple[
    NDArray[Any], list[Column], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]
]: ...
