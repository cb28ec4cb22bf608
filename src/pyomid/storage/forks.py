"""C5: a forked child never uses its parent's store."""

from __future__ import annotations

import os

from pyomid.errors import Misuse


class ProcessGuard:
    """Remembers the process that made a store; `check` refuses every other one."""

    __slots__ = ("_name", "_owner")

    def __init__(self, name: str) -> None:
        self._name = name
        self._owner = os.getpid()

    def check(self) -> None:
        if os.getpid() != self._owner:
            raise Misuse(
                f"{self._name} was opened by process {self._owner} and is used in its forked child "
                f"{os.getpid()}: open it again in the child",
                owner=self._owner,
            )
