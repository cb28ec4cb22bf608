"""TLS: the server's certificate is verified, clients' if configured, plaintext is refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from service_process import Service, served, tls_options, trusting

from pyomid.errors import Misuse, Unavailable
from pyomid.omid.client import blocking
from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.client.request_retry import ConnectionBroken
from pyomid.omid.wire.client_protocol import ClientProtocol
from pyomid.tls import tcp_connector
from pyomid.types import CommitRequest

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


def session(running: Service, context: ssl.SSLContext | None) -> TsoSession:
    return TsoSession(tcp_connector(running.address, tls=context, timeout_s=2.0), request_s=3.0, retry_s=1.0)


def test_threads_share_a_tls_connection(certificates: Path, tmp_path: Path) -> None:
    with served(tmp_path, *tls_options(certificates)) as running:
        tso = session(running, trusting(certificates))
        done: list[int] = []

        def work() -> None:
            for _ in range(50):
                start_ts = tso.begin().start_ts
                cells = tuple((start_ts * 0x9E3779B97F4A7C15 + i) % (1 << 63) for i in range(300))
                done.append(tso.commit(CommitRequest(start_ts, cells)).start_ts)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(done)) == 300
        tso.close()


def test_plain_text_is_refused(certificates: Path, tmp_path: Path) -> None:
    with served(tmp_path, *tls_options(certificates)) as running:
        with pytest.raises(Unavailable):
            session(running, None).begin()
        good = session(running, trusting(certificates))
        assert good.begin().start_ts
        good.close()


def test_an_untrusted_server_has_a_clear_error(certificates: Path, tmp_path: Path) -> None:
    with served(tmp_path, *tls_options(certificates)) as running, pytest.raises(Misuse, match="not trusted"):
        session(running, ssl.create_default_context()).begin()


def test_clients_must_present_a_certificate_if_configured(certificates: Path, tmp_path: Path) -> None:
    with served(tmp_path, *tls_options(certificates), "--tls-client-ca", str(certificates / "ca.pem")) as running:
        context = trusting(certificates)
        with pytest.raises(Unavailable):
            session(running, context).begin()
        context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        good = session(running, context)
        assert good.begin().start_ts
        good.close()


async def test_an_event_loop_uses_tls_and_verifies_the_server(certificates: Path, tmp_path: Path) -> None:
    with served(tmp_path, *tls_options(certificates)) as running:

        def loop_session(context: ssl.SSLContext, host: str = "127.0.0.1") -> AsyncTsoSession:
            dial = tcp_connector(running.address)
            return AsyncTsoSession(
                lambda: asyncio.to_thread(lambda: ConnectedSocket(dial(), context, host)), retry_s=1.0
            )

        trusted = trusting(certificates)
        good = loop_session(trusted)
        starts = [begun.start_ts for begun in await asyncio.gather(*(good.begin() for _ in range(200)))]
        assert len(set(starts)) == 200
        assert (await good.commit(CommitRequest(starts[0], tuple(range(16_000))))).committed
        await good.close()
        for stranger in (loop_session(ssl.create_default_context()), loop_session(trusted, "elsewhere.example")):
            with pytest.raises(Misuse, match="not trusted"):
                await stranger.begin()
            await stranger.close()


@contextmanager
def tls_pair(certificates: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's `TlsSocket`, and the plain socket of a server that shook hands and reads nothing."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dial = tcp_connector(
            f"127.0.0.1:{listener.getsockname()[1]}",
            tls=trusting(certificates),
            timeout_s=30.0,
        )
        with ThreadPoolExecutor(1) as pool:
            dialling = pool.submit(dial)
            plain, _ = listener.accept()
            with plain:
                under = ssl.MemoryBIO(), ssl.MemoryBIO()
                shaking = server.wrap_bio(*under, server_side=True)
                while True:
                    try:
                        shaking.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        plain.sendall(under[1].read())
                        under[0].write(plain.recv(1 << 16))
                plain.sendall(under[1].read())
                sock = dialling.result(30)
                yield sock, plain
                sock.close()


def test_a_send_to_a_tso_that_reads_nothing_ends(certificates: Path) -> None:
    """Else it holds all threads of its session, who wait to send."""
    with tls_pair(certificates) as (sock, _), ThreadPoolExecutor(1) as pool:

        class Connected(blocking._Connection):
            def _shake_hands(self, timeout_s: float) -> None: ...

        connection = Connected(sock, ClientProtocol(), timeout_s=0.1, clock=time.monotonic, has_moved=None)
        sending = pool.submit(connection.ask, CommitRequest(50, tuple(range(3_000_000))), 60.0)
        try:
            with pytest.raises(ConnectionBroken, match="sending to the TSO failed"):
                sending.result(30)
        finally:
            with contextlib.suppress(OSError):  # closed by then, where all went well
                socket.socket.shutdown(sock._sock, socket.SHUT_RDWR)  # type: ignore[attr-defined]


def test_a_closed_tls_connection_sends_no_plaintext(certificates: Path) -> None:
    """One thread closes while another is about to send."""
    with tls_pair(certificates) as (sock, plain):
        sock.shutdown(socket.SHUT_RD)
        sock.sendall(b"a secret")
        plain.settimeout(30)
        assert b"a secret" not in plain.recv(1 << 16)


def test_an_unreadable_certificate_has_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"exit 3: .*--tls-cert /nowhere"):
        with served(tmp_path, "--tls-cert", "/nowhere"):
            pass
