"""TLS for clients: trusted authorities, errors that explain a failed handshake, and a socket that one thread reads
while another writes. The module also connects to a TSO at a known address, with or without TLS."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final

from pyomid.errors import Misuse, Unavailable
from pyomid.system import occupy_standard, without_sigpipe


def trusting(authority: str, certificate: str = "", key: str = "", *, names: str = "tls") -> ssl.SSLContext:
    """Return a context that trusts servers certified by `authority` and presents `certificate` on request (PEM files).

    `Misuse` names the option of a file that cannot be used: `names` followed by Ca, Cert or Key.
    """
    for end, path in (("Ca", authority), ("Cert", certificate), ("Key", key)):
        if path:
            _check_readable(f"{names}{end}", path)
    try:
        context = ssl.create_default_context(cafile=authority)
    except ssl.SSLError as error:
        raise Misuse(f"option {names}Ca: {authority} contains no PEM certificate") from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, _no_password)
        except (ssl.SSLError, ValueError) as error:
            holder = f"{names}Key {key}" if key else f"{names}Cert {certificate}"
            raise Misuse(
                f"option {names}Cert: {certificate} must be a PEM certificate, and {holder} must contain its "
                f"unencrypted key: {getattr(error, 'reason', None) or error}"
            ) from error
    return context


def client_context(names: str, authority: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """Return the TLS context for the options whose names begin with `names`; None if no authority is given."""
    if not authority:
        if certificate or key:
            raise Misuse(f"options {names}Cert and {names}Key need option {names}Ca")
        return None
    return trusting(authority, certificate, key, names=names)


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise Misuse(f"option {option}: {path} cannot be read: {error.strerror}") from error


def _no_password() -> str:
    """Return an empty password, which keeps OpenSSL from asking for one at the terminal."""
    return ""


class Refusal(str):
    """The reason for a failed connection that retrying cannot fix."""


def refusal(error: BaseException, server: str, names: str) -> Refusal | None:
    """Return why the TLS handshake failed, if retrying cannot help; None if the connection was only broken.

    `names` is the prefix of the TLS options, whose names end in Ca, Cert and Key.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return Refusal(f"{server} presents a certificate that is not trusted (option {names}Ca): {reason}")
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    if "_ALERT_" in reason and any(sign in reason for sign in _ALERTS_OF_CERTIFICATES):
        alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
        return Refusal(f"{server} refuses the client's certificate (options {names}Cert, {names}Key): {alert}")
    if reason in _NO_TLS:
        return Refusal(f"{server} does not speak TLS at this port: correct the port, or omit option {names}Ca")
    return None


_ALERTS_OF_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""OpenSSL's error reasons if the received bytes are not a TLS record."""

_PROBE_S_MAX: Final = 1.0


def probe(address: tuple[str, int], tls: ssl.SSLContext | None, server: str, names: str) -> str | None:
    """Connect once more to find out whether TLS explains a failed connection. Return a `Refusal` or advice, or None if
    TLS is not the cause. The call takes a few seconds at most."""
    try:
        occupy_standard()
        with socket.create_connection(address, _PROBE_S_MAX) as sock:
            if tls is None:
                hint = f"{server} speaks TLS at this port: set option {names}Ca, or correct the port"
                return hint if _speaks_tls(sock) else None
            with tls.wrap_socket(sock, server_hostname=address[0]) as opened:
                opened.recv(1)  # a TLS 1.3 server refuses a client's certificate only after the handshake
    except (ssl.SSLEOFError, ConnectionResetError):
        return None if tls is None else f"{server} broke off the TLS handshake; check that this is its TLS port"
    except OSError as error:
        return refusal(error, server, names)
    return None


def _speaks_tls(sock: socket.socket) -> bool:
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        with unverified.wrap_socket(sock):
            return True
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")


class TlsSocket:
    """An `SSLSocket` that one thread may read while another thread writes; OpenSSL's own object allows one thread at a
    time.

    It has the socket methods that connections use. It never blocks while it holds the lock.
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
        """Set the timeout of `sendall`, and of `recv` without flags."""
        self._timeout_s = timeout_s

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self._sock.setsockopt(level, option, value)

    def pending(self) -> int:
        """Return the number of decrypted bytes that are buffered, which `poll` does not see."""
        with self._lock:
            return self._sock.pending()

    def send(self, data: bytes | bytearray | memoryview, flags: int = 0) -> int:
        """Send without waiting, and return the number of bytes that were sent. After `BlockingIOError`, the next call
        must pass the same data."""
        try:
            with self._lock, without_sigpipe():
                return self._sock.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError) as error:
            raise BlockingIOError(str(error)) from error

    def sendall(self, data: bytes | bytearray | memoryview, flags: int = 0) -> None:
        """Send all data. `flags` are ignored; they are for sockets without TLS."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.send(rest) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive data. With any flag, the call does not wait, but raises `BlockingIOError`."""
        while True:
            try:
                with self._lock:
                    return self._sock.recv(size)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if flags:
                    raise BlockingIOError(str(error)) from error
                self._wait(select.POLLIN)

    def recv_into(self, buffer: memoryview) -> int | None:
        """Read into `buffer` without waiting. Return the number of bytes, 0 at the end of the stream, None if no bytes
        can be read now."""
        try:
            with self._lock:
                return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def shutdown(self, how: int) -> None:
        """Shut down the underlying socket. `SSLSocket.shutdown` would first remove TLS, and a sending thread would then
        send cleartext."""
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        """Close the socket once no other thread is inside OpenSSL. OpenSSL keeps the descriptor's number, which the
        next file or socket of this process may get."""
        with self._lock:
            self._sock.close()

    def _wait(self, event: int) -> None:
        if (descriptor := self._sock.fileno()) < 0:  # closed by another thread
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(None if self._timeout_s is None else self._timeout_s * 1000):
            raise TimeoutError("timed out")


def tcp_connector(
    address: str, *, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0
) -> Callable[[], socket.socket]:
    """Return a function that connects to the TSO at HOST:PORT. With `tls`, the context decides how the server's name is
    checked."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise Misuse(f"{address!r} is not HOST:PORT", address=address)

    def connect() -> socket.socket:
        occupy_standard()
        try:
            sock = socket.create_connection((host, int(port)), timeout=timeout_s)
        except OSError as error:
            raise Unavailable(f"could not connect to the TSO at {address}: {error}", address=address) from error
        if tls is None:
            return sock
        try:
            return TlsSocket(tls.wrap_socket(sock, server_hostname=host))  # type: ignore[return-value]
        except OSError as error:
            sock.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise untrusted(address, error) from error
            raise Unavailable(f"TLS with the TSO at {address} failed: {error}", address=address) from error

    return connect


def untrusted(address: str, error: ssl.SSLCertVerificationError) -> Misuse:
    return Misuse(refusal(error, f"the TSO at {address}", "tls") or str(error))
