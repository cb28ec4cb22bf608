"""TLS on a client's side: whom it trusts, and a socket that two threads may use."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from typing import Final

from pyomid.errors import Misuse


def trusting(authority: str, certificate: str = "", key: str = "", *, names: str = "tls") -> ssl.SSLContext:
    """TLS with servers whose certificate this authority signed; shows `certificate` if asked. All are PEM files.

    `Misuse` names the file that cannot be used, by its option: `names` and Ca, Cert or Key.
    """
    for end, path in (("Ca", authority), ("Cert", certificate), ("Key", key)):
        if path:
            _check_readable(f"{names}{end}", path)
    try:
        context = ssl.create_default_context(cafile=authority)
    except ssl.SSLError as error:
        raise Misuse(f"option {names}Ca: {authority} holds no certificate (PEM)") from error
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, _no_password)
        except (ssl.SSLError, ValueError) as error:
            holder = f"{names}Key {key}" if key else f"{names}Cert {certificate}"
            raise Misuse(
                f"option {names}Cert: {certificate} is no certificate (PEM) with a key that is its own, and not "
                f"encrypted, in {holder}: {getattr(error, 'reason', None) or error}"
            ) from error
    return context


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise Misuse(f"option {option}: {path} cannot be read: {error.strerror}") from error


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    return ""


class Refusal(str):
    """A sentence: why no connection is made, however often one tries."""


def refusal(error: BaseException, server: str, names: str) -> Refusal | None:
    """What this error of a handshake says that no waiting mends; None for a connection that broke.

    `names`: of the options that say what is trusted and shown, without Ca, Cert and Key.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        return Refusal(f"{server} shows a certificate that is not trusted (option {names}Ca): {reason}")
    reason = (error.reason if isinstance(error, ssl.SSLError) else None) or ""
    if "_ALERT_" in reason and any(sign in reason for sign in _ALERTS_OF_CERTIFICATES):
        alert = reason.partition("_ALERT_")[2].lower().replace("_", " ")
        return Refusal(f"{server} refuses the certificate that it is shown (options {names}Cert, {names}Key): {alert}")
    if reason in _NO_TLS:
        return Refusal(f"{server} does not speak TLS at this port: correct the port, or leave option {names}Ca away")
    return None


_ALERTS_OF_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""What OpenSSL finds in place of a record of TLS."""

_LOOK_S_MAX: Final = 1.0


def look(address: tuple[str, int], tls: ssl.SSLContext | None, server: str, names: str) -> str | None:
    """Connects once more, to say what TLS has to do with a server that gives no connection: a `Refusal`, or what to
    look at; None if it has nothing to do with it. Takes some seconds at most."""
    try:
        with socket.create_connection(address, _LOOK_S_MAX) as plain:
            if tls is None:
                hint = f"{server} speaks TLS at this port: set option {names}Ca, or correct the port"
                return hint if _speaks_tls(plain) else None
            with tls.wrap_socket(plain, server_hostname=address[0]) as opened:
                opened.recv(1)  # a server says what it thinks of a client's certificate after the handshake
    except (ssl.SSLEOFError, ConnectionResetError):
        return None if tls is None else f"{server} breaks the handshake of TLS off: is this its port of TLS?"
    except OSError as error:
        return refusal(error, server, names)
    return None


def _speaks_tls(plain: socket.socket) -> bool:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        with anybody.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "_ALERT_" in (error.reason or "")


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

    Offers what connections use of a socket. Never blocks while it holds the lock.
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

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
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

    def recv_into(self, buffer: memoryview) -> int | None:
        """At once: how many bytes came, 0 at the end of the stream; None if what came holds none for the caller."""
        try:
            with self._lock:
                return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

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
