"""Processes whose connection ended: has the process ended too? Then nothing works with what it received (T16).

A killed process closes its sockets before its end can be seen, so the question is asked again, at each tick. What is
watched is the process that connected, not its number, which another one may have by then.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyomid.platforms import peer_process

if TYPE_CHECKING:
    from pyomid.server.peer import Connection

WATCHED_MAX: Final = 256
"""A descriptor each. Beyond it the one that was watched longest counts by age."""


class EndedProcesses:
    def __init__(self, clock: Callable[[], float], age_s_max: float) -> None:
        self._clock = clock
        self._age_s_max = age_s_max
        self._watched: dict[int, tuple[Connection, float]] = {}
        """By descriptor, the oldest first: whose it is, and since when."""
        self._poll = select.poll()

    def watch(self, connection: Connection, sock: socket.socket) -> bool:
        """After its connection ended, with the socket still open. Whether its process has ended already."""
        try:
            process = peer_process(sock)
        except ProcessLookupError:
            return True
        if process is not None:
            if len(self._watched) >= WATCHED_MAX:
                self._forget(next(iter(self._watched)))
            self._watched[process] = connection, self._clock()
            self._poll.register(process, select.POLLIN)
        return False

    def take_ended(self) -> list[Connection]:
        """Those whose process has ended since. What is so old that its starts count no more is forgotten."""
        if not self._watched:
            return []
        ended = [self._watched[process][0] for process, _ in self._poll.poll(0)]
        old_s = self._clock() - self._age_s_max
        for process, (connection, since_s) in tuple(self._watched.items()):
            if connection in ended or since_s < old_s:
                self._forget(process)
        return ended

    def close(self) -> None:
        for process in tuple(self._watched):
            self._forget(process)

    def _forget(self, process: int) -> None:
        del self._watched[process]
        self._poll.unregister(process)
        os.close(process)
