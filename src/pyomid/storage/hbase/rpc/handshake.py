"""What happens on a fresh connection before its first call: authentication, without a socket.

    steps = handshake.steps(CLIENT)     yields bytes, to be sent, or a number: that many bytes are wanted, and sent in

`SimpleHandshake` says who we are and waits for nothing. SASL is a dialogue of tokens behind other opening bytes: a
class of its own here, given to `Cluster` and `AsyncCluster`; what they do with it, and their callers, stay as they
are.
"""

from __future__ import annotations

import getpass
from collections.abc import Generator
from typing import Protocol

from pyomid.storage.hbase.rpc.frames import preamble

HandshakeSteps = Generator[bytes | int, bytes, None]


class Handshake(Protocol):
    """Shared by all connections of a client; each gets steps of its own."""

    def steps(self, service: str) -> HandshakeSteps:
        """Ends when calls may be sent. Raises `ConnectionLost` where the server refuses us."""


class SimpleHandshake:
    """Believed by servers without security: the name of the user, the operating system's by default."""

    def __init__(self, user: str | None = None) -> None:
        self._user = user or getpass.getuser()

    def steps(self, service: str) -> HandshakeSteps:
        yield preamble(service, self._user)
