"""Connections to a TSO at a known address, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from pyomid.errors import Misuse, Unavailable
from pyomid.tls import TlsSocket, refusal


def tcp_connector(
    address: str, *, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0
) -> Callable[[], socket.socket]:
    """Return a `Connect` for HOST:PORT. With `tls`, the context decides how the server's name is checked."""
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
        except OSError as error:
            sock.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise untrusted(address, error) from error
            raise Unavailable(f"TLS with the TSO at {address} failed: {error}", address=address) from error

    return connect


def untrusted(address: str, error: ssl.SSLCertVerificationError) -> Misuse:
    return Misuse(refusal(error, f"the TSO at {address}", "tls") or str(error))


def read_token(path: str) -> bytes:
    """Return the token that a client presents to a TSO with `--token-file`: the file's content, stripped."""
    try:
        token = Path(path).read_bytes().strip()
    except OSError as error:
        raise Misuse(f"token file {path}: {error.strerror}") from error
    if not token:
        raise Misuse(f"token file {path} is empty")
    return token
