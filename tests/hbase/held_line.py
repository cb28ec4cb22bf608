"""A network that keeps back what was sent: a TSO reaches its region server through `HeldLine` and nothing else.

What was sent before `hold` ended is delivered by `release`, whatever became of the sender meanwhile: it may be
stopped, deposed or dead. So a write can be late as late can be, between real processes.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from types import TracebackType

_CHUNK_BYTES = 1 << 16
_connect = socket.create_connection
"""Whoever is led through the line in this very process replaces the other."""

THROUGH_THE_LINE = """
import socket, sys
of, to = {of}, {to}
connect = socket.create_connection

def through_the_line(address, *args, **kwargs):
    host, port = address[:2]
    return connect((host, to if port == of else port), *args, **kwargs)

socket.create_connection = through_the_line
from pyomid.cli import main
sys.exit(main())
"""
"""Python's `-c`: the command `pyomid`, whose connections to port `of` of this machine go to port `to` instead."""


class HeldLine:
    """Listens on a free port of the loopback and passes everything on to `port`, until it is told to hold."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._changed = threading.Condition()
        self._holds = False
        self._awaited = b""
        self._held: list[tuple[socket.socket, bytes]] = []
        self.released: list[bytes] = []
        """What was held back last, for whoever waits for its effect in vain."""
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="held-line", daemon=True).start()

    @property
    def python(self) -> tuple[str, str]:
        """For `TsoProcess`: a TSO whose region server is behind this line."""
        return "-c", THROUGH_THE_LINE.format(of=self._upstream, to=self.port)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Every connection there is breaks, on both sides; new ones are taken."""
        with self._changed:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def hold(self, content: bytes = b"") -> None:
        """From the first request with these bytes in it on, what clients send stays here."""
        with self._changed:
            self._holds, self._awaited = True, content

    def wait_until_held(self, content: bytes, *, deadline_s: float = 120.0) -> None:
        """Until a request with these bytes in it lies here."""
        end_s = time.monotonic() + deadline_s
        with self._changed:
            while not any(content in data for data in self._by_socket()):
                left_s = end_s - time.monotonic()
                assert left_s > 0, "nobody sent that"
                self._changed.wait(left_s)

    def release(self) -> None:
        """Everything goes on, in its order."""
        with self._changed:
            self._holds = False
            held, self._held = self._held, []
            self.released = [data for _, data in held]
            for target, data in held:
                with suppress(OSError):
                    target.sendall(data)

    def __enter__(self) -> HeldLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _by_socket(self) -> list[bytes]:
        found: dict[socket.socket, bytes] = {}
        for target, data in self._held:
            found[target] = found.get(target, b"") + data
        return list(found.values())

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = _connect(("127.0.0.1", self._upstream))
                self._sockets += [client, server]
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=self._to_client, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK_BYTES):
                with self._changed:
                    if self._holds and (self._held or self._awaited in data):
                        self._held.append((server, data))
                        self._changed.notify_all()
                    else:
                        server.sendall(data)
        # The sender is gone; what it sent may still lie here, so the line to the server stays.

    @staticmethod
    def _to_client(client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(_CHUNK_BYTES):
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
