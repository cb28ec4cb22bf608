"""The handshake on a new connection before its first call: authentication, without a socket.

    steps = handshake.steps(CLIENT, "host1")   yields bytes to send; a number: read that many bytes and send them in;
                                               a function that may wait for a KDC: send its result in

`SimpleHandshake` sends the user's name and waits for nothing. `SaslHandshake` (Kerberos) and `TokenHandshake` (a
delegation token) exchange SASL tokens:

    client   "HBas", version 0, authentication 81 or 82; length, token
    server   status 0; length, token          or status 1; class and message of an exception, each after its length
    client   length, token; …
    client   length, ConnectionHeader         wrapped by the agreed security layer, like all bytes that follow

A server without security answers the first token with the length -88: the client may continue without SASL. This
client does not. (SaslUtil and NettyHBaseSaslRpcServerHandler of HBase 2.6.1.)
"""

from __future__ import annotations

import getpass
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from pyomid.errors import Corruption, Misuse
from pyomid.storage.hbase.rpc.failures import AuthenticationFailed, ConnectionLost
from pyomid.storage.hbase.rpc.frames import KERBEROS, TOKEN, connection_header, opening, preamble
from pyomid.storage.hbase.security.digest_md5 import Credentials, digest_steps
from pyomid.storage.hbase.security.kerberos import Kerberos, KerberosContext, KerberosFailed
from pyomid.storage.hbase.security.sasl import Agreed, Protection, SaslRefused, SecurityLayer, exchange_steps

HandshakeSteps = Generator[bytes | int | Callable[[], bytes], bytes, SecurityLayer | None]

_LENGTH: Final = struct.Struct(">i")
_SWITCH_TO_SIMPLE: Final = -88
_TOKEN_BYTES_MAX: Final = 1 << 20
"""A ticket with a long list of groups has some ten kilobytes."""


class Handshake(Protocol):
    """A handshake. All connections of a client share it; each gets its own steps."""

    def steps(self, service: str, host: str) -> HandshakeSteps:
        """Perform the handshake; return the security layer of all further bytes. `ConnectionLost` if the server refuses
        the client."""


def whole_steps(handshake: Handshake, service: str, host: str) -> HandshakeSteps:
    """Adapt the steps to a socket, which may return less than requested: a yielded number is the most to read now, and
    no byte means that the server closed the connection. Never reads beyond the handshake: later bytes belong to calls.
    """
    steps = handshake.steps(service, host)
    try:
        request = next(steps)
        while True:
            received = b""
            if not isinstance(request, int):
                received = yield request
            else:
                while len(received) < request:
                    if not (some := (yield request - len(received))):
                        raise ConnectionResetError("the server closed it during the handshake")
                    received += some
            request = steps.send(received)
    except StopIteration as end:
        layer: SecurityLayer | None = end.value
        return layer


class SimpleHandshake:
    """For servers without security, which trust the user name; by default the operating system's."""

    def __init__(self, user: str | None = None) -> None:
        self._user = user or getpass.getuser()

    def steps(self, service: str, host: str) -> HandshakeSteps:
        yield preamble(service, self._user)
        return None


class SaslHandshake:
    """For servers with Kerberos. `principal`: the servers', with _HOST for the host; `wanted` None: the strongest
    protection that the server offers (`hbase.rpc.protection`). `run_as`: the user for whom calls are performed; None:
    the authenticated user.
    """

    def __init__(
        self, kerberos: Kerberos, principal: str, wanted: Protection | None = None, *, run_as: str | None = None
    ) -> None:
        self._kerberos = kerberos
        self._principal = principal
        self._wanted = wanted
        self._run_as = run_as

    def steps(self, service: str, host: str) -> HandshakeSteps:
        context = self._kerberos.context(self._principal, host)
        first = yield partial(_begun, context)
        exchange = exchange_steps(context, first, self._wanted)
        layer = yield from _sasl_steps(KERBEROS, exchange, context.service, _NO_TICKET)
        header = connection_header(service, self._run_as)
        yield header if layer is None else layer.wrap(header)
        return layer


class TokenHandshake:
    """For servers with Kerberos, by a user's delegation token. `newest` is called for each connection; it returns None
    if the token has expired, and then `otherwise` makes the handshake. `wanted` as in `SaslHandshake`."""

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

    def steps(self, service: str, host: str) -> HandshakeSteps:
        credentials = self._newest()
        if credentials is None:
            return (yield from _instead_steps(self._otherwise, service, host))
        exchange = digest_steps(credentials, self._wanted)
        layer = yield from _sasl_steps(TOKEN, exchange, f"the HBase server {host}", _NO_TOKEN)
        header = connection_header(service)
        yield header if layer is None else layer.wrap(header)
        return layer


_NO_TICKET: Final = "Its log says why; often the clocks are apart, or its keytab has another key than the KDC"
_NO_TOKEN: Final = (
    "A delegation token is valid for hbase.auth.token.max.lifetime, and for the cluster that issued it: rerun the job"
)


def _instead_steps(otherwise: Callable[[], Handshake], service: str, host: str) -> HandshakeSteps:
    """Perform the handshake of a client whose token has expired; errors mention that."""
    with _expired():
        steps = otherwise().steps(service, host)
        try:
            request = next(steps)
            while True:
                request = steps.send((yield partial(_asked, request) if callable(request) else request))
        except StopIteration as end:
            layer: SecurityLayer | None = end.value
            return layer


@contextmanager
def _expired() -> Iterator[None]:
    """Add the expired token to errors of the handshake that replaces it."""
    try:
        yield
    except (Misuse, AuthenticationFailed) as error:
        raise AuthenticationFailed(f"the delegation token has expired. {_NO_TOKEN}. {error}") from error


def _asked(request: Callable[[], bytes]) -> bytes:
    with _expired():
        return request()


def _sasl_steps(
    authentication: int, exchange: Generator[bytes, bytes, Agreed], server: str, advice: str
) -> HandshakeSteps:
    """Perform the dialogue; return the agreed security layer. `advice`: for the error if the client is refused."""
    sent = opening(authentication)
    with _told(server):
        token = next(exchange)
        try:
            while True:
                yield sent + _LENGTH.pack(len(token)) + token
                sent = b""
                token = exchange.send((yield from _answer_steps(server, advice)))
        except StopIteration as end:
            agreed: Agreed = end.value
    if agreed.token is not None:
        yield _LENGTH.pack(len(agreed.token)) + agreed.token
    return agreed.layer


def _begun(context: KerberosContext) -> bytes:
    with _told(context.service):
        return context.begin()


@contextmanager
def _told(server: str) -> Iterator[None]:
    """Raise authentication errors as failures of the connection."""
    try:
        yield
    except KerberosFailed as error:
        raise (ConnectionLost if error.may_pass else AuthenticationFailed)(str(error)) from error
    except (SaslRefused, Corruption) as error:
        raise AuthenticationFailed(f"SASL with {server}: {error}") from error


def _answer_steps(server: str, advice: str) -> Generator[int, bytes, bytes]:
    """The server's next token."""
    (status,) = _LENGTH.unpack((yield 4))
    if status != 0:
        kind = yield from _text_steps()
        message = yield from _text_steps()
        raise AuthenticationFailed(f"{server} refuses this client: {message or kind}. {advice}")
    (length,) = _LENGTH.unpack((yield 4))
    if length == _SWITCH_TO_SIMPLE:
        raise AuthenticationFailed(
            "HBase does not use Kerberos (hbase.security.authentication=simple), and this client does not continue "
            "without it: if that is intended, omit the option authentication=kerberos"
        )
    return (yield from _bytes_steps(length))


def _text_steps() -> Generator[int, bytes, str]:
    (length,) = _LENGTH.unpack((yield 4))
    return (yield from _bytes_steps(max(length, 0))).decode(errors="replace")


def _bytes_steps(length: int) -> Generator[int, bytes, bytes]:
    if not 0 <= length <= _TOKEN_BYTES_MAX:
        raise Corruption(f"a token of {length} bytes during the handshake")
    return (yield length) if length else b""
