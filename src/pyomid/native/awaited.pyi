from collections.abc import Generator
from typing import Any, Self

class Awaited:
    def __await__(self) -> Generator[Self, Any, Any]: ...

class Nothing:
    def __await__(self) -> Generator[Any, Any]: ...
