"""The handshake on a new connection before its first call. It authenticates the client.

`SimpleHandshake` sends the user's name and waits for nothing. `SaslHandshake` (Kerberos) and `TokenHandshake` (a
delegation token) exchange SASL tokens:

    client   "HBas", version 0, authentication 81 or 82; length, token
    server   status 0; length, token          or status 1; class and message of an exception, each after its length
    client   length, token; …
    client   length, ConnectionHeader         wrapped by the agreed security layer, like all bytes that follow

A server without security answers the first token with the length -88. That permits a client to continue without SASL,
but this client refuses. (SaslUtil and NettyHBaseSaslRpcServerHandler of HBase 2.6.1.)
"""

from __future__ import annotations

import getpass
import struct
from collections.abc import Callable, Generator
from typing import Final, Protocol

from pyomid.errors import Corruption, Misuse
from pyomid.omid.hbase.kerberos import Kerberos, KerberosFailed
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed, ConnectionLost
from pyomid.omid.hbase.rpc.frames import KERBEROS, TOKEN, connection_header, opening, preamble
from pyomid.omid.hbase.sasl import (
    Agreed,
    Credentials,
    Protection,
    SaslRefused,
    SecurityLayer,
    digest_steps,
    exchange_steps,
)

_LENGTH: Final = struct.Struct(">i")
_SWITCH_TO_SIMPLE: Final = -88
_TOKEN_BYTES_MAX: Final = 1 << 20
"""For comparison, a ticket with a long list of groups has about ten thousand bytes."""


class ByteStream(Protocol):
    """A connection during its handshake."""

    def send(self, data: bytes) -> None: ...

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes. Must not read more: bytes after the handshake belong to calls."""


class Handshake(Protocol):
    """A way to authenticate. All connections of a client share one object, and several threads may use it at the same
    time."""

    def perform(self, stream: ByteStream, service: str, host: str) -> SecurityLayer | None:
        """Return the security layer of all further bytes. Raises `ConnectionLost` if the server refuses the client."""


class SimpleHandshake:
    """For servers without security, which trust the user name. By default it is that of the operating system."""

    def __init__(self, user: str | None = None) -> None:
        self._user = user or getpass.getuser()

    def perform(self, stream: ByteStream, service: str, host: str) -> SecurityLayer | None:
        stream.send(preamble(service, self._user))
        return None


class SaslHandshake:
    """For servers with Kerberos. `principal` is the servers' principal, with _HOST for the host. `wanted` is the
    protection (`hbase.rpc.protection`); None means the strongest that the server offers. `run_as` is the user whose
    rights apply to calls; None means the authenticated user."""

    def __init__(
        self, kerberos: Kerberos, principal: str, wanted: Protection | None = None, *, run_as: str | None = None
    ) -> None:
        self._kerberos = kerberos
        self._principal = principal
        self._wanted = wanted
        self._run_as = run_as

    def perform(self, stream: ByteStream, service: str, host: str) -> SecurityLayer | None:
        context = self._kerberos.context(self._principal, host)
        header = connection_header(service, self._run_as)
        return _authenticate(
            stream, KERBEROS, exchange_steps(context, self._wanted), header, server=context.service, advice=_NO_TICKET
        )


class TokenHandshake:
    """For servers with Kerberos: authenticates with a user's delegation token. Each connection calls `newest`. If it
    returns None, because the token has expired, `otherwise` returns the handshake to use. `wanted` is as in
    `SaslHandshake`."""

    def __init__(
        self,
        newest: Callable[[], Credentials | None],
        wanted: Protection | None = None,
        *,
        otherwise: Callable[[], Handshake],
    ) -> None:
        self._newest = newest
        self._wanted = wanted
        self._otherwise = otherwise

    def perform(self, stream: ByteStream, service: str, host: str) -> SecurityLayer | None:
        credentials = self._newest()
        if credentials is None:
            try:
                return self._otherwise().perform(stream, service, host)
            except (Misuse, AuthenticationFailed) as error:
                raise AuthenticationFailed(f"the delegation token has expired. {_NO_TOKEN}. {error}") from error
        exchange, header = digest_steps(credentials, self._wanted), connection_header(service)
        server = f"the HBase server {host}"
        return _authenticate(stream, TOKEN, exchange, header, server=server, advice=_NO_TOKEN)


_NO_TICKET: Final = (
    "The server's log says why; often the clocks differ too much, or the key in its keytab is not the KDC's"
)
_NO_TOKEN: Final = (
    "A delegation token is valid for hbase.auth.token.max.lifetime, and for the cluster that issued it: rerun the job"
)


def _authenticate(
    stream: ByteStream,
    authentication: int,
    exchange: Generator[bytes, bytes, Agreed],
    header: bytes,
    *,
    server: str,
    advice: str,
) -> SecurityLayer | None:
    """Exchange tokens, then send the header. Returns the agreed security layer. `advice` is the end of the error's
    message if the server refuses the client."""
    sent = opening(authentication)
    try:
        token = next(exchange)
        while True:
            stream.send(sent + _LENGTH.pack(len(token)) + token)
            sent = b""
            token = exchange.send(_answer(stream, server, advice))
    except StopIteration as end:
        agreed: Agreed = end.value
    except KerberosFailed as error:
        raise (ConnectionLost if error.may_pass else AuthenticationFailed)(str(error)) from error
    except (SaslRefused, Corruption) as error:
        raise AuthenticationFailed(f"SASL with {server}: {error}") from error
    if agreed.token is not None:
        stream.send(_LENGTH.pack(len(agreed.token)) + agreed.token)
    stream.send(header if agreed.layer is None else agreed.layer.wrap(header))
    return agreed.layer


def _answer(stream: ByteStream, server: str, advice: str) -> bytes:
    """Return the server's next token."""
    if _number(stream) != 0:
        kind, message = _text(stream), _text(stream)
        raise AuthenticationFailed(f"{server} refuses this client: {message or kind}. {advice}")
    length = _number(stream)
    if length == _SWITCH_TO_SIMPLE:
        raise AuthenticationFailed(
            "HBase does not use Kerberos (hbase.security.authentication=simple): if that is intended, omit the option "
            "authentication=kerberos"
        )
    return _bytes(stream, length)


def _number(stream: ByteStream) -> int:
    (number,) = _LENGTH.unpack(stream.read(4))
    return int(number)


def _text(stream: ByteStream) -> str:
    return _bytes(stream, max(_number(stream), 0)).decode(errors="replace")


def _bytes(stream: ByteStream, length: int) -> bytes:
    if not 0 <= length <= _TOKEN_BYTES_MAX:
        raise Corruption(f"the server sent a token with the invalid length of {length} bytes during the handshake")
    return stream.read(length)
