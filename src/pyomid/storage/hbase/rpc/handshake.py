"""The handshake on a new connection before its first call: authentication, without a socket.

    steps = handshake.steps(CLIENT)     yields bytes, to be sent, or a number: so many bytes are read, and sent in

`SimpleHandshake` sends the user's name and waits for nothing. SASL, a dialogue of tokens after other opening bytes,
would be another class here, given to `Cluster` and `AsyncCluster`; these two and their callers would not change.
"""

from __future__ import annotations

import getpass
from collections.abc import Generator
from typing import Protocol

from pyomid.storage.hbase.rpc.frames import preamble

HandshakeSteps = Generator[bytes | int, bytes, None]


class Handshake(Protocol):
    """A handshake. All connections of a client share it; each gets steps of its own."""

    def steps(self, service: str) -> HandshakeSteps:
        """Ends when calls may be sent. `ConnectionLost` if the server refuses the client."""


def whole_steps(handshake: Handshake, service: str) -> HandshakeSteps:
    """The steps for a socket, which may bring less than was asked for: a number is the most to be read now, and no byte
    means that the server closed it. Never more than the handshake needs: what follows belongs to the calls."""
    steps = handshake.steps(service)
    request = next(steps, None)
    while request is not None:
        received = b""
        if isinstance(request, bytes):
            yield request
        else:
            while len(received) < request:
                if not (some := (yield request - len(received))):
                    raise ConnectionResetError("the server closed it during the handshake")
                received += some
        try:
            request = steps.send(received)
        except StopIteration:
            return


class SimpleHandshake:
    """For servers without security, which believe the user's name; by default the operating system's."""

    def __init__(self, user: str | None = None) -> None:
        self._user = user or getpass.getuser()

    def steps(self, service: str) -> HandshakeSteps:
        yield preamble(service, self._user)
