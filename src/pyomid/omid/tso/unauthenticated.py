"""Peers that have not finished their handshake. Their number, time and memory are bounded.

    accepted ─► TLS handshake, if the socket uses TLS ─► Connection ─► pyomid's handshake ─► `handshake_done`
       └──────────── bounded number; the oldest of the address with most of them is closed ──────┘

So a peer that opens connections and sends nothing does not exhaust the process's descriptors. A legitimate client is
still accepted, and finishes its handshake long before its connection could be the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyomid.omid.tso.peer import Connection

ACCEPTED_AT_ONCE: Final = 64
"""How many connections are accepted in a row before the loop reads from other peers."""

NO_DESCRIPTOR_S: Final = 0.1
"""After the system has run out of descriptors, no connection is accepted for this long."""

BACKLOG: Final = 1024


class UnauthenticatedPeers:
    """The peers that have not finished their handshake, by address, in the order of arrival."""

    def __init__(self, peers_max: int) -> None:
        self.peers_max = peers_max
        self._addresses: dict[str, dict[Connection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, peer: Connection, address: str) -> None:
        self._addresses.setdefault(address, {})[peer] = None
        self._count += 1

    def remove(self, peer: Connection, address: str) -> None:
        """Remove a peer that finished its handshake or disconnected."""
        of_address = self._addresses.get(address, {})
        if peer in of_address:
            del of_address[peer]
            self._count -= 1
            if not of_address:
                del self._addresses[address]

    def peer_to_close(self) -> Connection | None:
        """Return the oldest peer of the address that has the most peers, or None if there are no peers."""
        most = max(self._addresses.values(), key=len, default=None)
        return None if most is None else next(iter(most))


class Acceptor:
    """Accepts the peers of one listening socket. A peer counts as a connection even before its TLS handshake."""

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        *,
        admit: Callable[[str], Connection | None],
        make_room: Callable[[], bool],
        handshake_s_max: float,
    ) -> None:
        """`admit` returns the connection for a peer at this address, or None to close that peer. `make_room` closes
        another peer."""
        self._sock = sock
        self._tls = tls
        self._admit = admit
        self._make_room = make_room
        self._handshake_s_max = handshake_s_max
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._accept)

    def close(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                peer, name = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._wait_for_room()
                    return
                raise
            address = name[0] if isinstance(name, tuple) else "unix"
            connection = self._admit(address)
            if connection is None:
                peer.close()
            else:
                peer.setblocking(False)
                connection.connecting = self._loop.create_task(self._connect(connection, peer))

    def _wait_for_room(self) -> None:
        """Close a peer and pause accepting. Without a free descriptor the listener would stay readable and keep the
        loop busy."""
        self._make_room()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(NO_DESCRIPTOR_S, self._continue)

    def _continue(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    async def _connect(self, connection: Connection, peer: socket.socket) -> None:
        patience_s = self._handshake_s_max if self._tls is not None else None
        try:
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
                await self._loop.connect_accepted_socket(
                    lambda: connection, peer, ssl=self._tls, ssl_handshake_timeout=patience_s
                )
        finally:
            connection.connecting = None
            if not connection.is_connected:
                peer.close()
                connection.failed_to_connect()
