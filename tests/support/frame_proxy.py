"""A TSO's door with an eye and a hand in it: passes Omid's frames on, remembers them, keeps some back if told to.

    with FrameProxy("127.0.0.1", tso_port) as proxy:
        …a client that connects to proxy.address…
        proxy.drop_next(lambda frame: not frame.from_client)     # the next answer never arrives
        proxy.wait_for(lambda frame: …)                          # until such a frame has come by

Real processes on both sides, and no sleeping: what a test waits for is a frame.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from pyomid.omid.wire.frames import FrameCutter, frame

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Passed:
    """One frame: of which connection (counted from 0), from which side, and its payload (without its length)."""

    connection: int
    from_client: bool
    payload: bytes


Wanted = Callable[[Passed], bool]


class FrameProxy:
    """Listens on a free port of the loopback; every connection gets one of its own to `host`:`port`."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._changed = threading.Condition()
        self._frames: list[Passed] = []
        self._drops: list[Wanted] = []
        self._sockets: list[socket.socket] = []
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor = threading.Thread(target=self._accept, name="frame-proxy", daemon=True)
        self._acceptor.start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    @property
    def frames(self) -> list[Passed]:
        """Everything that came by so far, dropped or not, in the order in which it came."""
        with self._changed:
            return list(self._frames)

    def drop_next(self, wanted: Wanted) -> None:
        """The next frame for which `wanted` is true is remembered and not passed on. May be called several times."""
        with self._changed:
            self._drops.append(wanted)

    def wait_for(self, wanted: Wanted, *, count: int = 1, deadline_s: float = 60.0) -> list[Passed]:
        """The frames for which `wanted` is true, once there are `count` of them; `AssertionError` at the deadline."""
        end_s = time.monotonic() + deadline_s
        with self._changed:
            while True:
                found = [each for each in self._frames if wanted(each)]
                if len(found) >= count:
                    return found
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(f"{len(found)} of {count} frames came within {deadline_s:g} s")
                self._changed.wait(left_s)

    def cut(self) -> None:
        """Every connection breaks, on both sides; new ones are taken."""
        with self._changed:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> FrameProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        number = 0
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            with self._changed:
                self._sockets += [client, server]
            for source, target, from_client in ((client, server, True), (server, client, False)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(number, source, target, from_client), daemon=True).start()
            number += 1

    def _pass(self, number: int, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        """One direction of one connection, to its end; the end is passed on too."""
        cutter = FrameCutter()
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                for payload in cutter.feed(chunk):
                    if self._remember(Passed(number, from_client, payload)):
                        target.sendall(frame(payload))
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _remember(self, passed: Passed) -> bool:
        """Whether it goes on."""
        with self._changed:
            self._frames.append(passed)
            self._changed.notify_all()
            for wanted in self._drops:
                if wanted(passed):
                    self._drops.remove(wanted)
                    return False
            return True
