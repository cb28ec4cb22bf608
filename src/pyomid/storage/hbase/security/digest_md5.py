"""SASL's mechanism DIGEST-MD5 (RFC 2831) for clients, without a socket: authentication by a delegation token.

    client → nothing                      the server begins
    server → challenge                    realm, nonce, qop: its offer; maxbuf: the longest token it takes
    client → response                     a hash over both nonces and the secret, which itself is never sent
    server → rspauth                      the server's hash, which proves that it knows the secret too

The mechanism's encryption is RC4 or 3DES, which are broken, so this client does not support it (decision 0075).
Message integrity is HMAC-MD5, truncated to ten bytes, with a sequence number for each direction.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyomid.errors import Corruption
from pyomid.storage.hbase.security.sasl import Agreed, Protection, SaslRefused, SecurityLayer, choose

URI: Final = "null/default"
"""The digest-uri of all HBase servers, which name no protocol."""

_RECEIVED_BYTES_MAX: Final = 0xFFFFFF
_NAMES: Final = {
    b"auth": Protection.AUTHENTICATION,
    b"auth-int": Protection.INTEGRITY,
    b"auth-conf": Protection.PRIVACY,
}
_QOPS: Final = {protection: name for name, protection in _NAMES.items()}

_DIRECTIVE: Final = re.compile(rb'\s*([a-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|\Z)', re.DOTALL)
_TRAILER: Final = struct.Struct(">10sHI")
"""After each message: its code, version 1, its sequence number."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password: for a token the Base64 of its two parts, as Java's servers expect."""

    user: bytes
    password: bytes = field(repr=False)

    @classmethod
    def of_token(cls, identifier: bytes, password: bytes) -> Credentials:
        return cls(base64.b64encode(identifier), base64.b64encode(password))


def digest_steps(
    credentials: Credentials, wanted: Protection | None, *, uri: str = URI, client_nonce: bytes = b""
) -> Generator[bytes, bytes, Agreed]:
    """Yield tokens for the server, receive its replies, and return the agreement. `wanted` None: the strongest
    protection that both ends support."""
    challenge = _directives((yield b""))
    nonce, realm = challenge.get(b"nonce", b""), challenge.get(b"realm", b"")
    if not nonce or challenge.get(b"algorithm") != b"md5-sess":
        raise SaslRefused("the server's challenge is not one of DIGEST-MD5")
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
        """The connection's keys derive from it."""

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
        """Return the proof of the secret; `what` is AUTHENTICATE for the client's proof, empty for the server's."""
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
    """Message integrity as `sasl.MessageContext`, for the client: detects changed, omitted and replayed messages."""

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
            raise Corruption(f"a token of {len(token)} bytes is too short for a message with its code")
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
    """Return a token's directives by name; of several with one name, the first."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(token):
        match = _DIRECTIVE.match(token, at)
        if match is None:
            raise SaslRefused("the server's token is not one of DIGEST-MD5")
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
