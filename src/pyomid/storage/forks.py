"""C5: a forked child never uses its parent's store."""

from __future__ import annotations

import os

from pyomid.errors import Misuse

_here = object()
"""A different object in each process. To compare it before every use of a store is cheaper than to ask for the pid."""


def _after_fork_in_child() -> None:
    global _here
    _here = object()


os.register_at_fork(after_in_child=_after_fork_in_child)


class ProcessGuard:
    """Remembers the process that made a store; `check` refuses every other process."""

    __slots__ = ("_made_in", "_name", "_owner")

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner = os.getpid()
        self._made_in = _here

    def check(self) -> None:
        if self._made_in is not _here:
            raise Misuse(
                f"{self._name} was opened by process {self._owner} and is used in its forked child "
                f"{os.getpid()}: open it again in the child",
                owner=self._owner,
            )
