"""A handshake that is a dialogue goes through both clients unchanged, plain and by TLS; what follows it belongs to the
calls. Who is not trusted hears why."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from on_loop import answer_of, opened_on_loop

from certificates import make_certificates
from pyomid.errors import Misuse
from pyomid.omid.hbase.rpc.connection import Connection
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed, ConnectionLost
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply, preamble
from pyomid.omid.hbase.rpc.handshake import ByteStream, SimpleHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import ResponseHeader
from pyomid.omid.wire.frames import varint
from pyomid.tls import probe, trusting


class Dialogue:
    """Two rounds: who, challenge, answer, word of welcome."""

    def perform(self, stream: ByteStream, service: str, host: str) -> None:
        stream.send(b"WHO:" + service.encode() + b"\n")
        stream.send(bytes(reversed(stream.read(16))))
        if stream.read(2) != b"ok":
            raise ConnectionLost("the server does not want us")


class Server:
    """Plays the other side once, then answers one call with call id 1. `said`: what it was told."""

    def __init__(self, welcome: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self.said = b""
        self._welcome = welcome
        self._tls = tls
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        peer, _ = self.listener.accept()
        if self._tls is not None:
            peer = self._tls.wrap_socket(peer, server_side=True)
        with peer:
            file = peer.makefile("rb")
            self.said += file.readline()
            peer.sendall(b"0123456789")
            peer.sendall(b"abcdef")
            self.said += file.read(16)
            header = ResponseHeader(call_id=1).SerializeToString()
            reply = varint(len(header)) + header + varint(3) + b"yes"
            # The first reply comes in one packet with the last word of the handshake.
            peer.sendall(self._welcome + len(reply).to_bytes(4, "big") + reply)
            with suppress(ConnectionResetError):  # a client that did not want our reply
                file.read()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def serving(certificates: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, certificates: Path) -> ssl.SSLContext | None:
    """What the client trusts."""
    return None if request.param == "plain" else trusting(str(certificates / "ca.pem"))


@pytest.fixture(params=[b"ok", b"no"])
def server(request: pytest.FixtureRequest, tls: ssl.SSLContext | None, certificates: Path) -> Iterator[Server]:
    made = Server(request.param, None if tls is None else serving(certificates, "server"))
    yield made
    made.listener.close()
    made.thread.join(30.0)


CALL = Call(CLIENT, "Get", b"")


@pytest.mark.parametrize("server", [b"ok"], indirect=True)
def test_the_handshake_precedes_the_first_call(server: Server, tls: ssl.SSLContext | None) -> None:
    connection = Connection(server.address, CLIENT, Dialogue(), connect_timeout_s=30.0, tls=tls)
    reply = connection.finish(connection.start(CALL, timeout_s=30.0), timeout_s=30.0)
    connection.close()
    assert bytes(reply.message) == b"yes"
    assert server.said == b"WHO:ClientService\nfedcba9876543210"


@pytest.mark.parametrize("server", [b"ok"], indirect=True)
def test_the_handshake_precedes_the_first_call_on_a_loop(server: Server, tls: ssl.SSLContext | None) -> None:
    async def ask() -> bytes:
        connection = await opened_on_loop(server.address, Dialogue(), tls)
        reply = await answer_of(connection.start(CALL, timeout_s=30.0), 30.0)
        connection.close()
        assert isinstance(reply, Reply)
        return bytes(reply.message)

    assert asyncio.run(ask()) == b"yes"
    assert server.said == b"WHO:ClientService\nfedcba9876543210"


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[[Server, ssl.SSLContext | None], object]:
    def by_asyncio(server: Server, tls: ssl.SSLContext | None) -> object:
        return asyncio.run(opened_on_loop(server.address, Dialogue(), tls))

    def blocking(server: Server, tls: ssl.SSLContext | None) -> object:
        return Connection(server.address, CLIENT, Dialogue(), connect_timeout_s=30.0, tls=tls)

    return by_asyncio if request.param == "asyncio" else blocking


@pytest.mark.parametrize("server", [b"no"], indirect=True)
def test_a_refused_client_gets_the_reason(
    server: Server, tls: ssl.SSLContext | None, connect: Callable[[Server, ssl.SSLContext | None], object]
) -> None:
    with pytest.raises(ConnectionLost, match="does not want us"):
        connect(server, tls)


@pytest.mark.parametrize(
    ("shown", "trusted", "why"),
    [
        ("server", "others", r"not trusted \(option hbaseTlsCa\): .*(issuer|self-signed|signature)"),
        ("expired", "ca", "not trusted .*certificate has expired$"),
        ("client", "ca", r"not trusted .*certificate is not valid for '127\.0\.0\.1'$"),
        ("nothing", "ca", "does not speak TLS at this port: correct the port, or omit option hbaseTlsCa"),
    ],
)
def test_an_untrusted_certificate_has_a_clear_error(
    certificates: Path,
    connect: Callable[[Server, ssl.SSLContext | None], object],
    shown: str,
    trusted: str,
    why: str,
    tmp_path: Path,
) -> None:
    class AnswersPlainly(Server):
        def _serve(self) -> None:
            peer, _ = self.listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(b"\0\0\0\x04what")

    authority = certificates / "ca.pem" if trusted == "ca" else make_certificates(tmp_path) / "ca.pem"
    server = AnswersPlainly(b"") if shown == "nothing" else _Suspicious(b"", serving(certificates, shown))
    with pytest.raises(AuthenticationFailed, match=f"^the HBase server 127.0.0.1:[0-9]+ .*{why}"):
        connect(server, trusting(str(authority)))
    server.listener.close()
    server.thread.join(30.0)


class _Suspicious(Server):
    """Expects that its client goes away."""

    def _serve(self) -> None:
        with suppress(OSError):
            super()._serve()


def test_the_server_reports_a_rejected_certificate(certificates: Path) -> None:
    """After the handshake, so the client looks for it; of a plain client's server one can see that it speaks TLS."""
    context = serving(certificates, "server")
    context.verify_mode = ssl.CERT_REQUIRED
    for tls, says in (
        (trusting(str(certificates / "ca.pem")), r"refuses .* \(options aTlsCert, aTlsKey\): certificate required"),
        (None, "speaks TLS at this port: set option aTlsCa"),
    ):
        server = _Suspicious(b"", context)
        assert (found := probe(server.address, tls, "it", "aTls")) is not None
        assert re.search(says, found)
        server.listener.close()
        server.thread.join(30.0)


class _TlsAlone(Server):
    """Whoever speaks plainly is sent away without a word, however often he comes."""

    def _serve(self) -> None:
        assert self._tls is not None
        with suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                with suppress(OSError), self._tls.wrap_socket(peer, server_side=True):
                    pass
                peer.close()


def test_plaintext_to_a_tls_port_has_a_clear_error(certificates: Path) -> None:
    """By the first call, and in a handshake that waits for an answer."""
    server = _TlsAlone(b"", serving(certificates, "server"))
    said = rf"the HBase server {server.address} speaks TLS at this port: set option hbaseTlsCa"
    connection = Connection(server.address, CLIENT, SimpleHandshake("me"), connect_timeout_s=30.0)
    with pytest.raises(AuthenticationFailed, match=said):
        connection.finish(connection.start(CALL, timeout_s=30.0), timeout_s=30.0)
    with pytest.raises(AuthenticationFailed, match=said):
        Connection(server.address, CLIENT, Dialogue(), connect_timeout_s=30.0)
    server.listener.shutdown(socket.SHUT_RDWR)
    server.thread.join(30.0)
    server.listener.close()


def test_a_refusal_by_a_plaintext_port_does_not_mention_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])

        def send_away() -> None:
            for _ in range(2):  # the client, and whoever looks for TLS
                peer, _ = listener.accept()
                peer.close()

        thread = threading.Thread(target=send_away, daemon=True)
        thread.start()
        with pytest.raises(ConnectionLost, match="no connection to") as found:
            Connection(address, CLIENT, Dialogue(), connect_timeout_s=30.0)
        thread.join(30.0)
    assert not isinstance(found.value, AuthenticationFailed)


def test_an_unusable_tls_file_is_named_with_its_option(certificates: Path, tmp_path: Path) -> None:
    authority, certificate, key = (str(certificates / name) for name in ("ca.pem", "client.pem", "server.key"))
    for files, why in (
        ((str(tmp_path / "gone"),), r"option hbaseTlsCa: .*gone cannot be read: No such file"),
        ((key,), "option hbaseTlsCa: .*server.key contains no PEM certificate"),
        ((authority, str(tmp_path)), "option hbaseTlsCert: .* cannot be read: Is a directory"),
        (
            (authority, certificate),
            "option hbaseTlsCert: .*client.pem must be a PEM certificate, and hbaseTlsCert .*key",
        ),
        (
            (authority, certificate, key),
            "option hbaseTlsCert: .*server.key must contain its unencrypted key: .*MISMATCH",
        ),
    ):
        with pytest.raises(Misuse, match=why):
            trusting(*files, names="hbaseTls")


def test_simple_authentication_needs_no_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        connection = Connection(address, CLIENT, SimpleHandshake("joe"), connect_timeout_s=30.0)
        peer, _ = listener.accept()
        connection.close()
        with peer, peer.makefile("rb") as said:
            assert said.read() == preamble(CLIENT, "joe")
