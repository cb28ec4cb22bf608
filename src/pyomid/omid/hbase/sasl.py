"""SASL for clients, without a socket: two mechanisms, and the security layer after the exchange. HBase and ZooKeeper
frame the tokens differently.

GSSAPI (RFC 4752), for Kerberos:

    client → first token        context.begin(), which may contact the KDC
    server → token, client → token …          until both ends are authenticated; the client's token may be empty
    server → its offer          wrapped: one byte, a bit for each protection; three bytes, the longest token it accepts
    client → its choice         wrapped: the same; no authorization id, so the authenticated user is authorized

DIGEST-MD5 (RFC 2831), for delegation tokens:

    client → nothing                      the server begins
    server → challenge                    realm, nonce, qop: its offer; maxbuf: the longest token it accepts
    client → response                     a hash over both nonces and the secret, which itself is never sent
    server → rspauth                      the server's hash, which proves that it knows the secret too

DIGEST-MD5 encrypts with RC4 or 3DES, which are broken, so this client does not support its encryption (decision 0075).
The message integrity of DIGEST-MD5 is HMAC-MD5, truncated to ten bytes, with a sequence number for each direction.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import struct
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from pyomid.errors import Corruption

_LENGTH: Final = struct.Struct(">I")

_RECEIVED_BYTES_MAX: Final = 0xFFFFFF
"""The longest token that the client says it accepts: the largest number in three bytes. HBase may send longer
tokens."""


class Protection(Enum):
    """How the bytes after the exchange are protected. Values are the bits of RFC 4752; names are those of
    `hbase.rpc.protection`."""

    AUTHENTICATION = 1
    INTEGRITY = 2
    PRIVACY = 4


class SaslRefused(Exception):
    """The two ends have no protection in common, or one does not support the mechanism."""


class MessageContext(Protocol):
    """Wraps and unwraps a client's messages after the exchange."""

    def wrap(self, message: bytes, *, encrypted: bool) -> bytes: ...

    def unwrap(self, token: bytes, *, encrypted: bool) -> bytes:
        """Return the message. Raises `Corruption` if the token was changed or is out of order."""

    def message_bytes_max(self, token_bytes: int, *, encrypted: bool) -> int:
        """Return the length of the longest message whose token has at most `token_bytes`."""


class GssContext(MessageContext, Protocol):
    """The client's end of a security context of GSSAPI."""

    @property
    def is_complete(self) -> bool:
        """Whether both ends are authenticated."""

    def begin(self) -> bytes:
        """Return the first token. May wait for the KDC."""

    def step(self, token: bytes) -> bytes:
        """Return the next token for the server; it is empty if the server needs none."""


class SecurityLayer:
    """Wraps the bytes after the exchange into tokens, each preceded by its length. Thread-safe; but tokens are
    numbered, so callers must send them in the order in which they were wrapped."""

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
        """Return the content of a token, which is given without its length."""
        with self._lock:
            return self._context.unwrap(bytes(token), encrypted=self._is_encrypted)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The result of an exchange: the last token for the server (None: it expects no token), and the security layer
    (None: the following bytes are not wrapped)."""

    token: bytes | None
    layer: SecurityLayer | None


def exchange_steps(context: GssContext, wanted: Protection | None) -> Generator[bytes, bytes, Agreed]:
    """Yield tokens for the server, receive its replies, and return the agreement. If `wanted` is None, the strongest
    protection that the server offers is used."""
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


# DIGEST-MD5


URI: Final = "null/default"
"""The digest-uri of all HBase servers. It does not name a protocol."""

_NAMES: Final = {
    b"auth": Protection.AUTHENTICATION,
    b"auth-int": Protection.INTEGRITY,
    b"auth-conf": Protection.PRIVACY,
}
_QOPS: Final = {protection: name for name, protection in _NAMES.items()}

_DIRECTIVE: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|\Z)', re.DOTALL)
_TRAILER: Final = struct.Struct(">10sHI")
"""The bytes after each message: its code, version 1, its sequence number."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password. For a token, they are the Base64 of its two parts, as Java's servers expect."""

    user: bytes
    password: bytes = field(repr=False)

    @classmethod
    def of_token(cls, identifier: bytes, password: bytes) -> Credentials:
        return cls(base64.b64encode(identifier), base64.b64encode(password))


def digest_steps(
    credentials: Credentials, wanted: Protection | None, *, uri: str = URI, client_nonce: bytes = b""
) -> Generator[bytes, bytes, Agreed]:
    """Yield tokens for the server, receive its replies, and return the agreement. If `wanted` is None, the strongest
    protection that both ends support is used."""
    challenge = _directives((yield b""))
    nonce, realm = challenge.get(b"nonce", b""), challenge.get(b"realm", b"")
    if not nonce or challenge.get(b"algorithm") != b"md5-sess":
        raise SaslRefused("the server's challenge is not a DIGEST-MD5 challenge")
    protection = _chosen(challenge.get(b"qop", b"auth"), wanted)
    digest = _Digest(credentials, realm, nonce, client_nonce or base64.b64encode(secrets.token_bytes(24)))
    reply = yield digest.response(protection, uri.encode())
    proof = _directives(reply).get(b"rspauth", b"")
    if not hmac.compare_digest(proof, digest.code(b"", protection, uri.encode())):
        raise SaslRefused("the server does not know the token's secret")
    if protection is Protection.AUTHENTICATION:
        return Agreed(None, None)
    integrity = Integrity(digest.session)
    sent_bytes_max = integrity.message_bytes_max(_number(challenge.get(b"maxbuf", b"65536")), encrypted=False)
    if sent_bytes_max < 1:
        raise SaslRefused("the server takes no tokens")
    return Agreed(None, SecurityLayer(integrity, protection, sent_bytes_max))


def _chosen(offer: bytes, wanted: Protection | None) -> Protection:
    offers = [_NAMES[name] for each in offer.split(b",") if (name := each.strip()) in _NAMES]
    possible = [each for each in offers if each is not Protection.PRIVACY]
    if wanted is Protection.PRIVACY or (not possible and offers):
        raise SaslRefused(
            "privacy is required, but a delegation token's ciphers (RC4, 3DES) are broken: encrypt by TLS (option "
            "hbaseTlsCa), and let the server offer integrity (hbase.rpc.protection)"
        )
    return choose(possible, wanted)


class _Digest:
    """The hashes of one exchange."""

    def __init__(self, credentials: Credentials, realm: bytes, nonce: bytes, client_nonce: bytes) -> None:
        self._credentials, self._realm, self._nonce, self._client_nonce = credentials, realm, nonce, client_nonce
        secret = _md5(b":".join((credentials.user, realm, credentials.password)))
        self.session: Final = _md5(b":".join((secret, nonce, client_nonce)))
        """The keys of the connection are derived from it."""

    def response(self, protection: Protection, uri: bytes) -> bytes:
        return b",".join(
            (
                b"charset=utf-8",
                b'username="%s"' % _quoted(self._credentials.user),
                b'realm="%s"' % _quoted(self._realm),
                b'nonce="%s"' % _quoted(self._nonce),
                b"nc=00000001",
                b'cnonce="%s"' % _quoted(self._client_nonce),
                b'digest-uri="%s"' % uri,
                b"maxbuf=%d" % _RECEIVED_BYTES_MAX,
                b"response=" + self.code(b"AUTHENTICATE", protection, uri),
                b"qop=" + _QOPS[protection],
            )
        )

    def code(self, what: bytes, protection: Protection, uri: bytes) -> bytes:
        """Return the proof of the secret. `what` is AUTHENTICATE for the client's proof, and empty for the server's."""
        asked = what + b":" + uri
        if protection is not Protection.AUTHENTICATION:
            asked += b":" + b"0" * 32
        parts = (
            _hex(self.session),
            self._nonce,
            b"00000001",
            self._client_nonce,
            _QOPS[protection],
            _hex(_md5(asked)),
        )
        return _hex(_md5(b":".join(parts)))


class Integrity:
    """Message integrity (`MessageContext`) for the client. Detects changed, omitted and replayed messages."""

    def __init__(self, session: bytes) -> None:
        self._keys = tuple(
            _md5(session + b"Digest session key to " + way + b" signing key magic constant")
            for way in (b"client-to-server", b"server-to-client")
        )
        self._sent = self._received = 0

    def wrap(self, message: bytes, *, encrypted: bool) -> bytes:
        number, self._sent = self._sent, self._sent + 1 & 0xFFFFFFFF
        return message + _TRAILER.pack(_code(self._keys[0], number, message), 1, number)

    def unwrap(self, token: bytes, *, encrypted: bool) -> bytes:
        message, trailer = token[: -_TRAILER.size], token[-_TRAILER.size :]
        if len(trailer) < _TRAILER.size:
            raise Corruption(f"a token of {len(token)} bytes is too short to hold a message authentication code")
        code, version, number = _TRAILER.unpack(trailer)
        is_genuine = hmac.compare_digest(code, _code(self._keys[1], self._received, message))
        if not is_genuine or version != 1 or number != self._received:
            raise Corruption("a message from the server was changed, or is out of order")
        self._received = self._received + 1 & 0xFFFFFFFF
        return message

    def message_bytes_max(self, token_bytes: int, *, encrypted: bool) -> int:
        return token_bytes - _TRAILER.size


def _code(key: bytes, number: int, message: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(4, "big") + message, "md5")[:10]


def _directives(token: bytes) -> Mapping[bytes, bytes]:
    """Return a token's directives by name. If several have the same name, the first counts."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(token):
        match = _DIRECTIVE.match(token, at)
        if match is None:
            raise SaslRefused("the server's token is not a DIGEST-MD5 token")
        quoted, unquoted = match[2], match[3]
        found.setdefault(match[1], unquoted if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL))
        at = match.end()
    return found


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 10:
        raise SaslRefused("the server's maxbuf is not a number")
    return int(text)


def _quoted(value: bytes) -> bytes:
    return re.sub(rb'(["\\])', rb"\\\1", value)


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _hex(digest: bytes) -> bytes:
    return digest.hex().encode()
