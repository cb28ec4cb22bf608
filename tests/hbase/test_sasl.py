"""Kerberos on a connection to HBase: a real KDC, both clients, and a server that is MIT's library and a few lines."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from on_loop import answer_of, opened_on_loop

from kdc import REALM, Kdc, running_kdc
from pyomid.errors import Misuse
from pyomid.omid.hbase.kerberos import Kerberos, KerberosFailed, KerberosOptions
from pyomid.omid.hbase.rpc.connection import Connection
from pyomid.omid.hbase.rpc.failures import AuthenticationFailed, ConnectionLost
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply
from pyomid.omid.hbase.rpc.handshake import SaslHandshake
from pyomid.omid.hbase.rpc.hbase_pb2 import RequestHeader, ResponseHeader
from pyomid.omid.hbase.sasl import Protection
from pyomid.omid.wire.frames import varint

ALICE, HBASE = f"alice@{REALM}", f"hbase/_HOST@{REALM}"
CALL = Call(CLIENT, "Echo", b"p", b"c" * 200_000)


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as running:
        for principal in (ALICE, f"hbase/localhost@{REALM}"):
            running.add(principal, keytab="all.keytab")
        yield running


@pytest.fixture
def alice(kdc: Kdc) -> Kerberos:
    return Kerberos(KerberosOptions(ALICE, str(kdc.folder / "all.keytab")))


class Server:
    """A region server of one connection, which offers `offered` and gives each call back its cells."""

    def __init__(self, kdc: Kdc, offered: int = 7, *, refuse: bytes = b"", tampered: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("localhost", self._listener.getsockname()[1])
        self._kdc, self._offered, self._refuse, self._tampered = kdc, offered, refuse, tampered
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(30.0)

    def _serve(self) -> None:
        import gssapi

        keytab = f"FILE:{self._kdc.folder}/all.keytab"
        context = gssapi.SecurityContext(
            creds=gssapi.Credentials(usage="accept", store={"keytab": keytab}), usage="accept"
        )
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rb") as file, suppress(ConnectionResetError, gssapi.exceptions.GSSError):
            if not (opening := file.read(6)):
                return
            assert opening == b"HBas\0\x51"
            if self._refuse:
                peer.sendall(self._refuse)
                file.read()
                return
            while not context.complete:
                self._answer(peer, context.step(_framed(file)))
            assert _framed(file) == b""
            self._answer(peer, context.wrap(bytes([self._offered, 1, 0, 0]), False).message)
            if not (token := _framed(file)):
                return
            chosen = context.unwrap(token).message[0]
            self._answer_calls(peer, _Plain(file) if chosen == 1 else _Wrapped(file, context, chosen == 4))

    @staticmethod
    def _answer(peer: socket.socket, token: bytes) -> None:
        peer.sendall(bytes(4) + len(token).to_bytes(4, "big") + token)

    def _answer_calls(self, peer: socket.socket, stream: Any) -> None:
        stream.frame()  # the connection's header
        while frame := stream.frame():
            length = frame[0]
            header = RequestHeader.FromString(frame[1 : 1 + length])
            reply = ResponseHeader(call_id=header.call_id)
            reply.cell_block_meta.length = header.cell_block_meta.length
            encoded = reply.SerializeToString()
            answer = varint(len(encoded)) + encoded + varint(3) + b"yes"
            answer += frame[len(frame) - header.cell_block_meta.length :]
            sent = stream.sent(len(answer).to_bytes(4, "big") + answer)
            peer.sendall(sent[:-1] + bytes([sent[-1] ^ self._tampered]))


def _framed(file: Any) -> bytes:
    return bytes(file.read(int.from_bytes(file.read(4), "big")))


class _Plain:
    def __init__(self, file: Any) -> None:
        self._file = file

    def frame(self) -> bytes:
        return _framed(self._file)

    def sent(self, data: bytes) -> bytes:
        return data


class _Wrapped:
    """A stream of tokens, cut at other places than its frames."""

    def __init__(self, file: Any, context: Any, is_encrypted: bool) -> None:
        self._file, self._context, self._is_encrypted = file, context, is_encrypted
        self._rest = b""

    def frame(self) -> bytes:
        length = int.from_bytes(self._taken(4), "big")
        return self._taken(length)

    def sent(self, data: bytes) -> bytes:
        tokens = [self._context.wrap(part, self._is_encrypted).message for part in (data[:2], data[2:777], data[777:])]
        return b"".join(len(token).to_bytes(4, "big") + token for token in tokens)

    def _taken(self, count: int) -> bytes:
        while len(self._rest) < count:
            if not (token := _framed(self._file)):
                return b""
            found = self._context.unwrap(token)
            assert found.encrypted == self._is_encrypted
            self._rest += found.message
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


@pytest.fixture
def server(kdc: Kdc) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(offered: int = 7, **how: Any) -> Server:
        made.append(Server(kdc, offered, **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(("offered", "agreed"), [(7, 4), (3, 2), (1, 1)])
def test_the_strongest_offer_is_taken(
    server: Callable[..., Server], alice: Kerberos, offered: int, agreed: int
) -> None:
    connection = Connection(server(offered).address, CLIENT, SaslHandshake(alice, HBASE), connect_timeout_s=30.0)
    calls = [connection.start(CALL, timeout_s=30.0) for _ in range(3)]
    replies = [connection.finish(call, timeout_s=30.0) for call in reversed(calls)]
    layer = connection._layer
    connection.close()
    assert (layer.protection.value if layer else 1) == agreed
    assert [(bytes(reply.message), bytes(reply.cells)) for reply in replies] == [(b"yes", CALL.cells)] * 3


@pytest.mark.parametrize("wanted", Protection)
def test_a_loop_connection_gets_the_wanted_protection(
    server: Callable[..., Server], alice: Kerberos, wanted: Protection
) -> None:
    async def ask() -> tuple[int, bytes]:
        connection = await opened_on_loop(server().address, SaslHandshake(alice, HBASE, wanted))
        reply = await answer_of(connection.start(CALL, timeout_s=30.0), 30.0)
        layer = connection._layer
        connection.close()
        assert isinstance(reply, Reply)
        return layer.protection.value if layer else 1, bytes(reply.cells)

    assert asyncio.run(ask()) == (wanted.value, CALL.cells)


def test_threads_share_one_wrapped_connection(server: Callable[..., Server], alice: Kerberos) -> None:
    connection = Connection(server().address, CLIENT, SaslHandshake(alice, HBASE), connect_timeout_s=30.0)
    found: list[bytes] = []

    def ask(number: int) -> None:
        for _ in range(20):
            call = Call(CLIENT, "Echo", b"", bytes([number]) * (1 + 5_000 * number))
            reply = connection.finish(connection.start(call, timeout_s=30.0), timeout_s=30.0)
            if bytes(reply.cells) == call.cells:
                found.append(b"ok")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    connection.close()
    assert len(found) == 160


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (bytes(4) + (-88).to_bytes(4, "big", signed=True), "HBase does not use Kerberos"),
        (
            b"\0\0\0\1" + _text(b"javax.security.sasl.SaslException") + _text(b"GSS initiate failed"),
            "clocks differ too much",
        ),
        (bytes(4) + b"\x7f\0\0\0", "bytes during the handshake"),
        (bytes(4) + _text(b"no token of Kerberos"), "cannot authenticate each other"),
    ],
    ids=["simple", "refused", "length", "token"],
)
def test_a_refusal_by_the_server_ends_the_handshake(
    server: Callable[..., Server], alice: Kerberos, refusal: bytes, said: str
) -> None:
    handshake, address = SaslHandshake(alice, HBASE), server(refuse=refusal).address
    with pytest.raises(AuthenticationFailed, match=said):
        Connection(address, CLIENT, handshake, connect_timeout_s=30.0)


def test_a_weaker_offer_than_wanted_is_refused(server: Callable[..., Server], alice: Kerberos) -> None:
    handshake = SaslHandshake(alice, HBASE, Protection.PRIVACY)
    with pytest.raises(AuthenticationFailed, match="offers authentication, integrity, not privacy"):
        Connection(server(3).address, CLIENT, handshake, connect_timeout_s=30.0)


@pytest.mark.parametrize("offered", [2, 4])
def test_a_changed_token_ends_the_connection(server: Callable[..., Server], alice: Kerberos, offered: int) -> None:
    address = server(offered, tampered=True).address
    connection = Connection(address, CLIENT, SaslHandshake(alice, HBASE), connect_timeout_s=30.0)
    with pytest.raises(ConnectionLost):
        connection.finish(connection.start(CALL, timeout_s=30.0), timeout_s=30.0)
    assert connection.is_lost


def test_a_changed_token_ends_a_loop_connection(server: Callable[..., Server], alice: Kerberos) -> None:
    async def ask() -> object:
        connection = await opened_on_loop(server(tampered=True).address, SaslHandshake(alice, HBASE))
        return await answer_of(connection.start(CALL, timeout_s=30.0), 30.0)

    assert isinstance(asyncio.run(ask()), ConnectionLost)


def test_each_kerberos_failure_has_a_clear_error(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    everything, here = str(kdc.folder / "all.keytab"), f"hbase/localhost@{REALM}"
    cache = kdc.folder / "short-cache"

    def said(options: KerberosOptions, service: str = here) -> str:
        with pytest.raises(KerberosFailed) as found:
            Kerberos(options).context(service, "localhost").begin()
        assert not found.value.may_pass
        return str(found.value)

    assert "has no key of bob@" in said(KerberosOptions(f"bob@{REALM}", everything))
    assert "the KDC does not know nobody/" in said(KerberosOptions(ALICE, everything), f"nobody/localhost@{REALM}")
    assert "the user has no ticket in the ticket cache: run kinit" in said(KerberosOptions())
    old = kdc.add(f"carol@{REALM}")
    kdc.change_key(f"carol@{REALM}")
    assert "export the keytab again" in said(KerberosOptions(f"carol@{REALM}", str(old)))
    kdc.remove(f"carol@{REALM}")
    assert "the KDC does not know carol@" in said(KerberosOptions(f"carol@{REALM}", str(old)))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{cache}")
    kdc.kinit(ALICE, kdc.folder / "all.keytab", cache, lifetime="1s")
    failure = None
    while failure is None:
        try:
            Kerberos(KerberosOptions()).context(here, "localhost").begin()
        except KerberosFailed as error:
            failure = str(error)
    assert "has expired: run kinit" in failure


def test_a_keytabs_ticket_is_renewed(kdc: Kdc) -> None:
    keytab = kdc.add(f"dora@{REALM}", lifetime="1s")
    dora = Kerberos(KerberosOptions(f"dora@{REALM}", str(keytab)))
    ends_s = time.monotonic() + 2.0  # longer than one ticket, which each context takes as it is then
    while time.monotonic() < ends_s:
        assert dora.context(HBASE, "localhost").begin()


def test_a_kdc_that_is_down_may_come_back(kdc: Kdc, server: Callable[..., Server]) -> None:
    kdc.stop()
    try:
        erna = Kerberos(KerberosOptions(ALICE, str(kdc.folder / "all.keytab")))
        made = server()
        with pytest.raises(ConnectionLost, match="no KDC answers") as found:
            Connection(made.address, CLIENT, SaslHandshake(erna, HBASE), connect_timeout_s=30.0)
        assert not isinstance(found.value, AuthenticationFailed)
    finally:
        kdc.start()
    erna.context(HBASE, "localhost").begin()


def test_callers_do_not_wait_for_a_silent_kdc_in_turn(kdc: Kdc) -> None:
    fritz = Kerberos(KerberosOptions(ALICE, str(kdc.folder / "all.keytab")))
    asked = 0

    def keep_silent(listener: socket.socket) -> None:
        nonlocal asked
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                asked += 1
                peer.settimeout(0.3)
                with peer, suppress(TimeoutError):
                    while peer.recv(4096):
                        pass

    kdc.stop()
    try:
        with socket.create_server(("127.0.0.1", kdc.port)) as listener:
            silent = threading.Thread(target=keep_silent, args=(listener,), daemon=True)
            silent.start()
            with pytest.raises(KerberosFailed, match="no KDC answers"):
                fritz.context(HBASE, "localhost").begin()
            before = asked
            with pytest.raises(KerberosFailed, match="no KDC answers"):
                fritz.context(HBASE, "localhost").begin()
            assert asked == before > 0
            listener.shutdown(socket.SHUT_RDWR)
        silent.join(30.0)
    finally:
        kdc.start()


def test_clock_skew_has_a_clear_error(kdc: Kdc, server: Callable[..., Server]) -> None:
    kdc.stop()
    try:
        kdc.start(ahead_s=3600)
        hans = Kerberos(KerberosOptions(ALICE, str(kdc.folder / "all.keytab")))
        with pytest.raises(AuthenticationFailed, match="the clocks"):
            Connection(server().address, CLIENT, SaslHandshake(hans, HBASE), connect_timeout_s=30.0)
    finally:
        kdc.stop()
        kdc.start()


def test_options_of_kerberos_are_checked_at_once(tmp_path: Path, kdc: Kdc) -> None:
    with pytest.raises(Misuse, match="does not exist"):
        Kerberos(KerberosOptions(ALICE, str(tmp_path / "none")))
    with pytest.raises(Misuse, match="needs option principal"):
        Kerberos(KerberosOptions("", str(kdc.folder / "all.keytab")))
