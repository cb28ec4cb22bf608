"""SASL for clients, without a socket: the exchange of the mechanism GSSAPI (RFC 4752), and the security layer that
follows it. HBase and ZooKeeper frame the tokens differently.

    client → first token        context.begin(), which may contact the KDC
    server → token, client → token …          until both ends are authenticated; the client's token may be empty
    server → its offer          wrapped: one byte, a bit for each protection; three bytes, the longest token it takes
    client → its choice         wrapped: the same; no authorization id, so the authenticated user is authorized
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

_LENGTH: Final = struct.Struct(">I")

_RECEIVED_BYTES_MAX: Final = 0xFFFFFF
"""The longest token that the client announces to accept, the most that three bytes hold. HBase may send longer ones."""


class Protection(Enum):
    """Protection of the bytes after the exchange: the bits of RFC 4752, the names of `hbase.rpc.protection`."""

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


class SaslRefused(Exception):
    """The two ends have no protection in common, or one does not support the mechanism."""


class MessageContext(Protocol):
    """Wraps and unwraps messages after a finished exchange, for the client."""

    def wrap(self, message: bytes, *, encrypted: bool) -> bytes: ...

    def unwrap(self, token: bytes, *, encrypted: bool) -> bytes:
        """Return the message. `Corruption` if the token was changed, or is out of order."""

    def message_bytes_max(self, token_bytes: int, *, encrypted: bool) -> int:
        """Return the length of the longest message whose token has at most `token_bytes`."""


class GssContext(MessageContext, Protocol):
    """The client's end of a security context of GSSAPI."""

    @property
    def is_complete(self) -> bool:
        """Whether both ends are authenticated."""

    def begin(self) -> bytes:
        """Return the first token. May contact the KDC."""

    def step(self, token: bytes) -> bytes:
        """Return the next token for the server; empty if it needs none."""


class SecurityLayer:
    """Wraps the bytes after the exchange into tokens, each after its length. Thread-safe; but tokens are numbered, so
    that callers must send them in the order in which they were wrapped."""

    def __init__(self, context: MessageContext, protection: Protection, message_bytes_max: int) -> None:
        self.protection = protection
        self._context = context
        self._message_bytes_max = message_bytes_max
        self._is_encrypted = protection is Protection.PRIVACY
        self._lock = threading.Lock()  # Kerberos' libraries do not document that two threads may use one context

    def wrap(self, data: bytes) -> bytes:
        """Return the bytes to send in place of `data`."""
        sent = bytearray()
        with self._lock:
            for begin in range(0, len(data), self._message_bytes_max):
                message = data[begin : begin + self._message_bytes_max]
                token = self._context.wrap(message, encrypted=self._is_encrypted)
                sent += _LENGTH.pack(len(token)) + token
        return bytes(sent)

    def unwrap(self, token: bytes | memoryview) -> bytes:
        """Return the content of a token, given without its length."""
        with self._lock:
            return self._context.unwrap(bytes(token), encrypted=self._is_encrypted)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The result of an exchange: the last token for the server (None: it expects none), and the security layer (None:
    the following bytes are not wrapped)."""

    token: bytes | None
    layer: SecurityLayer | None


def exchange_steps(context: GssContext, wanted: Protection | None) -> Generator[bytes, bytes, Agreed]:
    """Yield tokens for the server, receive its replies, and return the agreement. `wanted` None: the strongest
    protection that the server offers."""
    token = context.begin()
    while not context.is_complete:
        token = context.step((yield token))
    offer = context.unwrap((yield token), encrypted=False)
    if len(offer) != 4:
        raise SaslRefused(f"the server's offer has {len(offer)} bytes instead of 4")
    protection = choose([each for each in Protection if each.value & offer[0]], wanted)
    is_layered = protection is not Protection.AUTHENTICATION
    taken = _RECEIVED_BYTES_MAX if is_layered else 0
    last = context.wrap(bytes([protection.value]) + taken.to_bytes(3, "big"), encrypted=False)
    if not is_layered:
        return Agreed(last, None)
    is_encrypted = protection is Protection.PRIVACY
    message_bytes_max = context.message_bytes_max(int.from_bytes(offer[1:], "big"), encrypted=is_encrypted)
    if message_bytes_max < 1:
        raise SaslRefused(f"the server takes tokens of {int.from_bytes(offer[1:], 'big')} bytes only")
    return Agreed(last, SecurityLayer(context, protection, message_bytes_max))


def choose(offers: Sequence[Protection], wanted: Protection | None) -> Protection:
    """Return the wanted protection, or the strongest offer if `wanted` is None."""
    if wanted is None and offers:
        return max(offers, key=lambda each: each.value)
    if wanted is not None and wanted in offers:
        return wanted
    names = ", ".join(each.name.lower() for each in offers) or "nothing known"
    raise SaslRefused(f"the server offers {names}" + (f", not {wanted.name.lower()}" if wanted else ""))
