"""Connections to a TSO at a known address, plain or with TLS."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from pyomid.errors import Misuse, Unavailable


def tcp_connector(
    address: str, *, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0
) -> Callable[[], socket.socket]:
    """A `Connect` for HOST:PORT. With `tls` the server's name is checked as the context says."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise Misuse(f"{address!r} is not HOST:PORT", address=address)

    def connect() -> socket.socket:
        try:
            sock = socket.create_connection((host, int(port)), timeout=timeout_s)
        except OSError as error:
            raise Unavailable(f"no TSO at {address}: {error}", address=address) from error
        if tls is None:
            return sock
        try:
            return TlsSocket(tls.wrap_socket(sock, server_hostname=host))  # type: ignore[return-value]
        except ssl.SSLCertVerificationError as error:
            sock.close()
            raise untrusted(address, error) from error
        except OSError as error:
            sock.close()
            raise Unavailable(f"TLS with the TSO at {address} failed: {error}", address=address) from error

    return connect


def untrusted(address: str, error: ssl.SSLCertVerificationError) -> Misuse:
    return Misuse(f"the TSO at {address} shows a certificate that is not trusted: {error}")


def trusting(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """TLS with servers whose certificate this authority signed; shows `certificate` if asked. All are PEM files.

    `Misuse` names the file that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise Misuse(f"TLS: {error} (tlsCa {authority}, tlsCert {certificate}, tlsKey {key})") from error
    return context


def read_token(path: str) -> bytes:
    """The token that a client shows to a TSO with `--token-file`: the file's content without blanks around it."""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise Misuse(f"token file {path}: {error.strerror}") from error
    if not token:
        raise Misuse(f"token file {path} is empty")
    return token


def bound_sends(sock: socket.socket | TlsSocket, timeout_s: float) -> None:
    """Makes the socket blocking. A send in which nothing moves for `timeout_s` fails with `OSError`."""
    if isinstance(sock, TlsSocket):
        sock.settimeout(timeout_s)
        return
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))


def _timeval(timeout_s: float) -> bytes:
    """`struct timeval` for the system's own time-out of a blocking send."""
    return struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1_000_000))


class TlsSocket:
    """An `SSLSocket` that one thread may read while another writes: OpenSSL's own object allows one at a time.

    Offers what the session uses of a socket. Never blocks while it holds the lock.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._timeout_s: float | None = sock.gettimeout()
        self.family = sock.family
        sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        """For `recv` without flags, and for `sendall`."""
        self._timeout_s = timeout_s

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self._sock.setsockopt(level, option, value)

    def pending(self) -> int:
        """Bytes decrypted already, which the system's poll does not see."""
        with self._lock:
            return self._sock.pending()

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                with self._lock:
                    rest = rest[self._sock.send(rest) :]
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._wait(select.POLLOUT)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """With any flag: at once, or `BlockingIOError`."""
        while True:
            try:
                with self._lock:
                    return self._sock.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if flags:
                    raise BlockingIOError(str(error)) from error
                self._wait(select.POLLIN)

    def shutdown(self, how: int) -> None:
        """Shuts the plain socket down: `SSLSocket.shutdown` takes TLS away first, and a sending thread would send plain
        text."""
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        self._sock.close()

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        if not poll.poll(None if self._timeout_s is None else self._timeout_s * 1000):
            raise TimeoutError("timed out")
