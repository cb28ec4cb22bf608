from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name")

class ShownRows(Generic[Name]):
    def __init__(
        self,
        arrays: tuple[NDArray[Any], ...],
        cells: NDArray[np.int64],
        row_cell: NDArray[np.int64],
        names: list[Name],
    ) -> None: ...
    def __iter__(self) -> Iterator[tuple[bytes, dict[Name, bytes]]]: ...
    def clear(self) -> None: ...
