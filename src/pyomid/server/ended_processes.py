"""Detects that the process behind a closed connection has ended: then nothing uses its start timestamps (T16).

A killed process closes its sockets before it counts as ended, so each tick checks again. A process is identified by a
file descriptor (pidfd), because its pid may be reused.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyomid.system import peer_process

if TYPE_CHECKING:
    from pyomid.server.peer import Connection

WATCHED_MAX: Final = 256
"""Processes watched at once; each takes a descriptor. One more replaces the oldest, whose starts then count until they
are too old."""


class EndedProcesses:
    """The processes of closed connections, watched until they end or their starts are too old to count."""

    def __init__(self, clock: Callable[[], float], age_s_max: float) -> None:
        self._clock = clock
        self._age_s_max = age_s_max
        self._watched: dict[int, tuple[Connection, float]] = {}
        """Connection and time by descriptor, oldest first."""
        self._poll = select.poll()

    def watch(self, connection: Connection, sock: socket.socket) -> bool:
        """Watch the process behind a connection that the peer has closed; `sock` is our open end. True if the process
        has ended already."""
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
        """Return the connections whose process has ended since the last call. Stop watching those whose starts are too
        old to count."""
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
