"""SASL, the client's end, without a socket: what follows an exchange, and the exchange of the mechanism GSSAPI
(RFC 4752). HBase and ZooKeeper frame its tokens each in its own way.

    client → first token        context.begin(), which asks the KDC
    server → token, client → token …          until both ends have proved who they are; the client's may be empty
    server → what it offers     wrapped: one byte, a bit for each protection; three bytes, the longest token it takes
    client → what is chosen     wrapped: the same, and nothing else: who is authenticated is who is authorized
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
"""The longest token that the client takes; three bytes hold no more. HBase sends longer ones all the same."""


class Protection(Enum):
    """What is done to each byte after the exchange: the bits of RFC 4752, the names of `hbase.rpc.protection`."""

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


class SaslRefused(Exception):
    """The two ends have no protection in common, or one does not speak the mechanism."""


class MessageContext(Protocol):
    """The client's end of an exchange that is done: what becomes of messages."""

    def wrap(self, message: bytes, *, encrypted: bool) -> bytes: ...

    def unwrap(self, token: bytes, *, encrypted: bool) -> bytes:
        """`Corruption` if it is not what the server sent, in the server's order."""

    def message_bytes_max(self, token_bytes: int, *, encrypted: bool) -> int:
        """The longest message whose token is no longer than that."""


class GssContext(MessageContext, Protocol):
    """The client's end of a security context of GSSAPI."""

    @property
    def is_complete(self) -> bool:
        """Whether both ends have proved who they are."""

    def step(self, token: bytes) -> bytes:
        """The next token for the server; empty if it needs none."""


class SecurityLayer:
    """What follows the exchange: tokens, each after its length. May be called by several threads; who wraps sends in
    the order in which it wrapped, because tokens are numbered."""

    def __init__(self, context: MessageContext, protection: Protection, message_bytes_max: int) -> None:
        self.protection = protection
        self._context = context
        self._message_bytes_max = message_bytes_max
        self._is_encrypted = protection is Protection.PRIVACY
        self._turn = threading.Lock()  # the libraries of Kerberos do not say that two threads may use one context

    def wrap(self, data: bytes) -> bytes:
        """The bytes to be sent in place of `data`."""
        sent = bytearray()
        with self._turn:
            for begin in range(0, len(data), self._message_bytes_max):
                message = data[begin : begin + self._message_bytes_max]
                token = self._context.wrap(message, encrypted=self._is_encrypted)
                sent += _LENGTH.pack(len(token)) + token
        return bytes(sent)

    def unwrap(self, token: bytes | memoryview) -> bytes:
        """What a token, without its length, holds."""
        with self._turn:
            return self._context.unwrap(bytes(token), encrypted=self._is_encrypted)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The end of an exchange: the last token for the server, None if it waits for none; and the layer of what follows,
    None if bytes go as they are."""

    token: bytes | None
    layer: SecurityLayer | None


def exchange_steps(context: GssContext, token: bytes, wanted: Protection | None) -> Generator[bytes, bytes, Agreed]:
    """Yields tokens for the server and is sent its answers; `token` is the first. `wanted` None: the strongest that the
    server offers."""
    while not context.is_complete:
        token = context.step((yield token))
    offer = context.unwrap((yield token), encrypted=False)
    if len(offer) != 4:
        raise SaslRefused(f"the server's offer has {len(offer)} bytes in place of 4")
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
    """The one that is wanted; None: the strongest of those that a server offers."""
    if wanted is None and offers:
        return max(offers, key=lambda each: each.value)
    if wanted is not None and wanted in offers:
        return wanted
    names = ", ".join(each.name.lower() for each in offers) or "nothing known"
    raise SaslRefused(f"the server offers {names}" + (f", not {wanted.name.lower()}" if wanted else ""))
