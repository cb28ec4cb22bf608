"""Objects to enter by `async with`, or to await. If such an object is used in another way, the error names the right
one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyomid.errors import MisuseType


class AsyncBlock:
    """An object to enter by `async with`. Entering it by `with` raises `MisuseType`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker refuses `with` by itself

        def __enter__(self) -> None:
            raise MisuseType(f"{self!r} needs `async with` instead of `with`")

        def __exit__(self, *_: object) -> None:
            """Never called: without it, Python would raise its own error before `__enter__`."""


class AwaitedBlock(AsyncBlock):
    """An object to await, or to enter by `async with`. Its `repr`, which errors show, says so."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            raise AttributeError(f"{self!r} has no attribute {name!r}", name=name, obj=self)
